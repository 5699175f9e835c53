//! [`ResponseReader`]: reads the final response to a request, with the body of a rejection. It skips interim responses.

use alloc::boxed::Box;

use super::body::BodyReader;
use super::error::HandshakeError;
use super::head::{HeadReader, Kind};
use super::message::Response;
use super::{Limits, Progress};

/// Maximum number of interim responses before the final one. Real servers send few. Without a limit, a server could keep
/// the client busy until its deadline.
const INTERIM_RESPONSES: usize = 16;

/// Reads one final response. [`Self::receive`] is called until it returns a result other than `Incomplete`.
#[derive(Clone, Debug)]
pub(crate) struct ResponseReader {
    limits: Limits,
    /// Returns whether a status accepts the request. Bytes after such a head belong to another protocol.
    accepts: fn(u16) -> bool,
    /// Number of interim responses so far.
    interim: usize,
    /// Total size of the complete heads so far.
    received: usize,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Head(HeadReader),
    Body(Box<Response>, BodyReader),
    Done,
}

impl ResponseReader {
    pub(crate) fn new(limits: Limits, accepts: fn(u16) -> bool) -> Self {
        let state = State::Head(HeadReader::new(Kind::Response, limits));
        Self { limits, accepts, interim: 0, received: 0, state }
    }

    /// Consumes bytes of the response. A response that does not accept the request is [`HandshakeError::Rejected`].
    pub(crate) fn receive(&mut self, input: &[u8]) -> Result<Progress<Response>, HandshakeError> {
        let progress = self.advance(input);
        if !matches!(progress, Ok(Progress::Incomplete)) {
            self.state = State::Done;
        }
        progress
    }

    /// Returns whether the head of a rejection has been received and its body is incomplete.
    pub(crate) const fn is_refused(&self) -> bool {
        matches!(self.state, State::Body(..))
    }

    /// Records the end of the stream and returns the resulting error.
    pub(crate) fn receive_eof(&mut self) -> HandshakeError {
        match core::mem::replace(&mut self.state, State::Done) {
            State::Head(head) => HandshakeError::ConnectionClosed { received: self.received + head.received() },
            State::Body(response, mut body) => {
                body.receive_eof();
                rejected(response, &mut body)
            }
            State::Done => HandshakeError::OutOfOrder { expected: "a handshake that is not over" },
        }
    }

    fn advance(&mut self, input: &[u8]) -> Result<Progress<Response>, HandshakeError> {
        let mut consumed = 0;
        loop {
            match &mut self.state {
                State::Head(head) => {
                    let Some(taken) = head.receive(input.get(consumed..).unwrap_or_default())? else {
                        return Ok(Progress::Incomplete);
                    };
                    consumed += taken;
                    self.received += head.received();
                    let response = head.parse_response()?;
                    let status = response.status;
                    if (self.accepts)(status) {
                        return Ok(Progress::Complete { consumed, output: response });
                    }
                    // RFC 9110 15.2: a client "MUST be able to parse one or more 1xx responses received prior
                    // to a final response"; 101 alone is final.
                    if status < 200 && status != 101 {
                        self.interim += 1;
                        if self.interim > INTERIM_RESPONSES {
                            return Err(HandshakeError::TooManyInterimResponses { limit: INTERIM_RESPONSES });
                        }
                        self.state = State::Head(HeadReader::new(Kind::Response, self.limits));
                        continue;
                    }
                    let mut body = BodyReader::new(status, &response.headers, self.limits.body_size);
                    let response = Box::new(response);
                    if body.is_done() {
                        return Err(rejected(response, &mut body));
                    }
                    self.state = State::Body(response, body);
                }
                State::Body(response, body) => {
                    if !body.receive(input.get(consumed..).unwrap_or_default()) {
                        return Ok(Progress::Incomplete);
                    }
                    let response = core::mem::replace(response, Box::new(Response::new(0, Default::default())));
                    return Err(rejected(response, body));
                }
                State::Done => {
                    return Err(HandshakeError::OutOfOrder { expected: "a handshake that is not over" });
                }
            }
        }
    }
}

fn rejected(mut response: Box<Response>, body: &mut BodyReader) -> HandshakeError {
    (response.body, response.body_truncated) = body.take_body();
    HandshakeError::Rejected(response)
}
