//! `/stamp`: echoes messages with the times at which the server received the message and sent the reply.

use rustix::time::{ClockId, clock_gettime};
use wirespeed_driver::protocol::{CloseCode, MessageKind, SendError};

use super::Sender;

/// The positions of the times in the payload, 8 bytes little-endian each. The first 8 bytes are the client's.
const TAKEN: std::ops::Range<usize> = 8..16;
const SENT: std::ops::Range<usize> = 16..24;

/// Sends a message back with the times, and flushes at once, so that the time of sending is correct.
pub(crate) fn answer(
    sender: &mut Sender<'_>,
    kind: MessageKind,
    bytes: &[u8],
    reply: &mut Vec<u8>,
) -> Result<(), SendError> {
    let taken = now();
    if kind != MessageKind::Binary || bytes.len() < SENT.end {
        let reason = "a binary message of 24 bytes or more was due";
        return sender.send_half_mut().send_close(Some(CloseCode::POLICY_VIOLATION), reason);
    }
    reply.clear();
    reply.extend_from_slice(bytes);
    reply[TAKEN].copy_from_slice(&taken.to_le_bytes());
    reply[SENT].copy_from_slice(&now().to_le_bytes());
    sender.send_half_mut().send_message(MessageKind::Binary, reply, None)?;
    let _ = sender.write_queued();
    Ok(())
}

/// Returns nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
