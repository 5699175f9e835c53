//! Events on their way from the workers to the application: in batches, bounded in events and in bytes. A worker whose
//! events exceed the bounds stops reading, so nothing is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use wirespeed_driver::protocol::MessageKind;

use crate::control::mailbox::Wake;
use crate::events::consumers::{self, Consumers};
use crate::session::Session;
use crate::util::locks::lock;
use crate::worker::{BATCH_BYTES, BATCH_EVENTS};

/// Payloads of this size and above are not copied into the batch.
const LARGE: usize = 16 * 1024;

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The close code that the client sent; 1005 if its close frame had none, 1006 if there was no close frame (RFC
    /// 6455 7.1.5).
    pub code: u16,
    /// The reason that the client gave.
    pub reason: String,
    /// Why the connection failed, if it did.
    pub failure: Option<String>,
}

/// An event of one session.
#[derive(Debug)]
pub enum Event<'a> {
    /// It is open.
    Connected,
    /// A message arrived.
    Message {
        /// Text, which is UTF-8, or binary.
        kind: MessageKind,
        /// The payload.
        data: &'a [u8],
    },
    /// It is over: its last event.
    Disconnected(&'a Ended),
}

enum StoredEvent {
    Connected,
    Small(MessageKind, Range<u32>),
    Large(MessageKind, Vec<u8>),
    Disconnected(Box<Ended>),
}

/// The events of one turn of a worker, in order.
#[derive(Default)]
pub struct Batch {
    /// Each with its session: an index into `sessions`.
    events: VecDeque<(u32, StoredEvent)>,
    sessions: Vec<Session>,
    /// The payloads of small messages.
    bytes: Vec<u8>,
    /// The sessions that are over: indices into `sessions`.
    ended: Vec<u32>,
    /// The total size of the payloads, in bytes.
    size: usize,
    /// When it was handed on, in nanoseconds since the start of the engine.
    at: u64,
}

impl Batch {
    /// Returns the number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns whether it must be handed on before anything is added: a few compressed bytes may become many.
    pub(crate) fn is_full(&self) -> bool {
        self.events.len() >= BATCH_EVENTS || self.size >= BATCH_BYTES
    }

    /// Returns the total size of the payloads, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    fn session(&mut self, session: &Session) -> u32 {
        // Usually it is the last session: a read brings many messages of one.
        if self.sessions.last().is_none_or(|last| last != session) {
            self.sessions.push(session.clone());
        }
        self.sessions.len() as u32 - 1
    }

    pub(crate) fn connected(&mut self, session: &Session) {
        let index = self.session(session);
        self.events.push_back((index, StoredEvent::Connected));
    }

    pub(crate) fn message(&mut self, session: &Session, kind: MessageKind, data: &[u8]) {
        let index = self.session(session);
        self.size += data.len();
        let kept = match u32::try_from(self.bytes.len() + data.len()) {
            Ok(end) if data.len() < LARGE => {
                let start = self.bytes.len() as u32;
                self.bytes.extend_from_slice(data);
                StoredEvent::Small(kind, start..end)
            }
            _ => StoredEvent::Large(kind, data.to_vec()),
        };
        self.events.push_back((index, kept));
    }

    pub(crate) fn owned_message(&mut self, session: &Session, kind: MessageKind, data: Vec<u8>) {
        if data.len() < LARGE {
            return self.message(session, kind, &data);
        }
        let index = self.session(session);
        self.size += data.len();
        self.events.push_back((index, StoredEvent::Large(kind, data)));
    }

    pub(crate) fn disconnected(&mut self, session: &Session, ended: Ended) {
        let index = self.session(session);
        self.ended.push(index);
        self.events.push_back((index, StoredEvent::Disconnected(Box::new(ended))));
    }

    /// Iterates over the events with their sessions, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Session, Event<'_>)> {
        let session = |index: u32| self.sessions.get(index as usize);
        self.events.iter().filter_map(move |(index, kept)| Some((session(*index)?, self.event(kept))))
    }

    /// Returns the sessions of these events, in the order of their events. A session may be in it several times.
    #[must_use]
    pub fn sessions(&self) -> &[Session] {
        &self.sessions
    }

    /// Returns an event, and the index of its session in [`Self::sessions`].
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<(usize, Event<'_>)> {
        self.events.get(index).map(|(index, kept)| (*index as usize, self.event(kept)))
    }

    /// Iterates over the sessions that are over after this batch: indices into [`Self::sessions`].
    pub fn ended(&self) -> impl Iterator<Item = usize> {
        self.ended.iter().map(|index| *index as usize)
    }

    #[inline]
    fn event<'a>(&'a self, kept: &'a StoredEvent) -> Event<'a> {
        match kept {
            StoredEvent::Connected => Event::Connected,
            StoredEvent::Small(kind, range) => Event::Message { kind: *kind, data: self.small(range) },
            StoredEvent::Large(kind, data) => Event::Message { kind: *kind, data },
            StoredEvent::Disconnected(ended) => Event::Disconnected(ended),
        }
    }

    #[inline]
    fn small(&self, range: &Range<u32>) -> &[u8] {
        self.bytes.get(range.start as usize..range.end as usize).unwrap_or_default()
    }

    /// Takes the first `count` events out.
    fn split(&mut self, count: usize) -> Self {
        let mut first = Self::default();
        for _ in 0..count {
            let Some((index, kept)) = self.events.pop_front() else { break };
            let Some(session) = self.sessions.get(index as usize).cloned() else { continue };
            match kept {
                StoredEvent::Connected => first.connected(&session),
                StoredEvent::Small(kind, range) => {
                    first.message(&session, kind, self.small(&range));
                }
                StoredEvent::Large(kind, data) => {
                    first.owned_message(&session, kind, data);
                }
                StoredEvent::Disconnected(ended) => first.disconnected(&session, *ended),
            }
        }
        self.size -= first.size;
        first
    }
}

