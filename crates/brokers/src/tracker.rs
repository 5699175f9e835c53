//! Tracks received messages: drops duplicates and unwanted messages, and counts missing ones.
//!
//! Brokers deliver a message once for each matching subscription, and some subscriptions match too much. Messages of
//! nodes carry numbers, which identify duplicates. For messages of other programs, only one of the matching
//! subscriptions counts. Called only by the client's thread.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::RandomState;
use wirespeed_engine::broker::{self, Message};
use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::topics::{Index, Pattern, Topic};

use crate::batch;
use crate::envelope::{self, NodeId, Origin};
use crate::seen::SeenNumbers;
use crate::subscriptions::DroppedPattern;

/// The maximum number of publishers, and of pairs of publisher and topic, whose last number is kept. If there are more,
/// all are forgotten, and messages missing at that moment are not counted.
const MAX_TRACKED: usize = 64 * 1024;

/// The largest gap between two numbers of a publisher on a topic that counts as lost messages. With a larger gap, one
/// of the two numbers is wrong.
const MAX_GAP: u64 = 1 << 24;

/// The receivers of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Recipients {
    /// The subscribers of a topic.
    Topic(Topic),
    /// All sessions.
    All,
}

/// The result of [`DeliveryTracker::arrive`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival<'a> {
    /// Deliver the message to sessions.
    Deliver(Recipients, Message<'a>),
    /// Ignore it: it is a duplicate, our own, or unwanted.
    Ignore,
    /// It is malformed.
    Invalid,
}

/// The last number of a publisher on a topic.
#[derive(Clone, Debug)]
struct LastNumber {
    node: NodeId,
    epoch: u32,
    number: u64,
    /// Which numbers have arrived, if topics arrive over different connections.
    seen: Option<Box<SeenNumbers>>,
}

/// The account of received messages for one broker.
///
/// 1. Call [`Self::follow`] and [`Self::request`] before a subscription is requested, and [`Self::confirm`] when the broker
///    has confirmed it.
/// 2. Pass each received message to [`Self::arrive`], and then read [`Self::take_lost`].
/// 3. Call [`Self::end`] before subscriptions are ended, [`Self::forget_dropped`] for those that were unwanted for a
///    while, and [`Self::disconnect`] when the connection is lost.
#[derive(Debug)]
pub(crate) struct DeliveryTracker {
    own: NodeId,
    /// The prefix of topics with its separator, or empty.
    prefix: String,
    /// Topics arrive over different connections, so messages of different topics may overtake each other.
    scattered: bool,
    /// The requested subscriptions, by number.
    requested: Index<u32>,
    /// The confirmed subscriptions.
    confirmed: Index<u32>,
    numbers: HashMap<Pattern, u32, RandomState>,
    last_number: u32,
    /// Patterns that were requested and not unsubscribed since, connected or not. Messages on matching topics are
    /// wanted.
    followed: Index<()>,
    /// Which numbers of each publisher have arrived.
    overall: HashMap<NodeId, SeenNumbers, RandomState>,
    on_topics: HashMap<Topic, Vec<LastNumber>, RandomState>,
    /// The total length of the lists in `on_topics`.
    pair_count: usize,
    /// The number of lost messages since [`Self::take_lost`].
    lost: u64,
    /// The topic of the last message, which the next one often shares.
    topic: Option<Topic>,
}

impl DeliveryTracker {
    /// `scattered`: topics arrive over different connections.
    pub(crate) fn new(own: NodeId, prefix: &str, scattered: bool) -> Self {
        Self {
            own,
            prefix: prefix.to_owned(),
            scattered,
            requested: Index::new(),
            confirmed: Index::new(),
            numbers: HashMap::default(),
            last_number: 0,
            followed: Index::new(),
            overall: HashMap::default(),
            on_topics: HashMap::default(),
            pair_count: 0,
            lost: 0,
            topic: None,
        }
    }

    /// Follows a pattern: messages on its topics are wanted from now on, connected or not.
    pub(crate) fn follow(&mut self, pattern: &Pattern) {
        self.followed.insert(pattern, ());
    }

    /// A subscription is about to be requested: its messages are wanted from now on.
    pub(crate) fn request(&mut self, pattern: &Pattern) {
        self.last_number = self.last_number.wrapping_add(1);
        let number = *self.numbers.entry(pattern.clone()).or_insert(self.last_number);
        self.requested.insert(pattern, number);
    }

