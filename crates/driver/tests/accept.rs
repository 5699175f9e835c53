//! Which clients [`HandshakeLimiter`] evicts when too many handshakes are pending, and what [`PendingHandshake`] keeps
//! of a client's first bytes.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, missing_docs)] // tests fail by panicking

mod support;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use wirespeed_driver::Keepalive;
use wirespeed_driver::accept::{
    BURST, Evicted, Eviction, GRACE, HandshakeLimiter, IDLE_TIME, Origin, PendingHandshake,
};
use wirespeed_driver::opening::{Error, Opening as _};
use wirespeed_driver::protocol::Limits;
use wirespeed_driver::protocol::handshake::{HandshakeError, ServerConfig};

fn at(host: u8) -> Origin {
    Origin::V4([192, 0, 2, host])
}

/// A situation, in words:
///
/// - `enter 1 a`: client 1 comes from host a; `enter 1-9 a`: clients 1 to 9 do; `add`: others are not evicted for it;
/// - `sends 1`: its bytes were read; `unread 1`: it has sent bytes that are not read; `leaves 1`: its handshake ends;
/// - `trim`, `free`: the caller trims, or needs a descriptor; `500 ms`: that time passes.
struct Row {
    limit: usize,
    situation: &'static str,
    /// The clients that were evicted, in this order.
    evicted: &'static str,
    /// The number that remain.
    left: usize,
    /// Milliseconds until the next trim.
    trim_in: Option<u64>,
    /// Milliseconds for which no client may be accepted.
    delay: u64,
}

const fn row(
    limit: usize,
    situation: &'static str,
    evicted: &'static str,
    left: usize,
    trim_in: Option<u64>,
    delay: u64,
) -> Row {
    Row { limit, situation, evicted, left, trim_in, delay }
}

#[rustfmt::skip]
const TABLE: &[Row] = &[
    // Within the limit, no client is evicted for another, however long it is silent.
    row(1, "", "", 0, None, 0),
    row(3, "enter 1-2 a, 99000 ms, enter 3 a, trim", "", 3, None, 0),
    // A client at the limit takes the place of a late one; above the limit, of two, so that the number falls.
    row(3, "enter 1-3 a, 1000 ms, enter 4 a", "1", 3, None, 0),
    row(3, "enter 1-5 a, 990 ms, enter 6 a", "", 6, Some(10), 0),
    row(3, "enter 1-5 a, 1000 ms, enter 6 a", "1 2", 4, Some(5), 0),
    row(3, "add 1-5 a, 1000 ms, add 6 a", "", 6, Some(5), 0),
    // Bytes restart the time.
    row(1, "enter 1 a, 1000 ms, sends 1, enter 2 a", "", 2, Some(1000), 0),
    row(1, "enter 1 a, 500 ms, enter 2 a, 500 ms, sends 1, trim", "", 2, Some(500), 0),
    row(1, "enter 1 a, 500 ms, enter 2 a, 500 ms, sends 1, 500 ms, trim", "2", 1, None, 0),
    // A client with unread bytes is not late: the server is.
    row(1, "enter 1 a, unread 1, 1000 ms, enter 2 a", "", 2, Some(1000), 0),
    row(1, "enter 1-2 a, unread 1, 1000 ms, trim", "2", 1, None, 0),
    row(9, "enter 1-3 a, unread 1, unread 2, 20 ms, free", "3", 2, None, 0),
    row(9, "enter 1-3 a, unread 1, unread 2, unread 3, 20 ms, free", "", 3, None, 0),
    // The first victim is the oldest one of the address with the most clients.
    row(9, "enter 1-5 a, 1000 ms, free, free, free, free, free", "1 2 3 4 5", 0, None, 0),
    row(9, "enter 1-5 a, sends 1, sends 4, sends 1, 1000 ms, free, free, free, free, free", "2 3 5 4 1", 0, None, 0),
    row(9, "enter 1 a, enter 2-3 b, enter 4 c, enter 5 b, enter 6 c, 20 ms, free, free, free, free, free, free",
        "2 3 4 1 5 6", 0, None, 0),
    row(4, "enter 1 a, enter 2-5 b, 1000 ms, enter 6 c", "2 3", 4, None, 0),
    // Descriptors are freed within the limit too, but each client has 20 ms to send.
    row(9, "free", "", 0, None, 0),
    row(9, "enter 1-2 a, free", "", 2, None, 0),
    row(9, "enter 1-2 a, 19 ms, free", "", 2, None, 0),
    row(9, "enter 1-2 a, 20 ms, free", "1", 1, None, 0),
    // At 16 times the limit, no client is accepted until one has been silent for 20 ms; then it goes.
    row(2, "enter 1-31 a", "", 31, Some(1000), 0),
    row(2, "enter 1-32 a", "", 32, Some(1000), 20),
    row(2, "enter 1-32 a, 15 ms", "", 32, Some(985), 5),
    row(2, "enter 1-32 a, 20 ms", "", 32, Some(980), 0),
    row(2, "enter 1-32 a, 20 ms, enter 33 a", "1", 32, Some(980), 0),
    row(2, "enter 1-32 a, enter 33 a", "1", 32, Some(1000), 20),
    row(2, "enter 1-32 a, leaves 5", "", 31, Some(1000), 0),
    row(2, "enter 1-32 a, 1000 ms, enter 33 a", "1 2", 31, Some(5), 0),
    // Surplus clients are closed in batches of 64, 5 ms apart, once they are late.
    row(64, "enter 1-130 a, 250 ms, trim", "", 130, Some(750), 0),
    row(8, "enter 1-82 a, 1000 ms, trim", "1-64", 18, Some(5), 0),
    row(8, "enter 1-82 a, 1000 ms, trim, 5 ms, trim", "1-74", 8, None, 0),
    row(64, "enter 1-64 a, 250 ms, enter 65-130 a, 750 ms, trim", "1-64", 66, Some(250), 0),
    row(64, "enter 1-64 a, 250 ms, enter 65-130 a, 750 ms, trim, 250 ms, trim", "1-66", 64, None, 0),
    // A client that has left is not counted, and its bytes and a second departure change nothing.
    row(1, "enter 1 a, leaves 1, sends 1, leaves 1, enter 2 a, 999 ms", "", 1, None, 0),
    row(1, "enter 1 a, leaves 1, enter 2 a, sends 1, leaves 1, 1000 ms, enter 3 a", "2", 1, None, 0),
];

