//! Sends messages and control frames, and waits for room.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use wirespeed_protocol::failpoint;
use wirespeed_protocol::{CloseCode, MessageKind, PayloadBuffer, SendError};

use super::{Blocking, Error, Guard, Host, INTERRUPT_CHECK, PanicGuard, State, earliest};
use crate::buffer_pool;
use crate::endpoint::Failure;
use crate::keepalive::{AnsweredPing, Silence};
use crate::socket::{Mode, Readiness};
use crate::source::Source;
use crate::thread::BULK_IO_BYTES;
use crate::write_queue::Flushed;

/// How often a sender checks for input, which takes a system call.
const INPUT_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Why a wait for room ended early.
pub(super) enum Stop<I> {
    /// A signal arrived. Its handler may make any call on this connection, so the writer role was released first,
    /// and the caller must complete the current frame before it runs the handler.
    Signal,
    /// Another error occurred.
    Error(Error<I>),
}

impl<I> From<Error<I>> for Stop<I> {
    fn from(error: Error<I>) -> Self {
        Self::Error(error)
    }
}

/// A ping that waits for its pong.
pub struct PingTicket {
    id: u64,
    outcome: Mutex<Option<Result<Duration, ()>>>,
    resolved: Condvar,
}

impl PingTicket {
    /// Returns the round-trip time, or `Err` if the connection ended first, or `None` while waiting.
    pub fn outcome(&self) -> Option<Result<Duration, ()>> {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the answer if this ping is among the answered ones. Returns whether it is.
    pub(super) fn resolve(&self, answered: &[AnsweredPing]) -> bool {
        let mine = answered.iter().find(|ping| ping.number == self.id);
        if let Some(ping) = mine {
            self.set(Ok(ping.latency));
        }
        mine.is_some()
    }

    pub(super) fn fail_all(tickets: &mut Vec<Arc<Self>>) {
        for ticket in tickets.drain(..) {
            ticket.set(Err(()));
        }
    }

    fn set(&self, outcome: Result<Duration, ()>) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.resolved.notify_all();
    }
}

impl<B: PayloadBuffer + Send, M: Send> Blocking<B, M> {
    /// Sends a message. Returns when the kernel has all of it. After an interrupt the whole message is queued and
    /// is written by the next call.
    #[inline]
    pub fn send<H: Host<Buffer = B, Message = M>, S: Source + ?Sized>(
        &self,
        host: &H,
        kind: MessageKind,
        source: &S,
        compress: Option<bool>,
    ) -> Result<(), Error<H::Interrupt>> {
        let mut state = self.lock_to_send(host)?;
        if !state.driver.send_half().is_large(source.len(), compress) {
            state
                .driver
                .send_half_mut()
                .send_message(kind, source.piece(0..source.len()), compress)
                .map_err(refused)?;
            return self.drain_all(state, host);
        }
        let mut large = state.driver.send_half_mut().begin_large(kind, source.len()).map_err(refused)?;
        let mut start = 0;
        loop {
            if state.driver.send_half().is_zero_copy() {
                host.before_bulk_io();
                start += state.driver.write_large(&mut large, source.piece(start..source.len())).unwrap_or(0);
            }
            let end = (start + buffer_pool::WRITE_SIZE).min(source.len());
            if end > start {
                state.driver.send_half_mut().append_large(&mut large, source.piece(start..end));
                start = end;
            }
            if !state.driver.send_half().is_mid_frame() {
                return self.drain_all(state, host);
            }
            state = match self.drain(state, host) {
                Ok(state) => state,
                Err(stop) => {
                    // Frames must not stay incomplete, so the rest is queued, unless writing has failed. The writer
                    // role was kept until here, so that no other frame comes between.
                    let mut state = self.lock(host);
                    if state.driver.send_half().failure().is_some() || state.driver.is_over() {
                        state.driver.send_half_mut().abandon_large();
                    }
                    while state.driver.send_half().is_mid_frame() {
                        let end = (start + buffer_pool::WRITE_SIZE).min(source.len());
                        state.driver.send_half_mut().append_large(&mut large, source.piece(start..end));
                        start = end;
                    }
                    self.release_writer(&mut state);
                    drop(state);
                    return self.resume(host, stop);
                }
            };
        }
    }

