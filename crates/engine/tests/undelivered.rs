//! What was taken and comes to nothing is counted; what is no message is bounded too.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::{Client, PATIENCE, config};
use wirespeed_engine::driver::protocol::handshake::{HeaderList, Request};
use wirespeed_engine::driver::protocol::{CloseCode, MessageKind};
use wirespeed_engine::topics::{Pattern, Topic};
use wirespeed_engine::{Admission, Config, Engine, Refusal, Role, Session};

/// One worker, which is busy while a request for `/block` is looked at.
struct Held {
    engine: Engine,
    release: Arc<AtomicBool>,
    looked: Arc<AtomicBool>,
}

/// Lets the worker go on when it is dropped, also by a test that fails.
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

    /// Does something while the worker is busy.
    fn meanwhile<R>(&self, action: impl FnOnce() -> R) -> R {
        std::thread::scope(|scope| {
            let blocking = scope.spawn(|| Client::open(&self.engine, "/block"));
            until(|| self.looked.load(Ordering::Acquire));
            let release = Release(&self.release);
            let result = action();
            drop(release);
            blocking.join().unwrap();
            result
        })
    }
}

fn until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn session(engine: &Engine) -> Session {
    let batches = engine.events().take(1, Some(Instant::now() + PATIENCE)).unwrap();
    batches[0].iter().next().unwrap().0.clone()
}

fn undelivered(engine: &Engine) -> u64 {
    engine.figures().total().dropped_by_policy().find(|(name, _)| *name == "closing").unwrap().1
}

#[test]
fn what_waits_when_a_client_leaves_is_counted() {
    let engine = Engine::start(Config { outbox_limit: 1 << 30, mailbox_limit: 1 << 30, ..config() }).unwrap();
    let client = Client::open(&engine, "/");
    let session = session(&engine);
    for _ in 0..64 {
        session.send(MessageKind::Binary, &vec![0; 1 << 20]).unwrap(); // more than the kernel takes
    }
    until(|| engine.figures().total().outbox_bytes > 32 << 20);
    drop(client);
    until(|| engine.figures().total().sessions == 0);
    let total = engine.figures().total();
    assert_eq!(undelivered(&engine) + total.messages_sent, 64, "{total:?}");
    assert!(undelivered(&engine) > 30, "{}", undelivered(&engine));
}

#[test]
fn what_comes_after_the_close_is_counted() {
    let held = Held::new(config());
    let _client = Client::open(&held.engine, "/");
    let session = session(&held.engine);
    let topic = Topic::new("news").unwrap();
    session.subscribe(&Pattern::new("news").unwrap()).unwrap();
    until(|| held.engine.publish(&topic, MessageKind::Text, b"first", None, None).unwrap().0 == 1);
    held.meanwhile(|| {
        session.close(CloseCode(1000), "").unwrap();
        assert_eq!(held.engine.publish(&topic, MessageKind::Text, b"late", None, None).unwrap().0, 1);
        // Those who are told of a session that is closed are told so.
        assert_eq!(session.send(MessageKind::Text, b"later"), Err(Refusal::Closed));
    });
    until(|| undelivered(&held.engine) == 1);
}

#[test]
fn what_waits_for_a_worker_that_ends_is_counted() {
    let held = Held::new(config());
    let _client = Client::open(&held.engine, "/");
    let session = session(&held.engine);
    session.subscribe(&Pattern::new("news").unwrap()).unwrap();
    let topic = Topic::new("news").unwrap();
    until(|| held.engine.publish(&topic, MessageKind::Text, b"first", None, None).unwrap().0 == 1);
    until(|| held.engine.figures().total().messages_sent == 1);
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
            until(|| stopped.load(Ordering::Acquire));
            stopping
        });
        stopping.join().unwrap();
    });
    // Each was sent or counted: the worker may have had a turn. The client that came last gets the broadcast as well.
    let total = held.engine.figures().total();
    let sum = undelivered(&held.engine) + total.messages_sent - 1;
    assert!((3..=4).contains(&sum), "{sum}");
}

#[test]
fn subscribing_in_a_loop_is_refused_in_the_end() {
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
    // It goes on as soon as the worker does.
    until(|| session.subscribe(&pattern).is_ok());
    assert_eq!(held.engine.publish(&Topic::new("news").unwrap(), MessageKind::Text, b"x", None, None).unwrap().0, 1);
    session.close(CloseCode(1000), "").unwrap();
}
