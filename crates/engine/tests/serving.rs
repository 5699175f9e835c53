//! An engine serves clients over real sockets.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::{Client, TIMEOUT, address, config};
use wirespeed_engine::driver::protocol::deflate::negotiate;
use wirespeed_engine::driver::protocol::handshake::HeaderList;
use wirespeed_engine::driver::protocol::{CloseCode, MessageKind};
use wirespeed_engine::events::Event;
use wirespeed_engine::topics::{Pattern, Topic};
use wirespeed_engine::{Admission, Config, Drain, Engine, Reason, Refusal, Relay, Role, Route, Routes, Session};

/// An event, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Connected,
    Message(Vec<u8>),
    Disconnected(u16, String),
}

/// Takes `count` events of each session.
fn take(engine: &Engine, count: usize) -> Vec<(Session, Seen)> {
    let deadline = Instant::now() + TIMEOUT;
    let mut seen = Vec::new();
    while seen.len() < count {
        let batches = engine.events().take(count - seen.len(), Some(deadline)).unwrap();
        assert!(!batches.is_empty(), "only {seen:?}");
        for batch in &batches {
            for (session, event) in batch.iter() {
                seen.push((
                    session.clone(),
                    match event {
                        Event::Connected => Seen::Connected,
                        Event::Message { data, .. } => Seen::Message(data.to_vec()),
                        Event::Disconnected(ended) => Seen::Disconnected(ended.code, ended.reason.clone()),
                    },
                ));
            }
        }
    }
    seen
}

fn role(role: Role) -> Config {
    let admit = move |_: &_, _| Admission::Accept { role: role.clone(), subprotocol: None, headers: HeaderList::new() };
    Config { admit: Arc::new(admit), ..config() }
}

#[test]
fn messages_of_all_sizes_are_echoed() {
    let engine = Engine::start(role(Role::Echo)).unwrap();
    let mut client = Client::open(&engine, "/");
    for size in [0, 1, 125, 126, 65_535, 65_536, 1_000_000] {
        let data: Vec<u8> = (0..size).map(|index| index as u8).collect();
        client.send(MessageKind::Binary, &data);
        let (kind, echo) = client.receive().unwrap();
        assert!(kind == MessageKind::Binary && echo == data, "{size}");
    }
    client.close(1000, "bye");
    assert_eq!(client.end(), Some((1000, "bye".to_owned())));
    engine.stop().unwrap();
}

#[test]
fn flood_is_echoed_to_a_late_reader() {
    let engine = Engine::start(role(Role::Echo)).unwrap();
    let mut client = Client::open(&engine, "/");
    let mut writer = client.stream.try_clone().unwrap();
    let count = 30_000;
    for number in 0..count {
        client.queue(MessageKind::Text, format!("{number:0>1000}").as_bytes());
    }
    let bytes = client.peer.send_half_mut().take_output();
    let writing = std::thread::spawn(move || writer.write_all(&bytes).unwrap());
    std::thread::sleep(Duration::from_millis(300));
    for number in 0..count {
        assert_eq!(client.receive_text(), format!("{number:0>1000}"));
    }
    writing.join().unwrap();
}

#[test]
fn events_and_answers_are_in_order() {
    let engine = Engine::start(config()).unwrap();
    let mut clients: Vec<_> = (0..20).map(|number| Client::open(&engine, &format!("/room?number={number}"))).collect();
    let mut sessions = HashMap::new();
    for (session, seen) in take(&engine, 20) {
        assert_eq!(seen, Seen::Connected);
        assert_eq!(session.path(), "/room");
        assert_eq!(session.headers().value_str("host"), Some("localhost"));
        let number: usize = session.query().strip_prefix("number=").unwrap().parse().unwrap();
        assert_eq!(session.remote_address(), Some(clients[number].stream.local_addr().unwrap()));
        assert!(sessions.insert(session.id(), number).is_none(), "duplicate session id");
    }
    for (number, client) in clients.iter_mut().enumerate() {
        for message in 0..100 {
            client.queue(MessageKind::Text, format!("{number} {message}").as_bytes());
        }
        client.flush();
    }
    let mut next = [0; 20];
    for (session, seen) in take(&engine, 2000) {
        let number = sessions[&session.id()];
        assert_eq!(seen, Seen::Message(format!("{number} {}", next[number]).into_bytes()));
        next[number] += 1;
        session.send(MessageKind::Text, format!("got {}", next[number]).as_bytes()).unwrap();
    }
    for client in &mut clients {
        for message in 1..=100 {
            assert_eq!(client.receive_text(), format!("got {message}"));
        }
        client.close(3000, "done");
        assert_eq!(client.end(), Some((3000, "done".to_owned())));
    }
    for (session, seen) in take(&engine, 20) {
        assert_eq!(seen, Seen::Disconnected(3000, "done".to_owned()));
        assert!(!session.is_open());
        assert!(session.send(MessageKind::Text, b"late").is_err());
        session.close(CloseCode::NORMAL_CLOSURE, "again").unwrap();
    }
    assert_eq!(engine.figures().total().sessions, 0);
    assert_eq!(engine.figures().total().connections, 0);
}

