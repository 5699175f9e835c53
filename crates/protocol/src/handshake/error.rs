//! [`HandshakeError`] and the only mapping from errors to the HTTP statuses of their responses.

use alloc::borrow::ToOwned as _;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString as _};
use core::fmt;

use super::header_list::{DuplicateHeader, HeaderError, HeaderList};
use super::message::Response;

/// The reason why an opening handshake, or a CONNECT to a proxy, failed. In messages, text of the peer is escaped, and
/// truncated if it is long.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandshakeError {
    // The peer's bytes are not HTTP/1.
    /// The first line is not a request line or status line.
    MalformedStartLine {
        /// The line as far as it was received, escaped.
        line: String,
    },
    /// The version of HTTP in the first line is not supported.
    UnsupportedHttpVersion {
        /// The version.
        version: String,
    },
    /// A header line violates the syntax of RFC 9112 5.
    MalformedHeader {
        /// The line as far as it was received, escaped.
        line: String,
    },
    /// A line of the head does not end in CR LF.
    MalformedLineEnding {
        /// The number of the line, from 1.
        line: usize,
    },

    // The peer's head exceeds a limit.
    /// The first line exceeds the size limit of the head.
    StartLineTooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// The head exceeds its size limit.
    HeadTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The head has more fields than the limit.
    TooManyHeaders {
        /// The limit.
        limit: usize,
    },
    /// The server sent more interim (1xx) responses than the limit.
    TooManyInterimResponses {
        /// The limit.
        limit: usize,
    },

    // The peer closed the connection.
    /// The stream ended before the handshake.
    ConnectionClosed {
        /// Number of bytes received.
        received: usize,
    },

    // The peer's head violates RFC 6455 or RFC 7692.
    /// A required field is missing.
    MissingHeader {
        /// The field's name.
        name: &'static str,
    },
    /// A field that may occur at most once occurs more than once.
    DuplicateHeader {
        /// The field's name.
        name: String,
    },
    /// A field has an invalid value.
    InvalidHeader {
        /// The field's name.
        name: &'static str,
        /// Its value.
        value: String,
        /// A description of the valid values.
        expected: &'static str,
    },
    /// Upgrade or Connection has no value that opens a WebSocket connection.
    InvalidUpgrade {
        /// `Upgrade` or `Connection`.
        name: &'static str,
        /// Its value; `None` if the field is missing.
        value: Option<String>,
    },
    /// The method is not GET.
    InvalidMethod {
        /// The method.
        method: String,
    },
    /// The request target is neither a path nor an `http` URL.
    InvalidTarget {
        /// The target.
        target: String,
    },
    /// The request announces a body.
    UnexpectedBody,
    /// Sec-WebSocket-Version is not 13.
    UnsupportedWebSocketVersion {
        /// The field's value; `None` if the field is missing.
        version: Option<String>,
    },
    /// The server chose a subprotocol that was not offered.
    SubprotocolNotOffered {
        /// The chosen subprotocol.
        subprotocol: String,
    },
    /// The server accepted an extension that was not offered.
    ExtensionNotOffered {
        /// The extension's name.
        extension: String,
    },
    /// The server accepted an extension twice.
    DuplicateExtension {
        /// The extension's name.
        extension: String,
    },
    /// An extension has an unknown parameter.
    UnknownParameter {
        /// The parameter's name.
        parameter: String,
    },
    /// An extension has a parameter more than once.
    DuplicateParameter {
        /// The parameter's name.
        parameter: &'static str,
    },
    /// A parameter of an extension has an invalid value.
    InvalidParameter {
        /// The parameter's name.
        parameter: &'static str,
        /// Its value; `None` if it has none.
        value: Option<String>,
        /// A description of the valid values.
        expected: String,
    },
    /// The server accepted an extension without a parameter that the offer requires.
    MissingParameter {
        /// The parameter's name.
        parameter: &'static str,
    },

    // The peer rejected the request.
    /// The server or the proxy sent a response with a status that does not accept the request.
    Rejected(Box<Response>),

    // The application passed an invalid argument, or called a method in the wrong order.
    /// A field of the application is not valid in a head.
    InvalidOutgoingHeader(HeaderError),
    /// The application may not set this field.
    RefusedHeader {
        /// The field's name.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// A part of the application's request or response cannot be sent.
    InvalidArgument {
        /// The name of the part.
        argument: &'static str,
        /// Its value.
        value: String,
        /// A description of the valid values.
        expected: &'static str,
    },
    /// The method cannot be called in the current state of the handshake.
    OutOfOrder {
        /// The state that the call needs.
        expected: &'static str,
    },
}

