//! Unit tests of the client's state. There is no client thread: each test calls the thread's methods itself.

use std::sync::atomic::AtomicUsize;

use wirespeed_engine::broker::Unsendable;
use wirespeed_engine::driver::protocol::MessageKind;

use super::*;
use crate::queue::Item;

/// A sink that counts calls of `resume`.
#[derive(Default)]
struct TestSink(AtomicUsize);

impl Sink for TestSink {
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

fn shared(limit: usize, policy: Policy) -> (Shared, Arc<TestSink>) {
    let sink = Arc::new(TestSink::default());
    let config = BrokerConfig { limit, policy, ..BrokerConfig::new(Address::parse("memory://x").unwrap()) };
    (Shared::new(&config, Some(Arc::clone(&sink) as Arc<dyn Sink>), [1; 16]), sink)
}

fn push(shared: &Shared, bytes: usize) -> EnqueueResult {
    let payload = vec![b'x'; bytes];
    shared.push(
        Destination::Topic(Topic::new("t").unwrap()),
        Message { kind: MessageKind::Text, payload: &payload, key: None },
    )
}

fn unconfirmed(shared: &Shared) -> u64 {
    shared.unconfirmed.load(Ordering::Relaxed)
}

#[test]
fn messages_in_flight_are_unconfirmed_when_dropped() {
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
fn log_names_nats_only_for_nats() {
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
fn refusal_is_forgotten_once_messages_are_accepted_again() {
    let (shared, _ears) = shared(1 << 20, Policy::DropNewest);
    shared.set_connected();
    shared.set_reason("not allowed");
    let why = || locked(&shared.notices).why(false).cloned();
    shared.forget_refusal();
    assert_eq!(why().as_deref(), Some("not allowed"), "the accepted messages may be others than the refused ones");
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
fn messages_dropped_by_a_panic_are_left_to_the_thread() {
    let (shared, _ears) = shared(1 << 20, Policy::DropNewest);
    push(&shared, 10);
    let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut in_flight = shared.in_flight();
        in_flight.take(1 << 20);
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(served.is_err());
    assert_eq!((unconfirmed(&shared), shared.queue.inspect(Queue::in_flight)), (0, 1));
}

#[test]
fn dropping_the_oldest_messages_resumes_relays() {
    let (shared, sink) = shared(2000, Policy::DropOldest);
    shared.set_connected();
    push(&shared, 900);
    push(&shared, 100);
    assert!(!shared.relays_may_continue());
    push(&shared, 900); // the first message is dropped for it; the two others are more than half of the limit
    assert!(!shared.relays_may_continue());
    assert_eq!(sink.0.load(Ordering::SeqCst), 0);
    let (shared, sink) = self::shared(2000, Policy::DropOldest);
    shared.set_connected();
    push(&shared, 1800);
    assert!(!shared.relays_may_continue());
    push(&shared, 100);
    assert!(shared.relays_may_continue());
    assert_eq!(sink.0.load(Ordering::SeqCst), 1);
}

#[test]
fn flush_returns_when_its_messages_are_dropped_for_others() {
    let (shared, _ears) = shared(2000, Policy::DropOldest);
    push(&shared, 1800);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let flushing = scope.spawn(|| shared.flush(1, Some(begun + Duration::from_secs(20))));
        while !shared.take_flush_request() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20)); // lets `flush` block
        push(&shared, 1800);
        assert_eq!(flushing.join().unwrap(), Some(1));
    });
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn every_waiting_flush_returns_the_number_of_missing_messages() {
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
        while !shared.take_flush_request() {
            std::thread::yield_now();
        }
        drop(in_flight);
        for one in flushing {
            assert_eq!(one.join().unwrap(), Some(3));
        }
    });
    // A later flush returns the same number.
    assert_eq!((shared.flush(3, end), shared.missing()), (Some(3), 3));
}

fn random_generator(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed >> 33).unwrap() % below
    }
}

/// Random sequences of events keep the invariants: relays are resumed when capacity returns, each message is counted
/// once, and a flush returns once nothing is queued or in flight.
#[test]
fn random_events_keep_the_invariants() {
    let mut random = random_generator(0x9e37_79b9_7f4a_7c15);
    for round in 0..300 {
        let policy = [Policy::DropNewest, Policy::DropOldest, Policy::Raise][round % 3];
        let (shared, sink) = shared(1000 + random(4000), policy);
        let mut in_flight = shared.in_flight();
        let mut taken = 0;
        for _ in 0..60 {
            let (before, told) = (shared.relays_may_continue(), sink.0.load(Ordering::SeqCst));
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
            let room = shared.relays_may_continue();
            assert!(before || !room || sink.0.load(Ordering::SeqCst) > told, "round {round}, step {step}: not resumed");
            let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let refused_by_broker = taken
                - count(&shared.published)
                - count(&shared.unconfirmed)
                - count(&shared.dropped)
                - in_flight.count()
                - shared.queue.inspect(Queue::len) as u64;
            assert!(
                refused_by_broker <= count(&shared.refused),
                "round {round}, step {step}: a message is not counted"
            );
            let nothing = in_flight.count() == 0 && shared.queue.inspect(Queue::len) == 0;
            assert_eq!(shared.flush(taken, Some(Instant::now())).is_some(), nothing, "round {round}, step {step}");
        }
    }
}

