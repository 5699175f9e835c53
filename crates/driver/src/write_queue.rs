//! The queue of bytes to be written to a socket.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

use crate::buffer_pool;
use crate::frames::Frames;
use crate::socket::{Mode, Socket};

/// Maximum number of segments passed to the kernel in one call.
const MAX_SEGMENTS: usize = 16;

/// Maximum number of bytes of a large message passed to the kernel in one call. It would accept more, but in memory
/// that has left the cache. Measured: with 1 MiB at once a stream takes 1.8 times the time.
const MAX_LARGE_WRITE: usize = buffer_pool::WRITE_SIZE;

/// The result of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// The kernel has taken every byte.
    All,
    /// Bytes are left: the kernel has no room.
    Blocked,
}

/// A part of a queue to which nothing is appended.
enum Segment {
    Owned(Vec<u8>),
    /// Shared frames without the first bytes, whose number is the second field.
    Shared(Arc<Frames>, usize),
}

impl Segment {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes, from) => bytes.get(*from..).unwrap_or_default(),
        }
    }

    fn release(self) {
        if let Self::Owned(bytes) = self {
            buffer_pool::give_write(bytes);
        }
    }
}

/// The older parts of a queue.
#[derive(Default)]
struct OlderSegments {
    /// The oldest first; none is empty.
    segments: VecDeque<Segment>,
    /// Number of bytes in the segments.
    len: usize,
}

/// A queue of bytes: encoders append to it, the socket drains it. Its parts are its own or shared with other
/// queues. It holds no buffer while it is empty.
#[derive(Default)]
pub struct WriteQueue {
    /// The parts before `bytes`, usually none.
    older: Option<Box<OlderSegments>>,
    /// The vector to append to. While empty it has no capacity, except while it is appended to.
    bytes: Vec<u8>,
    /// How many bytes of the oldest part are written.
    start: usize,
    written: u64,
}

