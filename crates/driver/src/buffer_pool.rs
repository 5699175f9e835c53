//! Buffers lent to connections while they have something in them, one small stock per thread.
//!
//! A connection that is idle holds none of them: that is what makes idle connections cheap and the buffers in
//! use warm.

use std::cell::{Cell, RefCell};
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::fork;

/// Bytes read from a socket at once. Large enough that a system call costs nothing per message of a stream,
/// small enough to stay in the second-level cache.
pub const READ_SIZE: usize = 256 * 1024;

/// Bytes read at once from a socket that had more than [`READ_SIZE`] to give, as long as it has. Measured: with
/// more, the first of it has grown cold before it is parsed, and with a core for each end streams of messages of
/// 16 KiB are a quarter slower at 4 MiB; with less, on one core, those of 2 KiB are a tenth slower.
pub const LARGE_READ_SIZE: usize = 1024 * 1024;

/// What is read at once while [`LENT_MAX`] bytes of buffers are out: and the least that any limit leaves a
/// connection to read.
pub const SMALL_READ_SIZE: usize = 16 * 1024;

/// Bytes of read buffers that all connections of the process may have at a time, with something in them that
/// was not parsed yet. Beyond it connections read [`SMALL_READ_SIZE`] at once.
pub const LENT_MAX: usize = 64 * 1024 * 1024;

/// Of these, what may be out for another large buffer to be lent: one thread has one, a few have some.
const LENT_FOR_LARGE: usize = 12 * 1024 * 1024;

/// Bytes of read buffers that are out.
static CHECKED_OUT: AtomicUsize = AtomicUsize::new(0);

/// What is queued for writing leaves in pieces of this size, masked and encrypted while it is in the
/// second-level cache. Measured: with 64 KiB, a round trip of 100 kB takes two system calls and a third more
/// time, the other end waking in between.
pub const WRITE_SIZE: usize = 128 * 1024;

/// Room beyond [`WRITE_SIZE`] for headers and the overhead of TLS records.
const WRITE_CAPACITY: usize = WRITE_SIZE + 4096;

/// Of a buffer for writing at first, where large ones are out.
const SMALL_WRITE: usize = 2 * 1024;

/// Buffers kept per thread and kind. A thread serves one connection at a time, or a loop that reads one at a
/// time.
const KEPT: usize = 4;

/// What glibc's allocator is shown, see [`teach_allocator`], and whether it was.
const LEARNT_SIZE: usize = 1024 * 1024;
static LEARNT: AtomicBool = AtomicBool::new(false);

/// Ordinary reads of a thread after which its large buffer is freed.
const LARGE_KEPT_FOR: u32 = 64;

thread_local! {
    /// One large buffer per thread that has lately received a stream, and the ordinary reads since.
    static LARGE_READ: RefCell<(Option<Vec<u8>>, u32)> = const { RefCell::new((None, 0)) };
    static READ: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static WRITE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    /// It has had a large buffer for writing.
    static PRIMED: Cell<bool> = const { Cell::new(false) };
}

/// A buffer for bytes that were read, lent until it is dropped.
#[derive(Default)]
pub struct ReadBuffer {
    bytes: Vec<u8>,
    /// Its part of [`CHECKED_OUT`].
    counted: u32,
    /// The process that counts it, as [`entropy::forks`] does; of that, what is told apart in a word.
    generation: u32,
}

impl ReadBuffer {
    fn lend(bytes: Vec<u8>) -> Self {
        let counted = u32::try_from(bytes.capacity()).unwrap_or(u32::MAX); // it is one of the sizes above
        CHECKED_OUT.fetch_add(counted as usize, Ordering::Relaxed);
        Self { bytes, counted, generation: fork::generation() as u32 }
    }

    /// Bytes in a vector of their size: for what may stay for a while.
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

/// In the child after a fork: what is out is out in the parent. Of its other threads nothing would come back here.
pub(crate) fn after_fork() {
    CHECKED_OUT.store(0, Ordering::Relaxed);
}

/// Bytes of read buffers that are out, of all connections of the process.
#[must_use]
pub fn checked_out() -> usize {
    CHECKED_OUT.load(Ordering::Relaxed)
}

/// An empty buffer of [`READ_SIZE`] capacity; a small one if too many are out.
#[must_use]
#[inline]
pub fn take_read() -> ReadBuffer {
    if checked_out() + READ_SIZE > LENT_MAX {
        return ReadBuffer::lend(Vec::with_capacity(SMALL_READ_SIZE));
    }
    ReadBuffer::lend(READ.with_borrow_mut(Vec::pop).unwrap_or_else(first_read))
}

#[cold]
fn first_read() -> Vec<u8> {
    if !LEARNT.swap(true, Ordering::Relaxed) {
        teach_allocator();
    }
    Vec::with_capacity(READ_SIZE)
}

/// Has glibc keep up to 2 MiB of what was freed at the top of its heap. By itself it keeps 128 KiB, gives the rest back
/// to the system, and takes it anew, empty, for the next message: up to 16 page faults for each of 64 KiB, up to half
/// of its time. Who frees one block of a size that was mapped for it has it keep twice as much from then on (mallopt(3),
/// `M_MMAP_THRESHOLD`: the dynamic adjustment), unless the program or its environment has set what it keeps. A program
/// that frees no large block, as this crate's stocks do not, has it learn nothing. Another allocator does not mind.
fn teach_allocator() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LEARNT_SIZE)));
}

/// An empty buffer of [`LARGE_READ_SIZE`] capacity, unless some are out already.
#[must_use]
pub fn take_large_read() -> ReadBuffer {
    if checked_out() > LENT_FOR_LARGE {
        return take_read();
    }
    let kept = LARGE_READ.with_borrow_mut(|(kept, _)| kept.take());
    ReadBuffer::lend(kept.unwrap_or_else(|| Vec::with_capacity(LARGE_READ_SIZE)))
}

/// Takes a buffer of either size back; one that grew beyond need is freed.
#[inline]
fn give_read(buffer: Vec<u8>) {
    match buffer.capacity() {
        READ_SIZE => {
            give(&READ, buffer);
            let _ = LARGE_READ.try_with(|large| {
                let (kept, reads) = &mut *large.borrow_mut();
                if kept.is_some() {
                    *reads += 1;
                    if *reads > LARGE_KEPT_FOR {
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

/// An empty buffer of a little more than [`WRITE_SIZE`] capacity; a small one, which grows as needed, where more are out
/// than a thread keeps: those of many connections that have a little to write each.
#[must_use]
pub fn take_write() -> Vec<u8> {
    if let Some(buffer) = WRITE.with_borrow_mut(Vec::pop) {
        return buffer;
    }
    let first = !PRIMED.replace(true);
    Vec::with_capacity(if first { WRITE_CAPACITY } else { SMALL_WRITE })
}

/// Takes a buffer back; one that grew beyond need is freed.
pub fn give_write(buffer: Vec<u8>) {
    if (WRITE_CAPACITY..=4 * WRITE_CAPACITY).contains(&buffer.capacity()) {
        give(&WRITE, buffer);
    }
}

fn give(stock: &'static std::thread::LocalKey<RefCell<Vec<Vec<u8>>>>, mut buffer: Vec<u8>) {
    buffer.clear();
    // At the end of a thread its stock may be gone before a connection is: then the buffer is freed.
    let _ = stock.try_with(|stock| {
        let mut stock = stock.borrow_mut();
        if stock.len() < KEPT {
            stock.push(buffer);
        }
    });
}
