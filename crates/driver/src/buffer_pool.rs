//! Read and write buffers for connections that have bytes in them, with a small pool in each thread.
//!
//! An idle connection holds no buffer, so it takes little memory, and the buffers in use stay in the CPU cache.

use std::cell::{Cell, RefCell};
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::fork;

/// Number of bytes to read from a socket at once. It is large enough that the system call costs little per message
/// of a stream, and small enough for the second-level cache.
pub const READ_SIZE: usize = 256 * 1024;

/// Number of bytes to read at once from a socket that had more than [`READ_SIZE`], as long as it has. Measured:
/// with more, bytes have left the cache before they are parsed, and streams of 16 KiB messages are a quarter slower
/// at 4 MiB, with a core for each end. With less, on one core, streams of 2 KiB messages are a tenth slower.
pub const LARGE_READ_SIZE: usize = 1024 * 1024;

/// Number of bytes to read at once while buffers of [`CHECKED_OUT_MAX`] bytes are in use. All limits allow a
/// connection to read at least this much.
pub const SMALL_READ_SIZE: usize = 16 * 1024;

/// Maximum size of all read buffers in use in the process, with bytes that were not parsed yet. Above it,
/// connections read [`SMALL_READ_SIZE`] at once.
pub const CHECKED_OUT_MAX: usize = 64 * 1024 * 1024;

/// Maximum size of the read buffers in use at which a large buffer is still given out: one thread has one, a few
/// have some.
const LARGE_CHECKED_OUT_MAX: usize = 12 * 1024 * 1024;

/// Size of all read buffers in use.
static CHECKED_OUT: AtomicUsize = AtomicUsize::new(0);

/// Queued bytes are masked, encrypted and written in pieces of this size, while they are in the second-level cache.
/// Measured: with 64 KiB, a round trip of 100 kB takes two system calls and a third more time, because the other
/// end wakes in between.
pub const WRITE_SIZE: usize = 128 * 1024;

/// [`WRITE_SIZE`] and room for headers and the overhead of TLS records.
const WRITE_CAPACITY: usize = WRITE_SIZE + 4096;

/// Initial size of a write buffer where large ones are in use.
const SMALL_WRITE: usize = 2 * 1024;

/// Number of buffers kept per thread and kind. A thread serves one connection at a time, and a loop reads from one
/// at a time.
const MAX_KEPT: usize = 4;

/// Size of the block that [`raise_trim_threshold`] frees, and whether it has done so.
const TRIM_BLOCK_SIZE: usize = 1024 * 1024;
static TRIM_RAISED: AtomicBool = AtomicBool::new(false);

/// Number of ordinary reads after which a thread frees its large buffer.
const LARGE_MAX_READS: u32 = 64;

thread_local! {
    /// The large buffer of a thread that has lately received a stream, and the number of ordinary reads since.
    static LARGE_READ: RefCell<(Option<Vec<u8>>, u32)> = const { RefCell::new((None, 0)) };
    static READ: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static WRITE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    /// Whether the thread has had a large write buffer.
    static HAD_LARGE_WRITE: Cell<bool> = const { Cell::new(false) };
}

/// A buffer for bytes that were read; it returns to the pool when it is dropped.
#[derive(Default)]
pub struct ReadBuffer {
    bytes: Vec<u8>,
    /// Its share of [`CHECKED_OUT`].
    counted: u32,
    /// The low 32 bits of the [`fork::generation`] of the process that counts it.
    generation: u32,
}

impl ReadBuffer {
    fn check_out(bytes: Vec<u8>) -> Self {
        let counted = u32::try_from(bytes.capacity()).unwrap_or(u32::MAX); // one of the sizes above
        CHECKED_OUT.fetch_add(counted as usize, Ordering::Relaxed);
        Self { bytes, counted, generation: fork::generation() as u32 }
    }

    /// Copies bytes to a vector of their size, for bytes that may stay for a while.
    #[must_use]
    pub fn exact(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), ..Self::default() }
    }
}

impl Deref for ReadBuffer {
    type Target = Vec<u8>;

