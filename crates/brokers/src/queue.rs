//! What waits to be sent to the broker: bounded in bytes, numbered when it is taken, and accounted for until the
//! broker has it.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use foldhash::fast::RandomState;
use wirespeed_engine::broker::{EnqueueResult, Message};
use wirespeed_engine::topics::Topic;

use crate::envelope::{self, NodeId, Origin, Place};

/// What becomes of what finds no room in the queue to the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// It is not taken, and counted.
    #[default]
    DropNewest,
    /// The oldest that wait are dropped for it, and counted.
    DropOldest,
    /// Its publisher is told by an error, and nobody gets it.
    Raise,
}

/// What an item takes beside its bytes, about.
const OVERHEAD: usize = 96;

/// Topics whose numbers are remembered; if there are more all of them begin again, in another epoch.
const TOPICS: usize = 64 * 1024;

/// Where something goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum To {
    /// To who subscribes to the topic.
    Topic(Topic),
    /// To all.
    All,
}

/// Something that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) to: To,
    pub(crate) bytes: Bytes,
}

impl Item {
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Queue {
    items: VecDeque<Item>,
    bytes: usize,
    limit: usize,
    policy: Policy,
    node: NodeId,
    /// The number of the last one, among all.
    overall: u64,
    epoch: u32,
    /// The numbers of the last ones on their topics. The names may be of peers' choosing: the hash has a seed.
    on_topics: HashMap<Topic, u64, RandomState>,
    to_all: u64,
    /// Taken in, ever.
    accepted: u64,
    /// Of those, how many the broker has, or never will.
    settled: u64,
    /// Of those, how many it may not have, ever: several may ask, each for what is new to them.
    missing: u64,
    closed: bool,
}

/// What became of something that was to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pushed {
    pub(crate) took: EnqueueResult,
    /// Others that were dropped for it.
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
            to_all: 0,
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

    /// Whether a message of so many bytes finds room. One that is alone may be as large as it likes.
    pub(crate) fn has_capacity(&self, bytes: usize) -> bool {
        self.items.is_empty() || self.bytes + bytes + envelope::HEADER + OVERHEAD <= self.limit
    }

    /// Whether its publisher would be told of it by an error.
    pub(crate) fn raises(&self, bytes: usize) -> bool {
        self.policy == Policy::Raise && !self.has_capacity(bytes) && !self.closed
    }

    /// Whether so much waits that whoever can wait should.
    pub(crate) fn is_filling(&self) -> bool {
        self.bytes > self.limit / 2 && !self.closed
    }

    /// Whether nobody gets what finds no room.
    pub(crate) fn is_strict(&self) -> bool {
        self.policy == Policy::Raise
    }

    pub(crate) fn push(&mut self, to: To, message: Message<'_>) -> Pushed {
        if self.closed {
            return Pushed { took: EnqueueResult::Closed, dropped: 0 };
        }
        let mut dropped = 0;
        if !self.has_capacity(message.payload.len()) {
            if self.policy != Policy::DropOldest {
                return Pushed { took: EnqueueResult::Full, dropped: 0 };
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
        Pushed { took: EnqueueResult::Yes, dropped }
    }

    fn number(&mut self, to: &To) -> Place {
        self.overall += 1;
        let on_topic = match to {
            To::All => {
                self.to_all += 1;
                self.to_all
            }
            To::Topic(topic) => match self.on_topics.get_mut(topic) {
                Some(number) => {
                    *number += 1;
                    *number
                }
                None => {
                    if self.on_topics.len() >= TOPICS {
                        self.on_topics.clear();
                        self.to_all = 0;
                        self.epoch = self.epoch.wrapping_add(1);
                    }
                    self.on_topics.insert(topic.clone(), 1);
                    1
                }
            },
        };
        Place { overall: self.overall, epoch: self.epoch, on_topic }
    }

    /// Takes out the oldest ones, of so many bytes together; at least one, if there is one.
    pub(crate) fn take(&mut self, most: usize) -> Vec<Item> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        while let Some(item) = self.items.front() {
            bytes += item.size();
            if bytes > most && !taken.is_empty() {
                break;
            }
            if let Some(item) = self.items.pop_front() {
                self.bytes -= item.size();
                taken.push(item);
            }
        }
        taken
    }

    /// The broker has so many of those that were taken out; `missing`: or may not have them.
    pub(crate) fn settle(&mut self, count: u64, missing: bool) {
        self.settled += count;
        if missing {
            self.missing += count;
        }
    }

    /// How many were taken in, ever.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// How many of those are settled.
    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }

