//! How a connection ended: by close frames, or why otherwise.

use std::fmt;
use std::io;
use std::sync::Arc;

use wirespeed_protocol::{CloseFrame, Fault};

use crate::tls;

/// Why a connection ended otherwise than by two close frames.
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
    /// No pong in time.
    KeepaliveTimeout,
    /// The opening handshake was refused: an HTTP response says why.
    Refused,
    /// The application ended it, without a closing handshake or before its end.
    Aborted,
    /// The peer did not do its part of the closing, or did not end TCP, in time.
    CloseTimeout,
    /// This is a copy in a child process: the connection is the parent's.
    Forked,
    /// The program ends, and a thread that there is no more was at work on it.
    Ending,
    /// We have panicked in the middle of a change.
    Defect,
}

impl Failure {
    /// Whether the peer is told why: by a close frame, or a response, which leaves behind what was queued before.
    #[must_use]
    pub const fn is_said(&self) -> bool {
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
            Self::Ending => {
                f.write_str("the program ends, and a thread that has ended with it was using the connection")
            }
        }
    }
}

/// How a connection ended, or is ending.
#[derive(Debug, Default)]
pub struct Closing {
    /// The peer's close frame.
    pub received: Option<CloseFrame>,
    /// Ours.
    pub sent: Option<CloseFrame>,
    /// Which came first.
    pub received_then_sent: Option<bool>,
}

impl Closing {
    /// Whether both ends have closed in the ordinary way: with 1000, 1001 or no code (RFC 6455 7.4.1).
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let clean = |frame: &Option<CloseFrame>| {
            frame.as_ref().is_some_and(|frame| frame.code.is_none_or(|code| matches!(code.0, 1000 | 1001)))
        };
        clean(&self.received) && clean(&self.sent)
    }
}
