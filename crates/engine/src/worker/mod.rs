//! One thread: its listeners, its clients, its time. All that others want of it comes by its mailbox.

mod accept;
mod backpressure;
mod client_io;
mod congested;
mod execute;
mod handshake_limit;
mod memory_limit;
mod poll;
mod shared;

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use mio::unix::SourceFd;
use mio::{Events as Ready, Interest, Poll, Token};
use wirespeed_driver::fork;
use wirespeed_driver::opening::handshake_limiter::HandshakeLimiter;

use crate::capacity::CapacityNotifier;
use crate::certificate::Certificate;
use crate::connection::Client;
use crate::events::{Batch, Put};
use crate::logs::Cause;
use crate::mailbox::{Mailbox, Wake};
use crate::metrics::WorkerMetrics;
use crate::reasons::Reason;
use crate::session::WorkerHandle;
use crate::slab::Slab;
use crate::slow_consumer::SlowConsumerState;
use crate::timer_wheel::TimerWheel;
use crate::topics::{Index, Registry, Topic, WorkerId};

pub(crate) use self::accept::AcceptedSocket;
use self::backpressure::BackpressureWaiters;
use self::congested::Congested;
pub(crate) use self::execute::Command;
pub(crate) use self::memory_limit::Share;
pub(crate) use self::shared::EngineShared;
pub(crate) use crate::slab::Key;

/// Tokens of listeners; those of clients follow.
const LISTENERS: usize = 64;
const WAKER: Token = Token(LISTENERS - 1);

/// Listeners of a worker, at most.
pub(crate) const DOORS: usize = LISTENERS - 1;

/// Events, and bytes of their messages, that are handed on before the turn is over.
pub(crate) const BATCH_EVENTS: usize = 4096;
pub(crate) const BATCH_BYTES: usize = 1 << 20;

/// Panics that an ending worker gets over, beside one for each client.
const ENDINGS: usize = 4;

/// A listener.
pub(crate) struct Listener {
    /// `None`: it is closed.
    pub(crate) listener: Option<OwnedFd>,
    pub(crate) entrance: Entrance,
}

/// What is spoken at a listener.
#[derive(Clone)]
pub(crate) struct Entrance {
    pub(crate) tls: Option<Arc<Certificate>>,
    pub(crate) unix: bool,
    /// That of [`crate::Http::at`]: no sessions begin there, and it is open to the last.
    pub(crate) internal: bool,
}

/// See the module.
pub(crate) struct Worker {
    worker: Arc<WorkerHandle>,
    shared: Arc<EngineShared>,
    metrics: Arc<WorkerMetrics>,
    poll: Poll,
    mailbox: Arc<Mailbox<Command>>,
    wake: Arc<dyn Wake>,
    listeners: Vec<Listener>,
    clients: Slab<Client>,
    /// Those whose request is awaited.
    pending: HandshakeLimiter<Key>,
    /// Those of them that will be refused, as it seems.
    to_be_refused: HandshakeLimiter<Key>,
    /// Which of them subscribe to what.
    topics: Index<Key>,
    /// Who gets what is published: empty between two messages.
    audience: Vec<Key>,
    /// Messages published here: a client that subscribes to one in several ways gets it once.
    published: u64,
    /// Of what is due, and when: one entry or two for each client, as a rule.
    wheel: TimerWheel<Key>,
    /// Those that have something to read, and have had their turn.
    ready: VecDeque<Key>,
    /// Those that wait until events have room.
    paused: Vec<Key>,
    /// Those that would be sessions by now, and wait for the same; who has gone meanwhile may be among them.
    awaiting_admission: Vec<Key>,
    /// Of those that are held, who is being ended, and read all the same.
    draining_input: Vec<Key>,
    /// Those whose topics have no room.
    backpressured: BackpressureWaiters,
    /// Those that have something to write.
    dirty: Vec<Key>,
    /// Messages given to sessions in this turn.
    delivered: usize,
    /// Audiences, topics or all sessions, whose publishers should wait; and when to look at them again.
    congested: HashMap<Option<Topic>, Congested>,
    look_after: Instant,
    looked: Instant,
    /// What others want, taken out of the mailbox.
    commands: VecDeque<Command>,
    /// Bytes of those that were done, as messages and as errands, and of which the mailbox is yet to be told.
    done: (usize, usize),
    /// Whose turn it is: if we fail, it ends, and nobody else.
    current: Option<Key>,
    batch: Batch,
    /// Events have room.
    roomy: bool,
    /// Listeners where more clients wait.
    accepting: Vec<usize>,
    /// Who was accepted there, and waits to come in; and how many may.
    accepted: VecDeque<AcceptedSocket>,
    max_accepted: usize,
    /// Until then nobody is accepted.
    accept_after: Option<Instant>,
    draining: bool,
    /// What is left when the doors are closed is shed until the last session is over.
    sheds: bool,
    /// Who waits comes in, and then nobody any more.
    drain_backlog: bool,
    /// Doors that are about to be closed, and how many have come in there since.
    closing: Vec<(usize, usize)>,
    /// It has no clients, and gets none.
    vacant: bool,
    /// Those that are to be closed, a few at a time.
    leaving: Vec<Key>,
    /// When to look at the total again; and what of its limit may wait for a session that takes nothing.
    total_after: Instant,
    share: Share,
    /// Bytes of messages that have come in since the last look.
    taken_in: usize,
    /// When the message was published that is timed.
    published_at: Option<Instant>,
}

