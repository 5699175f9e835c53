//! The memory of all outboxes together is bounded, and clients that read nothing bear the consequences. In a process of
//! its own, because it measures the memory of the process.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use support::{Client, TIMEOUT, config};
use wirespeed_engine::config::Policy;
use wirespeed_engine::driver::protocol::handshake::{HeaderList, Request};
use wirespeed_engine::driver::protocol::{CloseCode, MessageKind};
use wirespeed_engine::{Admission, Config, Engine, Refusal, Relay, Role, Route, Routes, Session};

const MIB: usize = 1 << 20;
const TOTAL: usize = 32 * MIB;
const OUTBOX: usize = 8 * MIB;
const MAILBOX: usize = 2 * MIB;
const ATTACKERS: usize = 60;

/// Memory beside the limit: the mailboxes of both workers, and messages between two checks.
const MARGIN: usize = 2 * MAILBOX + 12 * MIB;

/// The resident memory of this process in bytes.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[cfg(not(target_os = "linux"))]
fn resident() -> usize {
    0
}

fn connect(engine: &Engine) -> (Client, Session) {
    let client = Client::open(engine, "/");
    let batches = engine.events().take(1, Some(Instant::now() + TIMEOUT)).unwrap();
    let session = batches[0].iter().next().unwrap().0.clone();
    (client, session)
}

/// Sends a message once there is room for it. Returns false if the session has ended.
fn send(engine: &Engine, session: &Session, message: &[u8]) -> bool {
    loop {
        match session.send(MessageKind::Binary, message) {
            Ok(_) => return true,
            Err(Refusal::Full) => engine.wait_for_capacity(None, Some(Instant::now() + TIMEOUT)).unwrap(),
            Err(Refusal::Closed) => return false,
            Err(other) => panic!("{other:?}"),
        }
    }
}

/// Attackers that read nothing are sent far more than the limit, each its own messages; an honest client gets all of
/// its own.
fn attack(policy: Policy) {
    let engine = Engine::start(Config {
        total_outbox_limit: TOTAL,
        outbox_limit: OUTBOX,
        mailbox_limit: MAILBOX,
        ping_interval: None,
        policy,
        close_timeout: Duration::from_secs(3600), // no session ends for that
        ..config()
    })
    .unwrap();
    let before = resident();
    let (mut honest, session) = connect(&engine);
    let attackers: Vec<_> = (0..ATTACKERS).map(|_| connect(&engine)).collect();
    let rounds = 4 * OUTBOX / (MIB / 2) / 4;
    let (most, grown) = std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            for round in 0..rounds {
                let (_, data) = honest.receive().unwrap();
                assert_eq!((data.len(), data[0]), (100_000, round as u8));
            }
            honest
        });
        let (mut most, mut grown) = (0, 0);
        for round in 0..rounds {
            assert!(send(&engine, &session, &vec![round as u8; 100_000]), "a client that reads was closed");
            for (number, (_, attacker)) in attackers.iter().enumerate() {
                send(&engine, attacker, &vec![number as u8; MIB / 2]);
                most = most.max(engine.figures().total_outbox_bytes);
                grown = grown.max(resident().saturating_sub(before));
            }
        }
        reading.join().unwrap().close(1000, "");
        (most, grown)
    });
    assert!(most > TOTAL / 2, "the attack had no effect: {most}");
    assert!(most < TOTAL + MARGIN, "{most}");
    // The clients are in this process too, and freed memory may still belong to it.
    assert!(grown < 4 * (TOTAL + MARGIN), "{grown}");
    let dropped: u64 = engine.figures().total().dropped.iter().sum();
    assert!(dropped > ATTACKERS as u64 / 2, "{dropped}");
    // Even if no more messages are sent, the memory shrinks to the limit.
    let deadline = Instant::now() + TIMEOUT;
    while engine.figures().total_outbox_bytes > TOTAL {
        assert!(Instant::now() < deadline, "{}", engine.figures().total_outbox_bytes);
        std::thread::sleep(Duration::from_millis(5));
    }
    // In the end all of it is freed.
    drop(attackers);
    while engine.figures().total_outbox_bytes > 0 {
        assert!(Instant::now() < deadline, "{}", engine.figures().total_outbox_bytes);
        std::thread::sleep(Duration::from_millis(5));
    }
    engine.stop().unwrap();
}

