//! One thread: its listeners, its clients, its time. All that others want of it comes by its mailbox.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events as Ready, Interest, Poll, Token};
use wirespeed_driver::drive::Progress;
use wirespeed_driver::protocol::CloseCode;
use wirespeed_driver::socket::Socket;
use wirespeed_driver::tls::server::ServerConfig as TlsConfig;
use wirespeed_driver::tls::{Layer, RustlsLayer};

use crate::config::{Config, Role};
use crate::connection::{Client, Live, Opened, Opening, Turn};
use crate::events::{Batch, Events};
use crate::mailbox::{Mailbox, Wake};
use crate::outbox::Pending;
use crate::session::{Home, Session};
use crate::slab::Slab;
use crate::topics::{Index, Pattern, Registry, Topic, WorkerId};
use crate::wheel::Wheel;

pub(crate) use crate::slab::Key;

/// Tokens of listeners; those of clients follow.
const LISTENERS: usize = 64;
const WAKER: Token = Token(LISTENERS - 1);

/// Clients accepted in one turn, of one listener: then the others have theirs.
const ACCEPTS: usize = 64;

/// How long nobody is accepted when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Events, and bytes of their messages, that are handed on before the turn is over.
const BATCH_EVENTS: usize = 4096;
const BATCH_BYTES: usize = 1 << 20;

/// What others want of a worker.
pub(crate) enum Command {
    /// A message for one.
    Send(Key, Pending),
    /// A message for all but one.
    Broadcast(Pending, Option<u64>),
    /// A message for those that subscribe to the topic, but one.
    Publish(Topic, Pending, Option<u64>),
    /// The session with this number gets what matches.
    Subscribe(Key, u64, Pattern),
    /// It no longer does.
    Unsubscribe(Key, Pattern),
    /// The closing handshake, after what was sent before.
    Close(Key, CloseCode, Box<str>),
    /// The same for all, and nobody is accepted any more.
    Drain(CloseCode, Box<str>),
}

/// What is counted.
#[derive(Debug, Default)]
pub struct Counters {
    /// Clients that are connected, with a session or about to have one.
    pub connections: AtomicUsize,
    /// Sessions that are open.
    pub sessions: AtomicUsize,
    /// Sessions that there ever were.
    pub opened: AtomicU64,
    /// Openings that came to nothing.
    pub refused: AtomicU64,
    /// Messages received.
    pub received: AtomicU64,
    /// Messages dropped, because a client reads too slowly.
    pub dropped: AtomicU64,
    /// Defects of ours that have ended a session.
    pub panics: AtomicU64,
}

/// What all workers share.
pub(crate) struct Common {
    pub(crate) config: Config,
    pub(crate) events: Events,
    pub(crate) counters: Counters,
    pub(crate) stop: AtomicBool,
    pub(crate) last_id: AtomicU64,
}

/// A listener, and what is spoken there.
pub(crate) struct Door {
    pub(crate) listener: OwnedFd,
    pub(crate) tls: Option<Arc<TlsConfig>>,
    pub(crate) unix: bool,
}

/// See the module.
pub(crate) struct Worker {
    home: Arc<Home>,
    common: Arc<Common>,
    poll: Poll,
    mailbox: Arc<Mailbox<Command>>,
    wake: Arc<dyn Wake>,
    doors: Vec<Door>,
    clients: Slab<Client>,
    /// Which of them subscribe to what.
    topics: Index<Key>,
    /// Messages published here: a client that subscribes to one in several ways gets it once.
    published: u64,
    /// Of what is due, and when: one entry for each client, as a rule.
    wheel: Wheel<Key>,
    /// Those that have something to read, and have had their turn.
    again: VecDeque<Key>,
    /// Those that wait until events have room.
    held: Vec<Key>,
    /// Those that have something to write.
    dirty: Vec<Key>,
    /// What others want, taken out of the mailbox.
    commands: VecDeque<Command>,
    /// Whose turn it is: if we fail, it ends, and nobody else.
    current: Option<Key>,
    batch: Batch,
    /// Events have room.
    roomy: bool,
    /// Listeners where more clients wait.
    accepting: Vec<usize>,
    /// Until then nobody is accepted.
    accept_after: Option<Instant>,
    draining: bool,
}

