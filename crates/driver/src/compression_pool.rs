//! How much memory the compressors and decompressors of all connections may hold between messages.
//!
//! A compressor takes 160 KiB and more (zlib-rs has a hash table of one size), a decompressor 48 KiB. A
//! sender may forget its window at any time (RFC 7692 7.1.1), and of a decompressor nothing is needed but the
//! window, so beyond a budget connections hand both on after each message: what they send is compressed by
//! itself, and for what they receive a decompressor is given its window again.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use wirespeed_protocol::deflate::Contexts;

use crate::fork;

/// Bytes for the whole process, unless [`set_budget`] says otherwise: some 300 connections that talk
/// compressed at the same time.
pub const BUDGET: usize = 64 << 20;

static LIMIT: AtomicUsize = AtomicUsize::new(BUDGET);

/// What connections have, and threads have taken for theirs.
static USED: AtomicUsize = AtomicUsize::new(0);

/// What a thread takes at once, so that threads do not contend for [`USED`] with each message: at most a 64th
/// of the budget.
const PORTION: usize = 1 << 20;

/// How many bytes all connections of the process may keep together.
#[must_use]
pub fn budget() -> usize {
    LIMIT.load(Ordering::Relaxed)
}

/// Changes that. Who has more than there may be gives it up after its next message.
pub fn set_budget(bytes: usize) {
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// Whether they keep more than they may, since that was changed.
#[must_use]
pub fn is_exceeded() -> bool {
    USED.load(Ordering::Relaxed) > budget()
}

/// Bytes that a thread has taken for connections to come.
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

/// In the child after a fork: of what the parent's connections keep, and its other threads have taken, nothing would come
/// back here.
pub(crate) fn after_fork() {
    USED.store(0, Ordering::Relaxed);
    let _ = RESERVE.try_with(|thread| thread.0.set(0));
}

/// Leave to keep them; given back when it is dropped.
#[derive(Debug)]
pub struct Context {
    size: u32,
    /// The process that counts it, as [`entropy::forks`] does; of that, what is told apart in a word.
    generation: u32,
}

impl Context {
    /// For how many bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size as usize
    }

    /// Leave for `size` bytes, 4 GiB at most, if the budget has room for them.
    #[must_use]
    pub fn take(size: usize) -> Option<Self> {
        u32::try_from(size).ok()?;
        // While the thread ends there is no reserve.
        let taken = size > 0 && RESERVE.try_with(|thread| thread.take(size)).unwrap_or_else(|_| reserve(size));
        taken.then(|| Self { size: size as u32, generation: fork::generation() as u32 }) // not `then_some`: dropped, it would give back what was not taken
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let size = self.size();
        if self.generation == fork::generation() as u32 && RESERVE.try_with(|thread| thread.give(size)).is_err() {
            USED.fetch_sub(size, Ordering::Relaxed);
        }
    }
}

thread_local! {
    /// What was released last. Without it each message beyond the budget would allocate and free all of it,
    /// in a heap that small pieces which live on then tear to holes.
    static SPARE: Cell<Contexts> = const { Cell::new(Contexts::NONE) };
}

/// Keeps what a connection has released for the next one of this thread.
pub(crate) fn give(contexts: Contexts) {
    if contexts.is_empty() {
        return;
    }
    // While the thread ends it is dropped.
    let _ = SPARE.try_with(|spare| {
        let before = spare.take();
        spare.set(contexts.or(before));
    });
}

/// The compressor that was kept, if there is one.
pub(crate) fn take_compressor() -> Contexts {
    take(Contexts::split)
}

/// The decompressor.
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
