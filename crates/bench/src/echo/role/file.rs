//! `/file`: so many bytes in messages of one size, and what they hash to; again whenever the client asks.

use std::mem;

use wirespeed_driver::protocol::{MessageKind, SendError};

use super::count::Count;
use super::{Sender, pattern, write_number};

/// The text message that asks for another transfer.
const AGAIN: &[u8] = b"again";

/// Transfers of the same bytes.
pub(crate) struct File {
    /// A whole message; its number is that of the last that was sent.
    pub(super) message: Vec<u8>,
    /// Bytes of a transfer.
    bytes: u64,
    /// What was sent of this one.
    sent: Count,
    /// Transfers that are still to be made, this one included.
    transfers: u64,
}

impl File {
    /// Of that size of a message, and so many bytes.
    pub(crate) fn new(size: usize, bytes: u64) -> Self {
        Self { message: pattern(size).collect(), bytes, sent: Count::hashing(), transfers: 1 }
    }

    /// Takes a message of the client.
    pub(super) fn receive(&mut self, kind: MessageKind, bytes: &[u8]) {
        if kind == MessageKind::Text && bytes == AGAIN {
            self.transfers += 1;
        }
    }

    /// Queues the next message, hashed as it leaves; false: everything was sent.
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
