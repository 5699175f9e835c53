//! What a session is sent, no faster than its client takes it: what waits, who waits for it, and what becomes of one that
//! takes nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wirespeed_driver::connection::Progress;
use wirespeed_driver::encoded::FrameBatch;
use wirespeed_driver::protocol::CloseCode;
use wirespeed_driver::write_queue::Flushed;

use super::{Closing, Established, count};
use crate::config::Config;
use crate::outbox::{MessageBatch, Pending, Policy, Pushed, Waiting};
use crate::worker::Share;

/// A client that takes nothing for so long may have less of what all sessions share. Receivers whose window is full tell
/// of what was read once it is a sixteenth of their buffer, and a segment: less than that in this time looks like
/// nothing. Linux lets buffers grow to 6 MiB as it comes, to 32 MiB on some machines; segments of the loopback have
/// 64 KiB.
const STALL: Duration = Duration::from_secs(5);

/// Between two questions whether it takes something again.
const ASK: Duration = Duration::from_millis(50);

/// What [`super::AT_ONCE`] is for messages that are shared with other connections. Each write wakes its
/// client once more; measured, messages of 64 KiB to 20 clients that read them: 20 us each one by one, 15.5 by four.
const SHARED_AT_ONCE: usize = 256 * 1024;

/// That the kernel has no room for more of a session's. Edges (epoll(7)) tell of room only once there is much, so what
/// this says of the client is to be asked of [`Established::is_stalled`].
#[derive(Clone, Copy)]
pub(super) struct Blocked {
    /// When it has last taken something, as far as is known.
    since: Instant,
    /// When it was last tried.
    tried: Instant,
}

/// What a session has given back.
pub(crate) struct Gone {
    pub(crate) bytes: usize,
    /// It has no more, and was cut off.
    pub(crate) cut: bool,
}

impl Established {
    /// Adds messages, as one where that is possible: see [`Self::push`].
    pub(crate) fn push_all(&mut self, volley: &MessageBatch<'_>, share: Share, config: &Config) {
        let fits =
            |run: &&Arc<FrameBatch>| run.size() <= self.shared_at_once() && self.driver.send_half().accepts_batches();
        if let Some(run) = volley.run.filter(fits) {
            let limit = self.limit(share);
            if self.has_way() {
                let lost = self.driver.send_half_mut().send_batch(run, 0).is_err();
                self.note_undelivered(if lost { run.len() } else { 0 });
                return;
            }
            if !self.is_ending() && self.outbox.push_run(run, self.driver.send_half().queued(), limit) {
                return;
            }
        }
        for message in volley.messages {
            self.push(message, share, config);
        }
    }

    /// Adds a message: what the session is to send is to be written before the turn is over. `share`: of its limit, if
    /// its client takes nothing.
    pub(crate) fn push(&mut self, message: &Pending, share: Share, config: &Config) {
        let limit = self.limit(share);
        if self.has_way() {
            // Refused only while closing.
            let lost = message.message.send(self.driver.send_half_mut()).is_err();
            self.note_undelivered(lost.into());
            return;
        }
        if self.is_ending() {
            self.note_undelivered(1);
            return;
        }
        match self.outbox.push(message.clone(), self.driver.send_half().queued(), limit, self.session.route().policy) {
            Pushed::Kept { dropped } => self.note_dropped(dropped),
            Pushed::Dropped => self.note_dropped(1),
            Pushed::Overflow => {
                self.note_dropped(1);
                self.overflow(config);
            }
        }
    }

    /// Bytes that may wait. To be asked first of all: it may turn out that the kernel has room.
    fn limit(&mut self, share: Share) -> usize {
        let own = self.session.route().outbox_limit;
        let least = share.of(own);
        if least < own && self.is_stalled(Instant::now()) { least } else { own }
    }

    /// Whether what is sent need not wait in the outbox, where then nothing is: see [`Self::write`]. False where it is
    /// ending.
    fn has_way(&mut self) -> bool {
        if self.blocked.is_some() || self.is_ending() {
            return false;
        }
        if self.is_laden() {
            let _ = self.write(Instant::now); // that it is over is found when it is written again
        }
        self.blocked.is_none() && !self.is_ending()
    }

    /// Whether the connection has as much to write as it is handed at once.
    fn is_laden(&self) -> bool {
        let send_half = self.driver.send_half();
        let queued = send_half.queued();
        queued >= self.at_once && (queued >= self.shared_at_once() || send_half.own_queued() >= self.at_once)
    }

    /// Bytes of shared messages that are handed to the connection at once. A part of the limit at most: the policy can no
    /// longer drop or replace them, and needs most of the limit for messages that it can.
    fn shared_at_once(&self) -> usize {
        SHARED_AT_ONCE.min(self.quarter())
    }

    fn note_dropped(&mut self, messages: usize) {
        self.dropped = self.dropped.saturating_add(count(messages));
    }

    /// It is too slow, and is ended.
    fn overflow(&mut self, config: &Config) {
        let cleared = self.outbox.clear();
        self.note_dropped(cleared);
        self.session.set_closed();
        // RFC 6455 11.7, 1013: "try again later". If it cannot leave, the time for closing ends it.
        let by = Instant::now().checked_add(config.close_timeout);
        self.closing = Some(Box::new(Closing { code: CloseCode::TRY_AGAIN_LATER, reason: "too slow".into(), by }));
    }