/// A topic of a simulated publisher, and its state at the receiver.
struct SimulatedTopic {
    topic: Topic,
    /// The number of the last published message.
    number: u64,
    /// How many wanted messages were not received since the last received one.
    missing: u64,
    /// The patterns that were wanted and followed since then. While there is one, the next received message must count
    /// all missing messages as lost.
    covered: Vec<Pattern>,
}

/// A simulated publisher and broker, with the subscriptions at the broker and the state of the connection.
struct Simulated {
    shared: Shared,
    tracker: DeliveryTracker,
    /// Subscriptions outlive a connection, as with NATS: messages may arrive before the thread's turn, and before a
    /// subscription is confirmed.
    persistent: bool,
    connected: bool,
    wanted: Vec<Pattern>,
    subscribed: Vec<Pattern>,
    /// Changes that the broker has not confirmed yet.
    in_flight: Vec<(Pattern, bool)>,
    /// Patterns unsubscribed since the thread's last turn.
    left: Vec<Pattern>,
    topics: Vec<SimulatedTopic>,
    overall: u64,
}

impl Simulated {
    fn new(persistent: bool) -> Self {
        let (shared, _) = shared(1000, Policy::DropNewest);
        let topics = ["a", "b", "c"].map(|name| SimulatedTopic {
            topic: Topic::new(name).unwrap(),
            number: 0,
            missing: 0,
            covered: Vec::new(),
        });
        let tracker = shared.tracker();
        Self {
            shared,
            tracker,
            persistent,
            connected: true,
            wanted: Vec::new(),
            subscribed: Vec::new(),
            in_flight: Vec::new(),
            left: Vec::new(),
            topics: topics.into(),
            overall: 0,
        }
    }

    fn set_wanted(&mut self, pattern: &Pattern, wanted: bool) {
        locked(&self.shared.subscriptions).set_wanted(pattern, wanted);
        if wanted {
            self.wanted.push(pattern.clone());
        } else {
            self.left.push(pattern.clone());
            self.topics.iter_mut().map(|simulated| &mut simulated.covered).chain([&mut self.wanted]).for_each(
                |patterns| {
                    patterns.retain(|other| other != pattern);
                },
            );
        }
    }

    /// Runs a turn of the thread. `all`: including the broker's confirmations.
    fn turn(&mut self, all: bool) {
        if !self.persistent && !self.connected {
            return;
        }
        let begins = self.in_flight.is_empty();
        if begins {
            self.begin();
        }
        if all || !begins {
            self.finish();
        } else if !self.persistent {
            self.set_connected(false);
        }
    }

