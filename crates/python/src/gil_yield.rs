//! Yields the interpreter's lock (GIL) to other threads.
//!
//! A thread that wants the GIL sleeps until it is released, and requests it only after the switch interval. A
//! busy connection releases the GIL all the time, around system calls that return at once. The other thread
//! then wakes, finds the GIL taken again, and starts a new interval: it would never request the GIL, and
//! starve. Therefore, if there are other threads, the GIL is released once per [`INTERVAL`] for long enough
//! that another thread can wake. Calls that move [`BULK_IO_BYTES`](wirespeed_driver::thread::BULK_IO_BYTES) bytes release it
//! while they run, until other threads have had it for [`SHARE`].

use std::cell::RefCell;
use std::ffi::c_int;
use std::time::{Duration, Instant};

use pyo3::ffi;
use pyo3::prelude::*;
use wirespeed_driver::thread::processor_time;

/// The processor time that a thread works before it yields the GIL. It is half of the interpreter's switch
/// interval, so that a waiting thread gets the GIL before it has to request it. Processor time is counted
/// because other threads have the GIL while this thread sleeps or waits for it.
const INTERVAL: Duration = Duration::from_micros(2500);

/// How long the GIL stays released: a sleeping thread on another core takes 10 to 50 us to wake.
const PAUSE: Duration = Duration::from_micros(50);

/// Turns between two readings of the clock. A reading takes about 1 % of a small round trip.
const TURNS_PER_CHECK: u8 = 8;

/// The time that other threads get, once per [`INTERVAL`], during calls that move many bytes. Such a call takes
/// as long as a thread takes to wake, so the GIL is released around each such call until this time is used up.
/// A thread that works only briefly uses little of it, but is late unless it gets the GIL as soon as it wakes.
/// A thread that computes keeps the GIL for a switch interval. If no thread took the GIL before the call
/// returned, no time is counted.
const SHARE: Duration = Duration::from_millis(1);

thread_local! {
    /// One state for each thread, whether it runs event loops, blocks in calls, or both.
    static YIELD_STATE: RefCell<GilYield> = const { RefCell::new(GilYield::new()) };
}

/// When the current thread last yielded the GIL.
struct GilYield {
    /// The processor time of the thread at that moment.
    worked: Duration,
    /// The earliest time at which the thread can be due again.
    next_check: Option<Instant>,
    /// How long other threads have had the GIL since then.
    used_by_others: Duration,
    turns: u8,
}

impl GilYield {
    const fn new() -> Self {
        Self { worked: Duration::ZERO, next_check: None, used_by_others: Duration::ZERO, turns: 0 }
    }

    /// Counts a turn. Returns whether the thread should yield first.
    #[inline]
    fn is_due(&mut self) -> bool {
        self.turns += 1;
        if self.turns < TURNS_PER_CHECK {
            return false;
        }
        self.turns = 0;
        self.is_due_now()
    }

    /// Returns whether the thread should yield now, without counting a turn. For calls that are about to be
    /// busy without the GIL.
    #[inline]
    fn is_due_now(&mut self) -> bool {
        let now = Instant::now();
        self.next_check.is_none_or(|next_check| next_check <= now) && self.has_worked(now)
    }

    #[cold]
    fn has_worked(&mut self, now: Instant) -> bool {
        let worked = processor_time();
        // Processor time restarts at zero in a forked child.
        let since = worked.checked_sub(self.worked).unwrap_or(INTERVAL);
        self.next_check = Some(now + INTERVAL.saturating_sub(since));
        since >= INTERVAL
    }

    /// Records that the thread has yielded.
    fn record_yield(&mut self) {
        self.worked = processor_time();
        self.next_check = Some(Instant::now() + INTERVAL);
        self.used_by_others = Duration::ZERO;
    }

    /// Records that other threads had the GIL for `time` beyond a long call. Counts as a yield once the sum
    /// reaches [`SHARE`].
    fn record_used(&mut self, time: Duration) {
        self.used_by_others = self.used_by_others.saturating_add(time);
        if self.used_by_others >= SHARE {
            self.record_yield();
        }
    }
}

/// Begins a turn, which may do a lot of work: yields to another thread first if that is due. No lock of this
/// library may be held.
#[inline]
pub(crate) fn begin_turn(py: Python<'_>) {
    if YIELD_STATE.with_borrow_mut(GilYield::is_due) {
        yield_gil(py);
    }
}

/// Yields if that is due, without counting a turn, before an operation that moves many bytes and needs the GIL.
/// The lock of a blocking connection may be held: threads that wait for that lock have released the GIL
/// (`Blocking::lock`), so other threads can still run.
pub(crate) fn before_transfer(py: Python<'_>) {
    if YIELD_STATE.with_borrow_mut(GilYield::is_due_now) {
        yield_gil(py);
    }
}

#[cold]
fn yield_gil(py: Python<'_>) {
    if has_others() {
        py.detach(pause);
    }
    YIELD_STATE.with_borrow_mut(GilYield::record_yield);
}

/// Runs `f`, which does not sleep. Releases the GIL meanwhile if `large` is set and a yield is due.
#[inline]
pub(crate) fn run_transfer<R: Send>(py: Python<'_>, large: bool, f: impl FnOnce() -> R + Send) -> R {
    if !large || !YIELD_STATE.with_borrow_mut(GilYield::is_due_now) || !has_others() {
        return f();
    }
    let (result, over) = py.detach(|| (f(), Instant::now()));
    // An upper bound: the system may have delayed this thread as well.
    YIELD_STATE.with_borrow_mut(|state| state.record_used(over.elapsed()));
    result
}

/// Runs `f`, which may sleep, without the GIL. If a yield is due, the GIL stays released for at least
/// [`PAUSE`].
#[inline]
pub(crate) fn detached<R: Send>(py: Python<'_>, f: impl FnOnce() -> R + Send) -> R {
    let due = YIELD_STATE.with_borrow_mut(GilYield::is_due);
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
    YIELD_STATE.with_borrow_mut(GilYield::record_yield);
    result
}

fn pause() {
    let until = Instant::now() + PAUSE;
    loop {
        // Yields the core too, to a thread that waits for it.
        std::thread::yield_now();
        if Instant::now() >= until {
            return;
        }
    }
}

/// Returns whether the interpreter has threads other than this one.
#[allow(unsafe_code)] // the list of threads
fn has_others() -> bool {
    // SAFETY: the thread is attached. The list of the interpreter's threads is compared, not followed: the code
    // checks whether this thread is its only member.
    unsafe {
        let this = ffi::PyThreadState_Get();
        let first = ffi::PyInterpreterState_ThreadHead(ffi::PyInterpreterState_Get());
        first != this || !ffi::PyThreadState_Next(this).is_null()
    }
}

/// Returns whether the interpreter is finalizing. Then only this thread still runs Python code.
#[allow(unsafe_code)] // the interpreter's flag
pub(crate) fn is_shutting_down() -> bool {
    unsafe extern "C" {
        #[cfg_attr(Py_3_13, link_name = "Py_IsFinalizing")]
        fn _Py_IsFinalizing() -> c_int;
    }
    // SAFETY: it only reads a flag, from any thread.
    unsafe { _Py_IsFinalizing() != 0 }
}
