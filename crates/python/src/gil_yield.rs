//! Handing the interpreter's lock over to other threads.
//!
//! A thread that wants the lock sleeps until it is given up, and asks for it only if that takes longer than
//! the switch interval. A busy connection gives it up all the time, around system calls that return at once:
//! the other thread is woken, finds the lock taken again, and its patience begins anew. So it would never
//! ask, and starve. Therefore once per [`INTERVAL`] the lock is given up for as long as another thread takes
//! to wake, if there are other threads; or around each call that moves
//! [`BULK_IO_BYTES`](wirespeed_driver::thread::BULK_IO_BYTES), until they have had [`SHARE`].

use std::cell::RefCell;
use std::ffi::c_int;
use std::time::{Duration, Instant};

use pyo3::ffi;
use pyo3::prelude::*;
use wirespeed_driver::thread::processor_time;

/// How long a thread works, giving the lock up for moments only, before it hands it over: half of the
/// interpreter's own switch interval, so that a thread that waits is served before it has to ask. Time of the
/// processor: while this thread sleeps, or waits for the lock, others have it.
const INTERVAL: Duration = Duration::from_micros(2500);

/// How long the lock is left alone: a sleeping thread on another core takes 10 to 50 us to wake.
const PAUSE: Duration = Duration::from_micros(50);

/// Turns between two looks at the clock, which would be a hundredth of a small round trip.
const LOOK_EVERY: u8 = 8;

/// What is others' share, once per [`INTERVAL`], of calls that move much: such a call takes as long as a
/// thread takes to wake, so the lock is best handed over around it, and around each until others have had this.
/// A thread that sleeps and works for moments takes nothing to speak of, and is late if it is not let in as soon
/// as it wakes; one that computes keeps what it gets for a switch interval, and a message takes several calls.
/// Where nobody waits, or whoever does was not awake before the call was over, nothing of it was had.
const SHARE: Duration = Duration::from_millis(1);

thread_local! {
    /// Whatever this thread does: run loops, wait by itself, or both.
    static HANDOFF: RefCell<GilYield> = const { RefCell::new(GilYield::new()) };
}

/// When a thread last handed the lock over.
struct GilYield {
    /// The thread's time of the processor then.
    worked: Duration,
    /// When to look next: it cannot be due before.
    look: Option<Instant>,
    /// How long others have had the lock since then.
    had: Duration,
    turns: u8,
}

impl GilYield {
    const fn new() -> Self {
        Self { worked: Duration::ZERO, look: None, had: Duration::ZERO, turns: 0 }
    }

    /// A turn begins; whether to hand over first.
    #[inline]
    fn is_due(&mut self) -> bool {
        self.turns += 1;
        if self.turns < LOOK_EVERY {
            return false;
        }
        self.turns = 0;
        self.is_due_now()
    }

    /// The same, whatever turn it is: for whoever is about to be busy without the interpreter.
    #[inline]
    fn is_due_now(&mut self) -> bool {
        let now = Instant::now();
        self.look.is_none_or(|look| look <= now) && self.has_worked(now)
    }

    #[cold]
    fn has_worked(&mut self, now: Instant) -> bool {
        let worked = processor_time();
        // In a forked child this time begins anew.
        let since = worked.checked_sub(self.worked).unwrap_or(INTERVAL);
        self.look = Some(now + INTERVAL.saturating_sub(since));
        since >= INTERVAL
    }

    /// It was handed over.
    fn note(&mut self) {
        self.worked = processor_time();
        self.look = Some(Instant::now() + INTERVAL);
        self.had = Duration::ZERO;
    }

    /// Others had it for so long, beyond a call that moved much: handed over it is once that is their share.
    fn note_had(&mut self, had: Duration) {
        self.had = self.had.saturating_add(had);
        if self.had >= SHARE {
            self.note();
        }
    }
}

/// A turn begins in which much may be done: another thread has its chance first, if it is due one. To be called
/// with no lock of ours held.
#[inline]
pub(crate) fn begin_turn(py: Python<'_>) {
    if HANDOFF.with_borrow_mut(GilYield::is_due) {
        hand_over(py);
    }
}

/// The same, whatever turn it is, before something that moves much and needs the interpreter. The lock of a blocking
/// connection may be held: whoever waits for that has let the interpreter go (`Blocking::lock`), so it takes nothing that
/// the others need.
pub(crate) fn before_bulk_io(py: Python<'_>) {
    if HANDOFF.with_borrow_mut(GilYield::is_due_now) {
        hand_over(py);
    }
}

#[cold]
fn hand_over(py: Python<'_>) {
    if has_others() {
        py.detach(pause);
    }
    HANDOFF.with_borrow_mut(GilYield::note);
}

/// Runs `f`, which does not sleep. If it moves `much` and another thread is due its chance, this is it.
#[inline]
pub(crate) fn moving<R: Send>(py: Python<'_>, much: bool, f: impl FnOnce() -> R + Send) -> R {
    if !much || !HANDOFF.with_borrow_mut(GilYield::is_due_now) || !has_others() {
        return f();
    }
    let (result, over) = py.detach(|| (f(), Instant::now()));
    // At most: the system may have kept this thread waiting as well.
    HANDOFF.with_borrow_mut(|handoff| handoff.note_had(over.elapsed()));
    result
}

/// Runs `f`, which may sleep, without the lock; if this thread is due to hand it over, for long enough.
#[inline]
pub(crate) fn detached<R: Send>(py: Python<'_>, f: impl FnOnce() -> R + Send) -> R {
    let due = HANDOFF.with_borrow_mut(GilYield::is_due);
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
    HANDOFF.with_borrow_mut(GilYield::note);
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
    // SAFETY: attached. The list of the interpreter's threads is looked at, not followed: whether this thread
    // is its only member.
    unsafe {
        let this = ffi::PyThreadState_Get();
        let first = ffi::PyInterpreterState_ThreadHead(ffi::PyInterpreterState_Get());
        first != this || !ffi::PyThreadState_Next(this).is_null()
    }
}

/// Whether the interpreter finalizes: of its threads there is this one only, whatever others have left behind.
#[allow(unsafe_code)] // the interpreter's flag
pub(crate) fn is_shutting_down() -> bool {
    unsafe extern "C" {
        #[cfg_attr(Py_3_13, link_name = "Py_IsFinalizing")]
        fn _Py_IsFinalizing() -> c_int;
    }
    // SAFETY: it reads a flag, for whoever asks.
    unsafe { _Py_IsFinalizing() != 0 }
}
