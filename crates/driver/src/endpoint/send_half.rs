//! Sending, and what a connection remembers: the half of a [`Endpoint`](super::Peer) that does not hold bytes
//! that were read.

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
use crate::compression_pool::{self, Context};
use crate::entropy::draw_key;
use crate::fork;
use crate::keepalive::Keepalive;
use crate::socket::{Mode, Socket};
use crate::tls::{Error, Layer};
use crate::write_queue::{Flushed, WriteQueue};

/// What leaves as it is is written from where it lies if it is at least this much: below, the copy costs less
/// than to keep track of it.
const BARE_MIN: usize = 64 * 1024;

/// Counters of one connection. Bytes are those of payloads, before compression.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Messages, or last fragments, handed to the application.
    pub messages_received: u64,
    /// Payload bytes of messages and fragments.
    pub bytes_received: u64,
    /// Messages encoded.
    pub messages_sent: u64,
    /// Their payload bytes.
    pub bytes_sent: u64,
}

/// A message that is sent in pieces because it is large: its payload is masked piece by piece.
#[derive(Debug)]
pub struct LargeSend {
    key: Option<Key>,
    offset: usize,
    remaining: usize,
}

/// What encryption needs.
pub(super) struct Secure {
    pub(super) layer: Box<dyn Layer>,
    /// An incomplete TLS record, or what the layer refers to.
    pub(super) cipher_tail: Vec<u8>,
    /// Frames that are to be encrypted, with what follows them, when they leave.
    plain: Vec<u8>,
    /// That nothing more will be sent was said: RFC 8446 6.1 lets nothing follow, no alert either.
    ended: bool,
}

