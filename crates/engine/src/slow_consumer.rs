//! Topics whose publishers should wait, and for how long they may be delayed.
//!
//! Clients of the same speed are never exactly as fast as each other, and a publisher cannot tell how fast they are: what
//! a client has not read yet may lie in its kernel. So publishers wait for the last session of an audience, within a
//! [`SlowConsumerBudget`] of that audience. Sessions that use it up come to their limit, where the policy for slow consumers applies.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::locks::lock;
use crate::topics::Topic;

/// A second of a budget comes back in so many seconds.
const RECOVERY: u32 = 4;

/// Time for which slow sessions may delay others: a fixed amount, and a quarter of the time from then on. It belongs to an
/// audience and not to a session, so that new connections do not renew it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowConsumerBudget {
    most: Duration,
    spent: Duration,
    /// When `spent` was true.
    at: Instant,
    /// Time up to here has been charged, by whichever worker.
    charged_to: Instant,
}

impl SlowConsumerBudget {
    pub(crate) fn new(most: Duration, now: Instant) -> Self {
        Self { most, spent: Duration::ZERO, at: now, charged_to: now }
    }

    /// What is left of it.
    pub(crate) fn left(&mut self, now: Instant) -> Duration {
        self.spent = self.spent.saturating_sub(now.saturating_duration_since(self.at) / RECOVERY);
        self.at = now;
        self.most - self.spent
    }

    /// Spends the time from `from` to `to`, as far as no other worker has done so.
    pub(crate) fn spend_between(&mut self, from: Instant, to: Instant) {
        self.spend(to.saturating_duration_since(from.max(self.charged_to)));
        self.charged_to = to.max(self.charged_to);
    }

    pub(crate) fn spend(&mut self, time: Duration) {
        self.spent = self.spent.saturating_add(time).min(self.most);
    }
}

/// The time that slow sessions may delay the publishers of an audience once.
pub(crate) const ALLOWANCE: Duration = Duration::from_secs(5);

/// Budgets of an engine. Audiences of the same place share one, so that their number is bounded.
const BUDGETS: usize = 1024;

/// The budgets of all audiences of an engine.
#[derive(Debug, Default)]
pub(crate) struct Budgets {
    /// Made when the first is needed.
    places: Mutex<Vec<SlowConsumerBudget>>,
    /// Clients cannot choose topics that share a place.
    hasher: RandomState,
}

impl Budgets {
    /// Calls `change` with the budget of an audience.
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
    /// All of them.
    all: AtomicBool,
    audiences: Mutex<HashSet<Option<Topic>>>,
    /// Audiences that are congested, here or in another worker, and of which a session here has nothing left to read.
    starved: Mutex<HashSet<Option<Topic>>>,
}

impl SlowConsumerState {
    /// Whether publishers of this audience should wait.
    pub(crate) fn has(&self, audience: Option<&Topic>) -> bool {
        self.any.load(Ordering::SeqCst)
            && (self.all.load(Ordering::SeqCst) || lock(&self.audiences).contains(&audience.cloned()))
    }

    /// Whether publishers should wait because of sessions that this audience has here.
    pub(crate) fn holds(&self, audience: &Option<Topic>) -> bool {
        self.any.load(Ordering::SeqCst) && lock(&self.audiences).contains(audience)
    }

    /// Whether a session that this audience has here has nothing left to read.
    pub(crate) fn is_starved(&self, audience: &Option<Topic>) -> bool {
        lock(&self.starved).contains(audience)
    }

    /// For the worker: whether a session of this audience has nothing left to read.
    pub(crate) fn set_starved(&self, audience: &Option<Topic>, is_starved: bool) {
        let mut starved = lock(&self.starved);
        if !is_starved {
            starved.remove(audience);
        } else if !starved.contains(audience) {
            starved.insert(audience.clone());
        }
    }

    /// For the worker: publishers of every audience should wait, or no longer. Only while there is a congested audience;
    /// the caller has to tell those that wait.
    pub(crate) fn set_all(&self, all: bool) {
        self.all.store(all, Ordering::SeqCst);
    }

    /// For the worker: publishers of this audience should wait.
    pub(crate) fn add(&self, audience: Option<Topic>) {
        let mut audiences = lock(&self.audiences);
        audiences.insert(audience);
        self.any.store(true, Ordering::SeqCst);
    }

    /// For the worker: no publisher should wait.
    pub(crate) fn clear(&self) {
        let mut audiences = lock(&self.audiences);
        audiences.clear();
        lock(&self.starved).clear();
        self.set_all(false);
        self.any.store(false, Ordering::SeqCst);
    }

    /// For the worker: publishers of this audience should no longer wait. The caller has to tell them.
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
    fn a_budget_is_spent_once_and_comes_back_in_four_times_the_time() {
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
    fn workers_that_wait_at_the_same_time_spend_it_once() {
        let (second, start) = (Duration::from_secs(1), Instant::now());
        let mut budget = SlowConsumerBudget::new(5 * second, start);
        budget.spend_between(start, start + second);
        budget.spend_between(start, start + second);
        budget.spend_between(start + second / 2, start + 2 * second);
        assert_eq!(budget.left(start), 3 * second);
    }
}
