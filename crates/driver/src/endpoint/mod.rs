//! One protocol connection joined to the bytes of one socket. It never blocks and makes no system call but
//! where it is handed a socket.
//!
//! Who owns which buffer:
//! - `input`: plain bytes that were read and not parsed yet, lent by [`buffers`]; none while the connection
//!   is idle.
//! - [`ReadOperation`]: the buffer of a read in flight; it is out of the peer, so that a blocking read holds
//!   no lock.
//! - `cipher_tail`: an incomplete TLS record, copied to a vector of its size.
//! - `plain`: frames that are to be encrypted when they leave; `output`: bytes that the socket has not taken.
//!   None while there are none.

mod failure;
mod send_half;

use std::io;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wirespeed_protocol::{
    CloseCode, Config, Connection, ControlPayload, Delivery, Destination, Event, MessageKind, Payload, PayloadBuffer,
    Side, State,
};

use crate::buffer_pool::{self, ReadBuffer};
use crate::entropy::draw_key;
use crate::keepalive::Keepalive;
use crate::socket::{Mode, Socket};
use crate::tls::Layer;

pub use failure::{Closing, Failure};
pub use send_half::{LargeSend, SendHalf, Stats};

/// A payload of which at least this much is missing is received straight into its buffer. Below, the second
/// buffer of the system call costs more than the copy (measured: even at 8 KiB).
const DIRECT_MIN: usize = 8 * 1024;

/// A message of this size makes another one expected: then no more is read at once than shows its header, and
/// the rest goes straight to its place. Below, the copy costs less than what the system calls would.
const LARGE_MESSAGE: usize = 64 * 1024;

/// What is read of a message that is expected to be large before its header is known, and of what comes
/// behind one.
const HEADER_READ: usize = 4 * 1024;

/// Something that arrived.
#[derive(Debug)]
pub enum PeerEvent<'a, B> {
    /// A whole message.
    Message {
        /// Text or binary.
        kind: MessageKind,
        /// All of it.
        payload: Payload<'a, B>,
    },
    /// The next fragment of a message.
    Fragment {
        /// Text or binary.
        kind: MessageKind,
        /// Its bytes.
        payload: Payload<'a, B>,
        /// The last one.
        fin: bool,
    },
    /// A ping; the pong is queued.
    Ping(ControlPayload),
    /// A pong.
    Pong {
        /// What it says.
        payload: ControlPayload,
        /// The numbers of the pings that it answers, oldest first, and how long the last of them took.
        answered: Option<(Vec<u64>, Duration)>,
    },
    /// The connection ends: the peer's close frame, with our reply queued, or a fault, with the close frame
    /// that names it queued. Nothing more will be received.
    Closing,
}

/// A read that is to be made or was made: outside the peer, so outside any lock around it.
pub struct ReadOperation<B> {
    buffer: ReadBuffer,
    /// Bytes to be read at most, beside those that go straight to their message.
    most: usize,
    destination: Option<Destination<B>>,
    large: bool,
    /// Bytes received into the destination.
    direct: usize,
    /// Bytes for which the last read had room.
    offered: usize,
}

impl<B: PayloadBuffer> ReadOperation<B> {
    /// Whether it may move much: the rest of a large message, or of a stream that has filled the last buffer.
    #[must_use]
    #[inline]
    pub fn is_large(&self) -> bool {
        self.large || self.destination.is_some()
    }

    /// The bytes of a read with this result that has filled its room: there are likely more. Else 0.
    #[must_use]
    pub fn filled(&self, result: &io::Result<usize>) -> usize {
        result.as_ref().map_or(0, |received| if *received == self.offered { *received } else { 0 })
    }

