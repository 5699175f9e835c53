//! Many threads use a connection at once, at random. Each message arrives once, and all threads return.
//!
//! It also runs with ThreadSanitizer (`scripts/sanitize.sh thread`). `SEED` repeats a run; `ROUNDS` is their number.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // tests fail by panicking

mod support;

use std::collections::BTreeMap;
use std::env;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use support::{NativeHost, endpoint_with, sockets};
use wirespeed_driver::blocking::{Blocking, Error, Settings, Timeout};
use wirespeed_driver::protocol::{CloseCode, Delivery, MessageKind, Side, State};

type Connection = Arc<Blocking<Vec<u8>, Vec<u8>>>;

/// Number of threads of each end.
const THREADS: u64 = 4;
const STEPS: u64 = 60;

/// Longer than a run takes with a sanitizer on a busy machine.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap())
}

/// One end, with the messages that its threads have sent and received.
struct End {
    connection: Connection,
    sent: Mutex<BTreeMap<Vec<u8>, usize>>,
    received: Mutex<BTreeMap<Vec<u8>, usize>>,
    sent_count: AtomicUsize,
    received_count: AtomicUsize,
}

impl End {
    fn new(connection: Blocking<Vec<u8>, Vec<u8>>) -> Self {
        Self {
            connection: Arc::new(connection),
            sent: Mutex::default(),
            received: Mutex::default(),
            sent_count: AtomicUsize::new(0),
            received_count: AtomicUsize::new(0),
        }
    }

    fn send(&self, random: &mut Random, name: &str) {
        // Small messages, messages written in pieces, and messages that fill the kernel's buffers.
        let size = [0, 10, 300, 9000, 200_000][random.below(5) as usize];
        let mut message = format!("{name} ").into_bytes();
        message.resize(message.len() + size, b'x');
        *self.sent.lock().unwrap().entry(message.clone()).or_default() += 1;
        let host = NativeHost::default();
        if random.below(4) == 0 {
            self.connection.queue(&host, MessageKind::Binary, &message[..], None).unwrap();
            self.connection.flush(&host).unwrap();
        } else {
            self.connection.send(&host, MessageKind::Binary, &message[..], None).unwrap();
        }
        self.sent_count.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits for messages. Returns false if the connection is over.
    fn receive(&self, random: &mut Random) -> bool {
        let host = NativeHost::default();
        let timeout = Timeout::Until(Some(Instant::now() + Duration::from_millis(random.below(20))));
        let items = if random.below(3) == 0 {
            self.connection.receive_many(&host, timeout, 1 + random.below(5) as usize)
        } else {
            self.connection.receive(&host, timeout, Delivery::Messages).map(|item| vec![item])
        };
        match items {
            Ok(items) => {
                for item in items {
                    *self.received.lock().unwrap().entry(item.message).or_default() += 1;
                    self.received_count.fetch_add(1, Ordering::SeqCst);
                }
                true
            }
            Err(Error::TimedOut) => true,
            Err(Error::Closed) => false,
            Err(error) => panic!("{error:?}"),
        }
    }

    fn act(&self, random: &mut Random, name: &str) {
        let host = NativeHost::default();
        match random.below(10) {
            0..4 => self.send(random, name),
            4..7 => assert!(self.receive(random), "the connection has ended"),
            7 => {
                let ticket = self.connection.ping(&host, name.as_bytes()).unwrap();
                if random.below(2) == 0 {
                    let waited = self.connection.wait_for_pong(&host, &ticket, Some(Instant::now()));
                    assert!(matches!(waited, Ok(_) | Err(Error::TimedOut | Error::QueueFull)), "{waited:?}");
                }
            }
            8 => self.connection.pong(&host, name.as_bytes()).unwrap(),
            _ => {
                let (_, messages, bytes, _) = self.connection.stats(&host);
                assert!(messages == 0 || bytes > 0);
                assert_eq!(self.connection.state(&host), (State::Open, false));
            }
        }
    }
}

fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let buffer = [None, Some(4096)][random.below(2) as usize];
    let keepalive = [None, Some(Duration::from_secs(30))][random.below(2) as usize];
    let (client, server) = sockets(buffer);
    let settings = Settings { close_timeout: Some(Duration::from_secs(10)), ..Settings::default() };
    let ends = [
        End::new(Blocking::new(endpoint_with(Side::Client, None, keepalive), client, settings)),
        End::new(Blocking::new(endpoint_with(Side::Server, None, keepalive), server, settings)),
    ];
    let (closing, abrupt) = (AtomicBool::new(false), random.below(3) == 0);
    let (closer, others) = (random.below(2) as usize, AtomicUsize::new(0));
    let deadline = Instant::now() + RUN_TIMEOUT;
    thread::scope(|scope| {
        for (index, end) in ends.iter().enumerate() {
            let other = &ends[1 - index];
            for thread in 0..THREADS {
                let mut random = Random(seed << 8 | (index as u64) << 4 | thread << 1 | 1);
                let (closing, others) = (&closing, &others);
                scope.spawn(move || {
                    for step in 0..STEPS {
                        end.act(&mut random, &format!("{index} {thread} {step}"));
                    }
                    others.fetch_add(1, Ordering::SeqCst);
                    // All threads receive until every message has arrived. Then one closes, and all return.
                    let all = || others.load(Ordering::SeqCst) == 2 * THREADS as usize;
                    while end.receive(&mut random) {
                        let there = end.received_count.load(Ordering::SeqCst)
                            == other.sent_count.load(Ordering::SeqCst)
                            && other.received_count.load(Ordering::SeqCst) == end.sent_count.load(Ordering::SeqCst);
                        if all() && there && index == closer && !closing.swap(true, Ordering::SeqCst) {
                            let host = NativeHost::default();
                            if abrupt {
                                end.connection.abort(&host);
                            } else {
                                end.connection.close(&host, Some(CloseCode(1000)), "done").unwrap();
                            }
                        }
                        assert!(Instant::now() < deadline, "seed {seed}: the run does not end");
                    }
                });
            }
        }
    });
    for (end, other) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
        assert!(
            *end.received.lock().unwrap() == *other.sent.lock().unwrap(),
            "seed {seed}: the received messages are not those sent"
        );
        assert!(end.connection.state(&NativeHost::default()).1);
        assert_eq!(end.connection.closing(&NativeHost::default()).is_clean(), !abrupt, "seed {seed}");
    }
}

#[test]
fn messages_of_many_threads_arrive_once() {
    if let Some(seed) = number("SEED") {
        return run(seed);
    }
    for seed in 1..=number("ROUNDS").unwrap_or(6) {
        eprintln!("SEED={seed}");
        run(seed);
    }
}
