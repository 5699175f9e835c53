//! How many there are of each: exact, however many threads count.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;

use crate::locks::lock;

/// See the module. Who has none takes no memory.
pub(super) struct Shares<K>(Mutex<HashMap<K, usize>>);

impl<K> Default for Shares<K> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Clone + Eq + Hash> Shares<K> {
    /// How many there are of this one.
    pub(super) fn count(&self, key: &K) -> usize {
        lock(&self.0).get(key).copied().unwrap_or(0)
    }

    /// Counts one more, if that is not too many.
    pub(super) fn take(&self, key: &K, limit: usize) -> bool {
        let mut counts = lock(&self.0);
        match counts.get_mut(key) {
            Some(count) if *count >= limit => false,
            Some(count) => {
                *count += 1;
                true
            }
            None if limit == 0 => false,
            None => {
                counts.insert(key.clone(), 1);
                true
            }
        }
    }

    /// Counts one less.
    pub(super) fn give_back(&self, key: &K) {
        let mut counts = lock(&self.0);
        if let Some(count) = counts.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(key);
                // After a flood of many addresses the memory goes too.
                if counts.capacity() > 64 && counts.len() < counts.capacity() / 8 {
                    counts.shrink_to_fit();
                }
            }
        }
    }
}
