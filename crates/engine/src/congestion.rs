//! Whose publishers should wait: a session that a message went to is behind, and reads on.
//!
//! Clients that are as fast as each other are not quite, and how fast each could be is not known: what it has not read
//! yet is in its kernel. So the publisher is asked to wait for the last of them, if that one goes on reading at a pace
//! which is not far too slow. Whoever takes nothing, or does not catch up in time while others wait who have, is the
//! business of its outbox and of the policy for slow consumers.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::locks::lock;
use crate::topics::Topic;

/// For so long most others wait for a session until it has caught up, which is a quarter of its limit; a few others wait
/// longer.
const TOO_LONG: Duration = Duration::from_secs(5);

/// Then for so long nobody waits for it: whoever reads as slowly as possible can hold up others for a quarter of the time.
const GONE: Duration = Duration::from_secs(15);

/// For how long others have waited for one session to catch up, as if they were most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    spent: Duration,
    /// It was too long: until then.
    gone: Option<Instant>,
}

impl Patience {
    /// They have waited for so long.
    pub(crate) fn spend(&mut self, now: Instant, waited: Duration) {
        self.spent = self.spent.saturating_add(waited);
        if self.gone.is_none() && self.spent >= TOO_LONG {
            self.gone = now.checked_add(GONE);
        }
    }

    /// Whether they wait no longer.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.is_some()
    }

    /// Whether it is as if they had never waited.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.gone.is_some_and(|until| until <= now)
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
