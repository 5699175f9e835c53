//! How a connection ended: with close frames or with a failure.

use std::fmt;
use std::io;
use std::sync::Arc;

use wirespeed_protocol::{CloseFrame, Fault};

use crate::tls;

/// Why a connection ended without a complete closing handshake.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The peer broke the protocol.
    Fault(Fault),
    /// The stream ended.
    Eof,
    /// The socket failed.
    Io(Arc<io::Error>),
    /// TLS failed.
    Tls(Arc<tls::Error>),
    /// No pong arrived in time.
    KeepaliveTimeout,
    /// The opening handshake was refused with an HTTP response.
    Refused,
    /// The application ended the connection before a closing handshake was complete.
    Aborted,
    /// The peer did not answer the close frame, or did not end TCP, in time.
    CloseTimeout,
    /// This is a copy in a child process: the connection belongs to the parent.
    Forked,
    /// The interpreter is shutting down, and a thread that no longer runs was using the connection.
    ShuttingDown,
    /// A panic interrupted a change of the connection.
    Defect,
}

impl Failure {
    /// Returns whether the peer receives the reason, in a close frame or HTTP response that comes after queued
    /// bytes.
    #[must_use]
    pub const fn is_sent_to_peer(&self) -> bool {
        matches!(self, Self::Fault(_) | Self::Refused)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => fault.fmt(f),
            Self::Eof => f.write_str("the stream ended without a closing handshake"),
            Self::Io(error) => error.fmt(f),
            Self::Tls(error) => error.fmt(f),
            Self::KeepaliveTimeout => f.write_str("keepalive ping timeout"),
            Self::Refused => f.write_str("the opening handshake was refused"),
            Self::Aborted => f.write_str("the application ended it without a closing handshake"),
            Self::CloseTimeout => f.write_str("timed out while closing connection"),
            Self::Defect => f.write_str("internal error: a panic, see standard error"),
            Self::Forked => f.write_str(
                "this is a copy in a child process: the connection belongs to the process that has opened it",
            ),
            Self::ShuttingDown => f.write_str(
                "the interpreter is shutting down, and a thread that no longer runs was using the connection",
            ),
        }
    }
}

/// The close frames of a connection.
#[derive(Debug, Default)]
pub struct Closing {
    /// The peer's close frame.
    pub received: Option<CloseFrame>,
    /// Our close frame.
    pub sent: Option<CloseFrame>,
    /// Whether the peer's close frame came first; `None` unless both exist.
    pub received_then_sent: Option<bool>,
}

impl Closing {
    /// Returns whether both ends closed normally: with code 1000, 1001 or none (RFC 6455 7.4.1).
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let clean = |frame: &Option<CloseFrame>| {
            frame.as_ref().is_some_and(|frame| frame.code.is_none_or(|code| matches!(code.0, 1000 | 1001)))
        };
        clean(&self.received) && clean(&self.sent)
    }
}
