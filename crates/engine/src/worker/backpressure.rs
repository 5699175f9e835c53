//! Those whose topics have no room: they go on when somebody tells of some, and in turns.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Key;
use crate::capacity::{CapacityNotifier, Watch};
use crate::mailbox::Wake;

/// See the module.
#[derive(Default)]
pub(super) struct BackpressureWaiters {
    keys: VecDeque<Key>,
    /// How many at the front have not had a turn since they were told last.
    first: usize,
    /// There may be room.
    told: Arc<AtomicBool>,
    /// While there is anybody.
    watch: Option<Watch>,
}

impl BackpressureWaiters {
    /// Adds one. `moved`: it had a turn, and comes after those that had none.
    pub(super) fn add(&mut self, key: Key, moved: bool, room: &Arc<CapacityNotifier>, wake: &Arc<dyn Wake>) {
        if moved {
            self.keys.push_back(key);
        } else {
            self.keys.insert(self.first.min(self.keys.len()), key);
            self.first += 1;
        }
        if self.watch.is_none() {
            let (told, wake) = (Arc::clone(&self.told), Arc::clone(wake));
            self.watch = Some(room.watch(Arc::new(move || {
                told.store(true, Ordering::SeqCst);
                wake.wake();
            })));
            // There may be room since it was looked for: nobody would tell of that.
            self.told.store(true, Ordering::SeqCst);
        }
    }

    pub(super) fn is_told(&self) -> bool {
        !self.keys.is_empty() && self.told.load(Ordering::SeqCst)
    }

    /// Has all look again, if there may be room.
    pub(super) fn take_told(&mut self, ready: &mut VecDeque<Key>) {
        if self.keys.is_empty() {
            self.watch = None;
        } else if self.told.swap(false, Ordering::SeqCst) {
            ready.extend(self.keys.drain(..));
            self.first = 0;
        }
    }
}
