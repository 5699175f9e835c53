//! What is under way, and who is told of what: a node without its thread, which each test stands in for.

use std::sync::atomic::AtomicUsize;

use wirespeed_engine::broker::Unsendable;
use wirespeed_engine::driver::protocol::MessageKind;

use super::*;
use crate::queue::Item;

/// Hears that there is room.
#[derive(Default)]
struct Ears(AtomicUsize);

impl Sink for Ears {
    fn publish(&self, _: &Topic, _: Message<'_>) -> Result<bool, Unsendable> {
        Ok(true)
    }

    fn broadcast(&self, _: Message<'_>) -> Result<bool, Unsendable> {
        Ok(true)
    }

    fn wait_for_capacity(&self, _: Instant) -> bool {
        true
    }

    fn resume(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn noticed(&self) {}

    fn logs(&self) -> Arc<Logs> {
        Arc::new(Logs::new(Instant::now(), INTERVAL))
    }
}

fn shared(limit: usize, policy: Policy) -> (Shared, Arc<Ears>) {
    let ears = Arc::new(Ears::default());
    let hub = BrokerConfig { limit, policy, ..BrokerConfig::new(Address::parse("memory://x").unwrap()) };
    (Shared::new(&hub, Some(Arc::clone(&ears) as Arc<dyn Sink>), [1; 16]), ears)
}

fn push(shared: &Shared, bytes: usize) -> EnqueueResult {
    let payload = vec![b'x'; bytes];
    shared.push(To::Topic(Topic::new("t").unwrap()), Message { kind: MessageKind::Text, payload: &payload, key: None })
}

fn unconfirmed(shared: &Shared) -> u64 {
    shared.unconfirmed.load(Ordering::Relaxed)
}

#[test]
fn what_is_under_way_is_in_doubt_when_it_is_dropped() {
    let (shared, _ears) = shared(1 << 20, Policy::DropNewest);
    (0..5).for_each(|_| assert_eq!(push(&shared, 10), EnqueueResult::Yes));
    let mut in_flight = shared.in_flight();
    assert_eq!(in_flight.take(1 << 20).len(), 5);
    in_flight.settle(2);
    in_flight.refuse(1);
    assert_eq!(shared.flush(5, Some(Instant::now())), None);
    drop(in_flight);
    assert_eq!(shared.flush(5, Some(Instant::now())), Some(3));
    assert_eq!((unconfirmed(&shared), shared.refused.load(Ordering::Relaxed)), (2, 1));
}

#[test]
fn the_log_names_nats_only_at_nats() {
    for (url, named) in [("nats://x", true), ("redis://x", false), ("redis+cluster://x", false)] {
        let shared = Shared::new(&BrokerConfig::new(Address::parse(url).unwrap()), None, [1; 16]);
        shared.notify(Notice::Unconfirmed(3));
        let records = shared.logs().take(Instant::now());
        let [record] = &records[..] else { panic!("{} records", records.len()) };
        assert!(record.text.contains("3 messages may not have reached it"), "{}", record.text);
        assert_eq!(record.text.contains("NATS"), named, "{}", record.text);
    }
}

#[test]
fn a_refusal_is_forgotten_once_messages_are_taken_again() {
    let (shared, _ears) = shared(1 << 20, Policy::DropNewest);
    shared.set_connected();
    shared.set_reason("not allowed");
    let why = || locked(&shared.notices).why(false).cloned();
    shared.forget_refusal();
    assert_eq!(why().as_deref(), Some("not allowed"), "other messages may be allowed");
    let before = Instant::now().checked_sub(Duration::from_secs(5)).unwrap();
    locked(&shared.notices).refusal = Some(("not allowed".to_owned(), before));
    push(&shared, 10);
    let mut in_flight = shared.in_flight();
    in_flight.take(1 << 20);
    in_flight.refuse(0);
    assert!(why().is_some());
    in_flight.settle(1);
    assert_eq!(why(), None);
}

#[test]
fn what_a_panic_has_dropped_is_left_to_the_thread() {
    let (shared, _ears) = shared(1 << 20, Policy::DropNewest);
    push(&shared, 10);
    let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut in_flight = shared.in_flight();
        in_flight.take(1 << 20);
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(served.is_err());
    assert_eq!((unconfirmed(&shared), shared.queue.look(Queue::in_flight)), (0, 1));
}

#[test]
fn the_oldest_that_are_dropped_make_room() {
    let (shared, ears) = shared(2000, Policy::DropOldest);
    shared.set_connected();
    push(&shared, 900);
    push(&shared, 100);
    assert!(!shared.lets_relays_go_on());
    push(&shared, 900); // for which the first goes; the two that are left are more than the half
    assert!(!shared.lets_relays_go_on());
    assert_eq!(ears.0.load(Ordering::SeqCst), 0);
    let (shared, ears) = self::shared(2000, Policy::DropOldest);
    shared.set_connected();
    push(&shared, 1800);
    assert!(!shared.lets_relays_go_on());
    push(&shared, 100);
    assert!(shared.lets_relays_go_on());
    assert_eq!(ears.0.load(Ordering::SeqCst), 1);
}

#[test]
fn whoever_flushes_hears_of_what_was_dropped_for_others() {
    let (shared, _ears) = shared(2000, Policy::DropOldest);
    push(&shared, 1800);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let flushing = scope.spawn(|| shared.flush(1, Some(begun + Duration::from_secs(20))));
        while !shared.takes_flush() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20)); // it waits
        push(&shared, 1800);
        assert_eq!(flushing.join().unwrap(), Some(1));
    });
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn all_who_wait_are_told_of_what_is_missing() {
    let (shared, _ears) = shared(1 << 20, Policy::DropNewest);
    (0..3).for_each(|_| assert_eq!(push(&shared, 10), EnqueueResult::Yes));
    let mut in_flight = shared.in_flight();
    in_flight.take(1 << 20);
    let end = Some(Instant::now() + Duration::from_secs(20));
    std::thread::scope(|scope| {
        let flushing: Vec<_> = (1..=3)
            .map(|count| {
                scope.spawn({
                    let shared = &shared;
                    move || shared.flush(count, end)
                })
            })
            .collect();
        while !shared.takes_flush() {
            std::thread::yield_now();
        }
        drop(in_flight);
        for one in flushing {
            assert_eq!(one.join().unwrap(), Some(3));
        }
    });
    // Whoever asks later is told too what has become of his.
    assert_eq!((shared.flush(3, end), shared.missing()), (Some(3), 3));
}

