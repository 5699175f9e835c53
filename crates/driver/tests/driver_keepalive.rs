//! [`ConnectionDriver`]: keepalive pings every ten seconds, each to be answered within five.

#![allow(clippy::unwrap_used, clippy::panic)] // tests fail by panicking

mod support;

use std::time::{Duration, Instant};

use support::{client_with, endpoint, sockets};
use wirespeed_driver::Keepalive;
use wirespeed_driver::connection::{ConnectionDriver, Progress, Reading};
use wirespeed_driver::endpoint::Failure;
use wirespeed_driver::protocol::{CloseCode, Event, MessageKind, Side};
use wirespeed_driver::socket::{Mode, Socket};
use wirespeed_driver::write_queue::Flushed;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(5));
const S: Duration = Duration::from_secs(1);

fn pinging(now: Instant, socket: Option<Socket>) -> ConnectionDriver<Vec<u8>> {
    ConnectionDriver::new(client_with(Keepalive::new(Some(10 * S), Some(5 * S), now)), socket, TIMEOUT)
}

/// Returns the bytes with which a peer answers the output of `conn`.
fn answer(conn: &mut ConnectionDriver<Vec<u8>>) -> Vec<u8> {
    let mut other: ConnectionDriver<Vec<u8>> = ConnectionDriver::new(endpoint(Side::Server, None), None, TIMEOUT);
    other.receive(&conn.take_output());
    while other.poll_event().is_some() {}
    other.take_output()
}

fn receive_pong(conn: &mut ConnectionDriver<Vec<u8>>, pong: &[u8]) {
    conn.receive(pong);
    assert!(matches!(conn.poll_event(), Some(Event::Pong(_))));
    assert!(conn.send_half().latency().is_some(), "it answers the keepalive ping");
}

#[test]
fn keepalive_ping_is_sent_when_due() {
    let now = Instant::now();
    let mut conn = pinging(now, None);
    assert_eq!(conn.deadline(now), Some(now + 10 * S));
    assert_eq!(conn.handle_deadline(now + 9 * S, Reading::Going, 0), None);
    assert!(conn.take_output().is_empty());
    assert_eq!(conn.deadline(now + 11 * S), Some(now + 11 * S));
    assert_eq!(conn.handle_deadline(now + 10 * S, Reading::Going, 0), None);
    // The next deadline is that of the pong.
    assert_eq!(conn.deadline(now + 10 * S), Some(now + 15 * S));
    let pong = answer(&mut conn);
    receive_pong(&mut conn, &pong);
    assert_eq!(conn.deadline(now + 11 * S), Some(now + 20 * S));
    // A closing connection sends no pings, and keeps its close deadline.
    conn.handle_deadline(now + 20 * S, Reading::Going, 0);
    assert!(!conn.take_output().is_empty());
    conn.limit_close_deadline(Some(now + 60 * S));
    assert_eq!(conn.deadline(now + 20 * S), Some(now + 25 * S));
    conn.begin_close(None, "", now + 21 * S).unwrap();
    assert_eq!(conn.deadline(now + 21 * S), Some(now + 60 * S));
    assert_eq!(conn.handle_deadline(now + 59 * S, Reading::Going, 0), None);
    assert!(conn.send_half().failure().is_none());
}

#[test]
fn short_ping_interval_checks_before_the_pong_is_due() {
    let now = Instant::now();
    let endpoint = client_with(Keepalive::new(Some(2 * S), Some(5 * S), now));
    let mut conn: ConnectionDriver<Vec<u8>> = ConnectionDriver::new(endpoint, None, TIMEOUT);
    conn.handle_deadline(now + 2 * S, Reading::Going, 0);
    assert_eq!(conn.deadline(now + 2 * S), Some(now + 4 * S));
    // No second ping is sent while the first is unanswered, but the progress of the peer is checked.
    let _ = conn.take_output();
    conn.handle_deadline(now + 4 * S, Reading::Going, 0);
    assert!(conn.take_output().is_empty() && conn.send_half().failure().is_none());
    assert_eq!(conn.deadline(now + 4 * S), Some(now + 6 * S));
    conn.handle_deadline(now + 7 * S, Reading::Going, 0);
    assert!(matches!(conn.send_half().failure(), Some(Failure::KeepaliveTimeout)));
}