    #[inline]
    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for ReadBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl Drop for ReadBuffer {
    #[inline]
    fn drop(&mut self) {
        if self.counted > 0 {
            if self.generation == fork::generation() as u32 {
                CHECKED_OUT.fetch_sub(self.counted as usize, Ordering::Relaxed);
            }
            give_read(mem::take(&mut self.bytes));
        }
    }
}

/// Resets the count in the child after a fork: buffers in use by the parent's other threads never return here.
pub(crate) fn after_fork() {
    CHECKED_OUT.store(0, Ordering::Relaxed);
}

/// Returns the size of all read buffers in use in the process.
#[must_use]
pub fn checked_out() -> usize {
    CHECKED_OUT.load(Ordering::Relaxed)
}

/// Returns an empty buffer of [`READ_SIZE`] capacity; a small one if too many are in use.
#[must_use]
#[inline]
pub fn take_read() -> ReadBuffer {
    if checked_out() + READ_SIZE > CHECKED_OUT_MAX {
        return ReadBuffer::check_out(Vec::with_capacity(SMALL_READ_SIZE));
    }
    ReadBuffer::check_out(READ.with_borrow_mut(Vec::pop).unwrap_or_else(first_read))
}

#[cold]
fn first_read() -> Vec<u8> {
    if !TRIM_RAISED.swap(true, Ordering::Relaxed) {
        raise_trim_threshold();
    }
    Vec::with_capacity(READ_SIZE)
}

/// Has glibc keep up to 2 MiB of freed memory at the top of its heap, instead of 128 KiB. By default it returns the
/// rest to the system and takes it back, empty, for the next message: up to 16 page faults for each message of 64
/// KiB, up to half of its time. Freeing one block of a size that was mapped raises the limit to twice that size
/// (mallopt(3), `M_MMAP_THRESHOLD`: the dynamic adjustment), unless the program or its environment has set it. This
/// crate's pools free no large block, so they do not raise it. Other allocators are not affected.
fn raise_trim_threshold() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(TRIM_BLOCK_SIZE)));
}

/// Returns an empty buffer of [`LARGE_READ_SIZE`] capacity, unless some are in use already.
#[must_use]
pub fn take_large_read() -> ReadBuffer {
    if checked_out() > LARGE_CHECKED_OUT_MAX {
        return take_read();
    }
    let kept = LARGE_READ.with_borrow_mut(|(kept, _)| kept.take());
    ReadBuffer::check_out(kept.unwrap_or_else(|| Vec::with_capacity(LARGE_READ_SIZE)))
}

/// Returns a buffer to the pool of its size; one that has grown is freed.
#[inline]
fn give_read(buffer: Vec<u8>) {
    match buffer.capacity() {
        READ_SIZE => {
            give(&READ, buffer);
            let _ = LARGE_READ.try_with(|large| {
                let (kept, reads) = &mut *large.borrow_mut();
                if kept.is_some() {
                    *reads += 1;
                    if *reads > LARGE_MAX_READS {
                        *kept = None;
                    }
                }
            });
        }
        LARGE_READ_SIZE => {
            let mut buffer = buffer;
            buffer.clear();
            let _ = LARGE_READ.try_with(|large| *large.borrow_mut() = (Some(buffer), 0));
        }
        _ => {}
    }
}

/// Returns an empty buffer of a little more than [`WRITE_SIZE`] capacity. If the thread's pool is empty, as with
/// many connections that each have a little to write, the buffer is small and grows as needed.
#[must_use]
pub fn take_write() -> Vec<u8> {
    if let Some(buffer) = WRITE.with_borrow_mut(Vec::pop) {
        return buffer;
    }
    let first = !HAD_LARGE_WRITE.replace(true);
    Vec::with_capacity(if first { WRITE_CAPACITY } else { SMALL_WRITE })
}

/// Returns a buffer to the pool; one that has grown too much is freed.
pub fn give_write(buffer: Vec<u8>) {
    if (WRITE_CAPACITY..=4 * WRITE_CAPACITY).contains(&buffer.capacity()) {
        give(&WRITE, buffer);
    }
}

fn give(pool: &'static std::thread::LocalKey<RefCell<Vec<Vec<u8>>>>, mut buffer: Vec<u8>) {
    buffer.clear();
    // At the end of a thread its pool may be gone before a connection: then the buffer is freed.
    let _ = pool.try_with(|pool| {
        let mut pool = pool.borrow_mut();
        if pool.len() < MAX_KEPT {
            pool.push(buffer);
        }
    });
}
