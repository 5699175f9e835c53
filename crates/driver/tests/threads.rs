//! A connection that many threads use at once, at random: what is sent arrives, once, and everybody comes back.
//!
//! For ThreadSanitizer too (`scripts/sanitize.sh thread`). `SEED` repeats one run, `ROUNDS` says how many there are.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // tests fail by panicking

mod support;

use std::collections::BTreeMap;
use std::env;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use support::{NativeHost, peer_with, sockets};
use wirespeed_driver::blocking::{Blocking, Error, Settings, Timeout};
use wirespeed_driver::protocol::{CloseCode, Delivery, MessageKind, Side, State};

type Connection = Arc<Blocking<Vec<u8>, Vec<u8>>>;

/// Of each end.
const THREADS: u64 = 4;
const STEPS: u64 = 60;

/// Longer than a run takes on a machine that has much to do, with a sanitizer.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// One end: what its threads have sent, and what they have got.
struct End {
    connection: Connection,
    sent: Mutex<BTreeMap<Vec<u8>, usize>>,
    got: Mutex<BTreeMap<Vec<u8>, usize>>,
    sent_count: AtomicUsize,
    got_count: AtomicUsize,
}

impl End {
    fn new(connection: Blocking<Vec<u8>, Vec<u8>>) -> Self {
        Self {
            connection: Arc::new(connection),
            sent: Mutex::default(),
            got: Mutex::default(),
            sent_count: AtomicUsize::new(0),
            got_count: AtomicUsize::new(0),
        }
    }

    fn send(&self, random: &mut Random, name: &str) {
        // Small ones, what is written in pieces, and what fills the kernel's buffers.
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

    /// What came of a wait for messages; false: the connection is over.
    fn receive(&self, random: &mut Random) -> bool {
        let host = NativeHost::default();
        let patience = Timeout::Until(Some(Instant::now() + Duration::from_millis(random.below(20))));
        let items = if random.below(3) == 0 {
            self.connection.receive_many(&host, patience, 1 + random.below(5) as usize)
        } else {
            self.connection.receive(&host, patience, Delivery::Messages).map(|item| vec![item])
        };
        match items {
            Ok(items) => {
                for item in items {
                    *self.got.lock().unwrap().entry(item.message).or_default() += 1;
                    self.got_count.fetch_add(1, Ordering::SeqCst);
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
            4..7 => assert!(self.receive(random), "it has ended"),
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
        End::new(Blocking::new(peer_with(Side::Client, None, keepalive), client, settings)),
        End::new(Blocking::new(peer_with(Side::Server, None, keepalive), server, settings)),
    ];
    let (closing, abrupt) = (AtomicBool::new(false), random.below(3) == 0);
    let (closer, others) = (random.below(2) as usize, AtomicUsize::new(0));
    let deadline = Instant::now() + PATIENCE;
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
                    // All that was sent arrives while somebody receives; then it is closed, and all come back.
                    let all = || others.load(Ordering::SeqCst) == 2 * THREADS as usize;
                    while end.receive(&mut random) {
                        let there = end.got_count.load(Ordering::SeqCst) == other.sent_count.load(Ordering::SeqCst)
                            && other.got_count.load(Ordering::SeqCst) == end.sent_count.load(Ordering::SeqCst);
                        if all() && there && index == closer && !closing.swap(true, Ordering::SeqCst) {
                            let host = NativeHost::default();
                            if abrupt {
                                end.connection.abort(&host);
                            } else {
                                end.connection.close(&host, Some(CloseCode(1000)), "done").unwrap();
                            }
                        }
                        assert!(Instant::now() < deadline, "seed {seed}: it does not end");
                    }
                });
            }
        }
    });
    for (end, other) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
        assert!(*end.got.lock().unwrap() == *other.sent.lock().unwrap(), "seed {seed}: what was sent is not what came");
        assert!(end.connection.state(&NativeHost::default()).1);
        assert_eq!(end.connection.closing(&NativeHost::default()).is_clean(), !abrupt, "seed {seed}");
    }
}

#[test]
fn many_threads() {
    if let Some(seed) = number("SEED") {
        return run(seed);
    }
    for seed in 1..=number("ROUNDS").unwrap_or(6) {
        eprintln!("SEED={seed}");
        run(seed);
    }
}
