//! Limits the memory that the compressors and decompressors of all connections hold between messages.
//!
//! A compressor takes 160 KiB and more (zlib-rs has a hash table of one size), a decompressor 48 KiB. A sender may
//! drop its window at any time (RFC 7692 7.1.1), and a decompressor needs only its window. So connections above the
//! budget release both after each message: sent messages are compressed without context, and a pooled decompressor
//! gets its window again for received ones.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use wirespeed_protocol::deflate::Contexts;

use crate::fork;

/// The default for [`set_budget`], in bytes for the whole process: enough for about 300 connections that use
/// compression at the same time.
pub const BUDGET: usize = 64 << 20;

static LIMIT: AtomicUsize = AtomicUsize::new(BUDGET);

/// Number of bytes reserved by connections and, for future connections, by threads.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Number of bytes that a thread reserves at once, so that threads do not contend for [`USED`] with each message:
/// at most a 64th of the budget.
const PORTION: usize = 1 << 20;

/// Returns the budget of all connections of the process, in bytes.
#[must_use]
pub fn budget() -> usize {
    LIMIT.load(Ordering::Relaxed)
}

/// Sets the budget. A connection above it releases its contexts after its next message.
pub fn set_budget(bytes: usize) {
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// Returns whether connections hold more than the budget, after it was reduced.
#[must_use]
pub fn is_exceeded() -> bool {
    USED.load(Ordering::Relaxed) > budget()
}

/// Number of bytes that a thread has reserved for future connections.
struct Reserve(Cell<usize>);

thread_local! {
    static RESERVE: Reserve = const { Reserve(Cell::new(0)) };
}

impl Drop for Reserve {
    fn drop(&mut self) {
        USED.fetch_sub(self.0.get(), Ordering::Relaxed);
    }
}

impl Reserve {
    fn portion() -> usize {
        PORTION.min(budget() / 64)
    }

    fn take(&self, size: usize) -> bool {
        let there = self.0.get();
        if there >= size {
            self.0.set(there - size);
            return true;
        }
        let lacking = size - there;
        let much = lacking.max(Self::portion());
        if reserve(much) {
            self.0.set(there + much - size);
            return true;
        }
        let little = reserve(lacking);
        if little {
            self.0.set(0);
        }
        little
    }

    fn give(&self, size: usize) {
        let (there, portion) = (self.0.get() + size, Self::portion());
        let kept = if there > 2 * portion { portion } else { there };
        USED.fetch_sub(there - kept, Ordering::Relaxed);
        self.0.set(kept);
    }
}

fn reserve(size: usize) -> bool {
    let used = USED.fetch_add(size, Ordering::Relaxed);
    let fits = used.saturating_add(size) <= budget();
    if !fits {
        USED.fetch_sub(size, Ordering::Relaxed);
    }
    fits
}

/// Resets the count in the child after a fork: reservations of the parent's other threads are never released here.
pub(crate) fn after_fork() {
    USED.store(0, Ordering::Relaxed);
    let _ = RESERVE.try_with(|thread| thread.0.set(0));
}

/// A reservation of budget for the contexts of one connection, released when it is dropped.
#[derive(Debug)]
pub struct Reservation {
    size: u32,
    /// The low 32 bits of the [`fork::generation`] of the process that counts it.
    generation: u32,
}

impl Reservation {
    /// Returns the number of reserved bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size as usize
    }

    /// Reserves `size` bytes, at most 4 GiB, if the budget has room.
    #[must_use]
    pub fn take(size: usize) -> Option<Self> {
        u32::try_from(size).ok()?;
        // While the thread ends, its reserve may be gone.
        let taken = size > 0 && RESERVE.try_with(|thread| thread.take(size)).unwrap_or_else(|_| reserve(size));
        // Not `then_some`: an unused value would release bytes that were not reserved when it is dropped.
        taken.then(|| Self { size: size as u32, generation: fork::generation() as u32 })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let size = self.size();
        if self.generation == fork::generation() as u32 && RESERVE.try_with(|thread| thread.give(size)).is_err() {
            USED.fetch_sub(size, Ordering::Relaxed);
        }
    }
}

thread_local! {
    /// The contexts that were released last. Without it, each message above the budget would allocate and free
    /// them, and fragment the heap.
    static SPARE: Cell<Contexts> = const { Cell::new(Contexts::NONE) };
}

/// Keeps contexts that a connection has released for the next connection of this thread.
pub(crate) fn give(contexts: Contexts) {
    if contexts.is_empty() {
        return;
    }
    // While the thread ends, they are dropped.
    let _ = SPARE.try_with(|spare| {
        let before = spare.take();
        spare.set(contexts.or(before));
    });
}

/// Takes the kept compressor, if there is one.
pub(crate) fn take_compressor() -> Contexts {
    take(Contexts::split)
}

/// Takes the kept decompressor, if there is one.
pub(crate) fn take_decompressor() -> Contexts {
    take(|spare| {
        let (compressor, decompressor) = spare.split();
        (decompressor, compressor)
    })
}

fn take(choose: impl FnOnce(Contexts) -> (Contexts, Contexts)) -> Contexts {
    let taken = SPARE.try_with(|spare| {
        let (taken, left) = choose(spare.take());
        spare.set(left);
        taken
    });
    taken.unwrap_or_default()
}
