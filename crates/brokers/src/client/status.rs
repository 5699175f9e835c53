//! The state of the connection to a broker: notices for the application, and log records when trouble begins and ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use wirespeed_engine::broker::{Notice, State};
use wirespeed_engine::lock as locked;
use wirespeed_engine::logs::{Cause, Logs, Trouble};

use super::{Notices, Shared};
use crate::address::Kind;

/// The most notices that wait for the application.
const NOTICES: usize = 256;

/// After this time without a refusal, the log says that messages are taken again, and the next message that is taken clears
/// the reason in the status.
const TAKING: Duration = Duration::from_secs(5);

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
            if let Some(since) = notices.away.take() {
                let seconds = since.elapsed().as_secs_f64();
                self.log(Trouble::Back, || format!("connected, after {seconds:.1} s"));
            }
        }
        self.notify(Notice::Connected);
        self.connected.send_replace(true);
    }

    /// There is no connection. Told once; the reason that is shown is the last one.
    pub(crate) fn set_disconnected(&self, reason: &str) {
        let reason = self.address.redact(reason);
        let before = {
            let mut notices = locked(&self.notices);
            notices.reason = Some(reason.clone());
            (notices.refusal, notices.denial) = (None, None);
            self.set_away(&mut notices, &reason);
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

    /// Why something does not work: why there is no connection, or what it was refused.
    pub(crate) fn set_reason(&self, reason: &str) {
        let mut notices = locked(&self.notices);
        let reason = self.address.redact(reason);
        if notices.state == State::Connected {
            notices.refusal = Some((reason, Instant::now()));
            return;
        }
        self.set_away(&mut notices, &reason);
        notices.reason = Some(reason);
    }

    /// The broker has taken a message: what it refused before no longer holds, unless it refused something just now.
    pub(super) fn forget_refusal(&self) {
        locked(&self.notices).refusal.take_if(|(_, at)| at.elapsed() >= TAKING);
    }

    /// Logs the beginning of an outage.
    fn set_away(&self, notices: &mut Notices, reason: &str) {
        if notices.away.is_none() {
            notices.away = Some(Instant::now());
            self.log(Trouble::Away, || format!("no connection, which is tried again: {reason}"));
        }
    }

    /// How many messages were refused or dropped so far.
    fn turned_away(&self) -> u64 {
        self.refused.load(Ordering::Relaxed) + self.dropped.load(Ordering::Relaxed)
    }

    /// Logs when refusals of messages begin, with the cause, and when they end.
    pub(super) async fn log_refusals(&self) {
        let mut told = 0;
        loop {
            self.refusing.notified().await;
            let mut count = self.turned_away();
            if count == told {
                continue; // the last record counts it
            }
            let why = self.why_refusing();
            self.log(Trouble::Refusing, || format!("messages do not reach other engines: {why}"));
            loop {
                tokio::time::sleep(TAKING).await;
                let before = std::mem::replace(&mut count, self.turned_away());
                if before == count {
                    break;
                }
            }
            let lost = count - std::mem::replace(&mut told, count);
            self.log(Trouble::Taking, || {
                format!("messages are taken again; {lost} were refused or dropped, and do not reach other engines")
            });
        }
    }

    fn why_refusing(&self) -> String {
        let limit = self.queue.look(|queue| queue.is_filling().then(|| queue.limit()));
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

    /// Logs a text, which must not contain credentials. Patterns of clients and answers of brokers are part of it, so control
    /// characters, which could forge lines, are replaced.
    fn log(&self, trouble: Trouble, text: impl FnOnce() -> String) {
        let line = || format!("broker {}: {}", self.address, text()).replace(char::is_control, " ");
        self.logs.note(Cause::Broker(trouble), Instant::now(), line);
    }

    pub(crate) fn logs(&self) -> &Arc<Logs> {
        &self.logs
    }

    pub(crate) fn notify(&self, notice: Notice) {
        match &notice {
            Notice::Lost(count) => {
                self.log(Trouble::Missing, || format!("{count} messages of other engines or publishers did not come"))
            }
            Notice::Unconfirmed(count) => self.log(Trouble::Missing, || {
                let why = match self.address.kind {
                    Kind::Nats => "the connection ended, or NATS denied one of them",
                    _ => "the connection ended",
                };
                format!("{count} messages may not have reached it: {why}")
            }),
            Notice::Unsupported(pattern) => self.log(Trouble::Denied, || {
                format!("it has no wildcards: sessions that subscribe to {pattern} get nothing of other engines")
            }),
            Notice::Denied { pattern, reason } => self.log(Trouble::Denied, || {
                format!("it denies the subscription to {pattern}, which is tried again: {reason}")
            }),
            // `set_away` and `log_refusals` log the others when they begin and when they end.
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
                if notices.waiting.len() >= NOTICES {
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
