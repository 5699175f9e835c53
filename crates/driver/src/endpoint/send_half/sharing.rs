//! Frames that were encoded before, for this peer among others.

use std::sync::Arc;

use wirespeed_protocol::{PayloadBuffer, SendError, Side};

use super::SendHalf;
use crate::compression_pool;
use crate::encoded::FrameBatch;
use crate::frames::Frames;

/// Frames of at least this much are queued by reference: below, the copy costs less than a part of its own.
const SHARED_MIN: usize = 4 * 1024;

impl<B: PayloadBuffer> SendHalf<B> {
    /// Queues frames that were encoded before, for many times: `messages` whole messages of `bytes` payload
    /// bytes.
    pub fn send_encoded(&mut self, frames: &[u8], messages: u64, bytes: u64) -> Result<(), SendError> {
        self.check_encoded()?;
        self.encode(|_, out| out.extend_from_slice(frames));
        self.stats.messages_sent += messages;
        self.stats.bytes_sent += bytes;
        Ok(())
    }

    /// Queues the frames of one message of `bytes` payload bytes that were encoded for many peers: of
    /// servers, whose frames have no mask. `compressed`: by itself and by the parameters of this connection.
    /// Where nothing is encrypted, what is not small is not copied.
    pub fn send_shared(&mut self, frames: &Arc<Frames>, bytes: u64, compressed: bool) -> Result<(), SendError> {
        self.queue_shared(frames, 0, 1, bytes)?;
        if compressed {
            compression_pool::give(self.connection.forget_sent());
            self.limit_contexts();
        }
        Ok(())
    }

    /// Whether [`Self::send_batch`] may be called: its frames leave as they are.
    #[must_use]
    #[inline]
    pub fn accepts_batches(&self) -> bool {
        self.side() == Side::Server && self.deflate().is_none()
    }

    /// Queues the messages of a run, without the first so many.
    ///
    /// # Errors
    /// As for [`Self::send_message`].
    pub fn send_batch(&mut self, run: &FrameBatch, without: usize) -> Result<(), SendError> {
        debug_assert!(self.accepts_batches());
        let messages = run.len().saturating_sub(without) as u64;
        self.queue_shared(run.frames(), run.size_of_first(without), messages, run.payload_after(without) as u64)
    }

    /// What follows the first `from` bytes of them.
    fn queue_shared(&mut self, frames: &Arc<Frames>, from: usize, messages: u64, bytes: u64) -> Result<(), SendError> {
        let rest = frames.get(from..).unwrap_or_default();
        if self.secure.is_some() || rest.len() < SHARED_MIN || self.is_forked() {
            return self.send_encoded(rest, messages, bytes);
        }
        self.check_encoded()?;
        self.output.push_shared(Arc::clone(frames), from);
        self.stats.messages_sent += messages;
        self.stats.bytes_sent += bytes;
        Ok(())
    }

    fn check_encoded(&self) -> Result<(), SendError> {
        self.check_frame()?;
        if !self.connection.state().can_send() {
            return Err(SendError::NotOpen);
        }
        if self.connection.is_sending_fragments() { Err(SendError::MessageOpen) } else { Ok(()) }
    }
}
