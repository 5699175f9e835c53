//! The log of an engine for its operators: one record per cause and interval, with the number of suppressed ones.
//!
//! Workers put records into a bounded queue and never wait for the reader. Records contain no secrets: no paths,
//! queries, header fields or messages.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::reasons::{Denied, Reason};
use crate::util::locks::lock;
use crate::util::wakers::Wake;

/// The maximum number of records in the queue. Further ones are only counted.
const CAPACITY: usize = 256;

/// The minimum time between two records of one cause.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// The severity of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Normal events of any reachable server.
    Debug,
    /// Errors of clients.
    Info,
    /// Effects of limits.
    Warning,
    /// Problems that an operator must solve.
    Error,
}

/// The cause of a record. Records of one cause are throttled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// A client's handshake failed.
    Handshake(Reason),
    /// A client reads more slowly than messages are sent to it.
    SlowConsumer,
    /// A client sent a message that the application does not understand.
    Invalid,
    /// The event queue is full: the application takes events more slowly than they arrive.
    EventsFull,
    /// Accepting pauses because of an error.
    AcceptPause,
    /// A bug in the engine has ended a session.
    Panic,
    /// A certificate was reloaded, or could not be.
    Certificate,
    /// The listeners were handed over.
    Handoff,
    /// A client's token is invalid. Each [reason](Denied::index) is throttled separately, so none hides the others.
    Token(usize),
    /// The key file could not be reloaded.
    KeyFile,
    /// The key file was reloaded.
    KeyFileRead,
    /// A handoff to another engine failed.
    HandoffFailed,
    /// A worker has ended.
    WorkerEnded,
    /// A request for the metrics or the page had a wrong token.
    OperatorToken,
    /// A request for the metrics or the page had no token.
    OperatorTokenMissing,
    /// The application has taken no events for some time.
    EventsLate,
    /// A state of the broker.
    Broker(BrokerEvent),
}

/// A problem with a broker, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerEvent {
    /// The connection is lost.
    Disconnected,
    /// The connection is established again.
    Connected,
    /// Messages of this engine are refused.
    Refusing,
    /// Messages are accepted again.
    Accepting,
    /// A subscription is denied or not supported.
    Denied,
    /// Messages of this engine are unconfirmed, or messages of other engines were lost.
    MessagesLost,
}

impl BrokerEvent {
    const COUNT: usize = 6;

    const fn level(self) -> Level {
        match self {
            Self::Disconnected | Self::Refusing | Self::Denied | Self::MessagesLost => Level::Warning,
            Self::Connected | Self::Accepting => Level::Info,
        }
    }
}

impl Cause {
    const COUNT: usize = Reason::COUNT + 14 + Denied::NAMES.len() + BrokerEvent::COUNT;

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
            Self::Broker(event) => Reason::COUNT + 14 + Denied::NAMES.len() + event as usize,
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
            Self::Broker(event) => event.level(),
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

/// A log record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The severity.
    pub level: Level,
    /// The message.
    pub text: String,
    /// The number of suppressed records of the same cause since the previous record.
    pub suppressed: u64,
}

#[derive(Default)]
struct Slot {
    /// When the last record was logged, in nanoseconds since the start; 0 if there is none.
    logged_at: AtomicU64,
    suppressed: AtomicU64,
    /// The last record that was logged.
    text: Mutex<Option<(Level, String)>>,
}

#[derive(Default)]
enum WakerSlot {
    #[default]
    Unset,
    Set(Arc<dyn Wake>),
    /// The engine has ended.
    Ended,
}

/// The log of an engine. Any thread calls [`Self::note`]; one reader calls [`Self::set_notify`] and [`Self::take`].
pub struct Logs {
    start: Instant,
    interval: Duration,
    slots: [Slot; Cause::COUNT],
    queue: Mutex<VecDeque<Record>>,
    /// The number of records that found the queue full.
    lost: AtomicU64,
    waker: Mutex<WakerSlot>,
}

impl std::fmt::Debug for Logs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logs").field("waiting", &lock(&self.queue).len()).finish_non_exhaustive()
    }
}

impl Logs {
    /// Creates a log with `interval` between two records of one cause.
    #[must_use]
    pub fn new(start: Instant, interval: Duration) -> Self {
        Self {
            start,
            interval,
            slots: std::array::from_fn(|_| Slot::default()),
            queue: Mutex::default(),
            lost: AtomicU64::new(0),
            waker: Mutex::default(),
        }
    }

    /// Logs a record, unless it is suppressed. `text` is called only for records that are logged.
    pub fn note(&self, cause: Cause, now: Instant, text: impl FnOnce() -> String) {
        self.note_as(cause, cause.level(), now, text);
    }

