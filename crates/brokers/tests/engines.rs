//! Engines and clients on an in-process broker, seen from Rust. A test sink replaces an engine where its sessions do
//! not matter.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use support::{DEADLINE, RecordingSink, text, topic, wait};
use wirespeed_brokers::engine::broker::{Broker, EnqueueResult, Message, Notice, Sink, State};
use wirespeed_brokers::engine::driver::protocol::MessageKind;
use wirespeed_brokers::engine::topics::Pattern;
use wirespeed_brokers::engine::{Config, Engine, Listen, Place};
use wirespeed_brokers::{Address, BrokerClient, BrokerConfig, Policy, Publisher, Refusal};

fn broker_config(name: &str) -> BrokerConfig {
    BrokerConfig::new(Address::parse(&format!("memory://{name}-{}", std::process::id())).unwrap())
}

fn client(broker_config: &BrokerConfig) -> (BrokerClient, Arc<RecordingSink>) {
    let sink = Arc::new(RecordingSink::default());
    let client = BrokerClient::start(broker_config, Some(Arc::clone(&sink) as Arc<dyn Sink>)).unwrap();
    wait(|| client.status().state == State::Connected);
    (client, sink)
}

#[test]
fn only_wanted_messages_of_others_are_received() {
    let broker_config = broker_config("wanted");
    let ((one, own_sink), (two, other_sink)) = (client(&broker_config), client(&broker_config));
    two.interest(&Pattern::new("a.*").unwrap(), true);
    wait(|| two.status().subscriptions == 1);
    for name in ["a.b", "b", "a.c.d", "a.c"] {
        assert_eq!(one.publish(&topic(name), text(name)), EnqueueResult::Yes);
    }
    one.broadcast(text("to all"));
    assert_eq!(one.flush(Some(Instant::now() + DEADLINE)), Some(0));
    wait(|| other_sink.received.lock().unwrap().len() == 3);
    let received = other_sink.received.lock().unwrap().clone();
    assert_eq!(received, [("a.b", "a.b"), ("a.c", "a.c"), ("", "to all")].map(|(a, b)| (a.to_owned(), b.into())));
    assert!(own_sink.received.lock().unwrap().is_empty(), "a client does not receive its own messages");
    two.interest(&Pattern::new("a.*").unwrap(), false);
    wait(|| two.status().subscriptions == 0);
    assert_eq!(two.take_notices(), [Notice::Connected]);
    assert!(!two.has_notices());
}

#[test]
fn full_engine_blocks_its_client_but_not_publishers() {
    let mut broker_config = broker_config("room");
    broker_config.limit = 1 << 16;
    let ((one, _mine), (two, other_sink)) = (client(&broker_config), client(&broker_config));
    two.interest(&Pattern::new("t").unwrap(), true);
    wait(|| two.status().subscriptions == 1);
    other_sink.full.store(true, Ordering::SeqCst);
    let payload = "x".repeat(10_000);
    let started = Instant::now();
    let mut taken = 0;
    for _ in 0..2000 {
        taken += usize::from(one.publish(&topic("t"), text(&payload)) == EnqueueResult::Yes);
    }
    assert!(started.elapsed() < DEADLINE / 4, "publishing does not wait");
    wait(|| other_sink.waits.load(Ordering::SeqCst) > 1);
    assert!(one.status().queued_bytes <= 1 << 16);
    assert_eq!(one.status().refused as usize, 2000 - taken);
    // The thread blocks after the first message that the sink reported as filling.
    assert_eq!(other_sink.received.lock().unwrap().len(), 1);
    other_sink.full.store(false, Ordering::SeqCst);
    wait(|| other_sink.received.lock().unwrap().len() == taken);
    assert_eq!(two.status().lost, 0);
}

#[test]
fn closing_does_not_wait_for_a_full_engine() {
    let broker_config = broker_config("closing");
    let ((one, _mine), (two, other_sink)) = (client(&broker_config), client(&broker_config));
    two.interest(&Pattern::new("t").unwrap(), true);
    wait(|| two.status().subscriptions == 1);
    other_sink.full.store(true, Ordering::SeqCst);
    one.publish(&topic("t"), text("x"));
    wait(|| other_sink.waits.load(Ordering::SeqCst) > 0);
    let started = Instant::now();
    two.close();
    two.close();
    one.close();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(Arc::strong_count(&other_sink), 1, "the client released its sink");
    assert_eq!((two.status().state, one.publish(&topic("t"), text("x"))), (State::Closed, EnqueueResult::Closed));
}

#[test]
fn unreachable_broker_reports_its_reason_and_unconfirmed_messages() {
    let mut broker_config = BrokerConfig::new(Address::parse("redis://127.0.0.1:1").unwrap());
    broker_config.limit = 1000;
    broker_config.policy = Policy::Raise;
    let client = BrokerClient::start(&broker_config, Some(Arc::new(RecordingSink::default()))).unwrap();
    assert!(client.admits(100));
    client.publish(&topic("t"), text("x"));
    assert!(!client.admits(1000));
    assert_eq!(client.flush(Some(Instant::now() + Duration::from_millis(10))), None);
    wait(|| client.status().reason.is_some());
    assert_eq!(client.status().state, State::Connecting);
    client.close();
    assert_eq!(client.status().unconfirmed, 1, "the queued message was never sent");
}

#[test]
fn publisher_publishes_and_refuses() {
    let broker_config = broker_config("publisher");
    let (client, sink) = client(&broker_config);
    client.interest(&Pattern::new("t").unwrap(), true);
    wait(|| client.status().subscriptions == 1);
    let publisher = Publisher::new(&broker_config).unwrap();
    assert_eq!(publisher.publish(Some(&topic("t")), text("x")), Ok(()));
    let bad = Message { kind: MessageKind::Text, payload: b"\xff", key: None };
    assert_eq!(publisher.publish(None, bad), Err(Refusal::NotText));
    assert_eq!(publisher.publish(Some(&topic("_wirespeed.x")), text("x")), Err(Refusal::Reserved));
    assert_eq!(publisher.flush(publisher.published(), Some(Instant::now() + DEADLINE)), Some(0));
    wait(|| sink.received.lock().unwrap().len() == 1);
    publisher.close();
    assert_eq!(publisher.publish(None, text("x")), Err(Refusal::Closed));
}

#[test]
fn engine_starts_and_closes_its_broker_client() {
    let at = Place::Tcp("127.0.0.1:0".parse().unwrap());
    let broker_config: Arc<BrokerConfig> = Arc::new(broker_config("engines"));
    let config =
        Config { listen: vec![Listen { at, tls: None }], workers: 1, broker: Some(broker_config), ..Config::default() };
    let engine = Engine::start(config).unwrap();
    let published = engine.publish_everywhere(&topic("t"), MessageKind::Text, b"x", None, None).unwrap();
    assert_eq!((published.count, published.broker), (0, EnqueueResult::Yes));
    let reserved = engine.publish_everywhere(&topic("_wirespeed.x"), MessageKind::Text, b"x", None, None).unwrap();
    assert_eq!(reserved.broker, EnqueueResult::Local);
    engine.stop().unwrap();
    assert_eq!(engine.broker().unwrap().status().state, State::Closed);
}
