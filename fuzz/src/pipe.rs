//! [`Pipe`]: moves a given number of bytes at a time between two sockets.

use std::collections::VecDeque;
use std::io;

use wirespeed_driver::socket::{Mode, Socket};

/// The other ends of two sockets, and the bytes in transit between them.
pub(crate) struct Pipe {
    far: [Socket; 2],
    /// Bytes in transit from each socket.
    in_transit: [VecDeque<u8>; 2],
    /// Whether the stream from each socket has ended.
    ended: [bool; 2],
    /// Whether this end was passed on to the other socket.
    end_delivered: [bool; 2],
}

impl Pipe {
    pub(crate) fn new(far: [Socket; 2]) -> Self {
        Self { far, in_transit: Default::default(), ended: [false; 2], end_delivered: [false; 2] }
    }

    /// Reads up to `most` bytes from a socket and writes as many as possible to the other. Returns whether any moved.
    pub(crate) fn carry(&mut self, from: usize, most: usize) -> bool {
        let mut moved = false;
        let mut bytes = Vec::with_capacity(most.clamp(1, 1 << 16));
        if !self.ended[from] {
            match self.far[from].receive(&mut bytes, most.max(1), Mode::NonBlocking) {
                Ok(0) => self.ended[from] = true,
                Ok(_) => moved = true,
                Err(error) => self.ended[from] = error.kind() != io::ErrorKind::WouldBlock,
            }
        }
        let bytes_in_transit = &mut self.in_transit[from];
        bytes_in_transit.extend(bytes);
        if self.end_delivered[from] {
            bytes_in_transit.clear();
        }
        while !bytes_in_transit.is_empty() {
            let count = most.clamp(1, bytes_in_transit.len());
            match self.far[1 - from].send(&bytes_in_transit.make_contiguous()[..count], Mode::NonBlocking) {
                Ok(sent) => drop(bytes_in_transit.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return moved,
                // The other end has closed its socket.
                Err(_) => bytes_in_transit.clear(),
            }
            moved = true;
            if most < 1 << 16 {
                break;
            }
        }
        if self.ended[from] && bytes_in_transit.is_empty() && !self.end_delivered[from] {
            self.end(from);
            moved = true;
        }
        moved
    }

    /// Ends the stream from a socket, and discards the bytes in transit.
    pub(crate) fn end(&mut self, from: usize) {
        self.end_delivered[from] = true;
        self.in_transit[from].clear();
        self.far[1 - from].shutdown_write();
    }
}
