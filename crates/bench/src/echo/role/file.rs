//! `/file`: a number of bytes in messages of one size, followed by their hash; repeated on request.

use std::mem;

use wirespeed_driver::protocol::{MessageKind, SendError};

use super::count::Count;
use super::{Sender, pattern, write_number};

/// The text message that requests another transfer.
const AGAIN: &[u8] = b"again";

/// Repeated transfers of the same bytes.
pub(crate) struct File {
    /// A full message, with the number of the last one that was sent.
    pub(super) message: Vec<u8>,
    /// The number of bytes in a transfer.
    bytes: u64,
    /// The counters of the current transfer.
    sent: Count,
    /// The number of transfers to do, including the current one.
    transfers: u64,
}

impl File {
    /// Makes transfers of this many bytes, in messages of this size.
    pub(crate) fn new(size: usize, bytes: u64) -> Self {
        Self { message: pattern(size).collect(), bytes, sent: Count::hashing(), transfers: 1 }
    }

    /// Handles a message of the client.
    pub(super) fn receive(&mut self, kind: MessageKind, bytes: &[u8]) {
        if kind == MessageKind::Text && bytes == AGAIN {
            self.transfers += 1;
        }
    }

    /// Queues the next message, and hashes it. Returns false if all transfers are complete.
    pub(super) fn send(&mut self, sender: &mut Sender<'_>) -> Result<bool, SendError> {
        if self.transfers == 0 {
            return Ok(false);
        }
        let left = self.bytes - self.sent.bytes;
        if left == 0 {
            let sent = mem::replace(&mut self.sent, Count::hashing());
            self.transfers -= 1;
            sender.send_message(MessageKind::Text, sent.report().as_bytes(), Some(false))?;
            return Ok(true);
        }
        let length = self.message.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let message = &mut self.message[..length];
        write_number(message, self.sent.messages);
        self.sent.add(message);
        sender.send_message(MessageKind::Binary, message, None)?;
        Ok(true)
    }
}
