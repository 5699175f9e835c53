//! The events that [`Connection::receive`](crate::Connection::receive) returns.

use core::fmt;

use crate::close::CloseFrame;
use crate::frame::Opcode;
use crate::payload::PayloadBuffer;

/// The two kinds of message (RFC 6455 5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// Text: UTF-8, validated before it is delivered.
    Text,
    /// Binary data.
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

/// The payload of a message or fragment.
#[derive(Debug)]
pub enum Payload<'i, B> {
    /// The payload lies, unmasked, in the input of this call. Copy it before the input is reused.
    Slice(&'i [u8]),
    /// The payload was assembled from several frames or chunks, or decompressed.
    Buffer(B),
}

impl<B: PayloadBuffer> Payload<'_, B> {
    /// Returns the bytes.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Slice(slice) => slice,
            Self::Buffer(buffer) => buffer.as_slice(),
        }
    }
}

/// The payload of a control frame: at most 125 bytes, stored inline.
#[derive(Clone, Copy)]
pub struct ControlPayload {
    bytes: [u8; 125],
    len: u8,
}

impl ControlPayload {
    /// Maximum size of the payload in bytes (RFC 6455 5.5).
    pub const MAX: usize = 125;

    pub(crate) const fn new() -> Self {
        Self { bytes: [0; 125], len: 0 }
    }

    /// Appends `data`, as far as there is room. The length was checked with the header, so the payload always fits.
    pub(crate) fn extend(&mut self, data: &[u8]) {
        let room = self.bytes.iter_mut().skip(usize::from(self.len));
        for (place, byte) in room.zip(data) {
            *place = *byte;
            self.len += 1;
        }
    }

    /// Returns the bytes.
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

/// A complete and valid message, fragment or control frame from the peer.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'i, B> {
    /// A whole message ([`Delivery::Messages`](crate::Delivery::Messages)).
    Message {
        /// The kind of the message.
        kind: MessageKind,
        /// The payload of the message.
        payload: Payload<'i, B>,
    },
    /// A fragment of a message ([`Delivery::Fragments`](crate::Delivery::Fragments)). A fragment of text may end inside
    /// a character; the whole message is valid UTF-8.
    Fragment {
        /// The kind of the message, the same for all its fragments.
        kind: MessageKind,
        /// The decompressed payload. After a switch to [`Delivery::Fragments`](crate::Delivery::Fragments) it also has
        /// the earlier fragments of the message.
        payload: Payload<'i, B>,
        /// Whether this is the last fragment of the message.
        fin: bool,
    },
    /// A ping. A pong with the same payload is due (RFC 6455 5.5.2).
    Ping(ControlPayload),
    /// A pong, solicited or unsolicited (5.5.3).
    Pong(ControlPayload),
    /// A close frame. A reply is due unless a close frame was sent (5.5.1). It is the last event.
    Close(CloseFrame),
}