impl Secure {
    /// Takes what came from the socket; what the layer answers is written, unless our direction is over.
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

/// Everything of a connection but the bytes that were read: what the receiving and the sending side share.
pub struct SendHalf<B = Vec<u8>> {
    pub(super) connection: Connection<B>,
    pub(super) secure: Option<Box<Secure>>,
    pub(super) output: WriteQueue,
    /// Pings and the deadline for their pongs.
    pub keepalive: Keepalive,
    /// Part of a large frame was encoded: nothing else may be until its rest is.
    mid_frame: bool,
    /// A pong that must wait: for the rest of a large frame or for the peer to take what is queued.
    deferred_pong: Option<Box<control::DeferredPong>>,
    /// A close frame that must wait for the rest of a large frame.
    deferred_close: bool,
    pub(super) received_then_sent: Option<bool>,
    failure: Option<Box<Failure>>,
    pub(super) eof: bool,
    pub(super) stats: Stats,
    /// For what the connection keeps from one message to the next.
    context: Option<Context>,
    /// The process that this connection belongs to, as [`entropy::forks`] counts them.
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
            context: None,
            generation: fork::generation(),
        }
    }

    /// Whether this is a copy in a child process. The socket is shared with the parent, whose connection goes
    /// on: nothing may be encoded, which would use the parent's place in the sequence of TLS records, nor
    /// written. [`Self::encode`] and [`Self::flush`] see to it.
    #[must_use]
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.generation != fork::generation()
    }

    pub(super) fn set_delivery(&mut self, delivery: Delivery) {
        self.connection.set_delivery(delivery);
    }

    /// How messages are compressed, if they are.
    #[must_use]
    pub fn deflate(&self) -> Option<&Params> {
        self.connection.deflate()
    }

    /// Which end this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.connection.side()
    }

    /// Whether a message is being sent in fragments.
    #[must_use]
    pub fn is_sending_fragments(&self) -> bool {
        self.connection.is_sending_fragments()
    }

    /// Whether the middle of a large frame is being sent.
    #[must_use]
    pub fn is_mid_frame(&self) -> bool {
        self.mid_frame
    }

    /// Whether the answer to the peer's close frame waits for the rest of a frame, which can still be sent.
    pub(super) fn owes_close(&self) -> bool {
        self.deferred_close && self.mid_frame && self.failure.is_none()
    }

    /// Whether something has yet to be written that still can be: what is queued, and the rest of a frame.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.queued() > 0 || self.mid_frame && self.failure.is_none()
    }

    /// Goes on with what an opening has queued and not written.
    pub(crate) fn adopt_output(&mut self, output: WriteQueue) {
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

    /// Whether a message of `len` bytes is better sent by [`Self::begin_large`].
    #[must_use]
    #[inline]
    pub fn is_large(&self, len: usize, compress: Option<bool>) -> bool {
        let least = if self.is_bare() { BARE_MIN } else { buffer_pool::WRITE_SIZE + 1 };
        len >= least && !self.connection.wants_compression(len, compress)
    }

    /// Whether payloads leave as they are: neither masked nor encrypted.
    #[must_use]
    #[inline]
    pub fn is_bare(&self) -> bool {
        self.connection.side() == Side::Server && self.secure.is_none()
    }

    /// Queues the header of a large message; its payload follows by [`Self::append_large`]. Until all of it
    /// has, every other frame waits or is refused.
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

    /// Queues the next piece of a large message; true: it was the last.
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

    /// Writes what is queued, and then the rest of a large message from where it lies, as far as the kernel
    /// takes it; how much that was. Only if the link [is bare](Self::is_bare). An error is kept.
    pub(crate) fn write_large(&mut self, send: &mut LargeSend, rest: &[u8], socket: &Socket) -> usize {
        debug_assert!(self.is_bare() && rest.len() == send.remaining);
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

    /// Forgets the rest of a large message: the connection has failed, nothing can be sent any more.
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

    /// Sees to it that what the connection keeps between messages is within the budget.
    #[inline]
    pub(super) fn limit_contexts(&mut self) {
        let size = self.connection.contexts_size();
        if size != self.context.as_ref().map_or(0, Context::size) || size > 0 && compression_pool::is_exceeded() {
            self.take_context(size);
        }
    }

    #[cold]
    fn take_context(&mut self, size: usize) {
        self.context = None; // what is given back may be what is taken
        self.context = Context::take(size);
        if self.context.is_none() && size > 0 {
            compression_pool::give(self.connection.release_contexts());
        }
    }

    /// Before what may compress: takes what others have released.
    #[inline]
    fn adopt_compressor(&mut self) {
        if self.connection.lacks_compressor() {
            self.connection.adopt_contexts(compression_pool::take_compressor());
        }
    }

    /// Before what may decompress: the same.
    #[inline]
    pub(super) fn adopt_decompressor(&mut self) {
        if self.connection.lacks_decompressor() {
            self.connection.adopt_contexts(compression_pool::take_decompressor());
        }
    }

    /// Runs an encoder against the queue, or against what is encrypted into the queue when it leaves.
    #[inline]
    pub(super) fn encode<R>(&mut self, encoder: impl FnOnce(&mut Connection<B>, &mut Vec<u8>) -> R) -> R {
        if self.is_forked() {
            return encoder(&mut self.connection, &mut Vec::new());
        }
        let Some(secure) = &mut self.secure else {
            let encoded = encoder(&mut self.connection, self.output.tail());
            if self.output.is_empty() {
                self.output.clear(); // it was refused, and nobody may ever flush again
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

    /// Encrypts what is to be: all frames that wait share the records, of up to 16 KiB each.
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
            self.note_failure(Failure::Tls(Arc::new(error)));
            self.eof = true;
        }
        buffer_pool::give_write(plain);
    }

    /// Bytes of the socket that the layer has yet to consume.
    pub(super) fn cipher_tail(&self) -> &[u8] {
        self.secure.as_ref().map_or(&[], |secure| &secure.cipher_tail)
    }

    /// Forgets what waits: nobody will write it.
    pub(super) fn clear_output(&mut self) {
        if let Some(secure) = &mut self.secure
            && secure.plain.capacity() > 0
        {
            buffer_pool::give_write(mem::take(&mut secure.plain));
        }
        self.output.clear();
    }

    /// Why it ended; the first reason counts.
    pub(super) fn note_failure(&mut self, failure: Failure) {
        self.failure.get_or_insert_with(|| Box::new(failure));
    }

    /// Hands queued bytes to the kernel.
    #[inline]
    pub fn flush(&mut self, socket: &Socket, mode: Mode) -> io::Result<Flushed> {
        wirespeed_protocol::failpoint::reach("driver.write");
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

    /// Takes what is queued out, for somebody else to write.
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

    /// Why the bytes that were taken out could not be written.
    pub fn handle_write_error(&mut self, error: io::Error) {
        self.fail_sending(error);
    }

    /// The socket takes nothing any more. What the peer sent before, its close frame with the reason perhaps,
    /// can still be read.
    fn fail_sending(&mut self, error: io::Error) {
        self.note_failure(Failure::Io(Arc::new(error)));
        self.clear_output();
    }

    /// Says at the TLS layer that nothing more will be sent. The last thing to be queued.
    pub fn send_close_notify(&mut self) {
        self.seal();
        if let Some(secure) = self.secure.as_mut().filter(|_| self.generation == fork::generation()) {
            secure.layer.close(&mut secure.cipher_tail, self.output.tail());
            secure.ended = true;
        }
    }

    /// All bytes that the kernel has taken.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.output.written()
    }

    /// Bytes that wait to be written.
    #[must_use]
    #[inline]
    pub fn queued(&self) -> usize {
        self.output.len() + self.secure.as_ref().map_or(0, |secure| secure.plain.len())
    }

    /// Of those, how many are this connection's own: the rest are in frames that are shared.
    #[must_use]
    pub fn own_queued(&self) -> usize {
        self.output.own_len() + self.secure.as_ref().map_or(0, |secure| secure.plain.len())
    }

    /// Bytes of the buffers that hold them.
    pub(super) fn queue_capacity(&self) -> usize {
        let secure = self.secure.as_ref();
        self.output.capacity() + secure.map_or(0, |secure| secure.plain.capacity() + secure.cipher_tail.capacity())
    }

    /// Where the connection is in its life.
    #[must_use]
    #[inline]
    pub fn state(&self) -> State {
        self.connection.state()
    }

    /// Whether the stream has ended or failed: reading again is of no use.
    #[must_use]
    #[inline]
    pub fn is_eof(&self) -> bool {
        self.eof
    }

    /// Why the connection ended, if not by two close frames.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_deref()
    }

    /// The close frame that arrived.
    #[must_use]
    pub fn close_received(&self) -> Option<&CloseFrame> {
        self.connection.close_received()
    }

    /// The close frame that was sent.
    #[must_use]
    pub fn close_sent(&self) -> Option<&CloseFrame> {
        self.connection.close_sent()
    }

    /// Whether the peer's close frame came before ours was sent; `None` unless both exist.
    #[must_use]
    pub fn received_then_sent(&self) -> Option<bool> {
        self.received_then_sent.filter(|_| self.close_sent().is_some())
    }

    /// All of that.
    #[must_use]
    pub fn closing(&self) -> Closing {
        Closing {
            received: self.close_received().cloned(),
            sent: self.close_sent().cloned(),
            received_then_sent: self.received_then_sent(),
        }
    }

    /// Whether a message has begun to arrive.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.connection.is_mid_message()
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The layer between this connection and the socket, if there is one.
    #[must_use]
    pub fn layer(&self) -> Option<&dyn Layer> {
        self.secure.as_ref().map(|secure| &*secure.layer)
    }

    /// Releases what only speeds up the next message.
    pub fn release_idle(&mut self) {
        self.connection.release_idle();
        self.context = None; // or has it again with the next message
    }

    /// The latency that the last pong showed.
    #[must_use]
    pub fn latency(&self) -> Option<Duration> {
        self.keepalive.latency()
    }
}