impl HandshakeError {
    /// Returns the HTTP status of a server's response to this error. It is 500 for errors that are not the client's.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::MalformedStartLine { .. }
            | Self::MalformedHeader { .. }
            | Self::MalformedLineEnding { .. }
            | Self::ConnectionClosed { .. }
            | Self::MissingHeader { .. }
            | Self::DuplicateHeader { .. }
            | Self::InvalidHeader { .. }
            | Self::InvalidTarget { .. }
            | Self::UnexpectedBody => 400,
            Self::InvalidMethod { .. } => 405,
            Self::StartLineTooLong { .. } => 414,
            Self::InvalidUpgrade { .. } | Self::UnsupportedWebSocketVersion { .. } => 426,
            Self::HeadTooLarge { .. } | Self::TooManyHeaders { .. } => 431,
            Self::UnsupportedHttpVersion { .. } => 505,
            // Only clients return these errors.
            Self::TooManyInterimResponses { .. }
            | Self::SubprotocolNotOffered { .. }
            | Self::ExtensionNotOffered { .. }
            | Self::DuplicateExtension { .. }
            | Self::UnknownParameter { .. }
            | Self::DuplicateParameter { .. }
            | Self::InvalidParameter { .. }
            | Self::MissingParameter { .. }
            | Self::Rejected(_)
            // Errors of the application.
            | Self::InvalidOutgoingHeader(_)
            | Self::RefusedHeader { .. }
            | Self::InvalidArgument { .. }
            | Self::OutOfOrder { .. } => 500,
        }
    }

    /// Returns the header fields that [`HandshakeError::status`] requires in the response.
    pub(crate) fn response_headers(&self) -> &'static [(&'static str, &'static str)] {
        match self {
            // RFC 9110 15.5.6: the server "MUST generate an Allow header field in a 405 response".
            Self::InvalidMethod { .. } => &[("Allow", "GET")],
            // RFC 9110 15.5.22: the server "MUST send an Upgrade header field in a 426 response".
            Self::InvalidUpgrade { .. } => &[("Upgrade", "websocket")],
            // RFC 6455 4.4: the server MUST respond with a Sec-WebSocket-Version of all versions that it is
            // willing to use.
            Self::UnsupportedWebSocketVersion { .. } => &[("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")],
            _ => &[],
        }
    }

    /// Returns the text of the response. It has no details of errors that are not the client's.
    pub(crate) fn response_text(&self) -> String {
        match self {
            _ if self.status() == 500 => "Failed to open a WebSocket connection: internal error.\n".to_owned(),
            Self::InvalidUpgrade { .. } => format!(
                "Failed to open a WebSocket connection: {self}.\n\
                 This is a WebSocket server: a browser cannot show it, a WebSocket client can connect to it.\n"
            ),
            _ => format!("Failed to open a WebSocket connection: {self}.\n"),
        }
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MalformedStartLine { line } => write!(f, "not an HTTP/1.1 message: it starts with \"{line}\""),
            Self::UnsupportedHttpVersion { version } => {
                write!(f, "unsupported HTTP version: {version}, expected HTTP/1.1")
            }
            Self::MalformedHeader { line } => write!(f, "malformed header line: \"{line}\", expected \"name: value\""),
            Self::MalformedLineEnding { line } => write!(f, "line {line} of the head does not end in CR LF"),
            Self::StartLineTooLong { limit } => write!(f, "the first line is over the head's limit of {limit} bytes"),
            Self::HeadTooLarge { limit } => write!(f, "the head is over the limit of {limit} bytes"),
            Self::TooManyHeaders { limit } => write!(f, "the head has more than {limit} headers"),
            Self::TooManyInterimResponses { limit } => {
                write!(f, "more than {limit} interim responses before the final one")
            }
            Self::ConnectionClosed { received: 0 } => f.write_str("the connection was closed before any data came"),
            Self::ConnectionClosed { received } => {
                write!(f, "the connection was closed in the middle of the head, after {received} bytes")
            }
            Self::MissingHeader { name } => write!(f, "missing {name} header"),
            Self::DuplicateHeader { name } => write!(f, "more than one {name} header"),
            Self::InvalidHeader { name, value, expected } => {
                write!(f, "invalid {name} header: \"{}\", expected {expected}", Escaped(value))
            }
            Self::InvalidUpgrade { name, value: None } => write!(f, "missing {name} header"),
            Self::InvalidUpgrade { name, value: Some(value) } => {
                let expected = if *name == "Upgrade" { "websocket" } else { "Upgrade" };
                write!(f, "invalid {name} header: \"{}\", expected \"{expected}\"", Escaped(value))
            }
            Self::InvalidMethod { method } => write!(f, "unsupported method: {}, expected GET", Escaped(method)),
            Self::InvalidTarget { target } => {
                write!(f, "invalid request target: \"{}\", expected a path", Escaped(target))
            }
            Self::UnexpectedBody => f.write_str("the request announces a body, expected none"),
            Self::UnsupportedWebSocketVersion { version: None } => {
                f.write_str("missing Sec-WebSocket-Version header, expected \"13\"")
            }
            Self::UnsupportedWebSocketVersion { version: Some(version) } => {
                write!(f, "unsupported Sec-WebSocket-Version: \"{}\", expected \"13\"", Escaped(version))
            }
            Self::SubprotocolNotOffered { subprotocol } => {
                write!(f, "the server chose a subprotocol that was not offered: \"{}\"", Escaped(subprotocol))
            }
            Self::ExtensionNotOffered { extension } => {
                write!(f, "the server accepted an extension that was not offered: {}", Escaped(extension))
            }
            Self::DuplicateExtension { extension } => {
                write!(f, "the server accepted an extension twice: {}", Escaped(extension))
            }
            Self::UnknownParameter { parameter } => {
                write!(f, "unknown parameter of permessage-deflate: {}", Escaped(parameter))
            }
            Self::DuplicateParameter { parameter } => write!(f, "more than one {parameter} parameter"),
            Self::InvalidParameter { parameter, value: None, expected } => {
                write!(f, "the {parameter} parameter has no value, expected {expected}")
            }
            Self::InvalidParameter { parameter, value: Some(value), expected } => {
                write!(f, "invalid value for the {parameter} parameter: {}, expected {expected}", Escaped(value))
            }
            Self::MissingParameter { parameter } => {
                write!(f, "the server accepted permessage-deflate without {parameter}, a condition of the offer")
            }
            Self::Rejected(response) => {
                write!(f, "the opening handshake was answered with HTTP {}", response.status)?;
                if !response.reason.is_empty() {
                    write!(f, " {}", Escaped(&response.reason))?;
                }
                Ok(())
            }
            Self::InvalidOutgoingHeader(error) => error.fmt(f),
            Self::RefusedHeader { name, reason } => write!(f, "the {name} header cannot be given: {reason}"),
            Self::InvalidArgument { argument, value, expected } => {
                write!(f, "invalid {argument}: \"{}\", expected {expected}", Escaped(value))
            }
            Self::OutOfOrder { expected } => write!(f, "call out of order: expected {expected}"),
        }
    }
}