    /// Logs a record with another severity than that of its cause.
    pub fn note_as(&self, cause: Cause, level: Level, now: Instant, text: impl FnOnce() -> String) {
        let Some(slot) = self.slots.get(cause.index()) else { return };
        let now = nanoseconds(now.saturating_duration_since(self.start)).max(1);
        let logged_at = slot.logged_at.load(Ordering::Relaxed);
        let recent = logged_at != 0 && now.saturating_sub(logged_at) < nanoseconds(self.interval);
        if recent || slot.logged_at.compare_exchange(logged_at, now, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            // The reader must call `take` again later: it is not woken when the interval ends.
            if slot.suppressed.fetch_add(1, Ordering::Relaxed) == 0 {
                self.wake();
            }
            return;
        }
        let text = text();
        *lock(&slot.text) = Some((level, text.clone()));
        self.put(Record { level, text, suppressed: slot.suppressed.swap(0, Ordering::Relaxed) });
    }

    fn put(&self, record: Record) {
        let mut queue = lock(&self.queue);
        wirespeed_driver::protocol::failpoint::hit("engine.log");
        if queue.len() >= CAPACITY {
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
        if let WakerSlot::Set(waker) = &*lock(&self.waker) {
            waker.wake();
        }
    }

    /// Takes the records in the queue. Adds one for each cause whose interval is over and which has suppressed records.
    pub fn take(&self, now: Instant) -> Vec<Record> {
        let mut records: Vec<_> = std::mem::take(&mut *lock(&self.queue)).into();
        let now = nanoseconds(now.saturating_duration_since(self.start)).max(1);
        for slot in &self.slots {
            let logged_at = slot.logged_at.load(Ordering::Relaxed);
            if logged_at != 0
                && now.saturating_sub(logged_at) >= nanoseconds(self.interval)
                && slot.suppressed.load(Ordering::Relaxed) > 0
                && slot.logged_at.compare_exchange(logged_at, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                let suppressed = slot.suppressed.swap(0, Ordering::Relaxed);
                if let Some((level, text)) = &*lock(&slot.text) {
                    records.push(Record { level: *level, text: text.clone(), suppressed });
                }
            }
        }
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let text = format!("{lost} records were lost: the queue was full");
            records.push(Record { level: Level::Warning, text, suppressed: 0 });
        }
        records
    }

    /// Whether records were suppressed, which a later [`Self::take`] returns without waking the reader.
    #[must_use]
    pub fn has_suppressed(&self) -> bool {
        self.slots.iter().any(|slot| slot.suppressed.load(Ordering::Relaxed) > 0)
    }

    /// Sets the waker that is called when the queue is no longer empty, or when [`Self::has_suppressed`] becomes true.
    /// [`Self::end`] drops it; after that it is dropped at once.
    pub fn set_notify(&self, notify: Arc<dyn Wake>) {
        {
            let mut current = lock(&self.waker);
            if matches!(*current, WakerSlot::Ended) {
                return;
            }
            *current = WakerSlot::Set(Arc::clone(&notify));
        }
        // Checked after the waker is set: later records call it themselves.
        if !lock(&self.queue).is_empty() || self.has_suppressed() {
            notify.wake();
        }
    }

    /// Drops the waker.
    pub fn end(&self) {
        let before = std::mem::replace(&mut *lock(&self.waker), WakerSlot::Ended);
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
    fn records_are_limited_to_one_per_cause_and_interval() {
        let start = Instant::now();
        let logs = Logs::new(start, Duration::from_secs(10));
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 1..=3 {
            logs.note(Cause::SlowConsumer, at(second), || format!("slow {second}"));
            logs.note(Cause::Handshake(Reason::Full), at(second), || format!("full {second}"));
        }
        let record = |level, text: &str, suppressed| Record { level, text: text.to_owned(), suppressed };
        let warning = |text, suppressed| record(Level::Warning, text, suppressed);
        assert_eq!(logs.take(at(4)), [warning("slow 1", 0), warning("full 1", 0)]);
        assert!(logs.has_suppressed());
        logs.note(Cause::SlowConsumer, at(11), || "slow 11".to_owned());
        assert_eq!(logs.take(at(12)), [warning("slow 11", 2), warning("full 1", 2)]);
        assert!(!logs.has_suppressed());
        assert!(logs.take(at(100)).is_empty());
    }

    #[test]
    fn reader_is_woken_once_for_suppressed_records() {
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
        // The suppressed record was taken; the next one is suppressed again.
        assert_eq!(logs.take(start + Duration::from_secs(11)).len(), 1);
        logs.note(Cause::SlowConsumer, start + Duration::from_secs(12), String::new);
        assert_eq!(woken.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn new_waker_is_called_for_existing_records() {
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
    fn queue_is_bounded_and_lost_records_are_counted() {
        let start = Instant::now();
        let logs = Logs::new(start, Duration::ZERO);
        for number in 0..CAPACITY as u64 + 5 {
            logs.note(Cause::Panic, start + Duration::from_secs(number), || number.to_string());
        }
        let taken = logs.take(start + Duration::from_secs(1000));
        assert_eq!(taken.len(), CAPACITY + 1);
        assert!(taken[CAPACITY].text.starts_with("5 records were lost"), "{:?}", taken[CAPACITY]);
    }
}
