//! Receives messages, and reads from the socket.

use std::io;
use std::time::{Duration, Instant};

use wirespeed_protocol::failpoint;
use wirespeed_protocol::{Delivery, MessageKind, Payload, PayloadBuffer};

use super::sending::Stop;
use super::{Blocking, Error, Guard, Host, Item, PanicGuard, State, earliest, is_transient};
use crate::connection::{Reading, Receiver, Wanted};
use crate::endpoint::{Failure, ReadOperation};
use crate::keepalive::Due;
use crate::socket::{Mode, Readiness, Socket};

/// How long to poll the socket without blocking before checking for signals.
const SPIN_SLICE: Duration = Duration::from_millis(10);

/// How long to wait for a message.
#[derive(Clone, Copy, Debug)]
pub enum Timeout {
    /// Wait until this moment; `None`: without limit. At least one attempt is made.
    Until(Option<Instant>),
    /// Poll the socket without blocking until the first moment, then wait as with [`Self::Until`] the second.
    Spin(Instant, Option<Instant>),
}

impl Timeout {
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) | Self::Spin(_, deadline) => deadline,
        }
    }
}

impl<B: PayloadBuffer + Send, M: Send> Blocking<B, M> {
    /// Receives the next message or, with [`Delivery::Fragments`], the next fragment.
    #[inline]
    pub fn receive<H: Host<Buffer = B, Message = M>>(
        &self,
        host: &H,
        timeout: Timeout,
        delivery: Delivery,
    ) -> Result<Item<M>, Error<H::Interrupt>> {
        let mut state = self.lock(host);
        let mut waited = false;
        loop {
            if state.inbox.is_streaming() && delivery == Delivery::Messages {
                return Err(Error::Streaming);
            }
            let queued = !state.inbox.is_empty();
            if let Some(item) = self.take(&mut state, host, delivery)? {
                state.driver.endpoint_mut().release_parsed();
                if queued {
                    self.notify(&mut state);
                }
                return Ok(item);
            }
            // A message in many pieces, or endless pings, must not delay the deadline.
            if waited && timeout.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(Error::TimedOut);
            }
            waited = true;
            state = self.advance(state, host, timeout)?;
        }
    }

    /// Receives all available messages: waits for at least one, returns at most `limit`.
    pub fn receive_many<H: Host<Buffer = B, Message = M>>(
        &self,
        host: &H,
        timeout: Timeout,
        limit: usize,
    ) -> Result<Vec<Item<M>>, Error<H::Interrupt>> {
        let mut items = vec![self.receive(host, timeout, Delivery::Messages)?];
        let mut state = self.lock(host);
        while items.len() < limit && !state.inbox.is_streaming() {
            match self.take(&mut state, host, Delivery::Messages) {
                Ok(Some(item)) => items.push(item),
                Ok(None) => break,
                // A message could not be created, so the later ones must not be returned without it.
                Err(error) => {
                    state.inbox.put_back(items.into_iter());
                    self.notify(&mut state);
                    return Err(error);
                }
            }
        }
        state.driver.endpoint_mut().release_parsed();
        self.flush_some(&mut state);
        self.notify(&mut state);
        Ok(items)
    }

    /// Returns items that were received last to the queue, in their order.
    pub fn put_back<H: Host<Buffer = B, Message = M>>(
        &self,
        host: &H,
        items: impl DoubleEndedIterator<Item = Item<M>>,
    ) {
        let mut state = self.lock(host);
        state.inbox.put_back(items);
        self.notify(&mut state);
    }

    /// Drops the rest of a message of which some fragments were received.
    pub fn discard_message<H: Host<Buffer = B, Message = M>>(&self, host: &H) {
        let mut state = self.lock(host);
        state.inbox.discard_message();
        self.notify(&mut state);
    }

    /// Takes the next available item. Replies to control frames are written immediately, because the caller may
    /// return and no other thread would write them.
    #[inline]
    fn take<H: Host<Buffer = B, Message = M>>(
        &self,
        state: &mut State<B, M>,
        host: &H,
        delivery: Delivery,
    ) -> Result<Option<Item<M>>, Error<H::Interrupt>> {
        let State { inbox, driver, .. } = state;
        let result = inbox.take(driver.endpoint_mut(), delivery, &mut HostReceiver(host));
        self.parsed(state);
        if !matches!(result, Ok(Some(_))) {
            state.driver.endpoint_mut().poll_eof();
        }
        result.map_err(Error::Interrupted)
    }

    /// Notifies waiters for pongs and writes replies, after parsing.
    #[inline]
    fn parsed(&self, state: &mut State<B, M>) {
        let answered = state.driver.endpoint_mut().take_answered_pings();
        if !answered.is_empty() {
            state.tickets.retain(|ticket| !ticket.resolve(&answered));
            self.notify_always(state);
        }
        self.flush_some(state);
    }

    /// Waits for input after all input was parsed. Returns `Closed` once TCP is over.
    fn advance<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
        timeout: Timeout,
    ) -> Result<Guard<'a, B, M>, Error<H::Interrupt>> {
        if self.is_over(&state) {
            self.finish(state, host, timeout.deadline())?;
            return Err(Error::Closed);
        }
        self.flush_some(&mut state);
        self.wait_for_input(state, host, timeout)
    }

    /// Waits for input or room in the queue, for a caller that waits for something other than messages and has
    /// queued all input.
    pub(super) fn pump<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
        deadline: Option<Instant>,
    ) -> Result<Guard<'a, B, M>, Error<H::Interrupt>> {
        self.flush_some(&mut state);
        if !self.is_queue_full(&state) {
            return self.wait_for_input(state, host, Timeout::Until(deadline));
        }
        // Another thread has to receive first. Without one and without a deadline, the wait would be endless.
        if deadline.is_none() && state.waiting == 0 && !state.reading {
            return Err(Error::QueueFull);
        }
        self.wait_for_change(state, host, deadline)
    }

    /// Parses input into the queue.
    pub(super) fn fill_queue<H: Host<Buffer = B, Message = M>>(
        &self,
        state: &mut State<B, M>,
        host: &H,
    ) -> Result<(), Error<H::Interrupt>> {
        let queued = state.inbox.len();
        let State { inbox, driver, .. } = state;
        let result = inbox.fill(driver.endpoint_mut(), false, &mut HostReceiver(host));
        if state.inbox.len() != queued {
            self.notify(state);
        }
        self.parsed(state);
        state.driver.endpoint_mut().poll_eof();
        result.map(drop).map_err(Error::Interrupted)
    }

    /// Returns whether reading must stop because the application does not receive.
    pub(super) fn is_queue_full(&self, state: &State<B, M>) -> bool {
        state.inbox.wanted() != Wanted::WithRoom && state.inbox.is_full(state.driver.endpoint())
    }

    /// Returns whether nothing more will be received.
    pub(super) fn is_over(&self, state: &State<B, M>) -> bool {
        state.driver.is_over()
            || (!state.driver.send_half().state().can_receive() && !state.driver.endpoint().has_input())
    }

    /// Writes queued bytes until the kernel has no more room, unless another thread is the writer.
    #[inline]
    pub(super) fn flush_some(&self, state: &mut State<B, M>) {
        if state.driver.send_half().queued() > 0 && !state.sending {
            // The endpoint records an error, which is returned after the last input.
            let _ = state.driver.flush();
        }
    }

    /// Waits until bytes were read, by this thread or another.
    fn wait_for_input<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
        timeout: Timeout,
    ) -> Result<Guard<'a, B, M>, Error<H::Interrupt>> {
        let now = Instant::now();
        // The close timeout limits the wait during the closing handshake.
        let mut wake =
            if state.driver.is_close_timeout_running() { state.driver.start_close_timeout(now) } else { None };
        if wake.is_some_and(|wake| wake <= now) {
            self.end(&mut state, Failure::CloseTimeout);
            return Err(Error::Closed);
        }
        if state.reading {
            wake = earliest(wake, timeout.deadline());
            if state.driver.send_half().queued() == 0 || state.sending {
                return self.wait_for_change(state, host, wake).or_else(|error| match error {
                    // This is the caller's deadline only if `wake` is.
                    Error::TimedOut if timeout.deadline() != wake => Ok(self.lock(host)),
                    error => Err(error),
                });
            }
            // The reader is blocked and does not write bytes that were queued since.
            return match self.drain_slowly(state, host, wake) {
                Ok(state) => Ok(state),
                Err(Stop::Error(Error::TimedOut | Error::Closed)) => Ok(self.lock(host)),
                Err(Stop::Error(error)) => Err(error),
                Err(Stop::Signal) => {
                    host.check_interrupt().map_err(Error::Interrupted)?;
                    Ok(self.lock(host))
                }
            };
        }
        wake = earliest(wake, self.handle_keepalive(&mut state, now));
        wake = earliest(wake, timeout.deadline());
        let spin = match timeout {
            Timeout::Spin(until, _) if until > now => Some(until.min(now + SPIN_SLICE)),
            _ => None,
        };
        let interest = Readiness {
            readable: true,
            writable: spin.is_none() && state.driver.send_half().queued() > 0 && !state.sending,
        };
        let cooperative_wait = spin.is_none().then_some((interest, wake));
        let (state, result) = self.read(state, host, cooperative_wait, move |socket, operation| {
            read_until(socket, operation, now, wake, spin, interest)
        });
        if let Err(error) = result {
            let now = Instant::now();
            if error.kind() == io::ErrorKind::Interrupted {
                // The handler may make any call on this connection, so it runs without the lock.
                drop(state);
                host.check_interrupt().map_err(Error::Interrupted)?;
                return Ok(self.lock(host));
            }
            // No input has arrived yet.
            if timeout.deadline().is_some_and(|deadline| deadline <= now) {
                // Due keepalive pings were handled above; the next call handles later ones.
                return Err(Error::TimedOut);
            }
        }
        Ok(state)
    }

    /// Reads once with the function `read`, outside the lock. An error means that nothing was read and the call can
    /// be repeated. `cooperative_wait`: the condition that a cooperative host waits for instead.
    pub(super) fn read<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
        cooperative_wait: Option<(Readiness, Option<Instant>)>,
        read: impl FnOnce(&Socket, &mut ReadOperation<B>) -> io::Result<usize> + Send,
    ) -> (Guard<'a, B, M>, io::Result<()>) {
        let Some(socket) = state.driver.socket().cloned() else { return (state, Ok(())) };
        let room = state.inbox.room();
        let mut operation = state.driver.endpoint_mut().begin_read(room);
        state.reading = true;
        state.only_sends = false;
        drop(state);
        let result = match cooperative_wait
            .and_then(|(interest, until)| host.wait_cooperatively(Some((&socket, interest)), until))
        {
            Some(waited) => waited.and_then(|_| operation.read(&socket, Mode::NonBlocking)),
            None => host.wait(|| {
                let _guard = PanicGuard(self);
                failpoint::hit("driver.wait");
                read(&socket, &mut operation)
            }),
        };
        let mut state = self.lock(host);
        state.reading = false;
        let outcome = match &result {
            Err(error) if is_transient(error) => Err(io::Error::from(error.kind())),
            _ => Ok(()),
        };
        if !state.driver.is_over() {
            state.driver.complete_read(operation, result);
        }
        self.notify(&mut state);
        (state, outcome)
    }

    /// Handles due keepalive pings. Returns when the next call is due.
    #[inline]
    fn handle_keepalive(&self, state: &mut State<B, M>, now: Instant) -> Option<Instant> {
        match state.driver.send_half().keepalive.poll(now) {
            Due::Nothing(next) => next,
            Due::Ping | Due::Check => self.handle_due_keepalive(state, now),
        }
    }

    #[cold]
    fn handle_due_keepalive(&self, state: &mut State<B, M>, now: Instant) -> Option<Instant> {
        let retry = state.driver.handle_deadline(now, Reading::Going, 0);
        self.flush_some(state);
        let next = state.driver.deadline(now);
        // The connection has failed; the caller handles that immediately.
        let failed = state.driver.send_half().failure().is_some().then_some(now);
        failed.or(match (retry, next) {
            (Some(retry), Some(next)) => Some(next.max(retry)),
            (retry, next) => retry.or(next),
        })
    }
}

