//! Masking keys from the operating system's generator, drawn in bulk (RFC 6455 5.3, 10.3).

use std::cell::RefCell;

use wirespeed_protocol::mask::Key;

use crate::fork;

/// Number of bytes drawn at once: one system call per 256 keys. At 1 KiB the call is 1 % of the cost of a small
/// message.
const POOL: usize = 1024;

struct Pool {
    bytes: [u8; POOL],
    used: usize,
    /// The process that drew them: parent and child must not use the same keys.
    generation: u64,
}

thread_local! {
    static KEYS: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL], used: POOL, generation: 0 }) };
}

/// Returns an unpredictable key that no other frame uses.
///
/// # Panics
///
/// If the operating system has no random numbers, which no supported system does after it has booted.
#[must_use]
#[inline]
pub fn draw_key() -> Key {
    KEYS.with_borrow_mut(|pool| {
        if pool.used == POOL || pool.generation != fork::generation() {
            refill(pool);
        }
        #[allow(clippy::indexing_slicing, reason = "a multiple of 4 below POOL, which is one, by the line above")]
        let drawn = &mut pool.bytes[pool.used..pool.used + 4];
        let mut key = Key::default();
        key.copy_from_slice(drawn);
        // A key that was returned is not kept.
        drawn.fill(0);
        pool.used += 4;
        key
    })
}

#[cold]
fn refill(pool: &mut Pool) {
    fill(&mut pool.bytes);
    pool.used = 0;
    pool.generation = fork::generation();
}

/// Returns the nonce of an opening handshake: 16 bytes (RFC 6455 4.1).
#[must_use]
pub fn draw_nonce() -> [u8; 16] {
    let mut nonce = [0; 16];
    for part in nonce.chunks_exact_mut(4) {
        part.copy_from_slice(&draw_key());
    }
    nonce
}

fn fill(bytes: &mut [u8]) {
    #[allow(
        clippy::expect_used,
        reason = "frames with masks that can be guessed are no alternative, and no peer can cause it"
    )]
    getrandom::fill(bytes).expect("the operating system has random numbers");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_differ_across_refills() {
        let keys: HashSet<Key> = (0..POOL).map(|_| draw_key()).collect();
        assert!(keys.len() > POOL - 4, "collisions beyond chance: {} of {POOL}", keys.len());
    }

    #[test]
    fn fork_discards_the_pool() {
        let _ = draw_key();
        let before = KEYS.with_borrow(|pool| pool.bytes);
        fork::advance();
        let _ = draw_key();
        assert_ne!(before[8..], KEYS.with_borrow(|pool| pool.bytes)[8..]);
    }
}
