//! One worker thread of an engine: its listeners, its clients, its timers.
//!
//! Owns the event loop and everything that belongs to its clients; no other thread touches a client. Other threads
//! send [`Command`]s through the worker's mailbox. Knows no protocol rules: [`crate::connection`] moves the bytes.

mod accept;
mod backpressure;
mod client_io;
mod congested;
mod execute;
mod handshake_limit;
mod memory_limit;
mod poll;

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use mio::unix::SourceFd;
use mio::{Events as Ready, Interest, Poll, Token};
use wirespeed_driver::accept::HandshakeLimiter;
use wirespeed_driver::fork;

use crate::connection::Client;
use crate::control::{CapacityNotifier, Command, Mailbox, WorkerHandle};
use crate::delivery::memory::Share;
use crate::delivery::slow_consumer::SlowConsumerState;
use crate::events::{Batch, Put};
use crate::listen::{AcceptedSocket, Listener};
use crate::logs::Cause;
use crate::metrics::WorkerMetrics;
use crate::reasons::Reason;
use crate::shared::EngineShared;
use crate::topics::{Index, Registry, Topic, WorkerId};
use crate::util::slab::{Key, Slab};
use crate::util::timer_wheel::TimerWheel;
use crate::util::wakers::Wake;

use self::backpressure::BackpressureWaiters;
use self::congested::Congested;

/// Tokens below this number belong to listeners and the waker; the tokens of clients follow.
const LISTENERS: usize = 64;
const WAKER: Token = Token(LISTENERS - 1);

/// The maximum number of listeners of a worker.
pub(crate) const MAX_LISTENERS: usize = LISTENERS - 1;

/// An ending worker survives this number of panics, beside one for each client.
const EXTRA_PANICS: usize = 4;