fn keys(range: &str) -> std::ops::RangeInclusive<u32> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    first.parse().unwrap()..=last.parse().unwrap()
}

#[test]
fn table_of_situations() {
    for Row { limit, situation, evicted, left, trim_in, delay } in TABLE {
        let mut now = Instant::now();
        let mut limiter = HandshakeLimiter::new(*limit);
        let mut unread: HashSet<u32> = HashSet::new();
        let mut gone: Vec<u32> = Vec::new();
        for step in situation.split(", ").filter(|step| !step.is_empty()) {
            let words: Vec<&str> = step.split(' ').collect();
            let victims = match *words.as_slice() {
                ["enter", which, host] => {
                    let enter = |key| limiter.enter(key, at(host.as_bytes()[0]), now, |key| unread.contains(&key));
                    keys(which).flat_map(enter).collect()
                }
                ["add", which, host] => {
                    keys(which).for_each(|key| limiter.add(key, at(host.as_bytes()[0]), now));
                    Vec::new()
                }
                ["trim"] => limiter.trim(now, |key| unread.contains(&key)),
                ["free"] => match limiter.evict_one(now, |key| unread.contains(&key)) {
                    Eviction::Done(victim) => vec![victim],
                    Eviction::After(left) => {
                        assert!(!limiter.is_empty() && !left.is_zero() && left <= GRACE, "{situation}");
                        Vec::new()
                    }
                    Eviction::Empty => {
                        assert!(limiter.is_empty(), "{situation}");
                        Vec::new()
                    }
                },
                ["sends", key] => {
                    limiter.progress(key.parse().unwrap(), now);
                    Vec::new()
                }
                ["leaves", key] => {
                    limiter.remove(key.parse().unwrap());
                    Vec::new()
                }
                ["unread", key] => {
                    unread.insert(key.parse().unwrap());
                    Vec::new()
                }
                [time, "ms"] => {
                    now += Duration::from_millis(time.parse().unwrap());
                    Vec::new()
                }
                _ => panic!("{step}"),
            };
            gone.extend(victims.iter().map(|victim| victim.key));
        }
        let expected: Vec<u32> = evicted.split_whitespace().flat_map(keys).collect();
        assert_eq!(gone, expected, "{limit}: {situation}");
        assert_eq!(limiter.len(), *left, "{limit}: {situation}");
        let trim_in = trim_in.map(Duration::from_millis);
        assert_eq!(limiter.trim_in(now), trim_in, "{limit}: {situation}");
        assert_eq!((limiter.is_full(), limiter.room()), (*left >= limit * BURST, limit * BURST - left));
        let waits = limiter.delay(now, |key| unread.contains(&key));
        assert_eq!(waits, Duration::from_millis(*delay), "{limit}: {situation}");
    }
}

