//! The opening of a client.

use std::io;

use wirespeed_protocol::handshake::client::ClientHandshake;
use wirespeed_protocol::handshake::connect::ConnectHandshake;
use wirespeed_protocol::handshake::{Accepted, HandshakeError, Progress};
use wirespeed_protocol::{Config, Connection, Limits, PayloadBuffer, Side};

use super::early::EarlyStream;
use super::{Error, Opening, Stage};
use crate::endpoint::Endpoint;
use crate::keepalive::Keepalive;
use crate::tls::Layer;
use crate::write_queue::WriteQueue;

/// The steps between a connected socket and the WebSocket, in this order.
pub struct Plan {
    /// TLS with the proxy.
    pub proxy_tls: Option<Box<dyn Layer>>,
    /// The CONNECT handshake with the proxy.
    pub tunnel: Option<ConnectHandshake>,
    /// TLS with the server.
    pub tls: Option<Box<dyn Layer>>,
    /// The opening handshake.
    pub handshake: ClientHandshake,
}

/// The step that is in progress.
enum Step {
    ProxyTls,
    Tunnel(Box<ConnectHandshake>),
    Tls,
    Handshake,
    Done(Box<Accepted>),
    Failed,
}

/// The state of a client's opening.
pub struct Client {
    early: EarlyStream,
    step: Step,
    tunnel: Option<Box<ConnectHandshake>>,
    tls: Option<Box<dyn Layer>>,
    handshake: Box<ClientHandshake>,
}

impl Client {
    /// Begins the first step; its bytes are in the output.
    ///
    /// # Errors
    /// Fails if a layer cannot begin.
    pub fn new(plan: Plan) -> Result<Self, Error> {
        let mut client = Self {
            early: EarlyStream::default(),
            step: Step::ProxyTls,
            tunnel: plan.tunnel.map(Box::new),
            tls: plan.tls,
            handshake: Box::new(plan.handshake),
        };
        match plan.proxy_tls {
            Some(layer) => client.early.start_layer(layer)?,
            None => client.begin_tunnel()?,
        }
        client.advance()?;
        Ok(client)
    }

    /// Returns the WebSocket, the handshake with its request, and the server's response; `None` if the opening is
    /// not done.
    pub fn finish<B: PayloadBuffer>(
        &mut self,
        limits: Limits,
        keepalive: Keepalive,
    ) -> Option<(Endpoint<B>, &ClientHandshake, Accepted)> {
        if !matches!(self.step, Step::Done(_)) {
            return None;
        }
        let Step::Done(accepted) = std::mem::replace(&mut self.step, Step::Failed) else { return None };
        let connection = Connection::new(Config { side: Side::Client, limits, deflate: accepted.deflate });
        let early = std::mem::take(&mut self.early);
        Some((early.into_endpoint(connection, keepalive), &self.handshake, *accepted))
    }

    /// Returns the TLS layers, including those whose handshakes have not begun.
    pub fn layers(&self) -> impl Iterator<Item = &dyn Layer> {
        self.early.layer().into_iter().chain(self.tls.as_deref())
    }

    fn begin_tunnel(&mut self) -> Result<(), Error> {
        let Some(tunnel) = self.tunnel.take() else { return self.begin_tls() };
        self.early.send(&tunnel.request_bytes())?;
        self.step = Step::Tunnel(tunnel);
        Ok(())
    }

    fn begin_tls(&mut self) -> Result<(), Error> {
        let Some(layer) = self.tls.take() else { return self.begin_handshake() };
        self.step = Step::Tls;
        Ok(self.early.start_layer(layer)?)
    }

    fn begin_handshake(&mut self) -> Result<(), Error> {
        self.step = Step::Handshake;
        Ok(self.early.send(&self.handshake.request_bytes())?)
    }

    /// Advances as far as the received bytes allow.
    fn advance(&mut self) -> Result<(), Error> {
        let result = self.try_advance();
        if result.is_err() {
            self.step = Step::Failed;
        }
        result
    }

