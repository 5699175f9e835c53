//! Moves the bytes of one connection, closes it and keeps it alive. It never blocks; callers pass the time.

mod deadline;

use std::borrow::Borrow;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wirespeed_protocol::{CloseCode, Event, PayloadBuffer, SendError, Side, State};

use super::Sender;
use crate::endpoint::{Endpoint, Failure, LargeSend, ReadOperation, SendHalf};
use crate::keepalive::{Silence, Span};
use crate::socket::{Mode, Socket};
use crate::write_queue::Flushed;

pub use deadline::Reading;

/// The source and destination of the bytes.
enum Stream<S> {
    Socket(S),
    /// An external transport reads and writes.
    External,
    /// TCP is over; the socket stays open until no caller polls its file descriptor.
    Ended(S),
    /// TCP is over.
    Over,
}

impl<S: Borrow<Socket>> Stream<S> {
    #[inline]
    fn socket(&self) -> Option<&Socket> {
        match self {
            Self::Socket(socket) => Some(socket.borrow()),
            _ => None,
        }
    }
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The connection is open.
    Open,
    /// The closing handshake, or the end of TCP, is under way.
    Closing,
    /// The connection is over: nothing is read or written any more.
    Over,
}

/// One connection, on its socket `S` or on an external transport, which reads and writes the bytes.
///
/// The order of calls:
/// 1. After input ([`Self::read`] and the other `read_*` methods, or [`Self::receive`]), take events from
///    [`Self::poll_event`] until it returns `None`, then call [`Self::advance`].
/// 2. After queueing output, call [`Self::flush`]. With an external transport, write the bytes of
///    [`Self::take_output`], and end our direction of TCP if [`Self::take_shutdown_due`] returns true.
/// 3. At [`Self::deadline`], call [`Self::handle_deadline`], then flush and advance.
///
/// When [`Self::advance`] returns [`Progress::Over`], drop the socket that [`Self::take_ended`] returns.
pub struct ConnectionDriver<B, S = Socket> {
    /// Parses input and queues output.
    endpoint: Endpoint<B>,
    stream: Stream<S>,
    close_timeout: Span,
    /// When waiting for the end of TCP stops; `None`: closing has not begun; `Some(None)`: no limit.
    close_deadline: Option<Option<Instant>>,
    /// Number of bytes that may still be read; limited only for a refused peer.
    read_limit: u64,
    /// The TLS close_notify alert was sent.
    close_notify_sent: bool,
    /// The external transport last reported bytes that the kernel has not taken.
    transport_buffered: bool,
    /// Our direction of TCP was ended.
    write_ended: bool,
    /// The external transport has yet to end our direction of TCP.
    shutdown_due: bool,
    /// Reading was paused since our last ping, so a late pong is not the peer's fault.
    was_paused: bool,
    /// A ping is due but waits for the rest of a frame; this measures the peer's silence meanwhile.
    unsent_ping: Option<Box<Silence>>,
}

impl<B: PayloadBuffer, S: Borrow<Socket>> ConnectionDriver<B, S> {
    /// Joins an endpoint to its socket, in either mode, or with `None` to an external transport.
    #[must_use]
    pub fn new(endpoint: Endpoint<B>, socket: Option<S>, close_timeout: Option<Duration>) -> Self {
        Self {
            endpoint,
            stream: socket.map_or(Stream::External, Stream::Socket),
            close_timeout: close_timeout.into(),
            close_deadline: None,
            read_limit: u64::MAX,
            close_notify_sent: false,
            transport_buffered: false,
            write_ended: false,
            shutdown_due: false,
            was_paused: false,
            unsent_ping: None,
        }
    }

    /// Creates a placeholder, already over, for a connection held by a thread that no longer exists.
    #[must_use]
    pub fn placeholder(side: Side, failure: Failure) -> Self {
        let mut conn = Self::new(Endpoint::placeholder(side, failure.clone()), None, None);
        conn.end(failure);
        conn
    }

    /// Returns the endpoint, which parses input and queues output.
    #[must_use]
    #[inline]
    pub fn endpoint(&self) -> &Endpoint<B> {
        &self.endpoint
    }

    /// Returns the endpoint, to change what it parses and queues.
    #[inline]
    pub fn endpoint_mut(&mut self) -> &mut Endpoint<B> {
        &mut self.endpoint
    }

    /// Returns the sending side, which also keeps the state of the connection.
    #[must_use]
    #[inline]
    pub fn send_half(&self) -> &SendHalf<B> {
        self.endpoint.send_half()
    }

