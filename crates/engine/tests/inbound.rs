//! Limits on the rate of a session's messages, over real sockets.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use support::{Client, TIMEOUT, config};
use wirespeed_engine::config::{Inbound, Rate, RatePolicy};
use wirespeed_engine::driver::protocol::handshake::HeaderList;
use wirespeed_engine::driver::protocol::{CloseCode, MessageKind};
use wirespeed_engine::events::Event;
use wirespeed_engine::{Admission, Config, Engine, Role, Session};

fn engine(messages: Option<Rate>, bytes: Option<Rate>, policy: RatePolicy) -> Engine {
    let admit = |request: &wirespeed_engine::driver::protocol::handshake::Request, _| Admission::Accept {
        role: if request.target == "/echo" { Role::Echo } else { Role::Events },
        subprotocol: None,
        headers: HeaderList::new(),
    };
    let inbound = Inbound { messages, bytes, policy };
    Engine::start(Config { inbound, admit: Arc::new(admit), workers: 1, ..config() }).unwrap()
}

/// Returns the messages until their number reaches `count` or the session ends.
fn messages(engine: &Engine, most: usize) -> (Option<Session>, Vec<Vec<u8>>) {
    let (mut last, mut all) = (None, Vec::new());
    while all.len() < most {
        let batches = engine.events().take(most - all.len(), Some(Instant::now() + TIMEOUT)).unwrap();
        assert!(!batches.is_empty(), "only {}", all.len());
        for (session, event) in batches.iter().flat_map(|batch| batch.iter()) {
            match event {
                Event::Connected => last = Some(session.clone()),
                Event::Message { data, .. } => all.push(data.to_vec()),
                Event::Disconnected(_) => return (last, all),
            }
        }
    }
    (last, all)
}

fn send(client: &mut Client, count: usize, size: usize) {
    for number in 0..count {
        client.queue(MessageKind::Text, format!("{number:0>size$}").as_bytes());
    }
    client.flush();
}

#[test]
fn delayed_messages_arrive_on_time_and_delay_no_other_client() {
    for (rate, bytes, seconds) in
        [(Rate::new(200.0, Some(50.0)), None, 1.0), (None, Rate::new(20_000.0, Some(5000.0)), 1.0)]
    {
        let engine = engine(rate, bytes, RatePolicy::Delay);
        let mut client = Client::open(&engine, "/");
        let mut other = Client::open(&engine, "/echo");
        let begin = Instant::now();
        send(&mut client, 250, 100);
        client.close(1000, "done");
        let echoes = std::thread::spawn(move || {
            let mut slowest = Duration::ZERO;
            for number in 0..30 {
                let begin = Instant::now();
                other.send_text(&number.to_string());
                assert_eq!(other.receive_text(), number.to_string());
                slowest = slowest.max(begin.elapsed());
                std::thread::sleep(Duration::from_millis(30));
            }
            slowest
        });
        let (_, all) = messages(&engine, usize::MAX);
        let took = begin.elapsed().as_secs_f64();
        let expected: Vec<_> = (0..250).map(|number| format!("{number:0>100}").into_bytes()).collect();
        assert_eq!(all, expected);
        assert!(took > seconds * 0.9 && took < seconds * 3.0, "{took}");
        assert_eq!(client.end(), Some((1000, "done".to_owned())));
        let slowest = echoes.join().unwrap();
        assert!(slowest < Duration::from_millis(300), "{slowest:?}");
        assert!(engine.figures().total().delayed > 3);
        assert_eq!(engine.figures().total().limited, 0);
    }
}

#[test]
fn flood_fills_the_buffers_of_the_client_only() {
    let engine = engine(None, Rate::new(1e6, None), RatePolicy::Delay);
    let mut client = Client::open(&engine, "/echo");
    client.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let chunk = vec![7; 1 << 20];
    let mut sent = 0;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(1) {
        client.queue(MessageKind::Binary, &chunk);
        let bytes = client.peer.send_half_mut().take_output();
        match std::io::Write::write(&mut client.stream, &bytes) {
            Ok(count) if count == bytes.len() => sent += count,
            _ => break,
        }
    }
    assert!(sent < 40 << 20, "{sent}");
}

