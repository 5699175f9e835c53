//! What goes on while an engine drains: all that went on before, until its last session is over.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::{Client, PATIENCE, address, config};
use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::events::Event;
use wirespeed_engine::mailbox::Refused;
use wirespeed_engine::topics::Topic;
use wirespeed_engine::{Config, Drain, Engine, Http, Item, Place, Refusal, Relay, Role, Route, Routes, Session};

fn internal() -> Http {
    Http { at: Some(Place::Tcp("127.0.0.1:0".parse().unwrap())), ..Http::default() }
}

fn inside_of(engine: &Engine) -> SocketAddr {
    match engine.http_place().unwrap() {
        Place::Tcp(address) => *address,
        Place::Unix(_) => panic!("a path"),
    }
}

/// The answer to a question for the health; `None`: nobody gives one.
fn health(at: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.ends_with('\n').then_some(answer)
}

fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

/// All that an application may ask of an engine, and what each has answered that it should not have.
fn use_it(engine: &Engine, number: u64) -> Result<(), String> {
    let topic = topic(["room.1", "room.2", "nobody"][(number % 3) as usize]);
    let (kind, text) = (MessageKind::Text, b"tick");
    let soon = Some(Instant::now() + Duration::from_millis(1));
    let sent = |what: &str, result: Result<(), Refusal>| match result {
        Ok(()) | Err(Refusal::Full) => Ok(()),
        Err(refusal) => Err(format!("{what}: {refusal:?}")),
    };
    let waited = |what: &str, result: Result<(), Refused>| match result {
        Ok(()) | Err(Refused::Full) => Ok(()),
        Err(refused) => Err(format!("{what}: {refused:?}")),
    };
    let item = |topic: &Topic| Item { topic: topic.clone(), message: engine.encode(kind, text).unwrap(), key: None };
    match number % 7 {
        0 => sent("broadcast", engine.broadcast(kind, text, None).map(drop)),
        1 => sent("publish", engine.publish(&topic, kind, text, None, None).map(drop)),
        2 => {
            let many = engine.publish_many([item(&topic), item(&topic)]).map(drop);
            sent("publish_many", many.map_err(|(_, refusal)| refusal))
        }
        3 => waited("has_room", engine.has_capacity(None).map(drop)),
        4 => waited("has_room of a topic", engine.has_capacity(Some(&topic)).map(drop)),
        5 => waited("wait_for_room", engine.wait_for_capacity(None, soon)),
        _ => waited("wait_for_room of a topic", engine.wait_for_capacity(Some(&topic), soon)),
    }
}

#[test]
fn a_worker_without_sessions_changes_nothing_for_those_of_others() {
    let engine = Engine::start(Config { workers: 4, http: internal(), ..config() }).unwrap();
    let at = inside_of(&engine);
    let mut client = Client::open(&engine, "/"); // it does not read, and so its session goes on
    let mut draining = engine.begin_drain(Drain { timeout: PATIENCE, ..Drain::default() });
    let drained = std::thread::scope(|scope| {
        let drain = scope.spawn(move || draining.finish());
        // Longer than the workers take that have nobody.
        let until = Instant::now() + Duration::from_millis(500);
        let mut number = 0;
        while Instant::now() < until {
            number += 1;
            use_it(&engine, number).unwrap();
            let answer = health(at).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        client.end();
        drain.join().unwrap()
    });
    assert_eq!((drained.ended, drained.cut), (1, 0));
    engine.join().unwrap();
    assert_eq!(engine.has_capacity(None), Err(Refused::Closed));
    assert_eq!(engine.broadcast(MessageKind::Text, b"", None), Err(Refusal::Closed));
}

/// Numbers that are the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// A client of one kind or another, for as long as it likes, or until the engine ends it. False: nobody lets it in.
fn visit(at: SocketAddr, dice: &mut Dice) -> bool {
    let target = ["/", "/", "/echo", "/relay/room.1", "/relay/room.2"][dice.roll(5) as usize];
    let Ok(mut stream) = TcpStream::connect(at) else { return false };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "GET {target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    if stream.write_all(request.as_bytes()).is_err() || stream.read(&mut [0; 4]).is_err() {
        return true;
    }
    // Masked with zeros: text, and at last the close.
    for _ in 0..dice.roll(20) {
        let _ = stream.write_all(b"\x81\x82\0\0\0\0hi"); // it may have been ended
        std::thread::sleep(Duration::from_millis(dice.roll(3)));
    }
    if dice.roll(3) > 0 {
        let _ = stream.write_all(b"\x88\x82\0\0\0\0\x03\xe8");
        while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
    } else {
        std::thread::sleep(Duration::from_millis(dice.roll(400))); // it goes without a word
    }
    true
}

/// Takes the events, as an application does: sessions go into rooms, and are answered.
fn serve(engine: &Engine, failed: &Mutex<Vec<String>>) {
    let over = |session: &Session| !session.is_open();
    while let Ok(batches) = engine.events().take(64, None) {
        for (session, event) in batches.iter().flat_map(|batch| batch.iter()) {
            let result = match event {
                Event::Connected => session.subscribe(&topic("room.1").into()).map(drop),
                Event::Message { .. } => session.send(MessageKind::Text, b"yes").map(drop),
                Event::Disconnected(_) => Ok(()),
            };
            match result {
                Ok(()) | Err(Refusal::Full) => {}
                Err(Refusal::Closed) if over(session) => {}
                Err(refusal) => failed.lock().unwrap().push(format!("session: {refusal:?}")),
            }
        }
    }
}