/// A message for many sessions counts once, so none of them is closed.
fn broadcast_counts_once() {
    let engine = Engine::start(Config {
        total_outbox_limit: TOTAL,
        outbox_limit: OUTBOX,
        mailbox_limit: OUTBOX,
        ping_interval: None,
        ..config()
    })
    .unwrap();
    let clients: Vec<_> = (0..ATTACKERS).map(|_| connect(&engine)).collect();
    for _ in 0..3 {
        engine.broadcast(MessageKind::Binary, &vec![0; 2 * MIB], None).unwrap();
    }
    let deadline = Instant::now() + TIMEOUT;
    let waiting = || engine.figures().total().outbox_bytes as usize;
    while waiting() < 2 * TOTAL {
        assert!(Instant::now() < deadline, "{}", waiting());
        std::thread::sleep(Duration::from_millis(5));
    }
    let used = engine.figures().total_outbox_bytes;
    assert!((3 * 2 * MIB..10 * MIB).contains(&used), "{used}");
    for (_, session) in &clients {
        assert!(session.is_open());
        session.close(CloseCode(1000), "").unwrap();
    }
}

/// While a worker is busy, far more messages arrive than outboxes may hold: no session is closed for that.
fn slowly_served_sessions_are_not_closed() {
    const LIMIT: usize = 4 * MIB;
    let (asked, gate) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(())));
    let admit = {
        let (asked, gate) = (Arc::clone(&asked), Arc::clone(&gate));
        move |request: &Request| {
            if request.target == "/busy" {
                asked.store(true, Ordering::SeqCst);
                drop(gate.lock().unwrap());
            }
            Admission::Accept { role: Role::Events, subprotocol: None, headers: HeaderList::new() }
        }
    };
    let engine = Engine::start(Config {
        workers: 1,
        total_outbox_limit: LIMIT,
        outbox_limit: OUTBOX,
        admit: Arc::new(move |request, _| admit(request)),
        ..config()
    })
    .unwrap();
    let (mut slow, session) = connect(&engine);
    let others: Vec<_> = (0..60).map(|_| connect(&engine)).collect();
    let mut sent = 0;
    let deadline = Instant::now() + TIMEOUT;
    while engine.figures().total().outbox_bytes < 200_000 {
        assert!(Instant::now() < deadline, "{sent}");
        // The mailbox must stay small: the worker may get less CPU time than this thread.
        if engine.figures().total_outbox_bytes < 250_000 {
            session.send(MessageKind::Binary, &[0; 8000]).unwrap();
            sent += 1;
        }
    }
    let reading = Barrier::new(others.len() + 1);
    std::thread::scope(|scope| {
        let shut = gate.lock().unwrap();
        let busy = scope.spawn(|| Client::open(&engine, "/busy"));
        while !asked.load(Ordering::SeqCst) {
            assert!(Instant::now() < deadline, "no client connected");
            std::thread::sleep(Duration::from_millis(1));
        }
        for (_, other) in &others {
            other.send(MessageKind::Binary, &vec![0; 150_000]).unwrap();
        }
        assert!(engine.figures().total_outbox_bytes > 2 * LIMIT);
        // The clients read before the worker writes: on a loaded machine it would otherwise wait for them, and close
        // those that read nothing.
        for (mut client, _) in others {
            let reading = &reading;
            scope.spawn(move || {
                reading.wait();
                assert_eq!(client.receive().unwrap().1.len(), 150_000);
            });
        }
        reading.wait();
        drop(shut);
        busy.join().unwrap();
    });
    (0..sent).for_each(|_| assert_eq!(slow.receive().unwrap().1.len(), 8000));
    assert!(session.is_open());
}