    /// Queues a message without writing it, unless many bytes are queued already; [`Self::flush`] must follow.
    #[inline]
    pub fn queue<H: Host<Buffer = B, Message = M>, S: Source + ?Sized>(
        &self,
        host: &H,
        kind: MessageKind,
        source: &S,
        compress: Option<bool>,
    ) -> Result<(), Error<H::Interrupt>> {
        let mut state = self.lock_to_send(host)?;
        if state.driver.send_half().is_large(source.len(), compress) {
            drop(state);
            return self.send(host, kind, source, compress);
        }
        state.driver.send_half_mut().send_message(kind, source.piece(0..source.len()), compress).map_err(refused)?;
        if state.driver.send_half().queued() >= buffer_pool::WRITE_SIZE {
            return self.drain_all(state, host);
        }
        Ok(())
    }

    /// Waits until no other thread is the writer. A message that the caller removes from its own queue afterwards
    /// can be sent without waiting, so an interrupt does not lose it, unless another thread starts to send in
    /// between.
    pub fn wait_for_writer<H: Host<Buffer = B, Message = M>>(&self, host: &H) -> Result<(), Error<H::Interrupt>> {
        self.wait_while_sending(self.lock(host), host).map(drop)
    }

    /// Returns when the kernel has taken every queued byte.
    pub fn flush<H: Host<Buffer = B, Message = M>>(&self, host: &H) -> Result<(), Error<H::Interrupt>> {
        let state = self.lock_to_send(host)?;
        self.drain_all(state, host)
    }

    /// Sends the first fragment of a message; the others follow with [`Self::send_fragment`]. Sets `queued` once
    /// the fragment will be written, even after an interrupt; then the others must follow.
    pub fn send_first_fragment<H: Host<Buffer = B, Message = M>, S: Source + ?Sized>(
        &self,
        host: &H,
        kind: MessageKind,
        source: &S,
        compress: Option<bool>,
        queued: &mut bool,
    ) -> Result<(), Error<H::Interrupt>> {
        let mut state = self.lock_to_send(host)?;
        let payload = source.piece(0..source.len());
        state.driver.send_half_mut().send_first_fragment(kind, payload, compress).map_err(refused)?;
        *queued = true;
        self.drain_all(state, host)
    }

    /// Sends the next fragment of a message, the last one with `fin`. Sets `queued` once the fragment will be
    /// written, even after an interrupt.
    pub fn send_fragment<H: Host<Buffer = B, Message = M>, S: Source + ?Sized>(
        &self,
        host: &H,
        source: &S,
        fin: bool,
        queued: &mut bool,
    ) -> Result<(), Error<H::Interrupt>> {
        let mut state = self.lock_to_send(host)?;
        state.driver.send_half_mut().send_fragment(source.piece(0..source.len()), fin).map_err(refused)?;
        *queued = true;
        self.drain_all(state, host)
    }

    /// Sends a ping. The ticket receives its pong.
    pub fn ping<H: Host<Buffer = B, Message = M>>(
        &self,
        host: &H,
        payload: &[u8],
    ) -> Result<Arc<PingTicket>, Error<H::Interrupt>> {
        let mut state = self.lock_to_send(host)?;
        if state.driver.send_half().keepalive.is_outstanding(payload) {
            return Err(Error::PingOutstanding);
        }
        let id = state.driver.send_half_mut().send_numbered_ping(payload, Instant::now()).map_err(refused)?;
        let ticket = Arc::new(PingTicket { id, outcome: Mutex::new(None), resolved: Condvar::new() });
        state.tickets.push(Arc::clone(&ticket));
        self.drain_all(state, host).map(|()| ticket)
    }

