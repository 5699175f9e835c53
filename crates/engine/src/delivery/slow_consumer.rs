//! Congested audiences, and how long slow sessions may delay their publishers.
//!
//! Clients of the same speed are never equally fast, and a publisher cannot see how fast they are, as unread bytes may
//! lie in a client's kernel. So publishers wait for the last session of an audience, within a [`SlowConsumerBudget`]
//! of that audience. Sessions that use it up reach their limit, where the policy for slow consumers applies.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::topics::Topic;
use crate::util::locks::lock;

/// A second of a budget is restored in this number of seconds.
const RECOVERY: u32 = 4;

/// The time for which slow sessions may delay others: a fixed amount, restored at a quarter of the speed of time. It
/// belongs to an audience and not to a session, so that new connections do not renew it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowConsumerBudget {
    most: Duration,
    spent: Duration,
    /// When `spent` was computed.
    at: Instant,
    /// The end of the time that was charged last, by any worker.
    charged_to: Instant,
}

impl SlowConsumerBudget {
    pub(crate) fn new(most: Duration, now: Instant) -> Self {
        Self { most, spent: Duration::ZERO, at: now, charged_to: now }
    }

    /// Returns the rest of the budget.
    pub(crate) fn left(&mut self, now: Instant) -> Duration {
        self.spent = self.spent.saturating_sub(now.saturating_duration_since(self.at) / RECOVERY);
        self.at = now;
        self.most - self.spent
    }

    /// Spends the time from `from` to `to`, without the part that another worker has already charged.
    pub(crate) fn spend_between(&mut self, from: Instant, to: Instant) {
        self.spend(to.saturating_duration_since(from.max(self.charged_to)));
        self.charged_to = to.max(self.charged_to);
    }

    pub(crate) fn spend(&mut self, time: Duration) {
        self.spent = self.spent.saturating_add(time).min(self.most);
    }
}

/// The time for which slow sessions may delay the publishers of an audience, without its restoration.
pub(crate) const ALLOWANCE: Duration = Duration::from_secs(5);

/// The number of budgets of an engine. Audiences with the same hash share one, so that their number is bounded.
const BUDGETS: usize = 1024;

/// The budgets of all audiences of an engine.
#[derive(Debug, Default)]
pub(crate) struct Budgets {
    /// Filled at the first use.
    places: Mutex<Vec<SlowConsumerBudget>>,
    /// Seeded, so that clients cannot choose topics that share a budget.
    hasher: RandomState,
}

impl Budgets {
    /// Calls `change` with the budget of an audience, and returns its result.
    pub(crate) fn with<T>(
        &self,
        audience: Option<&Topic>,
        now: Instant,
        change: impl FnOnce(&mut SlowConsumerBudget) -> T,
    ) -> Option<T> {
        let mut places = lock(&self.places);
        if places.is_empty() {
            *places = vec![SlowConsumerBudget::new(ALLOWANCE, now); BUDGETS];
        }
        let place = self.hasher.hash_one(audience.map(Topic::as_str)) % BUDGETS as u64;
        places.get_mut(place as usize).map(change)
    }
}

/// The congested audiences of one worker. An audience is a topic; `None` is all sessions.
#[derive(Debug, Default)]
pub(crate) struct SlowConsumerState {
    any: AtomicBool,
    /// All audiences count as congested.
    all: AtomicBool,
    audiences: Mutex<HashSet<Option<Topic>>>,
    /// Audiences that are congested here or in another worker, and of which a session here has nothing left to read.
    starved: Mutex<HashSet<Option<Topic>>>,
}

impl SlowConsumerState {
    /// Returns whether publishers of this audience should wait.
    pub(crate) fn has(&self, audience: Option<&Topic>) -> bool {
        self.any.load(Ordering::SeqCst)
            && (self.all.load(Ordering::SeqCst) || lock(&self.audiences).contains(&audience.cloned()))
    }

    /// Returns whether publishers should wait for sessions that this audience has here.
    pub(crate) fn holds(&self, audience: &Option<Topic>) -> bool {
        self.any.load(Ordering::SeqCst) && lock(&self.audiences).contains(audience)
    }

    /// Returns whether a session that this audience has here has nothing left to read.
    pub(crate) fn is_starved(&self, audience: &Option<Topic>) -> bool {
        lock(&self.starved).contains(audience)
    }

    /// For the worker: sets whether a session of this audience has nothing left to read.
    pub(crate) fn set_starved(&self, audience: &Option<Topic>, is_starved: bool) {
        let mut starved = lock(&self.starved);
        if !is_starved {
            starved.remove(audience);
        } else if !starved.contains(audience) {
            starved.insert(audience.clone());
        }
    }

    /// For the worker: sets whether all audiences count as congested. This has an effect only while one is. The caller
    /// has to notify waiting publishers.
    pub(crate) fn set_all(&self, all: bool) {
        self.all.store(all, Ordering::SeqCst);
    }

    /// For the worker: marks an audience as congested.
    pub(crate) fn add(&self, audience: Option<Topic>) {
        let mut audiences = lock(&self.audiences);
        audiences.insert(audience);
        self.any.store(true, Ordering::SeqCst);
    }

    /// For the worker: no audience is congested any more.
    pub(crate) fn clear(&self) {
        let mut audiences = lock(&self.audiences);
        audiences.clear();
        lock(&self.starved).clear();
        self.set_all(false);
        self.any.store(false, Ordering::SeqCst);
    }

    /// For the worker: an audience is no longer congested. The caller has to notify waiting publishers.
    pub(crate) fn remove(&self, audience: &Option<Topic>) {
        let mut audiences = lock(&self.audiences);
        audiences.remove(audience);
        self.any.store(!audiences.is_empty(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_spent_once_and_restored_in_four_times_the_time() {
        let (second, start) = (Duration::from_secs(1), Instant::now());
        let mut budget = SlowConsumerBudget::new(5 * second, start);
        budget.spend(2 * second);
        assert_eq!(budget.left(start), 3 * second);
        budget.spend(60 * second);
        assert_eq!(budget.left(start), Duration::ZERO);
        assert_eq!(budget.left(start + 4 * second), second);
        assert_eq!(budget.left(start + 2 * second), second, "time does not go back");
        assert_eq!(budget.left(start + 1000 * second), 5 * second);
    }

    #[test]
    fn simultaneous_waits_of_workers_are_charged_once() {
        let (second, start) = (Duration::from_secs(1), Instant::now());
        let mut budget = SlowConsumerBudget::new(5 * second, start);
        budget.spend_between(start, start + second);
        budget.spend_between(start, start + second);
        budget.spend_between(start + second / 2, start + 2 * second);
        assert_eq!(budget.left(start), 3 * second);
    }
}
