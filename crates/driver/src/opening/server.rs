//! The opening of a server, up to a request, which the application answers.

use std::io;

use wirespeed_protocol::deflate::negotiate;
use wirespeed_protocol::handshake::{
    HandshakeError, Limits as HeadLimits, Progress, Response, ServerConfig, ServerHandshake,
};
use wirespeed_protocol::{Config, Connection, Limits, PayloadBuffer, Side};

use super::early::EarlyStream;
use super::{Error, Opening, Stage};
use crate::endpoint::Endpoint;
use crate::keepalive::Keepalive;
use crate::tls::Layer;
use crate::write_queue::WriteQueue;

/// The step that is in progress.
enum Step {
    Tls,
    Head,
    Request,
    /// The request is invalid, but the client can be sent a response.
    Invalid(HandshakeError),
    Over,
}

/// The state of a server's opening.
pub struct Server {
    early: EarlyStream,
    step: Step,
    handshake: Box<ServerHandshake>,
}

impl Server {
    /// Waits for a request; with a layer, performs the TLS handshake first.
    ///
    /// # Errors
    /// Fails if the layer cannot begin.
    pub fn new(config: ServerConfig, limits: HeadLimits, tls: Option<Box<dyn Layer>>) -> Result<Self, Error> {
        let mut server = Self {
            early: EarlyStream::default(),
            step: Step::Head,
            handshake: Box::new(ServerHandshake::new(config, limits)),
        };
        if let Some(layer) = tls {
            server.early.start_layer(layer)?;
            server.step = Step::Tls;
        }
        Ok(server)
    }

    /// Returns the handshake, which has a request once the opening [is done](Stage::Done).
    #[must_use]
    pub fn handshake(&self) -> &ServerHandshake {
        &self.handshake
    }

    /// Returns the TLS layer, if there is one.
    #[must_use]
    pub fn layer(&self) -> Option<&dyn Layer> {
        self.early.layer()
    }

    /// Returns whether bytes have arrived that belong to the WebSocket.
    #[must_use]
    pub fn has_early_bytes(&self) -> bool {
        self.early.has_input()
    }

    /// Sets the compression configuration: see [`ServerHandshake::set_deflate`].
    pub fn set_deflate(&mut self, deflate: Option<negotiate::Config>) {
        self.handshake.set_deflate(deflate);
    }

    /// Returns why the request is invalid, if the client can be sent a response and has not been.
    #[must_use]
    pub fn fault(&self) -> Option<&HandshakeError> {
        match &self.step {
            Step::Invalid(error) => Some(error),
            _ => None,
        }
    }

    /// Queues a response that refuses the request; further input is ignored.
    pub fn refuse(&mut self, response: &Response) {
        self.step = Step::Over;
        let _ = self.early.send(&response.to_bytes()); // a failed layer reports its error itself
    }

    /// Returns the WebSocket, which the response opens, and the handshake that creates the response; `None` without
    /// a request.
    pub fn finish<B: PayloadBuffer>(
        self,
        limits: Limits,
        keepalive: Keepalive,
    ) -> Option<(Endpoint<B>, ServerHandshake)> {
        if !matches!(self.step, Step::Request) {
            return None;
        }
        let deflate = self.handshake.deflate();
        let connection = Connection::new(Config { side: Side::Server, limits, deflate });
        Some((self.early.into_endpoint(connection, keepalive), *self.handshake))
    }

    fn advance(&mut self) -> Result<(), Error> {
        let result = self.try_advance();
        if let Err(error) = &result
            && !matches!(self.step, Step::Invalid(_))
        {
            self.step = match error {
                Error::Handshake(error) if !matches!(error, HandshakeError::ConnectionClosed { .. }) => {
                    Step::Invalid(error.clone())
                }
                _ => Step::Over,
            };
        }
        result
    }

    fn try_advance(&mut self) -> Result<(), Error> {
        wirespeed_protocol::failpoint::hit("driver.opening_server");
        if let Step::Tls = self.step {
            if self.early.is_handshaking()? {
                return Ok(());
            }
            self.step = Step::Head;
        }
        let Step::Head = self.step else { return Ok(()) };
        let taken = match self.early.plain()? {
            None => return Err(Error::Handshake(self.handshake.receive_eof())),
            Some([]) => return Ok(()),
            Some(input) => match self.handshake.receive(input).map_err(Error::Handshake)? {
                Progress::Incomplete => input.len(),
                Progress::Complete { consumed, .. } => {
                    self.step = Step::Request;
                    consumed
                }
            },
        };
        self.early.consume(taken);
        // All bytes were taken, so the stream may have ended after them.
        if matches!(self.step, Step::Head) && self.early.plain()?.is_none() {
            return Err(Error::Handshake(self.handshake.receive_eof()));
        }
        Ok(())
    }
}

impl Opening for Server {
    fn stage(&self) -> Stage {
        match self.step {
            Step::Tls => Stage::Tls,
            Step::Head => Stage::Handshake,
            Step::Request => Stage::Done,
            Step::Invalid(_) | Step::Over => Stage::Failed,
        }
    }

    fn output(&mut self) -> &mut WriteQueue {
        self.early.output()
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if matches!(self.step, Step::Invalid(_) | Step::Over) {
            return Ok(()); // read so that the response is not lost to a reset
        }
        let received = self.early.receive(bytes);
        if let Err(error) = received {
            self.step = Step::Over;
            return Err(Error::Tls(error));
        }
        self.advance()
    }

    fn receive_end(&mut self, error: Option<io::Error>) -> Error {
        if let Some(error) = error {
            self.step = Step::Over;
            return Error::Io(error);
        }
        self.early.receive_eof();
        match self.advance() {
            Err(error) => error,
            Ok(()) => Error::Io(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn is_refused(&self) -> bool {
        false
    }

    fn give_up(&mut self) -> Option<Error> {
        self.step = Step::Over;
        None
    }
}
