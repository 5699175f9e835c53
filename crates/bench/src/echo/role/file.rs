//! `/file`: so many bytes in messages of one size, and what they hash to; again whenever the client asks.

use sha2::{Digest as _, Sha256};
use wirespeed_driver::protocol::{MessageKind, SendError};

use super::super::hex;
use super::{Sender, parse_size, pattern, write_number};

/// The text message that asks for another transfer.
const AGAIN: &[u8] = b"again";

/// Transfers of the same bytes.
pub(crate) struct File {
    /// A whole message; its number is that of the last that was sent.
    pub(super) message: Vec<u8>,
    /// Bytes of a transfer.
    bytes: u64,
    /// Those of this one that were not sent yet.
    left: u64,
    /// The number of its next message.
    next: u64,
    hash: Sha256,
    /// Transfers that are still to be made, this one included.
    transfers: u64,
}

impl File {
    /// For the size of a message and the bytes of a transfer that a request names, or what is wrong with
    /// them.
    pub(crate) fn parse(size: &str, bytes: &str) -> Result<Self, String> {
        let message = pattern(parse_size(size, 1)?).collect();
        let bytes = bytes.parse().map_err(|_| format!("bytes={bytes}: not a number\n"))?;
        Ok(Self { message, bytes, left: bytes, next: 0, hash: Sha256::new(), transfers: 1 })
    }

    /// Takes a message of the client.
    pub(crate) fn receive(&mut self, kind: MessageKind, bytes: &[u8]) {
        if kind == MessageKind::Text && bytes == AGAIN {
            self.transfers += 1;
        }
    }

    /// Queues the next message, hashed as it leaves; false: everything was sent.
    pub(crate) fn send(&mut self, sender: &mut Sender<'_>) -> Result<bool, SendError> {
        if self.transfers == 0 {
            return Ok(false);
        }
        if self.left == 0 {
            sender.send_message(MessageKind::Text, self.end().as_bytes(), Some(false))?;
            return Ok(true);
        }
        sender.send_message(MessageKind::Binary, self.advance(), None)?;
        Ok(true)
    }

    fn advance(&mut self) -> &[u8] {
        let length = self.message.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let message = &mut self.message[..length];
        write_number(message, self.next);
        self.hash.update(&*message);
        self.next += 1;
        self.left -= length as u64;
        message
    }

    /// What the transfer was; the next one begins.
    fn end(&mut self) -> String {
        let (messages, bytes) = (self.next, self.bytes);
        self.transfers -= 1;
        self.left = self.bytes;
        self.next = 0;
        let hash = hex(&self.hash.finalize_reset());
        format!("{{\"messages\": {messages}, \"bytes\": {bytes}, \"sha256\": \"{hash}\"}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_is_numbered_messages_and_the_last_may_be_shorter() {
        let mut file = File::parse("10", "25").expect("both are numbers");
        let mut all = Vec::new();
        for expected in [
            &[0, 0, 0, 0, 0, 0, 0, 0, 8, 9][..],
            &[1, 0, 0, 0, 0, 0, 0, 0, 8, 9],
            &[2, 0, 0, 0, 0], // the number is cut too
        ] {
            let message = file.advance();
            assert_eq!(message, expected);
            all.extend_from_slice(message);
        }
        assert_eq!(file.left, 0);
        let hash = hex(&Sha256::digest(&all));
        let end = format!(r#"{{"messages": 3, "bytes": 25, "sha256": "{hash}"}}"#);
        assert_eq!(file.end(), end);
        assert_eq!(file.transfers, 0);
        file.receive(MessageKind::Text, b"again");
        file.receive(MessageKind::Binary, b"again");
        assert_eq!(file.transfers, 1);
        assert_eq!(file.advance(), [0, 0, 0, 0, 0, 0, 0, 0, 8, 9]);
        file.advance();
        file.advance();
        assert_eq!(file.end(), end);
    }
}
