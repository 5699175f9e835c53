//! What those who run an engine should hear of: one record for each cause and interval, with how many were left
//! out.
//!
//! Workers put records into a queue that is bounded, and never wait for whoever takes them. Nothing in a record
//! is secret: neither paths nor queries, header fields nor messages.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::auth::Denied;
use crate::locks::lock;
use crate::mailbox::Wake;
use crate::reasons::Reason;

/// Records that may wait to be taken; what is more is counted.
const MOST: usize = 256;

/// Between two records of one cause.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// How much a record matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// What everybody meets who can be reached.
    Debug,
    /// What clients do wrong.
    Info,
    /// What limits have led to.
    Warning,
    /// What somebody should look after.
    Error,
}

/// What a record is about: those of one cause are limited together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// A client got no session.
    Handshake(Reason),
    /// A client does not read as fast as it is sent.
    SlowConsumer,
    /// A client has sent what the application does not understand.
    Invalid,
    /// Events find no room: the application does not take them as fast as they come.
    EventsFull,
    /// Nobody can be accepted for a moment.
    AcceptPause,
    /// A defect of ours has ended a session.
    Panic,
    /// A certificate was read again, or could not be.
    Certificate,
    /// The listeners were handed over.
    Handoff,
    /// A client has no good token, by the [place](Denied::index) of the reason: a flood of one kind does not hide others.
    Token(usize),
    /// A file of keys could not be read again.
    KeyFile,
    /// It was.
    KeyFileRead,
    /// Another engine was to take over, and could not.
    HandoffFailed,
    /// A worker serves no more.
    WorkerEnded,
    /// A request for the metrics or the page had a wrong token.
    OperatorToken,
    /// It had none.
    OperatorTokenMissing,
    /// The application has taken no events for some time.
    EventsLate,
    /// Something about the broker.
    Broker(Trouble),
}

/// What is wrong with a broker, or right again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// There is no connection to it.
    Away,
    /// There is one again.
    Back,
    /// Messages of this engine are not taken.
    Refusing,
    /// They are taken again.
    Taking,
    /// A subscription is denied, or the broker has no such thing.
    Denied,
    /// Of messages of this engine it is not known whether the broker has them, or messages of others did not come.
    Missing,
}

impl Trouble {
    const COUNT: usize = 6;

    const fn level(self) -> Level {
        match self {
            Self::Away | Self::Refusing | Self::Denied | Self::Missing => Level::Warning,
            Self::Back | Self::Taking => Level::Info,
        }
    }
}

impl Cause {
    const COUNT: usize = Reason::COUNT + 14 + Denied::NAMES.len() + Trouble::COUNT;

    const fn index(self) -> usize {
        match self {
            Self::Handshake(reason) => reason.index(),
            Self::SlowConsumer => Reason::COUNT,
            Self::EventsFull => Reason::COUNT + 1,
            Self::AcceptPause => Reason::COUNT + 2,
            Self::Panic => Reason::COUNT + 3,
            Self::Certificate => Reason::COUNT + 4,
            Self::Handoff => Reason::COUNT + 5,
            Self::Invalid => Reason::COUNT + 6,
            Self::KeyFile => Reason::COUNT + 7,
            Self::OperatorToken => Reason::COUNT + 8,
            Self::EventsLate => Reason::COUNT + 9,
            Self::KeyFileRead => Reason::COUNT + 10,
            Self::HandoffFailed => Reason::COUNT + 11,
            Self::WorkerEnded => Reason::COUNT + 12,
            Self::OperatorTokenMissing => Reason::COUNT + 13,
            Self::Token(kind) => Reason::COUNT + 14 + kind,
            Self::Broker(trouble) => Reason::COUNT + 14 + Denied::NAMES.len() + trouble as usize,
        }
    }

