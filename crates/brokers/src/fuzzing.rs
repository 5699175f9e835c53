//! Exposes private parsers of received bytes, and builders of names, to the fuzz targets. Requires the feature
//! `fuzzing`.

use bytes::Bytes;
use wirespeed_engine::broker::Message;
use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::topics::{Pattern, Topic};

use crate::batch;
use crate::envelope::{self, NodeId, Origin, Place};
use crate::queue::{Destination, Item};
use crate::redis;
use crate::tracker::{self, Arrival, Recipients};

/// The name to which broadcasts are published.
pub const ALL: &str = tracker::ALL;

/// A publisher and the place of its message: number among all, epoch, number on its topic.
pub type Numbered = (NodeId, u64, u32, u64);

/// An unwrapped message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// `None`: the message comes from another program.
    pub origin: Option<Numbered>,
    /// Text or binary.
    pub kind: MessageKind,
    /// The key.
    pub key: Option<String>,
    /// The payload.
    pub payload: Vec<u8>,
}

/// Wraps a message in an envelope.
#[must_use]
pub fn seal(
    (node, overall, epoch, on_topic): Numbered,
    kind: MessageKind,
    key: Option<&str>,
    payload: &[u8],
) -> Vec<u8> {
    envelope::seal(Origin { node, place: Place { overall, epoch, on_topic } }, kind, key, payload)
}

/// Unwraps a message; `None` if it is invalid.
#[must_use]
pub fn open(bytes: &[u8]) -> Option<Opened> {
    envelope::open(bytes).map(|opened| Opened {
        origin: opened.origin.map(|Origin { node, place }| (node, place.overall, place.epoch, place.on_topic)),
        kind: opened.kind,
        key: opened.key.map(ToOwned::to_owned),
        payload: opened.payload.to_vec(),
    })
}

/// Packs messages into batches. Returns topic, bytes and number of messages of each; no topic means a broadcast.
pub fn pack(items: Vec<(Option<Topic>, Vec<u8>)>, max_bytes: usize) -> Vec<(Option<Topic>, Vec<u8>, u64)> {
    let to = |topic: Option<Topic>| topic.map_or(Destination::All, Destination::Topic);
    let items = items.into_iter().map(|(topic, bytes)| Item { to: to(topic), bytes: Bytes::from(bytes) }).collect();
    batch::pack(items, max_bytes)
        .map(|batch| {
            let topic = match batch.to {
                Destination::Topic(topic) => Some(topic),
                Destination::All => None,
            };
            (topic, batch.bytes.to_vec(), batch.count)
        })
        .collect()
}

/// Splits a batch into its messages.
pub fn unpack(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    batch::unpack(bytes)
}

/// Returns the glob of Redis for a pattern under a prefix.
#[must_use]
pub fn glob(prefix: &str, pattern: &Pattern) -> String {
    redis::glob::glob(prefix, pattern)
}

/// The result for a received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The message is delivered to the subscribers of the topic or, without one, to all sessions.
    Deliver(Option<Topic>, Opened),
    /// The message is ignored.
    Ignore,
    /// The message is invalid.
    Invalid,
}

/// See [`tracker::DeliveryTracker`].
pub struct DeliveryTracker(tracker::DeliveryTracker);

impl DeliveryTracker {
    /// `scattered`: topics arrive over different connections.
    #[must_use]
    pub fn new(own: NodeId, prefix: &str, scattered: bool) -> Self {
        Self(tracker::DeliveryTracker::new(own, prefix, scattered))
    }

    /// A subscription is about to be requested.
    pub fn request(&mut self, pattern: &Pattern) {
        self.0.request(pattern);
    }

    /// The broker confirmed the subscription.
    pub fn confirm(&mut self, pattern: &Pattern) {
        self.0.confirm(pattern);
    }

    /// The subscription is about to be ended.
    pub fn end(&mut self, pattern: &Pattern) {
        self.0.end([pattern].into_iter());
    }

    /// The connection was lost.
    pub fn disconnect(&mut self) {
        self.0.disconnect();
    }

    /// Returns the number of messages lost since the last call.
    pub fn take_lost(&mut self) -> u64 {
        self.0.take_lost()
    }

    /// Handles one received message.
    pub fn arrive(&mut self, name: &str, via: Option<&[Pattern]>, bytes: &[u8]) -> Outcome {
        let origin = open(bytes).and_then(|opened| opened.origin);
        let opened = |Message { kind, payload, key }: Message<'_>| Opened {
            origin,
            kind,
            key: key.map(ToOwned::to_owned),
            payload: payload.to_vec(),
        };
        match self.0.arrive(name, via, bytes) {
            Arrival::Deliver(Recipients::Topic(topic), message) => Outcome::Deliver(Some(topic), opened(message)),
            Arrival::Deliver(Recipients::All, message) => Outcome::Deliver(None, opened(message)),
            Arrival::Ignore => Outcome::Ignore,
            Arrival::Invalid => Outcome::Invalid,
        }
    }
}