    /// Whether a read with this result has emptied the socket: who is told of edges waits for the next one
    /// then (epoll(7)), and else must read on.
    #[must_use]
    pub fn is_drained(&self, result: &io::Result<usize>) -> bool {
        match result {
            Ok(received) => *received > 0 && *received < self.offered,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }

    /// Reads once; 0: the end of the stream.
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
    pub send_half: SendHalf<B>,
    input: ReadBuffer,
    input_start: usize,
    /// [`Self::take_input`] has lent it out: it counts as here.
    input_lent: bool,
    /// Something was received since [`Self::poll_event`] last found nothing.
    fresh: bool,
    /// The last read has filled its buffer.
    flooded: bool,
    /// The last frame was large, and came as it is: only such a one, not what was compressed, nor the pieces of a
    /// message, has a place to be read to.
    expects_large: bool,
    /// Some of what is arriving was read straight to its place.
    placed: bool,
}

impl<B: PayloadBuffer> Endpoint<B> {
    /// A connection after its opening handshake. `early` are plain bytes that arrived behind it,
    /// `cipher_tail` bytes of the socket that `layer` could not consume yet.
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
            input_lent: false,
            fresh: true,
            flooded: false,
            expects_large: false,
            placed: false,
        }
    }

    /// What stands for a connection that cannot be looked at, because a thread that there is not has it: it is over.
    #[must_use]
    pub fn disowned(side: Side, failure: Failure) -> Self {
        let keepalive = Keepalive::new(None, None, Instant::now());
        let mut endpoint = Self::new(Connection::new(Config::new(side)), None, &[], Vec::new(), keepalive);
        endpoint.fail(failure);
        endpoint
    }

    /// The next event in what was read, if there is one; after `None`, read again.
    #[inline]
    pub fn poll_event(&mut self) -> Option<PeerEvent<'_, B>> {
        self.poll_event_and_send_half().0
    }

    /// As [`Self::poll_event`], with the link beside it: to answer while the event's payload still lies in
    /// the read buffer.
    #[inline]
    pub fn poll_event_and_send_half(&mut self) -> (Option<PeerEvent<'_, B>>, &mut SendHalf<B>) {
        self.release_parsed();
        if !self.fresh {
            return (None, &mut self.send_half);
        }
        let send_half = &mut self.send_half;
        let mut slice = self.input.get_mut(self.input_start..).unwrap_or_default();
        let before = slice.len();
        send_half.adopt_decompressor();
        let result = send_half.connection.receive(&mut slice);
        send_half.limit_contexts();
        self.input_start += before - slice.len();
        let event = match result {
            Ok(Some(Event::Message { kind, payload })) => {
                let len = payload_len(&payload);
                send_half.stats.messages_received += 1;
                send_half.stats.bytes_received += len as u64;
                let placed = mem::take(&mut self.placed) || matches!(payload, Payload::Slice(_));
                self.expects_large = placed && len >= LARGE_MESSAGE;
                Some(PeerEvent::Message { kind, payload })
            }
            Ok(Some(Event::Fragment { kind, payload, fin })) => {
                let len = payload_len(&payload);
                let placed = mem::take(&mut self.placed) || matches!(payload, Payload::Slice(_));
                self.expects_large = placed && len >= LARGE_MESSAGE;
                send_half.stats.messages_received += u64::from(fin);
                send_half.stats.bytes_received += len as u64;
                Some(PeerEvent::Fragment { kind, payload, fin })
            }
            Ok(Some(Event::Ping(payload))) => {
                send_half.queue_pong(payload);
                Some(PeerEvent::Ping(payload))
            }
            Ok(Some(Event::Pong(payload))) => {
                let answered = send_half.keepalive.handle_pong(payload.as_slice(), Instant::now());
                Some(PeerEvent::Pong { payload, answered })
            }
            Ok(Some(Event::Close(_))) => {
                if send_half.connection.close_sent().is_some() {
                    send_half.received_then_sent = Some(false);
                } else {
                    send_half.received_then_sent = Some(true);
                    send_half.queue_close();
                }
                Some(PeerEvent::Closing)
            }
            Ok(None | Some(_)) => {
                self.fresh = false;
                None
            }
            Err(fault) => {
                send_half.note_failure(Failure::Fault(fault));
                send_half.queue_close();
                Some(PeerEvent::Closing)
            }
        };
        (event, send_half)
    }

    /// Gives the buffer back that was read into, if everything in it was parsed. For a caller that stops
    /// polling between messages.
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

    /// How messages are handed out from now on.
    pub fn set_delivery(&mut self, delivery: Delivery) {
        self.send_half.set_delivery(delivery);
        self.fresh = true; // what is assembled may be due now
    }

    /// Which end this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.send_half.connection.side()
    }

    /// Whether bytes were read that [`Self::poll_event`] has not parsed.
    #[must_use]
    #[inline]
    pub fn has_input(&self) -> bool {
        self.input_start < self.input.len() || self.input_lent
    }

    /// How many they are.
    #[must_use]
    #[inline]
    pub fn unparsed(&self) -> usize {
        self.input.len() - self.input_start
    }

    /// Lends a buffer to a read of `most` bytes. Call only when [`Self::poll_event`] has answered `None`; end
    /// with [`Self::complete_read`].
    #[must_use]
    #[inline]
    pub fn begin_read(&mut self, most: usize) -> ReadOperation<B> {
        self.begin_read_into(buffer_pool::take_read(), most)
    }

    /// The same; the buffer is a large one if the last read has filled its own.
    #[must_use]
    #[inline]
    pub fn begin_large_read(&mut self, most: usize) -> ReadOperation<B> {
        let large = self.flooded && self.send_half.secure.is_none() && most >= buffer_pool::LARGE_READ_SIZE;
        self.begin_read_into(if large { buffer_pool::take_large_read() } else { buffer_pool::take_read() }, most)
    }

    #[inline]
    fn begin_read_into(&mut self, mut buffer: ReadBuffer, most: usize) -> ReadOperation<B> {
        let mut most = most.max(buffer_pool::SMALL_READ_SIZE);
        let mut destination = None;
        if self.send_half.secure.is_none() {
            destination = self.send_half.connection.take_destination(DIRECT_MIN);
            if self.expects_large && destination.is_none() && !self.placed && self.send_half.connection.is_mid_message()
            {
                self.expects_large = false; // it is another kind
            }
            if self.expects_large {
                most = HEADER_READ;
            }
        } else {
            // A copy: while this read is out, the layer may refer to the original in order to send.
            buffer.extend_from_slice(self.send_half.cipher_tail());
            // Nothing is read into no room, which would look like the end of the stream: the record that has begun may
            // fill a small buffer.
            buffer.reserve(buffer_pool::SMALL_READ_SIZE);
        }
        ReadOperation { buffer, most, destination, large: self.flooded, direct: 0, offered: 0 }
    }

    /// Takes a read back, whatever came of it. Of errors, those that only ask to try again change nothing.
    #[inline]
    pub fn complete_read(&mut self, read: ReadOperation<B>, result: io::Result<usize>) {
        wirespeed_protocol::failpoint::reach("driver.read");
        self.fresh = true;
        let ReadOperation { buffer, destination, direct, .. } = read;
        self.flooded = buffer.len() == buffer.capacity() || self.flooded && buffer.len() > buffer_pool::READ_SIZE;
        if let Some(destination) = destination {
            self.placed = true;
            // SAFETY: ReadOperation::read counts in `direct` the bytes that the kernel wrote to the front of
            // the room.
            #[allow(unsafe_code)]
            let placed = unsafe { self.send_half.connection.put_destination(destination, direct) };
            if let Err(fault) = placed {
                self.send_half.note_failure(Failure::Fault(fault));
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

    /// Takes bytes that somebody else has read; some, but less than half a read buffer.
    pub fn receive_slice(&mut self, bytes: &[u8]) {
        self.fresh = true;
        let mut buffer = buffer_pool::take_read();
        buffer.extend_from_slice(self.send_half.cipher_tail());
        buffer.extend_from_slice(bytes);
        self.receive_bytes(buffer);
    }

    /// Copies what was read and not parsed to a vector of its size: it may stay for a while.
    pub fn shrink_input(&mut self) {
        if self.unparsed() > 0 && self.input.capacity() >= buffer_pool::READ_SIZE {
            self.input = ReadBuffer::exact(self.input.get(self.input_start..).unwrap_or_default());
            self.input_start = 0;
        }
    }

    /// Takes what was read out of the peer, with the start of what was not parsed, so that events keep their
    /// place while the peer is used for something else. Give it back with [`Self::put_input`]; until then it
    /// counts as unparsed, so that nothing behind it ends the connection.
    #[must_use]
    pub fn take_input(&mut self) -> (ReadBuffer, usize) {
        self.input_lent = true;
        (mem::take(&mut self.input), mem::take(&mut self.input_start))
    }

    /// Takes input back that [`Self::take_input`] lent; what came meanwhile comes after it.
    pub fn put_input(&mut self, (mut input, start): (ReadBuffer, usize)) {
        if !mem::take(&mut self.input_lent) || !self.send_half.connection.state().can_receive() {
            return;
        }
        self.fresh = true;
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
        // What was decrypted before an error or the end is valid and comes first.
        self.add_input(plain);
        match result {
            Ok(consumed) => self.keep_tail(&buffer, consumed),
            Err(error) => {
                self.send_half.note_failure(Failure::Tls(Arc::new(error)));
                self.send_half.eof = true;
            }
        }
        if peer_closed {
            self.send_half.eof = true;
        }
    }

    /// What was read is to be parsed next; after what is left of an earlier read, should there be any.
    #[inline]
    fn add_input(&mut self, plain: ReadBuffer) {
        if self.unparsed() > 0 {
            self.input.extend_from_slice(&plain);
        } else {
            self.input = plain;
            self.input_start = 0;
        }
    }

    /// Keeps what the layer did not consume of `buffer`, in a vector of its size.
    fn keep_tail(&mut self, buffer: &[u8], consumed: usize) {
        let Some(secure) = &mut self.send_half.secure else { return };
        if let Some(tail @ [_, ..]) = buffer.get(consumed..) {
            secure.cipher_tail = tail.to_vec();
        } else if secure.cipher_tail.capacity() > 0 {
            secure.cipher_tail = Vec::new();
        }
    }

    /// The opening handshake does not grant compression after all. Before the first message.
    pub fn forgo_deflate(&mut self) {
        self.send_half.connection.forgo_deflate();
    }

    /// The opening handshake is refused: a response that says so was queued, and nothing else will be sent or
    /// received.
    pub fn refuse(&mut self) {
        self.send_half.note_failure(Failure::Refused);
        self.release_input();
        self.send_half.connection.receive_eof();
    }

    /// The stream has ended; what was read before is parsed first.
    pub fn receive_eof(&mut self) {
        self.send_half.eof = true;
        // Without the notice that TLS requires, the stream may have been cut by someone in between. The
        // closing handshake of the WebSocket tells whether anything is missing, so this is not an error of
        // its own.
    }

    /// The stream has ended and everything in it was handed out: the connection is over. True if this is so.
    /// Not before the peer's close frame was answered, behind the frame that is being sent: a peer may end
    /// its direction of TCP with its close frame and read on.
    pub fn poll_eof(&mut self) -> bool {
        if !self.send_half.eof || self.has_input() || self.send_half.owes_close() {
            return false;
        }
        if self.send_half.connection.state() != State::Closed {
            self.send_half.note_failure(Failure::Eof);
        }
        self.send_half.connection.receive_eof();
        true
    }

    /// Nothing can be received or sent any more.
    pub fn fail(&mut self, failure: Failure) {
        self.send_half.note_failure(failure);
        self.send_half.eof = true;
        self.send_half.clear_output();
        if !self.has_input() {
            self.send_half.connection.receive_eof();
        }
    }

    /// Bytes of the buffers that this connection holds: none while it is idle, without compression.
    #[must_use]
    pub fn held_capacity(&self) -> usize {
        self.input.capacity() + self.send_half.queue_capacity()
    }

    /// Nothing more comes after what was read: it is handed out first.
    pub fn fail_after_input(&mut self, failure: Failure) {
        self.send_half.note_failure(failure);
        self.send_half.eof = true;
    }

    /// Fails the connection as [`Self::fail`] does, but tells the peer why first, if it can still be told.
    pub fn fail_with_code(&mut self, failure: Failure, code: CloseCode, reason: &str) {
        self.send_half.note_failure(failure);
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

/// How long a payload is.
pub fn payload_len<B: PayloadBuffer>(payload: &Payload<'_, B>) -> usize {
    payload.as_slice().len()
}
