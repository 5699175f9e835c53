//! Control frames: those of the application, and automatic replies.

use std::mem;
use std::time::Instant;

use wirespeed_protocol::{CloseCode, ControlPayload, PayloadBuffer, SendError};

use super::SendHalf;
use crate::entropy::draw_key;
use crate::keepalive::Traffic;

/// While more bytes than this are queued, only the last ping is answered (RFC 6455 5.5.3), so that pings cannot
/// fill our memory.
const PONG_BACKLOG: usize = 64 * 1024;

/// The reply to the last ping, while it cannot be queued.
pub(super) struct DeferredPong {
    payload: ControlPayload,
    /// The count of written bytes at which it is queued: everything written or queued when the first ping arrived
    /// that it answers.
    at_written: u64,
}

impl<B: PayloadBuffer> SendHalf<B> {
    /// Queues a ping without waiting for its pong.
    pub fn send_ping(&mut self, payload: &[u8]) -> Result<(), SendError> {
        self.check_frame()?;
        self.encode(|connection, out| connection.send_ping(payload, draw_key, out))
    }

    /// Queues a ping of the application and returns its number, which [`Endpoint::take_answered_pings`] reports
    /// when the pong arrives. Its payload must differ from those of unanswered pings.
    ///
    /// [`Endpoint::take_answered_pings`]: crate::endpoint::Endpoint::take_answered_pings
    pub fn send_numbered_ping(&mut self, payload: &[u8], now: Instant) -> Result<u64, SendError> {
        self.send_ping(payload)?;
        Ok(self.keepalive.handle_ping_sent(payload, now))
    }

    /// Queues an unsolicited pong.
    pub fn send_pong(&mut self, payload: &[u8]) -> Result<(), SendError> {
        self.check_frame()?;
        self.encode(|connection, out| connection.send_pong(payload, draw_key, out))
    }

    /// Queues a close frame.
    pub fn send_close(&mut self, code: Option<CloseCode>, reason: &str) -> Result<(), SendError> {
        self.check_frame()?;
        // A peer may ignore the reply to its ping when it comes after a close frame.
        if let Some(pong) = self.deferred_pong.take() {
            self.encode_pong(&pong.payload);
        }
        self.encode(|connection, out| connection.send_close(code, reason, draw_key, out))
    }

    /// Queues a keepalive ping that is due at `now`, unless a large frame is incomplete. `traffic`: the bytes that
    /// the connection has moved before.
    pub fn send_keepalive(&mut self, now: Instant, traffic: Traffic) {
        if self.keepalive.timeout().is_none() && self.queued() > PONG_BACKLOG {
            self.keepalive.skip(now); // no timeout ends this connection, and pings would pile up
            return;
        }
        let payload = self.draw_ping();
        if !self.mid_frame && self.send_ping(&payload).is_ok() {
            self.keepalive.handle_own_ping_sent(&payload, now, traffic);
        }
    }

    /// Returns a ping payload that differs from those of unanswered pings.
    #[must_use]
    pub fn draw_ping(&self) -> [u8; 4] {
        self.keepalive.draw(draw_key)
    }

    pub(super) fn check_frame(&self) -> Result<(), SendError> {
        if self.mid_frame { Err(SendError::MessageOpen) } else { Ok(()) }
    }

    pub(in crate::endpoint) fn queue_pong(&mut self, payload: ControlPayload) {
        if self.mid_frame || self.queued() > PONG_BACKLOG {
            // An earlier waiting pong has this place already.
            let at_written = self.written() + self.queued() as u64;
            let at_written = self.deferred_pong.take().map_or(at_written, |earlier| earlier.at_written);
            self.deferred_pong = Some(Box::new(DeferredPong { payload, at_written }));
        } else {
            // A waiting pong is for an earlier ping, which this pong answers too: it must not come after.
            self.deferred_pong = None;
            self.encode_pong(&payload);
        }
    }

    fn encode_pong(&mut self, payload: &ControlPayload) {
        // RFC 6455 5.5.2: no pong is sent after a close frame was received, so the error is ignored.
        let _ = self.encode(|connection, out| connection.send_pong(payload.as_slice(), draw_key, out));
    }

    pub(in crate::endpoint) fn queue_close(&mut self) {
        if self.mid_frame {
            self.deferred_close = true;
            return;
        }
        self.encode(|connection, out| {
            connection.send_close_reply(draw_key, out);
            connection.send_fault(draw_key, out);
        });
    }

    /// Returns whether the waiting pong must be queued, regardless of later queued bytes. The peer reads, so its
    /// pings cannot fill our memory, and without an answer it may consider the connection dead.
    pub(super) fn is_pong_due(&self) -> bool {
        let place = self.deferred_pong.as_ref().map(|pong| pong.at_written);
        !self.mid_frame && place.is_some_and(|at_written| self.queued() == 0 || self.written() >= at_written)
    }

    pub(super) fn send_deferred(&mut self) {
        if (self.is_pong_due() || self.queued() <= PONG_BACKLOG)
            && let Some(pong) = self.deferred_pong.take()
        {
            self.encode_pong(&pong.payload);
        }
        if mem::take(&mut self.deferred_close) {
            self.queue_close();
        }
    }
}
