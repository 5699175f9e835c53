//! Many threads subscribe, unsubscribe and publish; then the commands to each worker are replayed and compared.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Barrier, Mutex};
use std::thread;

use wirespeed_engine::topics::{Pattern, Registry, Topic, WorkerId};

const WORKERS: usize = 3;
const SESSIONS: u64 = 6;
const THREADS: u64 = 4;

/// A command to a worker.
#[derive(Debug)]
enum Entry {
    Subscribe(u64, Pattern),
    Unsubscribe(u64, Pattern),
    /// Its number, and whether it was routed to this worker.
    Publish((u64, u64), bool),
}

/// A publication, and the number of sessions that it reported.
struct Published {
    topic: Topic,
    exclude: Option<u64>,
    count: usize,
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// Sometimes yields to other threads in the middle of an operation.
    fn pause(&mut self) {
        if self.below(3) == 0 {
            thread::yield_now();
        }
    }
}

fn worker_of(id: u64) -> usize {
    id as usize % WORKERS
}

/// The result of a run: publications with receivers, and changes of subscriptions.
fn run(seed: u64, steps: u64, patterns: &[&str], topics: &[&str]) -> (usize, usize) {
    let registry = Registry::new(100);
    let patterns: Vec<Pattern> = patterns.iter().map(|text| Pattern::new(text).unwrap()).collect();
    let topics: Vec<Topic> = topics.iter().map(|text| Topic::new(text).unwrap()).collect();
    let logs: [Mutex<Vec<Entry>>; WORKERS] = Default::default();
    let published = Mutex::new(BTreeMap::new());
    let start = Barrier::new(THREADS as usize);

    let act = |thread: u64| {
        let mut random = Random(seed * 1_000 + thread + 1);
        let mut own = BTreeMap::new();
        start.wait();
        for step in 0..steps {
            let (mut inner, id) = (Random(random.0 ^ 0x9e37), random.below(SESSIONS));
            let notify = |entry| logs[worker_of(id)].lock().unwrap().push(entry);
            match random.below(4) {
                0 => {
                    let (pattern, mut applied) = (random.pick(&patterns), false);
                    let changed = registry.subscribe(pattern, WorkerId::new(worker_of(id)).unwrap(), id, || {
                        inner.pause();
                        applied = true;
                        notify(Entry::Subscribe(id, pattern.clone()));
                    });
                    assert_eq!(changed, Ok(applied));
                }
                1 => {
                    let (pattern, mut applied) = (random.pick(&patterns), false);
                    let changed = registry.unsubscribe(pattern, id, || {
                        inner.pause();
                        applied = true;
                        notify(Entry::Unsubscribe(id, pattern.clone()));
                    });
                    assert_eq!(changed, applied);
                }
                _ => {
                    let topic = random.pick(&topics).clone();
                    let exclude = (random.below(3) == 0).then_some(id);
                    let number = (thread, step);
                    let (count, ()) = registry.publish(&topic, exclude, |workers| {
                        for (index, log) in logs.iter().enumerate() {
                            inner.pause();
                            let routed = workers.contains(WorkerId::new(index).unwrap());
                            log.lock().unwrap().push(Entry::Publish(number, routed));
                        }
                    });
                    own.insert(number, Published { topic, exclude, count });
                }
            }
        }
        published.lock().unwrap().append(&mut own);
    };
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let act = &act;
            scope.spawn(move || act(thread));
        }
    });

    let published = published.into_inner().unwrap();
    let mut delivered: BTreeMap<(u64, u64), usize> = BTreeMap::new();
    let (mut left, mut changes) = (BTreeSet::new(), 0);
    for log in logs {
        let mut now: BTreeSet<(u64, Pattern)> = BTreeSet::new();
        for entry in log.into_inner().unwrap() {
            match entry {
                Entry::Subscribe(id, pattern) => assert!(now.insert((id, pattern)), "subscribed twice"),
                Entry::Unsubscribe(id, pattern) => assert!(now.remove(&(id, pattern)), "was not subscribed"),
                Entry::Publish(number, routed) => {
                    let Published { topic, exclude, .. } = &published[&number];
                    let matching = now.iter().filter(|(id, pattern)| pattern.matches(topic) && Some(*id) != *exclude);
                    let ids: BTreeSet<u64> = matching.map(|(id, _)| *id).collect();
                    assert_eq!(!ids.is_empty(), routed, "{number:?} {topic} for {ids:?}");
                    *delivered.entry(number).or_default() += ids.len();
                    continue;
                }
            }
            changes += 1;
        }
        left.append(&mut now);
    }
    for (number, Published { topic, count, .. }) in &published {
        assert_eq!(delivered[number], *count, "{number:?} {topic}");
    }
    // The replayed logs end with the same subscriptions as the registry.
    for id in 0..SESSIONS {
        let patterns: BTreeSet<_> = registry.remove_session(id).into_iter().collect();
        assert!(left.iter().filter(|(other, _)| *other == id).map(|(_, pattern)| pattern).eq(&patterns));
    }
    assert!(registry.is_empty());
    (published.values().filter(|published| published.count > 0).count(), changes)
}

