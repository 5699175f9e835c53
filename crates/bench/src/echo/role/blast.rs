//! `/blast`: messages of one size, numbered, as fast as the client reads; or so many in turn with the client.

use wirespeed_driver::endpoint::SendHalf;
use wirespeed_driver::protocol::{Config, Connection, Limits, MessageKind, SendError, Side};

use super::{pattern, write_number};

/// Frames that are encoded at once: a block of about this many bytes, at least one frame.
const BLOCK: usize = 64 * 1024;

/// A block of frames that is sent again and again, renumbered.
pub(crate) struct Blast {
    pub(super) block: Vec<u8>,
    /// Bytes of a frame, and of its header.
    frame: usize,
    header: usize,
    next: u64,
    turn: Option<Turn>,
}

/// Messages of a turn, and how many may still be sent until the client has sent another.
struct Turn {
    messages: usize,
    left: usize,
}

impl Blast {
    /// With messages of that size; `turn`: so many until the client sends one.
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

    /// The client has sent a message: it is the server's turn.
    pub(super) fn take_turn(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.left += turn.messages;
        }
    }

    /// Queues the next block; false: it is the client's turn.
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
