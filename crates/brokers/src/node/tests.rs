//! Who is told of what: a node without its thread, which each test stands in for.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::AtomicUsize;

use wirespeed_engine::broker::Unsendable;
use wirespeed_engine::driver::protocol::MessageKind;

use super::*;

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
