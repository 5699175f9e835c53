//! How sessions end: in their time, whole as far as possible, and told.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use support::{Client, PATIENCE, config};
use wirespeed_engine::driver::protocol::{CloseCode, MessageKind};
use wirespeed_engine::events::Event;
use wirespeed_engine::outbox::Policy;
use wirespeed_engine::{Config, Engine, Listen, Place, Session};

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Connected,
    Message(usize),
    Disconnected(u16),
}

fn take(engine: &Engine, most: usize) -> Vec<(Session, Seen)> {
    let batches = engine.events().take(most, Some(Instant::now() + PATIENCE)).unwrap();
    assert!(!batches.is_empty(), "nothing happens");
    let seen = |event: Event<'_>| match event {
        Event::Connected => Seen::Connected,
        Event::Message { data, .. } => Seen::Message(data.len()),
        Event::Disconnected(ended) => Seen::Disconnected(ended.code),
    };
    batches.iter().flat_map(|batch| batch.iter()).map(|(session, event)| (session.clone(), seen(event))).collect()
}

#[test]
fn the_time_for_closing_begins_when_it_is_closed() {
    let close_timeout = Duration::from_millis(1500);
    let engine =
        Engine::start(Config { close_timeout, policy: Policy::DropNewest, outbox_limit: 8 << 20, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    let (session, _) = take(&engine, 1).remove(0);
    // Far more than the kernel holds; and nothing of it is read for longer than closing may take.
    for _ in 0..100 {
        session.send(MessageKind::Binary, &[0; 64 * 1024]).unwrap();
    }
    std::thread::sleep(close_timeout + Duration::from_millis(500));
    session.close(CloseCode(1001), "later").unwrap();
    for number in 0..100 {
        assert!(client.receive().is_some(), "{number}");
    }
    assert_eq!(client.end(), Some((1001, "later".to_owned())));
}

#[test]
fn whoever_takes_it_drop_by_drop_does_not_take_it_for_ever() {
    let close_timeout = Duration::from_millis(700);
    let engine = Engine::start(Config { close_timeout, outbox_limit: 64 << 20, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    let (session, _) = take(&engine, 1).remove(0);
    session.send(MessageKind::Binary, &vec![0; 32 << 20]).unwrap();
    session.close(CloseCode(1001), "").unwrap();
    let began = Instant::now();
    let mut some = [0; 256 * 1024];
    while engine.figures().total().sessions > 0 {
        assert!(began.elapsed() < Duration::from_secs(5), "each read gave it more time");
        let _ = client.stream.read(&mut some);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_was_sent_before_the_end_is_told_though_events_had_no_room() {
    let close_timeout = Duration::from_millis(500);
    let engine = Engine::start(Config { close_timeout, max_events: 2, workers: 1, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    let (session, _) = take(&engine, 1).remove(0);
    // Events have no room for what follows.
    for _ in 0..3 {
        client.send_text("filling");
        std::thread::sleep(Duration::from_millis(30));
    }
    client.send_text("last words");
    std::thread::sleep(Duration::from_millis(50));
    session.close(CloseCode(1000), "").unwrap();
    assert_eq!(client.end(), Some((1000, String::new())));
    std::thread::sleep(close_timeout * 2);
    let mut seen = Vec::new();
    while !matches!(seen.last(), Some(Seen::Disconnected(_))) {
        seen.extend(take(&engine, 10).into_iter().map(|(_, event)| event));
    }
    let expected = [Seen::Message(7), Seen::Message(7), Seen::Message(7), Seen::Message(10), Seen::Disconnected(1000)];
    assert_eq!(seen, expected);
}

fn eventually(what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "not {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_opening_that_was_begun_is_answered_once_events_have_room() {
    // Nothing else has anything sent in the time of the test.
    let (open_timeout, ping_interval) = (PATIENCE * 2, None);
    let engine = Engine::start(Config { max_events: 2, open_timeout, ping_interval, workers: 1, ..config() }).unwrap();
    let head = "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let mut opening = TcpStream::connect(support::address(&engine)).unwrap();
    opening.set_read_timeout(Some(PATIENCE)).unwrap();
    opening.write_all(&head.as_bytes()[..20]).unwrap();
    eventually("accepted", || engine.figures().total().connections == 1);
    let mut client = Client::open(&engine, "/");
    for _ in 0..3 {
        client.send_text("filling");
        std::thread::sleep(Duration::from_millis(30));
    }
    opening.write_all(&head.as_bytes()[20..]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let (events, _) = engine.events().waiting();
    assert!(events >= 2, "events have room");
    assert_eq!(engine.figures().total().sessions, 1);
    take(&engine, 10);
    // The answer leaves though there may be no room again.
    let mut answer = [0; 12];
    opening.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
}

#[test]
fn who_is_ended_adds_few_events_however_small_the_messages() {
    const SENT: usize = 200_000;
    let close_timeout = Duration::from_secs(1);
    let engine = Engine::start(Config { close_timeout, max_events: 2, workers: 1, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    let (session, _) = take(&engine, 1).remove(0);
    for _ in 0..SENT {
        client.queue(MessageKind::Binary, b"x");
    }
    let bytes = client.peer.send_half.take_output();
    let mut stream = client.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || stream.write_all(&bytes));
    eventually("full", || engine.events().waiting().0 > 2);
    session.close(CloseCode(1000), "").unwrap();
    eventually("ended", || engine.figures().total().sessions == 0);
    let (events, _) = engine.events().waiting();
    assert!(events < SENT / 10, "{events} events wait, of 2");
    let _ = writing.join().unwrap(); // it was cut off
}

#[test]
fn an_end_that_comes_with_the_request_is_seen() {
    let path = std::env::temp_dir().join(format!("wirespeed-endings-{}", std::process::id()));
    let at = Place::Unix(path.clone());
    let listen = vec![Listen { at, tls: None }];
    let engine = Engine::start(Config { listen, ping_interval: None, workers: 1, ..config() }).unwrap();
    for _ in 0..20 {
        let mut stream = UnixStream::connect(&path).unwrap();
        let head = "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
        stream.write_all(&head.as_bytes()[..20]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        // The rest, messages that are more than one read, and the end, as one.
        let mut rest = head.as_bytes()[20..].to_vec();
        for _ in 0..1000 {
            rest.extend_from_slice(&[0x82, 0xfe, 0, 200, 0, 0, 0, 0]);
            rest.extend_from_slice(&[7; 200]);
        }
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write(&rest).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut ended = false;
        while !ended {
            ended = take(&engine, 100_000).iter().any(|(_, event)| matches!(event, Seen::Disconnected(_)));
        }
        let mut answer = Vec::new();
        stream.set_nonblocking(false).unwrap();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.starts_with(b"HTTP/1.1 101"));
    }
    drop(engine);
    let _ = std::fs::remove_file(path);
}

#[test]
fn small_messages_count_for_more_than_their_bytes() {
    let engine = Engine::start(Config { outbox_limit: 100_000, workers: 1, ..config() }).unwrap();
    let client = Client::open(&engine, "/");
    let (session, _) = take(&engine, 1).remove(0);
    session.send(MessageKind::Binary, &vec![0; 32 << 20]).unwrap(); // the kernel is full from here on
    let mut sent = 0;
    while session.send(MessageKind::Binary, b"x").is_ok() {
        sent += 1;
        assert!(sent < 50_000, "they take far more than a byte");
        if sent % 100 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    drop(client);
}

#[test]
fn last_words_that_are_many_are_read_in_turns() {
    let engine = Engine::start(Config { max_events: 1, workers: 1, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    let (session, _) = take(&engine, 1).remove(0);
    client.send_text("filling");
    std::thread::sleep(Duration::from_millis(50));
    // More events than there is room for, and as many as are read of one that is ending.
    for _ in 0..900 {
        client.queue(MessageKind::Text, b"last");
    }
    client.flush();
    std::thread::sleep(Duration::from_millis(50));
    session.close(CloseCode(1000), "").unwrap();
    assert_eq!(client.end(), Some((1000, String::new())));
    let deadline = Instant::now() + PATIENCE;
    while engine.figures().total().sessions > 0 {
        assert!(Instant::now() < deadline, "it waits for what nobody reads");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut messages = 0;
    loop {
        let seen = take(&engine, 100_000);
        messages += seen.iter().filter(|(_, event)| *event == Seen::Message(4)).count();
        if let Some((_, Seen::Disconnected(code))) = seen.last() {
            assert_eq!((*code, messages), (1000, 900));
            return;
        }
    }
}

/// Whoever handles its messages is behind, and they are read for its answer: no more of them than when events have no room.
#[test]
fn who_is_ended_while_its_handler_is_behind_adds_few_events() {
    const SENT: usize = 200_000;
    let close_timeout = Duration::from_secs(1);
    let engine = Engine::start(Config { close_timeout, workers: 1, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    let (session, _) = take(&engine, 1).remove(0);
    session.set_reading(false);
    for _ in 0..SENT {
        client.queue(MessageKind::Binary, b"x");
    }
    let bytes = client.peer.send_half.take_output();
    let mut stream = client.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || stream.write_all(&bytes));
    std::thread::sleep(Duration::from_millis(200));
    session.close(CloseCode(1000), "").unwrap();
    let mut messages = 0;
    'all: loop {
        for (_, event) in take(&engine, 1_000_000) {
            match event {
                Seen::Message(_) => messages += 1,
                Seen::Disconnected(_) => break 'all,
                Seen::Connected => {}
            }
        }
    }
    assert!(messages < SENT / 10, "{messages} events of {SENT}");
    let _ = writing.join().unwrap(); // it was cut off
}
