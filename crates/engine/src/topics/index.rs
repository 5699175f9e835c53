//! Which of many subscribe to what.
//!
//! Owns the sets of all patterns, for one thread: a worker's account of its own sessions. Knows nothing of
//! those who subscribe but that they can be told apart, and nothing of other threads: see
//! [`super::Registry`]. Called by a worker, for commands that subscribe and for each message that it fans out.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::RandomState;

use super::pattern::{Pattern, Topic};
use super::set::{Set, count_distinct};
use super::tree::Tree;

/// See the module. `K`: one who subscribes. What belongs to a pattern is freed with its last subscriber.
#[derive(Debug)]
pub struct Index<K> {
    /// No set in it is empty. The names are of peers' choosing: the hash has a seed.
    exact: HashMap<Pattern, Set<K>, RandomState>,
    wild: Tree<Set<K>>,
}

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self { exact: HashMap::default(), wild: Tree::default() }
    }
}

impl<K: Copy + Eq + Hash> Index<K> {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Subscribes `key` to `pattern`; false, if it did already.
    pub fn insert(&mut self, pattern: &Pattern, key: K) -> bool {
        if pattern.is_exact() {
            self.exact.entry(pattern.clone()).or_default().insert(key)
        } else {
            self.wild.members_mut(pattern).insert(key)
        }
    }

    /// Ends what [`Self::insert`] began; false, if it had not.
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

    /// The sets of all patterns that match, first that of the topic's own name. Whoever subscribes to several
    /// of them is in several sets. No set is empty. The cost grows with the segments of the topic and with the
    /// patterns that match some of its first segments, not with other patterns.
    pub fn matching<'a>(&'a self, topic: &Topic) -> impl Iterator<Item = &'a Set<K>> {
        self.exact.get(topic.as_str()).into_iter().chain(self.wild.matching(topic))
    }

    /// How many different keys subscribe to what matches. If several sets do, all but the largest are gone
    /// through.
    #[must_use]
    pub fn count(&self, topic: &Topic) -> usize {
        count_distinct(self.matching(topic))
    }

    /// How many patterns have a subscriber.
    #[must_use]
    pub fn len(&self) -> usize {
        self.exact.len() + self.wild.len()
    }

    /// Whether nobody subscribes to anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All patterns that have a subscriber, with their sets, in no order.
    pub fn patterns(&self) -> impl Iterator<Item = (&Pattern, &Set<K>)> {
        self.exact.iter().chain(self.wild.patterns())
    }

    /// How many inner nodes the patterns with wildcards take, for whoever watches memory. Goes through all of
    /// them.
    #[must_use]
    pub fn branches(&self) -> usize {
        self.wild.branches()
    }
}
