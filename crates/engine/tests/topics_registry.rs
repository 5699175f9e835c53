//! The registry, compared with a list of all subscriptions in one thread, and which of its operations block others.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use proptest::prelude::*;
use wirespeed_engine::contended;
use wirespeed_engine::topics::{MAX_WORKERS, Pattern, Registry, TooManySubscriptions, Topic, WorkerId};

const WORKERS: u64 = 3;
const LIMIT: usize = 5;

fn pattern(text: &str) -> Pattern {
    Pattern::new(text).unwrap()
}

fn topic(text: &str) -> Topic {
    Topic::new(text).unwrap()
}

fn worker(index: usize) -> WorkerId {
    WorkerId::new(index).unwrap()
}

/// Returns the worker of a session, which never changes.
fn worker_of(id: u64) -> WorkerId {
    worker((id % WORKERS) as usize)
}

fn workers_of<'a>(ids: impl IntoIterator<Item = &'a u64>) -> Vec<usize> {
    ids.into_iter().map(|id| (id % WORKERS) as usize).collect::<BTreeSet<_>>().into_iter().collect()
}

#[derive(Clone, Debug)]
enum Step {
    Subscribe(String, u64),
    Unsubscribe(String, u64),
    RemoveSession(u64),
    Publish(String, Option<u64>),
}

