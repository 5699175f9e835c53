//! Benchmarks of publishing: `cargo test --release --test topics_bench -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(clippy::print_stdout, reason = "the numbers are what it is for")]

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use wirespeed_engine::topics::{Index, Pattern, Registry, Topic, WorkerId};

const ROUNDS: u32 = 2_000_000;

/// The subscriptions, the topics that are published in turn, and the numbers of threads and subscribers.
struct Case {
    name: &'static str,
    patterns: Vec<(String, u64)>,
    topics: Vec<String>,
    subscribers: usize,
}

fn cases() -> Vec<Case> {
    let one = |text: &str| vec![(text.to_owned(), 0)];
    let names = |count: u64| (0..count).map(|n| (format!("prices.symbol{n}"), n));
    let many = |text: &'static str, count: u64| (0..count).map(move |n| (text.to_owned(), n));
    let apart = |count: u64| (1..=count).map(|n| (format!("prices.{n}.*"), n));
    let hot = || vec!["prices.EURUSD".to_owned()];
    let case = |name, patterns, topics, subscribers| Case { name, patterns, topics, subscribers };
    vec![
        case("nobody", vec![], hot(), 0),
        case("1 subscriber", one("prices.EURUSD"), hot(), 1),
        case("1000 topics in turn", names(1_000).collect(), names(1_000).map(|(name, _)| name).collect(), 1),
        case(
            "1 subscriber, 100000 other topics",
            one("prices.EURUSD").into_iter().chain(names(100_000)).collect(),
            hot(),
            1,
        ),
        case("1 subscriber, 1 other wildcard", one("prices.EURUSD").into_iter().chain(apart(1)).collect(), hot(), 1),
        case(
            "1 subscriber, 10000 other wildcards",
            one("prices.EURUSD").into_iter().chain(apart(10_000)).collect(),
            hot(),
            1,
        ),
        case("1 subscriber by a wildcard", one("prices.*"), hot(), 1),
        case("the same one by both", one("prices.EURUSD").into_iter().chain(one("prices.*")).collect(), hot(), 1),
        case("10000 subscribers", many("prices.EURUSD", 10_000).collect(), hot(), 10_000),
        case("10000 by both", many("prices.EURUSD", 10_000).chain(many("prices.*", 10_000)).collect(), hot(), 10_000),
    ]
}

fn nanoseconds(rounds: u32, mut act: impl FnMut(usize)) -> f64 {
    let best = (0..5).map(|_| {
        let start = Instant::now();
        (0..rounds as usize).for_each(&mut act);
        start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds)
    });
    best.fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "a benchmark"]
fn publish() {
    for case in cases() {
        let rounds = if case.name == "10000 by both" { ROUNDS / 1_000 } else { ROUNDS };
        let (registry, mut index) = (Registry::new(10), Index::new());
        for (text, id) in &case.patterns {
            let pattern = Pattern::new(text).unwrap();
            registry.subscribe(&pattern, WorkerId::new((id % 8) as usize).unwrap(), *id, || ()).unwrap();
            index.insert(&pattern, *id);
        }
        let topics: Vec<Topic> = case.topics.iter().map(|text| Topic::new(text).unwrap()).collect();
        assert_eq!((registry.subscribers(&topics[0]), index.count(&topics[0])), (case.subscribers, case.subscribers));
        let publish = |round: usize| {
            black_box(registry.publish(black_box(&topics[round % topics.len()]), None, |workers| *workers));
        };
        let alone = nanoseconds(rounds, publish);
        let matching = nanoseconds(rounds, |round| {
            index.matching(black_box(&topics[round % topics.len()])).for_each(|set| {
                black_box(set.len());
            });
        });
        let two = thread::scope(|scope| {
            let threads = [0, 1].map(|_| scope.spawn(|| nanoseconds(rounds, publish)));
            threads.map(|thread| thread.join().unwrap()).into_iter().fold(0.0, f64::max)
        });
        println!("{:36} registry {alone:9.1} ns, of two threads each {two:9.1} ns; index {matching:6.1} ns", case.name);
    }
}

#[test]
#[ignore = "a benchmark"]
fn subscribe_and_unsubscribe() {
    for (name, kept, text) in [
        ("exact", None, "prices.EURUSD"),
        ("the only wildcard", None, "prices.*"),
        ("another wildcard", Some("other.*"), "prices.*"),
    ] {
        let (registry, worker) = (Registry::new(10), WorkerId::new(0).unwrap());
        if let Some(kept) = kept {
            registry.subscribe(&Pattern::new(kept).unwrap(), worker, 1, || ()).unwrap();
        }
        let pattern = Pattern::new(text).unwrap();
        let both = nanoseconds(ROUNDS / 4, |_| {
            registry.subscribe(&pattern, worker, 0, || ()).unwrap();
            registry.unsubscribe(&pattern, 0, || ());
        });
        println!("{name:36} both together {both:9.1} ns");
    }
}