/// The state of a worker thread.
///
/// # The order of one turn
/// 1. Wait for sockets, commands or time ([`Self::wait`]).
/// 2. If events have capacity again, move `paused` and `awaiting_admission` to `ready`; if topics may have capacity
///    again, move `backpressured` there.
/// 3. Handle the socket events ([`Self::edge`]).
/// 4. Accept sockets and start handshakes ([`Self::accept`]).
/// 5. Read each client of `ready` once ([`Self::read`]).
/// 6. Check the memory of all sessions ([`Self::check_memory`]).
/// 7. Execute commands, until 32 Ki messages were delivered ([`Self::execute_commands`]).
/// 8. Write the clients of `dirty`, then read those of `draining_input`.
/// 9. Check congested audiences and timers.
/// 10. Hand the batch of events to the consumers ([`Self::hand_on`]).
///
/// # The lists of clients
/// The kernel reports each edge once. A client that stops reading or writing before the kernel has nothing left is
/// therefore in one of these lists, in the timer wheel, or waits for an edge that is certain to come.
///
/// | list | its clients | flags of `Established` |
/// |---|---|---|
/// | `ready` | have more to read; they had their turn | `read_pending` |
/// | `paused` | are not read until events have capacity | `read_pending` |
/// | `draining_input` | are closing, and read although events are full; also in `paused` | `read_pending` |
/// | `backpressured` | belong to relays whose topic has no capacity | `read_pending` |
/// | `wheel` | exceed their message rate, or have a deadline | `read_pending` if limited; `listed` |
/// | none | are not read because their handler asked for that | `read_pending`, `reading_disabled`, `read_skipped` |
/// | `dirty` | have something to write | `dirty` |
/// | `awaiting_admission` | have completed the handshake, and become sessions once events have capacity | none yet |
/// | `pending` | have not sent their request yet | none yet |
/// | `to_be_refused` | are among `pending`, and will be refused | none yet |
pub(crate) struct Worker {
    worker: Arc<WorkerHandle>,
    shared: Arc<EngineShared>,
    metrics: Arc<WorkerMetrics>,
    poll: Poll,
    mailbox: Arc<Mailbox<Command>>,
    wake: Arc<dyn Wake>,
    listeners: Vec<Listener>,
    clients: Slab<Client>,
    /// Clients whose request has not arrived yet.
    pending: HandshakeLimiter<Key>,
    /// Clients of `pending` that are going to be refused.
    to_be_refused: HandshakeLimiter<Key>,
    /// The subscriptions of this worker's sessions.
    topics: Index<Key>,
    /// The sessions that get the message that is being published. Empty between two messages.
    audience: Vec<Key>,
    /// The number of messages published here. A client that subscribes in several ways gets each message once.
    published: u64,
    /// The deadlines of clients: usually one or two entries for each.
    wheel: TimerWheel<Key>,
    /// Clients that have more to read after their turn.
    ready: VecDeque<Key>,
    /// Clients that are not read until events have capacity.
    paused: Vec<Key>,
    /// Clients that become sessions once events have capacity. It may contain keys of clients that were removed.
    awaiting_admission: Vec<Key>,
    /// Clients of `paused` that are closing: they are read all the same.
    draining_input: Vec<Key>,
    /// Clients of relays whose topics have no capacity.
    backpressured: BackpressureWaiters,
    /// Clients that have something to write.
    dirty: Vec<Key>,
    /// Messages delivered to sessions in this turn.
    delivered: usize,
    /// Audiences (topics, or all sessions) whose publishers should wait; when to check them next, and the last check.
    congested: HashMap<Option<Topic>, Congested>,
    check_congestion_after: Instant,
    congestion_checked: Instant,
    /// Commands taken out of the mailbox and not executed yet.
    commands: VecDeque<Command>,
    /// Bytes of executed commands that the mailbox still counts: of messages, and of subscription commands.
    done: (usize, usize),
    /// The client that is being handled. A panic ends this one and no other.
    current: Option<Key>,
    batch: Batch,
    /// Whether events have capacity.
    events_have_capacity: bool,
    /// Indices of listeners at which more clients wait.
    accepting: Vec<usize>,
    /// Accepted sockets whose handshake has not started yet, and the maximum number of them.
    accepted: VecDeque<AcceptedSocket>,
    max_accepted: usize,
    /// Until then no client is accepted.
    accept_after: Option<Instant>,
    draining: bool,
    /// Once the listeners are closed, sessions are closed in batches until the last one is over.
    sheds: bool,
    /// The remaining clients in the backlogs are accepted; after that the listeners are closed.
    drain_backlog: bool,
    /// Listeners that are about to be closed, with the number of clients accepted there since.
    closing: Vec<(usize, usize)>,
    /// The worker has no clients, and accepts none.
    vacant: bool,
    /// Clients that [`Command::Shed`] has yet to close, a few at a time.
    leaving: Vec<Key>,
    /// When to check the memory of all sessions next, and the share of its limit that a stalled session may use.
    check_memory_after: Instant,
    share: Share,
    /// Bytes of messages that arrived since the last check of the memory.
    bytes_since_check: usize,
    /// When the message whose latency is being measured was published.
    published_at: Option<Instant>,
}

