//! `/blast`: numbered messages of one size, as fast as the client reads, or in turns with the client.

use wirespeed_driver::endpoint::SendHalf;
use wirespeed_driver::protocol::{Config, Connection, Limits, MessageKind, SendError, Side};

use super::{pattern, write_number};

/// The size of a block of encoded frames, about, in bytes. It contains at least one frame.
const BLOCK: usize = 64 * 1024;

/// A block of encoded frames that is sent repeatedly, with new numbers.
pub(crate) struct Blast {
    pub(super) block: Vec<u8>,
    /// The size of a frame in bytes, and of its header.
    frame: usize,
    header: usize,
    next: u64,
    turn: Option<Turn>,
}

/// The messages of a turn, and how many may be sent before the client sends one.
struct Turn {
    messages: usize,
    left: usize,
}

impl Blast {
    /// Makes messages of this size. `turn`: how many are sent for each message of the client.
    pub(crate) fn new(size: usize, turn: Option<usize>) -> Result<Self, SendError> {
        let mut frame = Vec::new();
        let config = Config { side: Side::Server, limits: Limits::default(), deflate: None };
        let payload: Vec<u8> = pattern(size).collect();
        Connection::<Vec<u8>>::new(config).send_message(MessageKind::Binary, &payload, None, || [0; 4], &mut frame)?;
        Ok(Self {
            block: frame.repeat((BLOCK / frame.len()).max(1)),
            frame: frame.len(),
            header: frame.len() - size,
            next: 0,
            turn: turn.map(|messages| Turn { messages, left: messages }),
        })
    }

    /// Starts another turn, after a message of the client.
    pub(super) fn take_turn(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.left += turn.messages;
        }
    }

    /// Queues the next block. Returns false if it is the client's turn.
    pub(super) fn send(&mut self, send_half: &mut SendHalf) -> Result<bool, SendError> {
        let mut count = self.block.len() / self.frame;
        if let Some(turn) = &mut self.turn {
            count = count.min(turn.left);
            turn.left -= count;
        }
        if count == 0 {
            return Ok(false);
        }
        let frames = &mut self.block[..count * self.frame];
        for frame in frames.chunks_exact_mut(self.frame) {
            write_number(&mut frame[self.header..], self.next);
            self.next += 1;
        }
        send_half.send_encoded(frames, count as u64, (count * (self.frame - self.header)) as u64)?;
        Ok(true)
    }
}
