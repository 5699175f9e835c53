//! One connection after its opening handshake: what both directions share.

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

/// What the opening handshake and the application settled.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Which end this is.
    pub side: Side,
    /// Bounds on what is received.
    pub limits: Limits,
    /// The negotiated parameters of permessage-deflate, if it was negotiated.
    pub deflate: Option<deflate::Params>,
}

impl Config {
    /// Without compression, with the default limits.
    #[must_use]
    pub fn new(side: Side) -> Self {
        Self { side, limits: Limits::default(), deflate: None }
    }
}

/// How received messages are handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Whole.
    #[default]
    Messages,
    /// Frame by frame, as the peer sent them.
    Fragments,
}

/// One end of a WebSocket connection, without I/O. See the crate's documentation for the call order.
///
/// `B` is what messages are assembled in that do not lie whole in one input.
pub struct Connection<B = Vec<u8>> {
    side: Side,
    bounds: Bounds,
    deflate: Option<deflate::Params>,
    state: State,
    delivery: Delivery,
    /// What is assembled of the open message is to be handed out as a fragment.
    pending_fragment: bool,
    // Receiving.
    /// A frame header whose end has not arrived.
    head: PartialHead,
    /// The frame whose payload is arriving.
    frame: Option<FrameProgress>,
    /// The data message that is open: between its first frame and its last.
    incoming: Option<Incoming>,
    /// Where that message's bytes are. Invariant: `Some` only while `incoming` is, and not while a
    /// [`Destination`] is out.
    buffer: Option<B>,
    /// The control frame that is arriving.
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
    /// Payload bytes that have not arrived.
    remaining: u64,
}

/// A message that is being received.
#[derive(Clone, Copy)]
struct Incoming {
    kind: MessageKind,
    compressed: bool,
    /// Frames so far.
    fragments: u32,
    /// Bytes that the frame which is arriving has inflated to; no more are counted than that holds, 4 GiB.
    inflated: u32,
    /// Whether a part of this message was delivered as a fragment, be it an empty one.
    streamed: bool,
    /// Bytes of this message that were already delivered as fragments.
    delivered: usize,
    utf8: utf8::Validator,
}

/// A fragmented message that is being sent.
#[derive(Clone, Copy)]
struct Outgoing {
    compressed: bool,
    /// Of a text: what came of it so far.
    text: Option<utf8::Validator>,
}

/// Room for the rest of a large payload, taken out of the connection so that the socket can be read into it
/// directly. Give it back with [`Connection::put_destination`] before anything else is received.
pub struct Destination<B> {
    buffer: B,
    wanted: usize,
}

impl<B: PayloadBuffer> Destination<B> {
    /// The room: at least one byte, and no byte beyond the payload. Allocates nothing.
    pub fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        let wanted = self.wanted;
        let room = self.buffer.room();
        let len = room.len().min(wanted);
        room.get_mut(..len).unwrap_or_default()
    }
}

impl<B: PayloadBuffer> Connection<B> {
    /// A connection that has just been opened.
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

    /// Where the connection is in its life.
    #[must_use]
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Which end this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.side
    }

    /// What the peer did wrong, if it did.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// The close frame that arrived.
    #[must_use]
    pub fn close_received(&self) -> Option<&CloseFrame> {
        self.close_received.as_deref()
    }

    /// The close frame that was encoded for sending.
    #[must_use]
    pub fn close_sent(&self) -> Option<&CloseFrame> {
        self.close_sent.as_deref()
    }

    /// How permessage-deflate was negotiated, if it was.
    #[must_use]
    pub fn deflate(&self) -> Option<&deflate::Params> {
        self.deflate.as_ref()
    }

    /// Goes on without permessage-deflate, which was not granted after all. Before the first message.
    pub fn forgo_deflate(&mut self) {
        self.deflate = None;
    }

    /// Forgets the messages that were compressed before, after one that was compressed elsewhere: the peer's
    /// window holds that one, so what follows must not refer to those (RFC 7692 7.2.1). What is compressed
    /// next refers to nothing, which is allowed. What comes back is memory for another connection, or this.
    #[must_use]
    pub fn forget_sent(&mut self) -> Contexts {
        let deflater = if self.outgoing.is_none() { self.deflater.take() } else { None };
        Contexts { deflater, ..Contexts::NONE }
    }

    /// Whether a message has begun to arrive that is not complete.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.incoming.is_some()
    }

    /// How messages are handed out from now on. A message that has begun to arrive goes on in the new way:
    /// the fragments of it that are assembled already are the next fragment, which [`Self::receive`] has at
    /// once.
    pub fn set_delivery(&mut self, delivery: Delivery) {
        self.delivery = delivery;
        // In the middle of a frame its end comes first.
        self.pending_fragment = delivery == Delivery::Fragments
            && self.frame.is_none()
            && self.buffer.as_ref().is_some_and(|buffer| !buffer.as_slice().is_empty());
    }

    /// The end of the byte stream, or its failure: nothing more will be received.
    pub fn receive_eof(&mut self) {
        if self.state != State::Closed {
            self.state = self.state.after(crate::state::Transition::Failed);
        }
        self.buffer = None;
        self.incoming = None;
        self.frame = None;
    }

    /// Bytes, about, that the compressor and the decompressor take which are kept for the next messages.
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

    /// Gives them away, unless they are in the middle of a message. What the peer may refer to stays; what we
    /// may refer to need not (RFC 7692 7.1.1).
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

    /// Takes what another connection has released, where it would otherwise allocate the same when it next
    /// needs it.
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

    /// Whether it may compress and has nothing to do it with.
    #[must_use]
    #[inline]
    pub fn lacks_compressor(&self) -> bool {
        self.deflate.is_some() && self.deflater.is_none()
    }

    /// Whether it may have to decompress and has nothing to do it with.
    #[must_use]
    #[inline]
    pub fn lacks_decompressor(&self) -> bool {
        self.deflate.is_some() && self.inflater.as_ref().is_none_or(|inflater| inflater.size() == 0)
    }

    /// Releases what only speeds up, or shrinks, the next message: to be called when the connection has been
    /// idle for a while.
    pub fn release_idle(&mut self) {
        drop(self.release_contexts());
    }
}
