//! Identifies the current thread and measures its processor time.

#![allow(unsafe_code)] // the register that points to the thread, and its clock

use std::time::Duration;

/// How long a thread waits for another one while the interpreter shuts down. The other may no longer run, or may be
/// about to release its lock.
pub const SHUTDOWN_WAIT: Duration = Duration::from_millis(50);

/// A system call that moves this many bytes takes tens of microseconds, as long as waking a thread. So it is worth
/// releasing an interpreter's lock for it, though not a connection's.
pub const BULK_IO_BYTES: usize = 64 * 1024;

/// Returns a number that differs from those of all other running threads; never 0.
#[must_use]
#[inline]
pub fn this_thread() -> usize {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        let thread: usize;
        // SAFETY: on this platform the segment register FS points to the control block of the thread, whose first
        // word is its own address (the ABI's "thread pointer"). It is only read. Thread-local storage of a shared
        // library would cost a call.
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, pure, readonly, preserves_flags));
        }
        thread
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    {
        thread_local! {
            static PLACE: u8 = const { 0 };
        }
        PLACE.with(|place| std::ptr::from_ref(place) as usize)
    }
}

/// Returns the processor time of this thread; zero if the system does not report it.
#[must_use]
pub fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result. The call goes to libc and not to the vDSO, which valgrind
    // hides.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    if result != 0 {
        return Duration::ZERO;
    }
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::time::Instant;

    #[test]
    fn threads_have_distinct_and_stable_numbers() {
        let barrier = Barrier::new(16);
        let numbers: HashSet<usize> = std::thread::scope(|scope| {
            let look = || {
                let number = this_thread();
                barrier.wait(); // all run at the same time
                assert_eq!(number, this_thread());
                number
            };
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(look)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(numbers.len(), 16);
        assert!(!numbers.contains(&0));
    }

    #[test]
    fn sleeping_takes_no_processor_time() {
        let (begin, work) = (Instant::now(), processor_time());
        while processor_time() < work + Duration::from_millis(2) {
            assert!(begin.elapsed() < Duration::from_secs(60), "the clock does not advance");
        }
        std::thread::sleep(Duration::from_millis(5));
        assert!(processor_time() - work < begin.elapsed());
    }
}
