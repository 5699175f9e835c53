//! Backpressure: which senders wait for slow clients, and which clients are disconnected.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use support::{Client, TIMEOUT, address, config};
use wirespeed_engine::control::Refused;
use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::driver::protocol::handshake::HeaderList;
use wirespeed_engine::events::Event;
use wirespeed_engine::topics::{Pattern, Topic};
use wirespeed_engine::{Admission, Config, Engine, Role, Session};

/// Small, so that the socket buffers do not hide the queues of the engine.
const OUTBOX: usize = 128 * 1024;
const SIZE: usize = 1024;

fn sessions(engine: &Engine, count: usize) -> Vec<Session> {
    let mut sessions = Vec::new();
    while sessions.len() < count {
        let batches = engine.events().take(count, Some(Instant::now() + TIMEOUT)).unwrap();
        assert!(!batches.is_empty());
        for (session, event) in batches.iter().flat_map(|batch| batch.iter()) {
            assert!(matches!(event, Event::Connected));
            sessions.push(session.clone());
        }
    }
    sessions
}

fn payload(number: usize) -> Vec<u8> {
    let mut payload = vec![0; SIZE];
    payload[..8].copy_from_slice(&(number as u64).to_le_bytes());
    payload
}

/// Reads all numbered messages up to this number, with pauses.
fn read_all(client: &mut Client, count: usize, pause: Duration) -> usize {
    for number in 0..count {
        let Some((_, data)) = client.receive() else { return number };
        assert_eq!(data[..8], (number as u64).to_le_bytes(), "in order, without gaps");
        if number % 64 == 0 {
            std::thread::sleep(pause);
        }
    }
    count
}

/// Reads as [`read_all`] does, and returns the client to keep it open.
fn read(mut client: Client, count: usize, pause: Duration) -> (usize, Client) {
    (read_all(&mut client, count, pause), client)
}

#[test]
fn waiting_publisher_runs_at_the_pace_of_subscribers_without_loss() {
    const COUNT: usize = 20_000; // 20 MiB per client, far more than socket buffers and outbox hold
    let engine = Engine::start(Config { outbox_limit: OUTBOX, ..config() }).unwrap();
    let clients: Vec<_> = (0..4).map(|_| Client::open(&engine, "/")).collect();
    let sessions = sessions(&engine, 4);
    sessions.iter().for_each(|session| assert_eq!(session.subscribe(&Pattern::new("feed").unwrap()), Ok(true)));
    let reading: Vec<_> = clients
        .into_iter()
        .map(|client| std::thread::spawn(move || read(client, COUNT, Duration::from_micros(500))))
        .collect();
    let topic = Topic::new("feed").unwrap();
    let mut waits = 0;
    for number in 0..COUNT {
        let (count, room) = engine.publish(&topic, MessageKind::Binary, &payload(number), None, None).unwrap();
        assert_eq!(count, 4, "all clients stay connected");
        if !room {
            waits += 1;
            engine.wait_for_capacity(Some(&topic), Some(Instant::now() + TIMEOUT)).unwrap();
        }
    }
    reading.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap().0, COUNT));
    assert!(waits > 0, "the publisher never waited: the test proves nothing");
}

/// Slow readers like these keep reading and get all messages of publishers that wait for room.
const SLOW: [f64; 4] = [100e3, 300e3, 800e3, 2e6];

/// Far longer than publishers wait for a client that reads nothing.
const STEADILY: Duration = Duration::from_secs(5);

#[test]
fn slow_readers_do_not_count_as_stalled() {
    std::thread::scope(|scope| {
        for rate in SLOW {
            scope.spawn(move || publish_to_reader_of(rate));
        }
    });
}

