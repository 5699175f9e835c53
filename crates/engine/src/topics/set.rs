//! Those who subscribe to one pattern, and how many several such sets have together.
//!
//! Knows no pattern. Called by the index, the registry and the tree of wildcards, and by whoever goes through
//! a set that matched.

use std::cmp::Reverse;
use std::hash::Hash;

use foldhash::fast::RandomState;
use indexmap::IndexSet;

/// What [`super::tree::Tree`] and [`count_distinct`] have to know of a set.
pub(super) trait Members: Default {
    /// One of those in it.
    type Member: Copy;

    /// How many are in it.
    fn len(&self) -> usize;

    /// Whether this one is.
    fn contains(&self, member: Self::Member) -> bool;

    /// All of them.
    fn members(&self) -> impl Iterator<Item = Self::Member>;
}

/// Those who subscribe to one pattern, side by side in memory, in an order that any removal may change.
#[derive(Clone, Debug)]
pub struct Set<K>(IndexSet<K, RandomState>);

impl<K: Copy + Eq + Hash> Set<K> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none: not so in a set that an index hands out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this one is among them.
    #[must_use]
    pub fn contains(&self, key: K) -> bool {
        self.0.contains(&key)
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = K> {
        self.0.iter().copied()
    }

    pub(super) fn insert(&mut self, key: K) -> bool {
        self.0.insert(key)
    }

    pub(super) fn remove(&mut self, key: K) -> bool {
        self.0.swap_remove(&key)
    }
}

impl<K> Default for Set<K> {
    fn default() -> Self {
        Self(IndexSet::default())
    }
}

impl<K: Copy + Eq + Hash> Members for Set<K> {
    type Member = K;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn contains(&self, member: K) -> bool {
        self.0.contains(&member)
    }

    fn members(&self) -> impl Iterator<Item = K> {
        self.0.iter().copied()
    }
}

/// How many are in at least one of these sets. One set is not gone through, nor is the largest of several.
pub(super) fn count_distinct<'a, S: Members + 'a>(mut sets: impl Iterator<Item = &'a S>) -> usize {
    let Some(first) = sets.next() else { return 0 };
    let Some(second) = sets.next() else { return first.len() };
    let mut sets: Vec<&S> = [first, second].into_iter().chain(sets).collect();
    sets.sort_unstable_by_key(|set| Reverse(set.len()));
    let new = |(index, set): (usize, &&S)| {
        let before = sets.get(..index).unwrap_or_default();
        match before {
            [] => set.len(),
            _ => set.members().filter(|member| !before.iter().any(|other| other.contains(*member))).count(),
        }
    };
    sets.iter().enumerate().map(new).sum()
}
