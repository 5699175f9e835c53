//! Support of the broker tests: a sink that replaces an engine, and waiting with a deadline.

#![allow(dead_code, unreachable_pub, reason = "each test file uses some of it")]

pub mod delayed_proxy;
pub mod nodes;
pub mod servers;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wirespeed_brokers::engine::broker::{Message, Sink, Unsendable};
use wirespeed_brokers::engine::driver::protocol::MessageKind;
use wirespeed_brokers::engine::logs::Logs;
use wirespeed_brokers::engine::topics::Topic;

pub const DEADLINE: Duration = Duration::from_secs(20);

/// Records received messages. While `full` is set, it reports that it has no capacity.
#[derive(Default)]
pub struct RecordingSink {
    pub received: Mutex<Vec<(String, Vec<u8>)>>,
    pub full: AtomicBool,
    pub waits: AtomicUsize,
    pub noticed: AtomicUsize,
    pub logs: Mutex<Option<Arc<Logs>>>,
}

impl Sink for RecordingSink {
    fn publish(&self, topic: &Topic, message: Message<'_>) -> Result<bool, Unsendable> {
        if message.kind == MessageKind::Text && std::str::from_utf8(message.payload).is_err() {
            return Err(Unsendable);
        }
        self.received.lock().unwrap().push((topic.to_string(), message.payload.to_vec()));
        Ok(!self.full.load(Ordering::SeqCst))
    }

    fn broadcast(&self, message: Message<'_>) -> Result<bool, Unsendable> {
        self.received.lock().unwrap().push((String::new(), message.payload.to_vec()));
        Ok(true)
    }

    fn wait_for_capacity(&self, deadline: Instant) -> bool {
        self.waits.fetch_add(1, Ordering::SeqCst);
        while self.full.load(Ordering::SeqCst) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        !self.full.load(Ordering::SeqCst)
    }

    fn resume(&self) {}

    fn noticed(&self) {
        self.noticed.fetch_add(1, Ordering::SeqCst);
    }

    fn logs(&self) -> Arc<Logs> {
        // Without an interval, no record is suppressed.
        Arc::clone(self.logs.lock().unwrap().get_or_insert_with(|| Arc::new(Logs::new(Instant::now(), Duration::ZERO))))
    }
}

#[track_caller]
pub fn wait(mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < end, "the condition did not become true in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn text(payload: &str) -> Message<'_> {
    Message { kind: MessageKind::Text, payload: payload.as_bytes(), key: None }
}

pub fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}