/// Two of three workers are busy. Broadcasts wait in both mailboxes and count once, beside the outboxes of the third
/// worker.
fn broadcast_to_several_workers_counts_once() {
    const LIMIT: usize = 8 * MIB;
    const WAITING: usize = 8 * MIB;
    let (asked, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(())));
    let admit = {
        let (asked, gate) = (Arc::clone(&asked), Arc::clone(&gate));
        move |request: &Request| {
            if request.target == "/busy" && asked.fetch_add(1, Ordering::SeqCst) < 2 {
                drop(gate.lock().unwrap());
            }
            Admission::Accept { role: Role::Events, subprotocol: None, headers: HeaderList::new() }
        }
    };
    let engine = Engine::start(Config {
        workers: 3,
        total_outbox_limit: LIMIT,
        outbox_limit: 4 * OUTBOX,
        mailbox_limit: 8 * OUTBOX,
        policy: Policy::DropOldest,
        ping_interval: None,
        admit: Arc::new(move |request, _| admit(request)),
        ..config()
    })
    .unwrap();
    let clients: Vec<_> = (0..30).map(|_| connect(&engine)).collect();
    let deadline = Instant::now() + TIMEOUT;
    std::thread::scope(|scope| {
        let shut = gate.lock().unwrap();
        while asked.load(Ordering::SeqCst) < 2 {
            assert!(Instant::now() < deadline, "no client connected");
            scope.spawn(|| Client::request(&engine, "/busy", ""));
            std::thread::sleep(Duration::from_millis(100));
        }
        for (_, session) in &clients {
            session.send(MessageKind::Text, b"served?").unwrap();
        }
        std::thread::sleep(Duration::from_millis(500));
        let served = |client: &Client| {
            client.stream.set_nonblocking(true).unwrap();
            client.stream.peek(&mut [0]).is_ok()
        };
        let served: Vec<_> = clients.iter().filter(|(client, _)| served(client)).map(|(_, session)| session).collect();
        assert!(!served.is_empty());
        for _ in 0..WAITING / MIB {
            engine.broadcast(MessageKind::Binary, &vec![0; MIB], None).unwrap();
        }
        for _ in 0..4 * LIMIT / MIB {
            for session in &served {
                send(&engine, session, &vec![0; MIB]);
            }
        }
        while engine.figures().total_outbox_bytes > LIMIT + WAITING + MIB {
            assert!(Instant::now() < deadline, "{}", engine.figures().total_outbox_bytes);
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(shut);
    });
}

/// Messages of blocked senders count against no limit, so they must be small.
fn waiting_senders_use_little_memory() {
    const SENDERS: usize = 300;
    let mut routes = Routes::new();
    let config = Config { workers: 1, ping_interval: None, ..config() };
    routes.add("/{topic}", Route::new(Role::Relay(Relay::default()), config.route_settings())).unwrap();
    let told = Relay { receive: false, ..Relay::default() };
    routes.add("/tell/{topic}", Route::new(Role::Relay(told), config.route_settings())).unwrap();
    let engine = Engine::start(Config { routes: Some(Arc::new(routes)), ..config }).unwrap();
    let mut reader = Client::open(&engine, "/a");
    let senders: Vec<_> = (0..SENDERS).map(|_| Client::open(&engine, "/tell/a")).collect();
    let message = {
        let mut peer = Client::peer();
        (0..1000).for_each(|_| peer.send_half_mut().send_message(MessageKind::Binary, &[0; 1000], None).unwrap());
        peer.send_half_mut().take_output()
    };
    let before = resident();
    for sender in &senders {
        sender.stream.set_nonblocking(true).unwrap();
        let mut left = &message[..];
        while !left.is_empty()
            && let Ok(count) = (&sender.stream).write(left)
        {
            left = &left[count..];
        }
    }
    // The client reads slowly, so all senders wait.
    reader.read_at(500e3, Instant::now() + Duration::from_secs(2));
    let grown = resident().saturating_sub(before);
    assert!(grown < SENDERS * 100 * 1024, "{grown}");
}

#[test]
fn total_memory_of_outboxes_is_bounded() {
    waiting_senders_use_little_memory();
    slowly_served_sessions_are_not_closed();
    broadcast_to_several_workers_counts_once();
    broadcast_counts_once();
    for policy in [Policy::Disconnect, Policy::DropOldest, Policy::DropNewest, Policy::Conflate] {
        attack(policy);
    }
}
