//! Other machines: what an engine wants of a broker, and what a broker brings.
//!
//! Owns the two traits between them and the engine's own end ([`Sink`]), nothing that knows a broker by name: an
//! implementation is given to [`crate::Config::broker`]. Delivery between engines is at most once, in the order of
//! each publisher. Nothing here waits for a broker: what is published is put into a queue of the implementation's,
//! which is bounded, and what comes in is put into mailboxes by a thread of the implementation's, which waits for
//! room there and meanwhile reads nothing.

use std::io;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use wirespeed_driver::protocol::MessageKind;

use crate::events::Events;
use crate::locks::lock;
use crate::logs::Logs;
use crate::mailbox::Refused;
use crate::outbox::Pending;
use crate::publishing::has_capacity;
use crate::session::WorkerHandle;
use crate::slow_consumer::SlowConsumerBudget;
use crate::topics::{Pattern, Registry, Topic};
use crate::worker::{Command, EngineShared};

/// Topics with such a segment are for brokers themselves: they go to no other engine, and none comes from there. Behind
/// the prefix of another application it stands in the middle.
pub const RESERVED: &str = "_wirespeed";

/// What is sent from one engine to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Text, which is UTF-8, or binary.
    pub kind: MessageKind,
    /// What it says.
    pub payload: &'a [u8],
    /// What it is about: see [`crate::outbox::Policy::Conflate`].
    pub key: Option<&'a str>,
}

/// Whether a broker's queue has taken a message. Taken is not delivered: a connection may break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueResult {
    /// It will be sent to the broker, in its turn.
    Yes,
    /// There is no broker, or it is for this engine alone: see [`RESERVED`].
    Local,
    /// There is no room in the queue.
    Full,
    /// It is larger than the broker takes.
    TooLarge,
    /// The broker was closed.
    Closed,
}

/// How it stands with a broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// There was no connection yet.
    #[default]
    Connecting,
    /// What is published goes to the broker, and what others publish comes.
    Connected,
    /// There is no connection any more: it is tried again, for ever.
    Disconnected,
    /// It was closed.
    Closed,
}

impl State {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Disconnected => "disconnected",
            Self::Closed => "closed",
        }
    }
}

/// The same, with what is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// See [`State`].
    pub state: State,
    /// Where, without credentials.
    pub server: String,
    /// Why there is no connection; while there is one, what the broker has last refused. Without credentials.
    pub reason: Option<String>,
    /// Messages that wait to be sent.
    pub queued: usize,
    /// The same, in bytes.
    pub queued_bytes: usize,
    /// Patterns that are subscribed to at the broker.
    pub subscriptions: usize,
    /// Messages that were handed to the broker.
    pub published: u64,
    /// Messages that came from it, and went to this engine's sessions.
    pub received: u64,
    /// Messages of others that did not come: what a connection that broke has cost, as far as later messages on the
    /// same topics tell.
    pub lost: u64,
    /// Messages of this engine that were not taken.
    pub refused: u64,
    /// Messages that were taken, and dropped for newer ones.
    pub dropped: u64,
    /// Messages that were under way when a connection broke, or when the broker said that it does not take some of what was:
    /// whether it has them is not known.
    pub unconfirmed: u64,
    /// Messages that came and were none: no topic, or text that is not UTF-8.
    pub invalid: u64,
    /// Connections after the first.
    pub reconnects: u64,
}

impl Status {
    /// What is counted since the start, with names and what they mean.
    #[must_use]
    pub fn counters(&self) -> [(&'static str, &'static str, u64); 8] {
        [
            ("published", "Messages that the broker has got", self.published),
            ("received", "Messages of others that came", self.received),
            ("lost", "Messages of others that did not come", self.lost),
            ("refused", "Messages of this engine that were not taken", self.refused),
            ("dropped", "Messages of this engine that were dropped for newer ones", self.dropped),
            ("unconfirmed", "Messages of this engine that the broker may not have got", self.unconfirmed),
            ("invalid", "What came and was no message", self.invalid),
            ("reconnects", "Connections to the broker after the first", self.reconnects),
        ]
    }

    /// What there is at present, with names and what they mean.
    #[must_use]
    pub fn gauges(&self) -> [(&'static str, &'static str, u64); 3] {
        [
            ("queued", "Messages that wait to be sent to the broker", self.queued as u64),
            ("queued_bytes", "Bytes that wait to be sent to the broker", self.queued_bytes as u64),
            ("subscriptions", "Patterns that are subscribed to at the broker", self.subscriptions as u64),
        ]
    }
}

