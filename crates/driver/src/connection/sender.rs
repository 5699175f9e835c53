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
    pub(super) send_half: &'a mut SendHalf<B>,
    /// `None` if an external transport writes, or if TCP is over.
    pub(super) socket: Option<&'a Socket>,
}

impl<B: PayloadBuffer> Sender<'_, B> {
    /// Returns the sending side, which also keeps the state of the connection.
    #[must_use]
    #[inline]
    pub fn send_half(&self) -> &SendHalf<B> {
        self.send_half
    }

    /// Returns the sending side, to queue frames.
    #[inline]
    pub fn send_half_mut(&mut self) -> &mut SendHalf<B> {
        self.send_half
    }

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
                flushed = self.write_queued().unwrap_or(Flushed::All);
            }
        }
        Ok(())
    }

    /// Writes queued bytes until the kernel has no more room: see [`ConnectionDriver::flush`].
    ///
    /// [`ConnectionDriver::flush`]: super::ConnectionDriver::flush
    #[inline]
    pub fn write_queued(&mut self) -> io::Result<Flushed> {
        let Some(socket) = self.socket else { return Ok(Flushed::All) };
        self.send_half.flush(socket, Mode::NonBlocking)
    }
}
