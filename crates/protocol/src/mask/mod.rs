//! Masking (RFC 6455 5.3): XOR with a four-byte key, in place or while copying.
//!
//! Both use one kernel over raw pointers. AVX2 is chosen at run time if the processor has it; the loop in
//! [`portable`] is used otherwise.

#![allow(unsafe_code)] // vector kernels over raw pointers: source and destination may be the same

use alloc::vec::Vec;

pub mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// A masking key. Each frame needs a new one from a cryptographic random generator (RFC 6455 5.3).
pub type Key = [u8; 4];

/// Minimum number of bytes for a vector kernel: below it, the check for AVX2 costs more than the kernel saves.
const VECTOR_MIN: usize = 64;

/// Returns the key rotated so that its first byte applies to byte `offset` of the payload.
#[inline]
const fn rotate(key: Key, offset: usize) -> Key {
    (u32::from_le_bytes(key).rotate_right(8 * (offset & 3) as u32)).to_le_bytes()
}

/// Masks or unmasks `data` in place. `offset` is the position of its first byte in the payload.
#[inline]
pub fn apply(data: &mut [u8], key: Key, offset: usize) {
    let pointer = data.as_mut_ptr();
    // SAFETY: source and destination are the same initialised slice, which the kernels allow.
    unsafe { xor(pointer, pointer, data.len(), rotate(key, offset)) }
}

/// Appends a masked copy of `data` to `out`. `offset` is the position of its first byte in the payload.
#[inline]
pub fn append(out: &mut Vec<u8>, data: &[u8], key: Key, offset: usize) {
    out.reserve(data.len());
    // SAFETY: reserve made room for data.len() bytes after the length. `data` and `out` do not overlap, as `out` is
    // borrowed exclusively. The kernel initialises all these bytes before set_len exposes them.
    unsafe {
        xor(out.as_mut_ptr().add(out.len()), data.as_ptr(), data.len(), rotate(key, offset));
        out.set_len(out.len() + data.len());
    }
}

/// Writes `source[i] ^ key[i % 4]` to `destination[i]` for `len` bytes.
///
/// # Safety
///
/// `source` is readable and `destination` is writable for `len` bytes. They are equal or do not overlap.
#[inline]
unsafe fn xor(destination: *mut u8, source: *const u8, len: usize, key: Key) {
    #[cfg(all(target_arch = "x86_64", any(feature = "std", target_feature = "avx2")))]
    if len >= VECTOR_MIN && x86_64::has_avx2() {
        // SAFETY: the processor has AVX2; the caller guarantees the rest.
        return unsafe { x86_64::xor_avx2(destination, source, len, key) };
    }
    let _ = VECTOR_MIN;
    // SAFETY: the caller guarantees it.
    unsafe { portable::xor(destination, source, len, key) }
}
