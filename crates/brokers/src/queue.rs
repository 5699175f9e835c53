//! The queue of outgoing messages: bounded in bytes, numbered on entry, and accounted for until settled. A message is
//! settled when the broker has it, or when it is known to be lost. Knows no connection and no lock; see
//! `client::store`.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use foldhash::fast::RandomState;
use wirespeed_engine::broker::{EnqueueResult, Message};
use wirespeed_engine::topics::Topic;

use crate::envelope::{self, NodeId, Origin, Place};

/// What happens to a message that does not fit into the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The message is refused, and counted.
    #[default]
    DropNewest,
    /// The oldest queued messages are dropped to make room, and counted.
    DropOldest,
    /// Publishing raises an error, and no session gets the message.
    Raise,
}

/// The approximate memory of an item besides its bytes.
const OVERHEAD: usize = 96;

/// The number of topics whose last number is kept. If there are more, all numbers restart, in a new epoch.
const MAX_TOPICS: usize = 64 * 1024;

/// The destination of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Destination {
    /// The subscribers of a topic.
    Topic(Topic),
    /// All sessions.
    All,
}

/// A queued message, in its envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) to: Destination,
    pub(crate) bytes: Bytes,
}

impl Item {
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }
}

/// The queue of outgoing messages.
#[derive(Debug)]
pub(crate) struct Queue {
    items: VecDeque<Item>,
    bytes: usize,
    limit: usize,
    policy: Policy,
    node: NodeId,
    /// The number of the last message, among all.
    overall: u64,
    epoch: u32,
    /// The number of the last message on each topic. Peers may choose the names, so the hash is seeded.
    on_topics: HashMap<Topic, u64, RandomState>,
    broadcasts: u64,
    /// The number of messages accepted so far.
    accepted: u64,
    /// How many accepted messages are settled: the broker has them, or never will.
    settled: u64,
    /// How many accepted messages the broker may not have. It never decreases, so that several callers can compute
    /// differences.
    missing: u64,
    closed: bool,
}

/// The result of [`Queue::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pushed {
    pub(crate) result: EnqueueResult,
    /// The number of other messages dropped for this one.
    pub(crate) dropped: u64,
}

impl Queue {
    pub(crate) fn new(node: NodeId, limit: usize, policy: Policy) -> Self {
        Self {
            items: VecDeque::new(),
            bytes: 0,
            limit,
            policy,
            node,
            overall: 0,
            epoch: 1,
            on_topics: HashMap::default(),
            broadcasts: 0,
            accepted: 0,
            settled: 0,
            missing: 0,
            closed: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns whether a message of this size fits. Into an empty queue, a message of any size fits.
    pub(crate) fn has_capacity(&self, bytes: usize) -> bool {
        self.items.is_empty() || self.bytes + bytes + envelope::HEADER + OVERHEAD <= self.limit
    }

    /// Returns whether publishing a message of this size raises an error.
    pub(crate) fn would_raise(&self, bytes: usize) -> bool {
        self.policy == Policy::Raise && !self.has_capacity(bytes) && !self.closed
    }

    /// Returns whether the queue is more than half full, so that publishers that can wait should.
    pub(crate) fn is_filling(&self) -> bool {
        self.bytes > self.limit / 2 && !self.closed
    }

    /// Returns whether no session at all gets a message that does not fit.
    pub(crate) fn raises_when_full(&self) -> bool {
        self.policy == Policy::Raise
    }

    pub(crate) fn push(&mut self, to: Destination, message: Message<'_>) -> Pushed {
        if self.closed {
            return Pushed { result: EnqueueResult::Closed, dropped: 0 };
        }
        let mut dropped = 0;
        if !self.has_capacity(message.payload.len()) {
            if self.policy != Policy::DropOldest {
                return Pushed { result: EnqueueResult::Full, dropped: 0 };
            }
            while !self.has_capacity(message.payload.len())
                && let Some(old) = self.items.pop_front()
            {
                self.bytes -= old.size();
                dropped += 1;
            }
            self.settled += dropped;
            self.missing += dropped;
        }
        let origin = Origin { node: self.node, place: self.number(&to) };
        let bytes = envelope::seal(origin, message.kind, message.key, message.payload).into();
        let item = Item { to, bytes };
        self.bytes += item.size();
        self.items.push_back(item);
        self.accepted += 1;
        Pushed { result: EnqueueResult::Yes, dropped }
    }

    fn number(&mut self, to: &Destination) -> Place {
        self.overall += 1;
        let on_topic = match to {
            Destination::All => {
                self.broadcasts += 1;
                self.broadcasts
            }
            Destination::Topic(topic) => match self.on_topics.get_mut(topic) {
                Some(number) => {
                    *number += 1;
                    *number
                }
                None => {
                    if self.on_topics.len() >= MAX_TOPICS {
                        self.on_topics.clear();
                        self.broadcasts = 0;
                        self.epoch = self.epoch.wrapping_add(1);
                    }
                    self.on_topics.insert(topic.clone(), 1);
                    1
                }
            },
        };
        Place { overall: self.overall, epoch: self.epoch, on_topic }
    }

    /// Takes the oldest messages, at most `max_bytes` bytes together, but at least one.
    pub(crate) fn take(&mut self, max_bytes: usize) -> Vec<Item> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        while let Some(item) = self.items.front() {
            bytes += item.size();
            if bytes > max_bytes && !taken.is_empty() {
                break;
            }
            if let Some(item) = self.items.pop_front() {
                self.bytes -= item.size();
                taken.push(item);
            }
        }
        taken
    }

    /// Settles messages that were taken. `missing`: the broker may not have them.
    pub(crate) fn settle(&mut self, count: u64, missing: bool) {
        self.settled += count;
        if missing {
            self.missing += count;
        }
    }

    /// Returns the number of messages accepted so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Returns the number of settled messages.
    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }

