//! Bytes, the ending and time: what moves, closes and keeps alive a connection. It never waits.

use std::borrow::Borrow;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wirespeed_protocol::{CloseCode, PayloadBuffer, SendError, Side, State};

use super::Sender;
use crate::endpoint::{Endpoint, Failure, LargeSend, PeerEvent, ReadOperation, SendHalf};
use crate::keepalive::{Due, Silence, Span, Traffic};
use crate::socket::{Mode, Socket};
use crate::write_queue::Flushed;

/// When to look again at a ping that could not be sent in the middle of a frame.
const PING_RETRY: Duration = Duration::from_millis(50);

/// Where the bytes come from and go to.
enum Stream<S> {
    Socket(S),
    /// Somebody else's: a transport.
    Elsewhere,
    /// TCP is over; the socket is there until whoever watches its number has forgotten it.
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

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It goes on.
    Open,
    /// The closing handshake, or the end of TCP, is under way.
    Closing,
    /// It is over: nothing will be read or written any more.
    Over,
}

/// Whether somebody reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Yes.
    Going,
    /// Nothing is read at present, by the application's choice.
    Paused,
}

/// One connection, on its socket or on bytes that somebody else reads and writes. `S` is how the socket is
/// held.
///
/// The order of calls: after bytes came ([`ConnectionDriver::read`], or [`ConnectionDriver::receive`] and its kin), take events
/// from [`ConnectionDriver::poll_event`] until there are none, then call [`ConnectionDriver::advance`]. After anything was queued,
/// call [`ConnectionDriver::flush`], or hand on what [`ConnectionDriver::take_output`] returns, and end the stream if
/// [`ConnectionDriver::take_shut`] says so. At [`ConnectionDriver::deadline`], call [`ConnectionDriver::handle_deadline`].
pub struct ConnectionDriver<B, S = Socket> {
    /// The connection itself.
    pub endpoint: Endpoint<B>,
    stream: Stream<S>,
    close_timeout: Span,
    /// Until when the end of TCP may be waited for; `None`: the closing has not begun.
    finish_by: Option<Option<Instant>>,
    /// Bytes that may still be read; only those of whoever was refused are few.
    readable: u64,
    /// TLS was told that nothing more will be sent.
    said_goodbye: bool,
    /// Somebody else, who writes for us, has bytes that the kernel has not taken: as far as was told.
    transport_buffered: bool,
    /// Our direction of TCP was ended.
    shut: bool,
    /// Somebody else has yet to end it.
    shut_due: bool,
    /// Reading was paused at some time since the last ping of our own: its pong may be late through no fault
    /// of the peer.
    was_paused: bool,
    /// A ping is due, and waits for the rest of a frame: how long the peer has been silent meanwhile.
    unsent_ping: Option<Box<Silence>>,
}

impl<B: PayloadBuffer, S: Borrow<Socket>> ConnectionDriver<B, S> {
    /// Joins a peer to its socket, or to bytes that somebody else reads and writes. The socket may be in
    /// either mode.
    #[must_use]
    pub fn new(endpoint: Endpoint<B>, socket: Option<S>, close_timeout: Option<Duration>) -> Self {
        Self {
            endpoint,
            stream: socket.map_or(Stream::Elsewhere, Stream::Socket),
            close_timeout: close_timeout.into(),
            finish_by: None,
            readable: u64::MAX,
            said_goodbye: false,
            transport_buffered: false,
            shut: false,
            shut_due: false,
            was_paused: false,
            unsent_ping: None,
        }
    }

    /// What stands for a connection that cannot be looked at, because a thread that there is not has it.
    #[must_use]
    pub fn disowned(side: Side, failure: Failure) -> Self {
        let mut conn = Self::new(Endpoint::disowned(side, failure.clone()), None, None);
        conn.end(failure);
        conn
    }

    /// What is sent, and what the connection remembers.
    #[must_use]
    #[inline]
    pub fn send_half(&self) -> &SendHalf<B> {
        &self.endpoint.send_half
    }

    /// The same, to send.
    #[inline]
    pub fn send_half_mut(&mut self) -> &mut SendHalf<B> {
        &mut self.endpoint.send_half
    }

