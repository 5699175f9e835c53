//! What came from the broker: what of it is for this node's sessions, and what is missing.
//!
//! Brokers bring a message once for each subscription that matches, and some match more than they should. Of the
//! messages of nodes each has a number, so that one that came before is known; of those of others one subscription is
//! the one that counts. Called by the node's thread alone.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::RandomState;
use wirespeed_engine::broker::{self, Message};
use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::topics::{Index, Pattern, Topic};

use crate::batch;
use crate::envelope::{self, NodeId, Origin};
use crate::seen::Seen;
use crate::subscriptions::Left;

/// Publishers, and topics of publishers, of which the last number is remembered. If there are more, all are
/// forgotten, and what is missing at that moment is not counted.
const REMEMBERED: usize = 64 * 1024;

/// The largest gap between two numbers of a publisher on a topic that counts as lost messages. With a larger gap, one of the
/// two numbers is wrong, and the gap says nothing.
const MISSING: u64 = 1 << 24;

/// What a message is for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// Those who subscribe to it.
    Topic(Topic),
    /// All.
    All,
}

/// What is to be done with what came.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival<'a> {
    /// It goes to sessions.
    Deliver(For, Message<'a>),
    /// It was here before, is our own, or nobody wants it.
    Ignore,
    /// It is none.
    Invalid,
}

/// The last number of a publisher on a topic.
#[derive(Clone, Debug)]
struct Last {
    node: NodeId,
    epoch: u32,
    number: u64,
    /// Which numbers have arrived, where topics come by different connections.
    seen: Option<Box<Seen>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct DeliveryTracker {
    own: NodeId,
    /// With its separator; empty if there is none.
    prefix: String,
    /// Topics come by different connections: what is later on one may come before what is earlier on another.
    scattered: bool,
    /// What was asked of the broker, by numbers.
    asked: Index<u32>,
    /// What it has confirmed.
    confirmed: Index<u32>,
    numbers: HashMap<Pattern, u32, RandomState>,
    last_number: u32,
    /// What was taken to be asked for, and not left since, whether there is a connection or not: what is published to
    /// topics that these match is wanted.
    followed: Index<()>,
    /// Which numbers of each publisher have arrived.
    overall: HashMap<NodeId, Seen, RandomState>,
    on_topics: HashMap<Topic, Vec<Last>, RandomState>,
    /// How many there are in that.
    remembered: usize,
    /// Messages that did not come.
    lost: u64,
    /// That of the last message: the next one's, mostly.
    topic: Option<Topic>,
}

impl DeliveryTracker {
    /// `scattered`: topics come by different connections.
    pub(crate) fn new(own: NodeId, prefix: &str, scattered: bool) -> Self {
        Self {
            own,
            prefix: prefix.to_owned(),
            scattered,
            asked: Index::new(),
            confirmed: Index::new(),
            numbers: HashMap::default(),
            last_number: 0,
            followed: Index::new(),
            overall: HashMap::default(),
            on_topics: HashMap::default(),
            remembered: 0,
            lost: 0,
            topic: None,
        }
    }

    /// It was taken to be asked for.
    pub(crate) fn follow(&mut self, pattern: &Pattern) {
        self.followed.insert(pattern, ());
    }

    /// A subscription is about to be asked for: what it brings is wanted from now on.
    pub(crate) fn ask(&mut self, pattern: &Pattern) {
        self.last_number = self.last_number.wrapping_add(1);
        let number = *self.numbers.entry(pattern.clone()).or_insert(self.last_number);
        self.asked.insert(pattern, number);
    }

    /// Whether it was asked for, and not left since.
    pub(crate) fn has_asked(&self, pattern: &Pattern) -> bool {
        self.numbers.contains_key(pattern)
    }

    /// The broker has it: what was published since came by it.
    pub(crate) fn confirm(&mut self, pattern: &Pattern) {
        if let Some(number) = self.numbers.get(pattern) {
            self.confirmed.insert(pattern, *number);
        }
    }

    /// Nobody wants what it brings.
    pub(crate) fn leave(&mut self, pattern: &Pattern) {
        self.followed.remove(pattern, ());
        if let Some(number) = self.numbers.remove(pattern) {
            self.asked.remove(pattern, number);
            self.confirmed.remove(pattern, number);
        }
    }

