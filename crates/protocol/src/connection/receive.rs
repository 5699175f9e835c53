//! Receiving: each call consumes bytes and returns at most one event.
//!
//! All input is consumed. Bytes of an incomplete header are kept in the connection, and payload bytes are written to the
//! buffer of the message. An incomplete frame therefore needs no buffer for raw input.

use alloc::boxed::Box;
use core::mem;

use super::{Connection, Delivery, Destination, FrameProgress, Incoming};
use crate::close::CloseFrame;
use crate::deflate::codec::Inflater;
use crate::error::Fault;
use crate::event::{ControlPayload, Event, MessageKind, Payload};
use crate::frame::{Header, Opcode};
use crate::payload::PayloadBuffer;
use crate::state::Transition;
use crate::{Side, mask, utf8};

/// Maximum number of bytes that are allocated because of a frame header alone. A larger buffer grows as bytes arrive. So
/// a peer that announces a huge payload and sends nothing cannot exhaust the memory, even without limits.
const MAX_TRUSTED_CAPACITY: usize = 16 << 20;

impl<B: PayloadBuffer> Connection<B> {
    /// Consumes `input` up to the end of the next event and returns the event, or consumes all of it and returns
    /// `None`.
    ///
    /// A [`Payload::Slice`] lies in the consumed part of `input`, unmasked in place. After a close frame or a fault all
    /// input is discarded (RFC 6455 1.4, 7.1.7).
    #[inline]
    pub fn receive<'i>(&mut self, input: &mut &'i mut [u8]) -> Result<Option<Event<'i, B>>, Fault> {
        match self.receive_event(input) {
            Ok(event) => Ok(event),
            Err(fault) => {
                *input = &mut [];
                Err(self.fail(fault))
            }
        }
    }

    #[inline]
    fn receive_event<'i>(&mut self, input: &mut &'i mut [u8]) -> Result<Option<Event<'i, B>>, Fault> {
        crate::failpoint::hit("protocol.receive");
        if self.pending_fragment {
            self.pending_fragment = false;
            return self.take_fragment();
        }
        loop {
            let Some(frame) = self.frame else {
                if !self.state.can_receive() {
                    *input = &mut [];
                    return Ok(None);
                }
                let Some(header) = self.receive_header(input)? else { return Ok(None) };
                self.check_header(&header)?;
                if let Some(event) = self.receive_whole_frame(&header, input)? {
                    return Ok(Some(event));
                }
                self.begin_frame(header)?;
                continue;
            };
            if frame.remaining > 0 {
                if input.is_empty() {
                    return Ok(None);
                }
                let take = usize::try_from(frame.remaining).unwrap_or(usize::MAX).min(input.len());
                let chunk = split_front(input, take);
                if let Some(key) = frame.header.mask {
                    mask::apply(chunk, key, (frame.header.length - frame.remaining) as usize);
                }
                self.receive_payload(&frame.header, chunk)?;
                let remaining = frame.remaining - take as u64;
                self.frame = Some(FrameProgress { remaining, ..frame });
                if remaining > 0 {
                    return Ok(None);
                }
            }
            self.frame = None;
            if let Some(event) = self.end_frame(&frame.header)? {
                return Ok(Some(event));
            }
        }
    }

    /// Decodes the next header, from `input` and the kept bytes of an incomplete header.
    #[inline]
    fn receive_header(&mut self, input: &mut &mut [u8]) -> Result<Option<Header>, Fault> {
        if self.head.len == 0 {
            if let Some((header, size)) = Header::decode(input)? {
                split_front(input, size);
                return Ok(Some(header));
            }
            // An incomplete header is shorter than the longest one, so it fits.
            if let Some(kept) = self.head.bytes.get_mut(..input.len()) {
                kept.copy_from_slice(input);
                self.head.len = input.len() as u8;
            }
            *input = &mut [];
            return Ok(None);
        }
        // Byte by byte, which happens at most once per read.
        while let [byte, ..] = split_front(input, 1) {
            if let Some(place) = self.head.bytes.get_mut(usize::from(self.head.len)) {
                *place = *byte;
                self.head.len += 1;
            }
            let head = self.head.bytes.get(..usize::from(self.head.len)).unwrap_or_default();
            if let Some((header, _)) = Header::decode(head)? {
                self.head.len = 0;
                return Ok(Some(header));
            }
        }
        Ok(None)
    }

    /// Checks the rules for a header that depend on the connection and the open message.
    #[inline]
    fn check_header(&self, header: &Header) -> Result<(), Fault> {
        // RFC 6455 5.1: "a client MUST mask all frames that it sends", "A server MUST NOT mask any frames".
        match (self.side, header.mask) {
            (Side::Client, None) | (Side::Server, Some(_)) => {}
            (Side::Client, Some(_)) => return Err(Fault::MaskUnexpected),
            (Side::Server, None) => return Err(Fault::MaskMissing),
        }
        // RFC 7692 6: RSV1 is the "Per-Message Compressed" bit, set on the first frame of a message only.
        if header.rsv1 && (self.deflate.is_none() || !matches!(header.opcode, Opcode::Text | Opcode::Binary)) {
            return Err(Fault::ReservedBits(4));
        }
        if header.opcode.is_control() {
            return Ok(());
        }
        // RFC 6455 5.4: fragments of one message must not be interleaved with those of another.
        match (header.opcode, &self.incoming) {
            (Opcode::Continuation, None) => return Err(Fault::ContinuationUnexpected),
            (Opcode::Text | Opcode::Binary, Some(_)) => return Err(Fault::ContinuationExpected),
            _ => {}
        }
        let bounds = self.bounds;
        let (compressed, before) = match &self.incoming {
            Some(incoming) => {
                if incoming.fragments >= bounds.fragments {
                    return Err(Fault::TooManyFragments { limit: bounds.fragments });
                }
                (incoming.compressed, incoming.delivered + self.buffered())
            }
            None => (header.rsv1, 0),
        };
        // The size of a compressed message is checked during decompression.
        if !compressed {
            let size = (before as u64).saturating_add(header.length);
            if size > bounds.message_size as u64 {
                return Err(Fault::MessageTooBig { size: Some(size), limit: bounds.message_size });
            }
        }
        if header.length > bounds.fragment_size as u64 {
            return Err(Fault::FragmentTooBig { size: Some(header.length), limit: bounds.fragment_size });
        }
        // A 32-bit machine cannot hold a longer payload.
        if usize::try_from(header.length).is_err() {
            return Err(Fault::MessageTooBig { size: Some(header.length), limit: usize::MAX });
        }
        Ok(())
    }

    /// The fast path: delivers an uncompressed, unfragmented message in place if all of it is in `input`.
    #[inline]
    fn receive_whole_frame<'i>(
        &mut self,
        header: &Header,
        input: &mut &'i mut [u8],
    ) -> Result<Option<Event<'i, B>>, Fault> {
        let kind = match header.opcode {
            Opcode::Text => MessageKind::Text,
            Opcode::Binary => MessageKind::Binary,
            _ => return Ok(None),
        };
        if !header.fin || header.rsv1 || header.length > input.len() as u64 {
            return Ok(None);
        }
        let chunk = split_front(input, header.length as usize);
        if let Some(key) = header.mask {
            mask::apply(chunk, key, 0);
        }
        let chunk: &'i [u8] = chunk;
        if kind == MessageKind::Text {
            // RFC 6455 8.1: text that is not UTF-8 fails the connection.
            utf8::validate(chunk).map_err(|_| Fault::InvalidUtf8)?;
        }
        let payload = Payload::Slice(chunk);
        Ok(Some(match self.delivery {
            Delivery::Messages => Event::Message { kind, payload },
            Delivery::Fragments => Event::Fragment { kind, payload, fin: true },
        }))
    }

    /// Starts a frame that the fast path does not deliver.
    fn begin_frame(&mut self, header: Header) -> Result<(), Fault> {
        self.frame = Some(FrameProgress { header, remaining: header.length });
        let kind = match header.opcode {
            Opcode::Continuation => {
                if let Some(incoming) = &mut self.incoming {
                    incoming.fragments += 1;
                    incoming.inflated = 0;
                }
                return Ok(());
            }
            Opcode::Text => MessageKind::Text,
            Opcode::Binary => MessageKind::Binary,
            Opcode::Close | Opcode::Ping | Opcode::Pong => {
                self.control = Some(Box::new(ControlPayload::new()));
                return Ok(());
            }
        };
        self.incoming = Some(Incoming {
            kind,
            compressed: header.rsv1,
            fragments: 1,
            inflated: 0,
            streamed: false,
            delivered: 0,
            utf8: utf8::Validator::default(),
        });
        let expected = if header.fin && !header.rsv1 { header.length as usize } else { 0 };
        self.buffer = Some(B::with_capacity(kind, expected.min(MAX_TRUSTED_CAPACITY))?);
        Ok(())
    }

    /// Appends the next, unmasked bytes of the frame's payload to the message or the control frame.
    fn receive_payload(&mut self, header: &Header, chunk: &[u8]) -> Result<(), Fault> {
        if header.opcode.is_control() {
            if let Some(control) = &mut self.control {
                control.extend(chunk);
            }
            return Ok(());
        }
        self.with_buffer(|connection, buffer, incoming| {
            let start = buffer.as_slice().len();
            let taken = if incoming.compressed {
                connection.inflate(buffer, incoming, Some(chunk))
            } else {
                buffer.extend_from_slice(chunk).map_err(Fault::from)
            };
            // Validate the text before reporting an error of decompression: which of two faults is reported must not
            // depend on how the bytes were split. Without memory the buffer may have lost its contents.
            validate_text(incoming, buffer.as_slice().get(start..).unwrap_or_default())?;
            taken
        })
    }

    /// Ends a complete frame and returns its event, if it has one.
    fn end_frame<'i>(&mut self, header: &Header) -> Result<Option<Event<'i, B>>, Fault> {
        match header.opcode {
            Opcode::Ping => return Ok(Some(Event::Ping(self.take_control()))),
            Opcode::Pong => return Ok(Some(Event::Pong(self.take_control()))),
            Opcode::Close => return self.receive_close().map(Some),
            Opcode::Continuation | Opcode::Text | Opcode::Binary => {}
        }
        if header.fin {
            self.with_buffer(|connection, buffer, incoming| {
                if incoming.compressed {
                    let start = buffer.as_slice().len();
                    connection.inflate(buffer, incoming, None)?;
                    validate_text(incoming, buffer.as_slice().get(start..).unwrap_or_default())?;
                }
                if incoming.kind == MessageKind::Text {
                    incoming.utf8.finish().map_err(|_| Fault::InvalidUtf8)?;
                }
                Ok(())
            })?;
            let (Some(incoming), Some(buffer)) = (self.incoming.take(), self.buffer.take()) else { return Ok(None) };
            let (kind, payload) = (incoming.kind, Payload::Buffer(buffer));
            // If a part of the message was delivered as a fragment, its rest is delivered as a fragment too.
            return Ok(Some(if self.delivery == Delivery::Fragments || incoming.streamed {
                Event::Fragment { kind, payload, fin: true }
            } else {
                Event::Message { kind, payload }
            }));
        }
        if self.delivery == Delivery::Messages {
            return Ok(None);
        }
        self.take_fragment()
    }

    /// Takes the payload of the complete control frame.
    fn take_control(&mut self) -> ControlPayload {
        self.control.take().map_or_else(ControlPayload::new, |control| *control)
    }

    /// Delivers the buffered part of the open message as a fragment.
    fn take_fragment<'i>(&mut self) -> Result<Option<Event<'i, B>>, Fault> {
        let Some(incoming) = &mut self.incoming else { return Ok(None) };
        let kind = incoming.kind;
        let fresh = B::with_capacity(kind, 0)?;
        let Some(buffer) = self.buffer.replace(fresh) else { return Ok(None) };
        incoming.streamed = true;
        incoming.delivered += buffer.as_slice().len();
        Ok(Some(Event::Fragment { kind, payload: Payload::Buffer(buffer), fin: false }))
    }

    fn receive_close<'i>(&mut self) -> Result<Event<'i, B>, Fault> {
        let close = CloseFrame::decode(self.take_control().as_slice())?;
        self.state = self.state.after(Transition::CloseReceived);
        self.close_received = Some(Box::new(close.clone()));
        Ok(Event::Close(close))
    }

    /// Decompresses `chunk`, or the end of the message with `None`, within the limits. The limits do not depend on the
    /// [`Delivery`].
    fn inflate(&mut self, buffer: &mut B, incoming: &mut Incoming, chunk: Option<&[u8]>) -> Result<(), Fault> {
        crate::failpoint::hit("protocol.inflate");
        let Some(params) = self.deflate else { return Err(Fault::ReservedBits(4)) };
        let bounds = self.bounds;
        let start = buffer.as_slice().len();
        // Both limits are lengths of the buffer.
        let message_limit = bounds.message_size.saturating_sub(incoming.delivered);
        let fragment_limit = start.saturating_add(bounds.fragment_size.saturating_sub(incoming.inflated as usize));
        let limit = message_limit.min(fragment_limit);
        let inflater = self.inflater.get_or_insert_with(|| Box::new(Inflater::new(&params)));
        match chunk {
            Some(chunk) => inflater.inflate(chunk, buffer, limit)?,
            None => inflater.finish(buffer, limit)?,
        }
        let len = buffer.as_slice().len();
        incoming.inflated = incoming.inflated.saturating_add(u32::try_from(len - start).unwrap_or(u32::MAX));
        if len > limit {
            return Err(if message_limit <= fragment_limit {
                Fault::MessageTooBig { size: None, limit: bounds.message_size }
            } else {
                Fault::FragmentTooBig { size: None, limit: bounds.fragment_size }
            });
        }
        Ok(())
    }

    /// Calls `f` with the open message and its buffer, which are out of the connection meanwhile.
    fn with_buffer(
        &mut self,
        f: impl FnOnce(&mut Self, &mut B, &mut Incoming) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let (Some(mut incoming), Some(mut buffer)) = (self.incoming.take(), self.buffer.take()) else { return Ok(()) };
        f(self, &mut buffer, &mut incoming)?;
        self.incoming = Some(incoming);
        self.buffer = Some(buffer);
        Ok(())
    }

    fn buffered(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.as_slice().len())
    }

    /// Fails the connection. Returns the first fault.
    fn fail(&mut self, fault: Fault) -> Fault {
        self.receive_eof();
        *self.fault.get_or_insert(fault)
    }

    /// Takes out the buffer of the payload that is arriving, if it is not compressed and at least `minimum` bytes are
    /// missing. The caller reads the socket into it and returns it with [`Self::put_destination`].
    #[inline]
    pub fn take_destination(&mut self, minimum: usize) -> Option<Destination<B>> {
        let frame = self.frame.as_ref()?;
        // A complete payload that was not delivered yet needs no more room.
        if frame.remaining < minimum.max(1) as u64 || frame.header.opcode.is_control() || self.incoming?.compressed {
            return None;
        }
        let wanted = frame.remaining as usize;
        let buffer = self.buffer.as_mut()?;
        // The buffer of a frame larger than the trusted size grows as the bytes arrive.
        let len = buffer.as_slice().len();
        if buffer.room().is_empty() && buffer.spare(wanted.min(len.max(MAX_TRUSTED_CAPACITY))).is_err() {
            return None; // then the bytes go through `receive`, which returns the error
        }
        self.buffer.take().map(|buffer| Destination { buffer, wanted })
    }

    /// Returns the buffer from [`Self::take_destination`], with `written` bytes of its room filled. If the frame is
    /// complete, the next call of [`Self::receive`] returns its event; the input may be empty.
    ///
    /// # Safety
    ///
    /// The first `written` bytes of [`Destination::room`] are initialised, and `written` is at most its length.
    #[allow(unsafe_code)] // the counterpart of PayloadBuffer::advance
    pub unsafe fn put_destination(&mut self, mut destination: Destination<B>, written: usize) -> Result<(), Fault> {
        let start = destination.buffer.as_slice().len();
        // SAFETY: the caller guarantees it.
        unsafe { destination.buffer.advance(written) };
        let (Some(frame), Some(incoming)) = (&mut self.frame, &mut self.incoming) else {
            return Ok(()); // the connection has failed meanwhile: the bytes are discarded
        };
        let offset = (frame.header.length - frame.remaining) as usize;
        frame.remaining -= written as u64;
        if let Some(key) = frame.header.mask {
            mask::apply(destination.buffer.as_mut_slice().get_mut(start..).unwrap_or_default(), key, offset);
        }
        let valid = validate_text(incoming, destination.buffer.as_slice().get(start..).unwrap_or_default());
        self.buffer = Some(destination.buffer);
        valid.map_err(|fault| self.fail(fault))
    }
}

/// Validates the next bytes of a text message (RFC 6455 8.1), as soon as they arrive.
fn validate_text(incoming: &mut Incoming, bytes: &[u8]) -> Result<(), Fault> {
    match incoming.kind {
        MessageKind::Text => incoming.utf8.feed(bytes).map_err(|_| Fault::InvalidUtf8),
        MessageKind::Binary => Ok(()),
    }
}

/// Splits `len` bytes off the front of `input`, or all of it if it is shorter.
#[inline]
fn split_front<'i>(input: &mut &'i mut [u8], len: usize) -> &'i mut [u8] {
    let whole = mem::take(input);
    let (front, rest) = whole.split_at_mut(len.min(whole.len()));
    *input = rest;
    front
}
