//! `/blast`: messages of one size, numbered, as fast as the client reads.

use wirespeed_driver::peer::Link;
use wirespeed_driver::protocol::SendError;

use super::{parse_size, pattern, write_number};

/// Frames that are encoded at once: a block of about this many bytes, at least one frame.
const BLOCK: usize = 64 * 1024;

/// A block of frames that is sent again and again, renumbered.
pub(crate) struct Blast {
    pub(super) block: Vec<u8>,
    /// Where each frame's payload starts in the block.
    payloads: Vec<usize>,
    size: usize,
    next: u64,
}

impl Blast {
    /// For the size that a request names, or what is wrong with it.
    pub(crate) fn parse(size: &str) -> Result<Self, String> {
        parse_size(size, 0).map(Self::new)
    }

    fn new(size: usize) -> Self {
        let mut frame = vec![0x82]; // FIN, binary
        match size {
            0..126 => frame.push(size as u8),
            126..0x1_0000 => {
                frame.push(126);
                frame.extend_from_slice(&(size as u16).to_be_bytes());
            }
            _ => {
                frame.push(127);
                frame.extend_from_slice(&(size as u64).to_be_bytes());
            }
        }
        let header = frame.len();
        frame.extend(pattern(size));
        let count = (BLOCK / frame.len()).max(1);
        let payloads = (0..count).map(|i| i * frame.len() + header).collect();
        Self { block: frame.repeat(count), payloads, size, next: 0 }
    }

    /// Queues the next block.
    pub(crate) fn send(&mut self, link: &mut Link) -> Result<(), SendError> {
        for &start in &self.payloads {
            write_number(&mut self.block[start..start + self.size], self.next);
            self.next += 1;
        }
        let count = self.payloads.len() as u64;
        link.send_encoded(&self.block, count, count * self.size as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_numbered_frames() {
        let mut blast = Blast::new(300);
        assert_eq!(blast.block[..4], [0x82, 126, 1, 44]);
        assert_eq!(blast.block[4 + 8], 8);
        blast.next = 5;
        let start = blast.payloads[1];
        assert_eq!(start, 304 + 4);
    }
}
