//! Opcodes (RFC 6455 5.2).

use crate::error::Fault;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// The next fragment of a message.
    Continuation = 0x0,
    /// The first or only frame of a text message.
    Text = 0x1,
    /// The first or only frame of a binary message.
    Binary = 0x2,
    /// The frame of the closing handshake.
    Close = 0x8,
    /// A request for a pong.
    Ping = 0x9,
    /// The answer to a ping, or an unsolicited pong.
    Pong = 0xA,
}

impl Opcode {
    /// Returns the opcode with this number. Numbers that the RFC reserves are a [`Fault`].
    pub const fn decode(number: u8) -> Result<Self, Fault> {
        match number {
            0x0 => Ok(Self::Continuation),
            0x1 => Ok(Self::Text),
            0x2 => Ok(Self::Binary),
            0x8 => Ok(Self::Close),
            0x9 => Ok(Self::Ping),
            0xA => Ok(Self::Pong),
            _ => Err(Fault::UnknownOpcode(number)),
        }
    }

    /// Returns whether this is close, ping or pong (RFC 6455 5.5).
    #[must_use]
    pub const fn is_control(self) -> bool {
        self as u8 & 0x8 != 0
    }
}
