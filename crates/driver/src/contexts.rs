//! How much memory the compressors and decompressors of all connections may hold between messages.
//!
//! A compressor takes 160 KiB and more (zlib-rs has a hash table of one size), a decompressor 48 KiB. A
//! sender may forget its window at any time (RFC 7692 7.1.1), and of a decompressor nothing is needed but the
//! window, so beyond a budget connections hand both on after each message: what they send is compressed by
//! itself, and for what they receive a decompressor is given its window again.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use wirespeed_protocol::deflate::Contexts;

/// Bytes, for the whole process: some 300 connections that talk compressed at the same time.
pub const BUDGET: usize = 64 << 20;

static USED: AtomicUsize = AtomicUsize::new(0);

/// Leave to keep them; given back when it is dropped.
#[derive(Debug)]
pub struct Context {
    size: usize,
}

impl Context {
    /// For how many bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Leave for `size` bytes, if the budget has room for them.
    #[must_use]
    pub fn take(size: usize) -> Option<Self> {
        let used = USED.fetch_add(size, Ordering::Relaxed);
        let context = Self { size };
        // Dropped, it gives back what there was no room for.
        (size > 0 && used + size <= BUDGET).then_some(context)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        USED.fetch_sub(self.size, Ordering::Relaxed);
    }
}

thread_local! {
    /// What was released last. Without it each message beyond the budget would allocate and free all of it,
    /// in a heap that small pieces which live on then tear to holes.
    static SPARE: Cell<Option<Contexts>> = const { Cell::new(None) };
}

/// Keeps what a connection has released for the next one of this thread.
pub(crate) fn give(contexts: Contexts) {
    let _ = SPARE.try_with(|spare| spare.set(Some(contexts))); // while the thread ends it is dropped
}

/// What was kept.
pub(crate) fn take() -> Option<Contexts> {
    SPARE.try_with(Cell::take).ok().flatten()
}
