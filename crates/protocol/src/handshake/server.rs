//! [`ServerHandshake`]: the server's side of the opening handshake (RFC 6455 4.2).

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use super::accept_key::{accept_key, is_key};
use super::error::HandshakeError;
use super::extension;
use super::head::{HeadReader, Kind};
use super::header_list::{HeaderList, is_token};
use super::message::{Request, Response, Version, is_authority, reason_phrase};
use super::{Accepted, Limits, Progress, body};
use crate::deflate::{Params, negotiate};

const PROTOCOL: &str = "Sec-WebSocket-Protocol";

/// Fields that an accepting response must not take from the application: the handshake writes them, or a
/// response with status 101 must not have them (RFC 9110 6.4.1, 8.6).
const ACCEPT_OWN: [&str; 7] = [
    "Upgrade",
    "Connection",
    "Sec-WebSocket-Accept",
    "Sec-WebSocket-Extensions",
    PROTOCOL,
    "Content-Length",
    "Transfer-Encoding",
];

/// What the server allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerConfig {
    /// How permessage-deflate is accepted. `None`: it is not.
    pub deflate: Option<negotiate::Config>,
    /// The subprotocols that [`ServerHandshake::select_subprotocol`] chooses from, the preferred one first.
    pub subprotocols: Vec<String>,
}

/// One opening handshake of a server: feed [`ServerHandshake::receive`] until the request is there, then
/// [`ServerHandshake::check`] it and [`ServerHandshake::accept`] or [`ServerHandshake::reject`] it. The
/// caller may look at the request first, and reject it for reasons of its own.
#[derive(Clone, Debug)]
pub struct ServerHandshake {
    config: ServerConfig,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Head(HeadReader),
    Request(Request),
    Failed,
}

impl ServerHandshake {
    /// A handshake that has received nothing.
    #[must_use]
    pub fn new(config: ServerConfig, limits: Limits) -> Self {
        Self { config, state: State::Head(HeadReader::new(Kind::Request, limits)) }
    }

    /// Takes bytes from the client, in pieces of any size, up to the end of the head.
    /// [`ServerHandshake::request`] is there then.
    ///
    /// # Errors The bytes are no HTTP/1 head, or over a limit. [`ServerHandshake::reject_error`] answers;
    /// nothing more can be received.
    pub fn receive(&mut self, input: &[u8]) -> Result<Progress<()>, HandshakeError> {
        let State::Head(head) = &mut self.state else {
            return Err(HandshakeError::OutOfOrder { expected: "a request that is not complete" });
        };
        let outcome = match head.receive(input) {
            Ok(None) => return Ok(Progress::Incomplete),
            Ok(Some(consumed)) => head.parse_request().map(|request| (consumed, request)),
            Err(error) => Err(error),
        };
        match outcome {
            Ok((consumed, request)) => {
                self.state = State::Request(request);
                Ok(Progress::Complete { consumed, output: () })
            }
            Err(error) => {
                self.state = State::Failed;
                Err(error)
            }
        }
    }

    /// Notes that the stream ended inside the head, and returns the error for it. There is nobody left to
    /// answer.
    pub fn receive_eof(&mut self) -> HandshakeError {
        match core::mem::replace(&mut self.state, State::Failed) {
            State::Head(head) => HandshakeError::ConnectionClosed { received: head.received() },
            State::Request(request) => {
                self.state = State::Request(request);
                HandshakeError::OutOfOrder { expected: "a request that is not complete" }
            }
            State::Failed => HandshakeError::OutOfOrder { expected: "a handshake that is not over" },
        }
    }

    /// The request, once its head is complete; not checked beyond the syntax of HTTP.
    #[must_use]
    pub const fn request(&self) -> Option<&Request> {
        match &self.state {
            State::Request(request) => Some(request),
            State::Head(_) | State::Failed => None,
        }
    }

    /// The request, for keeping.
    #[must_use]
    pub fn into_request(self) -> Option<Request> {
        match self.state {
            State::Request(request) => Some(request),
            State::Head(_) | State::Failed => None,
        }
    }

