//! How connections end on an event loop: what is owed to the peer leaves, the peer reads it, and TCP ends.

#![allow(clippy::unwrap_used)] // tests fail by panicking

mod support;

use std::time::{Duration, Instant};

use support::{peer, sockets};
use wirespeed_driver::buffers;
use wirespeed_driver::drive::{Drive, Progress};
use wirespeed_driver::peer::PeerEvent;
use wirespeed_driver::protocol::{CloseCode, MessageKind, Payload, SendError, Side};
use wirespeed_driver::socket::{Mode, Socket};
use wirespeed_driver::write_queue::Flushed;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(5));
const RESPONSE: &[u8] = b"HTTP/1.1 404 Not Found\r\n\r\n";

fn refuse(conn: &mut Drive<Vec<u8>>) {
    conn.peer.link.send_head(RESPONSE);
    conn.peer.refuse();
}

/// Reads what is there; `true` at the end of the stream.
fn read(socket: &Socket, into: &mut Vec<u8>) -> bool {
    loop {
        let mut buffer = Vec::with_capacity(4096);
        match socket.receive(&mut buffer, usize::MAX, Mode::NonBlocking) {
            Ok(0) => return true,
            Ok(_) => into.extend_from_slice(&buffer),
            Err(_) => return false,
        }
    }
}

#[test]
fn a_refusal_is_read_before_tcp_ends() {
    let (client, server) = sockets(None);
    let mut conn: Drive<Vec<u8>> = Drive::new(peer(Side::Server, None), Some(server), TIMEOUT);
    refuse(&mut conn);
    assert!(conn.is_closing());
    assert_eq!(conn.peer.link.send_message(MessageKind::Text, b"x", None), Err(SendError::NotOpen));
    assert_eq!(conn.flush(), Flushed::All);
    // Our direction ends with the response; the client's stays until it has ended it, whatever it sends.
    assert_eq!(conn.advance(Instant::now), Progress::Closing);
    let mut received = Vec::new();
    assert!(read(&client, &mut received));
    assert_eq!(received, RESPONSE);
    let mut more = wirespeed_driver::WriteQueue::default();
    more.tail().extend_from_slice(b"GET / HTTP/1.1\r\n");
    more.flush(&client, Mode::NonBlocking).unwrap();
    assert!(conn.read(false, usize::MAX));
    assert!(conn.poll_event().is_none());
    assert_eq!(conn.advance(Instant::now), Progress::Closing);
    drop(client);
    assert!(conn.read(false, usize::MAX));
    assert!(conn.poll_event().is_none());
    assert_eq!(conn.advance(Instant::now), Progress::Over);
}

#[test]
fn a_refusal_does_not_wait_for_ever() {
    let (_client, server) = sockets(None);
    let mut conn: Drive<Vec<u8>> = Drive::new(peer(Side::Server, None), Some(server), TIMEOUT);
    refuse(&mut conn);
    let now = Instant::now();
    assert_eq!(conn.advance(|| now), Progress::Closing);
    assert_eq!(conn.deadline(now), Some(now + TIMEOUT.unwrap()));
    assert_eq!(conn.advance(|| now + TIMEOUT.unwrap()), Progress::Over);
}

#[test]
fn who_writes_for_us_ends_the_stream_once() {
    let mut conn: Drive<Vec<u8>> = Drive::new(peer(Side::Server, None), None, TIMEOUT);
    assert!(!conn.take_shut());
    refuse(&mut conn);
    assert_eq!(conn.advance(Instant::now), Progress::Closing);
    assert!(!conn.take_shut(), "the response has yet to be written");
    assert_eq!(conn.take_output(), RESPONSE);
    assert_eq!(conn.advance(Instant::now), Progress::Closing);
    assert!(conn.take_shut());
    assert!(!conn.take_shut());
    conn.receive_end(None);
    assert_eq!(conn.advance(Instant::now), Progress::Over);
}

#[test]
fn a_clean_close_ends_tcp_at_the_server() {
    let (client, server) = sockets(None);
    let mut conn: Drive<Vec<u8>> = Drive::new(peer(Side::Server, None), Some(server), TIMEOUT);
    let mut other: Drive<Vec<u8>> = Drive::new(peer(Side::Client, None), Some(client), TIMEOUT);
    other.begin_close(Some(CloseCode::NORMAL_CLOSURE), "", Instant::now()).unwrap();
    other.flush();
    assert!(conn.read(false, usize::MAX));
    while conn.poll_event().is_some() {}
    conn.flush();
    assert_eq!(conn.advance(Instant::now), Progress::Over);
    assert!(other.read(false, usize::MAX));
    while other.poll_event().is_some() {}
    assert_eq!(other.advance(Instant::now), Progress::Closing);
    assert!(other.read(false, usize::MAX));
    assert_eq!(other.advance(Instant::now), Progress::Over);
}

/// RFC 6455, section 5.5.1: the answer to a close frame may wait for the message that is being sent. The end of the peer's direction of TCP, which comes
/// with the close frame, ends neither.
#[test]
fn a_half_closed_peer_gets_the_rest_of_a_frame_and_the_close() {
    for side in [Side::Client, Side::Server] {
        let other_side = if side == Side::Client { Side::Server } else { Side::Client };
        let (ours, theirs) = sockets(Some(4096));
        let mut conn: Drive<Vec<u8>> = Drive::new(peer(side, None), Some(ours), TIMEOUT);
        let mut other: Drive<Vec<u8>> = Drive::new(peer(other_side, None), None, TIMEOUT);
        let message = vec![b'x'; 2 * buffers::WRITE_SIZE];
        let mut large = conn.peer.link.begin_large(MessageKind::Binary, message.len()).unwrap();
        assert!(!conn.peer.link.append_large(&mut large, &message[..buffers::WRITE_SIZE]));
        assert_eq!(conn.flush(), Flushed::Blocked);
        other.begin_close(Some(CloseCode::GOING_AWAY), "bye", Instant::now()).unwrap();
        let mut bytes = wirespeed_driver::WriteQueue::default();
        bytes.tail().extend_from_slice(&other.take_output());
        bytes.flush(&theirs, Mode::NonBlocking).unwrap();
        theirs.shutdown_write();
        // The close frame, and the end.
        let mut received = Vec::new();
        let mut lengths = Vec::new();
        let mut appended = false;
        for _ in 0..10_000 {
            if !conn.is_over() {
                conn.read(false, usize::MAX);
                while conn.poll_event().is_some() {}
                if conn.flush() == Flushed::All && !appended {
                    appended = true;
                    assert!(conn.peer.link.failure().is_none());
                    assert!(conn.peer.link.append_large(&mut large, &message[buffers::WRITE_SIZE..]));
                }
                conn.advance(Instant::now);
            }
            let ended = read(&theirs, &mut received);
            other.receive(&std::mem::take(&mut received));
            while let Some(event) = other.poll_event() {
                if let PeerEvent::Message { payload: Payload::Buffer(buffer), .. } = event {
                    lengths.push(buffer.len());
                }
            }
            if ended {
                break;
            }
        }
        assert_eq!(conn.advance(Instant::now), Progress::Over);
        assert_eq!(lengths, [message.len()], "{side:?}");
        assert_eq!(other.peer.link.close_received().and_then(|close| close.code), Some(CloseCode::GOING_AWAY));
        assert!(conn.peer.link.failure().is_none());
    }
}
