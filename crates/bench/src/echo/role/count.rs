//! `/sink` and `/hash`: counts and optionally hashes received messages, and reports on request.

use sha2::{Digest as _, Sha256};
use wirespeed_driver::endpoint::SendHalf;
use wirespeed_driver::protocol::{MessageKind, SendError};

use crate::hex;

/// The text message that requests a report.
const REPORT: &[u8] = b"report";

/// The counters of messages.
#[derive(Default)]
pub(crate) struct Count {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    hash: Option<Sha256>,
}

impl Count {
    /// Returns counters that also hash the payloads.
    pub(crate) fn hashing() -> Self {
        Self { hash: Some(Sha256::new()), ..Self::default() }
    }

    /// Counts a message, or answers a request for a report. Returns whether it was counted.
    pub(super) fn receive(
        &mut self,
        send_half: &mut SendHalf,
        kind: MessageKind,
        bytes: &[u8],
    ) -> Result<bool, SendError> {
        if kind == MessageKind::Text && bytes == REPORT {
            send_half.send_message(MessageKind::Text, self.report().as_bytes(), Some(false))?;
            return Ok(false);
        }
        self.add(bytes);
        Ok(true)
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.messages += 1;
        self.bytes += bytes.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
    }

    pub(super) fn report(&self) -> String {
        let Self { messages, bytes, hash } = self;
        let hash = hash.as_ref().map(|hash| format!(r#", "sha256": "{}""#, hex(&hash.clone().finalize())));
        format!(r#"{{"messages": {messages}, "bytes": {bytes}{}}}"#, hash.unwrap_or_default())
    }
}