/// Creates a worker, before its thread begins.
pub(crate) fn prepare(
    worker: WorkerId,
    shared: Arc<EngineShared>,
    registry: Arc<Registry>,
    capacity: Arc<CapacityNotifier>,
    listeners: Vec<Listener>,
) -> io::Result<Worker> {
    let poll = Poll::new()?;
    let metrics =
        shared.metrics.get(worker.index()).map(Arc::clone).ok_or_else(|| io::Error::other("no such worker"))?;
    let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
    let wake: Arc<dyn Wake> = Arc::new(move || {
        // This fails only if the counter is full; then the worker is awake.
        let _ = waker.wake();
    });
    let mailbox = Arc::new(Mailbox::new(
        // Messages that are under way when a session is found to be behind must fit into its outbox.
        shared.config.mailbox_limit.min(shared.least_outbox() / 8).max(1),
        shared.config.mailbox_limit,
        Arc::clone(&wake),
        Arc::clone(&capacity),
    ));
    let (pending, acl) = (shared.pending, shared.config.acl.clone());
    let max_accepted = accept::max_accepted(pending, shared.metrics.len());
    for (index, listener) in listeners.iter().enumerate() {
        if let Some(socket) = &listener.socket {
            poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), Token(index), Interest::READABLE)?;
        }
    }
    Ok(Worker {
        worker: Arc::new(WorkerHandle {
            worker,
            mailbox: Arc::clone(&mailbox),
            registry,
            process: fork::generation(),
            capacity,
            congestion: SlowConsumerState::default(),
            arriving: AtomicUsize::new(0),
            memory: Arc::clone(&shared.memory),
            logs: Arc::clone(&shared.logs),
            acl,
        }),
        check_memory_after: Instant::now(),
        share: Share::default(),
        bytes_since_check: 0,
        shared,
        metrics,
        poll,
        mailbox,
        wake,
        pending: HandshakeLimiter::new(pending),
        to_be_refused: HandshakeLimiter::new(usize::MAX), // the engine counts them
        accepting: (0..listeners.len()).collect(),
        accepted: VecDeque::new(),
        max_accepted,
        listeners,
        clients: Slab::default(),
        topics: Index::new(),
        audience: Vec::new(),
        published: 0,
        wheel: TimerWheel::new(Instant::now()),
        ready: VecDeque::new(),
        paused: Vec::new(),
        awaiting_admission: Vec::new(),
        draining_input: Vec::new(),
        backpressured: BackpressureWaiters::default(),
        dirty: Vec::new(),
        delivered: 0,
        congested: HashMap::new(),
        check_congestion_after: Instant::now(),
        congestion_checked: Instant::now(),
        commands: VecDeque::new(),
        done: (0, 0),
        current: None,
        batch: Batch::default(),
        events_have_capacity: true,
        accept_after: None,
        draining: false,
        sheds: false,
        drain_backlog: false,
        closing: Vec::new(),
        vacant: false,
        leaving: Vec::new(),
        published_at: None,
    })
}

impl Worker {
    pub(crate) fn worker(&self) -> Arc<WorkerHandle> {
        Arc::clone(&self.worker)
    }

    /// Serves until the engine stops. The given listeners are added to those of [`prepare`].
    pub(crate) fn run(mut self, listeners: Vec<Listener>) -> io::Result<()> {
        listeners.into_iter().for_each(|listener| self.add_listener(listener));
        let result = loop {
            // A panic costs one session: that of the client being handled.
            match catch_unwind(AssertUnwindSafe(|| self.serve())) {
                Ok(result) => break result,
                Err(panic) => {
                    if !self.try_recover(panic) {
                        break Err(io::Error::other("a worker has panicked too often"));
                    }
                }
            }
        };
        if let Err(error) = &result {
            let text = || format!("worker {} and its sessions have ended: {error}", self.worker.worker.index());
            self.shared.logs.note(Cause::WorkerEnded, Instant::now(), text);
        }
        self.end();
        result
    }

    /// Ends without serving, because another worker could not start.
    pub(crate) fn give_up(mut self) -> io::Result<()> {
        self.end();
        Ok(())
    }

    /// Recovers from a panic. Returns whether the worker can go on.
    fn try_recover(&mut self, mut panic: Box<dyn Any + Send>) -> bool {
        for _ in 0..2 {
            match catch_unwind(AssertUnwindSafe(|| self.recover(&*panic))) {
                Ok(()) => return true,
                Err(next) => panic = next,
            }
        }
        false
    }

    /// Ends the session of the client being handled, after a panic.
    pub(super) fn end_current(&mut self, panic: &(dyn Any + Send)) {
        self.metrics.panics.add(1);
        let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let worker = self.worker.worker.index();
        self.shared.logs.note(Cause::Panic, Instant::now(), || {
            format!("worker {worker} has panicked, and ended one session: {}", said.unwrap_or("no message"))
        });
        if let Some(key) = self.current.take() {
            match self.clients.get_mut(key) {
                Some(Client::Established(client)) => drop(client.session.set_closed()),
                Some(Client::Opening(opening)) => opening.note_failure(Reason::Panic),
                None => {}
            }
            self.remove(key);
        }
    }

