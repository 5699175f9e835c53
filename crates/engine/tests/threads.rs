//! Many threads use an engine at random while clients come and go: no call hangs, clients that stay receive their
//! messages in order, and nothing is left at the end.
//!
//! Also run under ThreadSanitizer (`scripts/sanitize.sh thread`). `SEED` repeats a run; `ROUNDS` sets their number.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use support::{Client, TIMEOUT, config};
use wirespeed_engine::driver::protocol::{CloseCode, MessageKind};
use wirespeed_engine::events::Event;
use wirespeed_engine::topics::{Pattern, Topic};
use wirespeed_engine::{Config, Engine, Session};

/// The application's threads, the clients that come and go, and the steps of each.
const THREADS: u64 = 4;
const GUESTS: u64 = 3;
const STEPS: u64 = 80;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap())
}

/// A step of an application thread: it publishes to its own topics in order; its other calls are noise.
fn act(engine: &Engine, sessions: &Mutex<Vec<Session>>, random: &mut Random, thread: u64, step: u64) {
    let text = format!("{thread} {step}");
    let pick = |random: &mut Random| {
        let sessions = sessions.lock().unwrap();
        (!sessions.is_empty()).then(|| sessions[random.below(sessions.len() as u64) as usize].clone())
    };
    let own = Topic::new(&format!("own.{thread}")).unwrap();
    engine.publish(&own, MessageKind::Text, text.as_bytes(), None, None).unwrap();
    let Some(session) = pick(random) else { return };
    let noise = [Pattern::new("noise.*").unwrap(), Pattern::new("noise.a").unwrap(), Pattern::new(">").unwrap()];
    let pattern = &noise[random.below(2) as usize];
    match random.below(12) {
        0 | 1 => drop(session.subscribe(pattern)),
        2 => drop(session.unsubscribe(pattern)),
        3 => drop(session.send(MessageKind::Text, b"noise")),
        4 => drop(engine.broadcast(MessageKind::Text, b"noise", Some(&session))),
        5 => {
            drop(engine.publish(&Topic::new("noise.a").unwrap(), MessageKind::Text, b"noise", None, Some("key".into())))
        }
        6 => drop(session.figures(Instant::now() + TIMEOUT)),
        7 => drop((engine.figures(), engine.sessions(), engine.has_capacity(None), session.topics())),
        8 => {
            session.set_reading(false);
            session.set_reading(true);
        }
        9 if session.path() == "/guest" => drop(session.close(CloseCode(4000), "go")),
        10 => drop(engine.logs().take(Instant::now())),
        _ => drop(session.wait_for_capacity(Some(Instant::now() + Duration::from_millis(5)))),
    }
}

/// A client that connects, sends, perhaps reads, and leaves in some way.
fn visit(engine: &Engine, random: &mut Random) {
    let mut client = Client::request(engine, "/guest", "");
    if client.status != 101 {
        return;
    }
    for _ in 0..random.below(4) {
        client.queue(MessageKind::Text, b"hello");
        let bytes = client.peer.send_half_mut().take_output();
        if std::io::Write::write_all(&mut client.stream, &bytes).is_err() {
            return; // it was closed
        }
    }
    if random.below(2) == 0 && client.peer.send_half_mut().send_close(Some(CloseCode(1000)), "").is_ok() {
        let bytes = client.peer.send_half_mut().take_output();
        let _ = std::io::Write::write_all(&mut client.stream, &bytes);
        while client.receive().is_some() {}
    }
}

fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let engine = Engine::start(Config { workers: 1 + random.below(3) as usize, ..config() }).unwrap();
    let sessions = Mutex::new(Vec::new());
    let (ready, done, heard) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicUsize::new(0));
    let mut stays: Vec<Client> = (0..2).map(|_| Client::open(&engine, "/stays")).collect();
    thread::scope(|scope| {
        // Two threads take events, each in its order.
        for _ in 0..2 {
            scope.spawn(|| {
                while let Ok(batches) = engine.events().take(16, Some(Instant::now() + TIMEOUT)) {
                    for (session, event) in batches.iter().flat_map(|batch| batch.iter()) {
                        match event {
                            Event::Connected => {
                                if session.path() == "/stays" {
                                    session.subscribe(&Pattern::new("own.*").unwrap()).unwrap();
                                    ready.fetch_add(1, Ordering::SeqCst);
                                }
                                sessions.lock().unwrap().push(session.clone());
                            }
                            Event::Message { .. } => drop(heard.fetch_add(1, Ordering::SeqCst)),
                            Event::Disconnected(_) => {
                                sessions.lock().unwrap().retain(|other| other.id() != session.id());
                            }
                        }
                    }
                }
            });
        }
        let begin = Instant::now();
        while ready.load(Ordering::SeqCst) < stays.len() {
            assert!(begin.elapsed() < TIMEOUT);
            thread::sleep(Duration::from_millis(1));
        }
        let publishers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (engine, sessions) = (&engine, &sessions);
                scope.spawn(move || {
                    let mut random = Random(seed << 8 | thread << 1 | 1);
                    for step in 0..STEPS {
                        act(engine, sessions, &mut random, thread, step);
                    }
                })
            })
            .collect();
        let accepted: Vec<_> = (0..GUESTS)
            .map(|guest| {
                let (engine, done) = (&engine, &done);
                scope.spawn(move || {
                    let mut random = Random(seed << 16 | guest << 1 | 1);
                    while !done.load(Ordering::SeqCst) {
                        visit(engine, &mut random);
                    }
                })
            })
            .collect();
        // Clients that stay have received all publications of each thread, in its order.
        for client in &mut stays {
            let mut next = [0; THREADS as usize];
            while next != [STEPS; THREADS as usize] {
                let text = client.receive_text();
                let Some((thread, step)) = text.split_once(' ') else { continue };
                let (thread, step): (usize, u64) = (thread.parse().unwrap(), step.parse().unwrap());
                assert_eq!(step, next[thread], "seed {seed}: of thread {thread}");
                next[thread] += 1;
            }
        }
        publishers.into_iter().for_each(|thread| thread.join().unwrap());
        done.store(true, Ordering::SeqCst);
        // Two threads stop the engine at once while clients are connected.
        if random.below(2) == 0 {
            engine.drain(CloseCode(1001), "the end");
        }
        let stops = [scope.spawn(|| engine.stop()), scope.spawn(|| engine.stop())];
        stops.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
        accepted.into_iter().for_each(|thread| drop(thread.join()));
    });
    let total = engine.figures().total();
    assert_eq!((total.panics, total.sessions, total.outbox_bytes), (0, 0, 0), "seed {seed}");
}

#[test]
fn threads_use_one_engine_concurrently() {
    if let Some(seed) = number("SEED") {
        return run(seed);
    }
    for seed in 1..=number("ROUNDS").unwrap_or(4) {
        eprintln!("SEED={seed}");
        run(seed);
    }
}
