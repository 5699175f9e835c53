//! Sending to a session no faster than its client reads: direct writes, the outbox, stalled clients and congestion.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wirespeed_driver::connection::Progress;
use wirespeed_driver::encoded::FrameBatch;
use wirespeed_driver::protocol::CloseCode;
use wirespeed_driver::write_queue::Flushed;

use super::{Closing, Established, count};
use crate::config::{Config, Policy};
use crate::delivery::memory::Share;
use crate::delivery::{MessageBatch, Pending, Pushed, Waiting};

/// A client that has taken nothing for this time is stalled, and may hold less of the memory that all sessions share.
/// A receiver with a full window reports what was read once it is a sixteenth of its buffer plus a segment: less than
/// that in this time looks like nothing. Linux grows buffers to 6 MiB by default, and to 32 MiB on some machines;
/// segments of the loopback have 64 KiB.
const STALL: Duration = Duration::from_secs(5);

/// The interval between two attempts to write to a blocked client.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Replaces [`super::SEND_CHUNK`] for messages that are shared with other connections. Each write wakes the client
/// once more. Measured for messages of 64 KiB to 20 clients: 20 us each one by one, 15.5 us by four.
const SHARED_SEND_CHUNK: usize = 256 * 1024;

/// The kernel has no room for the session's bytes. Edges (epoll(7)) report room only once there is much, so
/// [`Established::is_stalled`] tries again before it concludes anything about the client.
#[derive(Clone, Copy)]
pub(super) struct Blocked {
    /// When the kernel was last seen to accept bytes.
    since: Instant,
    /// The last attempt.
    tried: Instant,
}

/// The result of [`Established::free_memory`].
pub(crate) struct Freed {
    pub(crate) bytes: usize,
    /// There was nothing left to free, and the session was aborted.
    pub(crate) cut: bool,
}

impl Established {
    /// Adds messages, as one batch where that is possible: see [`Self::push`].
    pub(crate) fn push_all(&mut self, batch: &MessageBatch<'_>, share: Share, config: &Config) {
        let fits = |frames: &&Arc<FrameBatch>| {
            frames.size() <= self.shared_send_chunk() && self.driver.send_half().accepts_batches()
        };
        if let Some(frames) = batch.frames.filter(fits) {
            let limit = self.limit(share);
            if self.can_send_directly() {
                let lost = self.driver.send_half_mut().send_batch(frames, 0).is_err();
                self.note_undelivered(if lost { frames.len() } else { 0 });
                return;
            }
            if !self.is_ending() && self.outbox.push_batch(frames, self.driver.send_half().queued(), limit) {
                return;
            }
        }
        for message in batch.messages {
            self.push(message, share, config);
        }
    }

    /// Adds a message. The worker has to call [`Self::write`] in this turn. `share`: of its limit, if the client is
    /// stalled.
    pub(crate) fn push(&mut self, message: &Pending, share: Share, config: &Config) {
        let limit = self.limit(share);
        if self.can_send_directly() {
            // Refused only while closing.
            let lost = message.message.send(self.driver.send_half_mut()).is_err();
            self.note_undelivered(lost.into());
            return;
        }
        if self.is_ending() {
            self.note_undelivered(1);
            return;
        }
        match self.outbox.push(
            message.clone(),
            self.driver.send_half().queued(),
            limit,
            self.session.route().settings.policy,
        ) {
            Pushed::Kept { dropped } => self.note_dropped(dropped),
            Pushed::Dropped => self.note_dropped(1),
            Pushed::Overflow => {
                self.note_dropped(1);
                self.overflow(config);
            }
        }
    }

    /// Returns the maximum number of queued bytes. To be called first: it may write, and find that the kernel has
    /// room.
    fn limit(&mut self, share: Share) -> usize {
        let own = self.session.route().settings.outbox_limit;
        let least = share.of(own);
        if least < own && self.is_stalled(Instant::now()) { least } else { own }
    }