    fn recover(&mut self, panic: &(dyn Any + Send)) {
        self.end_current(panic);
        self.release_capacity();
        // Any list may be incomplete, and edges may be lost: every client gets a turn.
        self.accepting = (0..self.listeners.len()).collect();
        self.congested.clear();
        self.worker.congestion.clear();
        self.worker.capacity.notify();
        self.ready.clear();
        self.paused.clear();
        self.awaiting_admission.clear();
        self.draining_input.clear();
        self.backpressured = BackpressureWaiters::default();
        self.dirty.clear();
        let now = Instant::now();
        for key in self.clients.keys() {
            match self.clients.get_mut(key) {
                None => continue,
                Some(Client::Opening(opening)) => {
                    // Read until the kernel has nothing left: it is unknown which edges were handled.
                    opening.note_read_closed();
                    if let Some(at) = now.checked_add(self.shared.config.open_timeout) {
                        self.wheel.set(at, key);
                    }
                }
                Some(Client::Established(client)) => {
                    client.note_read_closed();
                    (client.dirty, client.read_pending) = (true, true);
                    client.listed.take_due(now);
                    self.dirty.push(key);
                    self.set_time(key, now);
                }
            }
            self.ready.push_back(key);
        }
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut ready = Ready::with_capacity(1024);
        let mut due = Vec::new();
        loop {
            self.update_vacant();
            if self.shared.stop.load(Ordering::Acquire) {
                return Ok(());
            }
            let accepts = self.can_accept();
            let idle = self.ready.is_empty()
                && self.draining_input.is_empty()
                && !self.backpressured.is_notified()
                && !accepts
                && self.dirty.is_empty()
                && !self.drain_backlog
                && self.commands.is_empty();
            self.wait(idle, &mut ready)?;
            let began = Instant::now();
            self.metrics.begin_turn(began);
            self.resume_paused();
            self.backpressured.take_notified(&mut self.ready);
            for event in &ready {
                match event.token() {
                    WAKER => {}
                    Token(index) if index < LISTENERS => self.mark_accepting(index),
                    Token(token) => self.edge(Key::from_token(token - LISTENERS), event),
                }
            }
            self.current = None;
            if self.drain_backlog {
                self.accept_backlogs();
            }
            self.accept();
            for _ in 0..self.ready.len() {
                let Some(key) = self.ready.pop_front() else { break };
                self.read(key);
            }
            self.current = None;
            self.check_memory(began);
            self.execute_commands();
            self.write_dirty();
            for key in std::mem::take(&mut self.draining_input) {
                self.read_while_closing(key);
            }
            self.check_congestion();
            let now = Instant::now();
            self.handle_time(now, &mut due);
            self.current = None;
            self.hand_on();
            self.end_turn(began, now);
        }
    }

    /// Updates whether this worker has clients. A draining engine ends when no worker has any.
    pub(super) fn update_vacant(&mut self) {
        let vacant = self.draining && self.clients.is_empty() && self.accepted.is_empty();
        if vacant == self.vacant {
            return;
        }
        self.vacant = vacant;
        if vacant {
            self.shared.release_occupied();
        } else {
            self.shared.occupied_workers.fetch_add(1, Ordering::AcqRel); // a request to the internal listener
        }
    }

    fn end_turn(&mut self, began: Instant, now: Instant) {
        if let Some(at) = self.published_at.take() {
            self.metrics.record_latency(now.saturating_duration_since(at));
        }
        let closed = self.draining || !self.events_have_capacity || self.accept_after.is_some();
        self.metrics.closed.store(closed, Ordering::Relaxed);
        self.metrics.end_turn(began, now);
    }