/// Adapts the host to the [`Receiver`] of the inbox.
struct HostReceiver<'a, H>(&'a H);

impl<H: Host> Receiver<H::Buffer> for HostReceiver<'_, H> {
    type Message = H::Message;
    type Error = H::Interrupt;

    #[inline]
    fn message(
        &mut self,
        kind: MessageKind,
        payload: Payload<'_, H::Buffer>,
        whole: bool,
    ) -> Result<H::Message, H::Interrupt> {
        self.0.message(kind, payload, whole)
    }

    fn join(&mut self, kind: MessageKind, fragments: Vec<H::Message>) -> Result<H::Message, H::Interrupt> {
        self.0.join(kind, fragments)
    }

    fn ping(&mut self, _: &[u8]) {}

    fn pong(&mut self, _: &[u8]) {}
}

/// Reads once, blocking until `wake` at most. `WouldBlock`: it woke for another reason, possibly early.
fn read_until<B: PayloadBuffer>(
    socket: &Socket,
    operation: &mut ReadOperation<B>,
    now: Instant,
    wake: Option<Instant>,
    spin: Option<Instant>,
    interest: Readiness,
) -> io::Result<usize> {
    if let Some(until) = spin {
        loop {
            match operation.read(socket, Mode::NonBlocking) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if Instant::now() >= until {
                // A non-blocking system call is not interrupted by signals, so check for them.
                return Err(io::ErrorKind::Interrupted.into());
            }
            std::hint::spin_loop();
        }
    }
    if !interest.writable {
        match wake {
            Some(wake) if wake <= now => return operation.read(socket, Mode::NonBlocking),
            wake => {
                // Uses one system call, where poll(2) and a read would be two.
                if socket.set_receive_wait(wake.map(|wake| wake - now))? {
                    return operation.read(socket, Mode::Blocking);
                }
            }
        }
    }
    socket.wait(interest, wake)?;
    operation.read(socket, Mode::NonBlocking)
}