struct Inner {
    batches: VecDeque<Batch>,
    events: usize,
    bytes: usize,
    /// When a consumer last took events.
    taken: Option<Instant>,
    /// Workers that wait for capacity, by their numbers.
    stalled: BTreeMap<usize, Arc<dyn Wake>>,
    consumers: Consumers,
    /// [`Events::ring`] was called: something other than an event is to be handled.
    rung: bool,
    /// No event will come any more.
    closed: bool,
}

impl Inner {
    /// Returns whether a consumer has something to do.
    fn has_work(&self) -> bool {
        self.events > 0 || self.rung || self.closed
    }

    /// Returns how long consumers have taken nothing although events wait. 0 if none ever took any, as a program that
    /// only sends need not take events.
    fn stalled_for(&self, now: u64) -> Duration {
        self.taken.map_or(Duration::ZERO, |taken| taken.elapsed().min(self.oldest(now)))
    }

    fn oldest(&self, now: u64) -> Duration {
        self.batches.front().map_or(Duration::ZERO, |batch| Duration::from_nanos(now.saturating_sub(batch.at)))
    }
}

/// The queue of events of an engine.
///
/// Workers put batches, and stop reading when the queue is full. A consumer in a thread calls [`Self::take`], which
/// waits. A consumer on an event loop registers once by [`Self::watch`]; it takes without waiting, and calls
/// [`Watch::wait`] when it has found nothing. Taking half of the queue wakes the workers that wait for capacity.
pub struct Events {
    inner: Mutex<Inner>,
    available: Condvar,
    max_events: usize,
    max_bytes: usize,
}

/// The registration of a consumer on an event loop, until it is dropped.
pub struct Watch {
    events: Arc<Events>,
    number: u64,
    process: u32,
}

impl Watch {
    /// Begins to wait. Returns true if there is nothing to take: [`Wake::wake`] is then called once, in any thread,
    /// when there is something for this consumer, or the engine has ended. False: there may be something now.
    #[must_use]
    pub fn wait(&self) -> bool {
        let mut inner = lock(&self.events.inner);
        let nothing = !inner.has_work();
        if nothing {
            inner.consumers.wait(self.number);
        }
        nothing
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return; // in a forked child: another thread may have held the lock at the fork
        }
        let mut inner = lock(&self.events.inner);
        if inner.consumers.remove(self.number) && inner.has_work() {
            let wakeup = inner.consumers.notify_another();
            drop(inner);
            wakeup.perform(&self.events.available);
        }
    }
}

/// The result of [`Events::put`].
pub(crate) struct Put {
    /// There is capacity for more. If not, the worker is woken when there is.
    pub(crate) has_capacity: bool,
    /// See [`Events::stalled_for`].
    pub(crate) stalled_for: Duration,
}