impl WriteQueue {
    /// Returns the number of queued bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.older.as_ref().map_or(0, |older| older.len) + self.bytes.len() - self.start
    }

    /// Returns whether the queue is empty.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of queued bytes that are not shared with other queues.
    #[must_use]
    pub fn own_len(&self) -> usize {
        let owned = |segment: &Segment| match segment {
            Segment::Owned(bytes) => bytes.len(),
            Segment::Shared(..) => 0,
        };
        self.bytes.len() + self.segments().map(owned).sum::<usize>()
    }

    /// Returns the size of the queue's own buffers.
    #[must_use]
    pub fn capacity(&self) -> usize {
        let owned = |segment: &Segment| match segment {
            Segment::Owned(bytes) => bytes.capacity(),
            Segment::Shared(..) => 0,
        };
        self.bytes.capacity() + self.segments().map(owned).sum::<usize>()
    }

    /// Returns the total number of bytes that the kernel has taken.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the vector to append to.
    #[inline]
    pub fn tail(&mut self) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = buffer_pool::take_write();
        }
        &mut self.bytes
    }

    /// Appends shared bytes, those after the first `from`, without a copy.
    pub fn push_shared(&mut self, bytes: Arc<Frames>, from: usize) {
        if bytes.len() <= from {
            return;
        }
        if self.older.is_none() && self.bytes.len() == self.start {
            self.release();
        }
        let older = self.older.get_or_insert_default();
        if !self.bytes.is_empty() {
            let own = std::mem::take(&mut self.bytes);
            older.len += own.len();
            older.segments.push_back(Segment::Owned(own));
        }
        older.len += bytes.len() - from;
        older.segments.push_back(Segment::Shared(bytes, from));
    }

    fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.older.iter().flat_map(|older| &older.segments)
    }

    /// Writes queued bytes, as far as `mode` and the kernel allow.
    #[inline]
    pub fn flush(&mut self, socket: &Socket, mode: Mode) -> io::Result<Flushed> {
        while !self.is_empty() {
            let sent = if self.older.is_none() {
                socket.send(self.bytes.get(self.start..).unwrap_or_default(), mode)
            } else {
                self.send_gathered(&[], socket, mode)
            };
            match sent {
                Ok(sent) => self.advance(sent),
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

    /// Writes queued bytes and then `more`, without copying it, until the kernel has no more room. Returns the
    /// number of bytes of `more` written.
    pub fn flush_with(&mut self, more: &[u8], socket: &Socket) -> io::Result<usize> {
        let mut taken = 0;
        while taken < more.len() {
            let waiting = self.len();
            // With too many segments, write the queue's own first.
            let end = if self.segments().count() + 2 > MAX_SEGMENTS {
                taken
            } else {
                more.len().min(taken + MAX_LARGE_WRITE)
            };
            let rest = more.get(taken..end).unwrap_or_default();
            match self.send_gathered(rest, socket, Mode::NonBlocking) {
                Ok(sent) => {
                    let own = sent.min(waiting);
                    self.advance(own);
                    taken += sent - own;
                    self.written += (sent - own) as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.is_empty() {
            self.release();
        }
        Ok(taken)
    }

    fn send_gathered(&self, more: &[u8], socket: &Socket, mode: Mode) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); MAX_SEGMENTS];
        let mut count = 0;
        let parts = self.segments().map(Segment::bytes).chain([&self.bytes[..]]);
        for (slice, part) in slices.iter_mut().zip(parts.chain([more])) {
            *slice = IoSlice::new(if count == 0 { part.get(self.start..).unwrap_or_default() } else { part });
            count += 1;
        }
        socket.send_vectored(slices.get(..count).unwrap_or_default(), mode)
    }

    /// Removes the oldest `sent` bytes, which were written.
    fn advance(&mut self, sent: usize) {
        self.written += sent as u64;
        self.start += sent;
        let Some(older) = &mut self.older else { return };
        while let Some(segment) = older.segments.pop_front() {
            let len = segment.bytes().len();
            if self.start < len {
                older.segments.push_front(segment);
                return;
            }
            self.start -= len;
            older.len -= len;
            segment.release();
        }
        self.older = None;
    }

    /// Discards queued bytes: the socket is gone.
    pub fn clear(&mut self) {
        if let Some(older) = self.older.take() {
            older.segments.into_iter().for_each(Segment::release);
        }
        self.release();
    }

    /// Takes the queued bytes, as if they were written.
    pub fn take(&mut self) -> Vec<u8> {
        let mut taken = Vec::with_capacity(self.len());
        let mut skip = self.start;
        for part in self.segments().map(Segment::bytes).chain([&self.bytes[..]]) {
            taken.extend_from_slice(part.get(std::mem::take(&mut skip)..).unwrap_or_default());
        }
        self.written += taken.len() as u64;
        self.clear();
        taken
    }

    fn release(&mut self) {
        self.start = 0;
        if self.bytes.capacity() > 0 {
            buffer_pool::give_write(std::mem::take(&mut self.bytes));
        }
    }

    /// Frees the room of written bytes once it is the larger part. So every byte is moved at most once on average.
    fn compact(&mut self) {
        if self.older.is_none() && self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the queued bytes in the order in which they are written.
    fn waiting(queue: &WriteQueue) -> Vec<u8> {
        let all: Vec<u8> = queue.segments().map(Segment::bytes).chain([&queue.bytes[..]]).flatten().copied().collect();
        all[queue.start..].to_vec()
    }

    #[test]
    fn owned_and_shared_segments_are_written_in_order() {
        for pieces in [1, 3, 10, 100] {
            let (mut queue, mut expected, mut left) = (WriteQueue::default(), Vec::new(), Vec::new());
            for turn in 0..200u32 {
                let bytes = vec![turn as u8; turn as usize % 7];
                if turn % 3 == 0 {
                    let from = turn as usize % 4;
                    expected.extend_from_slice(bytes.get(from..).unwrap_or_default());
                    queue.push_shared(Arc::new(bytes.into()), from);
                } else {
                    expected.extend_from_slice(&bytes);
                    queue.tail().extend_from_slice(&bytes);
                }
                let sent = queue.len().min(pieces);
                left.extend_from_slice(&waiting(&queue)[..sent]);
                queue.advance(sent);
                if queue.is_empty() {
                    queue.release();
                    assert_eq!(queue.capacity(), 0);
                }
                assert_eq!(left.len() + queue.len(), expected.len());
                assert_eq!(queue.written(), left.len() as u64);
            }
            left.extend_from_slice(&queue.take());
            assert_eq!(left, expected);
            assert!(queue.is_empty());
            assert_eq!((queue.capacity(), queue.written()), (0, expected.len() as u64));
        }
    }
}