#[test]
fn broadcast_and_close_keep_the_order_of_calls() {
    let engine = Engine::start(Config { compression: Some(negotiate::Config::server()), ..config() }).unwrap();
    let offer = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
    let mut clients: Vec<_> =
        (0..10).map(|number| Client::request(&engine, "/", if number % 2 == 0 { offer } else { "" })).collect();
    let sessions: Vec<_> = take(&engine, 10).into_iter().map(|(session, _)| session).collect();
    let long = "x".repeat(5000);
    for number in 0..50 {
        engine.broadcast(MessageKind::Text, format!("all {number} {long}").as_bytes(), None).unwrap();
        for session in &sessions {
            session.send(MessageKind::Text, format!("one {number}").as_bytes()).unwrap();
        }
    }
    engine.broadcast(MessageKind::Text, b"not you", Some(&sessions[0])).unwrap();
    for session in &sessions {
        session.close(CloseCode(4000), "enough").unwrap();
    }
    let mut without = 0;
    for client in &mut clients {
        for number in 0..50 {
            assert_eq!(client.receive_text(), format!("all {number} {long}"));
            assert_eq!(client.receive_text(), format!("one {number}"));
        }
        match client.receive() {
            Some((_, text)) => assert_eq!(text, b"not you"),
            None => without += 1,
        }
        assert_eq!(client.end(), Some((4000, "enough".to_owned())));
    }
    assert_eq!(without, 1);
}

#[test]
fn full_event_queue_stops_reading_without_loss() {
    let limits = Config { max_events: 100, max_event_bytes: 1 << 20, workers: 1, ..config() };
    let engine = Engine::start(limits).unwrap();
    let mut client = Client::open(&engine, "/");
    take(&engine, 1);
    let mut writer = client.stream.try_clone().unwrap();
    let payload = vec![b'x'; 1000];
    for number in 0..50_000_u32 {
        client.queue(MessageKind::Binary, &[&number.to_be_bytes()[..], &payload].concat());
    }
    let bytes = client.peer.send_half_mut().take_output();
    let writing = std::thread::spawn(move || writer.write_all(&bytes).unwrap());
    std::thread::sleep(Duration::from_millis(500));
    assert!(!writing.is_finished(), "50 MB were read, for events that nobody takes");
    let (_, waiting) = engine.events().waiting();
    assert!(waiting < 8 << 20, "{waiting} bytes wait");
    let mut next = 0_u32;
    while next < 50_000 {
        for (_, seen) in take(&engine, 1) {
            let Seen::Message(data) = seen else { panic!("{seen:?}") };
            assert_eq!(data[..4], next.to_be_bytes());
            next += 1;
        }
    }
    writing.join().unwrap();
}

#[test]
fn stalled_client_is_closed_and_does_not_block_others() {
    let engine = Engine::start(Config {
        workers: 1,
        outbox_limit: 100_000,
        close_timeout: Duration::from_millis(300),
        ..config()
    })
    .unwrap();
    let (mut deaf, mut honest) = (Client::open(&engine, "/"), Client::open(&engine, "/"));
    let sessions: Vec<_> = take(&engine, 2).into_iter().map(|(session, _)| session).collect();
    let deaf_port = deaf.stream.local_addr().unwrap();
    let message = vec![b'x'; 10_000];
    let mut sent = 0;
    while sessions.iter().all(Session::is_open) {
        engine.broadcast(MessageKind::Binary, &message, None).unwrap();
        assert_eq!(honest.receive().unwrap().1.len(), 10_000);
        sent += 1;
        assert!(sent < 20_000, "200 MB wait for a client that does not read");
    }
    let begin = Instant::now();
    let (session, seen) = take(&engine, 1).remove(0);
    assert!(begin.elapsed() < Duration::from_secs(5), "the time for closing is 0.3 s: {:?}", begin.elapsed());
    assert_eq!((session.remote_address(), seen), (Some(deaf_port), Seen::Disconnected(1006, String::new())));
    assert!(deaf.end().is_none() || deaf.peer.send_half().close_received().is_some());
    engine.broadcast(MessageKind::Text, b"still here", None).unwrap();
    assert_eq!(honest.receive_text(), "still here");
}

