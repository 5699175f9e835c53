//! The order in which [`HandshakeLimiter`] evicts clients when too many handshakes are pending.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

use std::time::{Duration, Instant};

use proptest::prelude::*;
use wirespeed_driver::accept::{BURST, GRACE, HandshakeLimiter, IDLE_TIME, Origin};

fn at(host: u8) -> Origin {
    Origin::V4([192, 0, 2, host])
}

const NEVER: fn(u32) -> bool = |_| false;

/// Removes all handshakes and returns their keys in the order of eviction.
fn evict_all(pending: &mut HandshakeLimiter<u32>) -> Vec<u32> {
    let mut keys = Vec::new();
    while let Some((key, _)) = pending.first() {
        keys.push(key);
        assert!(pending.remove(key) && !pending.remove(key));
    }
    assert!(pending.is_empty());
    keys
}

#[test]
fn longest_idle_handshake_is_evicted_first() {
    let now = Instant::now();
    let mut pending = HandshakeLimiter::new(9);
    for key in 0..5 {
        pending.add(key, at(1), now);
    }
    for key in [0, 3, 0, 77] {
        pending.progress(key, now);
    }
    assert_eq!(evict_all(&mut pending), [1, 2, 4, 3, 0]);
}

#[test]
fn address_with_most_handshakes_is_evicted_first() {
    let mut pending = HandshakeLimiter::new(9);
    for (key, host) in [(0, 1), (1, 2), (2, 2), (3, 3), (4, 2), (5, 3)] {
        pending.add(key, at(host), Instant::now());
    }
    assert_eq!(evict_all(&mut pending), [1, 2, 3, 0, 4, 5]);
}

#[test]
fn handshake_is_not_evicted_before_its_minimum_time() {
    let start = Instant::now();
    let mut pending = HandshakeLimiter::new(1);
    assert_eq!((pending.next_victim(start, NEVER), pending.next_victim_in(start)), (None, None));
    assert_eq!(pending.delay(start, NEVER), GRACE);
    pending.add(1, at(1), start);
    assert!(pending.is_over_limit() && !pending.is_full());
    let late = start + IDLE_TIME;
    assert_eq!(pending.next_victim(late - Duration::from_millis(10), NEVER), None);
    assert_eq!(pending.next_victim(late, NEVER), Some(1));
    assert_eq!(pending.next_victim_in(late), None, "the limit is not exceeded");
    pending.progress(1, late);
    assert_eq!(pending.next_victim(late, NEVER), None);
    pending.add(2, at(1), late);
    assert_eq!(pending.next_victim_in(late), Some(IDLE_TIME));
    // A handshake with unread bytes is late because of the server, so it is not evicted.
    let later = late + IDLE_TIME;
    assert_eq!(pending.next_victim(later, |key| key == 1), Some(2));
    pending.remove(2);
    assert_eq!(pending.next_victim(later, NEVER), None);
}

#[test]
fn minimum_time_is_shorter_when_the_limiter_is_full() {
    let start = Instant::now();
    let mut pending = HandshakeLimiter::new(2);
    for key in 0..2 * BURST as u32 {
        assert_eq!((pending.is_full(), pending.room()), (false, 2 * BURST - key as usize));
        pending.add(key, at(1), start);
    }
    pending.add(u32::MAX, at(1), start); // full or not
    assert_eq!((pending.is_full(), pending.room()), (true, 0));
    pending.remove(u32::MAX);
    assert!(pending.is_full());
    assert_eq!(pending.delay(start, NEVER), GRACE);
    assert_eq!(pending.delay(start + GRACE, NEVER), Duration::ZERO);
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
        let mut pending = HandshakeLimiter::new(8);
        // In the order of their last progress.
        let mut list: Vec<(u32, u8)> = Vec::new();
        for (key, step) in steps.into_iter().enumerate() {
            match step {
                Do::Add(host) => {
                    pending.add(key as u32, at(host), now);
                    list.push((key as u32, host));
                }
                Do::Progress(which) if !list.is_empty() => {
                    let entry = list.remove(which % list.len());
                    pending.progress(entry.0, now);
                    list.push(entry);
                }
                Do::Remove(which) if !list.is_empty() => {
                    prop_assert!(pending.remove(list.remove(which % list.len()).0));
                }
                _ => {}
            }
            let count = |host: u8| list.iter().filter(|(_, other)| *other == host).count();
            let most = list.iter().map(|(_, host)| count(*host)).max();
            let first = list.iter().find(|(_, host)| Some(count(*host)) == most).map(|(key, _)| *key);
            prop_assert_eq!(pending.first().map(|(key, _)| key), first);
            prop_assert_eq!(pending.len(), list.len());
        }
    }
}
