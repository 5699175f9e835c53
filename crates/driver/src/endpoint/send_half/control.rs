//! Control frames: those that somebody asks for, and the answers that are due.

use std::mem;
use std::time::Instant;

use wirespeed_protocol::{CloseCode, ControlPayload, PayloadBuffer, SendError};

use super::SendHalf;
use crate::entropy::draw_key;
use crate::keepalive::Traffic;

/// Above this many bytes that the peer does not take, only its last ping is answered (RFC 6455 5.5.3), so
/// that pings cannot fill our memory.
const PONG_BACKLOG: usize = 64 * 1024;

/// The answer to the last ping, while there is no place for it.
pub(super) struct DeferredPong {
    payload: ControlPayload,
    /// How many bytes are written when its place has come: those that were queued when the first ping came that it
    /// answers.
    behind: u64,
}

impl<B: PayloadBuffer> SendHalf<B> {
    /// Queues a ping.
    pub fn send_ping(&mut self, payload: &[u8]) -> Result<(), SendError> {
        self.check_frame()?;
        self.encode(|connection, out| connection.send_ping(payload, draw_key, out))
    }

    /// Queues a pong that nobody asked for.
    pub fn send_pong(&mut self, payload: &[u8]) -> Result<(), SendError> {
        self.check_frame()?;
        self.encode(|connection, out| connection.send_pong(payload, draw_key, out))
    }

    /// Queues a close frame.
    pub fn send_close(&mut self, code: Option<CloseCode>, reason: &str) -> Result<(), SendError> {
        self.check_frame()?;
        // Whoever has sent a ping may take nothing for an answer that comes behind a close frame.
        if let Some(pong) = self.deferred_pong.take() {
            self.encode_pong(&pong.payload);
        }
        self.encode(|connection, out| connection.send_close(code, reason, draw_key, out))
    }

    /// Queues a keepalive ping that is due at `now`; not now if the middle of a frame is being sent. `traffic`: what
    /// the connection has moved before it.
    pub fn send_keepalive(&mut self, now: Instant, traffic: Traffic) {
        if self.keepalive.timeout().is_none() && self.queued() > PONG_BACKLOG {
            self.keepalive.skip(now); // nobody ends the connection, and they would pile up
            return;
        }
        let payload = self.draw_ping();
        if !self.mid_frame && self.send_ping(&payload).is_ok() {
            self.keepalive.handle_own_ping_sent(&payload, now, traffic);
        }
    }

    /// The payload of a ping that can be told from those that are unanswered.
    #[must_use]
    pub fn draw_ping(&self) -> [u8; 4] {
        self.keepalive.draw(draw_key)
    }

    pub(super) fn check_frame(&self) -> Result<(), SendError> {
        if self.mid_frame { Err(SendError::MessageOpen) } else { Ok(()) }
    }

    pub(in crate::endpoint) fn queue_pong(&mut self, payload: ControlPayload) {
        if self.mid_frame || self.queued() > PONG_BACKLOG {
            // That of an earlier ping had this place already.
            let behind = self.written() + self.queued() as u64;
            let behind = self.deferred_pong.take().map_or(behind, |earlier| earlier.behind);
            self.deferred_pong = Some(Box::new(DeferredPong { payload, behind }));
        } else {
            // One that still waits is for an earlier ping, which this answers too: it must not come behind.
            self.deferred_pong = None;
            self.encode_pong(&payload);
        }
    }

    fn encode_pong(&mut self, payload: &ControlPayload) {
        // RFC 6455 5.5.2: no pong after a close frame was received; then this is refused, rightly.
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

    /// Whether the place of the pong that waits has come, however much was queued behind it. The peer takes what we
    /// send, so that its pings fill nothing, and it may take us for dead without an answer.
    pub(super) fn is_pong_due(&self) -> bool {
        let place = self.deferred_pong.as_ref().map(|pong| pong.behind);
        !self.mid_frame && place.is_some_and(|behind| self.queued() == 0 || self.written() >= behind)
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