    /// Checks that the request asks for a WebSocket by the rules (RFC 6455 4.2.1). The Origin is the caller's
    /// to judge.
    ///
    /// # Errors
    /// The first rule that the request breaks; [`ServerHandshake::reject_error`] answers.
    pub fn check(&self) -> Result<(), HandshakeError> {
        let request = self.complete_request()?;
        let headers = &request.headers;
        // 1: "An HTTP/1.1 or higher GET request".
        if request.version < Version::Http11 {
            return Err(HandshakeError::UnsupportedHttpVersion { version: request.version.as_str().to_owned() });
        }
        if request.method != "GET" {
            return Err(HandshakeError::InvalidMethod { method: request.method.clone() });
        }
        // 1: a Request-URI that gives a resource name. RFC 9112 3.2: other forms belong to other methods.
        if request.path_and_query().is_none() {
            return Err(HandshakeError::InvalidTarget { target: request.target.clone() });
        }
        // RFC 9110 9.3.1: content in a GET has no meaning. Our choice: refused, as its bytes would be taken
        // for frames.
        let length = body::content_length(headers);
        if headers.contains("Transfer-Encoding") || !matches!(length, Ok(None | Some(0))) {
            return Err(HandshakeError::UnexpectedBody);
        }
        // 2: a Host. RFC 9112 3.2: a server MUST respond with 400 if it is missing, repeated or invalid.
        let name = "Host";
        let host = headers.single(name)?.ok_or(HandshakeError::MissingHeader { name })?;
        if !is_authority(host) {
            return Err(invalid(name, host, "a host name or address, with a port or without"));
        }
        // 3: Upgrade contains "websocket", 4: Connection contains "Upgrade", both in any case.
        for (name, token) in [("Upgrade", "websocket"), ("Connection", "Upgrade")] {
            if !headers.contains_token(name, token) {
                return Err(HandshakeError::InvalidUpgrade { name, value: headers.describe(name) });
            }
        }
        // 6: version 13; before the key, as the key's form belongs to the version.
        if headers.single("Sec-WebSocket-Version")? != Some(b"13") {
            let version = headers.describe("Sec-WebSocket-Version");
            return Err(HandshakeError::UnsupportedWebSocketVersion { version });
        }
        // 5: a key that "when decoded, is 16 bytes in length". 11.3.1: it MUST NOT appear more than once.
        let name = "Sec-WebSocket-Key";
        let key = headers.single(name)?.ok_or(HandshakeError::MissingHeader { name })?;
        if !is_key(key) {
            return Err(invalid(name, key, "the base64 of 16 bytes"));
        }
        // 8 and 9 are optional, but 4.2.1 does not spare them: a request that violates the grammar is
        // refused.
        if let Some(element) = headers.tokens(PROTOCOL).find(|element| !is_token(element)) {
            return Err(invalid(PROTOCOL, element, "a list of tokens"));
        }
        extension::parse_extensions(headers).map(|_| ())
    }

    /// The subprotocols that the client offers, its preferred one first.
    pub fn offered_subprotocols(&self) -> impl Iterator<Item = &str> {
        self.request()
            .into_iter()
            .flat_map(|request| request.headers.tokens(PROTOCOL))
            .filter_map(|element| core::str::from_utf8(element).ok())
    }

    /// The first of the server's subprotocols that the client offers. RFC 6455 4.2.2 leaves the choice to the
    /// server, or to have none.
    #[must_use]
    pub fn select_subprotocol(&self) -> Option<&str> {
        let mut supported = self.config.subprotocols.iter();
        supported.find(|name| self.offered_subprotocols().any(|offered| offered == *name)).map(String::as_str)
    }

    /// Chooses how permessage-deflate is accepted, instead of what the configuration says: once the request is known,
    /// and before it is granted.
    pub fn set_deflate(&mut self, deflate: Option<negotiate::Config>) {
        self.config.deflate = deflate;
    }

    /// How messages will be compressed if the request is granted; `None`: they will not, or the request
    /// offers what breaks the rules.
    #[must_use]
    pub fn deflate(&self) -> Option<Params> {
        let negotiated = self.negotiate_deflate(self.request()?).ok()?;
        negotiated.map(|(params, _)| params)
    }

