//! Which thread this is.

#![allow(unsafe_code)] // the register that points to the thread

/// A number that tells this thread from every other that lives; not 0.
#[must_use]
#[inline]
pub fn this_thread() -> usize {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        let thread: usize;
        // SAFETY: on this platform the segment register FS points to the control block of the thread, whose first word is its own address (the
        // ABI's "thread pointer"). It is read, and nothing else. Thread-local storage of a shared library costs a call.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Barrier;

    #[test]
    fn threads_differ_and_keep_their_number() {
        let barrier = Barrier::new(16);
        let numbers: HashSet<usize> = std::thread::scope(|scope| {
            let look = || {
                let number = this_thread();
                barrier.wait(); // all live at the same time
                assert_eq!(number, this_thread());
                number
            };
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(look)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(numbers.len(), 16);
        assert!(!numbers.contains(&0));
    }
}
