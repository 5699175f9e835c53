//! Waiting for messages.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wirespeed_protocol::{CloseCode, Delivery, Payload, PayloadBuffer};

use super::sending::Stop;
use super::{Blocking, Error, Guard, Host, INTERRUPT_CHECK, Item, Settings, State, earliest, is_transient};
use crate::keepalive::Due;
use crate::peer::{Failure, PeerEvent, ReadOperation};
use crate::socket::{Mode, Readiness, Socket};

/// What a queued message costs beside its bytes, roughly: an object of the host and its place in the queue.
const ITEM_COST: usize = 64;

/// How long to poll the socket without sleeping before signals are looked for.
const SPIN_SLICE: Duration = Duration::from_millis(10);

/// Whether to wait for a message.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// Until this moment; `None`: for ever. At least one attempt is made.
    Until(Option<Instant>),
    /// Poll the socket without sleeping until the first moment, then as [`Self::Until`] the second.
    Spin(Instant, Option<Instant>),
}

impl Patience {
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) | Self::Spin(_, deadline) => deadline,
        }
    }
}

impl<B: PayloadBuffer + Send, M: Send> Blocking<B, M> {
    /// The next message or, with [`Delivery::Fragments`], the next fragment.
    #[inline]
    pub fn receive<H: Host<Buffer = B, Message = M>>(
        &self,
        host: &H,
        patience: Patience,
        delivery: Delivery,
    ) -> Result<Item<M>, Error<H::Interrupt>> {
        let mut state = self.lock(host);
        let mut waited = false;
        loop {
            if state.streaming && delivery == Delivery::Messages {
                return Err(Error::Streaming);
            }
            if let Some(item) = self.pop(&mut state) {
                self.notify(&mut state);
                return Ok(item);
            }
            self.set_delivery(&mut state, delivery);
            if let Some(item) = self.poll(&mut state, host)? {
                state.peer.release_parsed();
                state.streaming = !item.fin;
                return Ok(item);
            }
            // A message that arrives in many pieces, or pings without end, must not hold up the deadline.
            if waited && patience.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(Error::TimedOut);
            }
            waited = true;
            state = self.advance(state, host, patience)?;
        }
    }

    /// All messages that are there, one at least, `limit` at most.
    pub fn receive_many<H: Host<Buffer = B, Message = M>>(
        &self,
        host: &H,
        patience: Patience,
        limit: usize,
    ) -> Result<Vec<Item<M>>, Error<H::Interrupt>> {
        let mut items = vec![self.receive(host, patience, Delivery::Messages)?];
        let mut state = self.lock(host);
        while items.len() < limit && !state.streaming {
            if let Some(item) = self.pop(&mut state) {
                items.push(item);
                continue;
            }
            self.set_delivery(&mut state, Delivery::Messages);
            match self.poll(&mut state, host) {
                Ok(Some(item)) => items.push(item),
                // What ended it, if anything did, is for the next call: these messages come first.
                Ok(None) | Err(_) => break,
            }
        }
        state.peer.release_parsed();
        self.flush_some(&mut state);
        self.notify(&mut state);
        Ok(items)
    }

    /// Takes items back that were received last, in their order: they will be received again.
    pub fn put_back<H: Host<Buffer = B, Message = M>>(
        &self,
        host: &H,
        items: impl DoubleEndedIterator<Item = Item<M>>,
    ) {
        let mut state = self.lock(host);
        for item in items.rev() {
            state.queued_bytes += item.len + ITEM_COST;
            state.queue.push_front(item);
        }
        self.notify(&mut state);
    }

    /// Drops the rest of the message whose fragments were being received.
    pub fn discard_message<H: Host<Buffer = B, Message = M>>(&self, host: &H) {
        let mut state = self.lock(host);
        while state.streaming {
            if self.pop(&mut state).is_none() {
                state.discarding = true;
                state.streaming = false;
            }
        }
        self.notify(&mut state);
    }

    /// The next item that was queued.
    #[inline]
    fn pop(&self, state: &mut State<B, M>) -> Option<Item<M>> {
        let item = state.queue.pop_front()?;
        state.queued_bytes -= item.len + ITEM_COST;
        state.streaming = !item.fin;
        Some(item)
    }

    #[inline]
    fn set_delivery(&self, state: &mut State<B, M>, delivery: Delivery) {
        if state.delivery != delivery {
            state.delivery = delivery;
            state.peer.set_delivery(delivery);
        }
    }

    /// The next item in what was read. Handles everything else that is found on the way, and sends what answers it: the caller may return at once, and
    /// nobody else would.
    #[inline]
    fn poll<H: Host<Buffer = B, Message = M>>(
        &self,
        state: &mut State<B, M>,
        host: &H,
    ) -> Result<Option<Item<M>>, Error<H::Interrupt>> {
        let result = self.poll_unanswered(state, host);
        self.flush_some(state);
        result
    }

    #[inline]
    fn poll_unanswered<H: Host<Buffer = B, Message = M>>(
        &self,
        state: &mut State<B, M>,
        host: &H,
    ) -> Result<Option<Item<M>>, Error<H::Interrupt>> {
        loop {
            let (kind, payload, fin) = match state.peer.poll_event() {
                None => break,
                Some(PeerEvent::Message { kind, payload }) => (kind, payload, true),
                Some(PeerEvent::Fragment { kind, payload, fin }) => (kind, payload, fin),
                Some(PeerEvent::Ping(_)) => continue,
                Some(PeerEvent::Pong(payload)) => {
                    self.handle_pong(state, payload.as_slice());
                    continue;
                }
                // What is left of the input is discarded by polling on.
                Some(PeerEvent::Closing) => continue,
            };
            if state.discarding {
                state.discarding = !fin;
                continue;
            }
            if state.dropping && is_full(&self.settings, state.queue.len(), state.queued_bytes) {
                continue;
            }
            let len = match &payload {
                Payload::Slice(slice) => slice.len(),
                Payload::Buffer(buffer) => buffer.as_slice().len(),
            };
            let whole = fin && !state.streaming && state.delivery == Delivery::Messages;
            let message = host.message(kind, payload, whole).map_err(Error::Interrupted)?;
            return Ok(Some(Item { kind, message, fin, len }));
        }
        state.peer.poll_eof();
        Ok(None)
    }

    fn handle_pong(&self, state: &mut State<B, M>, payload: &[u8]) {
        if let Some((answered, latency)) = state.peer.link.keepalive.handle_pong(payload, Instant::now()) {
            state.tickets.retain(|ticket| !ticket.settle(&answered, latency));
            self.changed_always(state);
        }
    }

    /// Everything that was read is parsed: makes the next thing happen, by waiting if need be. Returns `Closed` once TCP is over.
    fn advance<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
        patience: Patience,
    ) -> Result<Guard<'a, B, M>, Error<H::Interrupt>> {
        if self.is_over(&state) {
            self.finish(state, host, patience.deadline())?;
            return Err(Error::Closed);
        }
        self.flush_some(&mut state);
        self.wait_for_input(state, host, patience)
    }

    /// Makes the next thing happen for a caller that wants something else than messages, and has queued those that there were.
    pub(super) fn pump<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
        deadline: Option<Instant>,
    ) -> Result<Guard<'a, B, M>, Error<H::Interrupt>> {
        self.flush_some(&mut state);
        if !self.is_queue_full(&state) {
            return self.wait_for_input(state, host, Patience::Until(deadline));
        }
        // Another thread has to receive first. Without one, and without a deadline, this would be for ever.
        if deadline.is_none() && state.waiting == 0 && !state.reading {
            return Err(Error::QueueFull);
        }
        self.wait_for_change(state, host, deadline)
    }

    /// Moves what was read to the queue.
    pub(super) fn fill_queue<H: Host<Buffer = B, Message = M>>(
        &self,
        state: &mut State<B, M>,
        host: &H,
    ) -> Result<(), Error<H::Interrupt>> {
        // The fragments of a message that somebody receives in fragments stay fragments.
        if !state.streaming {
            self.set_delivery(state, Delivery::Messages);
        }
        while state.dropping || !self.is_queue_full(state) {
            let Some(item) = self.poll(state, host)? else { break };
            state.queued_bytes += item.len + ITEM_COST;
            state.queue.push_back(item);
            self.notify(state);
        }
        state.peer.release_parsed();
        Ok(())
    }

    /// Whether nothing more may be read for an application that does not receive.
    pub(super) fn is_queue_full(&self, state: &State<B, M>) -> bool {
        !state.dropping && is_full(&self.settings, state.queue.len(), state.queued_bytes + state.peer.unparsed())
    }

    /// Whether nothing will be received any more.
    pub(super) fn is_over(&self, state: &State<B, M>) -> bool {
        state.socket.is_none() || (!state.peer.link.state().can_receive() && !state.peer.has_input())
    }

    /// Hands the kernel what is queued, as far as it has room.
    #[inline]
    pub(super) fn flush_some(&self, state: &mut State<B, M>) {
        if state.peer.link.queued() > 0
            && !state.sending
            && let Some(socket) = &state.socket
        {
            // A failure is kept by the peer, and told when its last bytes have been read.
            let _ = state.peer.link.flush(socket, Mode::NonBlocking);
        }
    }

    /// Waits until bytes were read, by this thread or another.
    fn wait_for_input<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
        patience: Patience,
    ) -> Result<Guard<'a, B, M>, Error<H::Interrupt>> {
        let now = Instant::now();
        // In the closing handshake the peer has limited time.
        let mut wake = if state.finish_by.is_some() { self.finish_by(&mut state, now) } else { None };
        if wake.is_some_and(|wake| wake <= now) {
            self.end(&mut state, Failure::CloseTimeout);
            return Err(Error::Closed);
        }
        if state.reading {
            wake = earliest(wake, patience.deadline());
            if state.peer.link.queued() == 0 || state.sending {
                return self.wait_for_change(state, host, wake).or_else(|error| match error {
                    // The caller's deadline, or not yet.
                    Error::TimedOut if patience.deadline() != wake => Ok(self.lock(host)),
                    error => Err(error),
                });
            }
            // The reader sleeps, and does not know that something was queued meanwhile.
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
        wake = earliest(wake, self.attend(&mut state, now));
        wake = earliest(wake, patience.deadline());
        let spin = match patience {
            Patience::Spin(until, _) if until > now => Some(until.min(now + SPIN_SLICE)),
            _ => None,
        };
        let interest =
            Readiness { readable: true, writable: spin.is_none() && state.peer.link.queued() > 0 && !state.sending };
        let (mut state, result) =
            self.read(state, host, move |socket, operation| read_before(socket, operation, now, wake, spin, interest));
        match result {
            Ok(()) => Ok(state),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                // The handler may call anything on this connection: not under its lock.
                drop(state);
                host.check_interrupt().map_err(Error::Interrupted)?;
                Ok(self.lock(host))
            }
            // Nothing came, for now.
            Err(_) => {
                let now = Instant::now();
                state.attended = now;
                if patience.deadline().is_some_and(|deadline| deadline <= now) {
                    // What is due for the keepalive was seen to above; it will be seen to again by the next call.
                    return Err(Error::TimedOut);
                }
                Ok(state)
            }
        }
    }

    /// Reads once by `read`, outside the lock. An error means that nothing was read and that it may be tried again.
    pub(super) fn read<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
        read: impl FnOnce(&Socket, &mut ReadOperation<B>) -> io::Result<usize> + Send,
    ) -> (Guard<'a, B, M>, io::Result<()>) {
        let Some(socket) = state.socket.as_ref().map(Arc::clone) else { return (state, Ok(())) };
        let room = self.settings.queue_bytes.saturating_sub(state.queued_bytes);
        let mut operation = state.peer.begin_read(room);
        state.reading = true;
        state.only_sends = false;
        drop(state);
        let result = host.wait(|| read(&socket, &mut operation));
        let mut state = self.lock(host);
        state.reading = false;
        let told = match &result {
            Err(error) if is_transient(error) => Err(io::Error::from(error.kind())),
            _ => Ok(()),
        };
        if state.socket.is_some() {
            state.peer.complete_read(operation, result);
        }
        self.notify(&mut state);
        (state, told)
    }

    /// Sees to the keepalive; when it has to be seen to again.
    pub(super) fn attend(&self, state: &mut State<B, M>, now: Instant) -> Option<Instant> {
        let absent = now.saturating_duration_since(state.attended);
        state.attended = now;
        for _ in 0..2 {
            match state.peer.link.keepalive.poll(now) {
                Due::Nothing(next) => return next,
                Due::Ping => {
                    state.peer.link.release_idle();
                    state.peer.link.send_keepalive(now);
                    self.flush_some(state);
                    if state.peer.link.is_mid_frame() {
                        return Some(now + INTERRUPT_CHECK); // when the frame is out
                    }
                }
                Due::TimedOut => {
                    let timeout = state.peer.link.keepalive.timeout().unwrap_or(Duration::MAX);
                    // Nobody was reading: the pong may be waiting in the kernel, or behind what the peer could not send.
                    if absent > timeout / 2 && state.peer.link.keepalive.handle_resumed(now) {
                        continue;
                    }
                    if let Some(socket) = &state.socket {
                        if matches!(socket.wait(Readiness { readable: true, writable: false }, Some(now)), Ok(ready) if ready.readable)
                        {
                            return Some(now); // something is there: it is read first
                        }
                        state.peer.fail_with_code(
                            Failure::KeepaliveTimeout,
                            CloseCode::INTERNAL_ERROR,
                            "keepalive ping timeout",
                        );
                        return Some(now);
                    }
                }
            }
        }
        None
    }
}

fn is_full(settings: &Settings, messages: usize, bytes: usize) -> bool {
    messages >= settings.queue_messages && bytes >= settings.queue_bytes
}

/// Reads once, sleeping until `wake` at most; `WouldBlock` means that it woke for another reason, possibly early.
fn read_before<B: PayloadBuffer>(
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
                // A system call that does not sleep is not interrupted by signals: look for them.
                return Err(io::ErrorKind::Interrupted.into());
            }
            std::hint::spin_loop();
        }
    }
    if !interest.writable {
        match wake {
            Some(wake) if wake <= now => return operation.read(socket, Mode::NonBlocking),
            wake => {
                // One system call where poll(2) would make it two.
                if socket.set_receive_wait(wake.map(|wake| wake - now))? {
                    return operation.read(socket, Mode::Blocking);
                }
            }
        }
    }
    socket.wait(interest, wake)?;
    operation.read(socket, Mode::NonBlocking)
}
