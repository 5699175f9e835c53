//! A connection for threads that block: any number of threads may send and receive, without a helper thread.
//!
//! All state is behind one lock, which is never held during a system call that can block. Two roles decide which
//! threads block in the socket:
//! - The *reader* (`State::reading`), at most one thread, reads from the socket.
//! - The *writer* (`State::sending`), at most one thread, waits while the kernel has no room or a large frame is
//!   incomplete.
//!
//! All other threads wait for a change (`Blocking::wait_for_change`). A writer that waits for room also reads if
//! there is no reader. So two ends that both send more than the kernel buffers do not deadlock.
//!
//! The lock order is: the host's own lock (an interpreter's), then this one. A thread that must wait for this lock
//! releases the host's first.

mod closing;
mod host;
mod receiving;
mod sending;

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use wirespeed_protocol::{PayloadBuffer, Side, State as ProtocolState};

use crate::connection::{ConnectionDriver, Inbox, Watermarks};
use crate::endpoint::{Closing, Endpoint, Failure, Stats};
use crate::fork;
use crate::socket::Socket;
use crate::thread::{SHUTDOWN_WAIT, this_thread};

pub use crate::connection::Item;
pub use host::Host;
pub use receiving::Timeout;
pub use sending::PingTicket;

/// Why a call on a connection has failed.
#[derive(Debug)]
pub enum Error<I> {
    /// The host interrupts the call.
    Interrupted(I),
    /// The deadline has passed; no data is lost.
    TimedOut,
    /// The connection is closed or closing; [`Blocking::closing`] returns how.
    Closed,
    /// The call is invalid in the current state.
    Refused(crate::protocol::SendError),
    /// A message is being received in fragments: whole messages cannot be received before its end.
    Streaming,
    /// The queue of received messages is full and no thread receives.
    QueueFull,
    /// A ping with this payload is unanswered.
    PingOutstanding,
}

/// The limits of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Time for the peer to answer the close frame and to end TCP. `None`: no limit.
    pub close_timeout: Option<Duration>,
    /// Number of unreceived messages above which reading stops, if `queue_bytes` is exceeded too.
    pub queue_messages: usize,
    /// Number of unreceived bytes above which reading stops, if `queue_messages` is exceeded too.
    pub queue_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { close_timeout: Some(Duration::from_secs(10)), queue_messages: 16, queue_bytes: 4 << 20 }
    }
}

struct State<B, M> {
    /// Threads in a system call hold the socket too, so that its file descriptor is not reused meanwhile.
    driver: ConnectionDriver<B, Arc<Socket>>,
    inbox: Inbox<M>,
    reading: bool,
    sending: bool,
    /// Number of threads in [`Blocking::wait_for_change`].
    waiting: usize,
    /// Counts the changes that those threads wait for.
    changes: u64,
    /// Something was sent since the last read.
    only_sends: bool,
    /// When a sender last checked for input.
    input_checked_at: Instant,
    tickets: Vec<Arc<PingTicket>>,
}

impl<B: PayloadBuffer, M> State<B, M> {
    /// Wakes all waiting threads after a panic, including those blocked in the socket; they find the lock poisoned.
    /// The state, perhaps half changed, is not touched otherwise.
    #[cold]
    fn wake_all(&mut self) {
        self.changes = self.changes.wrapping_add(1);
        self.driver.wake_blocked_threads();
    }

    fn new(driver: ConnectionDriver<B, Arc<Socket>>, settings: &Settings) -> Self {
        Self {
            driver,
            inbox: Inbox::new(Watermarks::at(settings.queue_messages), Watermarks::at(settings.queue_bytes)),
            reading: false,
            sending: false,
            waiting: 0,
            changes: 0,
            only_sends: false,
            input_checked_at: Instant::now(),
            tickets: Vec::new(),
        }
    }
}