    /// Returns whether a subscription was requested and not ended since.
    pub(crate) fn has_requested(&self, pattern: &Pattern) -> bool {
        self.numbers.contains_key(pattern)
    }

    /// The broker confirmed the subscription: it delivers messages published from now on.
    pub(crate) fn confirm(&mut self, pattern: &Pattern) {
        if let Some(number) = self.numbers.get(pattern) {
            self.confirmed.insert(pattern, *number);
        }
    }

    /// The messages of a pattern are unwanted from now on.
    pub(crate) fn unfollow(&mut self, pattern: &Pattern) {
        self.followed.remove(pattern, ());
        if let Some(number) = self.numbers.remove(pattern) {
            self.requested.remove(pattern, number);
            self.confirmed.remove(pattern, number);
        }
    }

    /// Subscriptions are about to be ended. Messages published until they are requested again do not count as missing,
    /// unless another subscription matches their topic.
    pub(crate) fn end<'a>(&mut self, patterns: impl Iterator<Item = &'a Pattern> + Clone) {
        patterns.clone().for_each(|pattern| self.unfollow(pattern));
        let requested = std::mem::take(&mut self.requested);
        self.forget(patterns, &requested);
        self.requested = requested;
    }

    /// The patterns were unwanted for a while. Messages published then do not count as missing, unless another pattern
    /// that was followed all the time matches their topic.
    pub(crate) fn forget_dropped(&mut self, left: &[DroppedPattern]) {
        if left.is_empty() {
            return; // the common case, before each message
        }
        for dropped in left {
            self.followed.remove(&dropped.pattern, ());
        }
        let followed = std::mem::take(&mut self.followed);
        self.forget(left.iter().map(|dropped| &dropped.pattern), &followed);
        self.followed = followed;
        for dropped in left {
            match dropped.wanted_again {
                None => self.unfollow(&dropped.pattern), // its messages may still arrive until it is unsubscribed
                Some(subscribed) => {
                    self.follow(&dropped.pattern);
                    self.request(&dropped.pattern);
                    if subscribed {
                        self.confirm(&dropped.pattern);
                    }
                }
            }
        }
    }

    /// Forgets the numbers on topics that match one of `left` and none of `kept`. Each topic is examined once, however
    /// many patterns there are.
    fn forget<'a, K: Copy + Eq + Hash>(&mut self, left: impl Iterator<Item = &'a Pattern>, kept: &Index<K>) {
        let mut wildcards = Index::new();
        for pattern in left {
            if !pattern.is_exact() {
                wildcards.insert(pattern, ());
            } else if let Ok(topic) = Topic::new(pattern.as_str())
                && !matches(kept, &topic)
            {
                let removed = self.on_topics.remove(&topic);
                self.pair_count -= removed.map_or(0, |known| known.len());
            }
        }
        if wildcards.is_empty() {
            return;
        }
        let Self { on_topics, pair_count, .. } = self;
        on_topics.retain(|topic, known| {
            // The numbers of broadcasts stay: they do not depend on patterns.
            let keep = topic.as_str() == ALL || !matches(&wildcards, topic) || matches(kept, topic);
            *pair_count -= if keep { 0 } else { known.len() };
            keep
        });
    }

    /// The connection was lost, with all subscriptions. Wanted messages published meanwhile count as missing.
    pub(crate) fn disconnect(&mut self) {
        self.requested = Index::new();
        self.confirmed = Index::new();
        self.numbers.clear();
    }

    /// Returns the number of messages lost since the last call.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// Returns whether a message or batch comes from this node, without unwrapping it completely.
    pub(crate) fn is_from(bytes: &[u8], node: &NodeId) -> bool {
        envelope::open(batch::first(bytes)).and_then(|opened| opened.origin).is_some_and(|origin| origin.node == *node)
    }

    /// Returns the sort key of a message or batch: its publisher, and the number of its first message.
    pub(crate) fn sort_key(bytes: &[u8]) -> Option<(NodeId, u64)> {
        let origin = envelope::open(batch::first(bytes))?.origin?;
        Some((origin.node, origin.place.overall))
    }

    /// Handles one message. `via`: the patterns of the subscription that delivered it, if the broker delivers once for
    /// each.
    pub(crate) fn arrive<'a>(&mut self, name: &str, via: Option<&[Pattern]>, bytes: &'a [u8]) -> Arrival<'a> {
        let Some(name) = name.strip_prefix(self.prefix.as_str()) else { return Arrival::Ignore };
        let opened = envelope::open(bytes);
        let origin = opened.and_then(|opened| opened.origin);
        if origin.is_some_and(|origin| origin.node == self.own) {
            return Arrival::Ignore;
        }
        let Some(topic) = self.topic(name) else { return Arrival::Invalid };
        let all = name == ALL;
        let wanted = match all {
            // A subscription to all topics also delivers broadcasts.
            true => via.is_none() || origin.is_some(),
            false => !broker::is_reserved(&topic) && self.is_wanted(&topic, via, origin.is_some()),
        };
        if !wanted {
            return Arrival::Ignore;
        }
        let Some(opened) = opened else { return Arrival::Invalid };
        let message = Message { kind: opened.kind, payload: opened.payload, key: opened.key };
        // Any program may have written the envelope, and clients close a connection that delivers invalid text.
        if message.kind == MessageKind::Text && std::str::from_utf8(message.payload).is_err() {
            return Arrival::Invalid;
        }
        match origin {
            Some(origin) if !self.is_new(&topic, origin) => Arrival::Ignore,
            _ => Arrival::Deliver(if all { Recipients::All } else { Recipients::Topic(topic) }, message),
        }
    }

    fn topic(&mut self, name: &str) -> Option<Topic> {
        if self.topic.as_ref().is_none_or(|last| last.as_str() != name) {
            self.topic = Some(Topic::new(name).ok()?);
        }
        self.topic.clone()
    }

    fn is_wanted(&self, topic: &Topic, via: Option<&[Pattern]>, numbered: bool) -> bool {
        let first = |index: &Index<u32>| index.matching(topic).next().and_then(|set| set.iter().next());
        let Some(requested) = first(&self.requested) else { return false };
        match via {
            // Duplicates of numbered messages are dropped later. An unconfirmed subscription may not deliver everything
            // yet.
            Some(via) if !numbered => {
                let counts = first(&self.confirmed).unwrap_or(requested);
                via.iter().any(|pattern| self.numbers.get(pattern) == Some(&counts))
            }
            _ => true,
        }
    }

    /// Records the number of a message, and counts the missing ones before it. Returns whether the message is new. A
    /// forged number hides at most the genuine message with the same number, and counts as a gap of at most [`MAX_GAP`]
    /// messages.
    fn is_new(&mut self, topic: &Topic, Origin { node, place }: Origin) -> bool {
        if self.overall.len() >= MAX_TRACKED && !self.overall.contains_key(&node) {
            self.overall.clear();
        }
        if !self.scattered && !self.overall.entry(node).or_default().record(place.overall) {
            return false;
        }
        if self.pair_count >= MAX_TRACKED {
            self.on_topics.clear();
            self.pair_count = 0;
        }
        let known = match self.on_topics.get_mut(topic) {
            Some(known) => known,
            None => self.on_topics.entry(topic.clone()).or_default(),
        };
        match known.iter_mut().find(|last| last.node == node) {
            Some(last) => {
                if last.epoch != place.epoch {
                    last.seen = last.seen.take().map(|_| Box::default());
                }
                if last.seen.as_mut().is_some_and(|seen| !seen.record(place.on_topic)) {
                    return false;
                }
                let missing = place.on_topic.saturating_sub(last.number).saturating_sub(1);
                if last.epoch == place.epoch && missing <= MAX_GAP {
                    self.lost += missing;
                }
                (last.epoch, last.number) = (place.epoch, place.on_topic);
            }
            None => {
                let seen = self.scattered.then(|| Box::new(SeenNumbers::of(place.on_topic)));
                known.push(LastNumber { node, epoch: place.epoch, number: place.on_topic, seen });
                self.pair_count += 1;
            }
        }
        true
    }
}

