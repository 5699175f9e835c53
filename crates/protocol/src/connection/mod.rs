//! [`Connection`]: the protocol after the opening handshake, without I/O.
//!
//! This module has the state that both directions share; `receive` and `send` have the two directions.

mod receive;
mod send;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::MaybeUninit;

use crate::Side;
use crate::close::CloseFrame;
use crate::deflate;
use crate::deflate::codec::{Contexts, Deflater, Inflater};
use crate::error::Fault;
use crate::event::{ControlPayload, MessageKind};
use crate::frame::Header;
use crate::limits::{Bounds, Limits};
use crate::payload::PayloadBuffer;
use crate::state::State;
use crate::utf8;

/// The parameters of a connection, from the opening handshake and the application.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The role of this endpoint.
    pub side: Side,
    /// Limits on received messages.
    pub limits: Limits,
    /// The negotiated parameters of permessage-deflate, if it was negotiated.
    pub deflate: Option<deflate::Params>,
}

impl Config {
    /// Returns a configuration without compression and with the default limits.
    #[must_use]
    pub fn new(side: Side) -> Self {
        Self { side, limits: Limits::default(), deflate: None }
    }
}

/// How received messages are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Each message as a whole.
    #[default]
    Messages,
    /// Each frame of a message by itself, as the peer sent it.
    Fragments,
}

/// A WebSocket connection after its opening handshake, without I/O.
///
/// - *Receiving*: for each chunk from the socket call [`receive`](Self::receive) until it returns `None`, and
///   [`receive_eof`](Self::receive_eof) at the end of the stream. Between chunks,
///   [`take_destination`](Self::take_destination) and [`put_destination`](Self::put_destination) let the caller read
///   a large payload straight into its buffer. [`set_delivery`](Self::set_delivery) selects messages or fragments.
/// - *Sending*: [`send_message`](Self::send_message), or [`send_first_fragment`](Self::send_first_fragment) and then
///   [`send_fragment`](Self::send_fragment) until the last. [`send_ping`](Self::send_ping) and
///   [`send_pong`](Self::send_pong) may be called in between. All append frames to a vector, which the caller writes.
/// - *Closing*: [`send_close`](Self::send_close) begins the closing handshake. After
///   [`Event::Close`](crate::Event::Close) call [`send_close_reply`](Self::send_close_reply), after a [`Fault`]
///   [`send_fault`](Self::send_fault), and [`send_failure`](Self::send_failure) to fail for another reason.
/// - *Memory*: [`release_contexts`](Self::release_contexts) and [`adopt_contexts`](Self::adopt_contexts) move
///   compressors between connections; [`release_idle`](Self::release_idle) drops those of an idle one.
///
/// `B` is the buffer for messages that do not lie as a whole in one input.
pub struct Connection<B = Vec<u8>> {
    side: Side,
    bounds: Bounds,
    deflate: Option<deflate::Params>,
    state: State,
    delivery: Delivery,
    /// Whether the next call of `receive` delivers the buffered part of the open message as a fragment.
    pending_fragment: bool,
    // Receiving.
    /// The beginning of a frame header whose end has not arrived.
    head: PartialHead,
    /// The frame whose payload is arriving.
    frame: Option<FrameProgress>,
    /// The open message: its first frame has begun, its last frame has not ended.
    incoming: Option<Incoming>,
    /// The bytes of the open message. Invariant: `Some` only while `incoming` is `Some` and the caller holds no
    /// [`Destination`].
    buffer: Option<B>,
    /// The payload of the control frame that is arriving.
    control: Option<Box<ControlPayload>>,
    inflater: Option<Box<Inflater>>,
    fault: Option<Fault>,
    close_received: Option<Box<CloseFrame>>,
    // Sending.
    outgoing: Option<Outgoing>,
    deflater: Option<Box<Deflater>>,
    close_sent: Option<Box<CloseFrame>>,
}

#[derive(Clone, Copy, Default)]
struct PartialHead {
    bytes: [u8; Header::MAX],
    len: u8,
}

#[derive(Clone, Copy)]
struct FrameProgress {
    header: Header,
    /// Number of payload bytes that have not arrived.
    remaining: u64,
}

/// A message that is being received.
#[derive(Clone, Copy)]
struct Incoming {
    kind: MessageKind,
    compressed: bool,
    /// Number of frames so far.
    fragments: u32,
    /// Number of decompressed bytes of the current frame. It saturates at 4 GiB.
    inflated: u32,
    /// Whether a fragment of this message was delivered, even an empty one.
    streamed: bool,
    /// Number of bytes of this message that were delivered as fragments.
    delivered: usize,
    utf8: utf8::Validator,
}

/// A fragmented message that is being sent.
#[derive(Clone, Copy)]
struct Outgoing {
    compressed: bool,
    /// The validator of a text message; `None` for a binary message.
    text: Option<utf8::Validator>,
}

/// The buffer of a large payload, taken out of the connection so that the caller can read the socket into it.
/// [`Connection::put_destination`] must return it before anything else is received.
pub struct Destination<B> {
    buffer: B,
    wanted: usize,
}

impl<B: PayloadBuffer> Destination<B> {
    /// Returns the room for the rest of the payload: at least one byte, and none after its end. Never allocates.
    pub fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        let wanted = self.wanted;
        let room = self.buffer.room();
        let len = room.len().min(wanted);
        room.get_mut(..len).unwrap_or_default()
    }
}