    /// Moves the clients that wait for events to `ready`, if events have capacity again.
    fn resume_paused(&mut self) {
        if !self.events_have_capacity && self.shared.events.has_capacity(self.worker.worker.index(), &self.wake) {
            self.events_have_capacity = true;
            // Each client that awaits admission adds only one event; the paused ones may fill the events again.
            self.ready.extend(self.awaiting_admission.drain(..).chain(self.paused.drain(..)));
        }
    }

    /// Hands the batch of events to the consumers.
    fn hand_on(&mut self) {
        if !self.batch.is_empty() {
            self.metrics.events.add(self.batch.len() as u64);
            // At the end of the worker there is no turn.
            let now = Some(self.metrics.turn()).filter(|began| *began > 0).unwrap_or_else(|| self.shared.since_start());
            let Put { has_capacity, stalled_for } =
                self.shared.events.put(&mut self.batch, now, self.worker.worker.index(), &self.wake);
            if stalled_for > self.shared.config.http.stuck_after {
                self.shared.log_stalled_events(stalled_for);
            }
            if self.events_have_capacity && !has_capacity {
                let full =
                    || "the queue of events is full: nothing is read until the application takes some".to_owned();
                self.shared.logs.note(Cause::EventsFull, Instant::now(), full);
            }
            self.events_have_capacity &= has_capacity;
        }
    }

    fn handle_time(&mut self, now: Instant, due: &mut Vec<Key>) {
        if self.accept_after.is_some_and(|after| after <= now) {
            self.accept_after = None;
            self.accepting = (0..self.listeners.len()).collect();
        }
        self.trim(now);
        self.wheel.take_due(now, due);
        for key in due.drain(..) {
            self.current = Some(key);
            let paused = !self.events_have_capacity;
            match self.clients.get_mut(key) {
                None => {}
                Some(Client::Opening(_)) => self.expire_handshake(key, now),
                Some(Client::Established(client)) => {
                    // An entry may be outdated: something was due earlier, and has set another time.
                    if !client.listed.take_due(now) {
                        continue;
                    }
                    let resumed = client.take_resumed(now);
                    let answers = client.waits_to_answer();
                    client.handle_deadline(now, paused, &self.shared.config);
                    self.write(key);
                    self.set_time(key, now);
                    if resumed {
                        self.read(key);
                    } else if answers {
                        self.read_unless_listed(key); // the write above may have made room: no edge reports that
                    }
                }
            }
        }
    }

    fn set_time(&mut self, key: Key, now: Instant) {
        if let Some(Client::Established(client)) = self.clients.get_mut(key)
            && let Some(deadline) = client.deadline(now)
            && client.listed.add(deadline)
        {
            self.wheel.set(deadline, key);
        }
    }

    /// Ends all clients that are left, and reports their end.
    fn end(&mut self) {
        // A panic does not stop this: each attempt gets further than the one before.
        for _ in 0..self.clients.keys().len() + EXTRA_PANICS {
            match catch_unwind(AssertUnwindSafe(|| self.end_clients())) {
                Ok(()) => break,
                Err(panic) => drop(catch_unwind(AssertUnwindSafe(|| self.end_current(&*panic)))),
            }
        }
        drop(catch_unwind(AssertUnwindSafe(|| self.hand_on())));
        self.metrics.ended.store(true, Ordering::Release);
        if !self.vacant {
            self.shared.release_occupied();
        }
        if self.shared.alive.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.events.close();
        }
    }

    fn end_clients(&mut self) {
        for index in 0..self.listeners.len() {
            self.close_listener(index);
        }
        // Callers that wait for figures get them from the ended session.
        let left: Vec<_> = std::mem::take(&mut self.commands).into_iter().chain(self.mailbox.close()).collect();
        self.discard(&left);
        while let Some(incoming) = self.accepted.pop_front() {
            self.fail(Reason::Stopping, incoming.remote);
        }
        for key in self.clients.keys() {
            self.current = Some(key);
            match self.clients.get_mut(key) {
                Some(Client::Established(client)) => client.abort(),
                Some(Client::Opening(opening)) => opening.note_failure(Reason::Stopping),
                None => {}
            }
            self.remove(key);
        }
    }
}
