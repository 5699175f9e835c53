//! Numbers of workers, and sets of them.
//!
//! Owns the maximum number of workers. Called by the registry and by publishers.

use std::fmt;

/// The maximum number of workers of an engine: more than the cores that one process can use, and so few that a set of
/// them fits on the stack.
pub const MAX_WORKERS: usize = 256;

/// The number of a worker, below [`MAX_WORKERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(u8);

impl WorkerId {
    /// Returns the worker with this number; `None` if it is too large.
    #[must_use]
    pub fn new(index: usize) -> Option<Self> {
        u8::try_from(index).ok().map(Self)
    }

    /// Returns its number.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A set of workers.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Workers([u64; MAX_WORKERS / 64]);

impl Workers {
    /// Returns whether the set contains this worker.
    #[must_use]
    #[allow(clippy::indexing_slicing, reason = "a number below 256 has its word")]
    pub fn contains(&self, worker: WorkerId) -> bool {
        self.0[worker.index() / 64] >> (worker.index() % 64) & 1 == 1
    }

    /// Returns the number of workers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Iterates over the workers by their numbers.
    pub fn iter(&self) -> impl Iterator<Item = WorkerId> + use<> {
        let firsts = (0..=u8::MAX).step_by(64);
        self.0.into_iter().zip(firsts).flat_map(|(word, first)| {
            let words = std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
            words.take_while(|word| *word != 0).map(move |word| WorkerId(first + word.trailing_zeros() as u8))
        })
    }

    #[allow(clippy::indexing_slicing, reason = "a number below 256 has its word")]
    pub(super) fn insert(&mut self, worker: WorkerId) {
        self.0[worker.index() / 64] |= 1 << (worker.index() % 64);
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(WorkerId::index)).finish()
    }
}
