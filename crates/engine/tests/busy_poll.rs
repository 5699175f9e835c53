//! Workers that poll before they sleep: they are never woken, and still notice everything.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::time::{Duration, Instant};

use support::{Client, TIMEOUT, config};
use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::events::Event;
use wirespeed_engine::{Config, Engine};

/// Longer than any test runs, so that the workers poll all the time.
const POLL: Duration = Duration::MAX;

#[test]
fn commands_and_stop_are_noticed_while_polling() {
    let engine = Engine::start(Config { busy_poll: POLL, ..config() }).unwrap();
    let mut clients: Vec<_> = (0..3).map(|_| Client::open(&engine, "/")).collect();
    for number in 0..200 {
        let text = number.to_string();
        engine.broadcast(MessageKind::Text, text.as_bytes(), None).unwrap();
        for client in &mut clients {
            assert_eq!(client.receive_text(), text);
        }
    }
    let began = Instant::now();
    engine.stop().unwrap();
    assert!(began.elapsed() < TIMEOUT);
}

#[test]
fn timers_fire_while_polling() {
    let soon = Some(Duration::from_millis(50));
    let config = Config { busy_poll: POLL, ping_interval: soon, ping_timeout: soon, ..config() };
    let engine = Engine::start(config).unwrap();
    let client = Client::open(&engine, "/");
    // The client does not answer pings.
    let mut over = false;
    while !over {
        let batches = engine.events().take(1, Some(Instant::now() + TIMEOUT)).unwrap();
        assert!(!batches.is_empty(), "the client is still connected");
        over = batches.iter().flat_map(|batch| batch.iter()).any(|(_, event)| matches!(event, Event::Disconnected(_)));
    }
    drop(client);
}

#[test]
fn room_for_events_is_noticed_while_polling() {
    let engine = Engine::start(Config { busy_poll: POLL, max_events: 1, workers: 1, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    for _ in 0..100 {
        client.send_text("x");
    }
    let mut messages = 0;
    while messages < 100 {
        let batches = engine.events().take(1, Some(Instant::now() + TIMEOUT)).unwrap();
        assert!(!batches.is_empty(), "after {messages}");
        let events = batches.iter().flat_map(|batch| batch.iter());
        messages += events.filter(|(_, event)| matches!(event, Event::Message { .. })).count();
    }
}