    fn begin(&mut self) {
        self.in_flight = self.shared.take_changes(&mut self.tracker);
        self.left.clear();
        self.tracker.end(ended(&self.in_flight));
        for (pattern, wanted) in &self.in_flight {
            self.subscribed.retain(|other| other != pattern);
            if *wanted {
                self.tracker.request(pattern);
                self.subscribed.push(pattern.clone());
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
            self.shared.mark_applied(&pattern, wanted);
        }
    }

    fn set_connected(&mut self, connected: bool) {
        if self.connected && !connected && !self.persistent {
            self.subscribed.clear();
            self.in_flight.clear();
            self.shared.lose_subscriptions(&mut self.tracker);
        }
        let begins = connected && !self.connected;
        self.connected = connected;
        if begins && !self.persistent {
            self.turn(true); // before any message arrives
        }
    }

    fn publish(&mut self, at: usize) {
        let SimulatedTopic { topic, number, missing, covered } = &mut self.topics[at];
        let wanted = self.wanted.iter().any(|pattern| pattern.matches(topic));
        *number += 1;
        self.overall += 1;
        *missing += u64::from(wanted);
        if !self.connected || !self.subscribed.iter().any(|pattern| pattern.matches(topic)) {
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
            // The message matches no wanted subscription. Some may be wanted but not requested yet.
            let brings = |pattern: &&Pattern| pattern.matches(topic) && self.wanted.contains(*pattern);
            assert_eq!(self.subscribed.iter().find(brings), None, "{topic} was not delivered");
            return;
        }
        *missing -= u64::from(wanted);
        let lost = after[1] - before[1];
        assert!(lost <= *missing, "{lost} messages of {topic} are counted as lost, and {missing} are missing");
        assert!(
            lost == *missing || covered.is_empty(),
            "{lost} messages of {topic} are counted as lost, and {missing} are missing"
        );
        *missing = 0;
        let steady = |pattern: &&Pattern| self.subscribed.contains(*pattern) && !self.left.contains(*pattern);
        *covered = self.wanted.iter().filter(|pattern| pattern.matches(topic)).filter(steady).cloned().collect();
    }
}

/// Only messages that were wanted when published count as lost; on topics that were never unsubscribed, all of them do.
#[test]
fn only_wanted_messages_count_as_lost() {
    const PATTERNS: [&str; 4] = ["a", "b", "c", "*"];
    let mut random = random_generator(0x2545_f491_4f6c_dd1d);
    for round in 0..2000 {
        let mut simulated = Simulated::new(round % 2 == 0);
        let patterns = PATTERNS.map(|text| Pattern::new(text).unwrap());
        for _ in 0..120 {
            match random(10) {
                0 | 1 => {
                    let pattern = &patterns[random(patterns.len())];
                    let wanted = simulated.wanted.contains(pattern);
                    simulated.set_wanted(pattern, !wanted);
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

/// Unsubscribing one pattern does not hide lost messages from another pattern that matches the same topic.
#[test]
fn messages_wanted_by_another_pattern_still_count_as_lost() {
    for (stays, leaves) in [("*", "a"), ("a", "*")] {
        for connected in [false, true] {
            let mut simulated = Simulated::new(false);
            let [stays, leaves] = [stays, leaves].map(|text| Pattern::new(text).unwrap());
            for pattern in [&stays, &leaves] {
                simulated.set_wanted(pattern, true);
            }
            simulated.turn(true);
            simulated.publish(0);
            if connected {
                simulated.set_wanted(&leaves, false);
                simulated.turn(true);
            }
            simulated.set_connected(false);
            if !connected {
                simulated.set_wanted(&leaves, false);
            }
            simulated.publish(0);
            simulated.publish(0);
            simulated.set_connected(true);
            simulated.publish(0);
            assert_eq!(lost(&simulated), 2, "{leaves:?} was unsubscribed, connected: {connected}");
        }
    }
}

/// A topic is unsubscribed and subscribed again while the thread waits for a confirmation of another one.
#[test]
fn unwanted_messages_during_a_confirmation_are_not_lost() {
    let mut simulated = Simulated::new(true);
    let [a, b] = ["a", "b"].map(|text| Pattern::new(text).unwrap());
    simulated.set_wanted(&a, true);
    simulated.turn(true);
    simulated.publish(0);
    simulated.set_connected(false);
    simulated.set_wanted(&b, true);
    simulated.turn(false);
    for _ in 0..2 {
        simulated.set_wanted(&a, false);
        simulated.publish(0);
        simulated.set_wanted(&a, true);
        simulated.set_connected(true);
        simulated.publish(0);
        simulated.set_connected(false);
    }
    assert_eq!(lost(&simulated), 0);
}

/// Returns how long the thread takes to process `count` unsubscribed patterns, with 10,000 known topics and 1,000
/// patterns that stay.
fn time_to_drop(count: usize, exact: bool) -> Duration {
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
        locked(&shared.subscriptions).set_wanted(pattern, true);
    }
    for (pattern, _) in shared.take_changes(&mut tracker) {
        tracker.request(&pattern);
        tracker.confirm(&pattern);
        shared.mark_applied(&pattern, true);
    }
    for number in 0..TOPICS as u64 {
        let place = crate::envelope::Place { overall: number + 1, epoch: 1, on_topic: 1 };
        let origin = crate::envelope::Origin { node: [2; 16], place };
        let bytes = crate::envelope::seal(origin, MessageKind::Text, None, b"x");
        shared.arrive(&mut tracker, &format!("{PREFIX}.topic.{number}"), None, &bytes);
    }
    for number in 0..count {
        locked(&shared.subscriptions).set_wanted(&pattern(number), false);
    }
    let begun = Instant::now();
    let ended = shared.take_changes(&mut tracker);
    assert_eq!(ended.len(), count);
    tracker.end(super::ended(&ended));
    begun.elapsed()
}

/// The cost of unsubscribing many patterns at once is close to the cost of one: each topic is examined once.
#[test]
fn unsubscribing_many_patterns_examines_each_topic_once() {
    for exact in [false, true] {
        let quickest = |count| (0..3).map(|_| time_to_drop(count, exact)).min().unwrap();
        let (one, many) = (quickest(1), quickest(1000));
        // The tolerance covers the small cost of each pattern itself.
        assert!(many < one * 20 + Duration::from_millis(100), "{many:?} for 1,000, {one:?} for one, exact: {exact}");
    }
}