/// Pings count against no rate. They are read even if the client reads no pongs, and only the latest one is answered
/// (RFC 6455 5.5.3).
#[test]
fn pings_use_no_memory() {
    const COUNT: u32 = 200_000; // 26 MB, and their pongs as much
    let engine = engine(None, None, RatePolicy::Delay);
    let mut client = Client::open(&engine, "/");
    let payload = |number: u32| [&number.to_be_bytes()[..], &[0; 121]].concat();
    for number in 0..COUNT {
        client.peer.send_half_mut().send_ping(&payload(number)).unwrap();
        if number % 1000 == 0 {
            client.flush();
        }
    }
    client.send_text("after the pings");
    assert_eq!(messages(&engine, 1).1, [b"after the pings"]);
    let waiting = engine.figures().total().outbox_bytes;
    assert!(waiting < 256 * 1024, "{waiting}");
    let (mut bytes, mut tail) = (vec![0; 256 * 1024], Vec::new());
    let last = payload(COUNT - 1);
    while !tail.ends_with(&last) {
        let count = std::io::Read::read(&mut client.stream, &mut bytes).unwrap();
        assert!(count > 0);
        tail.extend(&bytes[..count]);
        tail.drain(..tail.len().saturating_sub(1000));
    }
}

#[test]
fn delayed_session_can_be_closed_at_once() {
    let engine = engine(Rate::new(0.1, Some(1.0)), None, RatePolicy::Delay);
    let mut client = Client::open(&engine, "/");
    send(&mut client, 10, 5);
    let (session, all) = messages(&engine, 1);
    assert_eq!(all.len(), 1);
    let session = session.unwrap();
    // Sending to the client is not delayed.
    session.send(MessageKind::Text, b"hello").unwrap();
    assert_eq!(client.receive_text(), "hello");
    let begin = Instant::now();
    session.close(CloseCode(4000), "enough").unwrap();
    assert_eq!(client.end(), Some((4000, "enough".to_owned())));
    messages(&engine, usize::MAX);
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
}

#[test]
fn dropped_messages_are_counted() {
    for target in ["/", "/echo"] {
        let engine = engine(Rate::new(1.0, Some(20.0)), None, RatePolicy::Drop);
        let mut client = Client::open(&engine, target);
        send(&mut client, 1000, 5);
        client.close(1000, "");
        let all = if target == "/echo" {
            std::iter::from_fn(|| client.receive()).map(|(_, data)| data).collect()
        } else {
            messages(&engine, usize::MAX).1
        };
        assert!((20..25).contains(&all.len()), "{}", all.len());
        assert_eq!(all[..20], (0..20).map(|number| format!("{number:0>5}").into_bytes()).collect::<Vec<_>>());
        let deadline = Instant::now() + TIMEOUT;
        while engine.figures().total().limited as usize + all.len() != 1000 {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }
}

#[test]
fn exceeded_rate_ends_the_session() {
    for (messages_rate, bytes) in [(Rate::new(1.0, Some(20.0)), None), (None, Rate::new(1.0, Some(200.0)))] {
        let engine = engine(messages_rate, bytes, RatePolicy::Disconnect);
        let mut client = Client::open(&engine, "/");
        send(&mut client, 20, 10);
        send(&mut client, 1000, 10);
        assert_eq!(client.end(), Some((1008, "too many messages".to_owned())));
        let (session, all) = messages(&engine, usize::MAX);
        assert_eq!(all.len(), 20);
        assert!(!session.unwrap().is_open());
    }
}

/// Input is read during the closing handshake, but no more of it becomes events than the rate allows.
#[test]
fn delayed_session_stays_delayed_while_closing() {
    let inbound = Inbound { messages: Rate::new(1.0, Some(5.0)), bytes: None, policy: RatePolicy::Delay };
    let close_timeout = Duration::from_secs(1);
    let engine = Engine::start(Config { inbound, close_timeout, workers: 1, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    send(&mut client, 2000, 5);
    let (session, all) = messages(&engine, 5);
    assert_eq!(all.len(), 5);
    session.unwrap().close(CloseCode(4000), "enough").unwrap();
    // The client does not answer.
    let (_, rest) = messages(&engine, usize::MAX);
    assert!(rest.len() < 10, "{} more", rest.len());
    assert!(engine.figures().total().limited > 1900);
}