fn matches<K: Copy + Eq + Hash>(index: &Index<K>, topic: &Topic) -> bool {
    index.matching(topic).next().is_some()
}

/// The name of broadcasts, which no application may use as a topic.
pub(crate) const ALL: &str = "_wirespeed.broadcast";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::envelope::{Place, seal};

    const OWN: NodeId = [0; 16];
    const OTHER: NodeId = [1; 16];

    fn pattern(text: &str) -> Pattern {
        Pattern::new(text).unwrap()
    }

    fn tracker(patterns: &[&str]) -> DeliveryTracker {
        let mut tracker = DeliveryTracker::new(OWN, "app.", false);
        for text in patterns {
            tracker.request(&pattern(text));
            tracker.confirm(&pattern(text));
        }
        tracker
    }

    fn sealed(node: NodeId, overall: u64, on_topic: u64) -> Vec<u8> {
        let place = Place { overall, epoch: 1, on_topic };
        seal(Origin { node, place }, MessageKind::Text, None, b"x")
    }

    fn delivered(tracker: &mut DeliveryTracker, name: &str, via: Option<&str>, bytes: &[u8]) -> bool {
        let via = via.map(pattern);
        matches!(tracker.arrive(name, via.as_ref().map(std::slice::from_ref), bytes), Arrival::Deliver(..))
    }

    #[test]
    fn message_is_delivered_once_for_several_subscriptions() {
        let mut tracker = tracker(&["a.b", "a.*", ">"]);
        for number in 1..=3 {
            let bytes = sealed(OTHER, number, number);
            let brought = ["a.*", ">", "a.b"].map(|via| delivered(&mut tracker, "app.a.b", Some(via), &bytes));
            assert_eq!(brought, [true, false, false]);
            let foreign = ["a.*", ">", "a.b"].map(|via| delivered(&mut tracker, "app.a.b", Some(via), b"x"));
            assert_eq!(foreign, [false, false, true]);
        }
        assert_eq!(tracker.take_lost(), 0);
    }

    #[test]
    fn unconfirmed_subscription_does_not_count_yet() {
        let mut tracker = tracker(&["a.*"]);
        tracker.request(&pattern("a.b"));
        assert!(delivered(&mut tracker, "app.a.b", Some("a.*"), b"x"));
        assert!(!delivered(&mut tracker, "app.a.b", Some("a.b"), b"x"));
        tracker.confirm(&pattern("a.b"));
        assert!(!delivered(&mut tracker, "app.a.b", Some("a.*"), b"x"));
        assert!(delivered(&mut tracker, "app.a.b", Some("a.b"), b"x"));
    }

    #[test]
    fn own_and_unwanted_messages_are_ignored() {
        let mut tracker = tracker(&["a.*"]);
        assert!(!delivered(&mut tracker, "app.a.b", Some("a.*"), &sealed(OWN, 1, 1)));
        // With Redis, a `*` also matches separators.
        assert!(!delivered(&mut tracker, "app.a.b.c", Some("a.*"), &sealed(OTHER, 1, 1)));
        assert!(!delivered(&mut tracker, "other.a.b", Some("a.*"), &sealed(OTHER, 2, 1)));
        tracker.end([pattern("a.*")].iter());
        assert!(!delivered(&mut tracker, "app.a.b", Some("a.*"), &sealed(OTHER, 3, 1)));
        assert_eq!(tracker.arrive("app.a b", None, b"x"), Arrival::Invalid);
        tracker.request(&pattern(">"));
        assert!(delivered(&mut tracker, "app.a.b", None, b"x"));
        assert_eq!(tracker.arrive("app._wirespeed.x", None, b"x"), Arrival::Ignore);
        assert_eq!(tracker.arrive("app.one._wirespeed.x", None, b"x"), Arrival::Ignore);
    }

    #[test]
    fn broadcast_is_delivered_to_all_sessions() {
        let mut tracker = tracker(&[]);
        let bytes = sealed(OTHER, 1, 1);
        assert!(matches!(
            tracker.arrive("app._wirespeed.broadcast", None, &bytes),
            Arrival::Deliver(Recipients::All, _)
        ));
        assert_eq!(tracker.arrive("app._wirespeed.broadcast", Some(&[pattern(">")]), &bytes), Arrival::Ignore);
    }

    #[test]
    fn missing_broadcasts_count_although_patterns_were_ended() {
        let mut tracker = tracker(&[">"]);
        assert!(delivered(&mut tracker, "app._wirespeed.broadcast", None, &sealed(OTHER, 1, 1)));
        tracker.end([pattern(">")].iter());
        assert!(delivered(&mut tracker, "app._wirespeed.broadcast", None, &sealed(OTHER, 3, 3)));
        assert_eq!(tracker.take_lost(), 1);
    }

    #[test]
    fn forged_number_neither_silences_a_publisher_nor_counts_as_lost() {
        for scattered in [false, true] {
            let mut tracker = DeliveryTracker::new(OWN, "app.", scattered);
            tracker.request(&pattern("a"));
            let mut comes =
                |overall, on_topic| delivered(&mut tracker, "app.a", None, &sealed(OTHER, overall, on_topic));
            assert!(comes(1, 1));
            assert!(comes(u64::MAX, u64::MAX));
            assert!(comes(2, 2), "scattered: {scattered}");
            assert!(!comes(2, 2));
            assert!(comes(3, u64::MAX));
            assert!(comes(4, 4));
            assert!(comes(MAX_GAP * 4, MAX_GAP * 2));
            assert!(comes(5, 5));
            assert!(comes(6, 6));
            assert_eq!(tracker.take_lost(), 0);
        }
    }

    /// A number that is slightly too large used to hide all messages up to it.
    #[test]
    fn forged_number_hides_at_most_one_message() {
        for scattered in [false, true] {
            let mut tracker = DeliveryTracker::new(OWN, "app.", scattered);
            tracker.request(&pattern("a"));
            let mut comes = |number| delivered(&mut tracker, "app.a", None, &sealed(OTHER, number, number));
            assert!(comes(1));
            assert!(comes(1000), "the forged message is delivered");
            (2..1000).for_each(|number| assert!(comes(number), "{number}, scattered: {scattered}"));
            (2..=1000).for_each(|number| assert!(!comes(number), "{number}, scattered: {scattered}"));
            assert!(comes(1001));
        }
    }

    #[test]
    fn text_that_is_not_utf8_is_invalid() {
        let mut tracker = tracker(&["a"]);
        let place = Place { overall: 1, epoch: 1, on_topic: 1 };
        let bytes = |kind| seal(Origin { node: OTHER, place }, kind, None, b"\xff\xfe");
        assert_eq!(tracker.arrive("app.a", None, &bytes(MessageKind::Text)), Arrival::Invalid);
        assert!(delivered(&mut tracker, "app.a", None, &bytes(MessageKind::Binary)));
        assert_eq!(tracker.arrive("app._wirespeed.broadcast", None, &bytes(MessageKind::Text)), Arrival::Invalid);
    }

    #[test]
    fn missing_messages_are_counted() {
        let mut tracker = tracker(&["a", "b.*"]);
        assert!(delivered(&mut tracker, "app.a", None, &sealed(OTHER, 10, 5)));
        assert!(delivered(&mut tracker, "app.a", None, &sealed(OTHER, 11, 6)));
        assert_eq!(tracker.take_lost(), 0);
        tracker.disconnect();
        for text in ["a", "b.*"] {
            tracker.request(&pattern(text));
        }
        assert!(delivered(&mut tracker, "app.a", None, &sealed(OTHER, 20, 10)));
        assert_eq!(tracker.take_lost(), 3);
        // Another subscription matches the topic, so its numbers are kept.
        tracker.request(&pattern(">"));
        tracker.end([pattern("a")].iter());
        assert!(delivered(&mut tracker, "app.a", None, &sealed(OTHER, 21, 12)));
        assert_eq!(tracker.take_lost(), 1);
        tracker.request(&pattern("a"));
        tracker.end([pattern(">")].iter());
        assert!(delivered(&mut tracker, "app.a", None, &sealed(OTHER, 22, 15)));
        assert_eq!(tracker.take_lost(), 2);
        // Messages without a subscription are not missing.
        tracker.end([pattern("a")].iter());
        tracker.request(&pattern("a"));
        assert!(delivered(&mut tracker, "app.a", None, &sealed(OTHER, 30, 20)));
        assert!(delivered(&mut tracker, "app.b.x", None, &sealed(OTHER, 31, 1)));
        tracker.end([pattern("b.*")].iter());
        assert_eq!(tracker.pair_count, 1);
        assert_eq!(tracker.take_lost(), 0);
    }
}