    const fn level(self) -> Level {
        match self {
            Self::Handshake(
                Reason::Timeout | Reason::Tls | Reason::Malformed | Reason::NotWebSocket | Reason::Reset,
            ) => Level::Debug,
            Self::Handshake(Reason::Full | Reason::RateLimited)
            | Self::SlowConsumer
            | Self::EventsFull
            | Self::OperatorToken
            | Self::HandoffFailed => Level::Warning,
            Self::Broker(trouble) => trouble.level(),
            Self::Handshake(Reason::Panic)
            | Self::AcceptPause
            | Self::Panic
            | Self::EventsLate
            | Self::KeyFile
            | Self::WorkerEnded => Level::Error,
            Self::Handshake(_)
            | Self::Certificate
            | Self::Handoff
            | Self::Invalid
            | Self::Token(_)
            | Self::OperatorTokenMissing
            | Self::KeyFileRead => Level::Info,
        }
    }
}

/// One thing that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// How much it matters.
    pub level: Level,
    /// What it says.
    pub text: String,
    /// Others of the same cause since the one before, that were not told.
    pub left_out: u64,
}

#[derive(Default)]
struct Slot {
    /// When the last one was told, in nanoseconds since the start; 0: none was.
    told: AtomicU64,
    left_out: AtomicU64,
    /// What the last one said that was told.
    text: Mutex<Option<(Level, String)>>,
}

#[derive(Default)]
enum Notify {
    #[default]
    Nobody,
    Whom(Arc<dyn Wake>),
    /// The engine has ended.
    Ended,
}

/// See the module.
pub struct Logs {
    start: Instant,
    interval: Duration,
    slots: [Slot; Cause::COUNT],
    queue: Mutex<VecDeque<Record>>,
    /// Records that found no room.
    lost: AtomicU64,
    notify: Mutex<Notify>,
}

impl std::fmt::Debug for Logs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logs").field("waiting", &lock(&self.queue).len()).finish_non_exhaustive()
    }
}

impl Logs {
    /// With `interval` between two records of one cause.
    #[must_use]
    pub fn new(start: Instant, interval: Duration) -> Self {
        Self {
            start,
            interval,
            slots: std::array::from_fn(|_| Slot::default()),
            queue: Mutex::default(),
            lost: AtomicU64::new(0),
            notify: Mutex::default(),
        }
    }

    /// Notes that something has happened; `text` is called if it is to be told.
    pub fn note(&self, cause: Cause, now: Instant, text: impl FnOnce() -> String) {
        self.note_as(cause, cause.level(), now, text);
    }

    /// The same, with another level than the cause has.
    pub fn note_as(&self, cause: Cause, level: Level, now: Instant, text: impl FnOnce() -> String) {
        let Some(slot) = self.slots.get(cause.index()) else { return };
        let now = nanoseconds(now.saturating_duration_since(self.start)).max(1);
        let told = slot.told.load(Ordering::Relaxed);
        let recent = told != 0 && now.saturating_sub(told) < nanoseconds(self.interval);
        if recent || slot.told.compare_exchange(told, now, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            // Whoever takes records has to look later, by himself.
            if slot.left_out.fetch_add(1, Ordering::Relaxed) == 0 {
                self.wake();
            }
            return;
        }
        let text = text();
        *lock(&slot.text) = Some((level, text.clone()));
        self.put(Record { level, text, left_out: slot.left_out.swap(0, Ordering::Relaxed) });
    }