    /// The socket, if bytes come from one and TCP is not over.
    #[must_use]
    #[inline]
    pub fn socket(&self) -> Option<&S> {
        match &self.stream {
            Stream::Socket(socket) => Some(socket),
            _ => None,
        }
    }

    /// Whether TCP is over.
    #[must_use]
    #[inline]
    pub fn is_over(&self) -> bool {
        matches!(self.stream, Stream::Over | Stream::Ended(_))
    }

    // ---- receiving ----

    /// Reads once from the socket, `most` bytes that are kept until they are parsed. `wanted`: somebody takes
    /// what comes, so it may be much at once. False: nothing was there.
    pub fn read(&mut self, wanted: bool, most: usize) -> bool {
        self.read_by(wanted, most, |operation, socket| operation.read(socket, Mode::NonBlocking))
    }

    /// The same; the system call is made by `read`.
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

    /// Takes in what somebody else has read from the socket: see [`Endpoint::complete_read`].
    #[inline]
    pub fn complete_read(&mut self, operation: ReadOperation<B>, result: io::Result<usize>) {
        if let Ok(read) = result {
            self.count_read(read);
        }
        self.endpoint.complete_read(operation, result);
    }

    #[inline]
    fn count_read(&mut self, read: usize) {
        self.readable = self.readable.saturating_sub(read as u64);
    }

    /// Reads once, for whoever is told of edges (epoll(7)); true: there is nothing more to be read before the
    /// next. `closed`: an edge has told that the peer has ended its direction; it was the last.
    #[inline]
    pub fn read_edge(&mut self, closed: bool) -> bool {
        self.read_edge_of(usize::MAX, closed)
    }

    /// The same of `most` bytes, or of those that any limit leaves.
    #[inline]
    pub fn read_edge_of(&mut self, most: usize, closed: bool) -> bool {
        let mut drained = true;
        self.read_by(false, most, |operation, socket| {
            let result = operation.read(socket, Mode::NonBlocking);
            drained = operation.is_drained(&result) && !(closed && result.is_ok());
            result
        });
        drained || self.endpoint.send_half.is_eof()
    }

