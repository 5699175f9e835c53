//! Handing the interpreter's lock over to other threads.
//!
//! A thread that wants the lock sleeps until it is given up, and asks for it only if that takes longer than the switch interval. A busy connection gives it
//! up all the time, around system calls that return at once: the other thread is woken, finds the lock taken again, and its patience begins anew.
//! So it would never ask, and starve. Therefore once per [`INTERVAL`] the lock is given up for as long as another thread takes to wake, if there are other threads.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use pyo3::ffi;
use pyo3::prelude::*;

/// How long a thread keeps the lock, or gives it up for moments only, before it hands it over: less than the interpreter's own switch interval of 5 ms, so
/// that a thread that waits is served before it has to ask.
const INTERVAL: Duration = Duration::from_millis(3);

/// How long the lock is left alone: a sleeping thread on another core takes 10 to 50 us to wake.
const PAUSE: Duration = Duration::from_micros(50);

/// Turns between two looks at the clock, which would be a hundredth of a small round trip.
const LOOK_EVERY: u8 = 8;

/// A system call that moves this much takes so long, some tens of microseconds, that it is made without the lock.
pub(crate) const MUCH: usize = 64 * 1024;

/// When a thread, or a loop, last handed the lock over.
pub(crate) struct Handover {
    last: Option<Instant>,
    turns: u8,
}

impl Handover {
    pub(crate) const fn new() -> Self {
        Self { last: None, turns: 0 }
    }

    /// A turn begins; whether to hand over first.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        self.turns += 1;
        if self.turns < LOOK_EVERY {
            return false;
        }
        self.turns = 0;
        self.last.is_none_or(|last| last.elapsed() >= INTERVAL)
    }

    /// It was handed over.
    pub(crate) fn note(&mut self) {
        self.last = Some(Instant::now());
    }
}

/// Hands the lock over, if there is another thread. To be called with no lock of ours held.
#[cold]
pub(crate) fn hand_over(py: Python<'_>) {
    if has_others() {
        py.detach(pause);
    }
}

/// Runs `f`, which may sleep, without the lock; if this thread is due to hand it over, for long enough.
#[inline]
pub(crate) fn detached<R: Send>(py: Python<'_>, f: impl FnOnce() -> R + Send) -> R {
    thread_local! {
        static HANDOVER: RefCell<Handover> = const { RefCell::new(Handover::new()) };
    }
    let due = HANDOVER.with_borrow_mut(Handover::is_due);
    if !due {
        return py.detach(f);
    }
    let others = has_others();
    let begun = Instant::now();
    let result = py.detach(|| {
        let result = f();
        if others && begun.elapsed() < PAUSE {
            pause();
        }
        result
    });
    HANDOVER.with_borrow_mut(Handover::note);
    result
}

fn pause() {
    let until = Instant::now() + PAUSE;
    loop {
        // Also for a thread that waits for this core.
        std::thread::yield_now();
        if Instant::now() >= until {
            return;
        }
    }
}

/// Whether the interpreter knows other threads than this one.
#[allow(unsafe_code)] // the list of threads
fn has_others() -> bool {
    // SAFETY: attached. The list of the interpreter's threads is looked at, not followed: whether this thread is its only member.
    unsafe {
        let this = ffi::PyThreadState_Get();
        let first = ffi::PyInterpreterState_ThreadHead(ffi::PyInterpreterState_Get());
        first != this || !ffi::PyThreadState_Next(this).is_null()
    }
}
