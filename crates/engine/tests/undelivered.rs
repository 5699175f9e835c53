//! Messages that are accepted but not delivered are counted, and the number of commands is bounded.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::{Client, TIMEOUT, config};
use wirespeed_engine::driver::protocol::handshake::{HeaderList, Request};
use wirespeed_engine::driver::protocol::{CloseCode, MessageKind};
use wirespeed_engine::topics::{Pattern, Topic};
use wirespeed_engine::{Admission, Config, Engine, Refusal, Role, Session};

/// An engine with one worker, which blocks while it handles a request for `/block`.
struct Held {
    engine: Engine,
    release: Arc<AtomicBool>,
    looked: Arc<AtomicBool>,
}

/// Unblocks the worker when dropped, even if a test fails.
struct Release<'a>(&'a AtomicBool);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Held {
    fn new(config: Config) -> Self {
        let (release, looked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let admit = {
            let (release, looked) = (Arc::clone(&release), Arc::clone(&looked));
            move |request: &Request, _| {
                if request.target == "/block" {
                    looked.store(true, Ordering::Release);
                    while !release.load(Ordering::Acquire) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                Admission::Accept { role: Role::Events, subprotocol: None, headers: HeaderList::new() }
            }
        };
        let engine = Engine::start(Config { admit: Arc::new(admit), workers: 1, ..config }).unwrap();
        Self { engine, release, looked }
    }

    /// Calls a function while the worker is blocked.
    fn meanwhile<R>(&self, action: impl FnOnce() -> R) -> R {
        std::thread::scope(|scope| {
            let blocking = scope.spawn(|| Client::open(&self.engine, "/block"));
            wait_until(|| self.looked.load(Ordering::Acquire));
            let release = Release(&self.release);
            let result = action();
            drop(release);
            blocking.join().unwrap();
            result
        })
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "it did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn session(engine: &Engine) -> Session {
    let batches = engine.events().take(1, Some(Instant::now() + TIMEOUT)).unwrap();
    batches[0].iter().next().unwrap().0.clone()
}

fn undelivered(engine: &Engine) -> u64 {
    engine.figures().total().dropped_by_policy().find(|(name, _)| *name == "closing").unwrap().1
}

#[test]
fn queued_messages_of_a_leaving_client_are_counted() {
    let engine = Engine::start(Config { outbox_limit: 1 << 30, mailbox_limit: 1 << 30, ..config() }).unwrap();
    let client = Client::open(&engine, "/");
    let session = session(&engine);
    for _ in 0..64 {
        session.send(MessageKind::Binary, &vec![0; 1 << 20]).unwrap(); // more than the socket buffers hold
    }
    wait_until(|| engine.figures().total().outbox_bytes > 32 << 20);
    drop(client);
    wait_until(|| engine.figures().total().sessions == 0);
    let total = engine.figures().total();
    assert_eq!(undelivered(&engine) + total.messages_sent, 64, "{total:?}");
    assert!(undelivered(&engine) > 30, "{}", undelivered(&engine));
}

#[test]
fn messages_after_the_close_are_counted() {
    let held = Held::new(config());
    let _client = Client::open(&held.engine, "/");
    let session = session(&held.engine);
    let topic = Topic::new("news").unwrap();
    session.subscribe(&Pattern::new("news").unwrap()).unwrap();
    wait_until(|| held.engine.publish(&topic, MessageKind::Text, b"first", None, None).unwrap().0 == 1);
    held.meanwhile(|| {
        session.close(CloseCode(1000), "").unwrap();
        assert_eq!(held.engine.publish(&topic, MessageKind::Text, b"late", None, None).unwrap().0, 1);
        // Sending to a closed session returns an error.
        assert_eq!(session.send(MessageKind::Text, b"later"), Err(Refusal::Closed));
    });
    wait_until(|| undelivered(&held.engine) == 1);
}

#[test]
fn queued_commands_of_an_ending_worker_are_counted() {
    let held = Held::new(config());
    let _client = Client::open(&held.engine, "/");
    let session = session(&held.engine);
    session.subscribe(&Pattern::new("news").unwrap()).unwrap();
    let topic = Topic::new("news").unwrap();
    wait_until(|| held.engine.publish(&topic, MessageKind::Text, b"first", None, None).unwrap().0 == 1);
    wait_until(|| held.engine.figures().total().messages_sent == 1);
    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopping = held.meanwhile(|| {
            session.send(MessageKind::Text, b"to one").unwrap();
            held.engine.publish(&topic, MessageKind::Text, b"to some", None, None).unwrap();
            held.engine.broadcast(MessageKind::Text, b"to all", None).unwrap();
            let stopping = scope.spawn(|| {
                stopped.store(true, Ordering::Release);
                held.engine.stop().unwrap();
            });
            wait_until(|| stopped.load(Ordering::Acquire));
            stopping
        });
        stopping.join().unwrap();
    });
    // Each was delivered or counted: the worker may have had a turn. The last client receives the broadcast too.
    let total = held.engine.figures().total();
    let sum = undelivered(&held.engine) + total.messages_sent - 1;
    assert!((3..=4).contains(&sum), "{sum}");
}

#[test]
fn endless_subscribing_is_refused_eventually() {
    let held = Held::new(Config { mailbox_limit: 1, ..config() });
    let _client = Client::open(&held.engine, "/");
    let session = session(&held.engine);
    let pattern = Pattern::new("news").unwrap();
    let done = held.meanwhile(|| {
        let mut done = 0;
        let refusal = loop {
            match session.subscribe(&pattern) {
                Ok(subscribed) => assert!(subscribed),
                Err(refusal) => break refusal,
            }
            assert!(session.unsubscribe(&pattern));
            session.set_reading(false);
            session.set_reading(true);
            done += 1;
            assert!(done < 200_000, "it was never refused");
        };
        assert_eq!(refusal, Refusal::Full);
        assert_eq!(session.topics(), []);
        done
    });
    assert!(done > 1000, "{done}");
    // It continues as soon as the worker does.
    wait_until(|| session.subscribe(&pattern).is_ok());
    assert_eq!(held.engine.publish(&Topic::new("news").unwrap(), MessageKind::Text, b"x", None, None).unwrap().0, 1);
    session.close(CloseCode(1000), "").unwrap();
}