fn randomly(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed >> 33).unwrap() % below
    }
}

/// Whatever happens, in any order: of room that was not there and is there everybody is told, each message is counted
/// once, and a flush ends once nothing is queued or under way.
#[test]
fn any_order() {
    let mut random = randomly(0x9e37_79b9_7f4a_7c15);
    for round in 0..300 {
        let policy = [Policy::DropNewest, Policy::DropOldest, Policy::Raise][round % 3];
        let (shared, ears) = shared(1000 + random(4000), policy);
        let mut in_flight = shared.in_flight();
        let mut taken = 0;
        for _ in 0..60 {
            let (before, told) = (shared.lets_relays_go_on(), ears.0.load(Ordering::SeqCst));
            let step = random(12);
            match step {
                0..5 => {
                    let bytes = random(2500);
                    taken += u64::from(push(&shared, bytes) == EnqueueResult::Yes);
                }
                5 | 6 => drop::<Vec<Item>>(in_flight.take(random(3000))),
                7 => in_flight.settle(random(4) as u64),
                8 => in_flight.refuse(random(2) as u64),
                9 => in_flight = shared.in_flight(), // the other one is dropped
                10 => shared.set_connected(),
                _ => shared.set_disconnected("it broke"),
            }
            let room = shared.lets_relays_go_on();
            assert!(before || !room || ears.0.load(Ordering::SeqCst) > told, "round {round}, step {step}: not told");
            let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let refused_by_broker = taken
                - count(&shared.published)
                - count(&shared.unconfirmed)
                - count(&shared.dropped)
                - in_flight.count()
                - shared.queue.look(Queue::len) as u64;
            assert!(
                refused_by_broker <= count(&shared.refused),
                "round {round}, step {step}: a message is not counted"
            );
            let nothing = in_flight.count() == 0 && shared.queue.look(Queue::len) == 0;
            assert_eq!(shared.flush(taken, Some(Instant::now())).is_some(), nothing, "round {round}, step {step}");
        }
    }
}

/// A topic of another node, and what came of it.
struct Heard {
    topic: Topic,
    /// Of the last message.
    number: u64,
    /// How many that were wanted have not come since the last that did.
    missing: u64,
    /// What has been wanted, and followed, all the time since then: the next that comes tells what is missing.
    covered: Vec<Pattern>,
}

/// What another node publishes, of which some comes: subscriptions at the broker, and whether there is a connection.
struct Simulated {
    shared: Shared,
    tracker: DeliveryTracker,
    /// They outlive a connection, as those of NATS do: what is published comes before the thread's turn, and while it waits
    /// to be confirmed.
    outlive: bool,
    connected: bool,
    wanted: Vec<Pattern>,
    there: Vec<Pattern>,
    /// What is to be confirmed.
    in_flight: Vec<(Pattern, bool)>,
    /// What was left since the thread's last turn.
    left: Vec<Pattern>,
    topics: Vec<Heard>,
    overall: u64,
}

