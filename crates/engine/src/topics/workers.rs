//! Numbers of workers, and sets of them.
//!
//! Owns how many there can be. Knows nothing of what a worker is. Called by the registry, and by whoever
//! routes what is published.

use std::fmt;

/// Workers that an engine can have: more than cores that one process has a use for, and few enough that a set
/// of them lies on the stack.
pub const MAX_WORKERS: usize = 256;

/// The number of a worker, below [`MAX_WORKERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(u8);

impl WorkerId {
    /// The worker of this number; none, if there cannot be so many.
    #[must_use]
    pub fn new(index: usize) -> Option<Self> {
        u8::try_from(index).ok().map(Self)
    }

    /// Its number.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A set of workers.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Workers([u64; MAX_WORKERS / 64]);

impl Workers {
    /// Whether this one is among them.
    #[must_use]
    #[allow(clippy::indexing_slicing, reason = "a number below 256 has its word")]
    pub fn contains(&self, worker: WorkerId) -> bool {
        self.0[worker.index() / 64] >> (worker.index() % 64) & 1 == 1
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// All of them, by their numbers.
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