    /// Grants the request (RFC 6455 4.2.2), after [`ServerHandshake::check`], with that subprotocol, if any,
    /// and further header fields. [`Response::to_bytes`] of the outcome is to be sent; then frames may
    /// follow.
    ///
    /// # Errors The request breaks a rule; or the subprotocol was not offered, or one of the fields is the
    /// handshake's own.
    pub fn accept(&self, subprotocol: Option<&str>, additional: &HeaderList) -> Result<Accepted, HandshakeError> {
        self.check()?;
        let request = self.complete_request()?;
        // 4.2.2, 5: the value "MUST be derived from the client's handshake".
        if let Some(chosen) = subprotocol
            && !self.offered_subprotocols().any(|offered| offered == chosen)
        {
            return Err(HandshakeError::InvalidArgument {
                argument: "subprotocol",
                value: chosen.to_owned(),
                expected: "one that the client offers",
            });
        }
        if let Some(name) = ACCEPT_OWN.iter().find(|name| additional.contains(name)) {
            let reason = "the opening handshake writes it, or a response with status 101 must not have it";
            return Err(HandshakeError::RefusedHeader { name: (*name).to_owned(), reason });
        }
        let key = request.headers.value_str("Sec-WebSocket-Key").unwrap_or_default();
        let mut headers = HeaderList::new();
        headers.push("Upgrade", "websocket")?;
        headers.push("Connection", "Upgrade")?;
        headers.push("Sec-WebSocket-Accept", accept_key(key))?;
        let mut deflate = None;
        if let Some((params, text)) = self.negotiate_deflate(request)? {
            headers.push(extension::HEADER, text)?;
            deflate = Some(params);
        }
        if let Some(chosen) = subprotocol {
            headers.push(PROTOCOL, chosen)?;
        }
        headers.extend(additional);
        let response = Response::new(101, headers);
        Ok(Accepted { response, subprotocol: subprotocol.map(ToOwned::to_owned), deflate })
    }

    /// A response that refuses the request, or answers it as plain HTTP, and ends the connection:
    /// Content-Length and Connection are set here, Date is left to the caller. [`Response::to_bytes`] of it
    /// is to be sent. It may be called at any time, the request need not be complete.
    ///
    /// # Errors
    /// The status is not final, or it and the body exclude each other, or the fields have a transfer coding.
    pub fn reject(&self, status: u16, headers: &HeaderList, body: &[u8]) -> Result<Response, HandshakeError> {
        let bodiless = status == 204 || status == 304;
        if !(200..=999).contains(&status) || (bodiless && !body.is_empty()) {
            return Err(HandshakeError::InvalidArgument {
                argument: "status of a rejection",
                value: status.to_string(),
                expected: "200 to 999, and no body with 204 and 304",
            });
        }
        if headers.contains("Transfer-Encoding") {
            let reason = "the body is sent with Content-Length";
            return Err(HandshakeError::RefusedHeader { name: "Transfer-Encoding".to_owned(), reason });
        }
        let mut headers = headers.clone();
        headers.remove("Content-Length");
        // RFC 9110 8.6: no Content-Length with 204; with 304 it would be that of the response not sent.
        if !bodiless {
            headers.push("Content-Length", body.len().to_string())?;
        }
        // RFC 9110 7.8: who sends Upgrade "MUST also send an "Upgrade" connection option".
        let upgrade = headers.contains("Upgrade");
        headers.set("Connection", if upgrade { "close, Upgrade" } else { "close" })?;
        let mut response = Response::new(status, headers);
        response.reason = reason_phrase(status).to_owned();
        // RFC 9110 9.3.2: the response to HEAD has no content, but the Content-Length of the one to GET.
        if self.request().is_none_or(|request| request.method != "HEAD") {
            response.body = body.to_vec();
        }
        Ok(response)
    }

    /// The response to an error of this handshake, by [`HandshakeError::status`], with a text that tells a
    /// person what is wrong.
    #[must_use]
    pub fn reject_error(&self, error: &HandshakeError) -> Response {
        let mut headers = HeaderList::new();
        let fields = [("Content-Type", "text/plain; charset=utf-8")];
        for (name, value) in error.response_headers().iter().chain(&fields) {
            // The fields are constants, and valid.
            let _ = headers.push(name, value);
        }
        let status = error.status();
        self.reject(status, &headers, error.response_text().as_bytes())
            .unwrap_or_else(|_| Response::new(status, HeaderList::new()))
    }

    fn negotiate_deflate(&self, request: &Request) -> Result<Option<(Params, String)>, HandshakeError> {
        self.config.deflate.as_ref().map_or(Ok(None), |config| config.accept_offers(&request.headers))
    }

    fn complete_request(&self) -> Result<&Request, HandshakeError> {
        self.request().ok_or(HandshakeError::OutOfOrder { expected: "a complete request" })
    }
}

fn invalid(name: &'static str, value: &[u8], expected: &'static str) -> HandshakeError {
    HandshakeError::InvalidHeader { name, value: String::from_utf8_lossy(value).into_owned(), expected }
}