impl Simulated {
    fn new(outlive: bool) -> Self {
        let (shared, _) = shared(1000, Policy::DropNewest);
        let topics = ["a", "b", "c"].map(|name| Heard {
            topic: Topic::new(name).unwrap(),
            number: 0,
            missing: 0,
            covered: Vec::new(),
        });
        let tracker = shared.tracker();
        Self {
            shared,
            tracker,
            outlive,
            connected: true,
            wanted: Vec::new(),
            there: Vec::new(),
            in_flight: Vec::new(),
            left: Vec::new(),
            topics: topics.into(),
            overall: 0,
        }
    }

    fn want(&mut self, pattern: &Pattern, wanted: bool) {
        locked(&self.shared.subscriptions).want(pattern, wanted);
        if wanted {
            self.wanted.push(pattern.clone());
        } else {
            self.left.push(pattern.clone());
            self.topics.iter_mut().map(|heard| &mut heard.covered).chain([&mut self.wanted]).for_each(|patterns| {
                patterns.retain(|other| other != pattern);
            });
        }
    }

    /// The thread's turn; `all`: it gets to its end.
    fn turn(&mut self, all: bool) {
        if !self.outlive && !self.connected {
            return;
        }
        let begins = self.in_flight.is_empty();
        if begins {
            self.begin();
        }
        if all || !begins {
            self.finish();
        } else if !self.outlive {
            self.set_connected(false);
        }
    }

    fn begin(&mut self) {
        self.in_flight = self.shared.take_interests(&mut self.tracker);
        self.left.clear();
        self.tracker.end(ended(&self.in_flight));
        for (pattern, wanted) in &self.in_flight {
            self.there.retain(|other| other != pattern);
            if *wanted {
                self.tracker.ask(pattern);
                self.there.push(pattern.clone());
            }
        }
    }

    fn finish(&mut self) {
        if !self.connected {
            return;
        }
        for (pattern, wanted) in std::mem::take(&mut self.in_flight) {
            if wanted {
                self.tracker.confirm(&pattern);
            }
            self.shared.done(&pattern, wanted);
        }
    }

    fn set_connected(&mut self, connected: bool) {
        if self.connected && !connected && !self.outlive {
            self.there.clear();
            self.in_flight.clear();
            self.shared.lose_subscriptions(&mut self.tracker);
        }
        let begins = connected && !self.connected;
        self.connected = connected;
        if begins && !self.outlive {
            self.turn(true); // before anything comes
        }
    }

    fn publish(&mut self, at: usize) {
        let Heard { topic, number, missing, covered } = &mut self.topics[at];
        let wanted = self.wanted.iter().any(|pattern| pattern.matches(topic));
        *number += 1;
        self.overall += 1;
        *missing += u64::from(wanted);
        if !self.connected || !self.there.iter().any(|pattern| pattern.matches(topic)) {
            return;
        }
        let place = crate::envelope::Place { overall: self.overall, epoch: 1, on_topic: *number };
        let origin = crate::envelope::Origin { node: [2; 16], place };
        let bytes = crate::envelope::seal(origin, MessageKind::Text, None, b"x");
        let counts = || [&self.shared.received, &self.shared.lost].map(|counter| counter.load(Ordering::Relaxed));
        let before = counts();
        self.shared.arrive(&mut self.tracker, &format!("{PREFIX}.{topic}"), None, &bytes);
        let after = counts();
        if after[0] == before[0] {
            // Nobody wants what brings it, though somebody may what was not asked for yet.
            let brings = |pattern: &&Pattern| pattern.matches(topic) && self.wanted.contains(*pattern);
            assert_eq!(self.there.iter().find(brings), None, "{topic} was not delivered");
            return;
        }
        *missing -= u64::from(wanted);
        let lost = after[1] - before[1];
        assert!(lost <= *missing, "{lost} of {topic} are said to be lost, and {missing} are");
        assert!(lost == *missing || covered.is_empty(), "{lost} of {topic} are said to be lost, and {missing} are");
        *missing = 0;
        let steady = |pattern: &&Pattern| self.there.contains(*pattern) && !self.left.contains(*pattern);
        *covered = self.wanted.iter().filter(|pattern| pattern.matches(topic)).filter(steady).cloned().collect();
    }
}

