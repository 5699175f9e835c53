//! A connection that threads wait on: any number may send and receive, none of them is a helper.
//!
//! All state is behind one lock, which is never held across a system call that can sleep. Two roles say who
//! sleeps in the socket: at most one thread is the *reader* (`State::reading`), and at most one has the
//! *turn* to send (`State::sending`), which it keeps while the kernel has no room or the middle of a large
//! frame is out. Everybody else waits for a change ([`Blocking::wait_for_change`]). A thread that waits for
//! room to send reads too, if nobody does: so two ends that both send more than the kernel holds do not block
//! each other.
//!
//! The lock order is: the host's own lock (an interpreter's), then this one; a thread that would have to wait
//! for this one gives the host's up first.

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
use crate::thread::{LAST_PATIENCE, this_thread};

pub use crate::connection::Item;
pub use host::{Host, Source};
pub use receiving::Timeout;
pub use sending::PingTicket;

/// Why a call on a connection did not do what it should.
#[derive(Debug)]
pub enum Error<I> {
    /// The host wants to stop.
    Interrupted(I),
    /// The deadline has passed. Nothing is lost.
    TimedOut,
    /// The connection is closed, or closing; [`Blocking::closing`] says how.
    Closed,
    /// The call itself is wrong.
    Refused(crate::protocol::SendError),
    /// A message is being received in fragments: nothing else can be received before its end.
    Streaming,
    /// As much as may be is queued already, and nobody receives it.
    QueueFull,
    /// A ping with this payload is still unanswered.
    PingOutstanding,
}

/// How long a connection may wait for what, and how much it may keep for an application that does not
/// receive.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// For the peer's part of the closing handshake and of the end of TCP. `None`: for ever.
    pub close_timeout: Option<Duration>,
    /// Messages kept above which a connection whose application does not receive stops reading; they may be
    /// more as long as they are small.
    pub queue_messages: usize,
    /// Bytes kept, likewise.
    pub queue_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { close_timeout: Some(Duration::from_secs(10)), queue_messages: 16, queue_bytes: 4 << 20 }
    }
}

struct State<B, M> {
    /// Threads in a system call hold its socket too, so that the number is not reused under them.
    driver: ConnectionDriver<B, Arc<Socket>>,
    inbox: Inbox<M>,
    reading: bool,
    sending: bool,
    /// Threads in [`Blocking::wait_for_change`].
    waiting: usize,
    /// Counts the changes that they wait for.
    changes: u64,
    /// Something was sent since somebody last read.
    only_sends: bool,
    /// When a sender last looked whether anything came.
    looked: Instant,
    tickets: Vec<Arc<PingTicket>>,
}

impl<B: PayloadBuffer, M> State<B, M> {
    /// A panic has left it, perhaps half changed: whoever waits, or sleeps in the socket, looks up and finds the lock
    /// poisoned. Nothing else is touched.
    #[cold]
    fn rouse(&mut self) {
        self.changes = self.changes.wrapping_add(1);
        self.driver.rouse();
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
            looked: Instant::now(),
            tickets: Vec::new(),
        }
    }
}

/// A connection for threads that wait. See the module's documentation.
pub struct Blocking<B, M> {
    state: Arc<Mutex<State<B, M>>>,
    changed: Condvar,
    settings: Settings,
    /// The thread that has the lock, as [`this_thread`] numbers them; 0: none.
    holder: AtomicUsize,
    /// The process that this connection belongs to, as [`entropy::forks`] counts them.
    generation: u64,
    side: Side,
    /// What is looked at instead in a child process, if a thread of the parent had the lock at the fork: it
    /// will never be given up here.
    disowned: OnceLock<Mutex<State<B, M>>>,
}

/// The lock, held; it remembers by whom.
struct Guard<'a, B: PayloadBuffer, M> {
    state: MutexGuard<'a, State<B, M>>,
    of: &'a Blocking<B, M>,
    /// This thread panicked before it had the lock: it is in a finalizer, perhaps, of what a panic unwinds.
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
            self.state.rouse();
            self.of.changed.notify_all();
        }
        self.of.holder.store(0, Ordering::Relaxed); // before the lock is given up, which is dropped after this
    }
}

