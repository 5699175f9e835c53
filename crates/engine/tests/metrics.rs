//! Metrics of real clients: by reason, by policy, by worker.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::{Client, TIMEOUT, address, config};
use wirespeed_engine::config::{Limits, Policy};
use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::driver::protocol::handshake::HeaderList;
use wirespeed_engine::logs::Level;
use wirespeed_engine::metrics::{Figures, WorkerFigures, to_text};
use wirespeed_engine::topics::{Pattern, Topic};
use wirespeed_engine::{Admission, Config, Engine, Reason, Role, Route, Routes};

fn wait_until(engine: &Engine, what: &str, is: impl Fn(&WorkerFigures) -> bool) -> WorkerFigures {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let total = engine.figures().total();
        if is(&total) {
            return total;
        }
        assert!(Instant::now() < deadline, "{what}: {total:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn failures(figures: &WorkerFigures, reason: Reason) -> u64 {
    figures.failures_by_reason().find(|(known, _)| *known == reason).unwrap().1
}

fn echo() -> Config {
    let accept = |_: &_, _| Admission::Accept { role: Role::Echo, subprotocol: None, headers: HeaderList::new() };
    Config { admit: Arc::new(accept), ..config() }
}

#[test]
fn messages_and_bytes_are_counted_in_both_directions() {
    let engine = Engine::start(echo()).unwrap();
    let mut clients: Vec<_> = (0..6).map(|_| Client::open(&engine, "/")).collect();
    for client in &mut clients {
        for size in [0, 10, 100_000] {
            client.send(MessageKind::Binary, &vec![7; size]);
            client.receive().unwrap();
        }
    }
    let total = wait_until(&engine, "counted", |total| total.messages_sent == 18);
    assert_eq!((total.connections, total.sessions, total.sessions_opened), (6, 6, 6));
    assert_eq!((total.messages_received, total.bytes_received), (18, 6 * 100_010));
    assert_eq!((total.messages_sent, total.bytes_sent), (18, 6 * 100_010));
    assert_eq!((total.outbox_bytes, total.panics, total.events), (0, 0, 0));
    assert!(total.lag.count() > 0 && total.lag.seconds > 0.0);
    for client in &mut clients {
        client.close(1000, "");
        client.end();
    }
    let total = wait_until(&engine, "gone", |total| total.connections == 0);
    assert_eq!((total.sessions, total.sessions_opened), (0, 6));
}

#[test]
fn failed_handshakes_are_counted_by_reason() {
    let mut routes = Routes::new();
    routes.add("/room", Route::new(Role::Events, config().route_settings())).unwrap();
    let open_timeout = Duration::from_millis(300);
    let engine = Engine::start(Config {
        routes: Some(Arc::new(routes)),
        open_timeout,
        admission: Limits { max_connections: 3, ..Limits::default() },
        workers: 1,
        ..config()
    })
    .unwrap();
    let answered = |target: &str, fields: &str| {
        let mut client = Client::request(&engine, target, fields);
        let mut rest = Vec::new();
        client.stream.read_to_end(&mut rest).unwrap();
        drop(client.stream);
        client.status
    };
    assert_eq!(answered("/nowhere", ""), 404);
    assert_eq!(answered("/room", "Origin: https://elsewhere.example\r\n"), 403);
    assert_eq!(answered("/room", "Sec-WebSocket-Key: twice\r\n"), 400);
    let say = |text: &str| {
        let mut stream = TcpStream::connect(address(&engine)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    for text in ["GET /room HTTP/1.1\r\nHost: localhost\r\n\r\n", "\x16\x03\x01 nonsense\r\n\r\n"] {
        let mut answer = Vec::new();
        say(text).read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
    }
    drop(say("GET /ro"));
    let silent = say("GET /ro");
    let total = wait_until(&engine, "timeout", |total| failures(total, Reason::Timeout) == 1);
    drop(silent);
    for (reason, count) in total.failures_by_reason() {
        let expected = match reason {
            Reason::NotFound | Reason::Origin | Reason::NotWebSocket | Reason::Reset | Reason::Timeout => 1,
            Reason::Malformed => 2,
            _ => 0,
        };
        assert_eq!(count, expected, "{reason}");
    }
    let clients: Vec<_> = (0..3).map(|_| Client::open(&engine, "/room")).collect();
    assert_eq!(answered("/room", ""), 503);
    wait_until(&engine, "full", |total| failures(total, Reason::Full) == 1);
    drop(clients);
}

#[test]
fn dropped_messages_and_outbox_bytes_are_counted() {
    let limits = Config { outbox_limit: 100_000, policy: Policy::DropNewest, workers: 1, ..config() };
    let engine = Engine::start(limits).unwrap();
    let client = Client::open(&engine, "/");
    let message = vec![0; 50_000];
    let deadline = Instant::now() + TIMEOUT;
    let dropped = |figures: &Figures| figures.total().dropped_by_policy().collect::<Vec<_>>();
    let full = |figures: &Figures| dropped(figures)[2].1 > 0 && figures.total().outbox_bytes > 50_000;
    while !full(&engine.figures()) {
        assert!(Instant::now() < deadline, "{:?}", engine.figures());
        if !engine.broadcast(MessageKind::Binary, &message, None).unwrap() {
            engine.wait_for_capacity(None, Some(deadline)).unwrap();
        }
    }
    let figures = engine.figures();
    let names: Vec<_> = dropped(&figures).into_iter().map(|(name, count)| (name, count > 0)).collect();
    assert_eq!(
        names,
        [("disconnect", false), ("drop_oldest", false), ("drop_newest", true), ("conflate", false), ("closing", false)]
    );
    drop(client);
    let total = wait_until(&engine, "gone", |total| total.sessions == 0);
    assert_eq!((total.outbox_bytes, total.mailbox_bytes), (0, 0));
}

#[test]
fn panic_is_counted_and_logged() {
    let admit = |request: &wirespeed_engine::driver::protocol::handshake::Request, _| {
        assert!(request.target != "/defect", "of the test");
        Admission::Accept { role: Role::Echo, subprotocol: None, headers: HeaderList::new() }
    };
    let engine = Engine::start(Config { admit: Arc::new(admit), workers: 1, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    for _ in 0..2 {
        assert_eq!(Client::request(&engine, "/defect", "").status, 0);
    }
    let total = wait_until(&engine, "counted", |total| total.panics == 2 && total.connections == 1);
    assert_eq!((failures(&total, Reason::Panic), total.connections, total.sessions), (2, 1, 1));
    client.send_text("goes on");
    assert_eq!(client.receive_text(), "goes on");
    let told: Vec<_> =
        engine.logs().take(Instant::now()).into_iter().map(|record| (record.level, record.text)).collect();
    let of_panic = told.iter().filter(|(level, text)| *level == Level::Error && text.contains("of the test")).count();
    assert_eq!(of_panic, 1, "{told:?}");
    assert!(told.iter().all(|(_, text)| !text.contains("/defect")), "{told:?}");
}

#[test]
fn publish_latency_is_measured() {
    let engine = Engine::start(config()).unwrap();
    let mut client = Client::open(&engine, "/");
    let batches = engine.events().take(1, Some(Instant::now() + TIMEOUT)).unwrap();
    let session = batches[0].iter().next().unwrap().0.clone();
    session.subscribe(&Pattern::new("a").unwrap()).unwrap();
    for _ in 0..100 {
        engine.publish(&Topic::new("a").unwrap(), MessageKind::Text, b"tick", None, None).unwrap();
        client.receive().unwrap();
    }
    let total = wait_until(&engine, "timed", |total| total.latency.count() > 0);
    assert!(total.latency.count() <= 100 && total.latency.seconds < 20.0, "{total:?}");
    assert!(total.latency.quantile(0.5) < Duration::from_secs(1));
}

#[test]
fn text_format_is_valid_for_prometheus() {
    let engine = Engine::start(Config { workers: 2, ..echo() }).unwrap();
    let mut client = Client::open(&engine, "/");
    client.send_text("hello");
    client.receive_text();
    wait_until(&engine, "counted", |total| total.messages_sent == 1);
    let text = to_text(&engine.figures());
    assert!(text.ends_with("# EOF\n"), "{text}");
    let sum = |name: &str| {
        let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        let values: Vec<u64> = lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        assert!(!values.is_empty(), "{name} in {text}");
        values.iter().sum::<u64>()
    };
    assert_eq!(sum("wirespeed_sessions"), 1);
    assert_eq!(sum("wirespeed_messages_received_total"), 1);
    assert_eq!(sum("wirespeed_sent_bytes_total"), 5);
    assert_eq!(sum("wirespeed_handshakes_failed_total"), 0);
    assert!(sum("wirespeed_loop_lag_seconds_count") > 0);
    assert!(text.contains("# TYPE wirespeed_messages_dropped counter\n"), "{text}");
    assert!(text.contains("wirespeed_handshakes_failed_total{reason=\"unauthorized\"} 0\n"), "{text}");
    assert!(text.contains("wirespeed_loop_lag_seconds_bucket{le=\"+Inf\",worker=\"1\"}"), "{text}");
}
