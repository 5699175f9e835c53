//! An engine that many threads use at once, at random, while clients come and go: nothing hangs, who stays gets what is
//! sent to him in its order, and at the end nothing is left.
//!
//! For ThreadSanitizer too (`scripts/sanitize.sh thread`). `SEED` repeats one run, `ROUNDS` says how many there are.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use support::{Client, PATIENCE, config};
use wirespeed_engine::driver::protocol::{CloseCode, MessageKind};
use wirespeed_engine::events::Event;
use wirespeed_engine::topics::{Pattern, Topic};
use wirespeed_engine::{Config, Engine, Session};

/// Threads of the application, clients that come and go, and what each does.
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

/// What a thread of the application does: to its own topics it publishes in order; everything else is noise.
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
        6 => drop(session.figures(Instant::now() + PATIENCE)),
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

/// A client that comes, sends, perhaps reads, and goes, in one way or another.
fn visit(engine: &Engine, random: &mut Random) {
    let mut client = Client::request(engine, "/guest", "");
    if client.status != 101 {
        return;
    }
    for _ in 0..random.below(4) {
        client.queue(MessageKind::Text, b"hello");
        let bytes = client.peer.send_half.take_output();
        if std::io::Write::write_all(&mut client.stream, &bytes).is_err() {
            return; // it was closed
        }
    }
    if random.below(2) == 0 && client.peer.send_half.send_close(Some(CloseCode(1000)), "").is_ok() {
        let bytes = client.peer.send_half.take_output();
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
        // Two take events, each in its order.
        for _ in 0..2 {
            scope.spawn(|| {
                while let Ok(batches) = engine.events().take(16, Some(Instant::now() + PATIENCE)) {
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
            assert!(begin.elapsed() < PATIENCE);
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
        // Who stays gets all that each thread has published, in that thread's order.
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
        // It ends while they are there, by two threads at once.
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
fn many_threads() {
    if let Some(seed) = number("SEED") {
        return run(seed);
    }
    for seed in 1..=number("ROUNDS").unwrap_or(4) {
        eprintln!("SEED={seed}");
        run(seed);
    }
}
