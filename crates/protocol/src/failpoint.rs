//! Failpoints: named places in the code where a test can inject a panic.
//!
//! Each layer marks its failpoints by [`hit`]. Without the feature `fault-injection` it compiles to nothing; no
//! released package has the feature. tests/campaigns/panics checks that a panic of ours costs one connection only.

/// Marks a failpoint. Its name begins with the layer: `protocol.send`.
#[cfg(not(feature = "fault-injection"))]
#[inline(always)]
pub const fn hit(_: &'static str) {}

#[cfg(feature = "fault-injection")]
pub use injected::{arm, hit, hits};

#[cfg(feature = "fault-injection")]
mod injected {
    use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    /// Hash of the name of the armed failpoint; 0: none is armed.
    static ARMED: AtomicU64 = AtomicU64::new(0);
    /// Number of passes through the armed failpoint before it panics.
    static PASSES: AtomicUsize = AtomicUsize::new(0);
    /// Number of panics so far.
    static HITS: AtomicUsize = AtomicUsize::new(0);

    /// FNV-1a. There are few names, and a collision would make a test fail.
    fn hash(name: &str) -> u64 {
        name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// Arms one failpoint and disarms all others. It panics once, in any thread, after `passes` passes without a
    /// panic. An empty name arms none.
    pub fn arm(name: &str, passes: usize) {
        ARMED.store(0, Ordering::SeqCst);
        PASSES.store(passes, Ordering::SeqCst);
        ARMED.store(if name.is_empty() { 0 } else { hash(name) }, Ordering::SeqCst);
    }

    /// Returns the number of failpoints that have panicked since the process started.
    pub fn hits() -> usize {
        HITS.load(Ordering::SeqCst)
    }

    /// Marks a failpoint. Its name begins with the layer: `protocol.send`.
    ///
    /// # Panics
    /// If a test has armed the failpoint.
    #[allow(clippy::panic, reason = "the purpose of an armed failpoint")]
    pub fn hit(name: &'static str) {
        let armed = hash(name);
        if ARMED.load(Ordering::SeqCst) != armed {
            return;
        }
        let passed = PASSES.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if !passed && ARMED.compare_exchange(armed, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            HITS.fetch_add(1, Ordering::SeqCst);
            panic!("injected: {name}");
        }
    }
}