/// What a worker is made of before its thread begins.
pub(crate) fn prepare(
    worker: WorkerId,
    shared: Arc<EngineShared>,
    registry: Arc<Registry>,
    room: Arc<CapacityNotifier>,
    listeners: Vec<Listener>,
) -> io::Result<Worker> {
    let poll = Poll::new()?;
    let metrics =
        shared.sheets.get(worker.index()).map(Arc::clone).ok_or_else(|| io::Error::other("no such worker"))?;
    let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
    let wake: Arc<dyn Wake> = Arc::new(move || {
        // It fails only if its counter is full, and then the worker is awake.
        let _ = waker.wake();
    });
    let mailbox = Arc::new(Mailbox::new(
        // What is under way when a session is found to be behind must find room in its outbox.
        shared.config.mailbox_limit.min(shared.least_outbox() / 8).max(1),
        shared.config.mailbox_limit,
        Arc::clone(&wake),
        Arc::clone(&room),
    ));
    let (pending, acl) = (shared.pending, shared.config.acl.clone());
    let max_accepted = accept::max_accepted(pending, shared.sheets.len());
    for (index, door) in listeners.iter().enumerate() {
        if let Some(listener) = &door.listener {
            poll.registry().register(&mut SourceFd(&listener.as_raw_fd()), Token(index), Interest::READABLE)?;
        }
    }
    Ok(Worker {
        worker: Arc::new(WorkerHandle {
            worker,
            mailbox: Arc::clone(&mailbox),
            registry,
            process: fork::generation(),
            room,
            congestion: SlowConsumerState::default(),
            arriving: AtomicUsize::new(0),
            memory: Arc::clone(&shared.memory),
            logs: Arc::clone(&shared.logs),
            acl,
        }),
        total_after: Instant::now(),
        share: Share::default(),
        taken_in: 0,
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
        look_after: Instant::now(),
        looked: Instant::now(),
        commands: VecDeque::new(),
        done: (0, 0),
        current: None,
        batch: Batch::default(),
        roomy: true,
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

    /// Serves until it is stopped; at these doors too.
    pub(crate) fn run(mut self, listeners: Vec<Listener>) -> io::Result<()> {
        listeners.into_iter().for_each(|door| self.open_door(door));
        let result = loop {
            // A defect of ours costs the client whose turn it is, and nobody else.
            match catch_unwind(AssertUnwindSafe(|| self.serve())) {
                Ok(result) => break result,
                Err(panic) => {
                    if !self.recover_twice(panic) {
                        break Err(io::Error::other("a worker has panicked again and again"));
                    }
                }
            }
        };
        if let Err(error) = &result {
            let text = || format!("worker {} has ended, and its sessions with it: {error}", self.worker.worker.index());
            self.shared.logs.note(Cause::WorkerEnded, Instant::now(), text);
        }
        self.end();
        result
    }

    /// It does not serve: others could not begin.
    pub(crate) fn give_up(mut self) -> io::Result<()> {
        self.end();
        Ok(())
    }

    /// Goes on after a panic; false: it cannot.
    fn recover_twice(&mut self, mut panic: Box<dyn Any + Send>) -> bool {
        for _ in 0..2 {
            match catch_unwind(AssertUnwindSafe(|| self.recover(&*panic))) {
                Ok(()) => return true,
                Err(next) => panic = next,
            }
        }
        false
    }

    /// A panic ends the session whose turn it is.
    pub(super) fn lose_current(&mut self, panic: &(dyn Any + Send)) {
        self.metrics.panics.add(1);
        let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let worker = self.worker.worker.index();
        self.shared.logs.note(Cause::Panic, Instant::now(), || {
            format!("worker {worker} has panicked, and ended one session: {}", said.unwrap_or("it did not say why"))
        });
        if let Some(key) = self.current.take() {
            match self.clients.get_mut(key) {
                Some(Client::Established(live)) => drop(live.session.set_closed()),
                Some(Client::Opening(opening)) => opening.note_failure(Reason::Panic),
                None => {}
            }
            self.remove(key);
        }
    }

    fn recover(&mut self, panic: &(dyn Any + Send)) {
        self.lose_current(panic);
        self.note_done();
        // Of what was under way some may be lost: everybody has a turn.
        self.accepting = (0..self.listeners.len()).collect();
        self.congested.clear();
        self.worker.congestion.clear();
        self.worker.room.notify();
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
                    // Nobody knows any more which edges told of what: it is read to the end.
                    opening.note_read_closed();
                    if let Some(at) = now.checked_add(self.shared.config.open_timeout) {
                        self.wheel.set(at, key);
                    }
                }
                Some(Client::Established(live)) => {
                    live.note_read_closed();
                    (live.dirty, live.unread) = (true, true);
                    live.listed.take_due(now);
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
            self.note_vacancy();
            if self.shared.stop.load(Ordering::Acquire) {
                return Ok(());
            }
            let accepts = self.has_guests();
            let idle = self.ready.is_empty()
                && self.draining_input.is_empty()
                && !self.backpressured.is_told()
                && !accepts
                && self.dirty.is_empty()
                && !self.drain_backlog
                && self.commands.is_empty();
            self.wait(idle, &mut ready)?;
            let began = Instant::now();
            self.metrics.begin_turn(began);
            self.look_for_room();
            self.backpressured.take_told(&mut self.ready);
            for event in &ready {
                match event.token() {
                    WAKER => {}
                    Token(door) if door < LISTENERS => self.note_door(door),
                    Token(token) => self.edge(Key::from_token(token - LISTENERS), event),
                }
            }
            self.current = None;
            if self.drain_backlog {
                self.accept_last();
            }
            self.accept();
            for _ in 0..self.ready.len() {
                let Some(key) = self.ready.pop_front() else { break };
                self.read(key);
            }
            self.current = None;
            self.look_at_total(began);
            self.obey_some();
            self.write_dirty();
            for key in std::mem::take(&mut self.draining_input) {
                self.read_late(key);
            }
            self.look_at_congestion();
            let now = Instant::now();
            self.handle_time(now, &mut due);
            self.current = None;
            self.hand_on();
            self.end_turn(began, now);
        }
    }

    /// Whoever drains ends with the last client of all workers.
    pub(super) fn note_vacancy(&mut self) {
        let vacant = self.draining && self.clients.is_empty() && self.accepted.is_empty();
        if vacant == self.vacant {
            return;
        }
        self.vacant = vacant;
        if vacant {
            self.shared.leave();
        } else {
            self.shared.occupied.fetch_add(1, Ordering::AcqRel); // somebody asks inside
        }
    }

    fn end_turn(&mut self, began: Instant, now: Instant) {
        if let Some(at) = self.published_at.take() {
            self.metrics.note_published(now.saturating_duration_since(at));
        }
        let closed = self.draining || !self.roomy || self.accept_after.is_some();
        self.metrics.closed.store(closed, Ordering::Relaxed);
        self.metrics.end_turn(began, now);
    }

    /// Events may have room again: those that wait for it go on.
    fn look_for_room(&mut self) {
        if !self.roomy && self.shared.events.has_capacity(self.worker.worker.index(), &self.wake) {
            self.roomy = true;
            // Who waits to come in adds one event, and those that are held may fill all the room again.
            self.ready.extend(self.awaiting_admission.drain(..).chain(self.paused.drain(..)));
        }
    }

    /// Hands on what has happened.
    fn hand_on(&mut self) {
        if !self.batch.is_empty() {
            self.metrics.events.add(self.batch.len() as u64);
            // At the end of the worker there is no turn.
            let now = Some(self.metrics.turn()).filter(|began| *began > 0).unwrap_or_else(|| self.shared.since_start());
            let Put { room, draining_input } =
                self.shared.events.put(&mut self.batch, now, self.worker.worker.index(), &self.wake);
            if draining_input > self.shared.config.http.stuck_after {
                self.shared.note_late_events(draining_input);
            }
            if self.roomy && !room {
                let full = || "events are not taken as fast as they come: nothing is read until they are".to_owned();
                self.shared.logs.note(Cause::EventsFull, Instant::now(), full);
            }
            self.roomy &= room;
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
            let paused = !self.roomy;
            match self.clients.get_mut(key) {
                None => {}
                Some(Client::Opening(_)) => self.end_opening(key, now),
                Some(Client::Established(live)) => {
                    // Something was due earlier, and has set another time.
                    if !live.listed.take_due(now) {
                        continue;
                    }
                    let resumed = live.take_resumed(now);
                    let answers = live.waits_to_answer();
                    live.handle_deadline(now, paused, &self.shared.config);
                    self.write(key);
                    self.set_time(key, now);
                    if resumed {
                        self.read(key);
                    } else if answers {
                        self.read_unless_listed(key); // the kernel was tried: no edge tells of the room that it had
                    }
                }
            }
        }
    }

    fn set_time(&mut self, key: Key, now: Instant) {
        if let Some(Client::Established(live)) = self.clients.get_mut(key)
            && let Some(deadline) = live.deadline(now)
            && live.listed.add(deadline)
        {
            self.wheel.set(deadline, key);
        }
    }

    /// It is over: all who are left are ended, and told of.
    fn end(&mut self) {
        // Whatever panics: each time it has got further.
        for _ in 0..self.clients.keys().len() + ENDINGS {
            match catch_unwind(AssertUnwindSafe(|| self.end_clients())) {
                Ok(()) => break,
                Err(panic) => drop(catch_unwind(AssertUnwindSafe(|| self.lose_current(&*panic)))),
            }
        }
        drop(catch_unwind(AssertUnwindSafe(|| self.hand_on())));
        self.metrics.ended.store(true, Ordering::Release);
        if !self.vacant {
            self.shared.leave();
        }
        if self.shared.alive.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.events.close();
        }
    }

    fn end_clients(&mut self) {
        for index in 0..self.listeners.len() {
            self.close_door(index);
        }
        // Whoever has asked something there is answered, in the end, by what is known of a session that is over.
        let left: Vec<_> = std::mem::take(&mut self.commands).into_iter().chain(self.mailbox.close()).collect();
        self.forget(&left);
        while let Some(guest) = self.accepted.pop_front() {
            self.fail(Reason::Stopping, guest.remote);
        }
        for key in self.clients.keys() {
            self.current = Some(key);
            match self.clients.get_mut(key) {
                Some(Client::Established(live)) => live.abort(),
                Some(Client::Opening(opening)) => opening.note_failure(Reason::Stopping),
                None => {}
            }
            self.remove(key);
        }
    }
}
