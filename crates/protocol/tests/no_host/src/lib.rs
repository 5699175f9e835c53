//! Calls every part of the protocol crate, without its `std` feature, from a program with its own allocator.
//! scripts/check-no-host.sh lists the symbols that the program still imports from the host.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

#[cfg(feature = "protocol")]
mod protocol;

/// An allocator that never frees memory.
struct Bump {
    heap: UnsafeCell<[u8; 4 << 20]>,
    used: AtomicUsize,
}

// SAFETY: an atomic counter ensures that each byte of the heap is allocated at most once.
unsafe impl Sync for Bump {}

// SAFETY: the regions are disjoint, aligned and lie within the heap.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = self.heap.get() as usize;
        let used = self.used.fetch_add(layout.size() + layout.align(), Ordering::Relaxed);
        let address = (start + used).next_multiple_of(layout.align());
        if address + layout.size() > start + (4 << 20) {
            return core::ptr::null_mut();
        }
        address as *mut u8
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static HEAP: Bump = Bump { heap: UnsafeCell::new([0; 4 << 20]), used: AtomicUsize::new(0) };

/// Panics and allocates without the protocol crate. The symbols that it imports come from the panics of the standard
/// library.
#[cfg(not(feature = "protocol"))]
#[unsafe(no_mangle)]
pub extern "C" fn wirespeed_no_host(bytes: *mut u8, len: usize) -> usize {
    let values: Vec<usize> = (0..len).collect();
    assert!(len < 1000, "{values:?} {bytes:?}");
    values[len / 2]
}
