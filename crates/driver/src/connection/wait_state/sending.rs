//! Sending: room, large messages, passing bytes to a transport, flushes. [`SendQueue`](super::SendQueue) has the rest.

use std::time::Instant;

use wirespeed_protocol::{MessageKind, SendError};

use super::{Environment, WaitState};
use crate::buffer_pool;
use crate::connection::ConnectionDriver;
use crate::connection::send_queue::{Large, Output};
use crate::endpoint::LargeSend;

impl<E: Environment> WaitState<E> {
    /// Returns whether a message must wait before it can be queued. `turn`: it is this sender's turn.
    #[inline]
    pub fn must_wait(&self, turn: bool) -> bool {
        self.send_queue.must_wait(&self.driver, turn)
    }

    /// Returns whether a sender should wait until queued bytes are written.
    #[inline]
    pub fn should_wait(&self) -> bool {
        self.send_queue.should_wait(&self.driver)
    }

    /// Returns whether the write queue of a peer that does not read is above its high mark.
    #[inline]
    pub fn is_above_high(&self) -> bool {
        self.send_queue.is_above_high(&self.driver)
    }

    /// Returns whether enough was written for senders to continue.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.send_queue.has_room(&self.driver)
    }

    /// Returns whether a task waits for room and there is room.
    #[inline]
    pub fn is_room_due(&self) -> bool {
        self.send_queue.is_room_due(&self.driver)
    }

    /// Returns whether nothing is left to be written.
    #[inline]
    pub fn is_written(&self) -> bool {
        self.send_queue.is_written(&self.driver)
    }

    /// Returns whether bytes can be written now, rather than at the end of the iteration.
    #[inline]
    pub fn is_write_due(&self) -> bool {
        self.send_queue.is_write_due(&self.driver, false)
    }

    /// Returns what to do with bytes that were just queued in this iteration of the loop.
    #[inline]
    pub fn output(&mut self, iteration: u64) -> Output {
        self.send_queue.output(&self.driver, iteration)
    }

    /// Queues the header of a large message. Its `len` bytes are read from `source`, by [`Self::append_large`]. Call it
    /// only if [`Self::must_wait`] returns false.
    pub fn begin_large(&mut self, kind: MessageKind, len: usize, source: E::Source) -> Result<(), SendError> {
        let send = self.driver.send_half_mut().begin_large(kind, len)?;
        self.send_queue.large = Some(Box::new(Large { send, source, offset: 0 }));
        Ok(())
    }

    /// Continues the large message, whose whole payload is `bytes`: writes it directly with `write`, which calls
    /// [`ConnectionDriver::write_large`], or queues the next piece. Then begins a close that waited for its end.
    /// Returns whether the socket has no more room. The message ends early if the connection has failed.
    ///
    /// The source is dropped at the end, inside the caller's lock: the caller keeps a reference until later if dropping
    /// it may run other code.
    pub fn append_large(
        &mut self,
        bytes: &[u8],
        write: impl FnOnce(&mut ConnectionDriver<E::Buffer>, &mut LargeSend, &[u8]) -> Option<usize>,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        let Self { driver, send_queue, .. } = self;
        let Some(large) = &mut send_queue.large else { return false };
        if driver.is_over() || driver.send_half().failure().is_some() {
            driver.send_half_mut().abandon_large();
            send_queue.large = None;
            return false;
        }
        let rest = bytes.get(large.offset..).unwrap_or_default(); // the offset is within the message
        let written = write(driver, &mut large.send, rest);
        large.offset += written.unwrap_or_else(|| {
            let piece = rest.get(..buffer_pool::WRITE_SIZE).unwrap_or(rest);
            driver.send_half_mut().append_large(&mut large.send, piece);
            piece.len()
        });
        if driver.send_half().is_mid_frame() {
            return written.is_some() && driver.send_half().failure().is_none();
        }
        send_queue.large = None;
        send_queue.record_large_queued(driver);
        if let Some(pending) = send_queue.pending_close.take() {
            let (code, reason) = *pending;
            let _ = driver.begin_close(code, &reason, now()); // checked before
        }
        false
    }

    /// Takes the queued bytes, for an external transport to write. Call [`SendQueue::end_transport_write`] afterwards:
    /// the transport may run any code, and bytes queued meanwhile must not overtake these. Call it only if
    /// [`SendQueue::accepts_output`] returns true.
    ///
    /// [`SendQueue::accepts_output`]: super::SendQueue::accepts_output
    /// [`SendQueue::end_transport_write`]: super::SendQueue::end_transport_write
    #[must_use]
    pub fn begin_transport_write(&mut self) -> Vec<u8> {
        let output = self.driver.take_output();
        if !output.is_empty() {
            self.send_queue.begin_transport_write();
        }
        output
    }

    /// Returns once whether a listener that waits for room can send. Call it in a callback of the loop, in which the
    /// listener can be notified.
    pub fn take_writable_notice(&mut self) -> bool {
        self.send_queue.take_writable_notice(&self.driver)
    }

    /// Removes a task that no longer waits to send, to flush or for the end.
    pub fn remove_sender(&mut self, ticket: u64, waiter: &E::Waiter) {
        self.send_queue.remove_waiter(ticket, waiter);
        self.watchers.remove_end_waiter(waiter);
    }

    /// Adds a task that waits until all bytes queued now are written.
    pub fn add_flush(&mut self, waiter: E::Waiter) {
        self.send_queue.add_flush(&mut self.driver, waiter);
    }

    /// Takes the tasks whose bytes were written. After a write error it takes none: the end of the connection notifies
    /// them.
    pub fn take_flushed(&mut self) -> Vec<E::Waiter> {
        self.send_queue.take_flushed(&self.driver)
    }
}
