//! The opening handshake of an accepted client, from its first bytes to a complete request.

use wirespeed_protocol::handshake::{Limits as HeadLimits, ServerConfig};

use crate::opening::{Error, Opening as _, Server, Stage};
use crate::tls::Layer;

/// The number of first bytes that are kept, which tell HTTP from TLS.
const PREFIX: usize = 4;

/// The bytes that an accepted client has sent, and the state of their parser.
///
/// 1. Pass all received bytes to [`Self::receive`] until it returns false.
/// 2. With TLS, call [`Self::start_tls`] then, because only the first TLS record has been collected.
/// 3. Call [`Self::take_error`], send the output of [`Self::server`], and receive again until it is complete.
///
/// An error is kept until the caller takes it, so that it can wait where errors cannot be reported.
#[derive(Default)]
pub struct PendingHandshake {
    prefix: [u8; PREFIX],
    prefix_length: usize,
    /// With TLS, the bytes before TLS begins.
    record: Option<Vec<u8>>,
    /// Created with the first bytes, because a flood of clients sends none.
    server: Option<Server>,
    error: Option<Error>,
    lost: bool,
}

impl PendingHandshake {
    /// Creates the state of a client that has sent nothing. `tls`: it must begin with TLS.
    #[must_use]
    pub fn new(tls: bool) -> Self {
        Self { record: tls.then(Vec::new), ..Self::default() }
    }

    /// Processes received bytes; empty bytes are the end of the stream. Returns whether to wait for more bytes: there
    /// is no complete request, no complete first TLS record, and no error.
    pub fn receive(&mut self, data: &[u8], config: impl FnOnce() -> ServerConfig) -> bool {
        self.lost = data.is_empty();
        for (kept, byte) in self.prefix.iter_mut().skip(self.prefix_length).zip(data) {
            *kept = *byte;
            self.prefix_length += 1;
        }
        if let Some(record) = &mut self.record {
            record.extend_from_slice(data);
            return !data.is_empty() && is_part_of_record(record);
        }
        if self.server.is_none() {
            match Server::new(config(), HeadLimits::default(), None) {
                Ok(server) => self.server = Some(server),
                Err(error) => self.error = Some(error),
            }
        }
        self.feed(data)
    }

    /// Starts TLS, if it has not started, and passes it the bytes received so far.
    pub fn start_tls(&mut self, config: ServerConfig, layer: Box<dyn Layer>) {
        let Some(record) = self.record.take() else { return };
        match Server::new(config, HeadLimits::default(), Some(layer)) {
            Ok(server) => self.server = Some(server),
            Err(error) => self.error = Some(error),
        }
        if !record.is_empty() {
            self.feed(&record);
        }
        if self.lost {
            self.feed(&[]);
        }
    }

    /// Discards the request, because the client has disconnected and cannot be answered.
    pub fn lose(&mut self, config: impl FnOnce() -> ServerConfig) {
        if self.record.is_none() {
            (self.server, self.error) = (None, None);
        }
        self.receive(&[], config);
    }

    /// Returns whether the client has sent nothing.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.prefix_length == 0
    }

    /// Returns whether the client has ended its stream, so that it cannot be answered.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Returns whether the request is complete.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.stage() == Stage::Done)
    }

    /// Returns whether no bytes follow the complete request.
    #[must_use]
    pub fn is_request_only(&self) -> bool {
        self.is_complete() && self.server.as_ref().is_some_and(|server| !server.has_early_bytes())
    }

    /// Returns the first bytes of the client, at most 4.
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        self.prefix.get(..self.prefix_length).unwrap_or_default()
    }

    /// Returns why the handshake has failed, once.
    pub fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// Returns the parser, which has the output, the request, and the response to an invalid request. `None` before
    /// the first bytes.
    pub fn server(&mut self) -> Option<&mut Server> {
        self.server.as_mut()
    }

    /// Returns the TLS layer, if it has started.
    #[must_use]
    pub fn layer(&self) -> Option<&dyn Layer> {
        self.server.as_ref().and_then(Server::layer)
    }

    /// Returns the parser of a complete request, once.
    pub fn finish(&mut self) -> Option<Server> {
        if self.is_complete() { self.server.take() } else { None }
    }

    fn feed(&mut self, data: &[u8]) -> bool {
        let Some(server) = self.server.as_mut() else { return false };
        if data.is_empty() {
            self.error = Some(server.receive_end(None));
        } else if let Err(error) = server.receive(data) {
            self.error = Some(error);
        }
        self.error.is_none() && matches!(server.stage(), Stage::Tls | Stage::Handshake)
    }
}

/// Returns whether these bytes are the beginning of a TLS record.
fn is_part_of_record(data: &[u8]) -> bool {
    // RFC 8446 5.1: a type (22, handshake), two bytes of version, two bytes of length.
    match data {
        [22, _, _, high, low, body @ ..] => body.len() < usize::from(u16::from_be_bytes([*high, *low])),
        [22, ..] => true,
        _ => false,
    }
}
