//! The metrics of one worker.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use wirespeed_driver::endpoint::Stats;

use super::count::{Count, Histogram};
use super::snapshot::Policies;
use crate::config::Policy;
use crate::reasons::{Denied, Reason};

/// The metrics of one worker. Aligned to two cache lines, as x86 fetches two at a time.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct WorkerMetrics {
    /// Connected clients, with a session or in their handshake.
    pub(crate) connections: Count,
    pub(crate) sessions: Count,
    /// Sessions opened since the start.
    pub(crate) opened: Count,
    pub(crate) messages_received: Count,
    pub(crate) bytes_received: Count,
    pub(crate) messages_sent: Count,
    pub(crate) bytes_sent: Count,
    /// Events passed to the application.
    pub(crate) events: Count,
    /// Bytes that wait for all its sessions.
    pub(crate) outbox_bytes: Count,
    /// Memory of its sessions beside that of the messages.
    pub(crate) buffered_bytes: Count,
    /// By policy, then those of closed sessions.
    dropped: [Count; Policies::COUNT],
    failures: [Count; Reason::COUNT],
    /// Handshakes that failed because of their token, by the kind of [`Denied`].
    tokens_denied: [Count; Denied::NAMES.len()],
    pub(crate) panics: Count,
    /// Messages dropped because a client sends too many.
    pub(crate) limited: Count,
    /// Messages dropped because a client of a relay may not publish.
    pub(crate) denied: Count,
    /// How often a client was not read for a while because it sends too much.
    pub(crate) delayed: Count,
    /// The durations of turns, which are the longest that a new event waits.
    lag: Histogram,
    /// The time from publishing to the last socket of the turn.
    latency: Histogram,
    /// No client is accepted at present.
    pub(crate) closed: AtomicBool,
    /// The thread has ended.
    pub(crate) ended: AtomicBool,
    start: Instant,
    /// When the turn began, in nanoseconds since `start`, at least 1; 0 while the worker waits for its sockets.
    turn: AtomicU64,
    /// The latency of a message is being measured: the next one is not.
    timing: AtomicBool,
}

/// The state of a worker's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It waits for its sockets.
    Waits,
    /// It has a turn, for this time.
    Busy(Duration),
    Ended,
}

impl WorkerMetrics {
    pub(crate) fn new(start: Instant) -> Self {
        Self {
            connections: Count::default(),
            sessions: Count::default(),
            opened: Count::default(),
            messages_received: Count::default(),
            bytes_received: Count::default(),
            messages_sent: Count::default(),
            bytes_sent: Count::default(),
            events: Count::default(),
            outbox_bytes: Count::default(),
            buffered_bytes: Count::default(),
            dropped: Default::default(),
            failures: Default::default(),
            tokens_denied: Default::default(),
            panics: Count::default(),
            limited: Count::default(),
            denied: Count::default(),
            delayed: Count::default(),
            lag: Histogram::default(),
            latency: Histogram::default(),
            closed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            start,
            turn: AtomicU64::new(0),
            timing: AtomicBool::new(false),
        }
    }

    // ---- by its worker ----

    pub(crate) fn count_failure(&self, reason: Reason) {
        if let Some(count) = self.failures.get(reason.index()) {
            count.add(1);
        }
    }

    pub(crate) fn count_denied_token(&self, denied: &Denied) {
        if let Some(count) = self.tokens_denied.get(denied.index()) {
            count.add(1);
        }
    }

    pub(crate) fn count_dropped(&self, policy: Policy, count: u64) {
        if count > 0
            && let Some(dropped) = self.dropped.get(Policies::index(policy))
        {
            dropped.add(count);
        }
    }

    /// Counts messages that were accepted for sessions that have ended since.
    pub(crate) fn count_undelivered(&self, count: u64) {
        if count > 0 {
            self.dropped[Policies::CLOSING].add(count);
        }
    }

    /// Counts the traffic of a connection between two readings of its statistics.
    pub(crate) fn count_traffic(&self, before: &Stats, after: &Stats) {
        if after.messages_received != before.messages_received || after.bytes_received != before.bytes_received {
            self.messages_received.add(after.messages_received - before.messages_received);
            self.bytes_received.add(after.bytes_received - before.bytes_received);
        }
        if after.messages_sent != before.messages_sent || after.bytes_sent != before.bytes_sent {
            self.messages_sent.add(after.messages_sent - before.messages_sent);
            self.bytes_sent.add(after.bytes_sent - before.bytes_sent);
        }
    }

    pub(crate) fn begin_turn(&self, now: Instant) {
        let since = now.saturating_duration_since(self.start).as_nanos();
        self.turn.store(u64::try_from(since).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }

    /// Returns when the turn began, in nanoseconds since the start; 0 if there is none.
    pub(crate) fn turn(&self) -> u64 {
        self.turn.load(Ordering::Relaxed)
    }

    pub(crate) fn end_turn(&self, began: Instant, now: Instant) {
        self.lag.add(now.saturating_duration_since(began));
        self.turn.store(0, Ordering::Relaxed);
    }

    /// Records the latency of a published message, when the sockets have taken it.
    pub(crate) fn record_latency(&self, since: Duration) {
        self.latency.add(since);
        self.timing.store(false, Ordering::Relaxed);
    }

    // ---- by others ----

    /// Begins to measure the latency of a message. Returns false if a measurement is under way.
    pub(crate) fn begin_timing(&self) -> bool {
        !self.timing.load(Ordering::Relaxed) && !self.timing.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn state(&self, now: Instant) -> State {
        if self.ended.load(Ordering::Acquire) {
            return State::Ended;
        }
        match self.turn.load(Ordering::Relaxed) {
            0 => State::Waits,
            began => {
                let since = now.saturating_duration_since(self.start);
                State::Busy(since.saturating_sub(Duration::from_nanos(began)))
            }
        }
    }

    pub(crate) fn read(&self) -> super::WorkerFigures {
        super::WorkerFigures {
            connections: self.connections.value(),
            sessions: self.sessions.value(),
            sessions_opened: self.opened.value(),
            messages_received: self.messages_received.value(),
            bytes_received: self.bytes_received.value(),
            messages_sent: self.messages_sent.value(),
            bytes_sent: self.bytes_sent.value(),
            events: self.events.value(),
            outbox_bytes: self.outbox_bytes.value(),
            mailbox_bytes: 0,
            dropped: self.dropped.each_ref().map(Count::value),
            failures: self.failures.each_ref().map(Count::value),
            tokens_denied: self.tokens_denied.each_ref().map(Count::value),
            panics: self.panics.value(),
            limited: self.limited.value(),
            denied: self.denied.value(),
            delayed: self.delayed.value(),
            lag: self.lag.read(),
            latency: self.latency.read(),
        }
    }
}
