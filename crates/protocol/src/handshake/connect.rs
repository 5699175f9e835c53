//! [`ConnectHandshake`]: HTTP CONNECT, which requests a tunnel from a proxy (RFC 9110 9.3.6).

use alloc::borrow::ToOwned as _;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;

use super::error::HandshakeError;
use super::header_list::HeaderList;
use super::message::{Request, Response, Version, is_authority};
use super::response_reader::ResponseReader;
use super::{Limits, Progress};

/// The request for a tunnel. Debug output omits the authorization.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The host and the port: `example.com:443`. An IPv6 address is in brackets.
    pub authority: String,
    /// The Proxy-Authorization field, with its scheme.
    pub authorization: Option<String>,
    /// Additional fields. Proxy-Authorization and Host replace the values above.
    pub headers: HeaderList,
}

impl ConnectRequest {
    /// Creates a request for a tunnel to `host:port`, without optional fields.
    #[must_use]
    pub fn new(authority: &str) -> Self {
        Self { authority: authority.to_owned(), ..Self::default() }
    }

    fn to_request(&self) -> Result<Request, HandshakeError> {
        // RFC 9110 9.3.6: the target is "only the host and port number of the tunnel destination, separated
        // by a colon. There is no default port".
        let port = self.authority.rsplit_once(':').map_or("", |(_, port)| port);
        if !is_authority(self.authority.as_bytes()) || !port.parse::<u16>().is_ok_and(|number| number > 0) {
            return Err(HandshakeError::InvalidArgument {
                argument: "tunnel destination",
                value: self.authority.clone(),
                expected: "host:port",
            });
        }
        for name in ["Content-Length", "Transfer-Encoding"] {
            if self.headers.contains(name) {
                let reason = "a CONNECT request has no body";
                return Err(HandshakeError::RefusedHeader { name: name.to_owned(), reason });
            }
        }
        let mut headers = HeaderList::new();
        for (name, value) in [("Host", Some(&self.authority)), ("Proxy-Authorization", self.authorization.as_ref())] {
            if let Some(value) = value
                && !self.headers.contains(name)
            {
                headers.push(name, value)?;
            }
        }
        headers.extend(&self.headers);
        let target = self.authority.clone();
        Ok(Request { method: "CONNECT".to_string(), target, version: Version::Http11, headers })
    }
}

impl fmt::Debug for ConnectRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectRequest")
            .field("authority", &self.authority)
            .field("authorization", &self.authorization.as_ref().map(|_| ".."))
            .field("headers", &self.headers)
            .finish()
    }
}

/// A CONNECT handshake. Send [`ConnectHandshake::request_bytes`], then pass received bytes to
/// [`ConnectHandshake::receive`] until it completes.
#[derive(Clone, Debug)]
pub struct ConnectHandshake {
    request: Request,
    reader: ResponseReader,
}

impl ConnectHandshake {
    /// Checks the request and creates the handshake.
    ///
    /// # Errors
    /// A part of the request cannot be sent; the error names it.
    pub fn new(request: &ConnectRequest, limits: Limits) -> Result<Self, HandshakeError> {
        // RFC 9110 9.3.6: "Any 2xx (Successful) response indicates that the sender ... will switch to tunnel
        // mode immediately after the response header section"; a Content-Length or Transfer-Encoding in it is
        // ignored.
        let reader = ResponseReader::new(limits, |status| (200..300).contains(&status));
        Ok(Self { request: request.to_request()?, reader })
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

    /// Consumes bytes from the proxy, in pieces of any size. Bytes after the head of a 2xx response are not consumed, as
    /// they come through the tunnel.
    ///
    /// # Errors
    /// [`HandshakeError::Rejected`] has a response with another status, once its body is complete or exceeds the limit.
    /// Other errors mean that the response is invalid. The handshake is over after an error.
    pub fn receive(&mut self, input: &[u8]) -> Result<Progress<Response>, HandshakeError> {
        self.reader.receive(input)
    }

    /// Records the end of the stream, or that the deadline has passed, and returns the resulting error.
    pub fn receive_eof(&mut self) -> HandshakeError {
        self.reader.receive_eof()
    }

    /// Returns whether the proxy has rejected the request and the body of its response is incomplete.
    #[must_use]
    pub const fn is_refused(&self) -> bool {
        self.reader.is_refused()
    }
}