/// There are no events, and none will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl Events {
    pub(crate) fn new(max_events: usize, max_bytes: usize) -> Self {
        let inner = Inner {
            batches: VecDeque::new(),
            events: 0,
            bytes: 0,
            taken: None,
            stalled: BTreeMap::new(),
            consumers: Consumers::default(),
            rung: false,
            closed: false,
        };
        Self { inner: Mutex::new(inner), available: Condvar::new(), max_events, max_bytes }
    }

    /// Registers a consumer that does not wait in [`Self::take`].
    #[must_use]
    pub fn watch(self: &Arc<Self>, wake: Arc<dyn Wake>) -> Watch {
        let number = lock(&self.inner).consumers.add(wake);
        Watch { events: Arc::clone(self), number, process: std::process::id() }
    }

    /// For a worker: adds a batch of any size. `now`: in nanoseconds since the start.
    pub(crate) fn put(&self, batch: &mut Batch, now: u64, number: usize, worker: &Arc<dyn Wake>) -> Put {
        let mut inner = lock(&self.inner);
        wirespeed_driver::protocol::failpoint::hit("engine.hand_on");
        if inner.closed || batch.is_empty() {
            return Put { has_capacity: true, stalled_for: Duration::ZERO };
        }
        inner.events += batch.len();
        inner.bytes += batch.size();
        batch.at = now;
        let stalled_for = inner.stalled_for(now);
        inner.batches.push_back(std::mem::take(batch));
        let full = self.is_full(&inner);
        if full {
            inner.stalled.insert(number, Arc::clone(worker));
        }
        let wakeup = inner.consumers.notify();
        drop(inner);
        wakeup.perform(&self.available);
        Put { has_capacity: !full, stalled_for }
    }

    fn is_full(&self, inner: &Inner) -> bool {
        inner.events >= self.max_events || inner.bytes >= self.max_bytes
    }

    /// Returns whether a worker may read. If not, the worker is woken when it may.
    pub(crate) fn has_capacity(&self, number: usize, worker: &Arc<dyn Wake>) -> bool {
        let mut inner = lock(&self.inner);
        let full = self.is_full(&inner) && !inner.closed;
        if full {
            inner.stalled.insert(number, Arc::clone(worker));
        }
        !full
    }

    /// Returns the number of events that wait, and the bytes of their payloads.
    #[must_use]
    pub fn waiting(&self) -> (usize, usize) {
        let inner = lock(&self.inner);
        (inner.events, inner.bytes)
    }

    /// Returns how long the oldest event has waited; 0 if none waits. `now`: in nanoseconds since the start.
    pub(crate) fn oldest(&self, now: u64) -> Duration {
        lock(&self.inner).oldest(now)
    }

    /// Returns how long consumers have taken nothing although events wait; 0 if none ever took any. `now`: in
    /// nanoseconds since the start.
    pub(crate) fn stalled_for(&self, now: u64) -> Duration {
        lock(&self.inner).stalled_for(now)
    }

    /// Takes up to `most` events, after waiting for the first until the deadline. Returns nothing if there was none,
    /// or if [`Self::ring`] was called.
    ///
    /// # Errors
    /// The engine has ended, and all events were taken.
    pub fn take(&self, most: usize, deadline: Option<Instant>) -> Result<Vec<Batch>, Closed> {
        let mut inner = lock(&self.inner);
        while inner.events == 0 {
            if inner.closed {
                return Err(Closed);
            }
            if std::mem::take(&mut inner.rung) {
                return Ok(Vec::new());
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(Vec::new());
            }
            inner = consumers::sleep(inner, &self.available, deadline, |inner| &mut inner.consumers);
        }
        let most = most.max(1);
        wirespeed_driver::protocol::failpoint::hit("engine.take");
        inner.taken = Some(Instant::now());
        let mut taken = Vec::new();
        let mut count = 0;
        while count < most
            && let Some(next) = inner.batches.front_mut()
        {
            let batch =
                if next.len() <= most - count { inner.batches.pop_front() } else { Some(next.split(most - count)) };
            let Some(batch) = batch else { break };
            count += batch.len();
            inner.events -= batch.len();
            inner.bytes -= batch.size();
            taken.push(batch);
        }
        // Workers are woken at half of the capacity, so that they are not woken for each batch.
        let half_empty = inner.events <= self.max_events / 2 && inner.bytes <= self.max_bytes / 2;
        let stalled = if half_empty { std::mem::take(&mut inner.stalled) } else { BTreeMap::new() };
        let wakeup = (inner.events > 0 || inner.rung).then(|| inner.consumers.notify_another());
        drop(inner);
        if let Some(wakeup) = wakeup {
            wakeup.perform(&self.available);
        }
        stalled.values().for_each(|worker| worker.wake());
        Ok(taken)
    }

    /// Wakes one waiting consumer: [`Self::take`] returns even if there are no events.
    pub fn ring(&self) {
        let mut inner = lock(&self.inner);
        inner.rung = true;
        let wakeup = inner.consumers.notify();
        drop(inner);
        wakeup.perform(&self.available);
    }

    /// Ends the queue: waiting consumers return after they have taken the rest.
    pub(crate) fn close(&self) {
        let mut inner = lock(&self.inner);
        inner.closed = true;
        inner.stalled.clear();
        let watches = inner.consumers.notify_all_watches();
        drop(inner);
        self.available.notify_all();
        watches.iter().for_each(|wake| wake.wake());
    }
}