    /// Returns the sending side, to send.
    #[inline]
    pub fn send_half_mut(&mut self) -> &mut SendHalf<B> {
        self.endpoint.send_half_mut()
    }

    /// Returns the socket, unless an external transport is used or TCP is over.
    #[must_use]
    #[inline]
    pub fn socket(&self) -> Option<&S> {
        match &self.stream {
            Stream::Socket(socket) => Some(socket),
            _ => None,
        }
    }

    /// Returns whether TCP is over.
    #[must_use]
    #[inline]
    pub fn is_over(&self) -> bool {
        matches!(self.stream, Stream::Over | Stream::Ended(_))
    }

    // ---- receiving ----

    /// Reads once from the socket, at most `most` bytes that are kept until they are parsed. `wanted`: a
    /// receiver waits, so the read may be large. Returns false if nothing was there.
    pub fn read(&mut self, wanted: bool, most: usize) -> bool {
        self.read_by(wanted, most, |operation, socket| operation.read(socket, Mode::NonBlocking))
    }

    /// Reads like [`Self::read`], but the function `read` makes the system call.
    #[inline]
    pub fn read_by(
        &mut self,
        wanted: bool,
        most: usize,
        read: impl FnOnce(&mut ReadOperation<B>, &Socket) -> io::Result<usize>,
    ) -> bool {
        let Stream::Socket(socket) = &self.stream else { return false };
        let mut operation = if wanted { self.endpoint.begin_large_read(most) } else { self.endpoint.begin_read(most) };
        let result = read(&mut operation, socket.borrow());
        let came = !matches!(&result, Err(error) if is_transient(error));
        self.complete_read(operation, result);
        came
    }

    /// Takes in the result of a read made elsewhere: see [`Endpoint::complete_read`].
    #[inline]
    pub fn complete_read(&mut self, operation: ReadOperation<B>, result: io::Result<usize>) {
        if let Ok(read) = result {
            self.count_read(read);
        }
        self.endpoint.complete_read(operation, result);
    }

    #[inline]
    fn count_read(&mut self, read: usize) {
        self.read_limit = self.read_limit.saturating_sub(read as u64);
    }

    /// Reads once after an edge of an edge-triggered epoll(7). Returns true if nothing is left until the next
    /// edge. `closed`: an edge has reported that the peer ended its direction; it was the last edge.
    #[inline]
    pub fn read_edge(&mut self, closed: bool) -> bool {
        self.read_edge_of(usize::MAX, closed)
    }

    /// Reads like [`Self::read_edge`], at most `most` bytes.
    #[inline]
    pub fn read_edge_of(&mut self, most: usize, closed: bool) -> bool {
        let mut drained = true;
        self.read_by(false, most, |operation, socket| {
            let result = operation.read(socket, Mode::NonBlocking);
            drained = operation.is_drained(&result) && !(closed && result.is_ok());
            result
        });
        drained || self.endpoint.send_half().is_eof()
    }