    /// How many of those the broker may not have.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// The same once so many are settled. `None`: not yet.
    pub(crate) fn flushed(&self, accepted: u64) -> Option<u64> {
        (self.settled >= accepted).then_some(self.missing)
    }

    /// How many were taken out and are not settled.
    pub(crate) fn in_flight(&self) -> u64 {
        (self.accepted - self.settled).saturating_sub(self.items.len() as u64)
    }

    /// Whether nothing waits or is under way.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled >= self.accepted
    }

    /// Takes nothing any more; how many wait, of which nothing will be sent.
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

    fn to(name: &str) -> To {
        To::Topic(Topic::new(name).unwrap())
    }

    fn message(payload: &[u8]) -> Message<'_> {
        Message { kind: MessageKind::Text, payload, key: None }
    }

    fn places(items: &[Item]) -> Vec<(u64, u64)> {
        let place = |item: &Item| envelope::open(&item.bytes).unwrap().origin.unwrap().place;
        items.iter().map(place).map(|place| (place.overall, place.on_topic)).collect()
    }

    #[test]
    fn numbers() {
        let mut queue = queue(1 << 20, Policy::DropNewest);
        for name in ["a", "b", "a"] {
            assert_eq!(queue.push(to(name), message(b"")), Pushed { took: EnqueueResult::Yes, dropped: 0 });
        }
        queue.push(To::All, message(b""));
        assert_eq!(places(&queue.take(1 << 20)), [(1, 1), (2, 1), (3, 2), (4, 1)]);
        assert_eq!((queue.len(), queue.bytes()), (0, 0));
    }

    #[test]
    fn the_newest_is_dropped_and_has_no_number() {
        let mut queue = queue(400, Policy::DropNewest);
        queue.push(to("a"), message(&[b'x'; 200]));
        assert_eq!(queue.push(to("a"), message(&[b'x'; 200])).took, EnqueueResult::Full);
        assert!(!queue.raises(200));
        queue.take(1);
        queue.push(to("a"), message(&[b'x'; 1000])); // alone, it may be as large as it likes
        assert_eq!(places(&queue.take(1)), [(2, 2)]);
        assert_eq!(queue.accepted(), 2);
    }

    #[test]
    fn the_oldest_are_dropped_and_missed() {
        let mut queue = queue(600, Policy::DropOldest);
        for _ in 0..2 {
            queue.push(to("a"), message(&[b'x'; 100]));
        }
        assert_eq!(queue.push(to("a"), message(&[b'x'; 300])), Pushed { took: EnqueueResult::Yes, dropped: 2 });
        assert_eq!(places(&queue.take(1 << 20)), [(3, 3)]);
        assert_eq!(queue.flushed(3), None);
        queue.settle(1, false);
        assert_eq!(queue.flushed(3), Some(2));
        assert_eq!((queue.flushed(3), queue.missing()), (Some(2), 2), "nobody has taken it away");
    }

    #[test]
    fn who_is_to_be_told_is() {
        let mut queue = queue(300, Policy::Raise);
        queue.push(to("a"), message(&[b'x'; 100]));
        assert!(queue.raises(100));
        assert_eq!(queue.push(to("a"), message(&[b'x'; 100])).took, EnqueueResult::Full);
        assert_eq!(queue.close(), 1);
        assert!(!queue.raises(100));
        assert_eq!(queue.push(to("a"), message(b"")).took, EnqueueResult::Closed);
        assert_eq!(queue.flushed(1), Some(1));
    }

    #[test]
    fn more_topics_than_are_remembered_begin_another_epoch() {
        let mut queue = queue(1 << 30, Policy::DropNewest);
        for number in 0..=TOPICS {
            queue.push(to(&number.to_string()), message(b""));
        }
        queue.push(to("0"), message(b""));
        let items = queue.take(1 << 30);
        let last = envelope::open(&items.last().unwrap().bytes).unwrap().origin.unwrap().place;
        assert_eq!(last, Place { overall: TOPICS as u64 + 2, epoch: 2, on_topic: 1 });
        assert!(queue.on_topics.len() <= TOPICS);
    }
}
