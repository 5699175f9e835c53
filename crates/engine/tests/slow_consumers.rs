//! Clients that read little or nothing: their effect on others, and the fate of their messages.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use support::{Client, TIMEOUT, address, config};
use wirespeed_engine::config::Policy;
use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::events::Event;
use wirespeed_engine::topics::{Pattern, Topic};
use wirespeed_engine::{Config, Drain, Engine};

/// A client with a small receive buffer.
fn dial(engine: &Engine) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&address(engine).into()).unwrap();
    Client::over(socket.into(), "/", "")
}

/// Subscribes each new client.
fn subscribe_all(engine: &Engine, over: &AtomicBool) {
    let topic = Pattern::new("feed").unwrap();
    while !over.load(Ordering::SeqCst) {
        let batches = engine.events().take(64, Some(Instant::now() + Duration::from_millis(20))).unwrap_or_default();
        for (session, event) in batches.iter().flat_map(|batch| batch.iter()) {
            if matches!(event, Event::Connected) {
                let _ = session.subscribe(&topic); // it may have left
            }
        }
    }
}

/// Until attackers have spent their initial budget of delay.
const ONCE: Duration = Duration::from_millis(5500);

/// Returns the messages per second of a publisher that waits for room, with one client that reads all of them. An
/// optional attacker connects, reads a number of bytes, stops reading for a while, and reconnects.
fn publish(attack: Option<usize>) -> f64 {
    let engine = Engine::start(Config { workers: 1, ..config() }).unwrap();
    let (over, topic) = (AtomicBool::new(false), Topic::new("feed").unwrap());
    let mut client = Client::open(&engine, "/");
    std::thread::scope(|scope| {
        scope.spawn(|| subscribe_all(&engine, &over));
        let deadline = Instant::now() + TIMEOUT;
        while engine.subscribers(&topic) == 0 {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        let reader = scope.spawn(move || {
            let mut expected = 0_u64;
            while let Some((_, data)) = client.receive() {
                assert_eq!(data[..8], expected.to_le_bytes(), "in order, without gaps");
                expected += 1;
            }
            expected
        });
        if let Some(reads) = attack {
            let (engine, over) = (&engine, &over);
            scope.spawn(move || stall_repeatedly(engine, reads, over));
        }
        let (mut number, mut payload) = (0_u64, [0; 1024]);
        let mut publish_until = |until| {
            let before = number;
            while Instant::now() < until {
                payload[..8].copy_from_slice(&number.to_le_bytes());
                engine.publish(&topic, MessageKind::Binary, &payload, None, None).unwrap();
                number += 1;
                let _ = engine.wait_for_capacity(Some(&topic), Some(until));
            }
            (number - before) as f64
        };
        if attack.is_some() {
            publish_until(Instant::now() + ONCE);
        }
        let time = Duration::from_millis(2500);
        let rate = publish_until(Instant::now() + time) / time.as_secs_f64();
        over.store(true, Ordering::SeqCst);
        engine.begin_drain(Drain::default()).finish();
        assert_eq!(reader.join().unwrap(), number, "the client that reads gets all messages");
        rate
    })
}

fn stall_repeatedly(engine: &Engine, reads: usize, over: &AtomicBool) {
    while !over.load(Ordering::SeqCst) {
        let mut attacker = dial(engine);
        let (mut left, until) = (reads, Instant::now() + Duration::from_millis(300));
        attacker.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        while left > 0 && Instant::now() < until {
            left -= attacker.stream.read(&mut vec![0; left.min(64 * 1024)]).unwrap_or(0);
        }
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

/// A regression test: a new session got the budget that the previous one had spent, so they always delayed others.
#[test]
fn stalling_clients_that_reconnect_do_not_freeze_a_topic() {
    let alone = publish(None);
    for reads in [0, 400 * 1024] {
        let beside = publish(Some(reads));
        assert!(
            beside > alone / 5.0,
            "{beside} messages in a second of {alone}, beside clients that read {reads} bytes"
        );
    }
}

/// Subscribers that read at most 10 KB/s.
fn trickle(mut client: Client, over: &AtomicBool) {
    client.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut bytes = [0; 1000];
    while !over.load(Ordering::SeqCst) {
        let _ = client.stream.read(&mut bytes); // the engine may have closed it
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Connects clients until one is assigned to a worker for which `wanted` returns true.
fn dial_worker(engine: &Engine, wanted: impl Fn(usize) -> bool) -> (Client, usize) {
    let counts = || engine.figures().workers.iter().map(|worker| worker.sessions).collect::<Vec<_>>();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let before = counts();
        let client = dial(engine);
        let after = counts();
        let worker = before.iter().zip(&after).position(|(before, after)| after > before).unwrap();
        if wanted(worker) {
            return (client, worker);
        }
        drop(client);
        while counts() != before {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }
}

/// Returns the messages per second of a publisher that waits for room, after slow subscribers have spent their initial
/// budget of delay. One subscriber reads everything; `slow` others are slow, in the same worker or in another one.
fn rate_beside(slow: usize, same_worker: bool) -> f64 {
    let engine = Engine::start(Config { workers: 2, ping_interval: None, ..config() }).unwrap();
    let (over, topic) = (AtomicBool::new(false), Topic::new("feed").unwrap());
    let (mut reader, reads_in) = dial_worker(&engine, |_| true);
    let slow: Vec<_> =
        (0..slow).map(|_| dial_worker(&engine, |worker| (worker == reads_in) == same_worker).0).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| subscribe_all(&engine, &over));
        scope.spawn(move || while reader.stream.read(&mut [0; 64 * 1024]).is_ok_and(|count| count > 0) {});
        let (deadline, count) = (Instant::now() + TIMEOUT, slow.len() + 1);
        while engine.subscribers(&topic) < count {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        let over = &over;
        slow.into_iter().for_each(|client| drop(scope.spawn(move || trickle(client, over))));
        let publish_until = |until| {
            let mut messages = 0;
            while Instant::now() < until {
                engine.publish(&topic, MessageKind::Binary, &[0; 1024], None, None).unwrap();
                let _ = engine.wait_for_capacity(Some(&topic), Some(until));
                messages += 1;
            }
            f64::from(messages)
        };
        publish_until(Instant::now() + ONCE + Duration::from_secs(1));
        let time = Duration::from_secs(3);
        let messages = publish_until(Instant::now() + time);
        over.store(true, Ordering::SeqCst);
        engine.stop().unwrap();
        messages / time.as_secs_f64()
    })
}

/// A regression test: each worker knew only its own sessions, so a worker with only slow ones delayed without limit.
#[test]
fn slow_subscribers_alone_in_a_worker_do_not_freeze_a_topic() {
    let (alone, beside) = (rate_beside(0, true), rate_beside(2, false));
    assert!(beside > alone / 5.0, "{beside} messages in a second of {alone}");
}

/// A regression test: the delay counted only in proportion to the subscribers that had nothing left to read.
#[test]
fn many_slow_subscribers_do_not_freeze_a_topic() {
    let (alone, beside) = (rate_beside(0, true), rate_beside(20, true));
    assert!(beside > alone / 5.0, "{beside} messages in a second of {alone}");
}

/// Such a subscriber delays only its own topic, but that also harms a publisher that serves many topics in turn.
#[test]
fn single_slow_subscriber_does_not_freeze_its_topic() {
    let engine = Engine::start(Config { workers: 1, ping_interval: None, ..config() }).unwrap();
    let (over, topic) = (AtomicBool::new(false), Topic::new("feed").unwrap());
    let client = dial(&engine);
    std::thread::scope(|scope| {
        scope.spawn(|| subscribe_all(&engine, &over));
        while engine.subscribers(&topic) == 0 {
            std::thread::yield_now();
        }
        scope.spawn(|| trickle(client, &over));
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut freed = false;
        // Until the slow-consumer policy applies to it.
        while !freed && Instant::now() < deadline {
            let (count, _) = engine.publish(&topic, MessageKind::Binary, &[0; 1024], None, None).unwrap();
            let _ = engine.wait_for_capacity(Some(&topic), Some(deadline));
            freed = count == 0;
        }
        over.store(true, Ordering::SeqCst);
        assert!(freed, "the publisher still waits for the client");
    });
}

/// A regression test: messages in the send queue counted against the outbox, and could exceed a small limit alone.
#[test]
fn small_conflating_outbox_keeps_the_newest_message_per_key() {
    const KEYS: usize = 10;
    const COUNT: usize = 20_000;
    for limit in [16 * 1024, 64 * 1024, 1 << 20] {
        let config = Config { workers: 1, outbox_limit: limit, policy: Policy::Conflate, ..config() };
        let engine = Engine::start(config).unwrap();
        let mut client = dial(&engine);
        let (over, topic) = (AtomicBool::new(false), Topic::new("feed").unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| subscribe_all(&engine, &over));
            while engine.subscribers(&topic) == 0 {
                std::thread::yield_now();
            }
            let keys: Vec<Arc<str>> = (0..KEYS).map(|key| Arc::from(key.to_string())).collect();
            for number in 0..COUNT {
                let mut payload = [0; 508];
                payload[..8].copy_from_slice(&(number as u64).to_le_bytes());
                let key = Some(Arc::clone(&keys[number % KEYS]));
                engine.publish(&topic, MessageKind::Binary, &payload, None, key).unwrap();
                if number % 8 == 0 {
                    let _ = engine.wait_for_capacity(None, Some(Instant::now() + Duration::from_millis(1)));
                }
            }
            over.store(true, Ordering::SeqCst);
        });
        // All of it is sent before the end.
        let draining =
            std::thread::spawn(move || engine.begin_drain(Drain { timeout: TIMEOUT, ..Drain::default() }).finish());
        let mut newest = HashMap::new();
        while let Some((_, data)) = client.receive() {
            let number = u64::from_le_bytes(data[..8].try_into().unwrap()) as usize;
            newest.insert(number % KEYS, number);
        }
        draining.join().unwrap();
        let expected: HashMap<_, _> = (COUNT - KEYS..COUNT).map(|number| (number % KEYS, number)).collect();
        assert_eq!(newest, expected, "with a limit of {limit}");
    }
}
