//! What [`Connection::receive`](crate::Connection::receive) reports.

use core::fmt;

use crate::close::CloseFrame;
use crate::frame::Opcode;
use crate::payload::PayloadBuffer;

/// The two kinds of message (RFC 6455 5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// UTF-8 text, validated before it is delivered.
    Text,
    /// Bytes.
    Binary,
}

impl MessageKind {
    pub(crate) const fn opcode(self) -> Opcode {
        match self {
            Self::Text => Opcode::Text,
            Self::Binary => Opcode::Binary,
        }
    }
}

/// The bytes of a message or fragment.
#[derive(Debug)]
pub enum Payload<'i, B> {
    /// They lie, unmasked, in the input that was just received: copy them before the input is reused.
    Slice(&'i [u8]),
    /// They were assembled from several frames or chunks, or inflated.
    Buffer(B),
}

impl<B: PayloadBuffer> Payload<'_, B> {
    /// The bytes, wherever they are.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Slice(slice) => slice,
            Self::Buffer(buffer) => buffer.as_slice(),
        }
    }
}

/// The payload of a ping or pong: 125 bytes at most, held inline.
#[derive(Clone, Copy)]
pub struct ControlPayload {
    bytes: [u8; 125],
    len: u8,
}

impl ControlPayload {
    /// The longest payload of a control frame (RFC 6455 5.5).
    pub const MAX: usize = 125;

    pub(crate) const fn new() -> Self {
        Self { bytes: [0; 125], len: 0 }
    }

    /// Appends as far as there is room. The header was checked: a control frame's payload always fits.
    pub(crate) fn extend(&mut self, data: &[u8]) {
        let room = self.bytes.iter_mut().skip(usize::from(self.len));
        for (place, byte) in room.zip(data) {
            *place = *byte;
            self.len += 1;
        }
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl PartialEq for ControlPayload {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl fmt::Debug for ControlPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// Something that the peer sent, whole and valid.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'i, B> {
    /// A message ([`Delivery::Messages`](crate::Delivery::Messages)).
    Message {
        /// Text or binary.
        kind: MessageKind,
        /// All of it.
        payload: Payload<'i, B>,
    },
    /// One frame of a message ([`Delivery::Fragments`](crate::Delivery::Fragments)). Text is valid UTF-8 over
    /// the whole message; a fragment may end inside a character.
    Fragment {
        /// Text or binary, repeated for every fragment.
        kind: MessageKind,
        /// This fragment's bytes, inflated; also everything of the message that had arrived before the
        /// delivery was switched.
        payload: Payload<'i, B>,
        /// The last one.
        fin: bool,
    },
    /// A ping: a pong with the same payload is due (RFC 6455 5.5.2).
    Ping(ControlPayload),
    /// A pong, asked for or not (5.5.3).
    Pong(ControlPayload),
    /// A close frame: a reply is due unless one was sent (5.5.1). Nothing is received after it.
    Close(CloseFrame),
}
