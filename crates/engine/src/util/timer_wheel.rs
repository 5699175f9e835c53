//! The deadlines of all sessions of a worker: cheap to set, exact to a tick.
//!
//! An entry is not moved when its deadline becomes later, which most do again and again: the owner checks at the old
//! time, and sets the new one. Nor is it removed when something else is due earlier: [`Listed`] remembers both.

use std::time::{Duration, Instant};

/// The resolution. Keepalive and closing are timed in seconds.
pub const TICK: Duration = Duration::from_millis(50);

/// The ticks of one turn of the wheel: 25.6 s. A later entry stays in its slot for another turn.
const SLOTS: usize = 512;

/// A timer wheel. `K` identifies the owner of an entry.
pub struct TimerWheel<K> {
    slots: Vec<Vec<(u64, K)>>,
    start: Instant,
    /// The next tick that has not been handled.
    next: u64,
    count: usize,
}

impl<K> TimerWheel<K> {
    /// Returns a wheel without entries.
    #[must_use]
    pub fn new(start: Instant) -> Self {
        Self { slots: (0..SLOTS).map(|_| Vec::new()).collect(), start, next: 0, count: 0 }
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the first tick that begins at or after a time.
    fn tick_after(&self, time: Instant) -> u64 {
        let ticks = time.saturating_duration_since(self.start).as_nanos().div_ceil(TICK.as_nanos());
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Adds an entry, for the next tick at the earliest.
    pub fn set(&mut self, time: Instant, key: K) {
        let tick = self.tick_after(time).max(self.next);
        #[allow(clippy::indexing_slicing, reason = "slot() is below SLOTS, and there are so many")]
        self.slots[slot(tick)].push((tick, key));
        self.count += 1;
    }

    /// Returns the time for which nothing is due; `None` if there are no entries.
    #[must_use]
    pub fn sleep(&self, now: Instant) -> Option<Duration> {
        if self.count == 0 {
            return None;
        }
        // The next slot that is not empty is the earliest that can be due.
        #[allow(clippy::indexing_slicing, reason = "slot() is below SLOTS, and there are so many")]
        let ahead = (0..SLOTS as u64).find(|ahead| !self.slots[slot(self.next + ahead)].is_empty()).unwrap_or(0);
        let due = self.start + TICK * u32::try_from(self.next + ahead).unwrap_or(u32::MAX);
        Some(due.saturating_duration_since(now))
    }

    /// Takes the entries that are due by `now`, in no order within a tick.
    pub fn take_due(&mut self, now: Instant, due: &mut Vec<K>) {
        let passed = now.saturating_duration_since(self.start).as_nanos() / TICK.as_nanos();
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        if self.count == 0 {
            self.next = self.next.max(passed + 1);
            return;
        }
        // After a long sleep each slot is checked once.
        let first = self.next;
        let last = passed.min(first + SLOTS as u64 - 1);
        let mut tick = first;
        while tick <= last {
            #[allow(clippy::indexing_slicing, reason = "slot() is below SLOTS, and there are so many")]
            let entries = &mut self.slots[slot(tick)];
            let before = due.len();
            due.extend(entries.extract_if(.., |(at, _)| *at <= passed).map(|(_, key)| key));
            self.count -= due.len() - before;
            if entries.is_empty() {
                *entries = Vec::new();
            }
            tick += 1;
        }
        self.next = self.next.max(passed + 1);
    }
}

/// The entries of one key that are yet to come, as far as they are known. It remembers two, and forgets the latest of
/// three, which comes all the same and is ignored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Listed {
    first: Option<Instant>,
    /// Not before `first`; `None` if there is no `first`.
    later: Option<Instant>,
}

impl Listed {
    /// Notes that something is due at this time. Returns whether an entry has to be set, as none comes that early.
    pub fn add(&mut self, time: Instant) -> bool {
        if self.first.is_some_and(|first| first <= time) {
            return false;
        }
        if let Some(first) = self.first.replace(time) {
            self.later = Some(first);
        }
        true
    }

    /// Notes that an entry has come, or may have been lost. Returns whether something may be due. The caller has to
    /// [add](Self::add) the next deadline again.
    pub fn take_due(&mut self, now: Instant) -> bool {
        if self.first.is_some_and(|first| first > now) {
            return false;
        }
        // An entry never comes before its time, so a later one is still in the wheel.
        self.first = self.later.take().filter(|later| *later > now);
        true
    }
}

fn slot(tick: u64) -> usize {
    (tick % SLOTS as u64) as usize
}
