//! Waiting for room, of whatever kind: one place that is told of all that may have made some.
//!
//! Who waits says so first and then looks; who makes room does that first and then asks whether anybody waits.
//! So none is overlooked, and while nobody waits it costs one load.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::locks::lock;
use crate::mailbox::{Refused, Wake};
use crate::wakers::Wakers;

/// See the module.
#[derive(Default)]
pub struct CapacityNotifier {
    /// Who waits, in a thread or by a watch.
    waiting: AtomicUsize,
    watches: Mutex<Wakers<Arc<dyn Wake>>>,
    told: Condvar,
}

/// One who waits, until it is dropped.
struct Waiting<'a>(&'a CapacityNotifier);

impl<'a> Waiting<'a> {
    fn new(room: &'a CapacityNotifier) -> Self {
        room.waiting.fetch_add(1, Ordering::SeqCst);
        // What is looked at from here on was not told of without our being counted.
        fence(Ordering::SeqCst);
        Self(room)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl CapacityNotifier {
    /// There may be room where there was none: whoever waits looks again. To be called after it was made.
    pub fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let watches = lock(&self.watches);
            self.told.notify_all();
            watches.iter().for_each(|wake| wake.wake());
        }
    }

    /// Waits until `look` finds room, or the deadline. It is called under a lock under which nobody tells, and
    /// must not wait.
    ///
    /// # Errors
    /// [`Refused::Full`]: not in time; or what `look` says.
    pub fn wait(&self, deadline: Option<Instant>, look: impl Fn() -> Result<bool, Refused>) -> Result<(), Refused> {
        if look()? {
            return Ok(());
        }
        let _waiting = Waiting::new(self);
        let mut watches = lock(&self.watches);
        while !look()? {
            watches = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.told.wait(watches).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return Err(Refused::Full),
                Some(left) => self.told.wait_timeout(watches, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        Ok(())
    }

    /// Has somebody woken, in whichever thread, whenever there may be room: who begins to watch looks for himself
    /// once.
    #[must_use]
    pub fn watch(self: &Arc<Self>, wake: Arc<dyn Wake>) -> Watch {
        let number = lock(&self.watches).add(wake);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Watch { room: Arc::clone(self), number, process: std::process::id() }
    }
}

/// Somebody is woken until this is dropped.
pub struct Watch {
    room: Arc<CapacityNotifier>,
    number: u64,
    process: u32,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return; // after a fork: whoever had the lock is not there
        }
        self.room.waiting.fetch_sub(1, Ordering::SeqCst);
        let gone = lock(&self.room.watches).remove(self.number);
        drop(gone);
    }
}