    /// Returns whether messages go directly to the connection, which is so while the outbox is empty: see
    /// [`Self::write`]. False if the session is closing.
    fn can_send_directly(&mut self) -> bool {
        if self.blocked.is_some() || self.is_ending() {
            return false;
        }
        if self.has_full_chunk() {
            let _ = self.write(Instant::now); // if the connection is over, the next write finds that
        }
        self.blocked.is_none() && !self.is_ending()
    }

    /// Returns whether the connection has a full chunk to write.
    fn has_full_chunk(&self) -> bool {
        let send_half = self.driver.send_half();
        let queued = send_half.queued();
        queued >= self.send_chunk && (queued >= self.shared_send_chunk() || send_half.own_queued() >= self.send_chunk)
    }

    /// Returns the chunk size for shared messages. It is a part of the limit at most: the policy cannot drop or
    /// replace messages of the connection, and needs most of the limit for messages that it can.
    fn shared_send_chunk(&self) -> usize {
        SHARED_SEND_CHUNK.min(self.quarter_limit())
    }

    fn note_dropped(&mut self, messages: usize) {
        self.dropped = self.dropped.saturating_add(count(messages));
    }

    /// Closes the session, because its client is too slow.
    fn overflow(&mut self, config: &Config) {
        let cleared = self.outbox.clear();
        self.note_dropped(cleared);
        self.session.set_closed();
        // RFC 6455 11.7, 1013: "try again later". If the close frame cannot leave, the close timeout ends the session.
        let by = Instant::now().checked_add(config.close_timeout);
        self.closing = Some(Box::new(Closing { code: CloseCode::TRY_AGAIN_LATER, reason: "too slow".into(), by }));
    }

    /// Returns whether the client has taken nothing for [`STALL`]. Tries the kernel before it returns true; the caller
    /// has to check [`Self::take_wrote_early`] then.
    pub(crate) fn is_stalled(&mut self, now: Instant) -> bool {
        let stalls =
            |blocked: Option<Blocked>| blocked.filter(|blocked| now.saturating_duration_since(blocked.since) >= STALL);
        if stalls(self.blocked).is_none() {
            return false;
        }
        self.retry_write(now);
        stalls(self.blocked).is_some()
    }

    /// Tries the kernel if the last attempt was a while ago: there are no edges for little room.
    fn retry_write(&mut self, now: Instant) {
        if self.blocked.is_some_and(|blocked| now.saturating_duration_since(blocked.tried) >= RETRY_INTERVAL) {
            self.wrote_early = true;
            let _ = self.write(Instant::now); // if the connection is over, the next write finds that
        }
    }

    /// Returns whether reading has stopped because the client reads the echoes slowly: its pongs lie behind the unread
    /// bytes. A client that has taken nothing for the ping timeout counts as silent. Tries the kernel before.
    pub(super) fn is_read_slowly(&mut self, now: Instant, silence: Option<Duration>) -> bool {
        if !self.waits_to_answer() {
            return false;
        }
        let _ = self.write(Instant::now); // if the connection is over, the next write finds that
        let takes = |blocked: Blocked| silence.is_none_or(|most| now.saturating_duration_since(blocked.since) < most);
        self.blocked.is_none_or(takes)
    }

    /// Returns whether the socket was written meanwhile, and resets that. The worker then has to write, and follow up.
    pub(crate) fn take_wrote_early(&mut self) -> bool {
        std::mem::take(&mut self.wrote_early)
    }

    /// Frees this number of bytes by the session's policy, because other sessions need them. The worker has to write
    /// then. If the outbox is empty already, the connection is aborted.
    pub(crate) fn free_memory(&mut self, wanted: usize, config: &Config) -> Freed {
        let before = self.queued();
        let cut = self.outbox.is_empty();
        if cut {
            self.abort();
        } else if self.session.route().settings.policy == Policy::Disconnect && !self.is_ending() {
            self.overflow(config);
        } else {
            while before - self.queued() < wanted && self.outbox.drop_oldest() {
                self.note_dropped(1);
            }
        }
        // The bytes of the connection are freed when the client is removed, in this turn.
        Freed { bytes: if cut { before } else { before - self.queued() }, cut }
    }