impl core::error::Error for HandshakeError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::InvalidOutgoingHeader(error) => Some(error),
            _ => None,
        }
    }
}

impl From<HeaderError> for HandshakeError {
    fn from(error: HeaderError) -> Self {
        Self::InvalidOutgoingHeader(error)
    }
}

impl From<DuplicateHeader> for HandshakeError {
    fn from(error: DuplicateHeader) -> Self {
        Self::DuplicateHeader { name: error.name }
    }
}

impl HeaderList {
    /// Returns the values of a field joined by commas, for an error, or `None` if it is missing.
    pub(crate) fn describe(&self, name: &str) -> Option<String> {
        let mut text: Option<String> = None;
        for value in self.all(name) {
            let value = String::from_utf8_lossy(value);
            match &mut text {
                None => text = Some(value.into_owned()),
                Some(text) => {
                    text.push_str(", ");
                    text.push_str(&value);
                }
            }
        }
        text
    }
}

/// Maximum number of bytes of a peer's text in an error message, so that it does not flood a log.
const EXCERPT: usize = 128;

/// Returns the first bytes of a line, escaped.
pub(crate) fn excerpt(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut text = line.get(..EXCERPT).unwrap_or(line).escape_ascii().to_string();
    if line.len() > EXCERPT {
        text.push_str("...");
    }
    text
}

/// Displays a text of the peer for a log: truncated if it is long, with control characters escaped.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.floor_char_boundary(EXCERPT);
        for character in self.0.get(..end).unwrap_or_default().chars() {
            if character.is_control() {
                write!(f, "{}", character.escape_default())?
            } else {
                write!(f, "{character}")?
            }
        }
        if end < self.0.len() { f.write_str("...") } else { Ok(()) }
    }
}
