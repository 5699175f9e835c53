//! Sends frames that were encoded before, for this peer or for many.

use std::sync::Arc;

use wirespeed_protocol::{PayloadBuffer, SendError, Side};

use super::SendHalf;
use crate::compression_pool;
use crate::encoded::FrameBatch;
use crate::frames::Frames;

/// Frames of at least this size are queued by reference; smaller ones are cheaper to copy.
const SHARED_MIN: usize = 4 * 1024;

impl<B: PayloadBuffer> SendHalf<B> {
    /// Queues frames that were encoded before, to be sent repeatedly: `messages` whole messages with `bytes`
    /// payload bytes.
    pub fn send_encoded(&mut self, frames: &[u8], messages: u64, bytes: u64) -> Result<(), SendError> {
        self.check_encoded()?;
        self.encode(|_, out| out.extend_from_slice(frames));
        self.stats.messages_sent += messages;
        self.stats.bytes_sent += bytes;
        Ok(())
    }

    /// Queues the frames of one message, with `bytes` payload bytes, that a server has encoded for many peers,
    /// without a mask. `compressed`: compressed without context and with the parameters of this connection. Unless
    /// encryption is used, large frames are not copied.
    pub fn send_shared(&mut self, frames: &Arc<Frames>, bytes: u64, compressed: bool) -> Result<(), SendError> {
        self.queue_shared(frames, 0, 1, bytes)?;
        if compressed {
            compression_pool::give(self.connection.reset_compressor());
            self.limit_contexts();
        }
        Ok(())
    }

    /// Returns whether [`Self::send_batch`] may be called: the frames need neither a mask nor compression.
    #[must_use]
    #[inline]
    pub fn accepts_batches(&self) -> bool {
        self.side() == Side::Server && self.deflate().is_none()
    }

    /// Queues the messages of a batch after the first `without` ones.
    ///
    /// # Errors
    /// As for [`Self::send_message`].
    pub fn send_batch(&mut self, run: &FrameBatch, without: usize) -> Result<(), SendError> {
        debug_assert!(self.accepts_batches());
        let messages = run.len().saturating_sub(without) as u64;
        self.queue_shared(run.frames(), run.size_of_first(without), messages, run.payload_after(without) as u64)
    }

    /// Queues the frames after their first `from` bytes.
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
