//! The queue behind its lock: each change wakes the threads and event loops that wait for it.

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use wirespeed_engine::capacity::CapacityNotifier;
use wirespeed_engine::lock as locked;

use crate::queue::Queue;

/// See the module.
pub(super) struct Store {
    queue: Mutex<Queue>,
    /// Notified when messages are settled, and when the queue has room.
    eased: Arc<CapacityNotifier>,
}

impl Store {
    pub(super) fn new(queue: Queue) -> Self {
        Self { queue: Mutex::new(queue), eased: Arc::default() }
    }

    pub(super) fn eased(&self) -> &Arc<CapacityNotifier> {
        &self.eased
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
            self.eased.notify();
        }
        (result, eased)
    }

    /// Waits until `look` finds something, or the deadline.
    pub(super) fn wait<T>(&self, deadline: Option<Instant>, look: impl Fn(&Queue) -> Option<T>) -> Option<T> {
        let found = Cell::new(None);
        let finds = || {
            let here = look(&locked(&self.queue));
            let finds = here.is_some();
            found.set(here);
            Ok(finds)
        };
        self.eased.wait(deadline, finds).ok()?;
        found.take()
    }
}