    /// They are about to be ended. What is published before one is asked for again is not missing then, but to topics
    /// that others bring.
    pub(crate) fn end<'a>(&mut self, patterns: impl Iterator<Item = &'a Pattern> + Clone) {
        patterns.clone().for_each(|pattern| self.leave(pattern));
        let asked = std::mem::take(&mut self.asked);
        self.forget(patterns, &asked);
        self.asked = asked;
    }

    /// Nobody wanted them for a while: what was published then is not missing, but to topics of others that were followed all
    /// the time.
    pub(crate) fn forget_left(&mut self, left: &[Left]) {
        if left.is_empty() {
            return; // before each message, mostly
        }
        for one in left {
            self.followed.remove(&one.pattern, ());
        }
        let followed = std::mem::take(&mut self.followed);
        self.forget(left.iter().map(|one| &one.pattern), &followed);
        self.followed = followed;
        for one in left {
            match one.again {
                None => self.leave(&one.pattern), // it may still come until the broker was told
                Some(there) => {
                    self.follow(&one.pattern);
                    self.ask(&one.pattern);
                    if there {
                        self.confirm(&one.pattern);
                    }
                }
            }
        }
    }

    /// Forgets the numbers on topics that one of these matches, and none that `stay`: however many there are, each
    /// topic is looked at once.
    fn forget<'a, K: Copy + Eq + Hash>(&mut self, left: impl Iterator<Item = &'a Pattern>, stay: &Index<K>) {
        let mut wild = Index::new();
        for pattern in left {
            if !pattern.is_exact() {
                wild.insert(pattern, ());
            } else if let Ok(topic) = Topic::new(pattern.as_str())
                && !matches(stay, &topic)
            {
                let removed = self.on_topics.remove(&topic);
                self.remembered -= removed.map_or(0, |known| known.len());
            }
        }
        if wild.is_empty() {
            return;
        }
        let Self { on_topics, remembered, .. } = self;
        on_topics.retain(|topic, known| {
            // Those of what is for all stay: no pattern has brought it.
            let keep = topic.as_str() == ALL || !matches(&wild, topic) || matches(stay, topic);
            *remembered -= if keep { 0 } else { known.len() };
            keep
        });
    }

    /// The connection is gone: nothing is subscribed to. What was published meanwhile is missing.
    pub(crate) fn disconnect(&mut self) {
        self.asked = Index::new();
        self.confirmed = Index::new();
        self.numbers.clear();
    }

    /// How many messages did not come, since the last call.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// Whether it is, or they are, of this node: for who need not look further.
    pub(crate) fn is_from(bytes: &[u8], node: &NodeId) -> bool {
        envelope::open(batch::first(bytes)).and_then(|opened| opened.origin).is_some_and(|origin| origin.node == *node)
    }

    /// Whose message it is and its number among all of theirs, of several the first one's: for who puts in order what came in no order.
    pub(crate) fn order(bytes: &[u8]) -> Option<(NodeId, u64)> {
        let origin = envelope::open(batch::first(bytes))?.origin?;
        Some((origin.node, origin.place.overall))
    }

    /// What is to be done with a message. `via`: of which patterns is the subscription by which it came, if the broker
    /// brings one for each.
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
            // A subscription to everything brings it too.
            true => via.is_none() || origin.is_some(),
            false => !broker::is_reserved(&topic) && self.is_wanted(&topic, via, origin.is_some()),
        };
        if !wanted {
            return Arrival::Ignore;
        }
        let Some(opened) = opened else { return Arrival::Invalid };
        let message = Message { kind: opened.kind, payload: opened.payload, key: opened.key };
        // Any program may have written the envelope. Clients close a connection on which invalid text arrives.
        if message.kind == MessageKind::Text && std::str::from_utf8(message.payload).is_err() {
            return Arrival::Invalid;
        }
        match origin {
            Some(origin) if !self.is_new(&topic, origin) => Arrival::Ignore,
            _ => Arrival::Deliver(if all { For::All } else { For::Topic(topic) }, message),
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
        let Some(asked) = first(&self.asked) else { return false };
        match via {
            // What came before is known by its number; what is not confirmed may not bring everything.
            Some(via) if !numbered => {
                let counts = first(&self.confirmed).unwrap_or(asked);
                via.iter().any(|pattern| self.numbers.get(pattern) == Some(&counts))
            }
            _ => true,
        }
    }

    /// Whether a message did not arrive before; counts the messages that are missing before it. A forged number hides the
    /// genuine message with the same number at most, and may count as a gap of up to [`MISSING`] messages.
    fn is_new(&mut self, topic: &Topic, Origin { node, place }: Origin) -> bool {
        if self.overall.len() >= REMEMBERED && !self.overall.contains_key(&node) {
            self.overall.clear();
        }
        if !self.scattered && !self.overall.entry(node).or_default().note(place.overall) {
            return false;
        }
        if self.remembered >= REMEMBERED {
            self.on_topics.clear();
            self.remembered = 0;
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
                if last.seen.as_mut().is_some_and(|seen| !seen.note(place.on_topic)) {
                    return false;
                }
                let missing = place.on_topic.saturating_sub(last.number).saturating_sub(1);
                if last.epoch == place.epoch && missing <= MISSING {
                    self.lost += missing;
                }
                (last.epoch, last.number) = (place.epoch, place.on_topic);
            }
            None => {
                let seen = self.scattered.then(|| Box::new(Seen::of(place.on_topic)));
                known.push(Last { node, epoch: place.epoch, number: place.on_topic, seen });
                self.remembered += 1;
            }
        }
        true
    }
}