fn publish_to_reader_of(rate: f64) {
    let engine = Engine::start(Config { outbox_limit: OUTBOX, workers: 1, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    let session = sessions(&engine, 1).remove(0);
    session.subscribe(&Pattern::new("feed").unwrap()).unwrap();
    let topic = Topic::new("feed").unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !over.load(Ordering::SeqCst) && session.is_open() {
                engine.publish(&topic, MessageKind::Binary, &payload(number), None, None).unwrap();
                let _ = engine.wait_for_capacity(Some(&topic), Some(Instant::now() + Duration::from_millis(100)));
                while !over.load(Ordering::SeqCst) && engine.has_capacity(Some(&topic)) == Ok(false) {
                    let _ = engine.wait_for_capacity(Some(&topic), Some(Instant::now() + Duration::from_millis(100)));
                }
                number += 1;
            }
        });
        let read = catch_unwind(AssertUnwindSafe(|| client.read_at(rate, Instant::now() + STEADILY)));
        over.store(true, Ordering::SeqCst);
        let messages = read.unwrap_or_else(|panic| resume_unwind(panic));
        for (number, data) in messages.iter().enumerate() {
            assert_eq!(data[..8], (number as u64).to_le_bytes(), "in order, without gaps");
        }
        assert!(messages.len() * SIZE > (rate * STEADILY.as_secs_f64() / 4.0) as usize, "{}", messages.len());
    });
    assert!(session.is_open());
}

#[test]
fn slow_reader_of_many_topics_slows_publishers_down() {
    const TOPICS: usize = 5000;
    let engine = Engine::start(Config { workers: 1, outbox_limit: 16 << 20, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    let session = sessions(&engine, 1).remove(0);
    session.subscribe(&Pattern::new("feed.>").unwrap()).unwrap();
    // It has far more to read than half of its limit, and reads slowly.
    session.send(MessageKind::Binary, &vec![0; 15 << 20]).unwrap();
    let topics: Vec<_> = (0..TOPICS).map(|number| Topic::new(&format!("feed.{number}")).unwrap()).collect();
    let reading = std::thread::spawn(move || {
        client.read_at(1e6, Instant::now() + Duration::from_secs(3));
        (0..=TOPICS).for_each(|_| drop(client.receive().unwrap()));
        client
    });
    for topic in &topics {
        engine.publish(topic, MessageKind::Binary, b"", None, None).unwrap();
    }
    let deadline = Instant::now() + TIMEOUT;
    while topics.iter().any(|topic| engine.has_capacity(Some(topic)).unwrap()) {
        assert!(Instant::now() < deadline, "some topics still have room although their subscriber is slow");
        std::thread::sleep(Duration::from_millis(2));
    }
    for topic in &topics {
        engine.wait_for_capacity(Some(topic), Some(deadline)).unwrap();
    }
    reading.join().unwrap();
}

#[test]
fn sender_to_one_session_runs_at_its_pace() {
    const COUNT: usize = 20_000;
    let engine = Engine::start(Config { outbox_limit: OUTBOX, ..config() }).unwrap();
    let client = Client::open(&engine, "/");
    let session = sessions(&engine, 1).remove(0);
    let reading = std::thread::spawn(move || read(client, COUNT, Duration::from_micros(500)));
    for number in 0..COUNT {
        if !session.send(MessageKind::Binary, &payload(number)).unwrap() {
            session.wait_for_capacity(Some(Instant::now() + TIMEOUT)).unwrap();
        }
    }
    let (count, _client) = reading.join().unwrap();
    assert_eq!(count, COUNT);
    assert!(session.is_open());
}

#[test]
fn one_slow_subscriber_of_many_is_disconnected_and_slows_no_other() {
    const COUNT: usize = 20_000;
    let engine = Engine::start(Config { outbox_limit: OUTBOX, workers: 1, ..config() }).unwrap();
    let slow = Client::open(&engine, "/");
    let clients: Vec<_> = (0..3).map(|_| Client::open(&engine, "/")).collect();
    let sessions = sessions(&engine, 4);
    sessions.iter().for_each(|session| assert_eq!(session.subscribe(&Pattern::new("feed").unwrap()), Ok(true)));
    let reading: Vec<_> =
        clients.into_iter().map(|client| std::thread::spawn(move || read(client, COUNT, Duration::ZERO))).collect();
    let topic = Topic::new("feed").unwrap();
    let began = Instant::now();
    let mut last = 0;
    for number in 0..COUNT {
        let (count, room) = engine.publish(&topic, MessageKind::Binary, &payload(number), None, None).unwrap();
        last = count;
        if !room {
            engine.wait_for_capacity(Some(&topic), Some(Instant::now() + TIMEOUT)).unwrap();
        }
    }
    assert_eq!(last, 3, "the slow client was disconnected");
    reading.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap().0, COUNT));
    assert!(began.elapsed() < TIMEOUT, "{:?}", began.elapsed());
    drop(slow);
}

