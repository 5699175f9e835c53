//! The opening of a server: up to a request, which the application answers.

use std::io;

use wirespeed_protocol::deflate::negotiate;
use wirespeed_protocol::handshake::{
    HandshakeError, Limits as HeadLimits, Progress, Response, ServerConfig, ServerHandshake,
};
use wirespeed_protocol::{Config, Connection, Limits, PayloadBuffer, Side};

use super::early::Early;
use super::{Error, Opening, Stage};
use crate::endpoint::Endpoint;
use crate::keepalive::Keepalive;
use crate::tls::Layer;
use crate::write_queue::WriteQueue;

/// What is waited for.
enum Step {
    Tls,
    Head,
    Request,
    /// What came is no request, though the client can be told.
    Invalid(HandshakeError),
    Over,
}

/// See the module.
pub struct Server {
    early: Early,
    step: Step,
    handshake: Box<ServerHandshake>,
}

impl Server {
    /// Waits for a request; with a layer, for its handshake first.
    ///
    /// # Errors
    /// The layer cannot begin.
    pub fn new(config: ServerConfig, limits: HeadLimits, tls: Option<Box<dyn Layer>>) -> Result<Self, Error> {
        let mut server = Self {
            early: Early::default(),
            step: Step::Head,
            handshake: Box::new(ServerHandshake::new(config, limits)),
        };
        if let Some(layer) = tls {
            server.early.start_layer(layer)?;
            server.step = Step::Tls;
        }
        Ok(server)
    }

    /// The handshake, with its request once it [is done](Stage::Done).
    #[must_use]
    pub fn handshake(&self) -> &ServerHandshake {
        &self.handshake
    }

    /// The layer between it and the socket, if there is one.
    #[must_use]
    pub fn layer(&self) -> Option<&dyn Layer> {
        self.early.layer()
    }

    /// See [`ServerHandshake::set_deflate`].
    pub fn set_deflate(&mut self, deflate: Option<negotiate::Config>) {
        self.handshake.set_deflate(deflate);
    }

    /// Why what came is no request, if the client can be told so, and has not been: what the answer is made
    /// of.
    #[must_use]
    pub fn fault(&self) -> Option<&HandshakeError> {
        match &self.step {
            Step::Invalid(error) => Some(error),
            _ => None,
        }
    }

    /// Answers what will never be a WebSocket: the response is in the output, and what the client still sends
    /// is of no interest.
    pub fn refuse(&mut self, response: &Response) {
        self.step = Step::Over;
        let _ = self.early.send(&response.to_bytes()); // a layer that has failed says so itself
    }

    /// The WebSocket that its answer will open, and the handshake that makes this answer; `None` without a
    /// request.
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
        Some((self.early.into_peer(connection, keepalive), *self.handshake))
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
        wirespeed_protocol::failpoint::reach("driver.opening_server");
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
        // All of it was taken: the stream may have ended behind it.
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