fn matches<K: Copy + Eq + Hash>(index: &Index<K>, topic: &Topic) -> bool {
    index.matching(topic).next().is_some()
}

/// What is for all is published here: no name that an application may use.
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
            tracker.ask(&pattern(text));
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
    fn once_however_many_subscriptions_bring_it() {
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
    fn what_is_not_confirmed_does_not_count_yet() {
        let mut tracker = tracker(&["a.*"]);
        tracker.ask(&pattern("a.b"));
        assert!(delivered(&mut tracker, "app.a.b", Some("a.*"), b"x"));
        assert!(!delivered(&mut tracker, "app.a.b", Some("a.b"), b"x"));
        tracker.confirm(&pattern("a.b"));
        assert!(!delivered(&mut tracker, "app.a.b", Some("a.*"), b"x"));
        assert!(delivered(&mut tracker, "app.a.b", Some("a.b"), b"x"));
    }

    #[test]
    fn neither_ours_nor_what_nobody_wants() {
        let mut tracker = tracker(&["a.*"]);
        assert!(!delivered(&mut tracker, "app.a.b", Some("a.*"), &sealed(OWN, 1, 1)));
        // Redis: a `*` goes over separators.
        assert!(!delivered(&mut tracker, "app.a.b.c", Some("a.*"), &sealed(OTHER, 1, 1)));
        assert!(!delivered(&mut tracker, "other.a.b", Some("a.*"), &sealed(OTHER, 2, 1)));
        tracker.end([pattern("a.*")].iter());
        assert!(!delivered(&mut tracker, "app.a.b", Some("a.*"), &sealed(OTHER, 3, 1)));
        assert_eq!(tracker.arrive("app.a b", None, b"x"), Arrival::Invalid);
        tracker.ask(&pattern(">"));
        assert!(delivered(&mut tracker, "app.a.b", None, b"x"));
        assert_eq!(tracker.arrive("app._wirespeed.x", None, b"x"), Arrival::Ignore);
        assert_eq!(tracker.arrive("app.one._wirespeed.x", None, b"x"), Arrival::Ignore);
    }

    #[test]
    fn to_all() {
        let mut tracker = tracker(&[]);
        let bytes = sealed(OTHER, 1, 1);
        assert!(matches!(tracker.arrive("app._wirespeed.broadcast", None, &bytes), Arrival::Deliver(For::All, _)));
        assert_eq!(tracker.arrive("app._wirespeed.broadcast", Some(&[pattern(">")]), &bytes), Arrival::Ignore);
    }

    #[test]
    fn what_is_for_all_is_missed_whatever_was_left() {
        let mut tracker = tracker(&[">"]);
        assert!(delivered(&mut tracker, "app._wirespeed.broadcast", None, &sealed(OTHER, 1, 1)));
        tracker.end([pattern(">")].iter());
        assert!(delivered(&mut tracker, "app._wirespeed.broadcast", None, &sealed(OTHER, 3, 3)));
        assert_eq!(tracker.take_lost(), 1);
    }

    #[test]
    fn a_forged_number_silences_no_publisher_and_counts_nothing_as_lost() {
        for scattered in [false, true] {
            let mut tracker = DeliveryTracker::new(OWN, "app.", scattered);
            tracker.ask(&pattern("a"));
            let mut comes =
                |overall, on_topic| delivered(&mut tracker, "app.a", None, &sealed(OTHER, overall, on_topic));
            assert!(comes(1, 1));
            assert!(comes(u64::MAX, u64::MAX));
            assert!(comes(2, 2), "scattered: {scattered}");
            assert!(!comes(2, 2));
            assert!(comes(3, u64::MAX));
            assert!(comes(4, 4));
            assert!(comes(MISSING * 4, MISSING * 2));
            assert!(comes(5, 5));
            assert!(comes(6, 6));
            assert_eq!(tracker.take_lost(), 0);
        }
    }

    /// A number that is a little too large hid all messages up to it.
    #[test]
    fn a_forged_number_hides_one_message_at_most() {
        for scattered in [false, true] {
            let mut tracker = DeliveryTracker::new(OWN, "app.", scattered);
            tracker.ask(&pattern("a"));
            let mut comes = |number| delivered(&mut tracker, "app.a", None, &sealed(OTHER, number, number));
            assert!(comes(1));
            assert!(comes(1000), "it is forged");
            (2..1000).for_each(|number| assert!(comes(number), "{number}, scattered: {scattered}"));
            (2..=1000).for_each(|number| assert!(!comes(number), "{number}, scattered: {scattered}"));
            assert!(comes(1001));
        }
    }

    #[test]
    fn text_that_is_none_does_not_go_on() {
        let mut tracker = tracker(&["a"]);
        let place = Place { overall: 1, epoch: 1, on_topic: 1 };
        let bytes = |kind| seal(Origin { node: OTHER, place }, kind, None, b"\xff\xfe");
        assert_eq!(tracker.arrive("app.a", None, &bytes(MessageKind::Text)), Arrival::Invalid);
        assert!(delivered(&mut tracker, "app.a", None, &bytes(MessageKind::Binary)));
        assert_eq!(tracker.arrive("app._wirespeed.broadcast", None, &bytes(MessageKind::Text)), Arrival::Invalid);
    }

    #[test]
    fn what_is_missing_is_counted() {
        let mut tracker = tracker(&["a", "b.*"]);
        assert!(delivered(&mut tracker, "app.a", None, &sealed(OTHER, 10, 5)));
        assert!(delivered(&mut tracker, "app.a", None, &sealed(OTHER, 11, 6)));
        assert_eq!(tracker.take_lost(), 0);
        tracker.disconnect();
        for text in ["a", "b.*"] {
            tracker.ask(&pattern(text));
        }
        assert!(delivered(&mut tracker, "app.a", None, &sealed(OTHER, 20, 10)));
        assert_eq!(tracker.take_lost(), 3);
        // What comes by another one too is not forgotten with it.
        tracker.ask(&pattern(">"));
        tracker.end([pattern("a")].iter());
        assert!(delivered(&mut tracker, "app.a", None, &sealed(OTHER, 21, 12)));
        assert_eq!(tracker.take_lost(), 1);
        tracker.ask(&pattern("a"));
        tracker.end([pattern(">")].iter());
        assert!(delivered(&mut tracker, "app.a", None, &sealed(OTHER, 22, 15)));
        assert_eq!(tracker.take_lost(), 2);
        // What nobody subscribed to is not missing.
        tracker.end([pattern("a")].iter());
        tracker.ask(&pattern("a"));
        assert!(delivered(&mut tracker, "app.a", None, &sealed(OTHER, 30, 20)));
        assert!(delivered(&mut tracker, "app.b.x", None, &sealed(OTHER, 31, 1)));
        tracker.end([pattern("b.*")].iter());
        assert_eq!(tracker.remembered, 1);
        assert_eq!(tracker.take_lost(), 0);
    }
}
