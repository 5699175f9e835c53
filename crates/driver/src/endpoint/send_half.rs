//! Encodes, encrypts and queues frames, and keeps the state of the connection: all of an
//! [`Endpoint`](super::Endpoint) except the input.

mod control;
mod sharing;

use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use wirespeed_protocol::deflate::Params;
use wirespeed_protocol::mask::{self, Key};
use wirespeed_protocol::{CloseFrame, Connection, Delivery, MessageKind, PayloadBuffer, SendError, Side, State};

use super::failure::{Closing, Failure};
use crate::buffer_pool;
use crate::compression_pool::{self, Reservation};
use crate::entropy::draw_key;
use crate::fork;
use crate::keepalive::Keepalive;
use crate::socket::{Mode, Socket};
use crate::tls::{Error, Layer};
use crate::write_queue::{Flushed, WriteQueue};

/// Unmasked and unencrypted payloads of at least this size are written directly from the caller's memory. For
/// smaller ones, copying costs less.
const ZERO_COPY_MIN: usize = 64 * 1024;

/// Counters of one connection. Bytes are payload bytes before compression.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Number of messages, or last fragments, delivered to the application.
    pub messages_received: u64,
    /// Number of payload bytes of messages and fragments received.
    pub bytes_received: u64,
    /// Number of messages encoded.
    pub messages_sent: u64,
    /// Number of payload bytes sent.
    pub bytes_sent: u64,
}

/// The progress of a large message that is sent, and masked, in pieces.
#[derive(Debug)]
pub struct LargeSend {
    key: Option<Key>,
    offset: usize,
    remaining: usize,
}

/// The state of the encryption layer.
pub(super) struct Secure {
    pub(super) layer: Box<dyn Layer>,
    /// An incomplete TLS record, or bytes that the layer refers to.
    pub(super) cipher_tail: Vec<u8>,
    /// Frames that are encrypted together when they are written.
    plain: Vec<u8>,
    /// close_notify was sent: nothing may follow it, not even an alert (RFC 8446 6.1).
    ended: bool,
}

impl Secure {
    /// Decrypts bytes of the socket. The layer's replies are queued, unless close_notify was sent.
    pub(super) fn receive(
        &mut self,
        incoming: &mut [u8],
        plain: &mut Vec<u8>,
        output: &mut WriteQueue,
    ) -> Result<usize, Error> {
        let tail = output.tail();
        let before = tail.len();
        let result = self.layer.receive(incoming, plain, tail);
        if self.ended {
            tail.truncate(before);
        }
        result
    }
}

/// The sending side of a connection, and the state that the receiving and the sending side share.
pub struct SendHalf<B = Vec<u8>> {
    pub(super) connection: Connection<B>,
    pub(super) secure: Option<Box<Secure>>,
    pub(super) output: WriteQueue,
    /// Pings and the deadline for their pongs.
    pub(crate) keepalive: Keepalive,
    /// A large frame is encoded only in part, so no other frame may be encoded.
    mid_frame: bool,
    /// A pong that must wait for the rest of a large frame, or for the peer to take queued bytes.
    deferred_pong: Option<Box<control::DeferredPong>>,
    /// A close frame that must wait for the rest of a large frame.
    deferred_close: bool,
    pub(super) received_then_sent: Option<bool>,
    failure: Option<Box<Failure>>,
    pub(super) eof: bool,
    pub(super) stats: Stats,
    /// The share of the compression budget that the connection's contexts take between messages.
    reservation: Option<Reservation>,
    /// The [`fork::generation`] of the process that this connection belongs to.
    generation: u64,
}

impl<B: PayloadBuffer> SendHalf<B> {
    pub(super) fn new(
        connection: Connection<B>,
        layer: Option<Box<dyn Layer>>,
        cipher_tail: Vec<u8>,
        keepalive: Keepalive,
    ) -> Self {
        Self {
            connection,
            secure: layer.map(|layer| Box::new(Secure { layer, cipher_tail, plain: Vec::new(), ended: false })),
            output: WriteQueue::default(),
            keepalive,
            mid_frame: false,
            deferred_pong: None,
            deferred_close: false,
            received_then_sent: None,
            failure: None,
            eof: false,
            stats: Stats::default(),
            reservation: None,
            generation: fork::generation(),
        }
    }

