//! Whose publishers should wait: a session that a message went to is behind, and reads on.
//!
//! Clients that are as fast as each other are not quite: the publisher is asked to wait for the last of them, so
//! that none is cut. One that is far slower is the business of its outbox and of the policy for slow consumers:
//! whoever takes nothing is not waited for, and neither is one that the others have waited for most of the time.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::locks::lock;
use crate::topics::Topic;

/// A session may be waited for alone for this part of the time, in quarters.
const SHARE: u32 = 3;

/// So much more than its share it may take, and then nobody waits for it until that is forgotten.
const TOO_LONG: Duration = Duration::from_millis(300);

/// For how long others have waited for one session alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    spent: Duration,
    at: Instant,
    gone: bool,
}

impl Patience {
    pub(crate) fn new(now: Instant) -> Self {
        Self { spent: Duration::ZERO, at: now, gone: false }
    }

    fn spent(&self, now: Instant) -> Duration {
        self.spent.saturating_sub(now.saturating_duration_since(self.at) / 4 * SHARE)
    }

    /// They have waited for so long.
    pub(crate) fn spend(&mut self, now: Instant, waited: Duration) {
        self.spent = self.spent(now) + waited;
        self.at = now;
        self.gone |= self.spent >= TOO_LONG;
    }

    /// Whether they wait no longer.
    pub(crate) fn is_gone(&self, now: Instant) -> bool {
        self.gone && !self.is_forgotten(now)
    }

    /// Whether it is as if it had been waited for never.
    pub(crate) fn is_forgotten(&self, now: Instant) -> bool {
        self.spent(now).is_zero()
    }
}

/// Of one worker: see the module. An audience is a topic; none is everybody.
#[derive(Debug, Default)]
pub(crate) struct Congestion {
    any: AtomicBool,
    /// All of them.
    all: AtomicBool,
    audiences: Mutex<HashSet<Option<Topic>>>,
}

impl Congestion {
    /// Whether who sends to this audience should wait.
    pub(crate) fn has(&self, audience: Option<&Topic>) -> bool {
        self.any.load(Ordering::SeqCst)
            && (self.all.load(Ordering::SeqCst) || lock(&self.audiences).contains(&audience.cloned()))
    }

    /// For the worker: who sends to any audience should wait, until he should no longer. Only while there are some, and
    /// whoever waits is yet to be told.
    pub(crate) fn set_all(&self, all: bool) {
        self.all.store(all, Ordering::SeqCst);
    }

    /// For the worker: who sends to it should wait.
    pub(crate) fn add(&self, audience: Option<Topic>) {
        let mut audiences = lock(&self.audiences);
        audiences.insert(audience);
        self.any.store(true, Ordering::SeqCst);
    }

    /// For the worker: nobody should.
    pub(crate) fn clear(&self) {
        let mut audiences = lock(&self.audiences);
        audiences.clear();
        self.set_all(false);
        self.any.store(false, Ordering::SeqCst);
    }

    /// For the worker: he should no longer. Whoever waits is yet to be told.
    pub(crate) fn remove(&self, audience: &Option<Topic>) {
        let mut audiences = lock(&self.audiences);
        audiences.remove(audience);
        self.any.store(!audiences.is_empty(), Ordering::SeqCst);
    }
}
