//! The bytes of a stream before the WebSocket begins, through the layers that it has so far. No I/O.

use std::sync::Arc;

use wirespeed_protocol::{Connection, PayloadBuffer};

use crate::keepalive::Keepalive;
use crate::peer::{Failure, Peer};
use crate::tls::{self, Layer, Stacked};
use crate::write_queue::WriteQueue;

/// The bytes of a stream, plain or under one or two layers of TLS, before the WebSocket begins.
#[derive(Default)]
pub(super) struct Early {
    layer: Option<Box<dyn Layer>>,
    cipher_tail: Vec<u8>,
    plain: Vec<u8>,
    output: WriteQueue,
    eof: bool,
    /// Why nothing more comes, told once everything that came before it was taken.
    failure: Option<tls::Error>,
}

impl Early {
    /// Puts a layer on top, whose handshake begins. What it has to say is in the output.
    pub(super) fn start_layer(&mut self, layer: Box<dyn Layer>) -> Result<(), tls::Error> {
        self.layer = Some(match self.layer.take() {
            Some(outer) => Box::new(Stacked::new(outer, layer)),
            None => layer,
        });
        self.cipher_tail = std::mem::take(&mut self.plain);
        self.decrypt()
    }

    /// Whether the handshake of a layer goes on; an error if it can never end.
    pub(super) fn is_handshaking(&self) -> Result<bool, tls::Error> {
        let handshaking = self.layer.as_ref().is_some_and(|layer| layer.is_handshaking());
        if handshaking && self.eof {
            return Err(tls::Error::Protocol("the peer closed the connection during the TLS handshake".into()));
        }
        Ok(handshaking)
    }

    /// Queues bytes.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), tls::Error> {
        match &mut self.layer {
            Some(layer) => layer.send(&mut self.cipher_tail, bytes, self.output.tail()),
            None => {
                self.output.tail().extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Takes bytes that were read; after an error, what the output holds should be written nevertheless: an
    /// alert.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(), tls::Error> {
        if self.layer.is_some() {
            self.cipher_tail.extend_from_slice(bytes);
            self.decrypt()
        } else {
            self.plain.extend_from_slice(bytes);
            Ok(())
        }
    }

    /// The stream has ended.
    pub(super) fn receive_eof(&mut self) {
        self.eof = true;
    }

    /// Plain bytes that came; none are left and none will come: `None`. An error that came after them, once
    /// they are taken.
    pub(super) fn plain(&mut self) -> Result<Option<&[u8]>, tls::Error> {
        if self.plain.is_empty() {
            if let Some(error) = self.failure.take() {
                return Err(error);
            }
            if self.eof {
                return Ok(None);
            }
        }
        Ok(Some(&self.plain))
    }

    /// Forgets the first `count` plain bytes, and their room: whoever sends a part of a head may say nothing more.
    pub(super) fn consume(&mut self, count: usize) {
        self.plain.drain(..count);
        if self.plain.is_empty() {
            self.plain = Vec::new();
        }
    }

    /// What is to be written.
    pub(super) fn output(&mut self) -> &mut WriteQueue {
        &mut self.output
    }

    /// What a WebSocket connection goes on with: a peer that has what arrived early, and what has yet to
    /// leave.
    pub(super) fn into_peer<B: PayloadBuffer>(self, connection: Connection<B>, keepalive: Keepalive) -> Peer<B> {
        let mut peer = Peer::new(connection, self.layer, &self.plain, self.cipher_tail, keepalive);
        peer.link.adopt_output(self.output);
        if let Some(error) = self.failure {
            peer.fail_after_input(Failure::Tls(Arc::new(error)));
        } else if self.eof {
            peer.receive_eof();
        }
        peer
    }

    fn decrypt(&mut self) -> Result<(), tls::Error> {
        let Some(layer) = &mut self.layer else { return Ok(()) };
        let mut cipher = std::mem::take(&mut self.cipher_tail);
        let consumed = match layer.receive(&mut cipher, &mut self.plain, self.output.tail()) {
            Ok(consumed) => consumed,
            // What was decrypted before the error is valid and comes first.
            Err(error) if !self.plain.is_empty() => {
                self.failure = Some(error);
                cipher.len()
            }
            Err(error) => return Err(error),
        };
        if self.output.is_empty() {
            self.output.clear();
        }
        if layer.is_peer_closed() {
            self.eof = true;
        }
        // A vector of its size: this may stay for the life of the connection.
        self.cipher_tail = cipher.get(consumed..).unwrap_or_default().to_vec();
        Ok(())
    }
}
