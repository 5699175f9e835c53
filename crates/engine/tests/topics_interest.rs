//! Notifications of first and last subscribers: one per change, in order.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::thread;

use proptest::prelude::*;
use wirespeed_engine::topics::{Pattern, Registry, WorkerId};

type Told = Arc<Mutex<Vec<(String, bool)>>>;

fn pattern(text: &str) -> Pattern {
    Pattern::new(text).unwrap()
}

fn registry() -> (Registry, Told) {
    let registry = Registry::new(100);
    let told = Told::default();
    let theirs = Arc::clone(&told);
    registry.set_interest(Box::new(move |pattern, wanted| {
        theirs.lock().unwrap().push((pattern.to_string(), wanted));
    }));
    (registry, told)
}

const PATTERNS: [&str; 5] = ["a", "b", "a.*", "a.>", "*"];

proptest! {
    #[test]
    fn first_and_last_subscriptions_are_notified(steps in prop::collection::vec((0..3_u8, 0..5_usize, 0..4_u64), 0..60)) {
        let (registry, told) = registry();
        let worker = WorkerId::new(0).unwrap();
        let mut model: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
        for (step, index, id) in steps {
            let before: BTreeSet<usize> = model.keys().copied().collect();
            let pattern = pattern(PATTERNS[index]);
            match step {
                0 => {
                    registry.subscribe(&pattern, worker, id, || {}).unwrap();
                    model.entry(index).or_default().insert(id);
                }
                1 => {
                    registry.unsubscribe(&pattern, id, || {});
                    model.entry(index).or_default().remove(&id);
                }
                _ => {
                    registry.remove_session(id);
                    model.values_mut().for_each(|set| {
                        set.remove(&id);
                    });
                }
            }
            model.retain(|_, set| !set.is_empty());
            let after: BTreeSet<usize> = model.keys().copied().collect();
            let mut told: Vec<_> = told.lock().unwrap().drain(..).collect();
            told.sort();
            let begun = after.difference(&before).map(|index| (PATTERNS[*index].to_owned(), true));
            let ended = before.difference(&after).map(|index| (PATTERNS[*index].to_owned(), false));
            let mut expected: Vec<_> = begun.chain(ended).collect();
            expected.sort();
            prop_assert_eq!(told, expected);
        }
    }
}

#[test]
fn notifications_alternate_under_concurrent_changes() {
    let (registry, told) = registry();
    thread::scope(|scope| {
        for id in 0..4 {
            let registry = &registry;
            scope.spawn(move || {
                for turn in 0..2000 {
                    let pattern = pattern(PATTERNS[turn % PATTERNS.len()]);
                    registry.subscribe(&pattern, WorkerId::new(0).unwrap(), id, || {}).unwrap();
                    registry.unsubscribe(&pattern, id, || {});
                }
            });
        }
    });
    let mut wanted: BTreeMap<String, bool> = BTreeMap::new();
    for (pattern, now) in told.lock().unwrap().iter() {
        let before = wanted.insert(pattern.clone(), *now).unwrap_or(false);
        assert_ne!(before, *now, "{pattern} was told twice");
    }
    assert!(wanted.values().all(|wanted| !wanted));
}
