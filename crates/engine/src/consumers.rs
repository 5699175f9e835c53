//! Who takes events: threads that sleep, and watches, by which event loops are woken. One is told for each piece of
//! work.
//!
//! What keeps every wake-up: while there is something to take and anybody sleeps or waits, somebody has been told who
//! has yet to look. He looks, or goes and passes it on; who takes only a part of it tells the next one.

use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Instant;

use crate::mailbox::Wake;
use crate::wakers::Wakers;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has something else to do, and looks before it waits.
    Busy,
    Waiting,
    /// It was told, and has not looked and found nothing since.
    Told,
}

struct Watcher {
    wake: Arc<dyn Wake>,
    state: State,
}

/// Who is to be woken, after the lock has been released.
#[must_use]
pub(crate) enum Call {
    Nobody,
    Thread,
    Watch(Arc<dyn Wake>),
}

impl Call {
    pub(crate) fn make(self, threads: &Condvar) {
        match self {
            Self::Nobody => {}
            Self::Thread => threads.notify_one(),
            Self::Watch(wake) => wake.wake(),
        }
    }
}

/// See the module. It is under the lock of what is taken.
#[derive(Default)]
pub(crate) struct Consumers {
    /// Threads that sleep, those among them that have been told included.
    sleeping: usize,
    told: usize,
    watches: Wakers<Watcher>,
}

impl Consumers {
    /// There is a piece of work more.
    pub(crate) fn notify(&mut self) -> Call {
        if self.told > 0 {
            // Unlike an event loop, which may be kept by something else, a thread looks at once.
            return Call::Nobody;
        }
        self.tell_another()
    }

    /// There is something for one beside those who were told.
    pub(crate) fn tell_another(&mut self) -> Call {
        if self.sleeping > self.told {
            self.told += 1;
            return Call::Thread;
        }
        match self.watches.iter_mut().find(|watcher| watcher.state == State::Waiting) {
            Some(watcher) => {
                watcher.state = State::Told;
                Call::Watch(Arc::clone(&watcher.wake))
            }
            None => Call::Nobody,
        }
    }

    /// Every watch that waits, to be woken; the caller wakes the threads.
    pub(crate) fn tell_all(&mut self) -> Vec<Arc<dyn Wake>> {
        self.told = self.sleeping;
        let waiting = self.watches.iter_mut().filter(|watcher| watcher.state == State::Waiting);
        waiting
            .map(|watcher| {
                watcher.state = State::Told;
                Arc::clone(&watcher.wake)
            })
            .collect()
    }

    pub(crate) fn add(&mut self, wake: Arc<dyn Wake>) -> u64 {
        self.watches.add(Watcher { wake, state: State::Busy })
    }

    /// It looked, and there was nothing: it waits, behind all others.
    pub(crate) fn wait(&mut self, number: u64) {
        if let Some(watcher) = self.watches.put_last(number) {
            watcher.state = State::Waiting;
        }
    }

    /// Whether it goes without having looked.
    pub(crate) fn remove(&mut self, number: u64) -> bool {
        self.watches.remove(number).is_some_and(|watcher| watcher.state == State::Told)
    }
}

/// Sleeps until told, or the deadline: the caller looks.
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
    // Whoever comes first of those who were told and those whose time is over looks: they are not told apart.
    consumers.told = consumers.told.saturating_sub(1);
    guard
}
