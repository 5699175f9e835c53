//! Sessions end in time, deliver their messages as far as possible, and report their end.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use support::{Client, TIMEOUT, config};
use wirespeed_engine::config::Policy;
use wirespeed_engine::driver::protocol::{CloseCode, MessageKind};
use wirespeed_engine::events::Event;
use wirespeed_engine::{Config, Engine, Listen, Place, Session};

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Connected,
    Message(usize),
    Disconnected(u16),
}

fn take(engine: &Engine, most: usize) -> Vec<(Session, Seen)> {
    let batches = engine.events().take(most, Some(Instant::now() + TIMEOUT)).unwrap();
    assert!(!batches.is_empty(), "no event arrives");
    let seen = |event: Event<'_>| match event {
        Event::Connected => Seen::Connected,
        Event::Message { data, .. } => Seen::Message(data.len()),
        Event::Disconnected(ended) => Seen::Disconnected(ended.code),
    };
    batches.iter().flat_map(|batch| batch.iter()).map(|(session, event)| (session.clone(), seen(event))).collect()
}

#[test]
fn close_timeout_starts_with_the_close() {
    let close_timeout = Duration::from_millis(1500);
    let engine =
        Engine::start(Config { close_timeout, policy: Policy::DropNewest, outbox_limit: 8 << 20, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    let (session, _) = take(&engine, 1).remove(0);
    // Far more than the kernel buffers; the client reads nothing for longer than the close timeout.
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
fn slow_reading_does_not_extend_the_close_timeout() {
    let close_timeout = Duration::from_millis(700);
    let engine = Engine::start(Config { close_timeout, outbox_limit: 64 << 20, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    let (session, _) = take(&engine, 1).remove(0);
    session.send(MessageKind::Binary, &vec![0; 32 << 20]).unwrap();
    session.close(CloseCode(1001), "").unwrap();
    let began = Instant::now();
    let mut some = [0; 256 * 1024];
    while engine.figures().total().sessions > 0 {
        assert!(began.elapsed() < Duration::from_secs(5), "each read extended the timeout");
        let _ = client.stream.read(&mut some);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn messages_before_the_end_become_events_after_a_full_queue() {
    let close_timeout = Duration::from_millis(500);
    let engine = Engine::start(Config { close_timeout, max_events: 2, workers: 1, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    let (session, _) = take(&engine, 1).remove(0);
    // The event queue has no room for the next messages.
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

fn wait_until(what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is() {
        assert!(Instant::now() < deadline, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn pending_handshake_is_answered_once_events_have_room() {
    // No other client sends during the test.
    let (open_timeout, ping_interval) = (TIMEOUT * 2, None);
    let engine = Engine::start(Config { max_events: 2, open_timeout, ping_interval, workers: 1, ..config() }).unwrap();
    let head = "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let mut opening = TcpStream::connect(support::address(&engine)).unwrap();
    opening.set_read_timeout(Some(TIMEOUT)).unwrap();
    opening.write_all(&head.as_bytes()[..20]).unwrap();
    wait_until("accepted", || engine.figures().total().connections == 1);
    let mut client = Client::open(&engine, "/");
    for _ in 0..3 {
        client.send_text("filling");
        std::thread::sleep(Duration::from_millis(30));
    }
    opening.write_all(&head.as_bytes()[20..]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let (events, _) = engine.events().waiting();
    assert!(events >= 2, "the event queue has room");
    assert_eq!(engine.figures().total().sessions, 1);
    take(&engine, 10);
    // The response is sent, although the event queue may be full again.
    let mut answer = [0; 12];
    opening.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
}

#[test]
fn ending_session_adds_few_events_for_small_messages() {
    const SENT: usize = 200_000;
    let close_timeout = Duration::from_secs(1);
    let engine = Engine::start(Config { close_timeout, max_events: 2, workers: 1, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    let (session, _) = take(&engine, 1).remove(0);
    for _ in 0..SENT {
        client.queue(MessageKind::Binary, b"x");
    }
    let bytes = client.peer.send_half_mut().take_output();
    let mut stream = client.stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || stream.write_all(&bytes));
    wait_until("full", || engine.events().waiting().0 > 2);
    session.close(CloseCode(1000), "").unwrap();
    wait_until("ended", || engine.figures().total().sessions == 0);
    let (events, _) = engine.events().waiting();
    assert!(events < SENT / 10, "{events} events wait, of 2");
    let _ = writing.join().unwrap(); // it was disconnected
}

#[test]
fn end_of_stream_with_the_request_is_noticed() {
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
        // The rest of the request, messages that need more than one read, and the end of the stream, all at once.
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
fn small_messages_count_with_their_overhead() {
    let engine = Engine::start(Config { outbox_limit: 100_000, workers: 1, ..config() }).unwrap();
    let client = Client::open(&engine, "/");
    let (session, _) = take(&engine, 1).remove(0);
    session.send(MessageKind::Binary, &vec![0; 32 << 20]).unwrap(); // fills the socket buffers
    let mut sent = 0;
    while session.send(MessageKind::Binary, b"x").is_ok() {
        sent += 1;
        assert!(sent < 50_000, "each takes far more than a byte");
        if sent % 100 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    drop(client);
}

#[test]
fn long_final_input_is_read_in_turns() {
    let engine = Engine::start(Config { max_events: 1, workers: 1, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    let (session, _) = take(&engine, 1).remove(0);
    client.send_text("filling");
    std::thread::sleep(Duration::from_millis(50));
    // More events than the queue holds, and the maximum that is read from a session that is ending.
    for _ in 0..900 {
        client.queue(MessageKind::Text, b"last");
    }
    client.flush();
    std::thread::sleep(Duration::from_millis(50));
    session.close(CloseCode(1000), "").unwrap();
    assert_eq!(client.end(), Some((1000, String::new())));
    let deadline = Instant::now() + TIMEOUT;
    while engine.figures().total().sessions > 0 {
        assert!(Instant::now() < deadline, "it waits for messages that are never read");
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

/// The handler is behind, and the input is read to find the close frame: no more messages of it become events than with
/// a full event queue.
#[test]
fn ending_session_with_a_slow_handler_adds_few_events() {
    const SENT: usize = 200_000;
    let close_timeout = Duration::from_secs(1);
    let engine = Engine::start(Config { close_timeout, workers: 1, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    let (session, _) = take(&engine, 1).remove(0);
    session.set_reading(false);
    for _ in 0..SENT {
        client.queue(MessageKind::Binary, b"x");
    }
    let bytes = client.peer.send_half_mut().take_output();
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
    let _ = writing.join().unwrap(); // it was disconnected
}
