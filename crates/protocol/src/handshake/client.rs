//! [`ClientHandshake`]: the client's side of the opening handshake (RFC 6455 4.1).

use alloc::borrow::ToOwned as _;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;

use super::accept_key::{accept_key, encode_nonce};
use super::error::HandshakeError;
use super::extension;
use super::header_list::{HeaderList, is_token};
use super::message::{Request, Response, Version, is_authority};
use super::response_reader::ResponseReader;
use super::{Accepted, Limits, Progress};
use crate::deflate::negotiate;

/// Fields that the handshake writes itself. The application may not set them.
const RESERVED: [&str; 6] = [
    "Upgrade",
    "Connection",
    "Sec-WebSocket-Key",
    "Sec-WebSocket-Version",
    "Sec-WebSocket-Accept",
    "Sec-WebSocket-Extensions",
];

/// Fields that announce a body, which the request does not have.
const BODY: [&str; 2] = ["Content-Length", "Transfer-Encoding"];

/// Fields that may occur at most once in a request.
const SINGLE: [&str; 4] = ["Host", "Origin", "Authorization", "User-Agent"];

/// The request of a client. Debug output omits the authorization.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientRequest {
    /// The Host field: the host, and the port unless it is the default of the scheme.
    pub host: String,
    /// The path and the query, percent-encoded and without a fragment. It begins with `/`.
    pub target: String,
    /// The Origin field. Browsers send it; for other clients it is optional.
    pub origin: Option<String>,
    /// The offered subprotocols in order of preference.
    pub subprotocols: Vec<String>,
    /// The offer of permessage-deflate. `None`: no compression.
    pub deflate: Option<negotiate::Config>,
    /// The User-Agent field.
    pub user_agent: Option<String>,
    /// The Authorization field, with its scheme.
    pub authorization: Option<String>,
    /// Additional fields. A field with the name of one above replaces it. Fields that the handshake writes itself are
    /// rejected, except Host.
    pub headers: HeaderList,
}

impl ClientRequest {
    /// Creates a request for `target` at `host`, without optional fields.
    #[must_use]
    pub fn new(host: &str, target: &str) -> Self {
        Self { host: host.to_owned(), target: target.to_owned(), ..Self::default() }
    }

    /// Checks the parts and builds the head.
    fn to_request(&self, key: &str) -> Result<Request, HandshakeError> {
        self.check_additional()?;
        let mut headers = HeaderList::new();
        // RFC 9110 7.2: the sender SHOULD send Host first.
        let host = self.headers.single("Host")?.unwrap_or(self.host.as_bytes());
        if !is_authority(host) {
            return Err(HandshakeError::InvalidArgument {
                argument: "host",
                value: String::from_utf8_lossy(host).into_owned(),
                expected: "a host name or address, with a port or without",
            });
        }
        headers.push("Host", host)?;
        headers.push("Upgrade", "websocket")?;
        headers.push("Connection", "Upgrade")?;
        headers.push("Sec-WebSocket-Key", key)?;
        headers.push("Sec-WebSocket-Version", "13")?;
        if let Some(config) = &self.deflate {
            config.validate()?;
            headers.push(extension::HEADER, config.offer())?;
        }
        let subprotocols = self.subprotocols.join(", ");
        let optional = [
            ("Sec-WebSocket-Protocol", (!self.subprotocols.is_empty()).then_some(subprotocols.as_str())),
            ("Origin", self.origin.as_deref()),
            ("Authorization", self.authorization.as_deref()),
            ("User-Agent", self.user_agent.as_deref()),
        ];
        for (name, value) in optional {
            if let Some(value) = value
                && !self.headers.contains(name)
            {
                headers.push(name, value)?;
            }
        }
        for header in &self.headers {
            if !header.name().eq_ignore_ascii_case("Host") {
                headers.push(header.name(), header.value())?;
            }
        }
        Ok(Request { method: "GET".to_string(), target: self.checked_target()?, version: Version::Http11, headers })
    }