#[test]
fn requests_without_upgrade_are_answered() {
    let refuse = |request: &wirespeed_engine::driver::protocol::handshake::Request, _| match request.target.as_str() {
        "/secret" => Admission::Refuse { status: 403, headers: HeaderList::new(), body: b"no".to_vec() },
        _ => Admission::Accept { role: Role::Echo, subprotocol: None, headers: HeaderList::new() },
    };
    let engine = Engine::start(Config { admit: Arc::new(refuse), ..config() }).unwrap();
    assert_eq!(Client::request(&engine, "/secret", "").status, 403);
    assert_eq!(Client::request(&engine, "/", "").status, 101);
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 426 "),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 405 "),
        ("nonsense\r\n\r\n", "HTTP/1.1 400 "),
    ] {
        let mut stream = TcpStream::connect(address(&engine)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(status), "{answer}");
    }
}

#[test]
fn silent_client_is_closed_at_the_open_timeout() {
    let engine = Engine::start(Config { open_timeout: Duration::from_millis(200), ..config() }).unwrap();
    let begin = Instant::now();
    let mut silent = TcpStream::connect(address(&engine)).unwrap();
    silent.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0);
    let waited = begin.elapsed();
    assert!(waited >= Duration::from_millis(190) && waited < Duration::from_secs(3), "{waited:?}");
}

#[test]
fn pings_detect_lost_clients() {
    let times = Config {
        ping_interval: Some(Duration::from_millis(200)),
        ping_timeout: Some(Duration::from_millis(300)),
        ..config()
    };
    let engine = Engine::start(times).unwrap();
    let mut alive = Client::open(&engine, "/alive");
    let _gone = Client::open(&engine, "/gone");
    take(&engine, 2);
    let answering = std::thread::spawn(move || alive.end());
    let (session, seen) = take(&engine, 1).remove(0);
    assert_eq!((session.path(), seen), ("/gone", Seen::Disconnected(1006, String::new())));
    std::thread::sleep(Duration::from_millis(1500));
    let left = engine.events().take(1, Some(Instant::now())).unwrap();
    assert!(left.is_empty(), "who answers stays: {:?}", left[0].iter().next());
    engine.drain(CloseCode::GOING_AWAY, "that was it");
    assert_eq!(answering.join().unwrap(), Some((1001, "that was it".to_owned())));
    engine.join().unwrap();
    assert!(TcpStream::connect(address(&engine)).is_err());
}

#[test]
fn stop_notifies_clients_and_waiting_callers() {
    let engine = Arc::new(Engine::start(config()).unwrap());
    let mut clients: Vec<_> = (0..5).map(|_| Client::open(&engine, "/")).collect();
    let taking = std::thread::spawn({
        let engine = Arc::clone(&engine);
        move || {
            let mut count = 0;
            while let Ok(batches) = engine.events().take(1000, None) {
                count += batches.iter().map(wirespeed_engine::events::Batch::len).sum::<usize>();
            }
            count
        }
    });
    std::thread::sleep(Duration::from_millis(100));
    engine.stop().unwrap();
    engine.stop().unwrap();
    assert_eq!(taking.join().unwrap(), 10, "5 have come, 5 have gone");
    for client in &mut clients {
        assert_eq!(client.end(), None);
    }
    assert!(engine.broadcast(MessageKind::Text, b"late", None).is_err());
}

fn pattern(text: &str) -> Pattern {
    Pattern::new(text).unwrap()
}

fn publish(engine: &Engine, topic: &str, except: Option<&Session>) -> usize {
    engine.publish(&Topic::new(topic).unwrap(), MessageKind::Text, topic.as_bytes(), except, None).unwrap().0
}

