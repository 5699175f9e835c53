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

/// Fields that the application may not set in an accepting response. The handshake writes them, or a response with
/// status 101 must not have them (RFC 9110 6.4.1, 8.6).
const RESERVED: [&str; 7] = [
    "Upgrade",
    "Connection",
    "Sec-WebSocket-Accept",
    "Sec-WebSocket-Extensions",
    PROTOCOL,
    "Content-Length",
    "Transfer-Encoding",
];

/// The configuration of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerConfig {
    /// The configuration of permessage-deflate. `None`: it is not accepted.
    pub deflate: Option<negotiate::Config>,
    /// The supported subprotocols in order of preference, for [`ServerHandshake::select_subprotocol`].
    pub subprotocols: Vec<String>,
}

/// The opening handshake of a server.
///
/// 1. Pass received bytes to [`ServerHandshake::receive`] until the request is complete.
/// 2. Call [`ServerHandshake::check`], and inspect [`ServerHandshake::request`] for reasons to reject it.
/// 3. Call [`ServerHandshake::accept`], [`ServerHandshake::reject`] or [`ServerHandshake::reject_error`], and send the
///    response.
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
    /// Creates a handshake.
    #[must_use]
    pub fn new(config: ServerConfig, limits: Limits) -> Self {
        Self { config, state: State::Head(HeadReader::new(Kind::Request, limits)) }
    }

    /// Consumes bytes from the client, in pieces of any size, up to the end of the head. Then
    /// [`ServerHandshake::request`] returns the request.
    ///
    /// # Errors
    /// The bytes are not an HTTP/1 head, or exceed a limit. Nothing more can be received.
    /// [`ServerHandshake::reject_error`] returns the response.
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

    /// Records that the stream ended inside the head and returns the resulting error. No response is needed.
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

    /// Returns the request once its head is complete. Only its HTTP syntax has been checked.
    #[must_use]
    pub const fn request(&self) -> Option<&Request> {
        match &self.state {
            State::Request(request) => Some(request),
            State::Head(_) | State::Failed => None,
        }
    }

    /// Converts the handshake into its request, if that is complete.
    #[must_use]
    pub fn into_request(self) -> Option<Request> {
        match self.state {
            State::Request(request) => Some(request),
            State::Head(_) | State::Failed => None,
        }
    }

    /// Checks that the request is a valid opening handshake (RFC 6455 4.2.1). The caller must check the Origin.
    ///
    /// # Errors
    /// The first rule that the request violates. [`ServerHandshake::reject_error`] returns the response.
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
        // 1: a Request-URI with a resource name. RFC 9112 3.2: other forms belong to other methods.
        if request.path_and_query().is_none() {
            return Err(HandshakeError::InvalidTarget { target: request.target.clone() });
        }
        // RFC 9110 9.3.1: content in a GET has no meaning. Our choice: reject it, as its bytes would be parsed as
        // frames.
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
        // 3: Upgrade contains "websocket", 4: Connection contains "Upgrade". Case is ignored.
        for (name, token) in [("Upgrade", "websocket"), ("Connection", "Upgrade")] {
            if !headers.contains_token(name, token) {
                return Err(HandshakeError::InvalidUpgrade { name, value: headers.describe(name) });
            }
        }
        // 6: version 13. It is checked before the key, as the format of the key depends on the version.
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
        // 8 and 9 are optional, but 4.2.1 requires that they match the grammar if present.
        if let Some(element) = headers.tokens(PROTOCOL).find(|element| !is_token(element)) {
            return Err(invalid(PROTOCOL, element, "a list of tokens"));
        }
        extension::parse_extensions(headers).map(|_| ())
    }

    /// Returns the subprotocols that the client offers, in its order of preference.
    pub fn offered_subprotocols(&self) -> impl Iterator<Item = &str> {
        self.request()
            .into_iter()
            .flat_map(|request| request.headers.tokens(PROTOCOL))
            .filter_map(|element| core::str::from_utf8(element).ok())
    }

    /// Returns the first of the server's subprotocols that the client offers. RFC 6455 4.2.2: the server may choose
    /// any of them, or none.
    #[must_use]
    pub fn select_subprotocol(&self) -> Option<&str> {
        let mut supported = self.config.subprotocols.iter();
        supported.find(|name| self.offered_subprotocols().any(|offered| offered == *name)).map(String::as_str)
    }

    /// Replaces the configuration of permessage-deflate. To be called before [`ServerHandshake::accept`].
    pub fn set_deflate(&mut self, deflate: Option<negotiate::Config>) {
        self.config.deflate = deflate;
    }

    /// Returns the parameters of permessage-deflate with which [`ServerHandshake::accept`] accepts the request. `None`
    /// if messages will not be compressed or the offer is malformed.
    #[must_use]
    pub fn deflate(&self) -> Option<Params> {
        let negotiated = self.negotiate_deflate(self.request()?).ok()?;
        negotiated.map(|(params, _)| params)
    }

    /// Accepts the request (RFC 6455 4.2.2), after [`ServerHandshake::check`], with an optional subprotocol and
    /// additional header fields. The caller sends [`Response::to_bytes`] of the result; frames may follow it.
    ///
    /// # Errors
    /// The request violates a rule, the subprotocol was not offered, or the handshake writes one of the fields itself.
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
        if let Some(name) = RESERVED.iter().find(|name| additional.contains(name)) {
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

    /// Returns a response that rejects the request, or answers it as plain HTTP, and ends the connection. The caller
    /// sends its [`Response::to_bytes`]. It has Content-Length and Connection; the caller may add Date. It can be
    /// called at any time, even before the request is complete.
    ///
    /// # Errors
    /// The status is not final, the status does not allow a body, or the fields have a transfer coding.
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
        // RFC 9110 8.6: 204 has no Content-Length. With 304 it would be the length of another response.
        if !bodiless {
            headers.push("Content-Length", body.len().to_string())?;
        }
        // RFC 9110 7.8: a sender of Upgrade "MUST also send an "Upgrade" connection option".
        let upgrade = headers.contains("Upgrade");
        headers.set("Connection", if upgrade { "close, Upgrade" } else { "close" })?;
        let mut response = Response::new(status, headers);
        response.reason = reason_phrase(status).to_owned();
        // RFC 9110 9.3.2: the response to HEAD has no content, but the Content-Length of the response to GET.
        if self.request().is_none_or(|request| request.method != "HEAD") {
            response.body = body.to_vec();
        }
        Ok(response)
    }

    /// Returns the response to an error of this handshake, with [`HandshakeError::status`] and an explanation as text.
    #[must_use]
    pub fn reject_error(&self, error: &HandshakeError) -> Response {
        let mut headers = HeaderList::new();
        let fields = [("Content-Type", "text/plain; charset=utf-8")];
        for (name, value) in error.response_headers().iter().chain(&fields) {
            // The fields are valid constants.
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
