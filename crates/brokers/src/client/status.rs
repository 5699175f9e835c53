//! The state of the connection: notices for the application, and log records when an outage begins and ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use wirespeed_engine::broker::{Notice, State};
use wirespeed_engine::lock as locked;
use wirespeed_engine::logs::{BrokerEvent, Cause, Logs};

use super::{Notices, Shared};
use crate::address::Kind;

/// The maximum number of notices kept for the application.
const MAX_NOTICES: usize = 256;

/// After this time without a refusal, the log reports recovery, and the next accepted message clears the reason in the
/// status.
const RECOVERY_PERIOD: Duration = Duration::from_secs(5);

impl Shared {
    pub(crate) fn set_connected(&self) {
        {
            let mut notices = locked(&self.notices);
            if notices.state == State::Connected {
                return;
            }
            notices.state = State::Connected;
            notices.reason = None;
            if std::mem::replace(&mut notices.connected_before, true) {
                notices.reconnects += 1;
            }
            if let Some(since) = notices.outage_since.take() {
                let seconds = since.elapsed().as_secs_f64();
                self.log(BrokerEvent::Connected, || format!("connected, after {seconds:.1} s"));
            }
        }
        self.notify(Notice::Connected);
        self.connected.send_replace(true);
    }

    /// Records that there is no connection. Notifies the application once; the status shows the latest reason.
    pub(crate) fn set_disconnected(&self, reason: &str) {
        let reason = self.address.redact(reason);
        let before = {
            let mut notices = locked(&self.notices);
            notices.reason = Some(reason.clone());
            (notices.refusal, notices.denial) = (None, None);
            self.begin_outage(&mut notices, &reason);
            let before = notices.state;
            if before == State::Connected {
                notices.state = State::Disconnected;
            }
            before
        };
        self.connected.send_replace(false);
        if before == State::Connected {
            self.notify_capacity();
            self.notify(Notice::Disconnected { reason });
        }
    }

    /// Records why there is no connection or, while there is one, why a message was refused.
    pub(crate) fn set_reason(&self, reason: &str) {
        let mut notices = locked(&self.notices);
        let reason = self.address.redact(reason);
        if notices.state == State::Connected {
            notices.refusal = Some((reason, Instant::now()));
            return;
        }
        self.begin_outage(&mut notices, &reason);
        notices.reason = Some(reason);
    }

    /// Clears the last refusal after the broker accepted a message, unless the refusal is recent.
    pub(super) fn forget_refusal(&self) {
        locked(&self.notices).refusal.take_if(|(_, at)| at.elapsed() >= RECOVERY_PERIOD);
    }

    /// Logs the start of an outage, once.
    fn begin_outage(&self, notices: &mut Notices, reason: &str) {
        if notices.outage_since.is_none() {
            notices.outage_since = Some(Instant::now());
            self.log(BrokerEvent::Disconnected, || format!("no connection, which is tried again: {reason}"));
        }
    }

    /// Returns the number of messages refused or dropped so far.
    fn refused_or_dropped(&self) -> u64 {
        self.refused.load(Ordering::Relaxed) + self.dropped.load(Ordering::Relaxed)
    }

    /// Logs when refusals of messages begin, with the cause, and when they end.
    pub(super) async fn log_refusals(&self) {
        let mut logged = 0;
        loop {
            self.message_refused.notified().await;
            let mut count = self.refused_or_dropped();
            if count == logged {
                continue; // the last record already counts it
            }
            let why = self.refusal_reason();
            self.log(BrokerEvent::Refusing, || format!("messages do not reach other engines: {why}"));
            loop {
                tokio::time::sleep(RECOVERY_PERIOD).await;
                let before = std::mem::replace(&mut count, self.refused_or_dropped());
                if before == count {
                    break;
                }
            }
            let lost = count - std::mem::replace(&mut logged, count);
            self.log(BrokerEvent::Accepting, || {
                format!("messages are taken again; {lost} were refused or dropped, and do not reach other engines")
            });
        }
    }

    fn refusal_reason(&self) -> String {
        let limit = self.queue.inspect(|queue| queue.is_filling().then(|| queue.limit()));
        let notices = locked(&self.notices);
        match (limit, notices.state, &notices.refusal) {
            (Some(limit), State::Connected, _) => {
                format!("more is published than it takes, and {limit} bytes may wait (broker_limit)")
            }
            (Some(limit), ..) => format!("there is no connection, and {limit} bytes may wait (broker_limit)"),
            (None, _, Some((refusal, _))) => refusal.clone(),
            (None, ..) => "it has refused them".to_owned(),
        }
    }

    /// Logs a text, which must not contain credentials. The text includes patterns from clients and answers from
    /// brokers, so control characters, which could forge lines, are replaced.
    fn log(&self, event: BrokerEvent, text: impl FnOnce() -> String) {
        let line = || format!("broker {}: {}", self.address, text()).replace(char::is_control, " ");
        self.logs.note(Cause::Broker(event), Instant::now(), line);
    }

    pub(crate) fn logs(&self) -> &Arc<Logs> {
        &self.logs
    }

    pub(crate) fn notify(&self, notice: Notice) {
        match &notice {
            Notice::Lost(count) => self.log(BrokerEvent::MessagesLost, || {
                format!("{count} messages of other engines or publishers did not come")
            }),
            Notice::Unconfirmed(count) => self.log(BrokerEvent::MessagesLost, || {
                let why = match self.address.kind {
                    Kind::Nats => "the connection ended, or NATS denied one of them",
                    _ => "the connection ended",
                };
                format!("{count} messages may not have reached it: {why}")
            }),
            Notice::Unsupported(pattern) => self.log(BrokerEvent::Denied, || {
                format!("it has no wildcards: sessions that subscribe to {pattern} get nothing of other engines")
            }),
            Notice::Denied { pattern, reason } => self.log(BrokerEvent::Denied, || {
                format!("it denies the subscription to {pattern}, which is tried again: {reason}")
            }),
            // `begin_outage` and `log_refusals` log the start and the end of the others.
            _ => {}
        }
        let mut notices = locked(&self.notices);
        wirespeed_engine::driver::protocol::failpoint::hit("brokers.notice");
        let first = notices.waiting.is_empty();
        match (notices.waiting.back_mut(), &notice) {
            (Some(Notice::Lost(count)), Notice::Lost(more))
            | (Some(Notice::Refused(count)), Notice::Refused(more))
            | (Some(Notice::Dropped(count)), Notice::Dropped(more))
            | (Some(Notice::Unconfirmed(count)), Notice::Unconfirmed(more)) => *count += more,
            _ => {
                if notices.waiting.len() >= MAX_NOTICES {
                    notices.waiting.pop_front();
                }
                notices.waiting.push_back(notice);
            }
        }
        drop(notices);
        let sink = if first { locked(&self.sink).clone() } else { None };
        if let Some(sink) = sink {
            sink.noticed();
        }
    }
}
