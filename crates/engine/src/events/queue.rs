//! Events on their way from the workers to the application: in batches, bounded in events and in bytes. A worker whose
//! events exceed the bounds stops reading, so nothing is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::batch::Batch;
use crate::events::consumers::{self, Consumers};
use crate::util::locks::lock;
use crate::util::wakers::Wake;

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
