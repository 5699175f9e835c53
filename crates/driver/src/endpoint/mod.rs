//! One protocol connection joined to the bytes of one socket. It never blocks, and makes system calls only where it
//! is given a socket.
//!
//! Ownership of the buffers:
//! - `input`: plain bytes that were read and not parsed yet, taken from [`buffer_pool`]; none while the connection
//!   is idle.
//! - [`ReadOperation`]: the buffer of a read in progress. It is outside the endpoint, so a blocking read holds no
//!   lock.
//! - `cipher_tail`: an incomplete TLS record, copied to a vector of its size.
//! - `plain`: frames that are encrypted when they are written; `output`: bytes that the socket has not taken. Both
//!   hold no memory while empty.

mod failure;
mod send_half;

use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use wirespeed_protocol::{
    CloseCode, Config, Connection, Delivery, Destination, Event, Payload, PayloadBuffer, Side, State,
};

use crate::buffer_pool::{self, ReadBuffer};
use crate::entropy::draw_key;
use crate::keepalive::{AnsweredPing, Keepalive};
use crate::socket::{Mode, Socket};
use crate::tls::Layer;

pub use failure::{Closing, Failure};
pub use send_half::{LargeSend, SendHalf, Stats};

/// Payloads with at least this many missing bytes are received directly into their buffer. For smaller ones, the
/// second buffer of the system call costs more than the copy (measured: even at 8 KiB).
const DIRECT_MIN: usize = 8 * 1024;

/// After a message of this size another one is expected: the next read then takes little more than its header, and
/// the rest goes directly into the message's buffer. Below this size, copying costs less than the extra system
/// calls.
const LARGE_MESSAGE: usize = 64 * 1024;

/// Number of bytes to read of an expected large message before its header is known, and of data after one.
const HEADER_READ: usize = 4 * 1024;

/// A read in progress: outside the endpoint, so outside any lock around it.
pub struct ReadOperation<B> {
    buffer: ReadBuffer,
    /// Maximum number of bytes to read, beside those that go directly into a message.
    most: usize,
    destination: Option<Destination<B>>,
    large: bool,
    /// Number of bytes received into `destination`.
    direct: usize,
    /// Number of bytes for which the last read had room.
    offered: usize,
}

impl<B: PayloadBuffer> ReadOperation<B> {
    /// Returns whether the read may move many bytes: the rest of a large message, or a stream that filled the last
    /// buffer.
    #[must_use]
    #[inline]
    pub fn is_large(&self) -> bool {
        self.large || self.destination.is_some()
    }

    /// Returns the number of bytes of a read that filled its buffer, so that more are likely; otherwise 0.
    #[must_use]
    pub fn filled(&self, result: &io::Result<usize>) -> usize {
        result.as_ref().map_or(0, |received| if *received == self.offered { *received } else { 0 })
    }

    /// Returns whether a read with this result has emptied the socket. With edge-triggered epoll(7), the caller
    /// then waits for the next edge, and must otherwise read on.
    #[must_use]
    pub fn is_drained(&self, result: &io::Result<usize>) -> bool {
        match result {
            Ok(received) => *received > 0 && *received < self.offered,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }

    /// Reads once; returns 0 at the end of the stream.
    #[inline]
    pub fn read(&mut self, socket: &Socket, mode: Mode) -> io::Result<usize> {
        let most = self.most.min(self.buffer.capacity() - self.buffer.len());
        match &mut self.destination {
            None => {
                self.offered = most;
                socket.receive(&mut self.buffer, most, mode)
            }
            Some(destination) => {
                let room = destination.room();
                let length = room.len();
                self.offered = most + length;
                let received = socket.receive_vectored(room, &mut self.buffer, self.most, mode)?;
                self.direct = received.min(length);
                Ok(received)
            }
        }
    }
}

/// A WebSocket connection on one socket.
pub struct Endpoint<B = Vec<u8>> {
    /// The sending side and the state of the connection.
    send_half: SendHalf<B>,
    input: ReadBuffer,
    input_start: usize,
    /// [`Self::take_input`] has taken the input out; it still counts as unparsed.
    input_taken: bool,
    /// Bytes were received since [`Self::poll_event`] last returned `None`.
    has_new_input: bool,
    /// The last read filled its buffer.
    filled_buffer: bool,
    /// The last message was large and arrived uncompressed in one frame. Only such a message has a buffer to read
    /// into directly.
    expects_large: bool,
    /// Part of the arriving message was read directly into its buffer.
    read_in_place: bool,
}

impl<B: PayloadBuffer> Endpoint<B> {
    /// Creates a connection after its opening handshake. `early`: plain bytes that arrived after the handshake.
    /// `cipher_tail`: bytes of the socket that `layer` has not consumed yet.
    #[must_use]
    pub fn new(
        connection: Connection<B>,
        layer: Option<Box<dyn Layer>>,
        early: &[u8],
        cipher_tail: Vec<u8>,
        keepalive: Keepalive,
    ) -> Self {
        let mut input = ReadBuffer::default();
        if !early.is_empty() {
            input = buffer_pool::take_read();
            input.extend_from_slice(early);
        }
        Self {
            send_half: SendHalf::new(connection, layer, cipher_tail, keepalive),
            input,
            input_start: 0,
            input_taken: false,
            has_new_input: true,
            filled_buffer: false,
            expects_large: false,
            read_in_place: false,
        }
    }