#[test]
fn subscribers_receive_each_message_once_and_in_order() {
    let engine = Engine::start(config()).unwrap();
    let mut clients: Vec<_> = (0..8).map(|number| Client::open(&engine, &format!("/{number}"))).collect();
    let mut sessions: Vec<_> = take(&engine, 8).into_iter().map(|(session, _)| session).collect();
    sessions.sort_by_key(|session| session.path().to_owned());
    for session in &sessions {
        assert_eq!(session.subscribe(&pattern("prices.a")), Ok(true));
        assert_eq!(session.subscribe(&pattern("prices.a")), Ok(false));
    }
    for session in &sessions[..4] {
        session.subscribe(&pattern("prices.*")).unwrap();
        session.subscribe(&pattern("prices.>")).unwrap();
    }
    assert_eq!(publish(&engine, "prices.a", None), 8);
    assert_eq!(publish(&engine, "prices.b", None), 4);
    assert_eq!(publish(&engine, "prices.b.c", Some(&sessions[0])), 3);
    assert_eq!(publish(&engine, "prices.a", Some(&sessions[7])), 7);
    assert_eq!(publish(&engine, "other", None), 0);
    assert!(sessions[0].unsubscribe(&pattern("prices.*")) && !sessions[0].unsubscribe(&pattern("prices.*")));
    assert!(sessions[0].unsubscribe(&pattern("prices.>")));
    assert_eq!(sessions[0].topics(), [pattern("prices.a")]);
    assert_eq!((publish(&engine, "prices.b", None), publish(&engine, "prices.a", None)), (3, 8));
    for session in &sessions {
        session.send(MessageKind::Text, b"end").unwrap();
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let mut expected = vec!["prices.a"];
        if number < 4 {
            expected.push("prices.b");
        }
        if (1..4).contains(&number) {
            expected.push("prices.b.c");
        }
        if number != 7 {
            expected.push("prices.a");
        }
        if (1..4).contains(&number) {
            expected.push("prices.b");
        }
        expected.extend(["prices.a", "end"]);
        let received: Vec<_> = expected.iter().map(|_| client.receive_text()).collect();
        assert_eq!(received, expected, "{number}");
    }
    // A closed session is removed.
    for client in &mut clients[..6] {
        client.close(1000, "");
    }
    take(&engine, 6);
    assert_eq!(publish(&engine, "prices.a", None), 2);
    assert_eq!(sessions[0].subscribe(&pattern("prices.a")), Err(Refusal::Closed));
    assert_eq!(engine.subscribers(&Topic::new("prices.a").unwrap()), 2);
}

#[test]
fn concurrent_subscriptions_miss_and_repeat_no_message() {
    let engine = Arc::new(Engine::start(config()).unwrap());
    let mut clients: Vec<_> = (0..6).map(|_| Client::open(&engine, "/")).collect();
    let sessions: Vec<_> = take(&engine, 6).into_iter().map(|(session, _)| session).collect();
    let topic = Topic::new("a.b").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    // Ascending numbers, and the number of sessions that each publication reports.
    let publisher = std::thread::spawn({
        let (engine, stop) = (Arc::clone(&engine), Arc::clone(&stop));
        move || {
            let mut counts = Vec::new();
            while !stop.load(Ordering::Relaxed) || counts.len() < 1000 {
                let text = counts.len().to_string();
                let (count, room) = engine.publish(&topic, MessageKind::Text, text.as_bytes(), None, None).unwrap();
                counts.push(count);
                if !room {
                    engine.wait_for_capacity(None, None).unwrap();
                }
            }
            counts
        }
    });
    let changing: Vec<_> = sessions
        .iter()
        .cloned()
        .enumerate()
        .map(|(number, session)| {
            std::thread::spawn(move || {
                let pattern = pattern(["a.b", "a.*", ">"][number % 3]);
                for _ in 0..200 {
                    assert_eq!(session.subscribe(&pattern), Ok(true));
                    std::thread::sleep(Duration::from_micros(300));
                    assert!(session.unsubscribe(&pattern));
                }
                session.send(MessageKind::Text, b"end").unwrap();
            })
        })
        .collect();
    let reading: Vec<_> = clients
        .drain(..)
        .map(|mut client| {
            std::thread::spawn(move || {
                let mut numbers: Vec<usize> = Vec::new();
                while let Ok(number) = client.receive_text().parse() {
                    numbers.push(number);
                }
                numbers
            })
        })
        .collect();
    changing.into_iter().for_each(|thread| thread.join().unwrap());
    stop.store(true, Ordering::Relaxed);
    let counts = publisher.join().unwrap();
    let mut received = vec![0; counts.len()];
    for thread in reading {
        let numbers = thread.join().unwrap();
        assert!(numbers.is_sorted_by(|one, other| one < other), "in order and without duplicates");
        numbers.into_iter().for_each(|number| received[number] += 1);
    }
    assert_eq!(received, counts, "the reported number of receivers");
}

