//! Masking on any target. Where the baseline has vector instructions (SSE2, NEON), the compiler uses them for the word
//! loop; so aarch64 needs no kernel of its own.

use super::Key;

/// Writes `source[i] ^ key[i % 4]` to `destination[i]` for `len` bytes, eight at a time.
///
/// # Safety
///
/// `source` is readable and `destination` is writable for `len` bytes. They are equal or do not overlap.
#[allow(clippy::indexing_slicing, reason = "an index below 4 of 4 bytes")]
#[inline]
pub(super) unsafe fn xor(destination: *mut u8, source: *const u8, len: usize, key: Key) {
    let word = u64::from(u32::from_ne_bytes(key));
    let word = word << 32 | word;
    let mut i = 0;
    while i + 8 <= len {
        // SAFETY: i + 8 <= len, so the eight bytes lie within both ranges; no alignment is assumed.
        unsafe {
            let value = source.add(i).cast::<u64>().read_unaligned() ^ word;
            destination.add(i).cast::<u64>().write_unaligned(value);
        }
        i += 8;
    }
    while i < len {
        // SAFETY: i < len.
        unsafe { *destination.add(i) = *source.add(i) ^ key[i & 3] };
        i += 1;
    }
}

/// Masks byte by byte. Tests compare every kernel with it.
#[allow(clippy::indexing_slicing, reason = "an index below 4 of 4 bytes")]
pub fn oracle(data: &mut [u8], key: Key, offset: usize) {
    for (i, byte) in data.iter_mut().enumerate() {
        *byte ^= key[(offset + i) & 3];
    }
}