#[test]
fn missing_pong_fails_the_connection_with_a_close_frame() {
    let now = Instant::now();
    let mut conn = pinging(now, None);
    conn.handle_deadline(now + 10 * S, Reading::Going, 0);
    assert!(!conn.take_output().is_empty());
    conn.handle_deadline(now + 15 * S - S / 1000, Reading::Going, 0);
    assert!(conn.send_half().failure().is_none());
    conn.handle_deadline(now + 15 * S, Reading::Going, 0);
    assert!(matches!(conn.send_half().failure(), Some(Failure::KeepaliveTimeout)));
    assert_eq!(conn.send_half().close_sent().and_then(|close| close.code), Some(CloseCode::INTERNAL_ERROR));
    assert!(!conn.take_output().is_empty());
    assert_eq!(conn.advance(|| now + 15 * S), Progress::Over);
    assert!(!conn.take_shutdown_due(), "the connection is over");
}

#[test]
fn keepalive_ping_waits_for_the_end_of_a_frame() {
    let now = Instant::now();
    let mut conn = pinging(now, None);
    let mut large = conn.send_half_mut().begin_large(MessageKind::Binary, 2).unwrap();
    assert!(!conn.send_half_mut().append_large(&mut large, b"x"));
    let retry = conn.handle_deadline(now + 10 * S, Reading::Going, 0).unwrap();
    assert!(retry > now + 10 * S && retry <= now + 10 * S + S / 10);
    assert!(conn.send_half_mut().append_large(&mut large, b"y"));
    let before = conn.send_half().queued();
    assert_eq!(conn.handle_deadline(retry, Reading::Going, 0), None);
    assert!(conn.send_half().queued() > before);
}

#[test]
fn peer_that_does_not_read_a_frame_fails_the_keepalive() {
    let now = Instant::now();
    let mut conn = pinging(now, None);
    let mut large = conn.send_half_mut().begin_large(MessageKind::Binary, 3).unwrap();
    assert!(!conn.send_half_mut().append_large(&mut large, b"x"));
    let at = |conn: &mut ConnectionDriver<Vec<u8>>, seconds: u32, reading| {
        let retry = conn.handle_deadline(now + seconds * S, reading, 1);
        assert_eq!(retry.is_none(), conn.send_half().failure().is_some());
        retry.is_some()
    };
    assert!((10..=14).all(|seconds| at(&mut conn, seconds, Reading::Going)));
    // The peer reads a part, so it is alive. It need not read while we do not read.
    assert!(!conn.take_output().is_empty());
    assert!(at(&mut conn, 15, Reading::Going));
    assert!(at(&mut conn, 19, Reading::Paused));
    assert!((20..=23).all(|seconds| at(&mut conn, seconds, Reading::Going)));
    assert!(!at(&mut conn, 24, Reading::Going));
    assert!(matches!(conn.send_half().failure(), Some(Failure::KeepaliveTimeout)));
}

#[test]
fn unwritten_rest_of_a_frame_is_not_the_peers_delay() {
    let now = Instant::now();
    let mut conn = pinging(now, None);
    let mut large = conn.send_half_mut().begin_large(MessageKind::Binary, 3).unwrap();
    assert!(!conn.send_half_mut().append_large(&mut large, b"x"));
    let at = |conn: &mut ConnectionDriver<Vec<u8>>, seconds: u32, backlog| {
        conn.handle_deadline(now + seconds * S, Reading::Going, backlog).is_some()
    };
    // The event loop was busy and has written nothing.
    assert!([10, 100, 200].into_iter().all(|seconds| at(&mut conn, seconds, 0)));
    // The transport has written, and the peer acknowledges nothing.
    assert!(conn.take_output().len() > 2);
    assert!((201..=205).all(|seconds| at(&mut conn, seconds, 2)));
    assert!(!at(&mut conn, 206, 2));
}

