//! The subscribers of one pattern, and counting of the distinct members of several sets.
//!
//! Knows no pattern. Called by the index, the registry and the tree of wildcards, and by workers for each matching
//! set.

use std::cmp::Reverse;
use std::hash::Hash;

use foldhash::fast::RandomState;
use indexmap::IndexSet;

/// What [`super::tree::Tree`] and [`count_distinct`] need of a set.
pub(super) trait Members: Default {
    /// The type of its members.
    type Member: Copy;

    /// Returns the number of members.
    fn len(&self) -> usize;

    /// Returns whether it contains a member.
    fn contains(&self, member: Self::Member) -> bool;

    /// Iterates over the members.
    fn members(&self) -> impl Iterator<Item = Self::Member>;
}

/// The subscribers of one pattern, contiguous in memory. Any removal may change their order.
#[derive(Clone, Debug)]
pub struct Set<K>(IndexSet<K, RandomState>);

impl<K: Copy + Eq + Hash> Set<K> {
    /// Returns the number of subscribers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether it is empty: sets returned by an index never are.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether it contains a subscriber.
    #[must_use]
    pub fn contains(&self, key: K) -> bool {
        self.0.contains(&key)
    }

    /// Iterates over the subscribers.
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

/// Returns the number of members that are in at least one set. A single set, and the largest of several, are not
/// iterated.
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