    /// Waits for the pong, and reads if no other thread reads. Other messages are queued.
    pub fn wait_for_pong<H: Host<Buffer = B, Message = M>>(
        &self,
        host: &H,
        ticket: &PingTicket,
        deadline: Option<Instant>,
    ) -> Result<Duration, Error<H::Interrupt>> {
        let mut state = self.lock(host);
        let mut waited = false;
        loop {
            self.fill_queue(&mut state, host)?;
            match ticket.outcome() {
                Some(Ok(latency)) => return Ok(latency),
                Some(Err(())) => return Err(Error::Closed),
                None => {}
            }
            if self.is_over(&state) {
                self.finish(state, host, deadline)?;
                return ticket.outcome().unwrap_or(Err(())).map_err(|()| Error::Closed);
            }
            if waited && deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(Error::TimedOut);
            }
            waited = true;
            state = self.pump(state, host, deadline)?;
        }
    }

    /// Sends an unsolicited pong.
    pub fn pong<H: Host<Buffer = B, Message = M>>(&self, host: &H, payload: &[u8]) -> Result<(), Error<H::Interrupt>> {
        let mut state = self.lock_to_send(host)?;
        state.driver.send_half_mut().send_pong(payload).map_err(refused)?;
        self.drain_all(state, host)
    }

    /// Locks the state once no other thread is the writer. If sending is no longer possible, it waits for the end of
    /// the connection and returns `Closed`.
    #[inline]
    pub(super) fn lock_to_send<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        host: &H,
    ) -> Result<Guard<'a, B, M>, Error<H::Interrupt>> {
        let mut state = self.wait_while_sending(self.lock(host), host)?;
        // A thread that sends and receives alternately need not read the clock.
        if std::mem::replace(&mut state.only_sends, true) && state.input_checked_at.elapsed() >= INPUT_CHECK_INTERVAL {
            state = self.check_input(state, host)?;
        }
        if state.driver.send_half().state().can_send() && state.driver.send_half().failure().is_none() {
            Ok(state)
        } else {
            drop(state);
            self.wait_for_end(host)?;
            Err(Error::Closed)
        }
    }

    /// Takes in input without waiting, if no thread reads. So an application that only sends learns that the peer
    /// has closed, and pings are answered.
    #[cold]
    fn check_input<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
    ) -> Result<Guard<'a, B, M>, Error<H::Interrupt>> {
        state.input_checked_at = Instant::now();
        if !state.reading && !state.driver.endpoint().has_input() && !self.is_queue_full(&state) {
            state = self.read(state, host, None, |socket, operation| operation.read(socket, Mode::NonBlocking)).0;
        }
        if !state.reading {
            self.fill_queue(&mut state, host)?;
        }
        // Reading releases the lock.
        self.wait_while_sending(state, host)
    }

    #[inline]
    fn wait_while_sending<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
    ) -> Result<Guard<'a, B, M>, Error<H::Interrupt>> {
        while state.sending {
            state = self.wait_for_change(state, host, None)?;
        }
        Ok(state)
    }

    /// Writes all queued bytes. They are whole frames, so signals are handled meanwhile.
    #[inline]
    fn drain_all<H: Host<Buffer = B, Message = M>>(
        &self,
        state: Guard<'_, B, M>,
        host: &H,
    ) -> Result<(), Error<H::Interrupt>> {
        match self.drain(state, host) {
            Ok(_) => Ok(()),
            Err(stop) => self.resume(host, stop),
        }
    }

    /// Continues after an interrupted write, or returns the error. The bytes stay queued.
    #[cold]
    fn resume<H: Host<Buffer = B, Message = M>>(
        &self,
        host: &H,
        mut stop: Stop<H::Interrupt>,
    ) -> Result<(), Error<H::Interrupt>> {
        loop {
            match stop {
                Stop::Signal => host.check_interrupt().map_err(Error::Interrupted)?,
                // The caller gets this error only once the connection is over.
                Stop::Error(Error::Closed) => {
                    self.wait_for_end(host)?;
                    return Err(Error::Closed);
                }
                Stop::Error(error) => return Err(error),
            }
            let state = self.lock_to_send(host)?;
            stop = match self.drain(state, host) {
                Ok(_) => return Ok(()),
                Err(stop) => stop,
            };
        }
    }

    /// Writes all queued bytes.
    #[inline]
    fn drain<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
    ) -> Result<Guard<'a, B, M>, Stop<H::Interrupt>> {
        let driver = &mut state.driver;
        if driver.is_over() {
            return Err(Error::Closed.into());
        }
        let flushed = if driver.send_half().queued() < BULK_IO_BYTES {
            driver.flush()
        } else {
            host.run_bulk_io(|| driver.flush())
        };
        match flushed {
            Ok(Flushed::All) => Ok(state),
            Ok(Flushed::Blocked) => self.drain_slowly(state, host, None),
            Err(_) => Err(Error::Closed.into()),
        }
    }

    /// Becomes the writer and waits until the kernel has room.
    #[cold]
    pub(super) fn drain_slowly<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
        deadline: Option<Instant>,
    ) -> Result<Guard<'a, B, M>, Stop<H::Interrupt>> {
        state.sending = true;
        let result = self.wait_for_room(state, host, deadline);
        match result {
            Ok(mut state) => {
                self.release_writer(&mut state);
                Ok(state)
            }
            Err(error) => {
                let mut state = self.lock(host);
                if !state.driver.send_half().is_mid_frame() {
                    self.release_writer(&mut state);
                }
                Err(error)
            }
        }
    }

    fn release_writer(&self, state: &mut State<B, M>) {
        state.sending = false;
        self.notify(state);
    }

    fn wait_for_room<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
        deadline: Option<Instant>,
    ) -> Result<Guard<'a, B, M>, Stop<H::Interrupt>> {
        let max_silence = state.driver.send_half().keepalive.max_silence();
        let interval = max_silence.and(state.driver.send_half().keepalive.interval());
        let mut since = Instant::now();
        let mut silence = Silence::in_frame(since, state.driver.traffic(0));
        loop {
            let Some(socket) = state.driver.socket().cloned() else { return Err(Error::Closed.into()) };
            match state.driver.send_half_mut().flush(&socket, Mode::NonBlocking) {
                Ok(Flushed::All) => return Ok(state),
                Ok(Flushed::Blocked) => {}
                Err(_) => return Err(Error::Closed.into()),
            }
            // Parse meanwhile: a peer that waits for us to read before it reads would otherwise deadlock.
            if !state.reading {
                self.fill_queue(&mut state, host)?;
            }
            // A close frame for a protocol error of the peer comes after queued frames, unless one of them is
            // incomplete.
            let send_half = state.driver.send_half();
            if send_half.failure().is_some_and(|failure| !failure.is_sent_to_peer() || send_half.is_mid_frame()) {
                return Err(Error::Closed.into());
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Err(Error::TimedOut.into());
            }
            // A peer is not silent while our full queue keeps us from reading.
            let full = self.is_queue_full(&state);
            if full {
                silence.restart(now);
            }
            // Pings wait behind queued bytes. So a peer that takes nothing during the time for a ping and its pong
            // counts as silent.
            let last_check = silence.checked_at();
            if silence.check(now, state.driver.traffic(0)).is_zero() {
                since = last_check; // the progress came after the last check
            }
            let mut wake = max_silence.and_then(|max_silence| since.checked_add(max_silence));
            let dead = wake.is_some_and(|wake| wake <= now);
            wake = earliest(wake, interval.and_then(|interval| now.checked_add(interval)));
            if dead {
                state.driver.endpoint_mut().fail_with_code(
                    Failure::KeepaliveTimeout,
                    CloseCode::INTERNAL_ERROR,
                    "keepalive ping timeout",
                );
                return Err(Error::Closed.into());
            }
            // A peer that has closed need not read any more.
            if !state.driver.send_half().state().can_receive() {
                let by = state.driver.start_close_timeout(now);
                if by.is_some_and(|by| by <= now) {
                    return Err(Error::Closed.into());
                }
                wake = earliest(wake, by);
            }
            let stopped = state.reading || full || state.driver.endpoint().has_input();
            let readable = !stopped && state.driver.send_half().state().can_receive();
            if stopped {
                // When the reader stops, or a full queue is emptied, this thread must continue reading, but nothing
                // wakes it: check at intervals.
                wake = earliest(wake, Some(now + INTERRUPT_CHECK));
            }
            let wake = earliest(wake, deadline);
            drop(state);
            let interest = Readiness { readable, writable: true };
            let ready = host.wait_cooperatively(Some((&socket, interest)), wake).unwrap_or_else(|| {
                host.wait(|| {
                    let _guard = PanicGuard(self);
                    failpoint::hit("driver.wait_for_room");
                    socket.wait(interest, wake)
                })
            });
            state = match ready {
                Ok(ready) => {
                    let state = self.lock(host);
                    // Another thread may have read meanwhile, or be reading.
                    if !ready.readable
                        || state.reading
                        || state.driver.endpoint().has_input()
                        || self.is_queue_full(&state)
                    {
                        state
                    } else {
                        self.read(state, host, None, |socket, operation| operation.read(socket, Mode::NonBlocking)).0
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(Stop::Signal),
                Err(_) => self.lock(host),
            };
        }
    }
}

fn refused<I>(error: SendError) -> Error<I> {
    match error {
        SendError::NotOpen => Error::Closed,
        error => Error::Refused(error),
    }
}
