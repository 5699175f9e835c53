//! Masking (RFC 6455 5.3): XOR with a four-byte key, in place or fused with a copy.
//!
//! One algorithm over raw pointers serves both; the widest instruction set that the machine has is chosen at
//! run time. The loop in [`portable`] is the oracle of the tests.

#![allow(unsafe_code)] // vector kernels over raw pointers: the source may be the destination

use alloc::vec::Vec;

pub mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// A masking key, fresh from a cryptographic generator for every frame (RFC 6455 5.3).
pub type Key = [u8; 4];

/// Below this many bytes the portable loop wins: looking up the kernel costs more than it saves (measured: 64
/// B, 3 ns either way).
const VECTOR_MIN: usize = 64;

/// The key as it applies from byte `offset` of the payload on.
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
    // SAFETY: reserve made room for data.len() bytes behind the length, the two do not overlap as `out` is
    // borrowed exclusively, and the kernel initialises every one of these bytes before set_len makes them
    // visible.
    unsafe {
        xor(out.as_mut_ptr().add(out.len()), data.as_ptr(), data.len(), rotate(key, offset));
        out.set_len(out.len() + data.len());
    }
}

/// Writes `source[i] ^ key[i % 4]` to `destination[i]` for `len` bytes.
///
/// # Safety
///
/// `source` is readable and `destination` writable for `len` bytes; they are the same or do not overlap.
#[inline]
unsafe fn xor(destination: *mut u8, source: *const u8, len: usize, key: Key) {
    #[cfg(all(target_arch = "x86_64", any(feature = "std", target_feature = "avx2")))]
    if len >= VECTOR_MIN && x86_64::has_avx2() {
        // SAFETY: AVX2 is there; the rest is the caller's promise.
        return unsafe { x86_64::xor_avx2(destination, source, len, key) };
    }
    let _ = VECTOR_MIN;
    // SAFETY: the caller's promise.
    unsafe { portable::xor(destination, source, len, key) }
}
