//! The subscriptions of one worker's sessions.
//!
//! Owns the subscribers of all patterns, for one thread. Knows nothing of subscribers but their keys, and nothing of
//! other threads: see [`super::Registry`]. Called by a worker, for subscriptions and for each message that it fans
//! out.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::RandomState;

use super::pattern::{Pattern, Topic};
use super::set::{Set, count_distinct};
use super::tree::Tree;

/// The subscribers of each pattern, as keys of type `K`. The memory of a pattern is freed with its last subscriber.
#[derive(Debug)]
pub struct Index<K> {
    /// No set in it is empty. Clients choose the names, so the hash is seeded.
    exact: HashMap<Pattern, Set<K>, RandomState>,
    wild: Tree<Set<K>>,
}

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self { exact: HashMap::default(), wild: Tree::default() }
    }
}

impl<K: Copy + Eq + Hash> Index<K> {
    /// Returns an empty index.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Subscribes `key` to `pattern`. Returns false if it is subscribed already.
    pub fn insert(&mut self, pattern: &Pattern, key: K) -> bool {
        if pattern.is_exact() {
            self.exact.entry(pattern.clone()).or_default().insert(key)
        } else {
            self.wild.members_mut(pattern).insert(key)
        }
    }

    /// Ends a subscription. Returns false if there is none.
    pub fn remove(&mut self, pattern: &Pattern, key: K) -> bool {
        if !pattern.is_exact() {
            return self.wild.remove(pattern, |set| set.remove(key));
        }
        let Some(set) = self.exact.get_mut(pattern) else { return false };
        let removed = set.remove(key);
        if set.is_empty() {
            self.exact.remove(pattern);
        }
        removed
    }

    /// Iterates over the sets of all matching patterns, first that of the topic's own name. A key with several
    /// matching subscriptions is in several sets. No set is empty. The cost grows with the segments of the topic and
    /// with the patterns that match some of its first segments, not with other patterns.
    pub fn matching<'a>(&'a self, topic: &Topic) -> impl Iterator<Item = &'a Set<K>> {
        self.exact.get(topic.as_str()).into_iter().chain(self.wild.matching(topic))
    }

    /// Returns the number of different keys that match. If several sets match, all but the largest are iterated over.
    #[must_use]
    pub fn count(&self, topic: &Topic) -> usize {
        count_distinct(self.matching(topic))
    }

    /// Returns the number of patterns with a subscriber.
    #[must_use]
    pub fn len(&self) -> usize {
        self.exact.len() + self.wild.len()
    }

    /// Returns whether there are no subscriptions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over all patterns with a subscriber and their sets, in no order.
    pub fn patterns(&self) -> impl Iterator<Item = (&Pattern, &Set<K>)> {
        self.exact.iter().chain(self.wild.patterns())
    }

    /// Returns the number of inner nodes of the patterns with wildcards, as a measure of memory. Visits all of them.
    #[must_use]
    pub fn branches(&self) -> usize {
        self.wild.branches()
    }
}