/// What a worker is made of before its thread begins.
pub(crate) fn prepare(
    worker: WorkerId,
    common: Arc<Common>,
    registry: Arc<Registry>,
    doors: Vec<Door>,
) -> io::Result<Worker> {
    let poll = Poll::new()?;
    let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
    let wake: Arc<dyn Wake> = Arc::new(move || {
        // It fails only if its counter is full, and then the worker is awake.
        let _ = waker.wake();
    });
    let mailbox = Arc::new(Mailbox::new(common.config.mailbox_limit, Arc::clone(&wake)));
    for (index, door) in doors.iter().enumerate() {
        poll.registry().register(&mut SourceFd(&door.listener.as_raw_fd()), Token(index), Interest::READABLE)?;
    }
    Ok(Worker {
        home: Arc::new(Home { worker, mailbox: Arc::clone(&mailbox), registry }),
        common,
        poll,
        mailbox,
        wake,
        accepting: (0..doors.len()).collect(),
        doors,
        clients: Slab::default(),
        topics: Index::new(),
        published: 0,
        wheel: Wheel::new(Instant::now()),
        again: VecDeque::new(),
        held: Vec::new(),
        dirty: Vec::new(),
        commands: VecDeque::new(),
        current: None,
        batch: Batch::default(),
        roomy: true,
        accept_after: None,
        draining: false,
    })
}

impl Worker {
    pub(crate) fn home(&self) -> Arc<Home> {
        Arc::clone(&self.home)
    }

