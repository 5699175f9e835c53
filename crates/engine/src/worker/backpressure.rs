//! Relay clients whose topic has no capacity: they are read again, in turns, when capacity may have come back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::control::{CapacityNotifier, Watch};
use crate::util::slab::Key;
use crate::util::wakers::Wake;

/// The queue of such clients of one worker.
#[derive(Default)]
pub(super) struct BackpressureWaiters {
    keys: VecDeque<Key>,
    /// The number of clients at the front that had no turn since the last notification.
    first: usize,
    /// Capacity may have come back.
    notified: Arc<AtomicBool>,
    /// Exists while there are clients in the queue.
    watch: Option<Watch>,
}

impl BackpressureWaiters {
    /// Adds a client. `published`: it published something in its turn, and goes behind those that did not.
    pub(super) fn add(&mut self, key: Key, published: bool, capacity: &Arc<CapacityNotifier>, wake: &Arc<dyn Wake>) {
        if published {
            self.keys.push_back(key);
        } else {
            self.keys.insert(self.first.min(self.keys.len()), key);
            self.first += 1;
        }
        if self.watch.is_none() {
            let (notified, wake) = (Arc::clone(&self.notified), Arc::clone(wake));
            self.watch = Some(capacity.watch(Arc::new(move || {
                notified.store(true, Ordering::SeqCst);
                wake.wake();
            })));
            // Capacity may have come back before the watch began.
            self.notified.store(true, Ordering::SeqCst);
        }
    }

    pub(super) fn is_notified(&self) -> bool {
        !self.keys.is_empty() && self.notified.load(Ordering::SeqCst)
    }

    /// Moves all clients to `ready` if capacity may have come back.
    pub(super) fn take_notified(&mut self, ready: &mut VecDeque<Key>) {
        if self.keys.is_empty() {
            self.watch = None;
        } else if self.notified.swap(false, Ordering::SeqCst) {
            ready.extend(self.keys.drain(..));
            self.first = 0;
        }
    }
}