    /// Creates a placeholder, already failed, for a connection held by a thread that does not exist in this
    /// process.
    #[must_use]
    pub fn placeholder(side: Side, failure: Failure) -> Self {
        let keepalive = Keepalive::new(None, None, Instant::now());
        let mut endpoint = Self::new(Connection::new(Config::new(side)), None, &[], Vec::new(), keepalive);
        endpoint.fail(failure);
        endpoint
    }

    /// Returns the sending side, which also keeps the state of the connection.
    #[must_use]
    #[inline]
    pub fn send_half(&self) -> &SendHalf<B> {
        &self.send_half
    }

    /// Returns the sending side, to queue frames.
    #[inline]
    pub fn send_half_mut(&mut self) -> &mut SendHalf<B> {
        &mut self.send_half
    }

    /// Returns the next event in the input; after `None`, read again. The answer to a ping or close frame is queued
    /// already, and [`Self::take_answered_pings`] returns the pings that a pong answers. If the peer breaks the
    /// protocol, our close frame is queued, [`SendHalf::failure`] returns the fault, and there are no more events.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event<'_, B>> {
        self.poll_event_and_send_half().0
    }

    /// Returns the next event with the [`SendHalf`], which can answer while the payload is in the read buffer.
    #[inline]
    pub fn poll_event_and_send_half(&mut self) -> (Option<Event<'_, B>>, &mut SendHalf<B>) {
        self.release_parsed();
        if !self.has_new_input {
            return (None, &mut self.send_half);
        }
        let send_half = &mut self.send_half;
        let mut slice = self.input.get_mut(self.input_start..).unwrap_or_default();
        let before = slice.len();
        send_half.adopt_decompressor();
        let result = send_half.connection.receive(&mut slice);
        send_half.limit_contexts();
        self.input_start += before - slice.len();
        let event = result.unwrap_or_else(|fault| {
            send_half.record_failure(Failure::Fault(fault));
            send_half.queue_close();
            None
        });
        match &event {
            Some(Event::Message { payload, .. }) => {
                let len = payload_len(payload);
                send_half.stats.messages_received += 1;
                send_half.stats.bytes_received += len as u64;
                let read_in_place = mem::take(&mut self.read_in_place) || matches!(payload, Payload::Slice(_));
                self.expects_large = read_in_place && len >= LARGE_MESSAGE;
            }
            Some(Event::Fragment { payload, fin, .. }) => {
                let len = payload_len(payload);
                let read_in_place = mem::take(&mut self.read_in_place) || matches!(payload, Payload::Slice(_));
                self.expects_large = read_in_place && len >= LARGE_MESSAGE;
                send_half.stats.messages_received += u64::from(*fin);
                send_half.stats.bytes_received += len as u64;
            }
            Some(Event::Ping(payload)) => send_half.queue_pong(*payload),
            Some(Event::Pong(payload)) => send_half.keepalive.handle_pong(payload.as_slice(), Instant::now()),
            Some(Event::Close(_)) => {
                if send_half.connection.close_sent().is_some() {
                    send_half.received_then_sent = Some(false);
                } else {
                    send_half.received_then_sent = Some(true);
                    send_half.queue_close();
                }
            }
            Some(_) => {}
            None => self.has_new_input = false,
        }
        (event, send_half)
    }

    /// Takes the pings of [`SendHalf::send_numbered_ping`] that were answered since the last call, oldest first.
    #[inline]
    pub fn take_answered_pings(&mut self) -> Vec<AnsweredPing> {
        self.send_half.keepalive.take_answered()
    }

    /// Releases the read buffer if all of it was parsed, for a caller that stops polling between messages.
    #[inline]
    pub fn release_parsed(&mut self) {
        if self.input_start == self.input.len() && self.input.capacity() > 0 {
            self.release_input();
        }
    }

    fn release_input(&mut self) {
        self.input_start = 0;
        self.input = ReadBuffer::default();
    }

    /// Sets how later messages are delivered.
    pub fn set_delivery(&mut self, delivery: Delivery) {
        self.send_half.set_delivery(delivery);
        self.has_new_input = true; // an assembled message may be complete now
    }

    /// Returns whether this is the client or the server.
    #[must_use]
    pub fn side(&self) -> Side {
        self.send_half.connection.side()
    }

