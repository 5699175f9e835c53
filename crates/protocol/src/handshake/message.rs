//! [`Request`] and [`Response`]: the HTTP messages of an opening handshake, received or to be sent.

use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use super::header_list::HeaderList;

/// A version of HTTP/1. This crate cannot parse heads of other versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
}

impl Version {
    /// Returns the version as it is written in a start line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
        }
    }
}

/// The head of a request. The request of an opening handshake has no body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The method, case-sensitive.
    pub method: String,
    /// The request target as sent: usually a path with a query. See [`Request::path_and_query`].
    pub target: String,
    /// The version of HTTP.
    pub version: Version,
    /// The header fields.
    pub headers: HeaderList,
}

impl Request {
    /// Returns the path and the query of the target. The target may be a path or begin with `http://host` (RFC 9112
    /// 3.2.2: a server MUST accept both). `None` if it has another form.
    #[must_use]
    pub fn path_and_query(&self) -> Option<&str> {
        if self.target.starts_with('/') {
            return Some(&self.target);
        }
        let (scheme, rest) = self.target.split_once("://")?;
        if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
            return None;
        }
        let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        if authority == 0 {
            return None;
        }
        let path = rest.get(authority..)?;
        // RFC 9110 4.2.3: an empty path is the same as "/".
        if path.is_empty() {
            Some("/")
        } else if path.starts_with('/') {
            Some(path)
        } else {
            None
        }
    }

    /// Returns the bytes of the head. The caller must have checked the method and the target.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        for part in [&self.method, " ", &self.target, " ", self.version.as_str(), "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        self.headers.write_to(&mut out);
        out.extend_from_slice(b"\r\n");
        out
    }
}

/// A response with its body, which may be truncated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The version of HTTP.
    pub version: Version,
    /// The status code, from 100 to 999.
    pub status: u16,
    /// The reason phrase, often empty. The protocol ignores it.
    pub reason: String,
    /// The header fields.
    pub headers: HeaderList,
    /// The body with its transfer coding removed. A content coding is not removed.
    pub body: Vec<u8>,
    /// Whether a part of the body is missing: it exceeded the limit, was malformed, or the stream ended early.
    pub body_truncated: bool,
}

impl Response {
    /// Creates an HTTP/1.1 response without a body and with the standard reason phrase of its status.
    #[must_use]
    pub fn new(status: u16, headers: HeaderList) -> Self {
        Self {
            version: Version::Http11,
            status,
            reason: reason_phrase(status).to_string(),
            headers,
            body: Vec::new(),
            body_truncated: false,
        }
    }

    /// Returns the bytes of the head and the body. Control characters in the reason phrase are written as spaces.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256 + self.body.len());
        for part in [self.version.as_str(), " ", &self.status.to_string(), " "] {
            out.extend_from_slice(part.as_bytes());
        }
        out.extend(self.reason.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
        out.extend_from_slice(b"\r\n");
        self.headers.write_to(&mut out);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.body);
        out
    }
}

/// Returns the standard reason phrase of a status code (RFC 9110 15 and the IANA registry), or an empty string.
#[must_use]
pub const fn reason_phrase(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        102 => "Processing",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        305 => "Use Proxy",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        418 => "I'm a Teapot",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        423 => "Locked",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        506 => "Variant Also Negotiates",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        511 => "Network Authentication Required",
        _ => "",
    }
}

/// Returns whether the bytes can be a host with or without a port (RFC 9110 7.2). They must have no user, no path, and
/// no character that another parser could treat differently.
pub(crate) fn is_authority(bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && bytes.iter().all(|&byte| {
            byte.is_ascii_graphic()
                && !matches!(
                    byte,
                    b'/' | b'\\' | b'?' | b'#' | b'@' | b',' | b'"' | b'<' | b'>' | b'{' | b'}' | b'|' | b'^' | b'`'
                )
        })
}