    fn check_additional(&self) -> Result<(), HandshakeError> {
        for (names, reason) in [
            (RESERVED.as_slice(), "the opening handshake writes it"),
            (BODY.as_slice(), "the opening request has no body"),
        ] {
            if let Some(name) = names.iter().find(|name| self.headers.contains(name)) {
                return Err(HandshakeError::RefusedHeader { name: (*name).to_owned(), reason });
            }
        }
        match SINGLE.iter().find(|name| self.headers.single(name).is_err()) {
            Some(name) => {
                Err(HandshakeError::RefusedHeader { name: (*name).to_owned(), reason: "a request has one at most" })
            }
            None => Ok(()),
        }
    }

    /// Checks the target: a path and a query; "Fragment identifiers ... MUST NOT be used" (RFC 6455 3).
    fn checked_target(&self) -> Result<String, HandshakeError> {
        let valid =
            self.target.starts_with('/') && self.target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
        if valid {
            Ok(self.target.clone())
        } else {
            Err(HandshakeError::InvalidArgument {
                argument: "request target",
                value: self.target.clone(),
                expected: "a percent-encoded path that begins with \"/\", without a fragment",
            })
        }
    }
}

impl fmt::Debug for ClientRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientRequest")
            .field("host", &self.host)
            .field("target", &self.target)
            .field("origin", &self.origin)
            .field("subprotocols", &self.subprotocols)
            .field("deflate", &self.deflate)
            .field("user_agent", &self.user_agent)
            .field("authorization", &self.authorization.as_ref().map(|_| ".."))
            .field("headers", &self.headers)
            .finish()
    }
}

/// The opening handshake of a client. Send [`ClientHandshake::request_bytes`], then pass received bytes to
/// [`ClientHandshake::receive`] until it completes.
#[derive(Clone, Debug)]
pub struct ClientHandshake {
    request: Request,
    /// The value of Sec-WebSocket-Accept for the key of the request.
    expected_accept: String,
    /// The subprotocols offered in the request.
    subprotocols: Vec<String>,
    deflate: Option<negotiate::Config>,
    reader: ResponseReader,
    /// The response with status 101 that is invalid.
    invalid_response: Option<Response>,
}

impl ClientHandshake {
    /// Checks the request and creates the handshake. The nonce must be random and used only once (RFC 6455 4.1).
    ///
    /// # Errors
    /// A part of the request cannot be sent; the error names it.
    pub fn new(request: &ClientRequest, nonce: [u8; 16], limits: Limits) -> Result<Self, HandshakeError> {
        let key = encode_nonce(nonce);
        let deflate = request.deflate;
        let request = request.to_request(&key)?;
        Ok(Self {
            expected_accept: accept_key(&key),
            subprotocols: offered_subprotocols(&request.headers)?,
            deflate,
            reader: ResponseReader::new(limits, |status| status == 101),
            invalid_response: None,
            request,
        })
    }

    /// Returns the request as sent.
    #[must_use]
    pub const fn request(&self) -> &Request {
        &self.request
    }

    /// Returns the bytes to send.
    #[must_use]
    pub fn request_bytes(&self) -> Vec<u8> {
        self.request.to_bytes()
    }

    /// Consumes bytes from the server, in pieces of any size. Bytes after the head of a 101 response are not consumed,
    /// as they are frames. Interim responses (100, 102, 103, ...) are skipped.
    ///
    /// # Errors
    /// [`HandshakeError::Rejected`] has a response with another status, once its body is complete or exceeds the limit.
    /// Other errors name the rule that the response violates. The handshake is over after an error.
    pub fn receive(&mut self, input: &[u8]) -> Result<Progress<Accepted>, HandshakeError> {
        let (consumed, response) = match self.reader.receive(input)? {
            Progress::Incomplete => return Ok(Progress::Incomplete),
            Progress::Complete { consumed, output } => (consumed, output),
        };
        match self.check(&response) {
            Ok((subprotocol, deflate)) => {
                Ok(Progress::Complete { consumed, output: Accepted { response, subprotocol, deflate } })
            }
            Err(error) => {
                self.invalid_response = Some(response);
                Err(error)
            }
        }
    }