#[test]
fn eviction_counts_clients_of_the_same_address() {
    let now = Instant::now();
    let mut limiter = HandshakeLimiter::new(7);
    for (key, host) in [(1, 1), (2, 1), (3, 1), (4, 2)] {
        limiter.add(key, at(host), now);
    }
    let eviction = limiter.evict_one(now + GRACE, |_| false);
    assert_eq!(eviction, Eviction::Done(Evicted { key: 1, same_origin: 3 }));
}

#[test]
fn each_client_is_asked_once_about_unread_bytes() {
    let now = Instant::now();
    let mut limiter = HandshakeLimiter::new(1);
    (0..3).for_each(|key| limiter.add(key, at(1), now));
    let mut asked = Vec::new();
    let late = now + IDLE_TIME;
    let mut all_unread = |key| {
        asked.push(key);
        true
    };
    assert_eq!(limiter.trim(late, &mut all_unread), []);
    assert_eq!(limiter.trim(late, &mut all_unread), []);
    assert_eq!(asked, [0, 1, 2]);
}

#[test]
fn other_times_apply() {
    let now = Instant::now();
    let mut limiter = HandshakeLimiter::with_idle_time(1, Duration::from_millis(7), Duration::from_millis(3));
    (0..2).for_each(|key| limiter.add(key, at(1), now));
    assert_eq!(limiter.trim_in(now), Some(Duration::from_millis(7)));
    assert_eq!(limiter.evict_one(now, |_| false), Eviction::After(Duration::from_millis(3)));
    assert_eq!(limiter.next_victim(), Some((0, now)));
}

#[test]
fn ipv6_addresses_of_a_64_bit_network_count_as_one() {
    let of = |text: &str| Origin::of(Some(text.parse().unwrap()));
    assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2:3"));
    assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    assert_ne!(of("::ffff:192.0.2.1"), of("::ffff:192.0.2.2"));
    assert_eq!(Origin::of(None), Origin::Local);
}

#[derive(Clone, Debug)]
enum Do {
    Add(u8),
    Progress(usize),
    Remove(usize),
}

proptest! {
    /// The limiter evicts in the same order as a simple list.
    #[test]
    fn limiter_matches_a_simple_list(steps in prop::collection::vec(prop_oneof![
        4 => (0_u8..4).prop_map(Do::Add),
        2 => any::<usize>().prop_map(Do::Progress),
        1 => any::<usize>().prop_map(Do::Remove),
    ], 1..200)) {
        let now = Instant::now();
        let mut limiter = HandshakeLimiter::new(8);
        // In the order of their last progress.
        let mut list: Vec<(u32, u8)> = Vec::new();
        for (key, step) in steps.into_iter().enumerate() {
            match step {
                Do::Add(host) => {
                    limiter.add(key as u32, at(host), now);
                    list.push((key as u32, host));
                }
                Do::Progress(which) if !list.is_empty() => {
                    let entry = list.remove(which % list.len());
                    limiter.progress(entry.0, now);
                    list.push(entry);
                }
                Do::Remove(which) if !list.is_empty() => {
                    prop_assert!(limiter.remove(list.remove(which % list.len()).0));
                }
                _ => {}
            }
            let count = |host: u8| list.iter().filter(|(_, other)| *other == host).count();
            let most = list.iter().map(|(_, host)| count(*host)).max();
            let first = list.iter().find(|(_, host)| Some(count(*host)) == most).map(|(key, _)| *key);
            prop_assert_eq!(limiter.next_victim().map(|(key, _)| key), first);
            prop_assert_eq!(limiter.len(), list.len());
        }
    }
}

// The bytes of one client.

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

fn receive(handshake: &mut PendingHandshake, data: &[u8]) -> bool {
    handshake.receive(data, ServerConfig::default)
}

/// RFC 8446 5.1: a handshake record with a body of 259 bytes, which is no TLS message.
fn record() -> Vec<u8> {
    [[22, 3, 1, 1, 3].as_slice(), &[0; 259]].concat()
}

#[test]
fn silent_client_has_no_parser() {
    for tls in [false, true] {
        let mut handshake = PendingHandshake::new(tls);
        assert!(handshake.is_silent() && !handshake.is_lost() && !handshake.is_complete());
        assert!(handshake.server().is_none() && handshake.take_error().is_none() && handshake.finish().is_none());
        assert_eq!(handshake.prefix(), b"");
    }
}