    /// Takes bytes that an external transport has read.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.count_read(bytes.len());
        // Input is split: pieces larger than the read buffer do not fit the pooled buffers.
        for piece in bytes.chunks(crate::buffer_pool::READ_SIZE / 2) {
            self.endpoint.receive_slice(piece);
        }
    }

    /// Records that an external transport has read the end of the stream, or has failed to read.
    pub fn receive_end(&mut self, error: Option<io::Error>) {
        match error {
            None => self.endpoint.receive_eof(),
            Some(error) => self.endpoint.fail_after_input(Failure::Io(Arc::new(error))),
        }
    }

    /// Returns the next event in the input.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event<'_, B>> {
        self.endpoint.poll_event()
    }

    /// Returns the next event with a [`Sender`], which can answer while the payload is in the read buffer.
    #[inline]
    pub fn poll_event_and_sender(&mut self) -> (Option<Event<'_, B>>, Sender<'_, B>) {
        let socket = self.stream.socket();
        let (event, send_half) = self.endpoint.poll_event_and_send_half();
        (event, Sender { send_half, socket })
    }

    // ---- sending ----

    /// Returns a [`Sender`] for this connection.
    #[inline]
    pub fn sender(&mut self) -> Sender<'_, B> {
        Sender { send_half: self.endpoint.send_half_mut(), socket: self.stream.socket() }
    }

    /// Writes queued bytes until the kernel has no more room. The [`SendHalf`] records an error too. Does nothing
    /// with an external transport.
    #[inline]
    pub fn flush(&mut self) -> io::Result<Flushed> {
        self.sender().write_queued()
    }

    /// Writes queued bytes and then the rest of a large message directly from `rest`, until the kernel has no
    /// more room. Returns the number of bytes of `rest` written. `None`: the caller must queue pieces with
    /// [`SendHalf::append_large`], because they are masked or encrypted or an external transport writes.
    ///
    /// [`SendHalf::append_large`]: crate::endpoint::SendHalf::append_large
    pub fn write_large(&mut self, send: &mut LargeSend, rest: &[u8]) -> Option<usize> {
        let Stream::Socket(socket) = &self.stream else { return None };
        self.endpoint
            .send_half()
            .is_zero_copy()
            .then(|| self.endpoint.send_half_mut().write_large(send, rest, socket.borrow()))
    }

    /// Takes the queued bytes, for an external transport to write.
    #[must_use]
    pub fn take_output(&mut self) -> Vec<u8> {
        self.endpoint.send_half_mut().take_output()
    }

    /// Returns whether the connection is closing on an external transport. [`Self::advance`] then needs
    /// [`Self::set_transport_buffered`] to know whether everything is written.
    #[must_use]
    #[inline]
    pub fn is_closing_externally(&self) -> bool {
        matches!(self.stream, Stream::External)
            && (self.close_deadline.is_some() || self.is_closing() || self.endpoint.send_half().is_eof())
    }

    /// Records whether the external transport has bytes that the kernel has not taken.
    pub fn set_transport_buffered(&mut self, transport_buffered: bool) {
        self.transport_buffered = transport_buffered;
    }

    /// Returns whether bytes of ours have yet to reach the kernel.
    fn is_unwritten(&self) -> bool {
        self.transport_buffered || self.endpoint.send_half().is_unwritten()
    }

    /// Begins the closing handshake (RFC 6455 7.1.2) unless it has begun. The caller flushes.
    pub fn begin_close(&mut self, code: Option<CloseCode>, reason: &str, now: Instant) -> Result<(), SendError> {
        if self.is_over() {
            return Ok(());
        }
        if self.endpoint.send_half().state() == State::Open {
            self.endpoint.send_half_mut().send_close(code, reason)?;
        }
        self.start_close_deadline(now);
        Ok(())
    }

    /// Returns the close timeout; `None` for no limit.
    #[must_use]
    pub fn close_timeout(&self) -> Option<Duration> {
        self.close_timeout.get()
    }

    /// Sets the timeout of a closing handshake that begins later.
    pub fn set_close_timeout(&mut self, timeout: Option<Duration>) {
        self.close_timeout = timeout.into();
    }

    /// Starts the close timeout before the closing handshake can begin. Returns when it expires.
    pub fn start_close_timeout(&mut self, now: Instant) -> Option<Instant> {
        self.start_close_deadline(now)
    }

    /// Sets the end of the close timeout, unless one with an end is running.
    pub fn limit_close_deadline(&mut self, by: Option<Instant>) {
        self.close_deadline = Some(self.close_deadline.flatten().or(by));
    }

    /// Limits further input of a refused peer, which may send without end. At the limit the connection is over.
    pub fn limit_reading(&mut self, bytes: u64) {
        self.read_limit = bytes;
    }

    /// Returns whether the close timeout is running.
    #[must_use]
    pub fn is_close_timeout_running(&self) -> bool {
        self.close_deadline.is_some()
    }

    fn start_close_deadline(&mut self, now: Instant) -> Option<Instant> {
        let by = self.close_timeout.get().and_then(|timeout| now.checked_add(timeout));
        *self.close_deadline.get_or_insert(by)
    }

    // ---- ending ----

    /// Returns whether the application can no longer send.
    #[must_use]
    #[inline]
    pub fn is_closing(&self) -> bool {
        !self.endpoint.send_half().state().can_send() || self.endpoint.send_half().failure().is_some() || self.is_over()
    }

    /// Advances the closing handshake if a step is due. Call it when [`Self::poll_event`] returns `None`.
    #[inline]
    pub fn advance(&mut self, now: impl FnOnce() -> Instant) -> Progress {
        let send_half = self.endpoint.send_half();
        let open = send_half.state() == State::Open && !send_half.is_eof() && send_half.failure().is_none();
        if open && self.close_deadline.is_none() && !self.is_over() {
            return Progress::Open;
        }
        self.advance_closing(now())
    }

    /// Flushes and advances the closing handshake until no step queues more bytes.
    #[inline]
    pub fn flush_and_advance(&mut self, now: impl Fn() -> Instant) -> (Flushed, Progress) {
        loop {
            let flushed = self.flush().unwrap_or(Flushed::All);
            let left = self.endpoint.send_half().queued();
            let progress = self.advance(&now);
            if progress == Progress::Open || self.endpoint.send_half().queued() == left {
                return (flushed, progress);
            }
        }
    }

    fn advance_closing(&mut self, now: Instant) -> Progress {
        wirespeed_protocol::failpoint::hit("driver.closing");
        if self.is_over() {
            return Progress::Over;
        }
        self.endpoint.poll_eof();
        let deadline = self.start_close_deadline(now);
        if deadline.is_some_and(|deadline| deadline <= now) {
            return self.end(Failure::CloseTimeout);
        }
        if self.read_limit == 0 {
            return self.end(Failure::Aborted);
        }
        // Input before the end of the stream is parsed first: a close frame in it must be answered.
        let more = !self.endpoint.send_half().is_eof()
            || self.endpoint.has_input() && self.endpoint.send_half().failure().is_none();
        if more && self.endpoint.send_half().state().can_receive() {
            return Progress::Closing;
        }
        if self.endpoint.send_half().is_eof() && !self.endpoint.has_input() && !self.is_unwritten() {
            return self.end(Failure::Aborted);
        }
        if !self.close_notify_sent && !self.endpoint.send_half().is_mid_frame() {
            self.close_notify_sent = true;
            self.endpoint.send_half_mut().send_close_notify();
        }
        if self.is_unwritten() {
            return Progress::Closing;
        }
        match self.endpoint.send_half().failure() {
            // The closing handshake is complete: a client lets the server end TCP, so that the server need not
            // keep the connection in TIME_WAIT; a server ends it (RFC 6455 7.1.1).
            None if self.endpoint.side() == Side::Client => Progress::Closing,
            None => self.end(Failure::Aborted),
            // Closing a socket with unread bytes sends a reset, which could discard the close frame or the
            // refusing response. So end our direction, and read until the peer has ended its own.
            Some(failure) if failure.is_sent_to_peer() => {
                self.shutdown_write_once();
                Progress::Closing
            }
            Some(Failure::KeepaliveTimeout) => {
                self.shutdown_write_once();
                self.end(Failure::Aborted) // a peer that is silent is not waited for
            }
            Some(_) => self.end(Failure::Aborted),
        }
    }

    fn shutdown_write_once(&mut self) {
        if !std::mem::replace(&mut self.write_ended, true) {
            match &self.stream {
                Stream::Socket(socket) => socket.borrow().shutdown_write(),
                Stream::External => self.shutdown_due = true,
                Stream::Over | Stream::Ended(_) => {}
            }
        }
    }

    /// Returns once whether the external transport must end our direction of TCP now.
    pub fn take_shutdown_due(&mut self) -> bool {
        std::mem::take(&mut self.shutdown_due)
    }

    /// Ends the copy of a connection in a child process without touching TCP, because the connection belongs to
    /// the parent. Call it before anything else is done with the connection.
    #[inline]
    pub fn end_after_fork(&mut self) {
        if self.endpoint.send_half().is_forked() && !self.is_over() {
            self.end(Failure::Forked);
        }
    }

    /// Wakes a thread that is blocked on the socket, by ending TCP. Changes nothing else.
    pub fn wake_blocked_threads(&self) {
        // After a fork the socket is shared with the parent, whose connection goes on.
        if let (Some(socket), false) = (self.stream.socket(), self.endpoint.send_half().is_forked()) {
            socket.shutdown();
        }
    }

    /// Ends TCP immediately.
    pub fn end(&mut self, failure: Failure) -> Progress {
        if let Stream::Socket(socket) = &self.stream {
            // After a fork the socket is shared with the parent, whose connection goes on.
            if !self.endpoint.send_half().is_forked() {
                socket.borrow().shutdown();
            }
        }
        if !self.is_over() {
            if let Stream::Socket(socket) = std::mem::replace(&mut self.stream, Stream::Over) {
                self.stream = Stream::Ended(socket);
            }
            if self.endpoint.send_half().state() != State::Closed {
                self.endpoint.fail(failure);
                self.endpoint.poll_eof();
            } else if matches!(failure, Failure::CloseTimeout) {
                // The closing handshake was complete, but the peer did not end TCP.
                self.endpoint.fail_after_input(failure);
            }
        }
        Progress::Over
    }

    /// Takes the socket of a connection that is over. Drop it once no poller watches it.
    #[must_use]
    pub fn take_ended(&mut self) -> Option<S> {
        if !matches!(self.stream, Stream::Ended(_)) {
            return None;
        }
        match std::mem::replace(&mut self.stream, Stream::Over) {
            Stream::Ended(socket) => Some(socket),
            _ => None,
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
