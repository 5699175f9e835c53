//! Waiting for capacity of any kind, at one place that is notified whenever some may have become free.
//!
//! A waiter registers and then checks for capacity. The other side frees capacity and then checks for waiters. So no
//! notification is lost, and without waiters a notification costs one load.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::util::locks::lock;
use crate::util::wakers::{Wake, Wakers};

/// Why a command was refused, or a wait for capacity has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no capacity, or there was none until the deadline.
    Full,
    /// The worker has ended.
    Closed,
}

/// Notifies threads and event loops that capacity may have become free.
#[derive(Default)]
pub struct CapacityNotifier {
    /// The number of waiting threads, and of watches.
    waiting: AtomicUsize,
    watches: Mutex<Wakers<Arc<dyn Wake>>>,
    changed: Condvar,
}

/// Counts one waiting thread until it is dropped.
struct Waiting<'a>(&'a CapacityNotifier);

impl<'a> Waiting<'a> {
    fn new(notifier: &'a CapacityNotifier) -> Self {
        notifier.waiting.fetch_add(1, Ordering::SeqCst);
        // A check after this fence sees all capacity that was freed without a notification.
        fence(Ordering::SeqCst);
        Self(notifier)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl CapacityNotifier {
    /// Wakes all waiters, which check again. To be called after capacity was freed.
    pub fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let watches = lock(&self.watches);
            self.changed.notify_all();
            watches.iter().for_each(|wake| wake.wake());
        }
    }

    /// Waits until `check` returns true, or the deadline. `check` is called under a lock that notifiers need: it must
    /// not wait, and must not notify.
    ///
    /// # Errors
    /// [`Refused::Full`]: there was no capacity by the deadline; or the error of `check`.
    pub fn wait(&self, deadline: Option<Instant>, check: impl Fn() -> Result<bool, Refused>) -> Result<(), Refused> {
        if check()? {
            return Ok(());
        }
        let _waiting = Waiting::new(self);
        let mut watches = lock(&self.watches);
        while !check()? {
            watches = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.changed.wait(watches).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return Err(Refused::Full),
                Some(left) => self.changed.wait_timeout(watches, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        Ok(())
    }

    /// Calls the waker, in any thread, whenever capacity may have become free, until the result is dropped. The caller
    /// has to check for capacity once after this call.
    #[must_use]
    pub fn watch(self: &Arc<Self>, wake: Arc<dyn Wake>) -> Watch {
        let number = lock(&self.watches).add(wake);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Watch { notifier: Arc::clone(self), number, process: std::process::id() }
    }
}

/// A registered waker. It is removed when this is dropped.
pub struct Watch {
    notifier: Arc<CapacityNotifier>,
    number: u64,
    process: u32,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return; // in a forked child: another thread may have held the lock at the fork
        }
        self.notifier.waiting.fetch_sub(1, Ordering::SeqCst);
        let removed = lock(&self.notifier.watches).remove(self.number);
        drop(removed);
    }
}
