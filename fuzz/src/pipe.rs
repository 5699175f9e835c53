//! What carries bytes between two sockets: as many at a time as it is told.

use std::collections::VecDeque;
use std::io;

use wirespeed_driver::socket::{Mode, Socket};

/// The other ends of two sockets, and what is on its way between them.
pub(crate) struct Pipe {
    far: [Socket; 2],
    /// From each.
    on_its_way: [VecDeque<u8>; 2],
    /// It has ended its direction.
    ended: [bool; 2],
    /// The other was told so.
    told: [bool; 2],
}

impl Pipe {
    pub(crate) fn new(far: [Socket; 2]) -> Self {
        Self { far, on_its_way: Default::default(), ended: [false; 2], told: [false; 2] }
    }

    /// Takes up to `most` bytes from one, and hands the other what it has room for; whether anything moved.
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
        let way = &mut self.on_its_way[from];
        way.extend(bytes);
        if self.told[from] {
            way.clear();
        }
        while !way.is_empty() {
            let count = most.clamp(1, way.len());
            match self.far[1 - from].send(&way.make_contiguous()[..count], Mode::NonBlocking) {
                Ok(sent) => drop(way.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return moved,
                // Nobody reads any more.
                Err(_) => way.clear(),
            }
            moved = true;
            if most < 1 << 16 {
                break;
            }
        }
        if self.ended[from] && way.is_empty() && !self.told[from] {
            self.end(from);
            moved = true;
        }
        moved
    }

    /// Ends the stream from one, whatever is on its way.
    pub(crate) fn end(&mut self, from: usize) {
        self.told[from] = true;
        self.on_its_way[from].clear();
        self.far[1 - from].shutdown_write();
    }
}