#[test]
fn publisher_does_not_wait_long_for_a_stalled_client() {
    let engine = Engine::start(Config { outbox_limit: OUTBOX, workers: 1, ..config() }).unwrap();
    let client = Client::open(&engine, "/");
    let session = sessions(&engine, 1).remove(0);
    session.subscribe(&Pattern::new("feed").unwrap()).unwrap();
    let topic = Topic::new("feed").unwrap();
    let began = Instant::now();
    let mut number = 0;
    // Until it is disconnected.
    while engine.publish(&topic, MessageKind::Binary, &payload(number), None, None).unwrap().0 == 1 {
        number += 1;
        let _ = engine.wait_for_capacity(Some(&topic), Some(Instant::now() + TIMEOUT));
        assert!(began.elapsed() < TIMEOUT, "a client that reads nothing blocks the publisher");
    }
    assert_eq!(session.wait_for_capacity(None), Err(Refused::Closed));
    drop(client);
}

/// Two of three clients read just enough not to count as stalled.
#[test]
fn slow_majority_does_not_freeze_a_topic() {
    const COUNT: usize = 8192; // more than their socket buffers and outboxes hold
    let engine = Engine::start(Config { workers: 1, outbox_limit: 4 << 20, ping_interval: None, ..config() }).unwrap();
    // A small buffer, so that the kernel reports their reads in small steps.
    let slow = [(); 2].map(|()| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(16 * 1024).unwrap();
        socket.connect(&address(&engine).into()).unwrap();
        Client::over(socket.into(), "/", "")
    });
    let client = Client::open(&engine, "/");
    client.stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap(); // the longest pause between messages
    for session in sessions(&engine, 3) {
        session.subscribe(&Pattern::new("feed").unwrap()).unwrap();
    }
    for mut client in slow {
        std::thread::spawn(move || {
            let mut bytes = vec![0; 600];
            while client.stream.read(&mut bytes).is_ok_and(|count| count > 0) {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
    }
    let reading = std::thread::spawn(move || read(client, COUNT, Duration::ZERO));
    let topic = Topic::new("feed").unwrap();
    let deadline = Instant::now() + Duration::from_secs(50);
    for number in 0..COUNT {
        engine.publish(&topic, MessageKind::Binary, &payload(number), None, None).unwrap();
        engine.wait_for_capacity(Some(&topic), Some(deadline)).expect("one who reads waits for those who do not");
    }
    assert_eq!(reading.join().unwrap().0, COUNT);
}

/// All clients are equally slow, and one leaves while a publisher waits: the others are then the whole audience.
#[test]
fn remaining_slow_subscribers_count_as_the_whole_audience() {
    let engine = Engine::start(Config { workers: 1, ping_interval: None, ..config() }).unwrap();
    let mut readers: Vec<_> = (0..2)
        .map(|_| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            socket.connect(&address(&engine).into()).unwrap();
            Client::over(socket.into(), "/", "")
        })
        .collect();
    let sessions = sessions(&engine, 2);
    for session in &sessions {
        session.subscribe(&Pattern::new("feed").unwrap()).unwrap();
    }
    let leaving = readers[1].stream.try_clone().unwrap();
    for mut client in readers.drain(..) {
        std::thread::spawn(move || {
            let mut bytes = vec![0; 2000];
            while client.stream.read(&mut bytes).is_ok_and(|count| count > 0) {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
    }
    let topic = Topic::new("feed").unwrap();
    let began = Instant::now();
    let mut left = None;
    // Longer than a publisher waits for one client of many.
    while left.is_none_or(|left: Instant| left.elapsed() < Duration::from_secs(9)) {
        engine.publish(&topic, MessageKind::Binary, &[0; 8000], None, None).unwrap();
        let _ = engine.wait_for_capacity(Some(&topic), Some(Instant::now() + Duration::from_secs(1)));
        if left.is_none() && began.elapsed() > Duration::from_secs(2) {
            leaving.shutdown(Shutdown::Both).unwrap();
            left = Some(Instant::now());
        }
    }
    let open =
        sessions.iter().filter(|session| session.wait_for_capacity(Some(Instant::now())) != Err(Refused::Closed));
    assert_eq!(open.count(), 1, "the remaining client");
}

fn echo() -> Config {
    let accept = |_: &_, _| Admission::Accept { role: Role::Echo, subprotocol: None, headers: HeaderList::new() };
    let second = Some(Duration::from_secs(1));
    Config { admit: Arc::new(accept), workers: 1, ping_interval: second, ping_timeout: second, ..config() }
}

/// Makes a client send messages to be echoed for as long as the server reads them.
fn flood(client: &Client) -> std::thread::JoinHandle<()> {
    let mut stream = client.stream.try_clone().unwrap();
    let mut peer = Client::peer();
    (0..64).for_each(|number| peer.send_half_mut().send_message(MessageKind::Binary, &payload(number), None).unwrap());
    let bytes = peer.send_half_mut().take_output();
    std::thread::spawn(move || while stream.write_all(&bytes).is_ok() {})
}

#[test]
fn slow_reader_of_its_echo_is_not_stalled() {
    let engine = Engine::start(echo()).unwrap();
    let mut client = Client::open(&engine, "/");
    let sending = flood(&client);
    let messages = client.read_at(1e6, Instant::now() + Duration::from_secs(8));
    assert!(messages.len() > 1000, "{}", messages.len());
    client.stream.shutdown(Shutdown::Both).unwrap();
    sending.join().unwrap();
}

#[test]
fn client_that_never_reads_its_echo_is_disconnected() {
    let engine = Engine::start(echo()).unwrap();
    let client = Client::open(&engine, "/");
    let sending = flood(&client);
    let began = Instant::now();
    while engine.figures().total().sessions > 0 {
        assert!(began.elapsed() < TIMEOUT, "a client that reads nothing keeps its session");
        std::thread::sleep(Duration::from_millis(10));
    }
    sending.join().unwrap();
}

#[test]
fn burst_within_the_outbox_limit_closes_no_session() {
    let engine = Engine::start(Config { workers: 1, ..config() }).unwrap();
    let client = Client::open(&engine, "/");
    let session = sessions(&engine, 1).remove(0);
    let reading = std::thread::spawn(move || read(client, 1000, Duration::ZERO));
    let room: Vec<_> = (0..1000).map(|number| session.send(MessageKind::Binary, &payload(number)).unwrap()).collect();
    let (count, _client) = reading.join().unwrap();
    assert_eq!(count, 1000);
    assert!(session.is_open());
    assert!(room[0] && room.contains(&false), "there is room below half of the limit, and none above");
}

#[test]
fn waiting_sender_is_notified_of_the_end() {
    let engine = Arc::new(Engine::start(Config { outbox_limit: 1000, workers: 1, ..config() }).unwrap());
    let client = Client::open(&engine, "/");
    let session = sessions(&engine, 1).remove(0);
    // It reads nothing, and the message is larger than the socket buffers.
    assert_eq!(session.send(MessageKind::Binary, &vec![0; 32 << 20]), Ok(false));
    let waiting = std::thread::spawn({
        let session = session.clone();
        move || session.wait_for_capacity(Some(Instant::now() + TIMEOUT))
    });
    std::thread::sleep(Duration::from_millis(50));
    drop(client);
    assert_eq!(waiting.join().unwrap(), Err(Refused::Closed));
    let stopping = std::thread::spawn({
        let engine = Arc::clone(&engine);
        move || engine.stop()
    });
    stopping.join().unwrap().unwrap();
    assert_eq!(engine.has_capacity(None), Err(Refused::Closed));
}
