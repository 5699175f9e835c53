//! The consumers of events: sleeping threads, and event loops with a waker. One is notified for each piece of work.
//!
//! Invariant: while there is work and a consumer sleeps or waits, a notified consumer exists that has not checked yet.
//! It checks, or passes the notification on when it is removed. A consumer that takes only a part notifies the next
//! one.

use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Instant;

use crate::util::wakers::{Wake, Wakers};

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It does something else, and checks before it waits.
    Busy,
    Waiting,
    /// It was notified, and has not found the queue empty since.
    Notified,
}

struct Watcher {
    wake: Arc<dyn Wake>,
    state: State,
}

/// The consumer to wake, after the lock was released.
#[must_use]
pub(crate) enum Wakeup {
    None,
    Thread,
    Watch(Arc<dyn Wake>),
}

impl Wakeup {
    pub(crate) fn perform(self, threads: &Condvar) {
        match self {
            Self::None => {}
            Self::Thread => threads.notify_one(),
            Self::Watch(wake) => wake.wake(),
        }
    }
}

/// The consumers of one queue, under the lock of that queue.
#[derive(Default)]
pub(crate) struct Consumers {
    /// Sleeping threads, including the notified ones.
    sleeping: usize,
    notified: usize,
    watches: Wakers<Watcher>,
}

impl Consumers {
    /// Notifies a consumer of a new piece of work, unless a notified thread has yet to check.
    pub(crate) fn notify(&mut self) -> Wakeup {
        if self.notified > 0 {
            // A thread checks at once, unlike an event loop, which may be busy with something else.
            return Wakeup::None;
        }
        self.notify_another()
    }

    /// Notifies one more consumer.
    pub(crate) fn notify_another(&mut self) -> Wakeup {
        if self.sleeping > self.notified {
            self.notified += 1;
            return Wakeup::Thread;
        }
        match self.watches.iter_mut().find(|watcher| watcher.state == State::Waiting) {
            Some(watcher) => {
                watcher.state = State::Notified;
                Wakeup::Watch(Arc::clone(&watcher.wake))
            }
            None => Wakeup::None,
        }
    }

    /// Returns the wakers of all waiting event loops; the caller wakes the threads.
    pub(crate) fn notify_all_watches(&mut self) -> Vec<Arc<dyn Wake>> {
        self.notified = self.sleeping;
        let waiting = self.watches.iter_mut().filter(|watcher| watcher.state == State::Waiting);
        waiting
            .map(|watcher| {
                watcher.state = State::Notified;
                Arc::clone(&watcher.wake)
            })
            .collect()
    }

    pub(crate) fn add(&mut self, wake: Arc<dyn Wake>) -> u64 {
        self.watches.add(Watcher { wake, state: State::Busy })
    }

    /// Marks an event loop as waiting, behind all others, after it has found no work.
    pub(crate) fn wait(&mut self, number: u64) {
        if let Some(watcher) = self.watches.move_to_end(number) {
            watcher.state = State::Waiting;
        }
    }

    /// Removes an event loop. Returns whether it was notified and has not checked.
    pub(crate) fn remove(&mut self, number: u64) -> bool {
        self.watches.remove(number).is_some_and(|watcher| watcher.state == State::Notified)
    }
}

/// Sleeps until a notification or the deadline; the caller then checks for work.
pub(crate) fn sleep<'a, T>(
    mut guard: MutexGuard<'a, T>,
    threads: &Condvar,
    deadline: Option<Instant>,
    of: impl Fn(&mut T) -> &mut Consumers,
) -> MutexGuard<'a, T> {
    of(&mut guard).sleeping += 1;
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let mut guard = match left {
        None => threads.wait(guard).unwrap_or_else(PoisonError::into_inner),
        Some(left) => threads.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0,
    };
    let consumers = of(&mut guard);
    consumers.sleeping -= 1;
    // A notified thread and one whose deadline has passed are not distinguished: the first to wake checks.
    consumers.notified = consumers.notified.saturating_sub(1);
    guard
}