    fn try_advance(&mut self) -> Result<(), Error> {
        wirespeed_protocol::failpoint::hit("driver.opening_client");
        loop {
            match &mut self.step {
                Step::ProxyTls | Step::Tls if self.early.is_handshaking()? => return Ok(()),
                Step::ProxyTls => self.begin_tunnel()?,
                Step::Tls => self.begin_handshake()?,
                Step::Tunnel(tunnel) => {
                    let made = feed(&mut self.early, Error::Tunnel, |input| match input {
                        Some(input) => tunnel.receive(input),
                        None => Err(tunnel.receive_eof()),
                    })?;
                    if made.is_none() {
                        return Ok(());
                    }
                    self.begin_tls()?;
                }
                Step::Handshake => {
                    let handshake = &mut self.handshake;
                    let accepted = feed(&mut self.early, Error::Handshake, |input| match input {
                        Some(input) => handshake.receive(input),
                        None => Err(handshake.receive_eof()),
                    })?;
                    let Some(accepted) = accepted else { return Ok(()) };
                    self.step = Step::Done(Box::new(accepted));
                }
                Step::Done(_) | Step::Failed => return Ok(()),
            }
        }
    }
}

impl Opening for Client {
    fn stage(&self) -> Stage {
        match self.step {
            Step::ProxyTls => Stage::ProxyTls,
            Step::Tunnel(_) => Stage::Tunnel,
            Step::Tls => Stage::Tls,
            Step::Handshake => Stage::Handshake,
            Step::Done(_) => Stage::Done,
            Step::Failed => Stage::Failed,
        }
    }

    fn output(&mut self) -> &mut WriteQueue {
        self.early.output()
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let received = self.early.receive(bytes);
        // Bytes that came before an error explain it.
        self.advance()?;
        received.map_err(|error| self.give_up().unwrap_or(Error::Tls(error)))
    }

    fn receive_end(&mut self, error: Option<io::Error>) -> Error {
        if let Some(error) = error {
            return self.give_up().unwrap_or(Error::Io(error));
        }
        self.early.receive_eof();
        match self.advance() {
            Err(error) => error,
            Ok(()) => Error::Io(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn is_refused(&self) -> bool {
        match &self.step {
            Step::Tunnel(tunnel) => tunnel.is_refused(),
            Step::Handshake => self.handshake.is_refused(),
            _ => false,
        }
    }

    fn give_up(&mut self) -> Option<Error> {
        let said = match std::mem::replace(&mut self.step, Step::Failed) {
            Step::Tunnel(mut tunnel) => Error::Tunnel(tunnel.receive_eof()),
            Step::Handshake => Error::Handshake(self.handshake.receive_eof()),
            _ => return None,
        };
        matches!(said, Error::Tunnel(HandshakeError::Rejected(_)) | Error::Handshake(HandshakeError::Rejected(_)))
            .then_some(said)
    }
}

/// Passes received bytes to a handshake. Returns its result once it is complete.
fn feed<T>(
    early: &mut EarlyStream,
    failed: fn(HandshakeError) -> Error,
    mut handshake: impl FnMut(Option<&[u8]>) -> Result<Progress<T>, HandshakeError>,
) -> Result<Option<T>, Error> {
    loop {
        let taken = match early.plain() {
            Ok(Some([])) => return Ok(None),
            Ok(Some(input)) => match handshake(Some(input)).map_err(failed)? {
                // The stream may have ended, or failed, after these bytes.
                Progress::Incomplete => input.len(),
                Progress::Complete { consumed, output } => {
                    early.consume(consumed);
                    return Ok(Some(output));
                }
            },
            Ok(None) => return handshake(None).err().map_or(Ok(None), |error| Err(failed(error))),
            // A refusal remains a refusal if its body ends in a TLS error.
            Err(error) => {
                return match handshake(None) {
                    Err(refused @ HandshakeError::Rejected(_)) => Err(failed(refused)),
                    _ => Err(Error::Tls(error)),
                };
            }
        };
        early.consume(taken);
    }
}
