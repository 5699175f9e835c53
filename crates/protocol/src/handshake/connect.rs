//! [`ConnectHandshake`]: HTTP CONNECT, which asks a proxy for a tunnel (RFC 9110 9.3.6).

use alloc::borrow::ToOwned as _;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;

use super::error::HandshakeError;
use super::header_list::HeaderList;
use super::message::{Request, Response, Version, is_authority};
use super::response_reader::ResponseReader;
use super::{Limits, Progress};

/// The tunnel to ask for. Debug output leaves the authorization out.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The host, an IPv6 address in brackets, and the port: `example.com:443`.
    pub authority: String,
    /// The Proxy-Authorization field, with its scheme.
    pub authorization: Option<String>,
    /// More fields. Proxy-Authorization and Host take the place of those above.
    pub headers: HeaderList,
}

impl ConnectRequest {
    /// A tunnel to that `host:port`, with nothing optional.
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

/// One CONNECT: send [`ConnectHandshake::request_bytes`], feed what comes back to
/// [`ConnectHandshake::receive`].
#[derive(Clone, Debug)]
pub struct ConnectHandshake {
    request: Request,
    reader: ResponseReader,
}

impl ConnectHandshake {
    /// Checks the request.
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

    /// The request as it is sent.
    #[must_use]
    pub const fn request(&self) -> &Request {
        &self.request
    }

    /// The bytes to send.
    #[must_use]
    pub fn request_bytes(&self) -> Vec<u8> {
        self.request.to_bytes()
    }

    /// Takes bytes from the proxy, in pieces of any size. Bytes behind the head of a 2xx response are left
    /// alone: they come through the tunnel.
    ///
    /// # Errors [`HandshakeError::Rejected`] carries a response with another status, once its body is
    /// complete or over the limit; any other error tells what is wrong with its bytes. The handshake is over
    /// then.
    pub fn receive(&mut self, input: &[u8]) -> Result<Progress<Response>, HandshakeError> {
        self.reader.receive(input)
    }

    /// Notes that nothing more will come, as the stream ended or time is up, and returns the error to which
    /// that leads.
    pub fn receive_eof(&mut self) -> HandshakeError {
        self.reader.receive_eof()
    }

    /// Whether the proxy has refused, and the body of its response is waited for.
    #[must_use]
    pub const fn is_refused(&self) -> bool {
        self.reader.is_refused()
    }
}
