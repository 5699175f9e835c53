//! `/sink` and `/hash`: what arrives is counted, and hashed, and told when a text message asks.

use sha2::{Digest as _, Sha256};
use wirespeed_driver::peer::Link;
use wirespeed_driver::protocol::{MessageKind, SendError};

use super::super::hex;

/// The text message that asks what has arrived.
const REPORT: &[u8] = b"report";

/// What has arrived.
#[derive(Default)]
pub(crate) struct Count {
    messages: u64,
    bytes: u64,
    hash: Option<Sha256>,
}

impl Count {
    /// One that hashes too.
    pub(crate) fn hashing() -> Self {
        Self { hash: Some(Sha256::new()), ..Self::default() }
    }

    /// Counts a message, or answers the one that asks.
    pub(crate) fn receive(&mut self, link: &mut Link, kind: MessageKind, bytes: &[u8]) -> Result<(), SendError> {
        if kind == MessageKind::Text && bytes == REPORT {
            return link.send_message(MessageKind::Text, self.report().as_bytes(), Some(false));
        }
        self.messages += 1;
        self.bytes += bytes.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
        Ok(())
    }

    fn report(&self) -> String {
        let Self { messages, bytes, hash } = self;
        match hash {
            None => format!("{{\"messages\": {messages}, \"bytes\": {bytes}}}"),
            Some(hash) => {
                let hash = hex(&hash.clone().finalize());
                format!("{{\"messages\": {messages}, \"bytes\": {bytes}, \"sha256\": \"{hash}\"}}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports() {
        assert_eq!(Count::default().report(), r#"{"messages": 0, "bytes": 0}"#);
        let mut count = Count::hashing();
        if let Some(hash) = &mut count.hash {
            hash.update(b"ab");
            hash.update(b"c"); // FIPS 180-2, B.1
        }
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(count.report(), format!(r#"{{"messages": 0, "bytes": 0, "sha256": "{hash}"}}"#));
    }
}