    /// Returns whether there is input that [`Self::poll_event`] has not parsed.
    #[must_use]
    #[inline]
    pub fn has_input(&self) -> bool {
        self.input_start < self.input.len() || self.input_taken
    }

    /// Returns the number of unparsed bytes.
    #[must_use]
    #[inline]
    pub fn unparsed(&self) -> usize {
        self.input.len() - self.input_start
    }

    /// Begins a read of at most `most` bytes. Call it only when [`Self::poll_event`] has returned `None`; end the
    /// read with [`Self::complete_read`].
    #[must_use]
    #[inline]
    pub fn begin_read(&mut self, most: usize) -> ReadOperation<B> {
        self.begin_read_into(buffer_pool::take_read(), most)
    }

    /// Begins a read like [`Self::begin_read`], with a large buffer if the last read filled its own.
    #[must_use]
    #[inline]
    pub fn begin_large_read(&mut self, most: usize) -> ReadOperation<B> {
        let large = self.filled_buffer && self.send_half.secure.is_none() && most >= buffer_pool::LARGE_READ_SIZE;
        self.begin_read_into(if large { buffer_pool::take_large_read() } else { buffer_pool::take_read() }, most)
    }

    #[inline]
    fn begin_read_into(&mut self, mut buffer: ReadBuffer, most: usize) -> ReadOperation<B> {
        let mut most = most.max(buffer_pool::SMALL_READ_SIZE);
        let mut destination = None;
        if self.send_half.secure.is_none() {
            destination = self.send_half.connection.take_destination(DIRECT_MIN);
            if self.expects_large
                && destination.is_none()
                && !self.read_in_place
                && self.send_half.connection.is_mid_message()
            {
                self.expects_large = false; // it is another kind
            }
            if self.expects_large {
                most = HEADER_READ;
            }
        } else {
            // This is a copy: while the read is in progress, the layer may refer to the original in order to send.
            buffer.extend_from_slice(self.send_half.cipher_tail());
            // A read without room would look like the end of the stream, and the incomplete record may fill a small
            // buffer.
            buffer.reserve(buffer_pool::SMALL_READ_SIZE);
        }
        ReadOperation { buffer, most, destination, large: self.filled_buffer, direct: 0, offered: 0 }
    }

    /// Ends a read and takes in its result. Errors that only ask to try again change nothing.
    #[inline]
    pub fn complete_read(&mut self, read: ReadOperation<B>, result: io::Result<usize>) {
        wirespeed_protocol::failpoint::hit("driver.read");
        self.has_new_input = true;
        let ReadOperation { buffer, destination, direct, .. } = read;
        self.filled_buffer =
            buffer.len() == buffer.capacity() || self.filled_buffer && buffer.len() > buffer_pool::READ_SIZE;
        if let Some(destination) = destination {
            self.read_in_place = true;
            // SAFETY: ReadOperation::read counts in `direct` the bytes that the kernel wrote to the front of
            // the room.
            #[allow(unsafe_code)]
            let stored = unsafe { self.send_half.connection.put_destination(destination, direct) };
            if let Err(fault) = stored {
                self.send_half.record_failure(Failure::Fault(fault));
                self.send_half.queue_close();
            }
        }
        match result {
            Ok(0) => self.receive_eof(),
            Ok(_) => self.receive_bytes(buffer),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => self.fail(Failure::Io(Arc::new(error))),
        }
    }

    /// Takes bytes that an external transport has read: at least one, and less than half a read buffer.
    pub fn receive_slice(&mut self, bytes: &[u8]) {
        self.has_new_input = true;
        let mut buffer = buffer_pool::take_read();
        buffer.extend_from_slice(self.send_half.cipher_tail());
        buffer.extend_from_slice(bytes);
        self.receive_bytes(buffer);
    }

    /// Copies unparsed input to a vector of its size, because it may stay for a while.
    pub fn shrink_input(&mut self) {
        if self.unparsed() > 0 && self.input.capacity() >= buffer_pool::READ_SIZE {
            self.input = ReadBuffer::exact(self.input.get(self.input_start..).unwrap_or_default());
            self.input_start = 0;
        }
    }

    /// Takes the read buffer and the start of the unparsed input out of the endpoint, so that events stay valid
    /// while the endpoint is used. Return it with [`Self::put_input`]. Until then it counts as unparsed, so the
    /// connection does not end before it.
    #[must_use]
    pub fn take_input(&mut self) -> (ReadBuffer, usize) {
        self.input_taken = true;
        (mem::take(&mut self.input), mem::take(&mut self.input_start))
    }