#[test]
fn peer_that_sends_or_reads_bytes_passes_the_keepalive() {
    let (ours, theirs) = sockets(Some(4096));
    let now = Instant::now();
    let mut conn = pinging(now, Some(ours));
    // More bytes are queued before the ping than the kernel can buffer.
    conn.send_half_mut().send_message(MessageKind::Binary, &[0; 1 << 20], None).unwrap();
    assert_eq!(conn.flush().unwrap(), Flushed::Blocked);
    conn.handle_deadline(now + 10 * S, Reading::Going, 0);
    let mut taken = Vec::with_capacity(64 << 10);
    for turn in 3..20 {
        taken.clear();
        theirs.receive(&mut taken, 64 << 10, Mode::NonBlocking).unwrap();
        let _ = conn.flush();
        conn.handle_deadline(now + turn * 5 * S, Reading::Going, 0);
        assert!(conn.send_half().failure().is_none(), "{turn}");
    }
    // From here on the peer reads nothing.
    conn.handle_deadline(now + 110 * S, Reading::Going, 0);
    conn.handle_deadline(now + 120 * S, Reading::Going, 0);
    assert!(matches!(conn.send_half().failure(), Some(Failure::KeepaliveTimeout)));

    // A large frame arrives in pieces, and no pong can be sent inside it.
    let (ours, theirs) = sockets(None);
    let mut conn = pinging(now, Some(ours));
    conn.handle_deadline(now + 10 * S, Reading::Going, 0);
    theirs.send(b"\x82\x7e\x10\x00", Mode::NonBlocking).unwrap();
    for turn in 3..20 {
        theirs.send(b"more", Mode::NonBlocking).unwrap();
        assert!(conn.read(false, usize::MAX));
        while conn.poll_event().is_some() {}
        conn.handle_deadline(now + turn * 5 * S, Reading::Going, 0);
        assert!(conn.send_half().failure().is_none(), "{turn}");
    }
    conn.handle_deadline(now + 100 * S, Reading::Going, 0);
    assert!(matches!(conn.send_half().failure(), Some(Failure::KeepaliveTimeout)));
}

#[test]
fn keepalive_waits_for_a_pong_that_may_be_unread() {
    let now = Instant::now();
    let is_kept = |conn: &ConnectionDriver<Vec<u8>>| conn.send_half().failure().is_none();
    // It waits while reading is paused, and until the next deadline after that.
    let mut conn = pinging(now, None);
    conn.handle_deadline(now + 10 * S, Reading::Going, 0);
    for turn in [15, 20, 25] {
        conn.handle_deadline(now + turn * S, Reading::Paused, 0);
        assert!(is_kept(&conn));
    }
    conn.handle_deadline(now + 30 * S, Reading::Going, 0);
    assert!(is_kept(&conn), "reading was paused at the last deadline");
    conn.handle_deadline(now + 35 * S, Reading::Going, 0);
    assert!(!is_kept(&conn));
    // A pause that ended before the deadline counts; a pause before the ping does not.
    for (noted, kept) in [(12, true), (9, false)] {
        let mut conn = pinging(now, None);
        if noted < 10 {
            conn.record_pause();
        }
        conn.handle_deadline(now + 10 * S, Reading::Going, 0);
        if noted > 10 {
            conn.record_pause();
        }
        conn.handle_deadline(now + 15 * S, Reading::Going, 0);
        assert_eq!(is_kept(&conn), kept);
    }
    // Unread bytes in the kernel mean that the event loop was busy.
    for unread in [true, false] {
        let (ours, theirs) = sockets(None);
        let mut conn = pinging(now, Some(ours));
        conn.handle_deadline(now + 10 * S, Reading::Going, 0);
        if unread {
            theirs.send(b"\x8a\x00", Mode::NonBlocking).unwrap();
        }
        conn.handle_deadline(now + 15 * S, Reading::Going, 0);
        assert_eq!(is_kept(&conn), unread);
        conn.read(false, usize::MAX);
        conn.handle_deadline(now + 20 * S, Reading::Going, 0);
        assert!(!is_kept(&conn));
    }
}