/// What has happened to a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// There is a connection.
    Connected,
    /// There is none any more.
    Disconnected {
        /// Why, without credentials.
        reason: String,
    },
    /// So many messages of others did not come.
    Lost(u64),
    /// So many of this engine were not taken.
    Refused(u64),
    /// So many were taken, and dropped for newer ones.
    Dropped(u64),
    /// Of so many it is not known whether the broker has them: see [`Status::unconfirmed`].
    Unconfirmed(u64),
    /// The broker has no such subscription: sessions get what is published on this engine, and nothing of others.
    Unsupported(Pattern),
    /// The broker does not let this engine have it: sessions get what is published on this engine, and nothing of others,
    /// until it is subscribed to anew or there is another connection.
    Denied {
        /// What it is.
        pattern: Pattern,
        /// What the broker says.
        reason: String,
    },
}

/// Connects an engine with others. All of it is called from any thread, some of it under locks: it must not wait.
pub trait Broker: Send + Sync {
    /// Sessions of this engine subscribe to what matches, or none does any more. Called under the locks of the
    /// registry, so in the order in which it became so: it must not call the engine.
    fn interest(&self, pattern: &Pattern, wanted: bool);

    /// Sends a message to the sessions of all other engines that subscribe to the topic.
    fn publish(&self, topic: &Topic, message: Message<'_>) -> EnqueueResult;

    /// Sends a message to all sessions of all other engines.
    fn broadcast(&self, message: Message<'_>) -> EnqueueResult;

    /// Whether a message of so many bytes would be taken, or its publisher is not to be told of it by an error.
    fn admits(&self, bytes: usize) -> bool;

    /// Whether whoever can wait may go on: relays, which nobody tells that a message was not taken. Of a broker that is
    /// away only if its policy is to say so: else those who are here would stand still with it. What was false and becomes
    /// true is told, by [`Sink::resume`].
    fn has_capacity(&self) -> bool;

    /// How it stands.
    fn status(&self) -> Status;

    /// Whether something has happened since.
    fn has_notices(&self) -> bool;

    /// What has happened since the last call; older ones may be missing if there were very many.
    fn take_notices(&self) -> Vec<Notice>;

    /// Waits until the broker has all that was taken before; how many of all that were ever taken it may not have, as they
    /// are unconfirmed, or were refused or dropped. It never becomes less. `None`: not by the deadline.
    fn flush(&self, deadline: Option<Instant>) -> Option<u64>;

    /// Ends it: what was taken is still sent, if that takes no longer than a moment, and the [`Sink`] is let go, which
    /// has the engine, which has this. Again: nothing.
    fn close(&self);
}

/// Makes the broker of an engine that begins.
pub trait Connect: Send + Sync {
    /// Begins to connect, without waiting for it: a broker that is down is no error.
    ///
    /// # Errors
    /// A thread cannot begin.
    fn connect(&self, sink: Arc<dyn Sink>) -> io::Result<Arc<dyn Broker>>;
}

/// Where a broker puts what comes in: the engine's end.
pub trait Sink: Send + Sync {
    /// Sends a message to this engine's sessions that subscribe to the topic. False: there is no room for more, and
    /// the caller waits before the next one.
    ///
    /// # Errors
    /// There is no such message.
    fn publish(&self, topic: &Topic, message: Message<'_>) -> Result<bool, Unsendable>;

    /// The same for all sessions.
    ///
    /// # Errors
    /// As for [`Self::publish`].
    fn broadcast(&self, message: Message<'_>) -> Result<bool, Unsendable>;

    /// Waits until there is room for what follows the last message, or the deadline; whether there is, or no worker is
    /// left. One connection brings all topics: so slow sessions of one delay the others within a budget of the engine,
    /// and come to their limits when it is spent.
    fn wait_for_capacity(&self, deadline: Instant) -> bool;

    /// [`Broker::has_capacity`] was false, and may be true now.
    fn resume(&self);

    /// There are notices after there were none.
    fn noticed(&self);

    /// The log of the engine.
    fn logs(&self) -> Arc<Logs>;
}

/// There is no such message: text that is not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsendable;

/// The broker of an engine, once it has one.
pub(crate) type Slot = OnceLock<Arc<dyn Broker>>;

/// What was published, and where it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Sessions of this engine.
    pub count: usize,
    /// There is room for more.
    pub room: bool,
    /// Whether it goes to other engines.
    pub took: EnqueueResult,
}

/// Hands a message to the broker, if there is one and the topic is not for this engine alone.
pub(crate) fn forward(slot: &Slot, topic: &Topic, message: Message<'_>) -> EnqueueResult {
    match slot.get() {
        Some(broker) if !is_reserved(topic) => broker.publish(topic, message),
        _ => EnqueueResult::Local,
    }
}

/// Whether a topic is for brokers themselves.
#[must_use]
pub fn is_reserved(topic: &Topic) -> bool {
    topic.segments().any(|segment| segment == RESERVED)
}

/// For so long sessions may delay what a broker brings, and for a quarter of the time from then on: enough to read what
/// has piled up while the broker paused, at a moderate rate.
const PACING: Duration = Duration::from_secs(10);

/// Waits that are shorter than this are not worth a system call.
const SHORTEST: Duration = Duration::from_millis(1);

/// How what a broker brings is delivered no faster than the sessions read it.
struct Pacing {
    /// The audience of the last message, if its publishers should wait.
    audience: Option<Option<Topic>>,
    budget: SlowConsumerBudget,
}

/// See [`Sink`].
pub(crate) struct EngineSink {
    shared: Arc<EngineShared>,
    registry: Arc<Registry>,
    homes: Vec<Arc<WorkerHandle>>,
    /// The broker's thread alone has it.
    pacing: Mutex<Pacing>,
}

impl EngineSink {
    pub(crate) fn new(shared: Arc<EngineShared>, registry: Arc<Registry>, homes: Vec<Arc<WorkerHandle>>) -> Self {
        let pacing = Mutex::new(Pacing { audience: None, budget: SlowConsumerBudget::new(PACING, Instant::now()) });
        Self { shared, registry, homes, pacing }
    }

    /// Whether there is room after a message for this audience: `room` in the mailboxes, and its sessions keep up.
    fn pace(&self, room: bool, audience: Option<&Topic>) -> bool {
        let congested = self.homes.iter().any(|worker| worker.congestion.has(audience));
        if congested || !room {
            // A worker that has too much to do may find only then that sessions are behind.
            lock(&self.pacing).audience = Some(audience.cloned());
        }
        room && !congested
    }

    fn pending(&self, message: Message<'_>) -> Result<Pending, Unsendable> {
        let encoded = self.shared.encode(message.kind, message.payload).map_err(|_| Unsendable)?;
        Ok(Pending { message: encoded, key: message.key.map(Arc::from) })
    }

    fn events(&self) -> &Events {
        &self.shared.events
    }
}

// What is put in is not refused where it is far too much, as it would be to whoever does not wait: some workers would
// have it and others not. The one thread that calls this waits after each message that finds no room.
impl Sink for EngineSink {
    fn publish(&self, topic: &Topic, message: Message<'_>) -> Result<bool, Unsendable> {
        let pending = self.pending(message)?;
        let size = pending.cost();
        let (_, room) = self.registry.publish(topic, None, |workers| {
            workers.iter().fold(true, |room, worker| {
                let command = Command::publish(topic, &pending, None);
                let Some(worker) = self.homes.get(worker.index()) else { return room };
                room & worker.mailbox.put_checked(command, size).unwrap_or(true) // who has ended takes all
            })
        });
        Ok(self.pace(room, Some(topic)))
    }

    fn broadcast(&self, message: Message<'_>) -> Result<bool, Unsendable> {
        let pending = self.pending(message)?;
        let size = pending.cost();
        let room = self.homes.iter().fold(true, |room, worker| {
            room & worker.mailbox.put_checked(Command::broadcast(&pending, None), size).unwrap_or(true)
        });
        Ok(self.pace(room, None))
    }

    fn wait_for_capacity(&self, deadline: Instant) -> bool {
        if self.homes.iter().any(|worker| worker.mailbox.wait_for_capacity(Some(deadline)) == Err(Refused::Full)) {
            return false;
        }
        let (Some(worker), mut pacing) = (self.homes.first(), lock(&self.pacing)) else { return true };
        let now = Instant::now();
        let left = pacing.budget.left(now);
        let Some(audience) = pacing.audience.take_if(|_| left >= SHORTEST) else { return true };
        let follows = || has_capacity(&self.homes, audience.as_ref());
        let waited = worker.capacity.wait(Some(deadline.min(now + left)), follows);
        pacing.budget.spend(now.elapsed());
        let full = waited == Err(Refused::Full);
        if full {
            pacing.audience = Some(audience);
        }
        !full
    }

    fn resume(&self) {
        if let Some(worker) = self.homes.first() {
            worker.capacity.notify();
        }
    }

    fn noticed(&self) {
        self.events().ring();
    }

    fn logs(&self) -> Arc<Logs> {
        Arc::clone(&self.shared.logs)
    }
}
