//! Workers that poll before they sleep: nobody wakes them, and they miss nothing.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::time::{Duration, Instant};

use support::{Client, PATIENCE, config};
use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::events::Event;
use wirespeed_engine::{Config, Engine};

/// Longer than any test waits: whatever happens does while they poll.
const POLL: Duration = Duration::MAX;

#[test]
fn what_others_want_and_the_end_are_found_while_polling() {
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
    assert!(began.elapsed() < PATIENCE);
}

#[test]
fn what_is_due_is_done_while_polling() {
    let soon = Some(Duration::from_millis(50));
    let config = Config { busy_poll: POLL, ping_interval: soon, ping_timeout: soon, ..config() };
    let engine = Engine::start(config).unwrap();
    let client = Client::open(&engine, "/");
    // It answers no ping.
    let mut over = false;
    while !over {
        let batches = engine.events().take(1, Some(Instant::now() + PATIENCE)).unwrap();
        assert!(!batches.is_empty(), "it is there still");
        over = batches.iter().flat_map(|batch| batch.iter()).any(|(_, event)| matches!(event, Event::Disconnected(_)));
    }
    drop(client);
}

#[test]
fn events_that_have_room_again_are_found_while_polling() {
    let engine = Engine::start(Config { busy_poll: POLL, max_events: 1, workers: 1, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    for _ in 0..100 {
        client.send_text("x");
    }
    let mut messages = 0;
    while messages < 100 {
        let batches = engine.events().take(1, Some(Instant::now() + PATIENCE)).unwrap();
        assert!(!batches.is_empty(), "after {messages}");
        let events = batches.iter().flat_map(|batch| batch.iter());
        messages += events.filter(|(_, event)| matches!(event, Event::Message { .. })).count();
    }
}
