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

    fn wait_for_room(&self, _: Instant) -> bool {
        true
    }

    fn has_room_again(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn noticed(&self) {}
}

fn shared(limit: usize, policy: Policy) -> (Shared, Arc<Ears>) {
    let ears = Arc::new(Ears::default());
    let hub = Hub { limit, policy, ..Hub::new(Address::parse("memory://x").unwrap()) };
    (Shared::new(&hub, Some(Arc::clone(&ears) as Arc<dyn Sink>), [1; 16]), ears)
}

fn push(shared: &Shared, bytes: usize) -> Took {
    let payload = vec![b'x'; bytes];
    shared.push(To::Topic(Topic::new("t").unwrap()), Message { kind: MessageKind::Text, payload: &payload, key: None })
}

fn doubtful(shared: &Shared) -> u64 {
    shared.doubtful.load(Ordering::Relaxed)
}

#[test]
fn what_is_under_way_is_in_doubt_when_it_is_dropped() {
    let (shared, _ears) = shared(1 << 20, Policy::DropNewest);
    (0..5).for_each(|_| assert_eq!(push(&shared, 10), Took::Yes));
    let mut under_way = shared.under_way();
    assert_eq!(under_way.take(1 << 20).len(), 5);
    under_way.settle(2);
    under_way.refuse(1);
    assert_eq!(shared.flush(5, Some(Instant::now())), None);
    drop(under_way);
    assert_eq!(shared.flush(5, Some(Instant::now())), Some(3));
    assert_eq!((doubtful(&shared), shared.refused.load(Ordering::Relaxed)), (2, 1));
}

#[test]
fn what_a_panic_has_dropped_is_left_to_the_thread() {
    let (shared, _ears) = shared(1 << 20, Policy::DropNewest);
    push(&shared, 10);
    let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut under_way = shared.under_way();
        under_way.take(1 << 20);
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(served.is_err());
    assert_eq!((doubtful(&shared), shared.queue.look(Queue::under_way)), (0, 1));
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
        let mut under_way = shared.under_way();
        let mut taken = 0;
        for _ in 0..60 {
            let (before, told) = (shared.lets_relays_go_on(), ears.0.load(Ordering::SeqCst));
            let step = random(12);
            match step {
                0..5 => {
                    let bytes = random(2500);
                    taken += u64::from(push(&shared, bytes) == Took::Yes);
                }
                5 | 6 => drop::<Vec<Item>>(under_way.take(random(3000))),
                7 => under_way.settle(random(4) as u64),
                8 => under_way.refuse(random(2) as u64),
                9 => under_way = shared.under_way(), // the other one is dropped
                10 => shared.set_connected(),
                _ => shared.set_disconnected("it broke"),
            }
            let room = shared.lets_relays_go_on();
            assert!(before || !room || ears.0.load(Ordering::SeqCst) > told, "round {round}, step {step}: not told");
            let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let refused_by_broker = taken
                - count(&shared.published)
                - count(&shared.doubtful)
                - count(&shared.dropped)
                - under_way.count()
                - shared.queue.look(Queue::len) as u64;
            assert!(
                refused_by_broker <= count(&shared.refused),
                "round {round}, step {step}: a message is not counted"
            );
            let nothing = under_way.count() == 0 && shared.queue.look(Queue::len) == 0;
            assert_eq!(shared.flush(taken, Some(Instant::now())).is_some(), nothing, "round {round}, step {step}");
        }
    }
}

/// What another node publishes, of which some comes: subscriptions at the broker, and whether there is a connection.
struct Simulated {
    shared: Shared,
    account: Account,
    /// They outlive a connection, as those of NATS do.
    outlive: bool,
    connected: bool,
    there: Vec<Pattern>,
    /// What was left since the thread's last turn.
    left: Vec<Pattern>,
    /// Of each topic: the last number, how many that were wanted have not come since the last that did, and whether
    /// nobody wanted it at some time since.
    topics: Vec<(Topic, u64, u64, bool)>,
    overall: u64,
}

impl Simulated {
    fn new(outlive: bool) -> Self {
        let (shared, _) = shared(1000, Policy::DropNewest);
        let topics = ["a", "b", "c"].map(|name| (Topic::new(name).unwrap(), 0, 0, true)).into();
        let account = shared.account();
        Self { shared, account, outlive, connected: true, there: Vec::new(), left: Vec::new(), topics, overall: 0 }
    }

