//! Layers that are not ours may run anything while they work, with the connection locked: handlers of signals, for one.
//! What they run must not wait for that connection.

use std::cell::Cell;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Runs a piece of such a layer.
pub fn enter<R>(f: impl FnOnce() -> R) -> R {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    let _leave = Leave;
    f()
}

/// Whether this thread is inside such a layer.
#[must_use]
#[inline]
pub fn is_inside() -> bool {
    DEPTH.get() > 0
}
