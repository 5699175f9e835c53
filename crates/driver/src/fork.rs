//! Tells a child process from its parent.
//!
//! After `fork`, the child has a copy of everything that its parent had: locks that threads held, descriptors, random
//! numbers drawn in advance. An object that must not be used on both sides keeps the [`generation`] of its process and
//! compares it. [`crate::after_fork`] advances the generation in the child.

use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Returns the number of forks between this process and the first one.
#[must_use]
#[inline]
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Begins the next generation: called once in each child.
pub(crate) fn advance() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
