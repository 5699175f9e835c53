//! Topics without an application: permissions, delivery, and that a fast sender does not harm readers.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod auth_support;
mod support;

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use auth_support::{SECRET, hs256};
use serde_json::json;
use support::{Client, TIMEOUT, config};
use wirespeed_engine::auth::{Algorithm, Jwt, JwtOptions, Key};
use wirespeed_engine::broker::{Broker, Connect, EnqueueResult, Message, Notice, Sink, Status};
use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::metrics::WorkerFigures;
use wirespeed_engine::topics::{Pattern, Topic};
use wirespeed_engine::{Config, Engine, Reason, Relay, Role, Route, Routes};

fn engine(config: Config, paths: &[(&str, Relay)]) -> Engine {
    let mut routes = Routes::new();
    for (path, relay) in paths {
        routes.add(path, Route::new(Role::Relay(relay.clone()), config.route_settings())).unwrap();
    }
    Engine::start(Config { routes: Some(Arc::new(routes)), ..config }).unwrap()
}

fn feed() -> Engine {
    engine(config(), &[("/feed/{topic}", Relay::default())])
}

fn wait_until(engine: &Engine, what: &str, holds: impl Fn(&WorkerFigures) -> bool) -> WorkerFigures {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let total = engine.figures().total();
        if holds(&total) {
            return total;
        }
        assert!(Instant::now() < deadline, "{what}: {total:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

#[test]
fn clients_receive_the_messages_of_others() {
    let engine = feed();
    let mut clients: Vec<_> = (0..6).map(|_| Client::open(&engine, "/feed/room.1")).collect();
    let mut elsewhere = Client::open(&engine, "/feed/room.2");
    clients[0].send_text("hello");
    clients[0].send(MessageKind::Binary, b"\xff\xfe");
    clients[1].send_text("from another");
    elsewhere.send_text("elsewhere");
    for (number, client) in clients.iter_mut().enumerate() {
        let mut got = Vec::new();
        let expected = 3 - [2, 1, 0, 0, 0, 0][number];
        for _ in 0..expected {
            got.push(client.receive().unwrap());
        }
        let mut wanted = vec![
            (MessageKind::Text, b"hello".to_vec()),
            (MessageKind::Binary, b"\xff\xfe".to_vec()),
            (MessageKind::Text, b"from another".to_vec()),
        ];
        match number {
            0 => drop(wanted.drain(..2)),
            1 => drop(wanted.pop()),
            _ => {}
        }
        got.sort_by(|(_, one), (_, other)| one.cmp(other));
        wanted.sort_by(|(_, one), (_, other)| one.cmp(other));
        assert_eq!(got, wanted, "{number}");
    }
    // Publications of the application arrive too, and none of them becomes an event.
    assert_eq!(engine.publish(&topic("room.1"), MessageKind::Text, b"news", None, None).unwrap().0, 6);
    assert!(clients.iter_mut().all(|client| client.receive_text() == "news"));
    assert_eq!(engine.publish(&topic("room.2"), MessageKind::Text, b"news", None, None).unwrap().0, 1);
    assert_eq!(elsewhere.receive_text(), "news", "its own message does not come back");
    clients[0].close(1000, "bye");
    assert_eq!(clients[0].end(), Some((1000, "bye".to_owned())));
    wait_until(&engine, "it is gone", |total| total.sessions == 6);
    assert_eq!(engine.subscribers(&topic("room.1")), 5);
    assert_eq!(engine.events().waiting(), (0, 0));
}

#[test]
fn route_determines_what_clients_may_do() {
    let relays = [
        ("/echo/{topic}", Relay { echo: true, ..Relay::default() }),
        ("/watch/{topic}", Relay { send: false, ..Relay::default() }),
        ("/tell/{topic}", Relay { receive: false, ..Relay::default() }),
    ];
    let engine = engine(config(), &relays);
    let mut echo = Client::open(&engine, "/echo/a");
    let mut watch = Client::open(&engine, "/watch/a");
    let mut notify = Client::open(&engine, "/tell/a");
    assert_eq!(engine.subscribers(&topic("a")), 2);
    notify.send_text("told");
    assert_eq!([echo.receive_text(), watch.receive_text()], ["told", "told"]);
    echo.send_text("own");
    assert_eq!([echo.receive_text(), watch.receive_text()], ["own", "own"]);
    watch.send_text("who said that I may?");
    assert_eq!(watch.end(), Some((1008, "nothing may be sent here".to_owned())));
    echo.send_text("still here");
    assert_eq!(echo.receive_text(), "still here");
}

#[test]
fn path_determines_the_topic() {
    let relays = [
        ("/one/{topic}", Relay::default()),
        ("/all/{*topic}", Relay::default()),
        ("/rooms/{topic}", Relay { prefix: Some(topic("chat.rooms")), ..Relay::default() }),
    ];
    let engine = engine(config(), &relays);
    for (target, name) in [
        ("/one/a.b", "a.b"),
        ("/one/J%C3%BCrgen?x=y", "J\u{fc}rgen"),
        ("/one/a%2Fb", "a/b"),
        ("/all/a/b/c", "a.b.c"),
        ("/all/a%2Fb/c", "a/b.c"),
        ("/rooms/1", "chat.rooms.1"),
    ] {
        let client = Client::open(&engine, target);
        assert_eq!(engine.subscribers(&topic(name)), 1, "{target}");
        drop(client);
        wait_until(&engine, "it is gone", |total| total.sessions == 0);
    }
    let no_topics = [
        "/one/*",
        "/one/%3E",
        "/one/a..b",
        "/one/.",
        "/one/a%20b",
        "/one/%FF",
        "/one/%00",
        "/all/a//b",
        "/all/a/",
        "/one/_wirespeed.x",
        "/all/_wirespeed/x",
        "/rooms/",
        "/rooms/>",
    ];
    for target in no_topics {
        assert_eq!(Client::request(&engine, target, "").status, 404, "{target}");
    }
    let long = format!("/one/{}", "x".repeat(256));
    assert_eq!(Client::request(&engine, &long, "").status, 404);
    let failures = wait_until(&engine, "all are counted", |total| {
        total.failures[Reason::NotFound.index()] == 1 + no_topics.len() as u64
    });
    assert_eq!(failures.sessions, 0);
    let refused =
        Routes::new().add("/feed/{name}", Route::new(Role::Relay(Relay::default()), config().route_settings()));
    assert!(refused.unwrap_err().contains("{topic}"));
}

#[test]
fn tokens_restrict_access_to_topics() {
    let auth = Some(Arc::new(Jwt::new(JwtOptions::new([Algorithm::HS256], Key::Secret(SECRET.to_vec()))).unwrap()));
    let notify = Relay { receive: false, ..Relay::default() };
    let engine = engine(Config { auth, ..config() }, &[("/feed/{topic}", Relay::default()), ("/tell/{topic}", notify)]);
    let token = |claim| {
        let token = hs256(&json!({"sub": "ann", "exp": 4e9 as u64, "topics": claim}));
        format!("Authorization: Bearer {token}\r\n")
    };
    let reads = token(json!({"subscribe": {"allow": ["news.*"]}, "publish": {"deny": [">"]}}));
    let writes = token(json!({"subscribe": {"allow": []}, "publish": {"allow": ["news.a"]}}));
    assert_eq!(Client::request(&engine, "/feed/news.a", "").status, 401);
    assert_eq!(Client::request(&engine, "/feed/other", &reads).status, 403);
    assert_eq!(Client::request(&engine, "/feed/news.a", &writes).status, 403);
    let mut reader = Client::request(&engine, "/feed/news.a", &reads);
    let mut other = Client::request(&engine, "/feed/news.a", &reads);
    let mut writer = Client::request(&engine, "/tell/news.a", &writes);
    assert_eq!([reader.status, other.status, writer.status], [101; 3]);
    reader.send_text("not mine to say");
    reader.send_text("nor this");
    wait_until(&engine, "it is counted", |total| total.denied == 2);
    writer.send_text("news");
    assert_eq!([reader.receive_text(), other.receive_text()], ["news", "news"]);
}

const SIZE: usize = 1000;

/// Sends this number of messages as fast as possible, each with its number.
fn flood(client: &Client, count: u32) -> std::thread::JoinHandle<()> {
    let mut sender = support::Client {
        stream: client.stream.try_clone().unwrap(),
        peer: Client::peer(),
        status: 101,
        head: String::new(),
    };
    std::thread::spawn(move || {
        for first in (0..count).step_by(500) {
            for number in first..count.min(first + 500) {
                let mut payload = vec![b'x'; SIZE];
                payload[..4].copy_from_slice(&number.to_be_bytes());
                sender.queue(MessageKind::Binary, &payload);
            }
            let bytes = sender.peer.send_half_mut().take_output();
            sender.stream.write_all(&bytes).unwrap();
        }
    })
}

#[test]
fn fast_sender_runs_at_the_pace_of_readers() {
    for workers in [1, 3] {
        let limits = Config { outbox_limit: 256 * 1024, workers, ..config() };
        let engine = engine(limits, &[("/feed/{topic}", Relay::default())]);
        let sender = Client::open(&engine, "/feed/a");
        let count = 40_000_u32;
        let most = Arc::new(AtomicUsize::new(0));
        let readers: Vec<_> = (0..4)
            .map(|number| {
                let mut client = Client::open(&engine, "/feed/a");
                std::thread::spawn(move || {
                    for expected in 0..count {
                        let (_, payload) = client.receive().expect("an honest reader was cut");
                        assert_eq!(payload[..4], expected.to_be_bytes());
                        if expected % 1000 == 0 {
                            std::thread::sleep(Duration::from_millis(number));
                        }
                    }
                })
            })
            .collect();
        let sending = flood(&sender, count);
        while !readers.iter().all(std::thread::JoinHandle::is_finished) {
            let total = engine.figures().total();
            most.fetch_max((total.outbox_bytes + total.mailbox_bytes) as usize, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(1));
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        sending.join().unwrap();
        let total = engine.figures().total();
        assert_eq!(total.dropped.iter().sum::<u64>(), 0);
        // 256 KiB of its own for each reader, and the messages on their way to the workers.
        let most = most.load(Ordering::Relaxed);
        assert!(most < 8 << 20, "{most} bytes waited");
    }
}

/// The only reader of a topic, apart from subscribers that receive nothing.
#[test]
fn slow_reader_slows_the_sender_and_stays_connected() {
    std::thread::scope(|scope| {
        for rate in [100e3, 300e3, 2e6] {
            for path in ["/feed/a", "/tell/a"] {
                scope.spawn(move || relay_to_reader_of(rate, path));
            }
        }
    });
}

fn relay_to_reader_of(rate: f64, path: &str) {
    let relays = [("/feed/{topic}", Relay::default()), ("/tell/{topic}", Relay { receive: false, ..Relay::default() })];
    let engine = engine(Config { outbox_limit: 256 * 1024, workers: 1, ..config() }, &relays);
    let mut reader = Client::open(&engine, "/feed/a");
    let sender = Client::open(&engine, path);
    let sending = flood(&sender, 40_000);
    let messages = reader.read_at(rate, Instant::now() + Duration::from_secs(5));
    assert!(messages.len() > 100, "{}", messages.len());
    for (number, payload) in messages.iter().enumerate() {
        assert_eq!(payload[..4], (number as u32).to_be_bytes());
    }
    let total = engine.figures().total();
    assert_eq!(total.dropped.iter().sum::<u64>(), 0);
    sender.stream.shutdown(std::net::Shutdown::Both).unwrap();
    let _ = sending.join();
}

#[test]
fn lost_client_is_detected_while_events_are_full() {
    let interval = Some(Duration::from_millis(500));
    let settings = Config {
        workers: 1,
        max_events: 1,
        ping_interval: interval,
        ping_timeout: interval,
        close_timeout: Duration::from_millis(500),
        ..config()
    };
    let mut routes = Routes::new();
    for (path, role) in
        [("/feed/{topic}", Role::Relay(Relay::default())), ("/echo", Role::Echo), ("/app", Role::Events)]
    {
        routes.add(path, Route::new(role, settings.route_settings())).unwrap();
    }
    let engine = Engine::start(Config { routes: Some(Arc::new(routes)), ..settings }).unwrap();
    let _gone = [Client::open(&engine, "/feed/a"), Client::open(&engine, "/echo")];
    let mut app = Client::open(&engine, "/app"); // its `Connected` event fills the queue
    (0..10).for_each(|_| app.send_text("nobody takes this"));
    wait_until(&engine, "they are found", |total| total.sessions == 1);
    assert!(engine.events().waiting().0 > 0);
}

/// A broker that accepts messages only while the test allows it.
#[derive(Default)]
struct Queue {
    has_capacity: AtomicBool,
    admits: AtomicBool,
    looks: AtomicUsize,
    refused: AtomicUsize,
    sink: Mutex<Option<Arc<dyn Sink>>>,
}

/// The engine's handle of the broker.
struct Given(Arc<Queue>);

impl Connect for Given {
    fn connect(&self, sink: Arc<dyn Sink>) -> io::Result<Arc<dyn Broker>> {
        *self.0.sink.lock().unwrap() = Some(sink);
        Ok(Arc::<Queue>::clone(&self.0))
    }
}

impl Broker for Queue {
    fn interest(&self, _: &Pattern, _: bool) {}

    fn publish(&self, _: &Topic, _: Message<'_>) -> EnqueueResult {
        EnqueueResult::Yes
    }

    fn broadcast(&self, _: Message<'_>) -> EnqueueResult {
        EnqueueResult::Yes
    }

    fn admits(&self, _: usize) -> bool {
        let admits = self.admits.load(Ordering::SeqCst);
        self.refused.fetch_add(usize::from(!admits), Ordering::SeqCst);
        admits
    }

    fn has_capacity(&self) -> bool {
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.has_capacity.load(Ordering::SeqCst)
    }

    fn status(&self) -> Status {
        Status::default()
    }

    fn has_notices(&self) -> bool {
        false
    }

    fn take_notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn flush(&self, _: Option<Instant>) -> Option<u64> {
        None
    }

    fn close(&self) {
        *self.sink.lock().unwrap() = None;
    }
}

#[test]
fn senders_wait_for_the_broker_and_refused_messages_reach_no_client() {
    let queue = Arc::new(Queue::default());
    let settings = Config { broker: Some(Arc::new(Given(Arc::clone(&queue)))), workers: 1, ..config() };
    let engine = engine(settings, &[("/feed/{topic}", Relay::default())]);
    let mut reader = Client::open(&engine, "/feed/a");
    let mut sender = Client::open(&engine, "/feed/a");
    let notify = |room, admits| {
        queue.admits.store(admits, Ordering::SeqCst);
        queue.has_capacity.store(room, Ordering::SeqCst);
        let sink = queue.sink.lock().unwrap().clone();
        sink.unwrap().resume();
    };
    notify(false, true);
    sender.send_text("one");
    wait_for(&queue.looks);
    engine.publish(&topic("a"), MessageKind::Text, b"from here", None, None).unwrap();
    assert_eq!(reader.receive_text(), "from here");
    assert_eq!(sender.receive_text(), "from here");
    notify(true, true);
    assert_eq!(reader.receive_text(), "one");
    notify(true, false);
    sender.send_text("refused");
    wait_for(&queue.refused);
    notify(true, true);
    sender.send_text("two");
    assert_eq!(reader.receive_text(), "two");
}

fn wait_for(count: &AtomicUsize) {
    let deadline = Instant::now() + TIMEOUT;
    while count.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn fast_senders_all_make_progress() {
    let engine = engine(
        Config { outbox_limit: 256 * 1024, workers: 2, ..config() },
        &[("/feed/{topic}", Relay::default()), ("/tell/{topic}", Relay { receive: false, ..Relay::default() })],
    );
    let count = 5_000;
    let mut reader = Client::open(&engine, "/feed/a");
    let senders: Vec<_> = (0..8).map(|_| Client::open(&engine, "/tell/a")).collect();
    let sending: Vec<_> = senders.iter().map(|sender| flood(sender, count)).collect();
    let mut seen = vec![0; count as usize];
    for _ in 0..8 * count {
        let (_, payload) = reader.receive().expect("the reader was cut");
        seen[u32::from_be_bytes(payload[..4].try_into().unwrap()) as usize] += 1;
    }
    assert!(seen.iter().all(|times| *times == 8));
    sending.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn stalled_reader_does_not_block_others() {
    let limits = Config { outbox_limit: 256 * 1024, workers: 2, close_timeout: Duration::from_millis(300), ..config() };
    let engine = engine(limits, &[("/feed/{topic}", Relay::default())]);
    let sender = Client::open(&engine, "/feed/a");
    let _deaf = Client::open(&engine, "/feed/a");
    let mut reader = Client::open(&engine, "/feed/a");
    let count = 30_000;
    let sending = flood(&sender, count);
    for expected in 0..count {
        let (_, payload) = reader.receive().expect("the reader was cut");
        assert_eq!(payload[..4], expected.to_be_bytes());
    }
    sending.join().unwrap();
    wait_until(&engine, "the deaf one is gone", |total| total.sessions == 2);
}

#[test]
fn messages_before_the_senders_end_are_published() {
    let limits = Config { outbox_limit: 64 * 1024, workers: 1, ..config() };
    let engine = engine(limits, &[("/feed/{topic}", Relay::default())]);
    let mut sender = Client::open(&engine, "/feed/a");
    let mut reader = Client::open(&engine, "/feed/a");
    let sending = flood(&sender, 5000);
    let reading = std::thread::spawn(move || {
        for expected in 0..5000_u32 {
            assert_eq!(reader.receive().unwrap().1[..4], expected.to_be_bytes());
        }
        reader
    });
    sending.join().unwrap();
    sender.close(1000, "that was all");
    let _reader = reading.join().unwrap();
    assert_eq!(sender.end(), Some((1000, "that was all".to_owned())));
    wait_until(&engine, "it is gone", |total| total.sessions == 1);
    engine.stop().unwrap();
}