    /// Records the end of the stream, or that the deadline has passed, and returns the resulting error:
    /// [`HandshakeError::Rejected`] with the body so far, or [`HandshakeError::ConnectionClosed`].
    pub fn receive_eof(&mut self) -> HandshakeError {
        self.reader.receive_eof()
    }

    /// Returns whether the server has rejected the request and the body of its response is incomplete.
    #[must_use]
    pub const fn is_refused(&self) -> bool {
        self.reader.is_refused()
    }

    /// Returns the response with status 101 for which [`ClientHandshake::receive`] returned an error.
    #[must_use]
    pub const fn invalid_response(&self) -> Option<&Response> {
        self.invalid_response.as_ref()
    }

    /// Checks a response with status 101. Each violation MUST fail the connection (RFC 6455 4.1).
    fn check(&self, response: &Response) -> Result<(Option<String>, Option<negotiate::Params>), HandshakeError> {
        let headers = &response.headers;
        // RFC 9110 7.8: Upgrade does not exist in HTTP/1.0.
        if response.version != Version::Http11 {
            return Err(HandshakeError::UnsupportedHttpVersion { version: response.version.as_str().to_owned() });
        }
        // 2: Upgrade has "a value that is ... an ASCII case-insensitive match for the value "websocket"".
        let mut upgrade = headers.tokens("Upgrade");
        if !upgrade.next().is_some_and(|token| token.eq_ignore_ascii_case(b"websocket")) || upgrade.next().is_some() {
            return Err(HandshakeError::InvalidUpgrade { name: "Upgrade", value: headers.describe("Upgrade") });
        }
        // 3: Connection contains "a token that is ... an ASCII case-insensitive match for the value
        // "Upgrade"".
        if !headers.contains_token("Connection", "Upgrade") {
            return Err(HandshakeError::InvalidUpgrade { name: "Connection", value: headers.describe("Connection") });
        }
        // 4: Sec-WebSocket-Accept is the hash of the key, "ignoring any leading and trailing whitespace".
        let name = "Sec-WebSocket-Accept";
        let accept = headers.single(name)?.ok_or(HandshakeError::MissingHeader { name })?;
        if accept != self.expected_accept.as_bytes() {
            return Err(HandshakeError::InvalidHeader {
                name,
                value: String::from_utf8_lossy(accept).into_owned(),
                expected: "the hash of this request's Sec-WebSocket-Key",
            });
        }
        // 5: no extension "that was not present in the client's handshake".
        let deflate = match &self.deflate {
            Some(config) => config.accept_response(headers)?,
            None => match extension::parse_extensions(headers)?.into_iter().next() {
                Some(extension) => return Err(HandshakeError::ExtensionNotOffered { extension: extension.name }),
                None => None,
            },
        };
        Ok((self.check_subprotocol(headers)?, deflate))
    }

    /// Checks the subprotocol. 6: none "that was not present in the client's handshake". 11.3.4: the field "MUST NOT
    /// appear more than once in an HTTP response".
    fn check_subprotocol(&self, headers: &HeaderList) -> Result<Option<String>, HandshakeError> {
        let Some(chosen) = headers.single("Sec-WebSocket-Protocol")? else { return Ok(None) };
        match self.subprotocols.iter().find(|offered| offered.as_bytes() == chosen) {
            Some(offered) => Ok(Some(offered.clone())),
            None => {
                Err(HandshakeError::SubprotocolNotOffered { subprotocol: String::from_utf8_lossy(chosen).into_owned() })
            }
        }
    }
}

/// Returns the offered subprotocols. RFC 6455 4.1, 10: the elements are tokens "and MUST all be unique strings".
fn offered_subprotocols(headers: &HeaderList) -> Result<Vec<String>, HandshakeError> {
    let mut offered: Vec<String> = Vec::new();
    for value in headers.all("Sec-WebSocket-Protocol") {
        for element in value.split(|&byte| byte == b',') {
            let name = String::from_utf8_lossy(super::header_list::trim(element)).into_owned();
            if !is_token(name.as_bytes()) || offered.contains(&name) {
                return Err(HandshakeError::InvalidArgument {
                    argument: "subprotocol",
                    value: name,
                    expected: "different tokens",
                });
            }
            offered.push(name);
        }
    }
    Ok(offered)
}