/// A connection for threads that block: see the description of the roles at the top of this module.
///
/// 1. Each call locks the state, and waits for its role if another thread has it.
/// 2. It parses input ([`Self::receive`]) or queues output ([`Self::send`]), and writes as far as the kernel has
///    room.
/// 3. To wait, it releases the lock, blocks in the socket or for a change, locks again and starts over.
/// 4. At the end, [`Self::close`] performs the closing handshake; afterwards each call returns [`Error::Closed`].
pub struct Blocking<B, M> {
    state: Arc<Mutex<State<B, M>>>,
    changed: Condvar,
    settings: Settings,
    /// The thread that holds the lock, as numbered by [`this_thread`]; 0: none.
    holder: AtomicUsize,
    /// The [`fork::generation`] of the process that this connection belongs to.
    generation: u64,
    side: Side,
    /// Replaces `state` if a thread that does not exist in this process holds the lock, which is then never
    /// released: after a fork or while the interpreter shuts down.
    replacement: OnceLock<Mutex<State<B, M>>>,
}

/// The held lock, which records its thread in `holder`.
struct Guard<'a, B: PayloadBuffer, M> {
    state: MutexGuard<'a, State<B, M>>,
    of: &'a Blocking<B, M>,
    /// This thread was panicking before it took the lock, perhaps in a finalizer.
    unwinding: bool,
}

impl<B: PayloadBuffer, M> Deref for Guard<'_, B, M> {
    type Target = State<B, M>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.state
    }
}

impl<B: PayloadBuffer, M> DerefMut for Guard<'_, B, M> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.state
    }
}

impl<B: PayloadBuffer, M> Drop for Guard<'_, B, M> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            self.state.wake_all();
            self.of.changed.notify_all();
        }
        self.of.holder.store(0, Ordering::Relaxed); // before the lock is given up, which is dropped after this
    }
}

/// A thread that works without the lock. If it panics, the connection ends, so that no thread waits for it.
struct PanicGuard<'a, B: PayloadBuffer + Send, M: Send>(&'a Blocking<B, M>);

impl<B: PayloadBuffer + Send, M: Send> Drop for PanicGuard<'_, B, M> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.current().lock().unwrap_or_else(PoisonError::into_inner);
            self.0.end_abandoned(&mut state, Failure::Defect);
        }
    }
}

/// How often a thread that waits for a change checks for interrupts: a condition variable does not wake for
/// signals.
const INTERRUPT_CHECK: Duration = Duration::from_millis(50);

/// How often a thread that waits cooperatively checks for a change.
const COOPERATIVE_CHECK_INTERVAL: Duration = Duration::from_millis(5);

impl<B: PayloadBuffer + Send, M: Send> Blocking<B, M> {
    /// Joins an endpoint to its socket, which is in blocking mode.
    #[must_use]
    pub fn new(endpoint: Endpoint<B>, socket: Socket, settings: Settings) -> Self {
        let side = endpoint.side();
        let driver = ConnectionDriver::new(endpoint, Some(Arc::new(socket)), settings.close_timeout);
        Self {
            side,
            state: Arc::new(Mutex::new(State::new(driver, &settings))),
            changed: Condvar::new(),
            settings,
            holder: AtomicUsize::new(0),
            generation: fork::generation(),
            replacement: OnceLock::new(),
        }
    }

