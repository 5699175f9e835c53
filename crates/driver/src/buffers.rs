//! Buffers lent to connections while they have something in them, one small stock per thread.
//!
//! A connection that is idle holds none of them: that is what makes idle connections cheap and the buffers in use warm.

use std::cell::RefCell;

/// Bytes read from a socket at once. Large enough that a system call costs nothing per message of a stream, small enough
/// to stay in the second-level cache.
pub const READ_SIZE: usize = 256 * 1024;

/// What is queued for writing leaves in pieces of this size, masked and encrypted while it is in the second-level cache. Measured:
/// with 64 KiB, a round trip of 100 kB takes two system calls and a third more time, the other end waking in between.
pub const WRITE_SIZE: usize = 128 * 1024;

/// Room beyond [`WRITE_SIZE`] for headers and the overhead of TLS records.
const WRITE_CAPACITY: usize = WRITE_SIZE + 4096;

/// Buffers kept per thread and kind. A thread serves one connection at a time, or a loop that reads one at a time.
const KEPT: usize = 4;

thread_local! {
    static READ: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static WRITE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer of [`READ_SIZE`] capacity.
#[must_use]
pub fn take_read() -> Vec<u8> {
    READ.with_borrow_mut(Vec::pop).unwrap_or_else(|| Vec::with_capacity(READ_SIZE))
}

/// Takes a buffer back; one that grew beyond need is freed.
pub fn give_read(buffer: Vec<u8>) {
    if buffer.capacity() == READ_SIZE {
        give(&READ, buffer);
    }
}

/// An empty buffer of a little more than [`WRITE_SIZE`] capacity.
#[must_use]
pub fn take_write() -> Vec<u8> {
    WRITE.with_borrow_mut(Vec::pop).unwrap_or_else(|| Vec::with_capacity(WRITE_CAPACITY))
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
