//! TLS inside TLS: a connection to a wss:// server through an https:// proxy.

use std::any::Any;

use super::{Error, Layer, Session};

/// `inner` travels inside `outer`.
pub struct Stacked {
    outer: Box<dyn Layer>,
    inner: Box<dyn Layer>,
    /// Bytes decrypted by `outer` that `inner` has not consumed.
    between: Vec<u8>,
}

impl Stacked {
    /// Joins two layers. `outer` has completed its handshake; `inner` begins its own with the bytes that came
    /// `between`.
    #[must_use]
    pub fn new(outer: Box<dyn Layer>, inner: Box<dyn Layer>, between: Vec<u8>) -> Self {
        Self { outer, inner, between }
    }
}

impl Layer for Stacked {
    fn receive(&mut self, incoming: &mut [u8], plain: &mut Vec<u8>, outgoing: &mut Vec<u8>) -> Result<usize, Error> {
        let outer = self.outer.receive(incoming, &mut self.between, outgoing);
        let mut alerts = Vec::new();
        // Bytes that the outer layer has decrypted before an error are valid.
        let inner = self.inner.receive(&mut self.between, plain, &mut alerts);
        let consumed = outer?;
        if !alerts.is_empty() {
            self.outer.send(incoming.get_mut(consumed..).unwrap_or_default(), &alerts, outgoing)?;
        }
        self.between.drain(..inner?);
        if self.between.is_empty() {
            self.between = Vec::new();
        }
        Ok(consumed)
    }

    fn send(&mut self, pending: &mut [u8], plain: &[u8], outgoing: &mut Vec<u8>) -> Result<(), Error> {
        let mut encrypted = Vec::new();
        self.inner.send(&mut self.between, plain, &mut encrypted)?;
        self.outer.send(pending, &encrypted, outgoing)
    }

    fn close(&mut self, pending: &mut [u8], outgoing: &mut Vec<u8>) {
        let mut alerts = Vec::new();
        self.inner.close(&mut self.between, &mut alerts);
        let _ = self.outer.send(pending, &alerts, outgoing); // after an error no notice can be sent
        self.outer.close(pending, outgoing);
    }

    fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }

    fn is_peer_closed(&self) -> bool {
        self.inner.is_peer_closed()
    }

    fn alpn(&self) -> Option<Vec<u8>> {
        self.inner.alpn()
    }

    fn version(&self) -> Option<String> {
        self.inner.version()
    }

    fn session(&self) -> Option<Session> {
        self.inner.session()
    }

    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }

    fn visit(&self, to: &mut dyn FnMut(&dyn Any)) {
        self.outer.visit(to);
        self.inner.visit(to);
    }
}
