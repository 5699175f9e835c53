//! A snapshot of all metrics.

use std::time::Duration;

use super::count::Distribution;
use crate::broker::Status;
use crate::config::Policy;
use crate::reasons::{Denied, Reason};

/// The labels and indices of policies.
pub(crate) struct Policies;

impl Policies {
    pub(crate) const COUNT: usize = 5;
    /// The last is no policy: messages of sessions that ended before these left.
    pub(crate) const NAMES: [&str; Self::COUNT] = ["disconnect", "drop_oldest", "drop_newest", "conflate", "closing"];
    pub(super) const CLOSING: usize = 4;

    pub(super) const fn index(policy: Policy) -> usize {
        match policy {
            Policy::Disconnect => 0,
            Policy::DropOldest => 1,
            Policy::DropNewest => 2,
            Policy::Conflate => 3,
        }
    }
}

/// The figures of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionFigures {
    /// Messages from the client.
    pub messages_received: u64,
    /// Bytes of their payloads.
    pub bytes_received: u64,
    /// Messages to the client that were handed to its connection.
    pub messages_sent: u64,
    /// Bytes of their payloads.
    pub bytes_sent: u64,
    /// Messages dropped because the client reads too slowly.
    pub messages_dropped: u64,
    /// Messages dropped because the client sends too many.
    pub messages_limited: u64,
    /// Messages of a relay's client dropped because it may not publish.
    pub messages_denied: u64,
    /// Bytes that wait for the client.
    pub queued_bytes: usize,
    /// The number of topics, and patterns of topics, that it subscribes to.
    pub subscriptions: usize,
    /// How long it is open, or was.
    pub open: Duration,
}

/// The metrics of one worker, or their sum over all workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerFigures {
    /// Connected clients, with a session or in their handshake.
    pub connections: u64,
    /// Open sessions.
    pub sessions: u64,
    /// Sessions opened since the start.
    pub sessions_opened: u64,
    /// Messages received from clients.
    pub messages_received: u64,
    /// Bytes of their payloads.
    pub bytes_received: u64,
    /// Messages sent to clients; a published message counts once for each.
    pub messages_sent: u64,
    /// Bytes of their payloads.
    pub bytes_sent: u64,
    /// Events passed to the application.
    pub events: u64,
    /// Bytes that wait because clients read slowly.
    pub outbox_bytes: u64,
    /// Bytes of messages that wait for the worker.
    pub mailbox_bytes: u64,
    /// Dropped messages by policy, and those of closed sessions: see [`Self::dropped_by_policy`].
    pub dropped: [u64; Policies::COUNT],
    /// Failed handshakes, by [`Reason`].
    pub failures: [u64; Reason::COUNT],
    /// Handshakes that failed because of their token: see [`Self::tokens_denied_by_reason`].
    pub tokens_denied: [u64; Denied::NAMES.len()],
    /// Panics of the engine that have ended a session.
    pub panics: u64,
    /// Messages dropped because a client sends too many.
    pub limited: u64,
    /// Messages dropped because a client of a relay may not publish.
    pub denied: u64,
    /// How often a client was not read for a while because it sends too much.
    pub delayed: u64,
    /// The durations of turns, which are the longest that a new event waits.
    pub lag: Distribution,
    /// The time from publishing to the last socket of the worker's turn, for samples.
    pub latency: Distribution,
}

impl WorkerFigures {
    /// Iterates over the dropped messages, with the names of the policies. `"closing"`: the session ended before
    /// accepted messages left.
    pub fn dropped_by_policy(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Policies::NAMES.into_iter().zip(self.dropped)
    }

    /// Iterates over the failed handshakes, with their reasons.
    pub fn failures_by_reason(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.iter().copied().zip(self.failures)
    }

    /// Iterates over the handshakes that failed because of their token, with the names of the errors.
    pub fn tokens_denied_by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Denied::NAMES.into_iter().zip(self.tokens_denied)
    }

    fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.connections, other.connections),
            (&mut self.sessions, other.sessions),
            (&mut self.sessions_opened, other.sessions_opened),
            (&mut self.messages_received, other.messages_received),
            (&mut self.bytes_received, other.bytes_received),
            (&mut self.messages_sent, other.messages_sent),
            (&mut self.bytes_sent, other.bytes_sent),
            (&mut self.events, other.events),
            (&mut self.outbox_bytes, other.outbox_bytes),
            (&mut self.mailbox_bytes, other.mailbox_bytes),
            (&mut self.panics, other.panics),
            (&mut self.limited, other.limited),
            (&mut self.denied, other.denied),
            (&mut self.delayed, other.delayed),
        ];
        for (sum, more) in pairs {
            *sum += more;
        }
        for (sum, more) in self.dropped.iter_mut().zip(other.dropped) {
            *sum += more;
        }
        for (sum, more) in self.failures.iter_mut().zip(other.failures) {
            *sum += more;
        }
        for (sum, more) in self.tokens_denied.iter_mut().zip(other.tokens_denied) {
            *sum += more;
        }
        self.lag.add(&other.lag);
        self.latency.add(&other.latency);
    }
}

/// The metrics of an engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The metrics of each worker, by its number.
    pub workers: Vec<WorkerFigures>,
    /// Events that the application has not taken.
    pub events_waiting: usize,
    /// The bytes of their payloads.
    pub event_bytes_waiting: usize,
    /// How long the oldest of them has waited; 0 if none waits.
    pub oldest_event: Duration,
    /// Key files that could not be read at the last attempt: see [`crate::auth::Jwt::key_file_error`].
    pub key_files_failed: usize,
    /// Requests for the metrics and the page without a valid token.
    pub operator_tokens_refused: [(&'static str, u64); 2],
    /// Messages that the application did not understand: see [`crate::Engine::refuse_message`].
    pub messages_invalid: u64,
    /// The memory, in bytes, of everything that waits for sessions. A message that waits for several counts once.
    pub total_outbox_bytes: usize,
    /// The state of the broker, if there is one.
    pub broker: Option<Status>,
}

impl Figures {
    /// Returns the sum over all workers.
    #[must_use]
    pub fn total(&self) -> WorkerFigures {
        let mut total = WorkerFigures::default();
        self.workers.iter().for_each(|worker| total.add(worker));
        total
    }
}