    fn put(&self, record: Record) {
        let mut queue = lock(&self.queue);
        wirespeed_driver::protocol::failpoint::hit("engine.log");
        if queue.len() >= MOST {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.push_back(record);
        let first = queue.len() == 1;
        drop(queue);
        if first {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Notify::Whom(notify) = &*lock(&self.notify) {
            notify.wake();
        }
    }

    /// Takes what there is, and of causes that went on after they were told how often, once their interval is
    /// over.
    pub fn take(&self, now: Instant) -> Vec<Record> {
        let mut records: Vec<_> = std::mem::take(&mut *lock(&self.queue)).into();
        let now = nanoseconds(now.saturating_duration_since(self.start)).max(1);
        for slot in &self.slots {
            let told = slot.told.load(Ordering::Relaxed);
            if told != 0
                && now.saturating_sub(told) >= nanoseconds(self.interval)
                && slot.left_out.load(Ordering::Relaxed) > 0
                && slot.told.compare_exchange(told, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                let left_out = slot.left_out.swap(0, Ordering::Relaxed);
                if let Some((level, text)) = &*lock(&slot.text) {
                    records.push(Record { level: *level, text: text.clone(), left_out });
                }
            }
        }
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let text = format!("{lost} records were lost: they were not taken as fast as they came");
            records.push(Record { level: Level::Warning, text, left_out: 0 });
        }
        records
    }

    /// Whether there is, or will be, something to take that nobody is woken for.
    #[must_use]
    pub fn has_left_out(&self) -> bool {
        self.slots.iter().any(|slot| slot.left_out.load(Ordering::Relaxed) > 0)
    }

    /// Has somebody woken when there is something after there was nothing, or when [`Self::has_left_out`] is true after
    /// it was not, until the end: then it is dropped, also if that was before.
    pub fn set_notify(&self, notify: Arc<dyn Wake>) {
        {
            let mut there = lock(&self.notify);
            if matches!(*there, Notify::Ended) {
                return;
            }
            *there = Notify::Whom(Arc::clone(&notify));
        }
        // Only now: what comes from here on tells of itself.
        if !lock(&self.queue).is_empty() || self.has_left_out() {
            notify.wake();
        }
    }

    /// Nobody is woken any more.
    pub fn end(&self) {
        let before = std::mem::replace(&mut *lock(&self.notify), Notify::Ended);
        drop(before);
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_each_cause_and_interval() {
        let start = Instant::now();
        let logs = Logs::new(start, Duration::from_secs(10));
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 1..=3 {
            logs.note(Cause::SlowConsumer, at(second), || format!("slow {second}"));
            logs.note(Cause::Handshake(Reason::Full), at(second), || format!("full {second}"));
        }
        let record = |level, text: &str, left_out| Record { level, text: text.to_owned(), left_out };
        let warning = |text, left_out| record(Level::Warning, text, left_out);
        assert_eq!(logs.take(at(4)), [warning("slow 1", 0), warning("full 1", 0)]);
        assert!(logs.has_left_out());
        logs.note(Cause::SlowConsumer, at(11), || "slow 11".to_owned());
        assert_eq!(logs.take(at(12)), [warning("slow 11", 2), warning("full 1", 2)]);
        assert!(!logs.has_left_out());
        assert!(logs.take(at(100)).is_empty());
    }

    #[test]
    fn who_takes_is_told_that_something_was_left_out() {
        let start = Instant::now();
        let logs = Logs::new(start, Duration::from_secs(10));
        let woken = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&woken);
        logs.set_notify(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        for (second, expected) in [(1, 1), (2, 2), (3, 2)] {
            logs.note(Cause::SlowConsumer, start + Duration::from_secs(second), String::new);
            logs.take(start + Duration::from_secs(second));
            assert_eq!(woken.load(Ordering::Relaxed), expected, "second {second}");
        }
        // It was told; the next one is left out again.
        assert_eq!(logs.take(start + Duration::from_secs(11)).len(), 1);
        logs.note(Cause::SlowConsumer, start + Duration::from_secs(12), String::new);
        assert_eq!(woken.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn who_comes_late_is_told_of_what_there_is() {
        let start = Instant::now();
        let logs = Logs::new(start, Duration::from_secs(10));
        let woken = Arc::new(AtomicU64::new(0));
        for second in [1, 2] {
            logs.note(Cause::SlowConsumer, start + Duration::from_secs(second), String::new);
            logs.take(start + Duration::from_secs(second));
        }
        let count = Arc::clone(&woken);
        logs.set_notify(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        assert_eq!(woken.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_nobody_takes_is_bounded_and_counted() {
        let start = Instant::now();
        let logs = Logs::new(start, Duration::ZERO);
        for number in 0..MOST as u64 + 5 {
            logs.note(Cause::Panic, start + Duration::from_secs(number), || number.to_string());
        }
        let taken = logs.take(start + Duration::from_secs(1000));
        assert_eq!(taken.len(), MOST + 1);
        assert!(taken[MOST].text.starts_with("5 records were lost"), "{:?}", taken[MOST]);
    }
}