    /// Returns whether this is a copy in a child process. The socket is shared with the parent, whose connection
    /// continues: nothing may be written, and nothing encoded, because that would use the parent's TLS record
    /// sequence numbers. `encode` and [`Self::flush`] ensure this.
    #[must_use]
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.generation != fork::generation()
    }

    pub(super) fn set_delivery(&mut self, delivery: Delivery) {
        self.connection.set_delivery(delivery);
    }

    /// Returns the parameters of compression, if it was negotiated.
    #[must_use]
    pub fn deflate(&self) -> Option<&Params> {
        self.connection.deflate()
    }

    /// Returns whether this is the client or the server.
    #[must_use]
    pub fn side(&self) -> Side {
        self.connection.side()
    }

    /// Returns whether a message is being sent in fragments.
    #[must_use]
    pub fn is_sending_fragments(&self) -> bool {
        self.connection.is_sending_fragments()
    }

    /// Returns whether a large frame is being sent and is incomplete.
    #[must_use]
    pub fn is_mid_frame(&self) -> bool {
        self.mid_frame
    }

    /// Returns whether the reply to the peer's close frame waits for the rest of a frame that can still be sent.
    pub(super) fn has_deferred_close(&self) -> bool {
        self.deferred_close && self.mid_frame && self.failure.is_none()
    }

    /// Returns whether bytes have yet to be written that still can be: queued bytes, and the rest of a frame.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.queued() > 0 || self.mid_frame && self.failure.is_none()
    }

    /// Continues with the bytes that the opening handshake has queued and not written.
    pub(crate) fn set_output(&mut self, output: WriteQueue) {
        self.output = output;
    }

    /// Queues the response of the opening handshake, which comes before all frames.
    pub fn send_head(&mut self, head: &[u8]) {
        self.encode(|_, out| out.extend_from_slice(head));
    }

    /// Queues a message. `compress` as for [`Connection::send_message`].
    #[inline]
    pub fn send_message(&mut self, kind: MessageKind, payload: &[u8], compress: Option<bool>) -> Result<(), SendError> {
        self.check_frame()?;
        self.adopt_compressor();
        self.encode(|connection, out| connection.send_message(kind, payload, compress, draw_key, out))?;
        self.count_sent(payload.len(), true);
        Ok(())
    }

    /// Returns whether a message of `len` bytes should be sent with [`Self::begin_large`].
    #[must_use]
    #[inline]
    pub fn is_large(&self, len: usize, compress: Option<bool>) -> bool {
        let least = if self.is_zero_copy() { ZERO_COPY_MIN } else { buffer_pool::WRITE_SIZE + 1 };
        len >= least && !self.connection.wants_compression(len, compress)
    }

    /// Returns whether payloads are written unchanged: neither masked nor encrypted.
    #[must_use]
    #[inline]
    pub fn is_zero_copy(&self) -> bool {
        self.connection.side() == Side::Server && self.secure.is_none()
    }

    /// Queues the header of a large message. [`Self::append_large`] queues its payload; until it is complete, other
    /// frames wait or are refused.
    pub fn begin_large(&mut self, kind: MessageKind, len: usize) -> Result<LargeSend, SendError> {
        self.check_frame()?;
        let key = (self.connection.side() == Side::Client).then(draw_key);
        self.encode(|connection, out| {
            connection.send_message_header(kind, len, key).map(|header| out.extend_from_slice(header.as_slice()))
        })?;
        self.count_sent(len, true);
        self.mid_frame = true;
        Ok(LargeSend { key, offset: 0, remaining: len })
    }

    /// Queues the next piece of a large message. Returns whether it was the last.
    pub fn append_large(&mut self, send: &mut LargeSend, piece: &[u8]) -> bool {
        let (key, offset) = (send.key, send.offset);
        self.encode(|_, out| match key {
            Some(key) => mask::append(out, piece, key, offset),
            None => out.extend_from_slice(piece),
        });
        send.offset += piece.len();
        send.remaining -= piece.len();
        if send.remaining > 0 {
            return false;
        }
        self.mid_frame = false;
        self.send_deferred();
        true
    }

    /// Writes queued bytes, and then the rest of a large message directly from `rest`, until the kernel has no more
    /// room. Returns the number of bytes of `rest` written. Only if [`Self::is_zero_copy`] returns true; an
    /// error is recorded.
    pub(crate) fn write_large(&mut self, send: &mut LargeSend, rest: &[u8], socket: &Socket) -> usize {
        debug_assert!(self.is_zero_copy() && rest.len() == send.remaining);
        if self.is_forked() {
            self.clear_output();
            return 0;
        }
        let written = match self.output.flush_with(rest, socket) {
            Ok(written) => written,
            Err(error) => {
                self.fail_sending(error);
                return 0;
            }
        };
        send.offset += written;
        send.remaining -= written;
        if send.remaining == 0 {
            self.mid_frame = false;
            self.send_deferred();
        }
        written
    }

    /// Drops the rest of a large message of a failed connection.
    pub fn abandon_large(&mut self) {
        self.mid_frame = false;
    }

    /// Queues the first fragment of a message.
    pub fn send_first_fragment(
        &mut self,
        kind: MessageKind,
        payload: &[u8],
        compress: Option<bool>,
    ) -> Result<(), SendError> {
        self.check_frame()?;
        self.adopt_compressor();
        self.encode(|connection, out| connection.send_first_fragment(kind, payload, compress, draw_key, out))?;
        self.count_sent(payload.len(), false);
        Ok(())
    }

    /// Queues the next fragment of a message.
    pub fn send_fragment(&mut self, payload: &[u8], fin: bool) -> Result<(), SendError> {
        self.check_frame()?;
        self.encode(|connection, out| connection.send_fragment(payload, fin, draw_key, out))?;
        self.count_sent(payload.len(), fin);
        Ok(())
    }

    #[inline]
    fn count_sent(&mut self, len: usize, fin: bool) {
        self.stats.messages_sent += u64::from(fin);
        self.stats.bytes_sent += len as u64;
        if fin {
            self.limit_contexts();
        }
    }

    /// Keeps the contexts that the connection holds between messages within the compression budget.
    #[inline]
    pub(super) fn limit_contexts(&mut self) {
        let size = self.connection.contexts_size();
        if size != self.reservation.as_ref().map_or(0, Reservation::size) || size > 0 && compression_pool::is_exceeded()
        {
            self.reserve_contexts(size);
        }
    }

    #[cold]
    fn reserve_contexts(&mut self, size: usize) {
        self.reservation = None; // the new share may need the room of the old one
        self.reservation = Reservation::take(size);
        if self.reservation.is_none() && size > 0 {
            compression_pool::give(self.connection.release_contexts());
        }
    }

    /// Before compressing: takes a context that other connections have released.
    #[inline]
    fn adopt_compressor(&mut self) {
        if self.connection.lacks_compressor() {
            self.connection.adopt_contexts(compression_pool::take_compressor());
        }
    }

    /// Before decompressing: takes a context that other connections have released.
    #[inline]
    pub(super) fn adopt_decompressor(&mut self) {
        if self.connection.lacks_decompressor() {
            self.connection.adopt_contexts(compression_pool::take_decompressor());
        }
    }

    /// Runs an encoder on the write queue or, with encryption, on the buffer that is encrypted into it later.
    #[inline]
    pub(super) fn encode<R>(&mut self, encoder: impl FnOnce(&mut Connection<B>, &mut Vec<u8>) -> R) -> R {
        if self.is_forked() {
            return encoder(&mut self.connection, &mut Vec::new());
        }
        let Some(secure) = &mut self.secure else {
            let encoded = encoder(&mut self.connection, self.output.tail());
            if self.output.is_empty() {
                self.output.clear(); // the frame was refused, and no flush may follow to release the buffer
            }
            return encoded;
        };
        if secure.plain.capacity() == 0 {
            secure.plain = buffer_pool::take_write();
        }
        let encoded = encoder(&mut self.connection, &mut secure.plain);
        if secure.plain.is_empty() {
            buffer_pool::give_write(mem::take(&mut secure.plain));
        }
        encoded
    }

    /// Encrypts waiting frames; all of them share records of up to 16 KiB.
    #[inline]
    pub fn seal(&mut self) {
        if self.secure.as_ref().is_some_and(|secure| secure.plain.capacity() > 0) {
            self.seal_some();
        }
    }

    fn seal_some(&mut self) {
        let Some(secure) = &mut self.secure else { return };
        let plain = mem::take(&mut secure.plain);
        if !plain.is_empty()
            && let Err(error) = secure.layer.send(&mut secure.cipher_tail, &plain, self.output.tail())
        {
            self.record_failure(Failure::Tls(Arc::new(error)));
            self.eof = true;
        }
        buffer_pool::give_write(plain);
    }

    /// Returns the bytes of the socket that the layer has not consumed.
    pub(super) fn cipher_tail(&self) -> &[u8] {
        self.secure.as_ref().map_or(&[], |secure| &secure.cipher_tail)
    }

    /// Discards queued bytes, which will not be written.
    pub(super) fn clear_output(&mut self) {
        if let Some(secure) = &mut self.secure
            && secure.plain.capacity() > 0
        {
            buffer_pool::give_write(mem::take(&mut secure.plain));
        }
        self.output.clear();
    }

    /// Records the failure of the connection; later ones are ignored.
    pub(super) fn record_failure(&mut self, failure: Failure) {
        self.failure.get_or_insert_with(|| Box::new(failure));
    }

    /// Writes queued bytes to the socket.
    #[inline]
    pub fn flush(&mut self, socket: &Socket, mode: Mode) -> io::Result<Flushed> {
        wirespeed_protocol::failpoint::hit("driver.write");
        if self.is_forked() {
            self.clear_output();
            return Ok(Flushed::All);
        }
        self.seal();
        let mut result = self.output.flush(socket, mode);
        if self.is_pong_due() {
            self.send_deferred();
            self.seal();
            result = self.output.flush(socket, mode);
        }
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::Interrupted
        {
            let copy = error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
            self.fail_sending(copy);
        }
        result
    }

    /// Takes the queued bytes, for an external transport to write.
    #[must_use]
    pub fn take_output(&mut self) -> Vec<u8> {
        if self.is_forked() {
            self.clear_output();
        }
        self.seal();
        let mut taken = self.output.take();
        if self.deferred_pong.is_some() && !self.mid_frame {
            self.send_deferred();
            self.seal();
            taken.extend_from_slice(&self.output.take());
        }
        taken
    }

    /// Records that an external transport could not write the bytes that it took.
    pub fn handle_write_error(&mut self, error: io::Error) {
        self.fail_sending(error);
    }

    /// Records that the socket cannot be written to. Input from before, such as a close frame, can still be read.
    fn fail_sending(&mut self, error: io::Error) {
        self.record_failure(Failure::Io(Arc::new(error)));
        self.clear_output();
    }

    /// Queues the TLS close_notify alert, after which nothing may be queued.
    pub fn send_close_notify(&mut self) {
        self.seal();
        if let Some(secure) = self.secure.as_mut().filter(|_| self.generation == fork::generation()) {
            secure.layer.close(&mut secure.cipher_tail, self.output.tail());
            secure.ended = true;
        }
    }

    /// Returns the total number of bytes that the kernel has taken.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.output.written()
    }

    /// Returns the number of bytes that wait to be written.
    #[must_use]
    #[inline]
    pub fn queued(&self) -> usize {
        self.output.len() + self.secure.as_ref().map_or(0, |secure| secure.plain.len())
    }

    /// Returns the number of queued bytes in the connection's own buffers, without frames shared with other
    /// connections.
    #[must_use]
    pub fn own_queued(&self) -> usize {
        self.output.own_len() + self.secure.as_ref().map_or(0, |secure| secure.plain.len())
    }

    /// Returns the size of the buffers that hold queued bytes.
    pub(super) fn queue_capacity(&self) -> usize {
        let secure = self.secure.as_ref();
        self.output.capacity() + secure.map_or(0, |secure| secure.plain.capacity() + secure.cipher_tail.capacity())
    }

    /// Returns the protocol state of the connection.
    #[must_use]
    #[inline]
    pub fn state(&self) -> State {
        self.connection.state()
    }

    /// Returns whether the stream has ended or failed, so that reading is useless.
    #[must_use]
    #[inline]
    pub fn is_eof(&self) -> bool {
        self.eof
    }

    /// Returns why the connection ended without a complete closing handshake, or `None`.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_deref()
    }

    /// Returns the peer's close frame.
    #[must_use]
    pub fn close_received(&self) -> Option<&CloseFrame> {
        self.connection.close_received()
    }

    /// Returns our close frame.
    #[must_use]
    pub fn close_sent(&self) -> Option<&CloseFrame> {
        self.connection.close_sent()
    }

    /// Returns whether the peer's close frame came before ours was sent; `None` unless both exist.
    #[must_use]
    pub fn received_then_sent(&self) -> Option<bool> {
        self.received_then_sent.filter(|_| self.close_sent().is_some())
    }

    /// Returns both close frames and their order.
    #[must_use]
    pub fn closing(&self) -> Closing {
        Closing {
            received: self.close_received().cloned(),
            sent: self.close_sent().cloned(),
            received_then_sent: self.received_then_sent(),
        }
    }

    /// Returns whether part of a message has arrived.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.connection.is_mid_message()
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Returns the encryption layer, if there is one.
    #[must_use]
    pub fn layer(&self) -> Option<&dyn Layer> {
        self.secure.as_ref().map(|secure| &*secure.layer)
    }

    /// Releases memory that only speeds up the next message.
    pub fn release_idle(&mut self) {
        self.connection.release_idle();
        self.reservation = None; // the next message takes it again
    }

    /// Returns the keepalive: when a ping is due, and which pings are unanswered.
    #[must_use]
    pub fn keepalive(&self) -> &Keepalive {
        &self.keepalive
    }

    /// Returns the round-trip time of the last ping.
    #[must_use]
    pub fn latency(&self) -> Option<Duration> {
        self.keepalive.latency()
    }
}
