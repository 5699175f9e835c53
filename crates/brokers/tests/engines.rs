//! Engines that a broker joins, seen from Rust: real engines, clients' sessions stood in for by what the registry says.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use support::{PATIENCE, Taker, text, topic, wait};
use wirespeed_brokers::engine::broker::{Broker, EnqueueResult, Message, Notice, Sink, State};
use wirespeed_brokers::engine::driver::protocol::MessageKind;
use wirespeed_brokers::engine::topics::Pattern;
use wirespeed_brokers::engine::{Config, Engine, Listen, Place};
use wirespeed_brokers::{Address, BrokerClient, BrokerConfig, Policy, Publisher, Refusal};

fn hub(name: &str) -> BrokerConfig {
    BrokerConfig::new(Address::parse(&format!("memory://{name}-{}", std::process::id())).unwrap())
}

fn node(hub: &BrokerConfig) -> (BrokerClient, Arc<Taker>) {
    let taker = Arc::new(Taker::default());
    let node = BrokerClient::start(hub, Some(Arc::clone(&taker) as Arc<dyn Sink>)).unwrap();
    wait(|| node.status().state == State::Connected);
    (node, taker)
}

#[test]
fn what_others_publish_and_only_what_is_wanted() {
    let hub = hub("wanted");
    let ((one, mine), (two, theirs)) = (node(&hub), node(&hub));
    two.interest(&Pattern::new("a.*").unwrap(), true);
    wait(|| two.status().subscriptions == 1);
    for name in ["a.b", "b", "a.c.d", "a.c"] {
        assert_eq!(one.publish(&topic(name), text(name)), EnqueueResult::Yes);
    }
    one.broadcast(text("to all"));
    assert_eq!(one.flush(Some(Instant::now() + PATIENCE)), Some(0));
    wait(|| theirs.came.lock().unwrap().len() == 3);
    let came = theirs.came.lock().unwrap().clone();
    assert_eq!(came, [("a.b", "a.b"), ("a.c", "a.c"), ("", "to all")].map(|(a, b)| (a.to_owned(), b.into())));
    assert!(mine.came.lock().unwrap().is_empty(), "nothing of one's own comes back");
    two.interest(&Pattern::new("a.*").unwrap(), false);
    wait(|| two.status().subscriptions == 0);
    assert_eq!(two.take_notices(), [Notice::Connected]);
    assert!(!two.has_notices());
}

#[test]
fn an_engine_without_room_is_waited_for_and_publishers_are_not() {
    let mut hub = hub("room");
    hub.limit = 1 << 16;
    let ((one, _mine), (two, theirs)) = (node(&hub), node(&hub));
    two.interest(&Pattern::new("t").unwrap(), true);
    wait(|| two.status().subscriptions == 1);
    theirs.full.store(true, Ordering::SeqCst);
    let payload = "x".repeat(10_000);
    let started = Instant::now();
    let mut taken = 0;
    for _ in 0..2000 {
        taken += usize::from(one.publish(&topic("t"), text(&payload)) == EnqueueResult::Yes);
    }
    assert!(started.elapsed() < PATIENCE / 4, "who publishes waits for nobody");
    wait(|| theirs.waits.load(Ordering::SeqCst) > 1);
    assert!(one.status().queued_bytes <= 1 << 16);
    assert_eq!(one.status().refused as usize, 2000 - taken);
    // It waits after the first that found no room.
    assert_eq!(theirs.came.lock().unwrap().len(), 1);
    theirs.full.store(false, Ordering::SeqCst);
    wait(|| theirs.came.lock().unwrap().len() == taken);
    assert_eq!(two.status().lost, 0);
}

#[test]
fn closing_does_not_wait_for_an_engine_without_room() {
    let hub = hub("closing");
    let ((one, _mine), (two, theirs)) = (node(&hub), node(&hub));
    two.interest(&Pattern::new("t").unwrap(), true);
    wait(|| two.status().subscriptions == 1);
    theirs.full.store(true, Ordering::SeqCst);
    one.publish(&topic("t"), text("x"));
    wait(|| theirs.waits.load(Ordering::SeqCst) > 0);
    let started = Instant::now();
    two.close();
    two.close();
    one.close();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(Arc::strong_count(&theirs), 1, "the engine is not kept");
    assert_eq!((two.status().state, one.publish(&topic("t"), text("x"))), (State::Closed, EnqueueResult::Closed));
}

#[test]
fn a_broker_that_is_not_there() {
    let mut hub = BrokerConfig::new(Address::parse("redis://127.0.0.1:1").unwrap());
    hub.limit = 1000;
    hub.policy = Policy::Raise;
    let node = BrokerClient::start(&hub, Some(Arc::new(Taker::default()))).unwrap();
    assert!(node.admits(100));
    node.publish(&topic("t"), text("x"));
    assert!(!node.admits(1000));
    assert_eq!(node.flush(Some(Instant::now() + Duration::from_millis(10))), None);
    wait(|| node.status().reason.is_some());
    assert_eq!(node.status().state, State::Connecting);
    node.close();
    assert_eq!(node.status().unconfirmed, 1, "what was taken and never sent is said");
}

#[test]
fn a_publisher() {
    let hub = hub("publisher");
    let (node, taker) = node(&hub);
    node.interest(&Pattern::new("t").unwrap(), true);
    wait(|| node.status().subscriptions == 1);
    let publisher = Publisher::new(&hub).unwrap();
    assert_eq!(publisher.publish(Some(&topic("t")), text("x")), Ok(()));
    let bad = Message { kind: MessageKind::Text, payload: b"\xff", key: None };
    assert_eq!(publisher.publish(None, bad), Err(Refusal::NotText));
    assert_eq!(publisher.publish(Some(&topic("_wirespeed.x")), text("x")), Err(Refusal::Reserved));
    assert_eq!(publisher.flush(publisher.published(), Some(Instant::now() + PATIENCE)), Some(0));
    wait(|| taker.came.lock().unwrap().len() == 1);
    publisher.close();
    assert_eq!(publisher.publish(None, text("x")), Err(Refusal::Closed));
}

#[test]
fn engines_begin_and_end_with_their_brokers() {
    let at = Place::Tcp("127.0.0.1:0".parse().unwrap());
    let hub: Arc<BrokerConfig> = Arc::new(hub("engines"));
    let config = Config { listen: vec![Listen { at, tls: None }], workers: 1, broker: Some(hub), ..Config::default() };
    let engine = Engine::start(config).unwrap();
    let published = engine.publish_everywhere(&topic("t"), MessageKind::Text, b"x", None, None).unwrap();
    assert_eq!((published.count, published.took), (0, EnqueueResult::Yes));
    let reserved = engine.publish_everywhere(&topic("_wirespeed.x"), MessageKind::Text, b"x", None, None).unwrap();
    assert_eq!(reserved.took, EnqueueResult::Local);
    engine.stop().unwrap();
    assert_eq!(engine.broker().unwrap().status().state, State::Closed);
}