/// What is said to be missing was wanted when it was published; and all of that is, on a topic that was never left.
#[test]
fn what_is_lost_was_wanted() {
    const PATTERNS: [&str; 4] = ["a", "b", "c", "*"];
    let mut random = randomly(0x2545_f491_4f6c_dd1d);
    for round in 0..2000 {
        let mut simulated = Simulated::new(round % 2 == 0);
        let patterns = PATTERNS.map(|text| Pattern::new(text).unwrap());
        for _ in 0..120 {
            match random(10) {
                0 | 1 => {
                    let pattern = &patterns[random(patterns.len())];
                    let wanted = simulated.wanted.contains(pattern);
                    simulated.want(pattern, !wanted);
                }
                2 => simulated.set_connected(false),
                3 => simulated.set_connected(true),
                4 | 5 => simulated.turn(true),
                6 => simulated.turn(random(4) > 0),
                _ => simulated.publish(random(3)),
            }
        }
    }
}

fn lost(simulated: &Simulated) -> u64 {
    simulated.shared.lost.load(Ordering::Relaxed)
}

/// What a pattern has brought that was left while there was no connection is still missing for another one.
#[test]
fn what_another_pattern_has_wanted_all_the_time_is_lost() {
    for (stays, leaves) in [("*", "a"), ("a", "*")] {
        for connected in [false, true] {
            let mut simulated = Simulated::new(false);
            let [stays, leaves] = [stays, leaves].map(|text| Pattern::new(text).unwrap());
            for pattern in [&stays, &leaves] {
                simulated.want(pattern, true);
            }
            simulated.turn(true);
            simulated.publish(0);
            if connected {
                simulated.want(&leaves, false);
                simulated.turn(true);
            }
            simulated.set_connected(false);
            if !connected {
                simulated.want(&leaves, false);
            }
            simulated.publish(0);
            simulated.publish(0);
            simulated.set_connected(true);
            simulated.publish(0);
            assert_eq!(lost(&simulated), 2, "{leaves:?} was left, {connected}");
        }
    }
}

/// The thread waits for something else to be confirmed while a topic is left, and wanted again.
#[test]
fn what_nobody_wanted_while_the_thread_waits_is_not_lost() {
    let mut simulated = Simulated::new(true);
    let [a, b] = ["a", "b"].map(|text| Pattern::new(text).unwrap());
    simulated.want(&a, true);
    simulated.turn(true);
    simulated.publish(0);
    simulated.set_connected(false);
    simulated.want(&b, true);
    simulated.turn(false);
    for _ in 0..2 {
        simulated.want(&a, false);
        simulated.publish(0);
        simulated.want(&a, true);
        simulated.set_connected(true);
        simulated.publish(0);
        simulated.set_connected(false);
    }
    assert_eq!(lost(&simulated), 0);
}

/// How long the thread takes to learn that so many patterns were left, of 10,000 topics that came and with 1,000
/// patterns that stay.
fn leaving(count: usize, exact: bool) -> Duration {
    const TOPICS: usize = 10_000;
    let (shared, _ears) = shared(1000, Policy::DropNewest);
    let mut tracker = shared.tracker();
    let pattern = |number: usize| {
        let text = if exact { format!("{number}.topic") } else { format!("{number}.*") };
        Pattern::new(&text).unwrap()
    };
    let stay = (0..1000).map(|number| Pattern::new(&format!("stays.{number}.*")).unwrap());
    let all: Vec<Pattern> = stay.chain((0..count).map(pattern)).chain([Pattern::new("topic.>").unwrap()]).collect();
    for pattern in &all {
        locked(&shared.subscriptions).want(pattern, true);
    }
    for (pattern, _) in shared.take_interests(&mut tracker) {
        tracker.ask(&pattern);
        tracker.confirm(&pattern);
        shared.done(&pattern, true);
    }
    for number in 0..TOPICS as u64 {
        let place = crate::envelope::Place { overall: number + 1, epoch: 1, on_topic: 1 };
        let origin = crate::envelope::Origin { node: [2; 16], place };
        let bytes = crate::envelope::seal(origin, MessageKind::Text, None, b"x");
        shared.arrive(&mut tracker, &format!("{PREFIX}.topic.{number}"), None, &bytes);
    }
    for number in 0..count {
        locked(&shared.subscriptions).want(&pattern(number), false);
    }
    let begun = Instant::now();
    let ended = shared.take_interests(&mut tracker);
    assert_eq!(ended.len(), count);
    tracker.end(super::ended(&ended));
    begun.elapsed()
}

/// Whoever leaves many at once costs not much more than who leaves one: each topic is looked at once.
#[test]
fn many_that_are_left_are_forgotten_together() {
    for exact in [false, true] {
        let quickest = |count| (0..3).map(|_| leaving(count, exact)).min().unwrap();
        let (one, many) = (quickest(1), quickest(1000));
        // What each pattern costs by itself, which is little, is let pass.
        assert!(many < one * 20 + Duration::from_millis(100), "{many:?} for 1,000, {one:?} for one, exact: {exact}");
    }
}
