//! An engine serves as usual while it drains, until its last session has ended.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::{Client, TIMEOUT, address, config};
use wirespeed_engine::control::Refused;
use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::events::Event;
use wirespeed_engine::topics::Topic;
use wirespeed_engine::{Config, Drain, Engine, Http, Item, Place, Refusal, Relay, Role, Route, Routes, Session};

fn internal() -> Http {
    Http { at: Some(Place::Tcp("127.0.0.1:0".parse().unwrap())), ..Http::default() }
}

fn internal_address(engine: &Engine) -> SocketAddr {
    match engine.http_place().unwrap() {
        Place::Tcp(address) => *address,
        Place::Unix(_) => panic!("a path"),
    }
}

/// Returns the response of the health check; `None` without one.
fn health(at: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.ends_with('\n').then_some(answer)
}

fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

/// Calls every function of an engine, and returns those that gave a wrong result.
fn call_everything(engine: &Engine, number: u64) -> Result<(), String> {
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
fn worker_without_sessions_does_not_affect_others() {
    let engine = Engine::start(Config { workers: 4, http: internal(), ..config() }).unwrap();
    let at = internal_address(&engine);
    let mut client = Client::open(&engine, "/"); // it does not read, so its session stays open
    let mut draining = engine.begin_drain(Drain { timeout: TIMEOUT, ..Drain::default() });
    let drained = std::thread::scope(|scope| {
        let drain = scope.spawn(move || draining.finish());
        // Longer than workers without sessions take to end.
        let until = Instant::now() + Duration::from_millis(500);
        let mut number = 0;
        while Instant::now() < until {
            number += 1;
            call_everything(&engine, number).unwrap();
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

/// Random numbers that are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Connects as a client of some kind, until it leaves or the engine disconnects it. Returns false if it was not
/// accepted.
fn visit(at: SocketAddr, dice: &mut Dice) -> bool {
    let target = ["/", "/", "/echo", "/relay/room.1", "/relay/room.2"][dice.below(5) as usize];
    let Ok(mut stream) = TcpStream::connect(at) else { return false };
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let request = format!(
        "GET {target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    if stream.write_all(request.as_bytes()).is_err() || stream.read(&mut [0; 4]).is_err() {
        return true;
    }
    // Masked with zeros: a text message, and a close frame at the end.
    for _ in 0..dice.below(20) {
        let _ = stream.write_all(b"\x81\x82\0\0\0\0hi"); // it may be closed already
        std::thread::sleep(Duration::from_millis(dice.below(3)));
    }
    if dice.below(3) > 0 {
        let _ = stream.write_all(b"\x88\x82\0\0\0\0\x03\xe8");
        while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
    } else {
        std::thread::sleep(Duration::from_millis(dice.below(400))); // it disconnects without a close frame
    }
    true
}

/// Takes events as an application does: subscribes sessions to rooms and answers messages.
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

/// Drains an engine at a random moment of random traffic.
fn drain_some_time(seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let timeout = Duration::from_millis(300 + dice.below(3000));
    let how = Drain { timeout, batch: 1 + dice.below(3) as usize, ..Drain::default() };
    let config = Config { workers: 1 + dice.below(4) as usize, http: internal(), ..config() };
    let mut routes = Routes::new();
    routes.add("/", Route::new(Role::Events, config.route_settings())).unwrap();
    routes.add("/echo", Route::new(Role::Echo, config.route_settings())).unwrap();
    routes.add("/relay/{topic}", Route::new(Role::Relay(Relay::default()), config.route_settings())).unwrap();
    let engine = Engine::start(Config { routes: Some(Arc::new(routes)), ..config }).unwrap();
    let (at, internal) = (address(&engine), internal_address(&engine));
    let failed = Mutex::new(Vec::new());
    let (over, uses) = (AtomicBool::new(false), AtomicU64::new(0));
    let deadline = Mutex::new(None);
    // Whether the engine may report its end: no session is left, or all have been disconnected.
    let ended = || {
        let cut = deadline.lock().unwrap().is_some_and(|deadline| Instant::now() >= deadline);
        cut || deadline.lock().unwrap().is_some() && engine.figures().total().sessions == 0
    };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let mut dice = Dice(dice.below(u64::MAX) | 1);
            scope.spawn(move || while visit(at, &mut dice) {});
        }
        scope.spawn(|| serve(&engine, &failed));
        for first in 0..2 {
            let (engine, failed, over, uses, ended) = (&engine, &failed, &over, &uses, &ended);
            scope.spawn(move || {
                for number in first.. {
                    if let Err(why) = call_everything(engine, number) {
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
        std::thread::sleep(Duration::from_millis(dice.below(300)));
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
fn engine_can_be_used_until_it_has_drained() {
    (1..=8).for_each(drain_some_time);
}

/// Returns how long an engine without sessions takes to drain.
fn drain_time(engine: Engine) -> Duration {
    let began = Instant::now();
    engine.begin_drain(Drain { timeout: TIMEOUT, ..Drain::default() }).finish();
    engine.join().unwrap();
    began.elapsed()
}

#[test]
fn one_session_more_than_a_batch_takes_little_longer() {
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

/// Connects, sends a part of a request, and waits until the connection is accepted.
fn dial(engine: &Engine, said: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address(engine)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(said).unwrap();
    while engine.figures().total().connections == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    stream
}

#[test]
fn pending_handshakes_do_not_delay_the_drain() {
    let settings = || Config { open_timeout: TIMEOUT, workers: 1, ..config() };
    let engine = Engine::start(settings()).unwrap();
    let _silent = dial(&engine, b"");
    std::thread::sleep(Duration::from_millis(1100)); // longer than a handshake may be idle before it can be evicted
    let took = drain_time(engine);
    assert!(took < Duration::from_millis(800), "{took:?}");
    for said in [&b""[..], b"GET / HTTP/1.1\r\n"] {
        let engine = Engine::start(settings()).unwrap();
        let _slow = dial(&engine, said);
        let took = drain_time(engine);
        assert!(took > Duration::from_millis(500) && took < Duration::from_secs(3), "{took:?}");
    }
    // Also of clients at an address without sessions, whose listener is not closed.
    let engine = Engine::start(Config { http: internal(), ..settings() }).unwrap();
    let at = internal_address(&engine);
    let _client = Client::open(&engine, "/");
    let mut draining = engine.begin_drain(Drain { timeout: TIMEOUT, ..Drain::default() });
    draining.step(Instant::now());
    let mut silent = TcpStream::connect(at).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
}

#[test]
fn client_accepted_just_before_the_drain_can_send_its_request() {
    let engine = Engine::start(Config { workers: 1, ..config() }).unwrap();
    let mut draining_input = dial(&engine, b"");
    let mut draining = engine.begin_drain(Drain { timeout: TIMEOUT, ..Drain::default() });
    draining.step(Instant::now());
    std::thread::sleep(Duration::from_millis(300));
    let request = "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    draining_input.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 12];
    draining_input.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
}
