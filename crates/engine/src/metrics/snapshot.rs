//! What the sheets say, at one moment.

use std::time::Duration;

use super::count::Distribution;
use super::worker_metrics::Policies;
use crate::auth::Denied;
use crate::broker::Status;
use crate::reasons::Reason;

/// Of one worker, or of all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerFigures {
    /// Clients that are connected, with a session or about to have one.
    pub connections: u64,
    /// Sessions that are open.
    pub sessions: u64,
    /// Sessions that there ever were.
    pub sessions_opened: u64,
    /// Messages that clients have sent.
    pub messages_received: u64,
    /// Bytes of their payloads.
    pub bytes_received: u64,
    /// Messages to clients: to each of them one.
    pub messages_sent: u64,
    /// Bytes of their payloads.
    pub bytes_sent: u64,
    /// What was handed to the application.
    pub events: u64,
    /// Bytes that wait because clients do not read as fast.
    pub outbox_bytes: u64,
    /// Bytes of what is sent that wait for the worker.
    pub mailbox_bytes: u64,
    /// Messages dropped, by policy, and last those of sessions that ended first: see [`Self::dropped_by_policy`].
    pub dropped: [u64; Policies::COUNT],
    /// Clients that got no session, by [`Reason`].
    pub failures: [u64; Reason::COUNT],
    /// Clients that got no session because of their token: see [`Self::tokens_denied_by_reason`].
    pub tokens_denied: [u64; Denied::NAMES.len()],
    /// Defects of ours that have ended a session.
    pub panics: u64,
    /// Messages dropped, because a client sends too many.
    pub limited: u64,
    /// Messages dropped, because a client of a relay may not publish.
    pub denied: u64,
    /// Times that a client was not read from for a while, because it sends too much.
    pub delayed: u64,
    /// How long turns take: so long whoever comes in meanwhile waits at most.
    pub lag: Distribution,
    /// From being published to the last socket of the worker's turn; of samples.
    pub latency: Distribution,
}

impl WorkerFigures {
    /// Messages dropped, with the names of the policies; `"closing"`: they were taken, and the session has ended
    /// before they left.
    pub fn dropped_by_policy(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Policies::NAMES.into_iter().zip(self.dropped)
    }

    /// Clients that got no session, with the reasons.
    pub fn failures_by_reason(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.iter().copied().zip(self.failures)
    }

    /// Clients that got no session because of their token, with the names of what was wrong with it.
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

/// Of an engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Of each worker, by its number.
    pub workers: Vec<WorkerFigures>,
    /// Events that wait to be taken.
    pub events_waiting: usize,
    /// Bytes of their messages.
    pub event_bytes_waiting: usize,
    /// How long the oldest of them has waited; 0 if none waits.
    pub oldest_event: Duration,
    /// Files of keys whose last reading has failed: see [`crate::auth::Jwt::key_file_error`].
    pub key_files_failed: usize,
    /// Requests for the metrics and the page that had no good token.
    pub operator_tokens_refused: [(&'static str, u64); 2],
    /// Messages that the application did not understand: see [`crate::Engine::refuse_message`].
    pub messages_invalid: u64,
    /// Bytes of memory of all that waits for sessions, where a message that waits for many counts once.
    pub total_outbox_bytes: usize,
    /// How it stands with the broker, if there is one.
    pub broker: Option<Status>,
}

impl Figures {
    /// Of all workers.
    #[must_use]
    pub fn total(&self) -> WorkerFigures {
        let mut total = WorkerFigures::default();
        self.workers.iter().for_each(|worker| total.add(worker));
        total
    }
}