    /// Takes bytes that somebody else has read.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.count_read(bytes.len());
        // In pieces of the read buffer's size: what is larger would not fit the buffers lent.
        for piece in bytes.chunks(crate::buffer_pool::READ_SIZE / 2) {
            self.endpoint.receive_slice(piece);
        }
    }

    /// Somebody else has read the end of the stream, or has failed to read.
    pub fn receive_end(&mut self, error: Option<io::Error>) {
        match error {
            None => self.endpoint.receive_eof(),
            Some(error) => self.endpoint.fail_after_input(Failure::Io(Arc::new(error))),
        }
    }

    /// The next event in what was read.
    #[inline]
    pub fn poll_event(&mut self) -> Option<PeerEvent<'_, B>> {
        self.endpoint.poll_event()
    }

    /// The same, with what answers it while its payload still lies where it was read.
    #[inline]
    pub fn poll_event_and_sender(&mut self) -> (Option<PeerEvent<'_, B>>, Sender<'_, B>) {
        let socket = self.stream.socket();
        let (event, send_half) = self.endpoint.poll_event_and_send_half();
        (event, Sender { send_half, socket })
    }

    // ---- sending ----

    /// What sends.
    #[inline]
    pub fn sender(&mut self) -> Sender<'_, B> {
        Sender { send_half: &mut self.endpoint.send_half, socket: self.stream.socket() }
    }

    /// Hands the kernel what is queued, as far as it has room. An error is kept by the link.
    #[inline]
    pub fn flush(&mut self) -> Flushed {
        self.sender().flush()
    }

    /// The same, with the error.
    #[inline]
    pub fn try_flush(&mut self) -> io::Result<Flushed> {
        self.sender().try_flush()
    }

    /// Hands the kernel what is queued, and then the rest of a large message from where it lies, as far as it
    /// has room; how much of that it took. `None`: its pieces must be queued ([`SendHalf::append_large`]), as they
    /// are masked or encrypted, or somebody else writes.
    ///
    /// [`SendHalf::append_large`]: crate::peer::Link::append_large
    pub fn write_large(&mut self, send: &mut LargeSend, rest: &[u8]) -> Option<usize> {
        let Stream::Socket(socket) = &self.stream else { return None };
        self.endpoint.send_half.is_bare().then(|| self.endpoint.send_half.write_large(send, rest, socket.borrow()))
    }

    /// What is queued, for somebody else to write.
    #[must_use]
    pub fn take_output(&mut self) -> Vec<u8> {
        self.endpoint.send_half.take_output()
    }

    /// Whether it ends, and somebody else writes for us: then [`Self::advance`] must know by
    /// [`Self::set_transport_buffered`] whether everything is written.
    #[must_use]
    #[inline]
    pub fn is_ending_elsewhere(&self) -> bool {
        matches!(self.stream, Stream::Elsewhere)
            && (self.finish_by.is_some() || self.is_closing() || self.endpoint.send_half.is_eof())
    }

    /// Whether somebody else, who writes for us, has bytes that the kernel has not taken.
    pub fn set_transport_buffered(&mut self, transport_buffered: bool) {
        self.transport_buffered = transport_buffered;
    }

    /// Whether bytes of ours have yet to reach the kernel.
    fn is_unwritten(&self) -> bool {
        self.transport_buffered || self.endpoint.send_half.is_unwritten()
    }

    /// Begins the closing handshake (RFC 6455 7.1.2), if it was not begun. The caller flushes.
    pub fn begin_close(&mut self, code: Option<CloseCode>, reason: &str, now: Instant) -> Result<(), SendError> {
        if self.is_over() {
            return Ok(());
        }
        if self.endpoint.send_half.state() == State::Open {
            self.endpoint.send_half.send_close(code, reason)?;
        }
        self.begin_finish(now);
        Ok(())
    }

    /// How long a closing may take, `None` for no limit.
    #[must_use]
    pub fn close_timeout(&self) -> Option<Duration> {
        self.close_timeout.get()
    }

    /// Changes how long a closing may take that begins from now on.
    pub fn set_close_timeout(&mut self, timeout: Option<Duration>) {
        self.close_timeout = timeout.into();
    }

    /// Begins the time that closing may take, before it can begin itself; when it ends.
    pub fn limit_closing(&mut self, now: Instant) -> Option<Instant> {
        self.begin_finish(now)
    }

    /// Begins that time, which was determined before, unless it runs and has an end.
    pub fn limit_closing_to(&mut self, by: Option<Instant>) {
        self.finish_by = Some(self.finish_by.flatten().or(by));
    }

    /// Lets no more than this be read: of a peer that was refused, who may send without end. Then it is over.
    pub fn limit_reading(&mut self, bytes: u64) {
        self.readable = bytes;
    }

    /// Whether that time runs.
    #[must_use]
    pub fn is_closing_limited(&self) -> bool {
        self.finish_by.is_some()
    }

    fn begin_finish(&mut self, now: Instant) -> Option<Instant> {
        let by = self.close_timeout.get().and_then(|timeout| now.checked_add(timeout));
        *self.finish_by.get_or_insert(by)
    }

    // ---- ending ----

    /// Whether the application cannot send any more, or will never again.
    #[must_use]
    #[inline]
    pub fn is_closing(&self) -> bool {
        !self.endpoint.send_half.state().can_send() || self.endpoint.send_half.failure().is_some() || self.is_over()
    }

    /// Makes the next step of the ending, if this is due: call it when [`Self::poll_event`] has nothing.
    #[inline]
    pub fn advance(&mut self, now: impl FnOnce() -> Instant) -> Progress {
        let send_half = &self.endpoint.send_half;
        let open = send_half.state() == State::Open && !send_half.is_eof() && send_half.failure().is_none();
        if open && self.finish_by.is_none() && !self.is_over() {
            return Progress::Open;
        }
        self.advance_closing(now())
    }

    /// Flushes, and makes the steps of the ending that this allows: each may have something to say.
    #[inline]
    pub fn flush_and_advance(&mut self, now: impl Fn() -> Instant) -> (Flushed, Progress) {
        loop {
            let flushed = self.flush();
            let left = self.endpoint.send_half.queued();
            let progress = self.advance(&now);
            if progress == Progress::Open || self.endpoint.send_half.queued() == left {
                return (flushed, progress);
            }
        }
    }

    fn advance_closing(&mut self, now: Instant) -> Progress {
        wirespeed_protocol::failpoint::reach("driver.closing");
        if self.is_over() {
            return Progress::Over;
        }
        self.endpoint.poll_eof();
        let deadline = self.begin_finish(now);
        if deadline.is_some_and(|deadline| deadline <= now) {
            return self.end(Failure::CloseTimeout);
        }
        if self.readable == 0 {
            return self.end(Failure::Aborted);
        }
        // What was read before the end is parsed first: a close frame, perhaps, that is to be answered.
        let more = !self.endpoint.send_half.is_eof()
            || self.endpoint.has_input() && self.endpoint.send_half.failure().is_none();
        if more && self.endpoint.send_half.state().can_receive() {
            return Progress::Closing;
        }
        if self.endpoint.send_half.is_eof() && !self.endpoint.has_input() && !self.is_unwritten() {
            return self.end(Failure::Aborted);
        }
        if !self.said_goodbye && !self.endpoint.send_half.is_mid_frame() {
            self.said_goodbye = true;
            self.endpoint.send_half.send_close_notify();
        }
        if self.is_unwritten() {
            return Progress::Closing;
        }
        match self.endpoint.send_half.failure() {
            // The closing handshake is complete: a client lets the server end TCP, so that the server need
            // not remember the connection (TIME_WAIT); a server does it (RFC 6455 7.1.1).
            None if self.endpoint.side() == Side::Client => Progress::Closing,
            None => self.end(Failure::Aborted),
            // The close frame that names a fault, or the response that refuses, must not be lost to a reset,
            // which the kernel sends when a socket is closed with bytes unread: end our direction, and read
            // on until the peer has ended its own.
            Some(failure) if failure.is_said() => {
                self.shut_once();
                Progress::Closing
            }
            Some(Failure::KeepaliveTimeout) => {
                self.shut_once();
                self.end(Failure::Aborted) // a peer that is silent is not waited for
            }
            Some(_) => self.end(Failure::Aborted),
        }
    }

    fn shut_once(&mut self) {
        if !std::mem::replace(&mut self.shut, true) {
            match &self.stream {
                Stream::Socket(socket) => socket.borrow().shutdown_write(),
                Stream::Elsewhere => self.shut_due = true,
                Stream::Over | Stream::Ended(_) => {}
            }
        }
    }

    /// Whether somebody else, who writes for us, is to end our direction of TCP now; told once.
    pub fn take_shut(&mut self) -> bool {
        std::mem::take(&mut self.shut_due)
    }

    /// In a child process, the connection is the parent's: the copy here is over at once, and forgets the
    /// socket without a word. To be called before anything else is done with it.
    #[inline]
    pub fn disown_after_fork(&mut self) {
        if self.endpoint.send_half.is_forked() && !self.is_over() {
            self.end(Failure::Forked);
        }
    }

    /// Wakes whoever sleeps in the socket, by ending TCP. Nothing else is changed.
    pub fn rouse(&self) {
        // After a fork the socket is shared with the parent, whose connection goes on.
        if let (Some(socket), false) = (self.stream.socket(), self.endpoint.send_half.is_forked()) {
            socket.shutdown();
        }
    }

    /// Ends TCP here and now.
    pub fn end(&mut self, failure: Failure) -> Progress {
        if let Stream::Socket(socket) = &self.stream {
            // After a fork the socket is shared with the parent, whose connection goes on.
            if !self.endpoint.send_half.is_forked() {
                socket.borrow().shutdown();
            }
        }
        if !self.is_over() {
            if let Stream::Socket(socket) = std::mem::replace(&mut self.stream, Stream::Over) {
                self.stream = Stream::Ended(socket);
            }
            if self.endpoint.send_half.state() != State::Closed {
                self.endpoint.fail(failure);
                self.endpoint.poll_eof();
            } else if matches!(failure, Failure::CloseTimeout) {
                // The closing handshake was complete, but the peer did not end TCP.
                self.endpoint.fail_after_input(failure);
            }
        }
        Progress::Over
    }

    /// The socket of a connection that is over: to be dropped once nobody watches it any more.
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

    // ---- time ----

    /// When [`Self::handle_deadline`] is due; `None`: never.
    #[must_use]
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        if self.is_over() {
            return None;
        }
        let keepalive = match self.endpoint.send_half.keepalive.poll(now) {
            // The pong that is awaited sets no timer when it comes: look again when the next ping would be
            // due.
            Due::Nothing(next) => {
                match (next, self.endpoint.send_half.keepalive.next_ping().filter(|ping| *ping > now)) {
                    (Some(next), Some(ping)) => Some(next.min(ping)),
                    (next, ping) => next.or(ping),
                }
            }
            Due::Ping | Due::Look => Some(now),
        };
        match (self.finish_by.flatten(), keepalive.filter(|_| !self.is_closing())) {
            (Some(finish), Some(next)) => Some(finish.min(next)),
            (finish, next) => finish.or(next),
        }
    }

    /// Sees to what is due at `now`. The caller flushes, advances, and asks for the next deadline; this is
    /// the earliest moment at which to do so if it is later than that. `backlog`: bytes of this connection that its
    /// transport, if it has one, and the kernel below it have yet to deliver; a socket is asked here.
    pub fn handle_deadline(&mut self, now: Instant, reading: Reading, backlog: u64) -> Option<Instant> {
        wirespeed_protocol::failpoint::reach("driver.deadline");
        let paused = reading == Reading::Paused;
        self.was_paused |= paused;
        if self.is_over() || self.is_closing() {
            return None;
        }
        for _ in 0..2 {
            match self.endpoint.send_half.keepalive.poll(now) {
                Due::Nothing(_) => break,
                Due::Ping => {
                    self.endpoint.send_half.release_idle();
                    let traffic = self.traffic(backlog);
                    self.endpoint.send_half.send_keepalive(now, traffic);
                    self.was_paused = paused;
                    if self.endpoint.send_half.is_mid_frame() {
                        if self.is_stuck(now, paused, traffic) {
                            self.give_up();
                            return None;
                        }
                        return Some(now + PING_RETRY); // when the frame is out
                    }
                    self.unsent_ping = None;
                }
                Due::Look if self.was_paused => {
                    // Its pong may lie unread behind messages that the application has not received.
                    self.was_paused = paused;
                    self.endpoint.send_half.keepalive.restart(now);
                }
                Due::Look => {
                    let traffic = self.traffic(backlog);
                    if self.endpoint.send_half.keepalive.look(now, traffic) {
                        self.give_up();
                    }
                    break;
                }
            }
        }
        None
    }

    fn give_up(&mut self) {
        self.endpoint.fail_with_code(Failure::KeepaliveTimeout, CloseCode::INTERNAL_ERROR, "keepalive ping timeout");
    }

    /// No ping passes a frame that is half out: a peer that takes nothing of it for as long as a pong may take
    /// is as silent as one that does not answer. Unless it waits for us to read, or we have written nothing.
    fn is_stuck(&mut self, now: Instant, paused: bool, traffic: Traffic) -> bool {
        let Some(timeout) = self.endpoint.send_half.keepalive.timeout() else { return false };
        let silence = self.unsent_ping.get_or_insert_with(|| Box::new(Silence::in_frame(now, traffic)));
        if paused || traffic.acknowledged == traffic.written.cast_signed() {
            silence.restart(now);
        }
        silence.look(now, traffic) >= timeout
    }

    /// Returns the bytes that have moved so far. `backlog` counts only without a socket: see [`Self::handle_deadline`].
    #[must_use]
    pub fn traffic(&self, backlog: u64) -> Traffic {
        let (unread, unacknowledged) = match self.stream.socket() {
            Some(socket) => (socket.unread(), socket.unacknowledged()),
            None => (0, backlog),
        };
        let written = self.endpoint.send_half.written();
        Traffic {
            read: u64::MAX - self.readable,
            unread,
            written,
            acknowledged: written.cast_signed() - unacknowledged.cast_signed(),
            queued: self.endpoint.send_half.queued() as u64,
        }
    }

    /// Reading was paused or resumed.
    pub fn note_paused(&mut self) {
        self.was_paused = true;
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
