//! Sending while a received payload is still looked at, where it was read.

use std::io;

use wirespeed_protocol::{MessageKind, PayloadBuffer, SendError};

use crate::buffer_pool;
use crate::endpoint::SendHalf;
use crate::socket::{Mode, Socket};
use crate::write_queue::Flushed;

/// The sending side of a [`ConnectionDriver`](super::Drive), lent.
pub struct Sender<'a, B> {
    /// What encodes, and has what is queued.
    pub send_half: &'a mut SendHalf<B>,
    /// None: somebody else writes, or nobody any more.
    pub(super) socket: Option<&'a Socket>,
}

impl<B: PayloadBuffer> Sender<'_, B> {
    /// Queues a message, `compress` as for [`SendHalf::send_message`]. What the kernel takes of a large one leaves
    /// meanwhile: from where it lies or, if it is to be masked or encrypted, piece by piece, each while it is
    /// in the cache.
    #[inline]
    pub fn send_message(&mut self, kind: MessageKind, payload: &[u8], compress: Option<bool>) -> Result<(), SendError> {
        if self.send_half.is_large(payload.len(), compress) {
            return self.send_large(kind, payload);
        }
        self.send_half.send_message(kind, payload, compress)
    }

    fn send_large(&mut self, kind: MessageKind, payload: &[u8]) -> Result<(), SendError> {
        let mut large = self.send_half.begin_large(kind, payload.len())?;
        let mut flushed = Flushed::All;
        let mut rest = payload;
        if let Some(socket) = self.socket
            && self.send_half.is_bare()
        {
            rest = payload.get(self.send_half.write_large(&mut large, payload, socket)..).unwrap_or_default();
            flushed = Flushed::Blocked;
        }
        for piece in rest.chunks(buffer_pool::WRITE_SIZE) {
            self.send_half.append_large(&mut large, piece);
            if flushed == Flushed::All {
                flushed = self.flush();
            }
        }
        Ok(())
    }

    /// Hands the kernel what is queued, as far as it has room. An error is kept by the link.
    #[inline]
    pub fn flush(&mut self) -> Flushed {
        self.try_flush().unwrap_or(Flushed::All)
    }

    /// The same, with the error.
    #[inline]
    pub fn try_flush(&mut self) -> io::Result<Flushed> {
        let Some(socket) = self.socket else { return Ok(Flushed::All) };
        self.send_half.flush(socket, Mode::NonBlocking)
    }
}