    /// Whether its client has taken nothing for long: before that is said, the kernel is tried. [`Self::take_asked`]
    /// then.
    pub(crate) fn is_stalled(&mut self, now: Instant) -> bool {
        let stalls =
            |blocked: Option<Blocked>| blocked.filter(|blocked| now.saturating_duration_since(blocked.since) >= STALL);
        if stalls(self.blocked).is_none() {
            return false;
        }
        self.ask(now);
        stalls(self.blocked).is_some()
    }

    /// Tries the kernel, if the last time was a while ago: there are no edges for little room. [`Self::take_asked`] then.
    fn ask(&mut self, now: Instant) {
        if self.blocked.is_some_and(|blocked| now.saturating_duration_since(blocked.tried) >= ASK) {
            self.asked = true;
            let _ = self.write(Instant::now); // that it is over is found when it is written again
        }
    }

    /// Whether it is not read because its client does not read what it is answered, as fast: its pongs lie behind that.
    /// One that has taken nothing for longer than it may be silent is silent. The kernel is tried before.
    pub(super) fn is_read_slowly(&mut self, now: Instant, silence: Option<Duration>) -> bool {
        if !self.waits_to_answer() {
            return false;
        }
        let _ = self.write(Instant::now); // that it is over is found when it is written again
        let takes = |blocked: Blocked| silence.is_none_or(|most| now.saturating_duration_since(blocked.since) < most);
        self.blocked.is_none_or(takes)
    }

    /// Whether it was written meanwhile: then it is to be written again, by its worker, who settles what came of that.
    pub(crate) fn take_asked(&mut self) -> bool {
        std::mem::take(&mut self.asked)
    }

    /// Gives so many bytes back, as its policy has it, because others need them: it is to be written then. Where that
    /// was done before, and what is on its way to the kernel is all that it has, it is cut off.
    pub(crate) fn give_way(&mut self, wanted: usize, config: &Config) -> Gone {
        let before = self.queued();
        let cut = self.outbox.is_empty();
        if cut {
            self.abort();
        } else if self.session.route().policy == Policy::Disconnect && !self.is_ending() {
            self.overflow(config);
        } else {
            while before - self.queued() < wanted && self.outbox.drop_oldest() {
                self.note_dropped(1);
            }
        }
        // What is on its way is freed when it is removed, in this turn.
        Gone { bytes: if cut { before } else { before - self.queued() }, cut }
    }

    /// Of what was sent to it so many bytes have come here, for [`Self::recount`].
    pub(crate) fn count_sent(&mut self, bytes: usize) {
        self.counted += bytes;
    }

    /// Tells the session's account what waits. True: there is room where there was none.
    pub(crate) fn recount(&mut self) -> bool {
        if self.is_ending() {
            self.session.set_closed(); // before what waits is seen to be gone
        }
        let left = self.queued();
        if self.given_up && left < self.quarter() {
            self.given_up = false;
        }
        self.session.recount(std::mem::replace(&mut self.counted, left), left)
    }

    /// Whether so much waits, and publishers should wait for its client. [`Self::take_asked`] then.
    pub(crate) fn is_behind(&mut self, bytes: usize, now: impl FnOnce() -> Instant) -> bool {
        if self.queued() < bytes || self.given_up {
            return false;
        }
        self.ask(now());
        self.queued() >= bytes
    }

    /// Publishers wait for it no longer, until it has caught up.
    pub(crate) fn give_up(&mut self) {
        self.given_up = true;
    }

    /// A quarter of its limit: a session that is behind has caught up when less than that waits.
    pub(crate) fn quarter(&self) -> usize {
        self.session.high().div_ceil(2)
    }

    /// Bytes that the kernel has taken for it, ever.
    pub(crate) fn taken(&self) -> u64 {
        self.driver.send_half().written()
    }

    /// Whether it has shown that its client reads: since its kernel had no room for the first time, the client has made
    /// room for a quarter of its limit.
    pub(crate) fn reads(&self) -> bool {
        self.filled.is_some_and(|filled| self.taken() - filled >= self.quarter() as u64)
    }

    /// Hands the kernel what waits, as far as it has room, and makes the steps of an ending.
    pub(crate) fn write(&mut self, now: impl Fn() -> Instant) -> Progress {
        loop {
            let before = self.driver.send_half().written();
            if self.driver.is_closing() {
                let cleared = self.outbox.clear(); // nothing can follow the close frame, or an error
                self.note_undelivered(cleared);
            }
            while !self.is_laden()
                && let Some(waiting) = self.outbox.pop()
            {
                let send_half = self.driver.send_half_mut();
                let sent = match &waiting {
                    Waiting::One(pending) => pending.message.send(send_half),
                    Waiting::FrameBatch(run, without) => send_half.send_batch(run, *without),
                };
                self.note_undelivered(if sent.is_err() { waiting.len() } else { 0 });
            }
            if self.outbox.is_empty()
                && let Some(closing) = self.closing.take()
                && !self.driver.is_closing()
            {
                let Closing { code, reason, .. } = *closing;
                if self.driver.begin_close(Some(code), &reason, now()).is_err() {
                    let _ = self.driver.begin_close(None, "", now()); // what cannot be said is left out
                }
            }
            let (flushed, progress) = self.driver.flush_and_advance(&now);
            let moved = self.driver.send_half().written() != before;
            if flushed == Flushed::Blocked {
                let tried = now();
                let since = self.blocked.filter(|_| !moved).map_or(tried, |blocked| blocked.since);
                self.blocked = Some(Blocked { since, tried });
                self.filled.get_or_insert(self.driver.send_half().written());
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
