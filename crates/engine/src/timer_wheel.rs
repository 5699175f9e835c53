//! The times at which something is due, of all sessions of a worker: cheap to set, exact to a tick.
//!
//! An entry is not moved when its time becomes later, which most do again and again: whoever it belongs to is
//! asked at the old time, and says the new one. Nor is it taken out when something else is due earlier:
//! [`Listed`] remembers it for then.

use std::time::{Duration, Instant};

/// What a tick takes. Keepalive and closing are timed in seconds.
pub const TICK: Duration = Duration::from_millis(50);

/// Ticks of one turn: 25.6 s. What is later stays in its slot for another turn.
const SLOTS: usize = 512;

/// See the module. `K`: whose time it is.
pub struct TimerWheel<K> {
    slots: Vec<Vec<(u64, K)>>,
    start: Instant,
    /// The next tick that has not been looked at.
    next: u64,
    count: usize,
}

impl<K> TimerWheel<K> {
    /// Without entries.
    #[must_use]
    pub fn new(start: Instant) -> Self {
        Self { slots: (0..SLOTS).map(|_| Vec::new()).collect(), start, next: 0, count: 0 }
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The tick in which a time has passed for certain.
    fn tick_after(&self, time: Instant) -> u64 {
        let ticks = time.saturating_duration_since(self.start).as_nanos().div_ceil(TICK.as_nanos());
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Sets a time; never before the next tick.
    pub fn set(&mut self, time: Instant, key: K) {
        let tick = self.tick_after(time).max(self.next);
        #[allow(clippy::indexing_slicing, reason = "slot() is below SLOTS, and there are so many")]
        self.slots[slot(tick)].push((tick, key));
        self.count += 1;
    }

    /// How long nothing is due, at most: until the next tick if there are entries at all.
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

    /// Takes what is due by `now`, in no order within a tick.
    pub fn take_due(&mut self, now: Instant, due: &mut Vec<K>) {
        let passed = now.saturating_duration_since(self.start).as_nanos() / TICK.as_nanos();
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        if self.count == 0 {
            self.next = self.next.max(passed + 1);
            return;
        }
        // After a long sleep each slot is looked at once.
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

/// The entries of one key that are yet to come, as far as they are known. Of three the latest is forgotten: it comes all
/// the same, and tells nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Listed {
    first: Option<Instant>,
    /// Not before `first`, without which it is not there.
    later: Option<Instant>,
}

impl Listed {
    /// Something is due at this time. True: an entry is to be set for it, as none comes as early.
    pub fn add(&mut self, time: Instant) -> bool {
        if self.first.is_some_and(|first| first <= time) {
            return false;
        }
        if let Some(first) = self.first.replace(time) {
            self.later = Some(first);
        }
        true
    }

    /// An entry has come, or may have been lost: whether something may be due. What is, and what will be, is to be
    /// [added](Self::add) again.
    pub fn take_due(&mut self, now: Instant) -> bool {
        if self.first.is_some_and(|first| first > now) {
            return false;
        }
        // Entries come after their time: one whose time is yet to come is still there.
        self.first = self.later.take().filter(|later| *later > now);
        true
    }
}

fn slot(tick: u64) -> usize {
    (tick % SLOTS as u64) as usize
}
