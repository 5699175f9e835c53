//! The queue behind its lock: whatever changes it, whoever waits for what has come of it is told.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use wirespeed_engine::lock as locked;

use crate::queue::Queue;

/// See the module.
pub(super) struct Store {
    queue: Mutex<Queue>,
    /// Something is settled, or there is room.
    eased: Condvar,
}

impl Store {
    pub(super) fn new(queue: Queue) -> Self {
        Self { queue: Mutex::new(queue), eased: Condvar::new() }
    }

    pub(super) fn look<T>(&self, look: impl FnOnce(&Queue) -> T) -> T {
        look(&locked(&self.queue))
    }

    /// Changes it; and whether it is filling no more, of which relays are to be told.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Queue) -> T) -> (T, bool) {
        let mut queue = locked(&self.queue);
        let (filling, bytes, settled) = (queue.is_filling(), queue.bytes(), queue.settled());
        let result = change(&mut queue);
        let eased = filling && !queue.is_filling();
        let told = queue.bytes() < bytes || queue.settled() > settled || queue.is_closed();
        drop(queue);
        if told {
            self.eased.notify_all();
        }
        (result, eased)
    }

    /// Waits until `look` finds something, or the deadline.
    pub(super) fn wait<T>(&self, deadline: Option<Instant>, look: impl Fn(&Queue) -> Option<T>) -> Option<T> {
        let mut queue = locked(&self.queue);
        loop {
            if let Some(found) = look(&queue) {
                return Some(found);
            }
            queue = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.eased.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return None,
                Some(left) => self.eased.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }
}