    /// Notes that this number of bytes, which the session has counted as queued, arrived here: for
    /// [`Self::update_queued`].
    pub(crate) fn count_sent(&mut self, bytes: usize) {
        self.counted_bytes += bytes;
    }

    /// Updates the session's number of queued bytes. Returns whether there is capacity where there was none.
    pub(crate) fn update_queued(&mut self) -> bool {
        if self.is_ending() {
            self.session.set_closed(); // before other threads see that its bytes are gone
        }
        let left = self.queued();
        if self.given_up && left < self.quarter_limit() {
            self.given_up = false;
        }
        self.session.update_queued(std::mem::replace(&mut self.counted_bytes, left), left)
    }

    /// Returns whether this number of bytes wait, and publishers should wait for the client. The caller has to check
    /// [`Self::take_wrote_early`] then.
    pub(crate) fn is_behind(&mut self, bytes: usize, now: impl FnOnce() -> Instant) -> bool {
        if self.queued() < bytes || self.given_up {
            return false;
        }
        self.retry_write(now());
        self.queued() >= bytes
    }

    /// Makes publishers no longer wait for this session, until it has caught up.
    pub(crate) fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Returns a quarter of the session's limit: a session that was behind has caught up when fewer bytes wait.
    pub(crate) fn quarter_limit(&self) -> usize {
        self.session.high_water().div_ceil(2)
    }

    /// Returns the number of bytes that the kernel has ever taken.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.driver.send_half().written()
    }

    /// Returns whether the client has proven that it reads: since the kernel had no room for the first time, it took a
    /// quarter of the limit.
    pub(crate) fn has_proven_reading(&self) -> bool {
        self.taken_when_blocked
            .is_some_and(|taken_when_blocked| self.taken_bytes() - taken_when_blocked >= self.quarter_limit() as u64)
    }

    /// Writes queued messages until the kernel has no room, and starts or advances the closing handshake.
    pub(crate) fn write(&mut self, now: impl Fn() -> Instant) -> Progress {
        loop {
            let before = self.driver.send_half().written();
            if self.driver.is_closing() {
                let cleared = self.outbox.clear(); // nothing can follow the close frame, or an error
                self.note_undelivered(cleared);
            }
            while !self.has_full_chunk()
                && let Some(waiting) = self.outbox.pop()
            {
                let send_half = self.driver.send_half_mut();
                let sent = match &waiting {
                    Waiting::One(pending) => pending.message.send(send_half),
                    Waiting::FrameBatch(frames, without) => send_half.send_batch(frames, *without),
                };
                self.note_undelivered(if sent.is_err() { waiting.len() } else { 0 });
            }
            if self.outbox.is_empty()
                && let Some(closing) = self.closing.take()
                && !self.driver.is_closing()
            {
                let Closing { code, reason, .. } = *closing;
                if self.driver.begin_close(Some(code), &reason, now()).is_err() {
                    let _ = self.driver.begin_close(None, "", now()); // an invalid code or reason is left out
                }
            }
            let (flushed, progress) = self.driver.flush_and_advance(&now);
            let moved = self.driver.send_half().written() != before;
            if flushed == Flushed::Blocked {
                let tried = now();
                let since = self.blocked.filter(|_| !moved).map_or(tried, |blocked| blocked.since);
                self.blocked = Some(Blocked { since, tried });
                self.taken_when_blocked.get_or_insert(self.driver.send_half().written());
            } else {
                self.blocked = None;
            }
            if progress == Progress::Over {
                let cleared = self.outbox.clear();
                self.note_undelivered(cleared);
            }
            if progress == Progress::Over || self.blocked.is_some() || self.outbox.is_empty() && self.closing.is_none()
            {
                return progress;
            }
        }
    }
}