    /// Returns how many settled messages the broker may not have.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// Returns [`Self::missing`] once the first `accepted` messages are settled, or else `None`.
    pub(crate) fn flushed(&self, accepted: u64) -> Option<u64> {
        (self.settled >= accepted).then_some(self.missing)
    }

    /// Returns the number of messages that were taken and are not settled.
    pub(crate) fn in_flight(&self) -> u64 {
        (self.accepted - self.settled).saturating_sub(self.items.len() as u64)
    }

    /// Returns whether no message is queued or in flight.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled >= self.accepted
    }

    /// Closes the queue. Returns the number of unsettled messages, which are now missing.
    pub(crate) fn close(&mut self) -> u64 {
        self.closed = true;
        let left = self.accepted - self.settled;
        self.settled = self.accepted;
        self.missing += left;
        self.items = VecDeque::new();
        self.bytes = 0;
        left
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use wirespeed_engine::driver::protocol::MessageKind;

    use super::*;

    fn queue(limit: usize, policy: Policy) -> Queue {
        Queue::new([1; 16], limit, policy)
    }

    fn to(name: &str) -> Destination {
        Destination::Topic(Topic::new(name).unwrap())
    }

    fn message(payload: &[u8]) -> Message<'_> {
        Message { kind: MessageKind::Text, payload, key: None }
    }

    fn places(items: &[Item]) -> Vec<(u64, u64)> {
        let place = |item: &Item| envelope::open(&item.bytes).unwrap().origin.unwrap().place;
        items.iter().map(place).map(|place| (place.overall, place.on_topic)).collect()
    }

    #[test]
    fn messages_are_numbered_in_total_and_on_their_topic() {
        let mut queue = queue(1 << 20, Policy::DropNewest);
        for name in ["a", "b", "a"] {
            assert_eq!(queue.push(to(name), message(b"")), Pushed { result: EnqueueResult::Yes, dropped: 0 });
        }
        queue.push(Destination::All, message(b""));
        assert_eq!(places(&queue.take(1 << 20)), [(1, 1), (2, 1), (3, 2), (4, 1)]);
        assert_eq!((queue.len(), queue.bytes()), (0, 0));
    }

    #[test]
    fn refused_newest_message_gets_no_number() {
        let mut queue = queue(400, Policy::DropNewest);
        queue.push(to("a"), message(&[b'x'; 200]));
        assert_eq!(queue.push(to("a"), message(&[b'x'; 200])).result, EnqueueResult::Full);
        assert!(!queue.would_raise(200));
        queue.take(1);
        queue.push(to("a"), message(&[b'x'; 1000])); // into an empty queue, any size fits
        assert_eq!(places(&queue.take(1)), [(2, 2)]);
        assert_eq!(queue.accepted(), 2);
    }

    #[test]
    fn dropped_oldest_messages_count_as_missing() {
        let mut queue = queue(600, Policy::DropOldest);
        for _ in 0..2 {
            queue.push(to("a"), message(&[b'x'; 100]));
        }
        assert_eq!(queue.push(to("a"), message(&[b'x'; 300])), Pushed { result: EnqueueResult::Yes, dropped: 2 });
        assert_eq!(places(&queue.take(1 << 20)), [(3, 3)]);
        assert_eq!(queue.flushed(3), None);
        queue.settle(1, false);
        assert_eq!(queue.flushed(3), Some(2));
        assert_eq!((queue.flushed(3), queue.missing()), (Some(2), 2), "reading the number does not reset it");
    }

    #[test]
    fn full_queue_raises_until_it_is_closed() {
        let mut queue = queue(300, Policy::Raise);
        queue.push(to("a"), message(&[b'x'; 100]));
        assert!(queue.would_raise(100));
        assert_eq!(queue.push(to("a"), message(&[b'x'; 100])).result, EnqueueResult::Full);
        assert_eq!(queue.close(), 1);
        assert!(!queue.would_raise(100));
        assert_eq!(queue.push(to("a"), message(b"")).result, EnqueueResult::Closed);
        assert_eq!(queue.flushed(1), Some(1));
    }

    #[test]
    fn too_many_topics_start_a_new_epoch() {
        let mut queue = queue(1 << 30, Policy::DropNewest);
        for number in 0..=MAX_TOPICS {
            queue.push(to(&number.to_string()), message(b""));
        }
        queue.push(to("0"), message(b""));
        let items = queue.take(1 << 30);
        let last = envelope::open(&items.last().unwrap().bytes).unwrap().origin.unwrap().place;
        assert_eq!(last, Place { overall: MAX_TOPICS as u64 + 2, epoch: 2, on_topic: 1 });
        assert!(queue.on_topics.len() <= MAX_TOPICS);
    }
}
