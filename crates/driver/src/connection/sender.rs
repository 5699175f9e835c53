//! Sends a reply while the payload of a received message still lies in the read buffer.

use std::io;

use wirespeed_protocol::{MessageKind, PayloadBuffer, SendError};

use crate::buffer_pool;
use crate::endpoint::SendHalf;
use crate::socket::{Mode, Socket};
use crate::write_queue::Flushed;

/// The sending side of a [`ConnectionDriver`](super::ConnectionDriver), borrowed.
pub struct Sender<'a, B> {
    /// Encodes messages and holds the write queue.
    pub send_half: &'a mut SendHalf<B>,
    /// `None` if an external transport writes, or if TCP is over.
    pub(super) socket: Option<&'a Socket>,
}

impl<B: PayloadBuffer> Sender<'_, B> {
    /// Queues a message, `compress` as for [`SendHalf::send_message`]. A large message is written meanwhile, as
    /// far as the kernel has room: directly from `payload` or, if it must be masked or encrypted, in pieces
    /// that stay in the CPU cache.
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
            && self.send_half.is_zero_copy()
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

    /// Writes queued bytes until the kernel has no more room. The [`SendHalf`] records an error.
    #[inline]
    pub fn flush(&mut self) -> Flushed {
        self.try_flush().unwrap_or(Flushed::All)
    }

    /// Writes queued bytes like [`Self::flush`], and also returns the error.
    #[inline]
    pub fn try_flush(&mut self) -> io::Result<Flushed> {
        let Some(socket) = self.socket else { return Ok(Flushed::All) };
        self.send_half.flush(socket, Mode::NonBlocking)
    }
}