/// A thread that does its part without the lock: whoever waits for it does not wait for ever if it panics.
struct Away<'a, B: PayloadBuffer + Send, M: Send>(&'a Blocking<B, M>);

impl<B: PayloadBuffer + Send, M: Send> Drop for Away<'_, B, M> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.current().lock().unwrap_or_else(PoisonError::into_inner);
            self.0.forget(&mut state, Failure::Defect);
        }
    }
}

/// How often a thread that waits for another thread's work asks its host whether to stop: a condition
/// variable does not wake for signals.
const INTERRUPT_CHECK: Duration = Duration::from_millis(50);

/// How often a call that waits for another one's work looks whether it is done, on a host that waits in its own way.
const LOOK_ASIDE: Duration = Duration::from_millis(5);

impl<B: PayloadBuffer + Send, M: Send> Blocking<B, M> {
    /// Joins a peer to its socket, which is in blocking mode.
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
            disowned: OnceLock::new(),
        }
    }

    /// The lock, and the only way to the state; waiting for it gives up the host's own. In a child process
    /// the connection is the parent's: the copy is over.
    #[inline]
    fn lock<H: Host<Buffer = B, Message = M>>(&self, host: &H) -> Guard<'_, B, M> {
        let mut patience = None;
        loop {
            match self.current().try_lock() {
                Ok(state) => {
                    let mut state = self.hold(state);
                    if state.driver.send_half().is_forked() && !state.driver.is_over() {
                        self.forget(&mut state, Failure::Forked);
                    }
                    return state;
                }
                Err(std::sync::TryLockError::Poisoned(poisoned)) => {
                    let mut state = self.hold(poisoned.into_inner());
                    self.current().clear_poison();
                    self.forget(&mut state, Failure::Defect);
                    return state;
                }
                // Of a thread that there is not, perhaps in the middle of a change: what it has is never looked at.
                Err(std::sync::TryLockError::WouldBlock) if self.generation != fork::generation() => {
                    self.disown(Failure::Forked);
                }
                Err(std::sync::TryLockError::WouldBlock) if host.is_ending() => {
                    if *patience.get_or_insert_with(|| Instant::now() + LAST_PATIENCE) <= Instant::now() {
                        self.disown(Failure::Ending);
                    }
                    host.wait(|| std::thread::sleep(LAST_PATIENCE / 50));
                }
                Err(std::sync::TryLockError::WouldBlock) => {
                    host.wait(|| drop(self.current().lock().unwrap_or_else(PoisonError::into_inner)));
                }
            }
        }
    }

    #[cold]
    fn disown(&self, failure: Failure) {
        self.disowned
            .get_or_init(|| Mutex::new(State::new(ConnectionDriver::disowned(self.side, failure), &self.settings)));
    }

    /// The state, or what stands for it.
    #[inline]
    fn current(&self) -> &Mutex<State<B, M>> {
        self.disowned.get().unwrap_or(&self.state)
    }

    #[inline]
    fn hold<'a>(&'a self, state: MutexGuard<'a, State<B, M>>) -> Guard<'a, B, M> {
        self.holder.store(this_thread(), Ordering::Relaxed);
        Guard { state, of: self, unwinding: std::thread::panicking() }
    }

    /// Whether this thread has the lock, so that it would wait for itself: it is inside a layer, or a
    /// finalizer, that called back.
    #[must_use]
    #[inline]
    pub fn is_reentrant(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == this_thread() && self.generation == fork::generation()
    }

    /// Those who read and send are no more, or not to be relied on: a thread has panicked inside, which is a
    /// bug, or this is another process.
    #[cold]
    fn forget(&self, state: &mut State<B, M>, failure: Failure) {
        state.reading = false;
        state.sending = false;
        self.end(state, failure);
    }

    /// Waits until another thread has changed something, or until `deadline`.
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
            let changed = match host.wait_aside(None, Some(until.min(Instant::now() + LOOK_ASIDE))) {
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
            // Also when something has changed: with keepalive at work this may be all the time.
            if let Err(interrupt) = host.check_interrupt() {
                break Err(Error::Interrupted(interrupt));
            }
            if changed {
                break Ok(());
            }
            if host.is_ending() {
                // Whoever would change it has ended with the program.
                let mut state = self.lock(host);
                self.forget(&mut state, Failure::Ending);
                break Ok(());
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                break Err(Error::TimedOut);
            }
        };
        let mut state = self.lock(host);
        // What stands for a connection that cannot be looked at has counted nobody.
        state.waiting = state.waiting.saturating_sub(1);
        result.map(|()| state)
    }

    /// Wakes the threads that wait for a change.
    fn notify(&self, state: &mut State<B, M>) {
        if state.waiting > 0 {
            state.changes += 1;
            self.changed.notify_all();
        }
    }

    /// Ends the connection here and now.
    fn end(&self, state: &mut State<B, M>, failure: Failure) {
        state.driver.end(failure);
        self.ended(state);
    }

    /// It is over: tells all who wait.
    fn ended(&self, state: &mut State<B, M>) {
        drop(state.driver.take_ended());
        PingTicket::fail_all(&mut state.tickets);
        self.changed_always(state);
    }

    fn changed_always(&self, state: &mut State<B, M>) {
        state.changes += 1;
        self.changed.notify_all();
    }

    // ---- looking ----

    /// Runs `f` with the peer.
    pub fn with_endpoint<H: Host<Buffer = B, Message = M>, R>(
        &self,
        host: &H,
        f: impl FnOnce(&mut Endpoint<B>) -> R,
    ) -> R {
        f(&mut self.lock(host).driver.endpoint)
    }

    /// Runs `f` with the peer, for a garbage collector, which may run anywhere and must not wait: `None` if any thread
    /// has the lock.
    pub fn peek<R>(&self, f: impl FnOnce(&Endpoint<B>) -> R) -> Option<R> {
        self.current().try_lock().ok().map(|state| f(&state.driver.endpoint))
    }

    /// Where the connection is: the protocol's state, and whether TCP is over.
    pub fn state<H: Host<Buffer = B, Message = M>>(&self, host: &H) -> (ProtocolState, bool) {
        let state = self.lock(host);
        (state.driver.send_half().state(), state.driver.is_over())
    }

    /// How the connection ended, or is ending.
    pub fn closing<H: Host<Buffer = B, Message = M>>(&self, host: &H) -> Closing {
        self.lock(host).driver.send_half().closing()
    }

    /// Counters, and what waits: messages and bytes received that the application has not taken, bytes to be
    /// written.
    pub fn stats<H: Host<Buffer = B, Message = M>>(&self, host: &H) -> (Stats, usize, usize, usize) {
        let state = self.lock(host);
        let send_half = state.driver.send_half();
        (send_half.stats(), state.inbox.len(), state.inbox.payload_bytes(), send_half.queued())
    }

    /// The socket, unless TCP is over.
    pub fn socket<H: Host<Buffer = B, Message = M>>(&self, host: &H) -> Option<Arc<Socket>> {
        self.lock(host).driver.socket().cloned()
    }
}

impl<B, M> Drop for Blocking<B, M> {
    fn drop(&mut self) {
        // With the lock taken by a thread that there is not, the state is left alone: it leaks, in a child
        // process.
        if let Err(std::sync::TryLockError::WouldBlock) = self.state.try_lock() {
            std::mem::forget(Arc::clone(&self.state));
        }
    }
}

/// The earlier of two moments, either of which may never come.
pub(crate) fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Whether an error of a system call only asks to try again.
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
    fn what_a_thread_that_there_is_not_has_locked_is_left_alone() {
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