    /// Returns input taken by [`Self::take_input`]; bytes that arrived meanwhile come after it.
    pub fn put_input(&mut self, (mut input, start): (ReadBuffer, usize)) {
        if !mem::take(&mut self.input_taken) || !self.send_half.connection.state().can_receive() {
            return;
        }
        self.has_new_input = true;
        if self.unparsed() > 0 {
            input.extend_from_slice(self.input.get(self.input_start..).unwrap_or_default());
        }
        self.input = input;
        self.input_start = start;
    }

    #[inline]
    fn receive_bytes(&mut self, mut buffer: ReadBuffer) {
        if self.send_half.secure.is_none() {
            return self.add_input(buffer);
        }
        let Some(secure) = &mut self.send_half.secure else { return };
        let mut plain = buffer_pool::take_read();
        let result = secure.receive(&mut buffer, &mut plain, &mut self.send_half.output);
        if self.send_half.output.is_empty() {
            self.send_half.output.clear();
        }
        let peer_closed = secure.layer.is_peer_closed();
        // Bytes decrypted before an error or the end are valid and come first.
        self.add_input(plain);
        match result {
            Ok(consumed) => self.keep_tail(&buffer, consumed),
            Err(error) => {
                self.send_half.record_failure(Failure::Tls(Arc::new(error)));
                self.send_half.eof = true;
            }
        }
        if peer_closed {
            self.send_half.eof = true;
        }
    }

    /// Adds input to be parsed, after unparsed input of an earlier read.
    #[inline]
    fn add_input(&mut self, plain: ReadBuffer) {
        if self.unparsed() > 0 {
            self.input.extend_from_slice(&plain);
        } else {
            self.input = plain;
            self.input_start = 0;
        }
    }

    /// Keeps the bytes of `buffer` that the layer did not consume, in a vector of its size.
    fn keep_tail(&mut self, buffer: &[u8], consumed: usize) {
        let Some(secure) = &mut self.send_half.secure else { return };
        if let Some(tail @ [_, ..]) = buffer.get(consumed..) {
            secure.cipher_tail = tail.to_vec();
        } else if secure.cipher_tail.capacity() > 0 {
            secure.cipher_tail = Vec::new();
        }
    }

    /// Turns compression off because the opening handshake does not grant it. Call it before the first message.
    pub fn disable_deflate(&mut self) {
        self.send_half.connection.disable_deflate();
    }

    /// Ends a connection whose opening handshake is refused. The refusing response is already queued; nothing else
    /// is sent or received.
    pub fn refuse(&mut self) {
        self.send_half.record_failure(Failure::Refused);
        self.release_input();
        self.send_half.connection.receive_eof();
    }

    /// Records the end of the stream; earlier input is parsed first.
    pub fn receive_eof(&mut self) {
        self.send_half.eof = true;
        // Without the close_notify alert of TLS, an attacker may have truncated the stream. The closing handshake
        // of the WebSocket shows whether anything is missing, so this is not an error.
    }

    /// Ends the connection if the stream has ended and all input was parsed; returns whether it did. The reply to
    /// the peer's close frame must be sent first, after the frame that is being sent: a peer may end its direction
    /// of TCP with its close frame and read on.
    pub fn poll_eof(&mut self) -> bool {
        self.release_parsed(); // after a fault, no later poll does it
        if !self.send_half.eof || self.has_input() || self.send_half.has_deferred_close() {
            return false;
        }
        if self.send_half.connection.state() != State::Closed {
            self.send_half.record_failure(Failure::Eof);
        }
        self.send_half.connection.receive_eof();
        true
    }

    /// Fails the connection: nothing can be received or sent any more.
    pub fn fail(&mut self, failure: Failure) {
        self.send_half.record_failure(failure);
        self.send_half.eof = true;
        self.send_half.clear_output();
        if !self.has_input() {
            self.send_half.connection.receive_eof();
        }
    }

    /// Returns the size of the buffers of this connection: zero while it is idle and does not compress.
    #[must_use]
    pub fn held_capacity(&self) -> usize {
        self.input.capacity() + self.send_half.queue_capacity()
    }

    /// Fails the connection after the input that was already read.
    pub fn fail_after_input(&mut self, failure: Failure) {
        self.send_half.record_failure(failure);
        self.send_half.eof = true;
    }

    /// Fails the connection like [`Self::fail`], but first queues a close frame, unless a frame is incomplete.
    pub fn fail_with_code(&mut self, failure: Failure, code: CloseCode, reason: &str) {
        self.send_half.record_failure(failure);
        let mid_frame = self.send_half.is_mid_frame();
        self.release_input();
        if mid_frame {
            self.send_half.connection.receive_eof();
        } else {
            self.send_half.encode(|connection, out| connection.send_failure(code, reason, draw_key, out));
        }
        self.send_half.eof = true;
    }
}

/// Returns the length of a payload.
pub fn payload_len<B: PayloadBuffer>(payload: &Payload<'_, B>) -> usize {
    payload.as_slice().len()
}