#[test]
fn echo_creates_no_events() {
    let engine = Engine::start(Config { max_events: 1, ..role(Role::Echo) }).unwrap();
    for _ in 0..20 {
        let mut client = Client::open(&engine, "/");
        client.send_text("hello");
        assert_eq!(client.receive_text(), "hello");
        client.close(1000, "");
        client.end();
    }
    assert_eq!(engine.events().waiting(), (0, 0), "events were queued");
}

/// Sends a request without waiting for the response.
fn send_request(engine: &Engine, target: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address(engine)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let request = format!(
        "GET {target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "the condition did not become true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn get(engine: &Engine, path: &str) -> String {
    let mut stream = TcpStream::connect(address(engine)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn full_event_queue_delays_only_requests_that_become_events() {
    let mut routes = Routes::new();
    let settings = Config { max_events: 10, workers: 1, ..config() };
    for (path, role) in [("/", Role::Events), ("/echo", Role::Echo), ("/relay/{topic}", Role::Relay(Relay::default()))]
    {
        routes.add(path, Route::new(role, settings.route_settings())).unwrap();
    }
    let engine = Engine::start(Config { routes: Some(Arc::new(routes)), ..settings }).unwrap();
    let first: Vec<_> = (0..10).map(|_| Client::open(&engine, "/")).collect();
    wait_until(|| engine.events().waiting().0 == 10);
    let mut waiting: Vec<_> = (0..100).map(|_| send_request(&engine, "/")).collect();
    wait_until(|| engine.figures().total().connections == 110);
    assert!(get(&engine, "/health").starts_with("HTTP/1.1 200 "));
    assert!(get(&engine, "/ready").starts_with("HTTP/1.1 503 "));
    assert_eq!(Client::request(&engine, "/nowhere", "").status, 404);
    let mut echo = Client::open(&engine, "/echo");
    echo.send_text("hello");
    assert_eq!(echo.receive_text(), "hello");
    let mut relays = [Client::open(&engine, "/relay/a"), Client::open(&engine, "/relay/a")];
    relays[0].send_text("news");
    assert_eq!(relays[1].receive_text(), "news");
    // A client that leaves meanwhile becomes no event and frees its place.
    drop(waiting.split_off(50));
    drop((echo, relays));
    wait_until(|| engine.figures().total().connections == 60);
    let total = engine.figures().total();
    assert_eq!((total.sessions, engine.events().waiting().0), (10, 10));
    waiting[0].set_nonblocking(true).unwrap();
    assert!(waiting[0].read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    waiting[0].set_nonblocking(false).unwrap();
    take(&engine, 60);
    for stream in &mut waiting {
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 101");
    }
    drop(first);
}

#[test]
fn request_waiting_for_events_is_limited_by_the_open_timeout() {
    let open_timeout = Duration::from_millis(300);
    let engine = Engine::start(Config { max_events: 1, workers: 1, open_timeout, ..config() }).unwrap();
    let _first = Client::open(&engine, "/");
    wait_until(|| engine.events().waiting().0 == 1);
    let mut draining_input = send_request(&engine, "/");
    assert_eq!(draining_input.read(&mut [0]).unwrap_or(0), 0);
    wait_until(|| engine.figures().total().failures[Reason::Timeout.index()] == 1);
    // Clients that are connected when accepting stops are not turned away.
    let mut last = send_request(&engine, "/");
    wait_until(|| engine.figures().total().connections == 2);
    let mut draining = engine.begin_drain(Drain { timeout: TIMEOUT, ..Drain::default() });
    draining.step(Instant::now());
    let mut answer = [0; 12];
    last.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
}
