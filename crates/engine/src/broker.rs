//! The interface between an engine and a broker, which connects it with other engines.
//!
//! Owns the traits of both sides, and knows no broker by name: [`crate::Config::broker`]
//! provides the implementation. Delivery between engines is at most once, in the order of each publisher. The engine
//! never waits for a broker: it puts messages into a bounded queue of the implementation. A thread of the
//! implementation puts received messages into mailboxes. It waits for room there and reads nothing meanwhile.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use wirespeed_driver::protocol::MessageKind;

use crate::logs::Logs;
use crate::topics::{Pattern, Topic};

/// A segment that reserves a topic for the broker itself: such topics are neither sent to nor received from other
/// engines. It need not be the first segment, because the topic may have a prefix.
pub const RESERVED: &str = "_wirespeed";

/// A message between engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Text, which is UTF-8, or binary.
    pub kind: MessageKind,
    /// The content.
    pub payload: &'a [u8],
    /// The conflation key: see [`crate::config::Policy::Conflate`].
    pub key: Option<&'a str>,
}

/// Whether a broker's queue has accepted a message. Acceptance is not delivery: a connection may break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueResult {
    /// Accepted: the message will be sent to the broker.
    Yes,
    /// Not for a broker: there is none, or the topic is reserved (see [`RESERVED`]).
    Local,
    /// The queue is full.
    Full,
    /// The message is larger than the broker accepts.
    TooLarge,
    /// The broker is closed.
    Closed,
}

/// The state of the connection to a broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The first connection is not established yet.
    #[default]
    Connecting,
    /// Messages are exchanged with the broker.
    Connected,
    /// The connection is lost. The broker reconnects without a limit on attempts.
    Disconnected,
    /// The broker is closed.
    Closed,
}

impl State {
    /// Returns the name of the state.
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

/// The state and the counters of a broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The state of the connection.
    pub state: State,
    /// The address of the server, without credentials.
    pub server: String,
    /// Why the connection is lost, or while connected, the broker's last refusal. Without credentials.
    pub reason: Option<String>,
    /// Messages in the send queue.
    pub queued: usize,
    /// Bytes in the send queue.
    pub queued_bytes: usize,
    /// Patterns that are subscribed to at the broker.
    pub subscriptions: usize,
    /// Messages that were sent to the broker.
    pub published: u64,
    /// Messages that were received from the broker and delivered to this engine's sessions.
    pub received: u64,
    /// Messages of other engines that were lost with a connection, as far as later messages on the same topics reveal
    /// it.
    pub lost: u64,
    /// Messages of this engine that the queue did not accept.
    pub refused: u64,
    /// Messages that were accepted, and later dropped for newer ones.
    pub dropped: u64,
    /// Messages whose delivery to the broker is unknown: they were in flight when a connection broke, or when the
    /// broker refused part of a batch.
    pub unconfirmed: u64,
    /// Invalid messages that were received: without a topic, or text that is not UTF-8.
    pub invalid: u64,
    /// Connections after the first one.
    pub reconnects: u64,
}

impl Status {
    /// Returns the counters with their names and descriptions.
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

    /// Returns the gauges with their names and descriptions.
    #[must_use]
    pub fn gauges(&self) -> [(&'static str, &'static str, u64); 3] {
        [
            ("queued", "Messages that wait to be sent to the broker", self.queued as u64),
            ("queued_bytes", "Bytes that wait to be sent to the broker", self.queued_bytes as u64),
            ("subscriptions", "Patterns that are subscribed to at the broker", self.subscriptions as u64),
        ]
    }
}

/// A change in the state of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The connection is established.
    Connected,
    /// The connection is lost.
    Disconnected {
        /// The reason, without credentials.
        reason: String,
    },
    /// This number of messages of other engines was lost.
    Lost(u64),
    /// This number of messages of this engine was refused.
    Refused(u64),
    /// This number of accepted messages was dropped for newer ones.
    Dropped(u64),
    /// The delivery of this number of messages is unknown: see [`Status::unconfirmed`].
    Unconfirmed(u64),
    /// The broker does not support this pattern: sessions receive only messages that this engine publishes.
    Unsupported(Pattern),
    /// The broker denies a subscription: sessions receive only messages that this engine publishes, until the pattern
    /// is subscribed to anew or the broker reconnects.
    Denied {
        /// The denied pattern.
        pattern: Pattern,
        /// The broker's message.
        reason: String,
    },
}

