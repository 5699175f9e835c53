//! The queue behind its lock: each change wakes the threads and event loops that wait for it.

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use wirespeed_engine::control::CapacityNotifier;
use wirespeed_engine::lock as locked;

use crate::queue::Queue;

/// A [`Queue`] that is shared between threads.
pub(super) struct SharedQueue {
    queue: Mutex<Queue>,
    /// Notified when messages are settled, when the queue has capacity, and when it closes.
    capacity: Arc<CapacityNotifier>,
}

impl SharedQueue {
    pub(super) fn new(queue: Queue) -> Self {
        Self { queue: Mutex::new(queue), capacity: Arc::default() }
    }

    pub(super) fn capacity(&self) -> &Arc<CapacityNotifier> {
        &self.capacity
    }

    pub(super) fn inspect<T>(&self, inspect: impl FnOnce(&Queue) -> T) -> T {
        inspect(&locked(&self.queue))
    }

    /// Changes the queue. Returns also whether it just stopped filling, so that relays can resume.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Queue) -> T) -> (T, bool) {
        let mut queue = locked(&self.queue);
        let (filling, bytes, settled) = (queue.is_filling(), queue.bytes(), queue.settled());
        let result = change(&mut queue);
        let relieved = filling && !queue.is_filling();
        let changed = queue.bytes() < bytes || queue.settled() > settled || queue.is_closed();
        drop(queue);
        if changed {
            self.capacity.notify();
        }
        (result, relieved)
    }

    /// Waits until `inspect` returns `Some`, or the deadline.
    pub(super) fn wait<T>(&self, deadline: Option<Instant>, inspect: impl Fn(&Queue) -> Option<T>) -> Option<T> {
        let found = Cell::new(None);
        let finds = || {
            let here = inspect(&locked(&self.queue));
            let finds = here.is_some();
            found.set(here);
            Ok(finds)
        };
        self.capacity.wait(deadline, finds).ok()?;
        found.take()
    }
}