    /// The thread's turn; `all`: it gets to its end.
    fn turn(&mut self, all: bool) {
        if !self.connected {
            return;
        }
        let changes = self.shared.take_interests(&mut self.account);
        std::mem::take(&mut self.left).iter().for_each(|pattern| self.leave(pattern));
        for (pattern, wanted) in &changes {
            self.there.retain(|other| other != pattern);
            if *wanted {
                self.account.ask(pattern);
                self.there.push(pattern.clone());
            } else {
                self.account.end(pattern);
            }
        }
        if !all && !self.outlive {
            return self.set_connected(false);
        }
        for (pattern, wanted) in &changes {
            if *wanted {
                self.account.confirm(pattern);
            }
            self.shared.done(pattern, *wanted);
        }
    }

    fn leave(&mut self, pattern: &Pattern) {
        for (topic, _, _, left) in &mut self.topics {
            *left |= pattern.matches(topic);
        }
    }

    fn set_connected(&mut self, connected: bool) {
        if self.connected && !connected && !self.outlive {
            self.there.clear();
            self.shared.lose_subscriptions(&mut self.account);
        }
        if connected && !self.connected {
            self.connected = true;
            self.turn(true); // before anything comes
        }
        self.connected = connected;
    }

    fn publish(&mut self, at: usize, wanted: bool) {
        let (topic, number, missing, left) = &mut self.topics[at];
        *number += 1;
        self.overall += 1;
        if !self.connected || !self.there.iter().any(|pattern| pattern.matches(topic)) {
            *missing += u64::from(wanted);
            return;
        }
        let place = crate::envelope::Place { overall: self.overall, epoch: 1, on_topic: *number };
        let origin = crate::envelope::Origin { node: [2; 16], place };
        let bytes = crate::envelope::seal(origin, MessageKind::Text, None, b"x");
        let counts = || [&self.shared.received, &self.shared.lost].map(|counter| counter.load(Ordering::Relaxed));
        let before = counts();
        self.shared.arrive(&mut self.account, topic.as_str(), None, &bytes);
        let after = counts();
        if after[0] == before[0] {
            *missing += u64::from(wanted);
            return;
        }
        let lost = after[1] - before[1];
        assert!(lost <= *missing, "{lost} of {topic} are said to be lost, and {missing} are");
        assert!(lost == *missing || *left, "{lost} of {topic} are said to be lost, and {missing} are");
        (*missing, *left) = (0, false);
    }
}

/// What is said to be missing was wanted when it was published; and all of that is, on a topic that was never left.
#[test]
fn what_is_lost_was_wanted() {
    const PATTERNS: [&str; 4] = ["a", "b", "c", "*"];
    let mut random = randomly(0x2545_f491_4f6c_dd1d);
    for round in 0..400 {
        let mut simulated = Simulated::new(round % 2 == 0);
        let patterns = PATTERNS.map(|text| Pattern::new(text).unwrap());
        let mut wanted = [false; PATTERNS.len()];
        for _ in 0..120 {
            match random(10) {
                0 | 1 => {
                    let at = random(patterns.len());
                    wanted[at] = !wanted[at];
                    if locked(&simulated.shared.interests).want(&patterns[at], wanted[at]) {
                        simulated.shared.wanted.notify_one();
                    }
                    if !wanted[at] {
                        simulated.leave(&patterns[at]);
                        simulated.left.push(patterns[at].clone());
                    }
                }
                2 => simulated.set_connected(false),
                3 => simulated.set_connected(true),
                4 | 5 => simulated.turn(true),
                6 => simulated.turn(random(4) > 0),
                _ => {
                    let at = random(simulated.topics.len());
                    let is_wanted = std::iter::zip(&patterns, wanted)
                        .any(|(pattern, wanted)| wanted && pattern.matches(&simulated.topics[at].0));
                    simulated.publish(at, is_wanted);
                }
            }
        }
    }
}

/// What a pattern has brought that was left while there was no connection is still missing for another one.
#[test]
fn what_another_pattern_has_wanted_all_the_time_is_lost() {
    for (stays, leaves) in [("*", "a"), ("a", "*")] {
        let mut simulated = Simulated::new(false);
        let [stays, leaves] = [stays, leaves].map(|text| Pattern::new(text).unwrap());
        for pattern in [&stays, &leaves] {
            locked(&simulated.shared.interests).want(pattern, true);
        }
        simulated.turn(true);
        simulated.publish(0, true);
        simulated.set_connected(false);
        locked(&simulated.shared.interests).want(&leaves, false);
        simulated.publish(0, true);
        simulated.publish(0, true);
        simulated.set_connected(true);
        simulated.publish(0, true);
        assert_eq!(simulated.shared.lost.load(Ordering::Relaxed), 2, "{leaves:?} was left");
    }
}
