//! Panics that a test asks for, to see what becomes of them: a defect of ours must cost one connection.
//!
//! Every layer says where it is by [`reach`], which is nothing at all without the feature `fault-injection`; no
//! package is built with it.

/// A place that a test may have panic; its name has the layer in front.
#[cfg(not(feature = "fault-injection"))]
#[inline(always)]
pub const fn reach(_: &'static str) {}

#[cfg(feature = "fault-injection")]
pub use injected::{arm, fired, reach};

#[cfg(feature = "fault-injection")]
mod injected {
    use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    /// The place that is to panic, by the hash of its name; 0: none.
    static ARMED: AtomicU64 = AtomicU64::new(0);
    /// How often it is passed before.
    static PASSES: AtomicUsize = AtomicUsize::new(0);
    static FIRED: AtomicUsize = AtomicUsize::new(0);

    /// FNV-1a: names are few, and a test would see two that are taken for one another.
    fn hash(name: &str) -> u64 {
        name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// Has a place panic once, the next time but `passes` that it is reached, in any thread; no other any more. An
    /// empty name: none.
    pub fn arm(name: &str, passes: usize) {
        ARMED.store(0, Ordering::SeqCst);
        PASSES.store(passes, Ordering::SeqCst);
        ARMED.store(if name.is_empty() { 0 } else { hash(name) }, Ordering::SeqCst);
    }

    /// How many have panicked.
    pub fn fired() -> usize {
        FIRED.load(Ordering::SeqCst)
    }

    /// A place that a test may have panic; its name has the layer in front.
    ///
    /// # Panics
    /// If a test has asked for it.
    #[allow(clippy::panic, reason = "what it is for: a test has asked for it")]
    pub fn reach(name: &'static str) {
        let armed = hash(name);
        if ARMED.load(Ordering::SeqCst) != armed {
            return;
        }
        let passed = PASSES.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if !passed && ARMED.compare_exchange(armed, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            FIRED.fetch_add(1, Ordering::SeqCst);
            panic!("injected: {name}");
        }
    }
}