/// Connects an engine with others. All methods are called from any thread, some under locks; they must not block,
/// except [`Self::flush`].
pub trait Broker: Send + Sync {
    /// Subscribes to a pattern when the first session of this engine does, and unsubscribes after the last one. Called
    /// under the locks of the registry, hence in the order of the changes: it must not call the engine.
    fn interest(&self, pattern: &Pattern, wanted: bool);

    /// Sends a message to the sessions of all other engines that subscribe to the topic.
    fn publish(&self, topic: &Topic, message: Message<'_>) -> EnqueueResult;

    /// Sends a message to all sessions of all other engines.
    fn broadcast(&self, message: Message<'_>) -> EnqueueResult;

    /// Whether the queue would accept a message of this size, or discard it without an error for the publisher.
    fn admits(&self, bytes: usize) -> bool;

    /// Whether publishers that can wait may continue: relays, whose clients get no error for a refused message. While
    /// the broker is away, false only if its policy is to refuse; otherwise local sessions would stall with the broker.
    /// [`Sink::resume`] signals a change from false to true.
    fn has_capacity(&self) -> bool;

    /// Returns the state and the counters.
    fn status(&self) -> Status;

    /// Whether there are notices to take.
    fn has_notices(&self) -> bool;

    /// Takes the notices since the last call. The oldest may be missing if there were very many.
    fn take_notices(&self) -> Vec<Notice>;

    /// Waits until the broker has all messages that were accepted before. Returns the total number of messages that it
    /// may have missed: unconfirmed, refused or dropped. This number never decreases. `None`: deadline exceeded.
    fn flush(&self, deadline: Option<Instant>) -> Option<u64>;

    /// Closes the broker. Accepted messages are still sent if that takes only a moment. Then it drops its [`Sink`],
    /// which breaks the cycle of references between engine and broker. Further calls have no effect.
    fn close(&self);
}

/// Creates the broker of an engine at its start.
pub trait Connect: Send + Sync {
    /// Starts to connect, without waiting: a broker that is down is not an error.
    ///
    /// # Errors
    /// A thread cannot be started.
    fn connect(&self, sink: Arc<dyn Sink>) -> io::Result<Arc<dyn Broker>>;
}

/// Receives the messages of a broker: the engine's side.
pub trait Sink: Send + Sync {
    /// Delivers a message to this engine's sessions that subscribe to the topic. Returns false if there is no room for
    /// another one: then the caller must wait.
    ///
    /// # Errors
    /// The message is invalid.
    fn publish(&self, topic: &Topic, message: Message<'_>) -> Result<bool, Unsendable>;

    /// Delivers a message to all sessions of this engine, and returns as [`Self::publish`] does.
    ///
    /// # Errors
    /// The message is invalid.
    fn broadcast(&self, message: Message<'_>) -> Result<bool, Unsendable>;

    /// Waits until there is room for more messages, or for the deadline. Returns whether there is room, or no worker is
    /// left. One connection carries all topics, so slow sessions of one topic delay the others. The engine limits the
    /// delay by a budget; when it is spent, the slow sessions reach their limits.
    fn wait_for_capacity(&self, deadline: Instant) -> bool;

    /// Signals that [`Broker::has_capacity`] was false and may be true now.
    fn resume(&self);

    /// Signals that there are notices after there were none.
    fn noticed(&self);

    /// Returns the log of the engine.
    fn logs(&self) -> Arc<Logs>;
}

/// The message is invalid: its text is not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsendable;

/// The broker of an engine, once it has one.
pub(crate) type Slot = OnceLock<Arc<dyn Broker>>;

/// The result of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The number of this engine's sessions that receive the message.
    pub count: usize,
    /// Whether there is room for more messages.
    pub room: bool,
    /// Whether the message goes to other engines.
    pub broker: EnqueueResult,
}

/// Passes a message to the broker, if there is one and the topic is not reserved.
pub(crate) fn forward(slot: &Slot, topic: &Topic, message: Message<'_>) -> EnqueueResult {
    match slot.get() {
        Some(broker) if !is_reserved(topic) => broker.publish(topic, message),
        _ => EnqueueResult::Local,
    }
}

/// Whether a topic is reserved for brokers.
#[must_use]
pub fn is_reserved(topic: &Topic) -> bool {
    topic.segments().any(|segment| segment == RESERVED)
}
