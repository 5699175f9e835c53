//! What tests of brokers have in common: what stands in for an engine, and patience.

#![allow(dead_code, unreachable_pub, reason = "each test file uses some of it")]

pub mod link;
pub mod nodes;
pub mod servers;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wirespeed_brokers::engine::broker::{Message, Sink, Unsendable};
use wirespeed_brokers::engine::driver::protocol::MessageKind;
use wirespeed_brokers::engine::logs::Logs;
use wirespeed_brokers::engine::topics::Topic;

pub const PATIENCE: Duration = Duration::from_secs(20);

/// Takes what comes; says that there is no room when it is told to.
#[derive(Default)]
pub struct Taker {
    pub came: Mutex<Vec<(String, Vec<u8>)>>,
    pub full: AtomicBool,
    pub waits: AtomicUsize,
    pub noticed: AtomicUsize,
    pub logs: Mutex<Option<Arc<Logs>>>,
}

impl Sink for Taker {
    fn publish(&self, topic: &Topic, message: Message<'_>) -> Result<bool, Unsendable> {
        if message.kind == MessageKind::Text && std::str::from_utf8(message.payload).is_err() {
            return Err(Unsendable);
        }
        self.came.lock().unwrap().push((topic.to_string(), message.payload.to_vec()));
        Ok(!self.full.load(Ordering::SeqCst))
    }

    fn broadcast(&self, message: Message<'_>) -> Result<bool, Unsendable> {
        self.came.lock().unwrap().push((String::new(), message.payload.to_vec()));
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
        // Each record: none of a cause is left out.
        Arc::clone(self.logs.lock().unwrap().get_or_insert_with(|| Arc::new(Logs::new(Instant::now(), Duration::ZERO))))
    }
}

#[track_caller]
pub fn wait(mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "it did not become so");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn text(payload: &str) -> Message<'_> {
    Message { kind: MessageKind::Text, payload: payload.as_bytes(), key: None }
}

pub fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}