    /// Locks the state; there is no other access to it. While waiting, the host's own lock is released. In a child
    /// process the connection belongs to the parent, so the copy ends here.
    #[inline]
    fn lock<H: Host<Buffer = B, Message = M>>(&self, host: &H) -> Guard<'_, B, M> {
        let mut patience = None;
        loop {
            match self.current().try_lock() {
                Ok(state) => {
                    let mut state = self.hold(state);
                    if state.driver.send_half().is_forked() && !state.driver.is_over() {
                        self.end_abandoned(&mut state, Failure::Forked);
                    }
                    return state;
                }
                Err(std::sync::TryLockError::Poisoned(poisoned)) => {
                    let mut state = self.hold(poisoned.into_inner());
                    self.current().clear_poison();
                    self.end_abandoned(&mut state, Failure::Defect);
                    return state;
                }
                // The lock is held by a thread that does not exist here, perhaps in the middle of a change: the
                // state is never used.
                Err(std::sync::TryLockError::WouldBlock) if self.generation != fork::generation() => {
                    self.replace_state(Failure::Forked);
                }
                Err(std::sync::TryLockError::WouldBlock) if host.is_shutting_down() => {
                    if *patience.get_or_insert_with(|| Instant::now() + SHUTDOWN_WAIT) <= Instant::now() {
                        self.replace_state(Failure::ShuttingDown);
                    }
                    host.wait(|| std::thread::sleep(SHUTDOWN_WAIT / 50));
                }
                Err(std::sync::TryLockError::WouldBlock) => {
                    host.wait(|| drop(self.current().lock().unwrap_or_else(PoisonError::into_inner)));
                }
            }
        }
    }

    #[cold]
    fn replace_state(&self, failure: Failure) {
        self.replacement
            .get_or_init(|| Mutex::new(State::new(ConnectionDriver::placeholder(self.side, failure), &self.settings)));
    }

    /// Returns the state or its replacement.
    #[inline]
    fn current(&self) -> &Mutex<State<B, M>> {
        self.replacement.get().unwrap_or(&self.state)
    }

    #[inline]
    fn hold<'a>(&'a self, state: MutexGuard<'a, State<B, M>>) -> Guard<'a, B, M> {
        self.holder.store(this_thread(), Ordering::Relaxed);
        Guard { state, of: self, unwinding: std::thread::panicking() }
    }

    /// Returns whether this thread holds the lock and would deadlock: a layer or a finalizer has called back.
    #[must_use]
    #[inline]
    pub fn is_reentrant(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == this_thread() && self.generation == fork::generation()
    }

    /// Ends the connection without its reader and writer, after a panic of a thread, which is a bug, or in another
    /// process.
    #[cold]
    fn end_abandoned(&self, state: &mut State<B, M>, failure: Failure) {
        state.reading = false;
        state.sending = false;
        self.end(state, failure);
    }

    /// Waits until another thread has changed the state, or until `deadline`.
    fn wait_for_change<'a, H: Host<Buffer = B, Message = M>>(
        &'a self,
        mut state: Guard<'a, B, M>,
        host: &H,
        deadline: Option<Instant>,
    ) -> Result<Guard<'a, B, M>, Error<H::Interrupt>> {
        let seen = state.changes;
        state.waiting += 1;
        drop(state);
        let result = loop {
            let until = Instant::now() + INTERRUPT_CHECK;
            let until = deadline.map_or(until, |deadline| deadline.min(until));
            let changed =
                match host.wait_cooperatively(None, Some(until.min(Instant::now() + COOPERATIVE_CHECK_INTERVAL))) {
                    Some(_) => self.current().lock().unwrap_or_else(PoisonError::into_inner).changes != seen,
                    None => host.wait(|| {
                        let mut state = self.current().lock().unwrap_or_else(PoisonError::into_inner);
                        while state.changes == seen {
                            let left = until.saturating_duration_since(Instant::now());
                            if left.is_zero() {
                                return false;
                            }
                            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                        }
                        true
                    }),
                };
            // Also after a change: with keepalive pings, changes may be frequent.
            if let Err(interrupt) = host.check_interrupt() {
                break Err(Error::Interrupted(interrupt));
            }
            if changed {
                break Ok(());
            }
            if host.is_shutting_down() {
                // The thread that would make the change has ended with the interpreter.
                let mut state = self.lock(host);
                self.end_abandoned(&mut state, Failure::ShuttingDown);
                break Ok(());
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                break Err(Error::TimedOut);
            }
        };
        let mut state = self.lock(host);
        // A replacement state has not counted this thread.
        state.waiting = state.waiting.saturating_sub(1);
        result.map(|()| state)
    }

    /// Wakes the threads that wait for a change, if there are any.
    fn notify(&self, state: &mut State<B, M>) {
        if state.waiting > 0 {
            state.changes += 1;
            self.changed.notify_all();
        }
    }

    /// Ends the connection immediately.
    fn end(&self, state: &mut State<B, M>, failure: Failure) {
        state.driver.end(failure);
        self.notify_ended(state);
    }

    /// Notifies all waiting threads that the connection is over.
    fn notify_ended(&self, state: &mut State<B, M>) {
        drop(state.driver.take_ended());
        PingTicket::fail_all(&mut state.tickets);
        self.notify_always(state);
    }

    fn notify_always(&self, state: &mut State<B, M>) {
        state.changes += 1;
        self.changed.notify_all();
    }

    // ---- queries ----

    /// Runs `f` with the endpoint.
    pub fn with_endpoint<H: Host<Buffer = B, Message = M>, R>(
        &self,
        host: &H,
        f: impl FnOnce(&mut Endpoint<B>) -> R,
    ) -> R {
        f(self.lock(host).driver.endpoint_mut())
    }

    /// Runs `f` with the endpoint, for a garbage collector, which may run anywhere and must not block. Returns
    /// `None` if any thread holds the lock.
    pub fn peek<R>(&self, f: impl FnOnce(&Endpoint<B>) -> R) -> Option<R> {
        self.current().try_lock().ok().map(|state| f(state.driver.endpoint()))
    }

    /// Returns the protocol state, and whether TCP is over.
    pub fn state<H: Host<Buffer = B, Message = M>>(&self, host: &H) -> (ProtocolState, bool) {
        let state = self.lock(host);
        (state.driver.send_half().state(), state.driver.is_over())
    }

    /// Returns the close frames of the connection.
    pub fn closing<H: Host<Buffer = B, Message = M>>(&self, host: &H) -> Closing {
        self.lock(host).driver.send_half().closing()
    }

    /// Returns the counters, the number of unreceived messages and of their bytes, and the number of bytes to be
    /// written.
    pub fn stats<H: Host<Buffer = B, Message = M>>(&self, host: &H) -> (Stats, usize, usize, usize) {
        let state = self.lock(host);
        let send_half = state.driver.send_half();
        (send_half.stats(), state.inbox.len(), state.inbox.payload_bytes(), send_half.queued())
    }

    /// Returns the socket, unless TCP is over.
    pub fn socket<H: Host<Buffer = B, Message = M>>(&self, host: &H) -> Option<Arc<Socket>> {
        self.lock(host).driver.socket().cloned()
    }
}

