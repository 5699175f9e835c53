//! Counters per key, exact with any number of threads.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;

use crate::util::locks::lock;

/// Counters per key. A key with a count of zero takes no memory.
pub(super) struct KeyedCounters<K>(Mutex<HashMap<K, usize>>);

impl<K> Default for KeyedCounters<K> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Clone + Eq + Hash> KeyedCounters<K> {
    /// Returns the count of a key.
    pub(super) fn count(&self, key: &K) -> usize {
        lock(&self.0).get(key).copied().unwrap_or(0)
    }

    /// Increments the count of a key unless it has reached the limit. Returns whether it did.
    pub(super) fn try_increment(&self, key: &K, limit: usize) -> bool {
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

    /// Decrements the count of a key.
    pub(super) fn decrement(&self, key: &K) {
        let mut counts = lock(&self.0);
        if let Some(count) = counts.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(key);
                // Return the memory after a flood of many addresses.
                if counts.capacity() > 64 && counts.len() < counts.capacity() / 8 {
                    counts.shrink_to_fit();
                }
            }
        }
    }
}
