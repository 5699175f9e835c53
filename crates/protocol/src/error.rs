//! Errors: a [`Fault`] is a protocol error of the peer, a [`SendError`] is a wrong call by the application.
//!
//! [`Fault::close_code`] is the only mapping from faults to close codes.

use core::fmt;

use crate::close::CloseCode;
use crate::payload::OutOfMemory;

/// A protocol error of the peer. It fails the connection (RFC 6455 7.1.7) with the code [`Fault::close_code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Reserved bits are set that no negotiated extension defines (RFC 6455 5.2): RSV1 = 4, RSV2 = 2, RSV3 = 1.
    ReservedBits(u8),
    /// The opcode is reserved (5.2).
    UnknownOpcode(u8),
    /// A control frame is fragmented: FIN is not set (5.5).
    FragmentedControl,
    /// A control frame has more than 125 bytes (5.5). The value is its length.
    ControlTooLong(u64),
    /// The payload length is not in its shortest form (5.2).
    LengthNotMinimal,
    /// The most significant bit of a 64-bit length is set (5.2).
    LengthTooLarge,
    /// A client's frame is not masked (5.1).
    MaskMissing,
    /// A server's frame is masked (5.1).
    MaskUnexpected,
    /// A continuation frame arrived outside a fragmented message (5.4).
    ContinuationUnexpected,
    /// A new message began inside a fragmented message (5.4).
    ContinuationExpected,
    /// The payload of a close frame is one byte long (5.5.1).
    ClosePayloadTooShort,
    /// A close frame has a code that must not be sent (7.4).
    InvalidCloseCode(u16),
    /// A text message or a close reason is not UTF-8 (8.1).
    InvalidUtf8,
    /// Compressed data cannot be decompressed (RFC 7692 7.2.2).
    InvalidDeflate,
    /// A message exceeds the size limit.
    MessageTooBig {
        /// Its size in bytes; `None` for a compressed message, whose full size is not known.
        size: Option<u64>,
        /// The limit in force.
        limit: usize,
    },
    /// A fragment exceeds the size limit.
    FragmentTooBig {
        /// Its size in bytes; `None` for a compressed fragment, whose full size is not known.
        size: Option<u64>,
        /// The limit in force.
        limit: usize,
    },
    /// A message has more fragments than the limit.
    TooManyFragments {
        /// The limit in force.
        limit: u32,
    },
    /// There is no memory for the message. This is not an error of the peer.
    OutOfMemory,
}

impl Fault {
    /// Returns the code of the close frame that reports this fault to the peer.
    #[must_use]
    pub const fn close_code(&self) -> CloseCode {
        match self {
            Self::ReservedBits(_)
            | Self::UnknownOpcode(_)
            | Self::FragmentedControl
            | Self::ControlTooLong(_)
            | Self::LengthNotMinimal
            | Self::LengthTooLarge
            | Self::MaskMissing
            | Self::MaskUnexpected
            | Self::ContinuationUnexpected
            | Self::ContinuationExpected
            | Self::ClosePayloadTooShort
            | Self::InvalidCloseCode(_)
            | Self::InvalidDeflate => CloseCode::PROTOCOL_ERROR,
            // RFC 6455 7.4.1: "data within a message that was not consistent with the type of the message"
            Self::InvalidUtf8 => CloseCode::INVALID_DATA,
            Self::MessageTooBig { .. } | Self::FragmentTooBig { .. } | Self::TooManyFragments { .. } => {
                CloseCode::MESSAGE_TOO_BIG
            }
            Self::OutOfMemory => CloseCode::INTERNAL_ERROR,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReservedBits(bits) => {
                f.write_str("reserved bits are set that no extension uses:")?;
                for (bit, name) in [(4, " RSV1"), (2, " RSV2"), (1, " RSV3")] {
                    if bits & bit != 0 {
                        f.write_str(name)?;
                    }
                }
                Ok(())
            }
            Self::UnknownOpcode(opcode) => write!(f, "unknown opcode: {opcode:#04x}"),
            Self::FragmentedControl => f.write_str("fragmented control frame"),
            Self::ControlTooLong(length) => write!(f, "control frame too long: {length} bytes, the limit is 125"),
            Self::LengthNotMinimal => f.write_str("payload length is not in its shortest form"),
            Self::LengthTooLarge => f.write_str("payload length has its top bit set"),
            Self::MaskMissing => f.write_str("frame from the client is not masked"),
            Self::MaskUnexpected => f.write_str("frame from the server is masked"),
            Self::ContinuationUnexpected => f.write_str("continuation frame outside a fragmented message"),
            Self::ContinuationExpected => f.write_str("new message inside a fragmented message"),
            Self::ClosePayloadTooShort => f.write_str("close frame with a payload of one byte"),
            Self::InvalidCloseCode(code) => write!(f, "invalid close code: {code}"),
            Self::InvalidUtf8 => f.write_str("invalid UTF-8"),
            Self::InvalidDeflate => f.write_str("compressed data does not inflate"),
            Self::MessageTooBig { size: Some(size), limit } => {
                write!(f, "message of {size} bytes is over the limit of {limit} bytes")
            }
            Self::MessageTooBig { size: None, limit } => write!(f, "message inflates over the limit of {limit} bytes"),
            Self::FragmentTooBig { size: Some(size), limit } => {
                write!(f, "fragment of {size} bytes is over the limit of {limit} bytes")
            }
            Self::FragmentTooBig { size: None, limit } => {
                write!(f, "fragment inflates over the limit of {limit} bytes")
            }
            Self::TooManyFragments { limit } => write!(f, "message has more than {limit} fragments"),
            Self::OutOfMemory => f.write_str("no memory for the message"),
        }
    }
}

impl core::error::Error for Fault {}

impl From<OutOfMemory> for Fault {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

/// A `send_*` method was called with a wrong argument or in a wrong state. The connection is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// A close frame was sent or received, or the connection failed. Only the closing handshake may continue.
    NotOpen,
    /// A fragmented message is being sent: only its next fragments and control frames may follow (RFC 6455 5.4).
    MessageOpen,
    /// A continuation was passed, but no fragmented message is being sent.
    NoMessageOpen,
    /// With this fragment the text message would not be UTF-8 (RFC 6455 5.6). The fragment is not sent.
    InvalidUtf8,
    /// The payload of a control frame has more than 125 bytes. The value is its length.
    ControlTooLong(usize),
    /// The close code must not be sent.
    InvalidCloseCode(u16),
    /// The close reason has more than 123 bytes. The value is its length.
    ReasonTooLong(usize),
    /// A close reason was passed without a code.
    ReasonWithoutCode,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOpen => f.write_str("the connection is not open"),
            Self::MessageOpen => f.write_str("a fragmented message is being sent"),
            Self::NoMessageOpen => f.write_str("no fragmented message is being sent"),
            Self::InvalidUtf8 => f.write_str("the fragments of a text are not UTF-8"),
            Self::ControlTooLong(length) => write!(f, "control frame payload of {length} bytes, the limit is 125"),
            Self::InvalidCloseCode(code) => {
                write!(f, "close code {code} must not be sent: use 1000 to 1003, 1007 to 1014 or 3000 to 4999")
            }
            Self::ReasonTooLong(length) => write!(f, "close reason of {length} bytes, the limit is 123"),
            Self::ReasonWithoutCode => f.write_str("a close reason needs a close code"),
        }
    }
}

impl core::error::Error for SendError {}