    pub(crate) fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.wake)
    }

    /// Serves until it is stopped.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let result = loop {
            // A defect of ours costs the client whose turn it is, and nobody else.
            match catch_unwind(AssertUnwindSafe(|| self.serve())) {
                Ok(result) => break result,
                Err(_) => self.recover(),
            }
        };
        self.end();
        result
    }

    fn recover(&mut self) {
        self.common.counters.panics.fetch_add(1, Ordering::Relaxed);
        if let Some(key) = self.current.take() {
            if let Some(Client::Live(live)) = self.clients.get_mut(key) {
                live.session.set_closed();
            }
            self.remove(key);
        }
        // Of what was under way some may be lost: everybody has a turn.
        self.accepting = (0..self.doors.len()).collect();
        self.again.clear();
        self.held.clear();
        self.dirty.clear();
        for key in self.clients.keys() {
            if let Some(Client::Live(live)) = self.clients.get_mut(key) {
                (live.dirty, live.unread, live.timer) = (true, true, None);
                self.dirty.push(key);
                self.again.push_back(key);
                self.set_time(key, Instant::now());
            }
        }
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut ready = Ready::with_capacity(1024);
        let mut due = Vec::new();
        loop {
            if self.common.stop.load(Ordering::Acquire) || self.draining && self.clients.is_empty() {
                return Ok(());
            }
            let accepts = !self.accepting.is_empty() && self.may_accept();
            let idle = self.again.is_empty() && !accepts && self.dirty.is_empty() && self.commands.is_empty();
            let some = if self.commands.is_empty() { self.mailbox.take(&mut self.commands, idle) } else { true };
            let timeout = if idle && !some { self.sleep() } else { Some(Duration::ZERO) };
            match self.poll.poll(&mut ready, timeout) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => ready.clear(),
                Err(error) => return Err(error),
                Ok(()) => {}
            }
            self.look_for_room();
            for event in &ready {
                match event.token() {
                    WAKER => {}
                    Token(door) if door < LISTENERS => self.note_door(door),
                    Token(token) => self.edge(Key::from_token(token - LISTENERS), event),
                }
            }
            self.current = None;
            self.accept();
            for _ in 0..self.again.len() {
                let Some(key) = self.again.pop_front() else { break };
                self.read(key);
            }
            self.current = None;
            while let Some(command) = self.commands.pop_front() {
                self.obey(command);
            }
            self.write_dirty();
            self.handle_time(&mut due);
            self.current = None;
            self.hand_on();
        }
    }

    // ---- waiting ----

    fn sleep(&self) -> Option<Duration> {
        let now = Instant::now();
        let accept = self.accept_after.map(|after| after.saturating_duration_since(now));
        match (self.wheel.sleep(now), accept) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Events may have room again: those that wait for it go on.
    fn look_for_room(&mut self) {
        if !self.roomy && self.common.events.has_room(self.home.worker.index(), &self.wake) {
            self.roomy = true;
            self.again.extend(self.held.drain(..));
        }
    }

    /// Hands on what has happened.
    fn hand_on(&mut self) {
        if !self.batch.is_empty() {
            let batch = std::mem::take(&mut self.batch);
            self.common.counters.received.fetch_add(batch.len() as u64, Ordering::Relaxed);
            self.roomy &= self.common.events.put(batch, self.home.worker.index(), &self.wake);
        }
    }

    fn handle_time(&mut self, due: &mut Vec<Key>) {
        let now = Instant::now();
        if self.accept_after.is_some_and(|after| after <= now) {
            self.accept_after = None;
            self.accepting = (0..self.doors.len()).collect();
        }
        self.wheel.take_due(now, due);
        for key in due.drain(..) {
            self.current = Some(key);
            let held = !self.roomy;
            match self.clients.get_mut(key) {
                None => {}
                // It has had its time.
                Some(Client::Opening(_)) => self.remove(key),
                // Something was due earlier, and has set another time.
                Some(Client::Live(live)) if live.timer.is_some_and(|timer| timer > now) => {}
                Some(Client::Live(live)) => {
                    live.timer = None;
                    live.handle_deadline(now, held, &self.common.config);
                    self.write(key);
                    self.set_time(key, now);
                }
            }
        }
    }

    fn set_time(&mut self, key: Key, now: Instant) {
        if let Some(Client::Live(live)) = self.clients.get_mut(key)
            && let Some(deadline) = live.deadline(now, &self.common.config)
            && live.timer.is_none_or(|timer| deadline < timer)
        {
            live.timer = Some(deadline);
            self.wheel.set(deadline, key);
        }
    }

    // ---- clients ----

    fn note_door(&mut self, door: usize) {
        if !self.accepting.contains(&door) {
            self.accepting.push(door);
        }
    }

    /// Whether whoever waits may come in: while events have no room each would add one.
    fn may_accept(&self) -> bool {
        self.accept_after.is_none() && (self.roomy || self.draining)
    }

    fn accept(&mut self) {
        if !self.may_accept() {
            return;
        }
        let mut more = Vec::new();
        for door in std::mem::take(&mut self.accepting) {
            for turn in 0.. {
                if turn == ACCEPTS {
                    more.push(door);
                    break;
                }
                match Socket::accept(self.doors[door].listener.as_fd()) {
                    Ok(Some((socket, remote))) => self.welcome(door, socket, remote),
                    Ok(None) => break,
                    // A client that left before it was accepted.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // Too few descriptors for now: the others go on.
                    Err(_) => {
                        self.accept_after = Some(Instant::now() + ACCEPT_PAUSE);
                        return;
                    }
                }
            }
        }
        self.accepting = more;
    }

    fn welcome(&mut self, door: usize, socket: Socket, remote: Option<std::net::SocketAddr>) {
        let common = Arc::clone(&self.common);
        let connections = &common.counters.connections;
        if self.draining || connections.fetch_add(1, Ordering::Relaxed) >= common.config.max_connections {
            connections.fetch_sub(usize::from(!self.draining), Ordering::Relaxed);
            return;
        }
        let door = &self.doors[door];
        if !door.unix {
            let _ = socket.options().set_tcp_nodelay(true); // it may have left meanwhile, which is found when it is read
            socket.limit_unsent();
        }
        let layer: Option<Box<dyn Layer>> = match &door.tls {
            None => None,
            Some(config) => match RustlsLayer::server(Arc::clone(config)) {
                Ok(layer) => Some(Box::new(layer)),
                Err(_) => return self.forget_connection(),
            },
        };
        let fd = socket.raw();
        let Some(opening) = Opening::new(socket, remote, layer, &common.config) else {
            return self.forget_connection();
        };
        let key = self.clients.insert(Client::Opening(Box::new(opening)));
        let token = Token(LISTENERS + key.to_token());
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut SourceFd(&fd), token, interest).is_err() {
            return self.remove(key);
        }
        self.wheel.set(Instant::now() + common.config.open_timeout, key);
        // Most requests are there by now.
        self.open(key);
    }

    fn forget_connection(&self) {
        self.common.counters.connections.fetch_sub(1, Ordering::Relaxed);
    }

    fn edge(&mut self, key: Key, event: &mio::event::Event) {
        self.current = Some(key);
        match self.clients.get_mut(key) {
            None => {}
            Some(Client::Opening(_)) => self.open(key),
            Some(Client::Live(live)) => {
                if event.is_read_closed() {
                    live.note_read_closed();
                }
                let answers = event.is_writable() && live.waits_to_answer();
                if event.is_writable() && !self.write(key) {
                    return;
                }
                if event.is_readable() || answers {
                    self.read_unless_listed(key);
                }
            }
        }
    }

    fn open(&mut self, key: Key) {
        self.current = Some(key);
        let common = Arc::clone(&self.common);
        let Some(Client::Opening(opening)) = self.clients.get_mut(key) else { return };
        match opening.proceed(&common.config) {
            Opened::NotYet => {}
            Opened::Over => self.remove(key),
            Opened::Session(peer, about, role) => {
                let Some(socket) = opening.take_socket() else { return self.remove(key) };
                let id = common.last_id.fetch_add(1, Ordering::Relaxed) + 1;
                let session = Session::new(id, key, Arc::clone(&self.home), *about);
                if role == Role::Events {
                    self.batch.connected(&session);
                }
                common.counters.opened.fetch_add(1, Ordering::Relaxed);
                common.counters.sessions.fetch_add(1, Ordering::Relaxed);
                let live = Live::new(session, role, *peer, socket, common.config.close_timeout);
                self.clients.replace(key, Client::Live(Box::new(live)));
                self.set_time(key, Instant::now());
                self.read(key); // there may be more than was read
            }
        }
    }

    fn read_unless_listed(&mut self, key: Key) {
        if let Some(Client::Live(live)) = self.clients.get_mut(key)
            && !live.unread
        {
            self.read(key);
        }
    }

    fn read(&mut self, key: Key) {
        self.current = Some(key);
        let Some(Client::Live(live)) = self.clients.get_mut(key) else { return };
        live.unread = false;
        match live.read(&mut self.batch, self.roomy) {
            Turn::Idle => {
                if live.is_ending() {
                    self.set_time(key, Instant::now());
                }
            }
            Turn::Again => {
                live.unread = true;
                self.again.push_back(key);
            }
            Turn::Held => {
                live.unread = true;
                self.held.push(key);
            }
            Turn::Over => self.remove(key),
        }
        if self.batch.len() >= BATCH_EVENTS || self.batch.size() >= BATCH_BYTES {
            self.hand_on();
        }
    }

    /// Writes what waits; false: it is over.
    fn write(&mut self, key: Key) -> bool {
        let Some(Client::Live(live)) = self.clients.get_mut(key) else { return false };
        if live.write(Instant::now) == Progress::Over {
            self.remove(key);
            return false;
        }
        live.session.set_queued(live.queued());
        // Whatever began to end it has marked it to be written.
        if live.is_ending() {
            self.set_time(key, Instant::now());
        }
        true
    }

    fn write_dirty(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for key in dirty.drain(..) {
            self.current = Some(key);
            if let Some(Client::Live(live)) = self.clients.get_mut(key) {
                live.dirty = false;
                self.write(key);
            }
        }
        self.dirty = dirty;
    }

    fn remove(&mut self, key: Key) {
        match self.clients.remove(key) {
            None => return,
            Some(Client::Opening(_)) => {
                self.common.counters.refused.fetch_add(1, Ordering::Relaxed);
            }
            Some(Client::Live(live)) => {
                live.session.set_closed();
                // Its account, and what of it has come here.
                self.home.registry.remove_session(live.session.id());
                for pattern in &live.subscriptions {
                    self.topics.remove(pattern, key);
                }
                self.common.counters.sessions.fetch_sub(1, Ordering::Relaxed);
                self.common.counters.dropped.fetch_add(live.dropped, Ordering::Relaxed);
                if live.is_told() {
                    self.batch.disconnected(&live.session, live.ended());
                }
            }
        }
        self.forget_connection();
    }

    // ---- what others want ----

    fn obey(&mut self, command: Command) {
        match command {
            Command::Send(key, message) => self.push(key, message),
            Command::Broadcast(message, except) => {
                for key in self.clients.keys() {
                    self.push_unless(key, except, &message);
                }
            }
            Command::Publish(topic, message, except) => self.publish(&topic, &message, except),
            Command::Subscribe(key, id, pattern) => match self.clients.get_mut(key) {
                Some(Client::Live(live)) => {
                    self.topics.insert(&pattern, key);
                    live.subscriptions.push(pattern);
                }
                // It has ended since, perhaps between the account and its end.
                _ => drop(self.home.registry.remove_session(id)),
            },
            Command::Unsubscribe(key, pattern) => {
                if let Some(Client::Live(live)) = self.clients.get_mut(key) {
                    self.topics.remove(&pattern, key);
                    live.subscriptions.retain(|other| *other != pattern);
                }
            }
            Command::Close(key, code, reason) => {
                if let Some(Client::Live(live)) = self.clients.get_mut(key) {
                    live.close(code, reason);
                    self.mark(key);
                }
            }
            Command::Drain(code, reason) => {
                self.draining = true;
                for key in self.clients.keys() {
                    match self.clients.get_mut(key) {
                        Some(Client::Live(live)) => {
                            live.close(code, reason.clone());
                            self.mark(key);
                        }
                        _ => self.remove(key),
                    }
                }
            }
        }
    }

    fn publish(&mut self, topic: &Topic, message: &Pending, except: Option<u64>) {
        self.published += 1;
        for key in self.topics.matching(topic).flat_map(|set| set.iter()) {
            let Some(Client::Live(live)) = self.clients.get_mut(key) else { continue };
            if std::mem::replace(&mut live.published, self.published) == self.published
                || except == Some(live.session.id())
            {
                continue;
            }
            live.push(message.clone(), &self.common.config);
            if !std::mem::replace(&mut live.dirty, true) {
                self.dirty.push(key);
            }
        }
    }

    fn push_unless(&mut self, key: Key, except: Option<u64>, message: &Pending) {
        if let Some(Client::Live(live)) = self.clients.get_mut(key)
            && except != Some(live.session.id())
        {
            self.push(key, message.clone());
        }
    }

    fn push(&mut self, key: Key, message: Pending) {
        if let Some(Client::Live(live)) = self.clients.get_mut(key) {
            live.push(message, &self.common.config);
            self.mark(key);
        }
    }

    fn mark(&mut self, key: Key) {
        if let Some(Client::Live(live)) = self.clients.get_mut(key)
            && !std::mem::replace(&mut live.dirty, true)
        {
            self.dirty.push(key);
        }
    }

    /// It is over: all who are left are ended, and told of.
    fn end(&mut self) {
        drop(self.mailbox.close());
        for key in self.clients.keys() {
            if let Some(Client::Live(live)) = self.clients.get_mut(key) {
                live.abort();
            }
            self.remove(key);
        }
        self.hand_on();
    }
}