/// Also fails if no conflict was possible, because too little happened.
fn run_all(steps: u64, patterns: &[&str], topics: &[&str]) {
    for seed in 1..=4 {
        let (routed, changes) = run(seed, steps, patterns, topics);
        assert!(routed > steps as usize / 20 && changes > steps as usize / 20, "{routed} {changes}");
    }
}

#[test]
fn concurrent_exact_subscriptions_are_consistent() {
    run_all(4_000, &["a", "b", "a.b"], &["a", "b", "a.b"]);
}

#[test]
fn concurrent_subscriptions_of_all_kinds_are_consistent() {
    run_all(4_000, &["a", "b", "a.b", "*", "a.*", "a.>", ">"], &["a", "b", "a.b"]);
}

/// Few subscribers, so that the last wildcard often disappears and the first one appears.
#[test]
fn first_and_last_wildcard_are_consistent() {
    run_all(4_000, &["*"], &["a", "b", "c", "d"]);
}

/// Sessions end while others subscribe them again: each subscription is in both records, or in neither.
#[test]
fn ending_sessions_are_consistent() {
    let registry = Registry::new(4);
    let patterns = ["a", "b", "*", "a.>", "a.b"].map(|text| Pattern::new(text).unwrap());
    let topics = ["a", "b", "c", "a.b"].map(|text| Topic::new(text).unwrap());
    let act = |mut random: Random, start: &Barrier| {
        start.wait();
        for _ in 0..40 {
            let id = random.below(2);
            match random.below(8) {
                0 => assert!(registry.remove_session(id).len() <= 4),
                1 => {
                    registry.publish(random.pick(&topics), Some(id), |_| ());
                }
                _ => {
                    let worker = WorkerId::new(worker_of(id)).unwrap();
                    let _ = registry.subscribe(random.pick(&patterns), worker, id, || ());
                }
            }
        }
    };
    // Many short rounds, because later changes might repair an error.
    for round in 0..1_000 {
        let start = Barrier::new(THREADS as usize);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (act, start) = (&act, &start);
                scope.spawn(move || act(Random(1 + round * THREADS + thread), start));
            }
        });
        let all: Vec<(usize, Vec<Pattern>)> = (0..2).map(|id| (id, registry.patterns_of(id as u64))).collect();
        for topic in &topics {
            let matching = all.iter().filter(|(_, own)| own.iter().any(|pattern| pattern.matches(topic)));
            let ids: BTreeSet<usize> = matching.map(|(id, _)| *id).collect();
            let (count, routed) =
                registry.publish(topic, None, |workers| workers.iter().map(WorkerId::index).collect());
            assert_eq!((count, routed), (ids.len(), ids), "{topic} in round {round}: {all:?}");
        }
    }
    for id in 0..2 {
        registry.remove_session(id);
    }
    assert!(registry.is_empty());
}
