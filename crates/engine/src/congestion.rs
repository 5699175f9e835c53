//! Topics whose publishers should wait, and for how long they may be delayed.
//!
//! Clients of the same speed are never exactly as fast as each other, and a publisher cannot tell how fast they are: what
//! a client has not read yet may lie in its kernel. So publishers wait for the last session of an audience, within a
//! [`Budget`] of that audience. Sessions that use it up come to their limit, where the policy for slow consumers applies.

use std::collections::HashSet;
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
pub(crate) struct Budget {
    most: Duration,
    spent: Duration,
    /// When `spent` was true.
    at: Instant,
}

impl Budget {
    pub(crate) fn new(most: Duration, now: Instant) -> Self {
        Self { most, spent: Duration::ZERO, at: now }
    }

    /// What is left of it.
    pub(crate) fn left(&mut self, now: Instant) -> Duration {
        self.spent = self.spent.saturating_sub(now.saturating_duration_since(self.at) / RECOVERY);
        self.at = now;
        self.most - self.spent
    }

    pub(crate) fn spend(&mut self, time: Duration) {
        self.spent = self.spent.saturating_add(time).min(self.most);
    }
}

/// The congested audiences of one worker. An audience is a topic; `None` is all sessions.
#[derive(Debug, Default)]
pub(crate) struct Congestion {
    any: AtomicBool,
    /// All of them.
    all: AtomicBool,
    audiences: Mutex<HashSet<Option<Topic>>>,
}

impl Congestion {
    /// Whether publishers of this audience should wait.
    pub(crate) fn has(&self, audience: Option<&Topic>) -> bool {
        self.any.load(Ordering::SeqCst)
            && (self.all.load(Ordering::SeqCst) || lock(&self.audiences).contains(&audience.cloned()))
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
        let mut budget = Budget::new(5 * second, start);
        budget.spend(2 * second);
        assert_eq!(budget.left(start), 3 * second);
        budget.spend(60 * second);
        assert_eq!(budget.left(start), Duration::ZERO);
        assert_eq!(budget.left(start + 4 * second), second);
        assert_eq!(budget.left(start + 2 * second), second, "time does not go back");
        assert_eq!(budget.left(start + 1000 * second), 5 * second);
    }
}
