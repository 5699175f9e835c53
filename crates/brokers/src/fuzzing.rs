//! What takes bytes that a broker brings, or makes names for one, and is private: for the fuzz targets, behind a
//! feature.

use bytes::Bytes;
use wirespeed_engine::broker::Message;
use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::topics::{Pattern, Topic};

use crate::batch;
use crate::envelope::{self, NodeId, Origin, Place};
use crate::queue::{Item, To};
use crate::redis;
use crate::tracker::{self, Arrival, For};

/// What is for all is published here.
pub const ALL: &str = tracker::ALL;

/// Who publishes, and the place of a message among his: of all, the epoch, on its topic.
pub type Numbered = (NodeId, u64, u32, u64);

/// A message as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// `None`: of somebody else.
    pub origin: Option<Numbered>,
    /// Text or binary.
    pub kind: MessageKind,
    /// What it is about.
    pub key: Option<String>,
    /// What it says.
    pub payload: Vec<u8>,
}

/// Wraps a message.
#[must_use]
pub fn seal(
    (node, overall, epoch, on_topic): Numbered,
    kind: MessageKind,
    key: Option<&str>,
    payload: &[u8],
) -> Vec<u8> {
    envelope::seal(Origin { node, place: Place { overall, epoch, on_topic } }, kind, key, payload)
}

/// Unwraps one; `None`: it is none.
#[must_use]
pub fn open(bytes: &[u8]) -> Option<Opened> {
    envelope::open(bytes).map(|opened| Opened {
        origin: opened.origin.map(|Origin { node, place }| (node, place.overall, place.epoch, place.on_topic)),
        kind: opened.kind,
        key: opened.key.map(ToOwned::to_owned),
        payload: opened.payload.to_vec(),
    })
}

/// Puts messages together, as they go to a broker: for whom, what, how many. No topic: for all.
pub fn pack(items: Vec<(Option<Topic>, Vec<u8>)>, most: usize) -> Vec<(Option<Topic>, Vec<u8>, u64)> {
    let to = |topic: Option<Topic>| topic.map_or(To::All, To::Topic);
    let items = items.into_iter().map(|(topic, bytes)| Item { to: to(topic), bytes: Bytes::from(bytes) }).collect();
    batch::pack(items, most)
        .map(|parcel| {
            let topic = match parcel.to {
                To::Topic(topic) => Some(topic),
                To::All => None,
            };
            (topic, parcel.bytes.to_vec(), parcel.count)
        })
        .collect()
}

/// The messages in what came.
pub fn unpack(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    batch::unpack(bytes)
}

/// The pattern of Redis for one of ours, under a prefix.
#[must_use]
pub fn glob(prefix: &str, pattern: &Pattern) -> String {
    redis::glob::glob(prefix, pattern)
}

/// What is to be done with what came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Came {
    /// It goes to who subscribes to the topic, or to all.
    Deliver(Option<Topic>, Opened),
    /// To nobody.
    Ignore,
    /// It is none.
    Invalid,
}

/// What a node knows of what came.
pub struct DeliveryTracker(tracker::DeliveryTracker);

impl DeliveryTracker {
    /// `scattered`: topics come by different connections.
    #[must_use]
    pub fn new(own: NodeId, prefix: &str, scattered: bool) -> Self {
        Self(tracker::DeliveryTracker::new(own, prefix, scattered))
    }

    /// A subscription is about to be asked for.
    pub fn ask(&mut self, pattern: &Pattern) {
        self.0.ask(pattern);
    }

    /// The broker has it.
    pub fn confirm(&mut self, pattern: &Pattern) {
        self.0.confirm(pattern);
    }

    /// It is about to be ended.
    pub fn end(&mut self, pattern: &Pattern) {
        self.0.end([pattern].into_iter());
    }

    /// The connection is gone.
    pub fn disconnect(&mut self) {
        self.0.disconnect();
    }

    /// How many messages did not come, since the last call.
    pub fn take_lost(&mut self) -> u64 {
        self.0.take_lost()
    }

    /// Something came, one message.
    pub fn arrive(&mut self, name: &str, via: Option<&[Pattern]>, bytes: &[u8]) -> Came {
        let origin = open(bytes).and_then(|opened| opened.origin);
        let opened = |Message { kind, payload, key }: Message<'_>| Opened {
            origin,
            kind,
            key: key.map(ToOwned::to_owned),
            payload: payload.to_vec(),
        };
        match self.0.arrive(name, via, bytes) {
            Arrival::Deliver(For::Topic(topic), message) => Came::Deliver(Some(topic), opened(message)),
            Arrival::Deliver(For::All, message) => Came::Deliver(None, opened(message)),
            Arrival::Ignore => Came::Ignore,
            Arrival::Invalid => Came::Invalid,
        }
    }
}