impl<B, M> Drop for Blocking<B, M> {
    fn drop(&mut self) {
        // If a thread that does not exist in this process holds the lock, the state is not touched: it leaks.
        if let Err(std::sync::TryLockError::WouldBlock) = self.state.try_lock() {
            std::mem::forget(Arc::clone(&self.state));
        }
    }
}

/// Returns the earlier of two deadlines; `None`: never.
pub(crate) fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Returns whether an error of a system call only asks to try again.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use wirespeed_protocol::{Config, Connection, MessageKind};

    use super::*;
    use crate::keepalive::Keepalive;

    #[test]
    fn state_locked_by_a_lost_thread_is_leaked() {
        for lost in [false, true] {
            let (ours, _theirs) = UnixStream::pair().expect("two sockets");
            let connection = Connection::new(Config::new(Side::Client));
            let keepalive = Keepalive::new(None, None, Instant::now());
            let endpoint: Endpoint = Endpoint::new(connection, None, &[], Vec::new(), keepalive);
            let connection = Blocking::new(endpoint, Socket::new(OwnedFd::from(ours)), Settings::default());
            let message = Arc::new(());
            let item = Item { kind: MessageKind::Text, message: Arc::clone(&message), fin: true, len: 0 };
            let mut state = connection.state.lock().expect("no panic");
            state.inbox.put_back(std::iter::once(item));
            if lost {
                std::mem::forget(state)
            } else {
                drop(state)
            }
            drop(connection);
            assert_eq!(Arc::strong_count(&message), if lost { 2 } else { 1 });
        }
    }
}
