//! Masking with AVX2.

use core::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_set1_epi32, _mm256_storeu_si256, _mm256_xor_si256};

use super::{Key, portable};

/// Returns whether the processor has AVX2. The answer is cached: later calls cost one load.
#[inline]
#[cfg(any(feature = "std", target_feature = "avx2"))]
pub(super) fn has_avx2() -> bool {
    #[cfg(feature = "std")]
    return std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(feature = "std"))]
    return true;
}

/// Writes `source[i] ^ key[i % 4]` to `destination[i]` for `len` bytes, 128 at a time.
///
/// # Safety
///
/// The processor has AVX2. `source` is readable and `destination` is writable for `len` bytes. They are equal or do
/// not overlap.
#[target_feature(enable = "avx2")]
#[cfg_attr(not(any(feature = "std", target_feature = "avx2")), allow(dead_code))]
pub(super) unsafe fn xor_avx2(destination: *mut u8, source: *const u8, len: usize, key: Key) {
    const LANE: usize = 32;
    let mask = _mm256_set1_epi32(i32::from_ne_bytes(key));
    let step = |i: usize| {
        // SAFETY: the loops below call this only with i + 32 <= len. Unaligned access is allowed.
        unsafe {
            let value = _mm256_loadu_si256(source.add(i).cast::<__m256i>());
            _mm256_storeu_si256(destination.add(i).cast::<__m256i>(), _mm256_xor_si256(value, mask));
        }
    };
    let mut i = 0;
    while i + 4 * LANE <= len {
        step(i);
        step(i + LANE);
        step(i + 2 * LANE);
        step(i + 3 * LANE);
        i += 4 * LANE;
    }
    while i + LANE <= len {
        step(i);
        i += LANE;
    }
    // i is a multiple of four: the key needs no rotation.
    // SAFETY: i <= len, so these are the rests of the caller's ranges.
    unsafe { portable::xor(destination.add(i), source.add(i), len - i, key) }
}
