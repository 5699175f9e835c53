//! Errors, sorted by whose fault they are, and the one map from a fault to the close code that answers it.

use core::fmt;

use crate::close::CloseCode;
use crate::payload::OutOfMemory;

/// What the peer did wrong. The connection fails (RFC 6455 7.1.7); [`Fault::close_code`] says with which
/// code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A reserved bit is set that no negotiated extension gives a meaning (RFC 6455 5.2); the bits as RSV1 =
    /// 4, RSV2 = 2, RSV3 = 1.
    ReservedBits(u8),
    /// An opcode that the RFC reserves (5.2).
    UnknownOpcode(u8),
    /// A control frame without FIN (5.5).
    FragmentedControl,
    /// A control frame of more than 125 bytes (5.5).
    ControlTooLong(u64),
    /// A length that is not in its shortest form (5.2).
    LengthNotMinimal,
    /// A 64-bit length with the top bit set (5.2).
    LengthTooLarge,
    /// A client's frame without a mask (5.1).
    MaskMissing,
    /// A server's frame with a mask (5.1).
    MaskUnexpected,
    /// A continuation frame, but no message is open (5.4).
    ContinuationUnexpected,
    /// A new message inside a fragmented one (5.4).
    ContinuationExpected,
    /// A close frame with one byte of payload (5.5.1).
    ClosePayloadTooShort,
    /// A close code that must not be on the wire (7.4).
    InvalidCloseCode(u16),
    /// Text, or a close reason, that is not UTF-8 (8.1).
    InvalidUtf8,
    /// Compressed data that does not inflate (RFC 7692 7.2.2).
    InvalidDeflate,
    /// A message over the limit: its size as far as known, and the limit, in bytes.
    MessageTooBig {
        /// `None`: a compressed message that was refused before its size was known.
        size: Option<u64>,
        /// The limit in force.
        limit: usize,
    },
    /// A fragment over the limit: its size as far as known, and the limit, in bytes.
    FragmentTooBig {
        /// `None`: a compressed fragment that was refused before its size was known.
        size: Option<u64>,
        /// The limit in force.
        limit: usize,
    },
    /// More fragments in one message than the limit.
    TooManyFragments {
        /// The limit in force.
        limit: u32,
    },
    /// Not the peer's fault: no memory for the message.
    OutOfMemory,
}

impl Fault {
    /// The code of the close frame that answers this fault: the only map from faults to codes.
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

/// What the caller of a `send_*` method did wrong. The connection is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// A close frame was sent or the connection failed: nothing but what the closing handshake needs may
    /// follow.
    NotOpen,
    /// A fragmented message is being sent; only its continuation and control frames may be sent (RFC 6455
    /// 5.4).
    MessageOpen,
    /// A continuation, but no fragmented message is being sent.
    NoMessageOpen,
    /// The fragments of a text are not UTF-8 together (RFC 6455 5.6): this one is not sent.
    InvalidUtf8,
    /// A control payload of more than 125 bytes; its length.
    ControlTooLong(usize),
    /// A close code that must not be sent.
    InvalidCloseCode(u16),
    /// A close reason of more than 123 bytes; its length.
    ReasonTooLong(usize),
    /// A reason without a code.
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
