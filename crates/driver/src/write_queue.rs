//! Bytes on their way to the socket.

use std::io;

use crate::buffers;
use crate::socket::{Mode, Socket};

/// What a flush left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Nothing: every byte has been handed to the kernel.
    All,
    /// Something: the kernel has no room.
    Blocked,
}

/// A queue of bytes with a start: appended to by encoders, drained by the socket. Holds no buffer while it is empty.
#[derive(Default)]
pub struct WriteQueue {
    /// Invariant: `start <= bytes.len()`; the bytes before `start` have been written; empty implies no capacity.
    bytes: Vec<u8>,
    start: usize,
    written: u64,
}

impl WriteQueue {
    /// Bytes that wait.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether none do.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the buffer that it holds.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// All bytes that the kernel has taken so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The vector to append to.
    #[inline]
    pub fn tail(&mut self) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = buffers::take_write();
        }
        &mut self.bytes
    }

    /// Writes what waits, as far as `mode` and the kernel allow.
    pub fn flush(&mut self, socket: &Socket, mode: Mode) -> io::Result<Flushed> {
        while !self.is_empty() {
            match socket.send(&self.bytes[self.start..], mode) {
                Ok(sent) => {
                    self.start += sent;
                    self.written += sent as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.compact();
                    return Ok(Flushed::Blocked);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted && mode == Mode::NonBlocking => {}
                Err(error) => return Err(error),
            }
        }
        self.release();
        Ok(Flushed::All)
    }

    /// Forgets what waits: the socket is gone.
    pub fn clear(&mut self) {
        self.release();
    }

    /// Takes what waits out, as if it were written.
    pub fn take(&mut self) -> Vec<u8> {
        let taken = self.bytes[self.start..].to_vec();
        self.written += taken.len() as u64;
        self.release();
        taken
    }

    fn release(&mut self) {
        self.start = 0;
        if self.bytes.capacity() > 0 {
            buffers::give_write(std::mem::take(&mut self.bytes));
        }
    }

    /// Gives back the room of what was written, once it is the larger part: every byte is moved at most once on average.
    fn compact(&mut self) {
        if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}
