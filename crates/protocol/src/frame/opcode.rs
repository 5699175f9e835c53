//! Opcodes (RFC 6455 5.2).

use crate::error::Fault;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// The next fragment of a message.
    Continuation = 0x0,
    /// The first or only frame of a text message.
    Text = 0x1,
    /// The first or only frame of a binary message.
    Binary = 0x2,
    /// The closing handshake.
    Close = 0x8,
    /// A question whether the peer is there.
    Ping = 0x9,
    /// The answer.
    Pong = 0xA,
}

impl Opcode {
    /// The opcode of this number, if the RFC defines it.
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

    /// Close, ping and pong (RFC 6455 5.5).
    #[must_use]
    pub const fn is_control(self) -> bool {
        self as u8 & 0x8 != 0
    }
}
