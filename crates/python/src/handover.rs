//! Handing the interpreter's lock over to other threads.
//!
//! A thread that wants the lock sleeps until it is given up, and asks for it only if that takes longer than the switch interval. A busy connection gives it
//! up all the time, around system calls that return at once: the other thread is woken, finds the lock taken again, and its patience begins anew.
//! So it would never ask, and starve. Therefore once per [`INTERVAL`] the lock is given up for as long as another thread takes to wake, if there are other threads.

use std::cell::Cell;
use std::time::{Duration, Instant};

use pyo3::ffi;
use pyo3::prelude::*;

/// How long a thread keeps the lock, or has it only for moments, before it hands it over: less than the interpreter's own switch interval of 5 ms, so
/// that a thread that waits is served before it has to ask.
const INTERVAL: Duration = Duration::from_millis(4);

/// How long the lock is left alone: a sleeping thread on another core takes 10 to 50 us to wake.
const PAUSE: Duration = Duration::from_micros(50);

/// A system call that moves this much takes so long, some tens of microseconds, that it is made without the lock.
pub(crate) const MUCH: usize = 64 * 1024;

thread_local! {
    /// When this thread last handed the lock over.
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Hands the lock over if that is due. To be called where a turn of work begins, with no lock held.
#[inline]
pub(crate) fn offer(py: Python<'_>) {
    let now = Instant::now();
    if LAST.get().is_none_or(|last| now.duration_since(last) >= INTERVAL) {
        offer_now(py, now);
    }
}

#[cold]
fn offer_now(py: Python<'_>, now: Instant) {
    LAST.set(Some(now));
    if has_others() {
        py.detach(pause);
        LAST.set(Some(Instant::now()));
    }
}

/// The same without the lock, before it is taken again.
#[inline]
pub(crate) fn linger() {
    let now = Instant::now();
    if LAST.get().is_none_or(|last| now.duration_since(last) >= INTERVAL) {
        pause();
        LAST.set(Some(Instant::now()));
    }
}

fn pause() {
    let until = Instant::now() + PAUSE;
    loop {
        std::thread::yield_now();
        if Instant::now() >= until {
            return;
        }
        std::hint::spin_loop();
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