#[test]
fn request_is_complete_wherever_it_is_cut() {
    for cut in 1..REQUEST.len() {
        let mut handshake = PendingHandshake::new(false);
        assert!(receive(&mut handshake, &REQUEST[..cut]), "cut at {cut}");
        assert!(!handshake.is_silent() && !handshake.is_complete() && !handshake.is_request_only());
        assert!(!receive(&mut handshake, &REQUEST[cut..]), "cut at {cut}");
        assert!(handshake.is_complete() && handshake.is_request_only() && handshake.take_error().is_none());
        assert_eq!(handshake.prefix(), b"GET ");
        let keepalive = Keepalive::new(None, None, Instant::now());
        assert!(handshake.finish().unwrap().finish::<Vec<u8>>(Limits::default(), keepalive).is_some());
        assert!(!handshake.is_complete() && handshake.finish().is_none());
    }
}

#[test]
fn bytes_after_the_request_are_recorded() {
    let mut handshake = PendingHandshake::new(false);
    // Even if they end as a request does.
    assert!(!receive(&mut handshake, &[REQUEST, b"\x81\x84\0\0\0\0\r\n\r\n"].concat()));
    assert!(handshake.is_complete() && !handshake.is_request_only());
}

#[test]
fn error_of_an_invalid_request_is_kept() {
    let mut handshake = PendingHandshake::new(false);
    assert!(receive(&mut handshake, b"GET "));
    assert!(!receive(&mut handshake, b"/ HTTP/9\r\n\r\n"));
    assert!(!receive(&mut handshake, b"more") && !handshake.is_complete());
    let Some(Error::Handshake(error)) = handshake.take_error() else { panic!("no error") };
    assert_eq!(handshake.server().unwrap().fault(), Some(&error), "the client can be sent a response");
    assert!(handshake.take_error().is_none(), "it is returned once");
}

#[test]
fn end_of_the_stream_is_an_error() {
    for before in [b"".as_slice(), b"GET "] {
        let mut handshake = PendingHandshake::new(false);
        assert!(before.is_empty() || receive(&mut handshake, before));
        assert!(!receive(&mut handshake, b"") && handshake.is_lost());
        assert_eq!(handshake.is_silent(), before.is_empty());
        let error = handshake.take_error();
        assert!(matches!(error, Some(Error::Handshake(HandshakeError::ConnectionClosed { .. }))), "{error:?}");
    }
}

#[test]
fn request_of_a_lost_client_is_discarded() {
    let mut handshake = PendingHandshake::new(false);
    assert!(!receive(&mut handshake, REQUEST));
    handshake.lose(ServerConfig::default);
    assert!(handshake.is_lost() && !handshake.is_complete() && handshake.finish().is_none());
    assert!(handshake.take_error().is_some());
}

#[test]
fn first_tls_record_is_awaited() {
    let record = record();
    for cut in [1, 4, 5, 6, 260, record.len() - 1] {
        let mut handshake = PendingHandshake::new(true);
        assert!(receive(&mut handshake, &record[..cut]), "cut at {cut}");
        assert!(!receive(&mut handshake, &[&record[cut..], b"more"].concat()), "cut at {cut}");
        assert!(handshake.server().is_none() && !handshake.is_silent());
        assert_eq!(handshake.prefix(), &record[..4]);
    }
}

#[test]
fn tls_gets_all_bytes() {
    for data in [record(), b"G".to_vec(), b"\x15\x03\x01\x00\x02".to_vec()] {
        let mut handshake = PendingHandshake::new(true);
        assert!(!receive(&mut handshake, &data));
        handshake.start_tls(ServerConfig::default(), support::layers(&[]).1);
        assert!(handshake.layer().is_some());
        if data[0] == 22 {
            assert!(matches!(handshake.take_error(), Some(Error::Tls(_))));
            assert!(!handshake.server().unwrap().output().take().is_empty(), "the alert");
        }
    }
}

#[test]
fn end_of_the_stream_is_passed_to_tls() {
    for before in [b"".as_slice(), b"\x16\x03"] {
        let mut handshake = PendingHandshake::new(true);
        assert!(before.is_empty() || receive(&mut handshake, before));
        assert!(!receive(&mut handshake, b"") && handshake.is_lost());
        handshake.start_tls(ServerConfig::default(), support::layers(&[]).1);
        assert!(handshake.take_error().is_some());
    }
}
