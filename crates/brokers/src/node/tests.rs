//! What is under way, and who is told of what: a node without its thread, which each test stands in for.

#![allow(clippy::unwrap_used)]

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

/// Whatever happens, in any order: of room that was not there and is there everybody is told, each message is counted
/// once, and a flush ends once nothing is queued or under way.
#[test]
fn any_order() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed >> 33).unwrap() % below
    };
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