fn step() -> impl Strategy<Value = Step> {
    let pattern = || "([ab*]\\.){0,2}[ab*>]";
    let id = || 0..7_u64;
    prop_oneof![
        6 => (pattern(), id()).prop_map(|(pattern, id)| Step::Subscribe(pattern, id)),
        3 => (pattern(), id()).prop_map(|(pattern, id)| Step::Unsubscribe(pattern, id)),
        1 => id().prop_map(Step::RemoveSession),
        6 => ("([ab]\\.){0,2}[ab]", prop::option::of(id())).prop_map(|(topic, id)| Step::Publish(topic, id)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn agrees_with_a_list(steps in prop::collection::vec(step(), 1..120)) {
        let registry = Registry::new(LIMIT);
        let mut model: BTreeSet<(u64, Pattern)> = BTreeSet::new();
        for step in &steps {
            let of = |model: &BTreeSet<(u64, Pattern)>, id| {
                model.iter().filter(|(other, _)| *other == id).map(|(_, pattern)| pattern.clone()).collect::<Vec<_>>()
            };
            match step {
                Step::Subscribe(text, id) => {
                    let mut applied = false;
                    let result = registry.subscribe(&pattern(text), worker_of(*id), *id, || applied = true);
                    let expected = if model.contains(&(*id, pattern(text))) {
                        Ok(false)
                    } else if of(&model, *id).len() == LIMIT {
                        Err(TooManySubscriptions { limit: LIMIT })
                    } else {
                        model.insert((*id, pattern(text)));
                        Ok(true)
                    };
                    prop_assert_eq!(result, expected);
                    prop_assert_eq!(applied, expected == Ok(true));
                }
                Step::Unsubscribe(text, id) => {
                    let mut applied = false;
                    let changed = registry.unsubscribe(&pattern(text), *id, || applied = true);
                    prop_assert_eq!((changed, applied), { let had = model.remove(&(*id, pattern(text))); (had, had) });
                }
                Step::RemoveSession(id) => {
                    let mut removed = registry.remove_session(*id);
                    removed.sort();
                    prop_assert_eq!(removed, of(&model, *id));
                    model.retain(|(other, _)| other != id);
                }
                Step::Publish(text, exclude) => {
                    let topic = topic(text);
                    let ids: BTreeSet<u64> =
                        model.iter().filter(|(_, pattern)| pattern.matches(&topic)).map(|(id, _)| *id).collect();
                    prop_assert_eq!(registry.subscribers(&topic), ids.len());
                    let ids: BTreeSet<u64> = ids.into_iter().filter(|id| Some(*id) != *exclude).collect();
                    let (count, workers) = registry.publish(&topic, *exclude, |workers| {
                        workers.iter().map(WorkerId::index).collect::<Vec<_>>()
                    });
                    prop_assert_eq!((count, workers), (ids.len(), workers_of(&ids)));
                }
            }
            let patterns: BTreeSet<_> = model.iter().map(|(_, pattern)| pattern).collect();
            prop_assert_eq!(registry.len(), patterns.len());
            for id in 0..7 {
                let mut patterns = registry.patterns_of(id);
                patterns.sort();
                prop_assert_eq!(patterns, of(&model, id));
            }
        }
        for id in 0..7 {
            registry.remove_session(id);
        }
        prop_assert!(registry.is_empty());
    }

    #[test]
    fn workers_form_a_set(indices in prop::collection::btree_set(0..MAX_WORKERS, 0..20)) {
        let registry = Registry::new(1);
        for (id, index) in indices.iter().enumerate() {
            prop_assert_eq!(registry.subscribe(&pattern("a"), worker(*index), id as u64, || ()), Ok(true));
        }
        let (_, workers) = registry.publish(&topic("a"), None, |workers| *workers);
        prop_assert_eq!(workers.iter().map(WorkerId::index).collect::<BTreeSet<_>>(), indices.clone());
        prop_assert!(workers.iter().is_sorted());
        prop_assert_eq!((workers.len(), workers.is_empty()), (indices.len(), indices.is_empty()));
        prop_assert!((0..MAX_WORKERS).all(|index| workers.contains(worker(index)) == indices.contains(&index)));
        prop_assert_eq!(WorkerId::new(MAX_WORKERS), None);
    }
}

/// Whether two operations exclude each other.
mod order {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Serializes these tests, because they count contended locks of the whole process.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn publishers_do_not_block_each_other() {
        let _alone = alone();
        let registry = Registry::new(9);
        for text in ["a", "*"] {
            registry.subscribe(&pattern(text), worker(0), 1, || ()).unwrap();
        }
        let (count, inner) = registry.publish(&topic("a"), None, |_| {
            thread::scope(|scope| scope.spawn(|| registry.publish(&topic("a"), None, |_| ()).0).join().unwrap())
        });
        assert_eq!((count, inner), (1, 1));
    }

    #[test]
    fn publish_does_not_block_subscriptions_to_other_topics() {
        let _alone = alone();
        let registry = Registry::new(99);
        let (done, finished) = channel();
        thread::scope(|scope| {
            registry.publish(&topic("a"), None, |_| {
                // Some topics may share a lock with it, but not all.
                for id in 0..40 {
                    let (registry, done) = (&registry, done.clone());
                    scope.spawn(move || {
                        registry.subscribe(&pattern(&format!("b{id}")), worker(0), id, || ()).unwrap();
                        done.send(()).unwrap();
                    });
                }
                finished.recv().unwrap();
            });
        });
        assert_eq!(registry.len(), 40);
    }

    /// Runs `first` with a closure that starts `second` and returns when that waits for a lock or is complete.
    /// Returns whether `second` completed too early.
    fn overtakes(first: impl FnOnce(&mut dyn FnMut()), second: impl FnOnce(&AtomicBool) + Send) -> bool {
        let (applied, mut early) = (AtomicBool::new(false), false);
        let mut second = Some(second);
        thread::scope(|scope| {
            first(&mut || {
                let before = contended();
                let (second, applied) = (second.take().unwrap(), &applied);
                scope.spawn(move || second(applied));
                while contended() == before && !applied.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                early = applied.load(Ordering::SeqCst);
            });
        });
        assert!(applied.load(Ordering::SeqCst), "the change was never applied");
        early
    }

    /// A session subscribes to a matching pattern while a publish is in progress.
    #[test]
    fn subscription_waits_for_publishes_that_do_not_count_it() {
        let _alone = alone();
        for present in [None, Some("a"), Some("*"), Some("b.>")] {
            for text in ["a", "*", ">"] {
                let registry = Registry::new(9);
                if let Some(present) = present {
                    registry.subscribe(&pattern(present), worker(0), 1, || ()).unwrap();
                }
                let early = overtakes(
                    |start| {
                        registry.publish(&topic("a"), None, |_| start());
                    },
                    |applied| {
                        registry
                            .subscribe(&pattern(text), worker(0), 2, || applied.store(true, Ordering::SeqCst))
                            .unwrap();
                    },
                );
                assert!(!early, "{present:?} {text}");
            }
        }
    }

    /// A message is published while a matching subscription begins or ends.
    #[test]
    fn publish_waits_for_changes_that_concern_it() {
        let _alone = alone();
        for present in [None, Some("a"), Some("*"), Some("b.>")] {
            for text in ["a", "*", ">"] {
                let registry = Registry::new(9);
                if let Some(present) = present {
                    registry.subscribe(&pattern(present), worker(0), 1, || ()).unwrap();
                }
                let publish = |applied: &AtomicBool| {
                    registry.publish(&topic("a"), None, |_| applied.store(true, Ordering::SeqCst));
                };
                let subscribe = |start: &mut dyn FnMut()| {
                    registry.subscribe(&pattern(text), worker(0), 2, start).unwrap();
                };
                assert!(!overtakes(subscribe, publish), "subscribe: {present:?} {text}");
                let unsubscribe = |start: &mut dyn FnMut()| {
                    registry.unsubscribe(&pattern(text), 2, start);
                };
                assert!(!overtakes(unsubscribe, publish), "unsubscribe: {present:?} {text}");
            }
        }
    }
}

#[test]
fn panic_of_a_closure_leaves_the_registry_unchanged() {
    for text in ["a", "*"] {
        let registry = Registry::new(9);
        let panics = |call: &mut dyn FnMut()| assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
        panics(&mut || registry.subscribe(&pattern(text), worker(2), 1, || panic!("apply")).map(drop).unwrap());
        assert_eq!(registry.subscribe(&pattern(text), worker(2), 1, || unreachable!()), Ok(false));
        panics(&mut || registry.publish(&topic("a"), None, |_| panic!("route")).1);
        assert_eq!((registry.subscribers(&topic("a")), registry.patterns_of(1)), (1, vec![pattern(text)]));
        panics(&mut || assert!(registry.unsubscribe(&pattern(text), 1, || panic!("apply"))));
        assert_eq!((registry.subscribers(&topic("a")), registry.patterns_of(1), registry.len()), (0, vec![], 0));
        assert_eq!(registry.subscribe(&pattern(text), worker(2), 1, || ()), Ok(true));
        assert_eq!(registry.subscribers(&topic("a")), 1);
        assert_eq!(registry.remove_session(1), [pattern(text)]);
        assert!(registry.is_empty());
    }
}

#[test]
fn limit_counts_the_subscriptions_of_a_session() {
    let registry = Registry::new(2);
    let subscribe = |text: &str, id| registry.subscribe(&pattern(text), worker(0), id, || ());
    assert_eq!((subscribe("a", 1), subscribe("*", 1)), (Ok(true), Ok(true)));
    let error = subscribe("b", 1).unwrap_err();
    assert_eq!(error.to_string(), "a session has at most 2 subscriptions");
    assert_eq!((subscribe("a", 1), subscribe("b", 2)), (Ok(false), Ok(true)));
    assert!(registry.unsubscribe(&pattern("a"), 1, || ()));
    assert_eq!(subscribe("b", 1), Ok(true));
    assert_eq!(Registry::new(0).subscribe(&pattern("a"), worker(0), 1, || ()), Err(TooManySubscriptions { limit: 0 }));
}