/// Drains an engine at some moment of some traffic.
fn drain_some_time(seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let timeout = Duration::from_millis(300 + dice.roll(3000));
    let how = Drain { timeout, batch: 1 + dice.roll(3) as usize, ..Drain::default() };
    let config = Config { workers: 1 + dice.roll(4) as usize, http: internal(), ..config() };
    let mut routes = Routes::new();
    routes.add("/", Route::new(Role::Events, &config)).unwrap();
    routes.add("/echo", Route::new(Role::Echo, &config)).unwrap();
    routes.add("/relay/{topic}", Route::new(Role::Relay(Relay::default()), &config)).unwrap();
    let engine = Engine::start(Config { routes: Some(Arc::new(routes)), ..config }).unwrap();
    let (at, internal) = (address(&engine), inside_of(&engine));
    let failed = Mutex::new(Vec::new());
    let (over, uses) = (AtomicBool::new(false), AtomicU64::new(0));
    let deadline = Mutex::new(None);
    // Whether the engine may say that it is over: nobody is there, or whoever is was cut off.
    let ended = || {
        let cut = deadline.lock().unwrap().is_some_and(|deadline| Instant::now() >= deadline);
        cut || deadline.lock().unwrap().is_some() && engine.figures().total().sessions == 0
    };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let mut dice = Dice(dice.roll(u64::MAX) | 1);
            scope.spawn(move || while visit(at, &mut dice) {});
        }
        scope.spawn(|| serve(&engine, &failed));
        for first in 0..2 {
            let (engine, failed, over, uses, ended) = (&engine, &failed, &over, &uses, &ended);
            scope.spawn(move || {
                for number in first.. {
                    if let Err(why) = use_it(engine, number) {
                        if !ended() {
                            failed.lock().unwrap().push(why);
                        }
                        return;
                    }
                    uses.fetch_add(1, Ordering::Relaxed);
                    if over.load(Ordering::Acquire) {
                        return;
                    }
                    std::thread::yield_now();
                }
            });
        }
        scope.spawn(|| {
            loop {
                match health(internal) {
                    Some(answer) if answer.starts_with("HTTP/1.1 200") => {}
                    Some(answer) => return failed.lock().unwrap().push(answer),
                    None if ended() => return,
                    None => return failed.lock().unwrap().push("nobody answers".to_owned()),
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        std::thread::sleep(Duration::from_millis(dice.roll(300)));
        *deadline.lock().unwrap() = Some(Instant::now() + timeout);
        engine.begin_drain(how).finish();
        over.store(true, Ordering::Release);
        engine.join().unwrap();
    });
    assert!(uses.into_inner() > 0);
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "seed {seed}: {failed:?}");
}

#[test]
fn what_may_be_asked_of_an_engine_may_be_asked_until_it_has_drained() {
    (1..=8).for_each(drain_some_time);
}

/// How long the end of an engine takes that has no sessions, from the drain on.
fn end(engine: Engine) -> Duration {
    let began = Instant::now();
    engine.begin_drain(Drain { timeout: PATIENCE, ..Drain::default() }).finish();
    engine.join().unwrap();
    began.elapsed()
}

#[test]
fn a_session_more_than_a_batch_takes_little_longer() {
    let engine = Engine::start(config()).unwrap();
    let clients: Vec<_> = (0..4).map(|_| Client::open(&engine, "/")).collect();
    let began = Instant::now();
    let mut draining = engine.begin_drain(Drain { timeout: Duration::from_secs(120), batch: 3, ..Drain::default() });
    let drained = std::thread::scope(|scope| {
        clients.into_iter().for_each(|mut client| drop(scope.spawn(move || client.end())));
        draining.finish()
    });
    assert_eq!((drained.ended, drained.cut), (4, 0));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// A connection with so much of a request, which has been accepted.
fn dial(engine: &Engine, said: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address(engine)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(said).unwrap();
    while engine.figures().total().connections == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    stream
}

#[test]
fn openings_do_not_hold_up_the_end() {
    let settings = || Config { open_timeout: PATIENCE, workers: 1, ..config() };
    let engine = Engine::start(settings()).unwrap();
    let _silent = dial(&engine, b"");
    std::thread::sleep(Duration::from_millis(1100)); // as long as one may be silent who means well
    let took = end(engine);
    assert!(took < Duration::from_millis(800), "{took:?}");
    for said in [&b""[..], b"GET / HTTP/1.1\r\n"] {
        let engine = Engine::start(settings()).unwrap();
        let _slow = dial(&engine, said);
        let took = end(engine);
        assert!(took > Duration::from_millis(500) && took < Duration::from_secs(3), "{took:?}");
    }
    // Of those too who come where sessions never begin, and no door is closed.
    let engine = Engine::start(Config { http: internal(), ..settings() }).unwrap();
    let at = inside_of(&engine);
    let _client = Client::open(&engine, "/");
    let mut draining = engine.begin_drain(Drain { timeout: PATIENCE, ..Drain::default() });
    draining.step(Instant::now());
    let mut silent = TcpStream::connect(at).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
}

#[test]
fn who_has_just_come_when_the_doors_close_has_time_to_ask() {
    let engine = Engine::start(Config { workers: 1, ..config() }).unwrap();
    let mut draining_input = dial(&engine, b"");
    let mut draining = engine.begin_drain(Drain { timeout: PATIENCE, ..Drain::default() });
    draining.step(Instant::now());
    std::thread::sleep(Duration::from_millis(300));
    let request = "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    draining_input.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 12];
    draining_input.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
}