impl<B: PayloadBuffer> Connection<B> {
    /// Creates a connection whose opening handshake has just ended.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            side: config.side,
            bounds: config.limits.into(),
            deflate: config.deflate,
            state: State::Open,
            delivery: Delivery::Messages,
            pending_fragment: false,
            head: PartialHead::default(),
            frame: None,
            incoming: None,
            buffer: None,
            control: None,
            inflater: None,
            fault: None,
            close_received: None,
            outgoing: None,
            deflater: None,
            close_sent: None,
        }
    }

    /// Returns the state of the connection.
    #[must_use]
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the role of this endpoint.
    #[must_use]
    pub fn side(&self) -> Side {
        self.side
    }

    /// Returns the protocol error of the peer that failed the connection, if any.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Returns the close frame that was received.
    #[must_use]
    pub fn close_received(&self) -> Option<&CloseFrame> {
        self.close_received.as_deref()
    }

    /// Returns the close frame that was encoded for sending.
    #[must_use]
    pub fn close_sent(&self) -> Option<&CloseFrame> {
        self.close_sent.as_deref()
    }

    /// Returns the parameters of permessage-deflate, if it was negotiated.
    #[must_use]
    pub fn deflate(&self) -> Option<&deflate::Params> {
        self.deflate.as_ref()
    }

    /// Disables permessage-deflate. Only to be called before the first message.
    pub fn disable_deflate(&mut self) {
        self.deflate = None;
    }

    /// Takes the compressor out, so that the next message refers to no earlier one. Needed after a message that was
    /// compressed elsewhere: the peer's window has that message, so later ones must not refer back beyond it (RFC 7692
    /// 7.2.1). The returned compressor can be adopted by any connection.
    #[must_use]
    pub fn reset_compressor(&mut self) -> Contexts {
        let deflater = if self.outgoing.is_none() { self.deflater.take() } else { None };
        Contexts { deflater, ..Contexts::NONE }
    }

    /// Returns whether a message has begun to arrive and is not complete.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.incoming.is_some()
    }

    /// Sets how messages are delivered from now on, including the rest of an open message. After a switch to
    /// [`Delivery::Fragments`], the next call of [`Self::receive`] delivers the buffered part of an open message.
    pub fn set_delivery(&mut self, delivery: Delivery) {
        self.delivery = delivery;
        // Inside a frame, the buffered part is delivered at the end of the frame.
        self.pending_fragment = delivery == Delivery::Fragments
            && self.frame.is_none()
            && self.buffer.as_ref().is_some_and(|buffer| !buffer.as_slice().is_empty());
    }

    /// Records the end or the failure of the byte stream. Nothing more can be received.
    pub fn receive_eof(&mut self) {
        if self.state != State::Closed {
            self.state = self.state.after(crate::state::Transition::Failed);
        }
        self.buffer = None;
        self.incoming = None;
        self.frame = None;
    }

    /// Returns the approximate memory of the compressor and the decompressor in bytes.
    #[must_use]
    #[inline]
    pub fn contexts_size(&self) -> usize {
        match &self.deflate {
            Some(params) if self.deflater.is_some() || self.inflater.is_some() => {
                self.deflater.as_ref().map_or(0, |_| Deflater::size(params))
                    + self.inflater.as_ref().map_or(0, |inflater| inflater.size())
            }
            _ => 0,
        }
    }

    /// Takes out the compressor and the decompressor, unless they are inside a message. The window of the peer's
    /// messages stays, as the peer may refer to it. Our compressor's window may go (RFC 7692 7.1.1).
    pub fn release_contexts(&mut self) -> Contexts {
        let mut contexts = Contexts::NONE;
        if self.outgoing.is_none() {
            contexts.deflater = self.deflater.take();
        }
        if self.incoming.is_none()
            && let Some(inflater) = &mut self.inflater
        {
            contexts.inflate = inflater.release();
        }
        contexts
    }

    /// Adopts a compressor and a decompressor that another connection has released, where this one has none.
    pub fn adopt_contexts(&mut self, contexts: Contexts) {
        let Some(params) = self.deflate else { return };
        if self.deflater.is_none() && self.outgoing.is_none() {
            self.deflater = contexts.deflater.and_then(|mut deflater| deflater.renew(&params).then_some(deflater));
        }
        if let Some(stream) = contexts.inflate
            && self.incoming.is_none()
        {
            let inflater = self.inflater.get_or_insert_with(|| Box::new(Inflater::new(&params)));
            if inflater.size() == 0 {
                inflater.adopt(stream);
            }
        }
    }

    /// Returns whether compression was negotiated and there is no compressor.
    #[must_use]
    #[inline]
    pub fn lacks_compressor(&self) -> bool {
        self.deflate.is_some() && self.deflater.is_none()
    }

    /// Returns whether compression was negotiated and there is no decompressor.
    #[must_use]
    #[inline]
    pub fn lacks_decompressor(&self) -> bool {
        self.deflate.is_some() && self.inflater.as_ref().is_none_or(|inflater| inflater.size() == 0)
    }

    /// Drops the compressor and the decompressor. To be called when the connection has been idle for a while: the next
    /// message allocates new ones, and the next sent message compresses less well.
    pub fn release_idle(&mut self) {
        drop(self.release_contexts());
    }
}
