//! [`ConnectionDriver`]: closing, the end of the stream, reads.

#![allow(clippy::unwrap_used, clippy::panic)] // tests fail by panicking

mod support;

use std::time::{Duration, Instant};

use support::{End, endpoint, layers, shake_hands, sockets};
use wirespeed_driver::buffer_pool;
use wirespeed_driver::connection::{ConnectionDriver, Progress};
use wirespeed_driver::endpoint::{Failure, payload_len};
use wirespeed_driver::protocol::{CloseCode, Event, MessageKind, Payload, SendError, Side};
use wirespeed_driver::socket::{Mode, Socket};
use wirespeed_driver::write_queue::Flushed;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(5));
const S: Duration = Duration::from_secs(1);
const RESPONSE: &[u8] = b"HTTP/1.1 404 Not Found\r\n\r\n";

fn reject(conn: &mut ConnectionDriver<Vec<u8>>) {
    conn.send_half_mut().send_head(RESPONSE);
    conn.endpoint_mut().refuse();
}

/// Reads all available bytes. Returns true at the end of the stream.
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
fn rejection_keeps_tcp_open_until_the_client_closes() {
    let (client, server) = sockets(None);
    let mut conn: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Server, None), Some(server), TIMEOUT);
    reject(&mut conn);
    assert!(conn.is_closing());
    assert_eq!(conn.send_half_mut().send_message(MessageKind::Text, b"x", None), Err(SendError::NotOpen));
    assert_eq!(conn.flush().unwrap(), Flushed::All);
    // Our direction of TCP ends with the response. The client's direction stays open until the client closes it.
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
fn rejection_ends_at_the_close_timeout() {
    let (_client, server) = sockets(None);
    let mut conn: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Server, None), Some(server), TIMEOUT);
    reject(&mut conn);
    let now = Instant::now();
    assert_eq!(conn.advance(|| now), Progress::Closing);
    assert_eq!(conn.deadline(now), Some(now + TIMEOUT.unwrap()));
    assert_eq!(conn.advance(|| now + TIMEOUT.unwrap()), Progress::Over);
}

#[test]
fn transport_is_shut_down_once() {
    let mut conn: ConnectionDriver<Vec<u8>> = ConnectionDriver::new(endpoint(Side::Server, None), None, TIMEOUT);
    assert!(!conn.take_shutdown_due());
    reject(&mut conn);
    assert_eq!(conn.advance(Instant::now), Progress::Closing);
    assert!(!conn.take_shutdown_due(), "the response has yet to be written");
    assert_eq!(conn.take_output(), RESPONSE);
    assert_eq!(conn.advance(Instant::now), Progress::Closing);
    assert!(conn.take_shutdown_due());
    assert!(!conn.take_shutdown_due());
    conn.receive_end(None);
    assert_eq!(conn.advance(Instant::now), Progress::Over);
}

#[test]
fn transport_buffer_delays_the_shutdown() {
    let on_transport =
        || -> ConnectionDriver<Vec<u8>> { ConnectionDriver::new(endpoint(Side::Server, None), None, TIMEOUT) };
    assert!(!on_transport().is_closing_externally());
    // Each of these calls begins to close the connection.
    let begin: [fn(&mut ConnectionDriver<Vec<u8>>); 3] =
        [|conn| assert!(conn.start_close_timeout(Instant::now()).is_some()), reject, |conn| conn.receive_end(None)];
    for begin in begin {
        let mut conn = on_transport();
        begin(&mut conn);
        assert!(conn.is_closing_externally());
    }
    let (_other, socket) = sockets(None);
    let mut conn: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Server, None), Some(socket), TIMEOUT);
    reject(&mut conn);
    assert!(!conn.is_closing_externally(), "the driver writes to the socket itself");
    // The transport is shut down after it has written its buffer.
    let mut conn = on_transport();
    reject(&mut conn);
    assert_eq!(conn.take_output(), RESPONSE);
    conn.set_transport_buffered(true);
    assert_eq!(conn.advance(Instant::now), Progress::Closing);
    assert!(!conn.take_shutdown_due());
    conn.set_transport_buffered(false);
    assert_eq!(conn.advance(Instant::now), Progress::Closing);
    assert!(conn.take_shutdown_due());
}

#[test]
fn a_connection_goes_on_without_a_fork() {
    let (_other, socket) = sockets(None);
    let mut conn: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Server, None), Some(socket), TIMEOUT);
    conn.end_after_fork();
    assert_eq!(conn.advance(Instant::now), Progress::Open);
    assert!(conn.socket().is_some() && conn.take_ended().is_none());
}

#[test]
fn received_messages_are_delivered_before_the_end() {
    let (client, server) = sockets(None);
    let mut conn: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Client, None), Some(client), TIMEOUT);
    let mut other: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Server, None), Some(server), TIMEOUT);
    other.send_half_mut().send_message(MessageKind::Text, b"one", None).unwrap();
    other.send_half_mut().send_message(MessageKind::Text, b"two", None).unwrap();
    let _ = other.flush();
    drop(other);
    assert!(conn.read(false, usize::MAX));
    assert!(conn.read(false, usize::MAX));
    assert!(matches!(conn.poll_event(), Some(Event::Message { payload: Payload::Slice(b"one"), .. })));
    assert!(conn.endpoint().has_input());
    assert_eq!(conn.advance(Instant::now), Progress::Closing);
    assert!(matches!(conn.poll_event(), Some(Event::Message { payload: Payload::Slice(b"two"), .. })));
    assert!(conn.poll_event().is_none());
    assert_eq!(conn.advance(Instant::now), Progress::Over);
    assert!(matches!(conn.send_half().failure(), Some(Failure::Eof)));
    assert!(conn.take_ended().is_some() && conn.take_ended().is_none());
}

#[test]
fn closing_endpoint_waits_for_the_reply() {
    for side in [Side::Client, Side::Server] {
        let mut conn: ConnectionDriver<Vec<u8>> = ConnectionDriver::new(endpoint(side, None), None, TIMEOUT);
        conn.begin_close(None, "", Instant::now()).unwrap();
        assert!(!conn.take_output().is_empty());
        assert_eq!(conn.advance(Instant::now), Progress::Closing, "{side:?}");
        assert!(conn.is_closing());
    }
}

#[test]
fn read_reports_whether_anything_arrived() {
    let (client, server) = sockets(None);
    let mut conn: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Client, None), Some(client), TIMEOUT);
    assert!(!conn.read(false, usize::MAX));
    assert!(!conn.read_by(true, usize::MAX, |_, _| Err(std::io::ErrorKind::Interrupted.into())));
    server.send(b"\x81", Mode::NonBlocking).unwrap();
    assert!(conn.read(true, usize::MAX));
    assert!(conn.poll_event().is_none() && conn.send_half().failure().is_none());
    assert!(conn.read_by(true, usize::MAX, |_, _| Err(std::io::ErrorKind::ConnectionReset.into())));
    assert!(matches!(conn.send_half().failure(), Some(Failure::Io(_))));
}

#[test]
fn failed_write_closes_the_sending_side() {
    let mut conn: ConnectionDriver<Vec<u8>> = ConnectionDriver::new(endpoint(Side::Client, None), None, TIMEOUT);
    assert!(!conn.is_closing());
    conn.send_half_mut().handle_write_error(std::io::ErrorKind::BrokenPipe.into());
    assert!(conn.is_closing());
}

/// RFC 8446, section 6.1: nothing follows close_notify.
#[test]
fn close_notify_follows_the_last_frame() {
    let (client, server) = layers(&[]);
    let (mut client, mut server) = (End::new(client), End::new(server));
    shake_hands(&mut client, &mut server, 1000);
    let mut conn: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Server, Some(server.layer)), None, TIMEOUT);
    let mut other: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Client, Some(client.layer)), None, TIMEOUT);
    let mut large = conn.send_half_mut().begin_large(MessageKind::Binary, 6).unwrap();
    assert!(!conn.send_half_mut().append_large(&mut large, b"mes"));
    other.begin_close(None, "", Instant::now()).unwrap();
    conn.receive(&other.take_output());
    while conn.poll_event().is_some() {}
    other.receive(&conn.take_output());
    assert_eq!(conn.advance(Instant::now), Progress::Closing);
    assert!(conn.send_half_mut().append_large(&mut large, b"ges"));
    assert_eq!(conn.advance(Instant::now), Progress::Closing);
    other.receive(&conn.take_output());
    assert_eq!(conn.advance(Instant::now), Progress::Over);
    let mut lengths = Vec::new();
    while let Some(event) = other.poll_event() {
        if let Event::Message { payload, .. } = event {
            lengths.push(payload_len(&payload));
        }
    }
    assert_eq!(lengths, [6]);
    assert!(other.send_half().close_received().is_some() && other.send_half().is_eof());
}

#[test]
fn close_deadline_is_set_once() {
    let now = Instant::now();
    let new =
        |timeout| -> ConnectionDriver<Vec<u8>> { ConnectionDriver::new(endpoint(Side::Client, None), None, timeout) };
    let mut conn = new(Some(10 * S));
    assert_eq!(conn.deadline(now), None);
    assert!(!conn.is_close_timeout_running());
    conn.begin_close(None, "", now).unwrap();
    assert!(conn.is_close_timeout_running() && conn.is_closing());
    assert_eq!(conn.start_close_timeout(now + S), Some(now + 10 * S));
    conn.limit_close_deadline(Some(now + 2 * S));
    assert_eq!(conn.deadline(now), Some(now + 10 * S));
    assert_eq!(conn.advance(|| now + 10 * S - S / 1000), Progress::Closing);
    assert_eq!(conn.advance(|| now + 10 * S), Progress::Over);
    assert!(matches!(conn.send_half().failure(), Some(Failure::CloseTimeout)));
    assert_eq!(conn.deadline(now), None);
    conn.begin_close(None, "", now).unwrap(); // it is closed
    // Without a timeout, and with a deadline set by the caller.
    let mut conn = new(None);
    conn.begin_close(None, "", now).unwrap();
    assert!(conn.is_close_timeout_running());
    assert_eq!(conn.advance(|| now + 1_000_000 * S), Progress::Closing);
    assert_eq!(conn.deadline(now), None);
    let mut conn = new(Some(10 * S));
    conn.limit_close_deadline(Some(now + 2 * S));
    assert!(!conn.is_closing());
    assert_eq!(conn.advance(|| now + S), Progress::Closing);
    assert_eq!(conn.advance(|| now + 2 * S), Progress::Over);
}

#[test]
fn server_closes_tcp_first() {
    let (client, server) = sockets(None);
    let mut conn: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Server, None), Some(server), TIMEOUT);
    let mut other: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Client, None), Some(client), TIMEOUT);
    other.begin_close(Some(CloseCode::NORMAL_CLOSURE), "", Instant::now()).unwrap();
    let _ = other.flush();
    assert!(conn.read(false, usize::MAX));
    while conn.poll_event().is_some() {}
    let _ = conn.flush();
    assert_eq!(conn.advance(Instant::now), Progress::Over);
    assert!(other.read(false, usize::MAX));
    while other.poll_event().is_some() {}
    assert_eq!(other.advance(Instant::now), Progress::Closing);
    assert!(other.read(false, usize::MAX));
    assert_eq!(other.advance(Instant::now), Progress::Over);
}

/// RFC 6455, section 5.5.1: the reply to a close frame may wait for the message that is being sent. Both are sent even if
/// the peer has closed its direction of TCP.
#[test]
fn half_closed_peer_receives_the_rest_of_a_frame_and_the_reply() {
    for side in [Side::Client, Side::Server] {
        let other_side = if side == Side::Client { Side::Server } else { Side::Client };
        let (ours, theirs) = sockets(Some(4096));
        let mut conn: ConnectionDriver<Vec<u8>> = ConnectionDriver::new(endpoint(side, None), Some(ours), TIMEOUT);
        let mut other: ConnectionDriver<Vec<u8>> = ConnectionDriver::new(endpoint(other_side, None), None, TIMEOUT);
        let message = vec![b'x'; 2 * buffer_pool::WRITE_SIZE];
        let mut large = conn.send_half_mut().begin_large(MessageKind::Binary, message.len()).unwrap();
        assert!(!conn.send_half_mut().append_large(&mut large, &message[..buffer_pool::WRITE_SIZE]));
        assert_eq!(conn.flush().unwrap(), Flushed::Blocked);
        other.begin_close(Some(CloseCode::GOING_AWAY), "bye", Instant::now()).unwrap();
        let mut bytes = wirespeed_driver::WriteQueue::default();
        bytes.tail().extend_from_slice(&other.take_output());
        bytes.flush(&theirs, Mode::NonBlocking).unwrap();
        theirs.shutdown_write();
        // Receive the close frame and the end of the stream.
        let mut received = Vec::new();
        let mut lengths = Vec::new();
        let mut appended = false;
        for _ in 0..10_000 {
            if !conn.is_over() {
                conn.read(false, usize::MAX);
                while conn.poll_event().is_some() {}
                if conn.flush().unwrap() == Flushed::All && !appended {
                    appended = true;
                    assert!(conn.send_half().failure().is_none());
                    assert!(conn.send_half_mut().append_large(&mut large, &message[buffer_pool::WRITE_SIZE..]));
                }
                conn.advance(Instant::now);
            }
            let ended = read(&theirs, &mut received);
            other.receive(&std::mem::take(&mut received));
            while let Some(event) = other.poll_event() {
                if let Event::Message { payload: Payload::Buffer(buffer), .. } = event {
                    lengths.push(buffer.len());
                }
            }
            if ended {
                break;
            }
        }
        assert_eq!(conn.advance(Instant::now), Progress::Over);
        assert_eq!(lengths, [message.len()], "{side:?}");
        assert_eq!(other.send_half().close_received().and_then(|close| close.code), Some(CloseCode::GOING_AWAY));
        assert!(conn.send_half().failure().is_none());
    }
}

#[test]
fn unparsed_close_frame_is_answered_after_the_end_of_the_stream() {
    for side in [Side::Server, Side::Client] {
        let (ours, theirs) = sockets(None);
        let mut conn: ConnectionDriver<Vec<u8>> = ConnectionDriver::new(endpoint(side, None), Some(ours), TIMEOUT);
        let mut other = endpoint(if side == Side::Server { Side::Client } else { Side::Server }, None);
        other.send_half_mut().send_message(MessageKind::Text, b"last", None).unwrap();
        other.send_half_mut().send_close(Some(CloseCode(4000)), "bye").unwrap();
        other.send_half_mut().flush(&theirs, Mode::NonBlocking).unwrap();
        theirs.shutdown_write();
        // Everything is read, including the end of the stream, before the application polls an event.
        assert!(conn.read(false, usize::MAX));
        assert!(conn.read(false, usize::MAX));
        assert!(conn.send_half().is_eof() && conn.endpoint().has_input());
        assert_eq!(conn.advance(Instant::now), Progress::Closing, "{side:?}");
        assert!(matches!(conn.poll_event(), Some(Event::Message { .. })));
        assert!(matches!(conn.poll_event(), Some(Event::Close(_))));
        assert!(conn.poll_event().is_none());
        let _ = conn.advance(Instant::now);
        let _ = conn.flush();
        let _ = conn.advance(Instant::now);
        assert!(conn.send_half().failure().is_none(), "{:?}", conn.send_half().failure());
        let mut answer = Vec::new();
        read(&theirs, &mut answer);
        assert_eq!(answer.len(), if side == Side::Server { 7 } else { 11 }, "close 4000 with its reason: {answer:?}");
    }
}

#[test]
fn idle_connection_is_small() {
    let size = size_of::<ConnectionDriver<Vec<u8>>>();
    assert!(size <= 512, "{size} bytes");
}

#[test]
fn read_edge_reports_whether_the_edge_is_consumed() {
    let (ours, theirs) = sockets(None);
    let mut conn: ConnectionDriver<Vec<u8>> = ConnectionDriver::new(endpoint(Side::Client, None), Some(ours), TIMEOUT);
    assert!(conn.read_edge(false), "nothing to read");
    theirs.send(b"\x81\x01a", Mode::NonBlocking).unwrap();
    assert!(conn.read_edge(false), "the buffer was not filled");
    while conn.poll_event().is_some() {}
    theirs.send(b"\x81\x01b", Mode::NonBlocking).unwrap();
    drop(theirs);
    assert!(!conn.read_edge(true), "no other edge reports the end");
    assert!(conn.poll_event().is_some() && !conn.send_half().is_eof());
    assert!(conn.read_edge(true));
    assert!(conn.send_half().is_eof());
    assert!(conn.read_edge(false), "at and after the end");
    conn.end(Failure::Aborted);
    assert!(conn.read_edge(false));
}

#[test]
fn payload_in_the_input_can_be_echoed() {
    let (ours, theirs) = sockets(Some(4096));
    let mut conn: ConnectionDriver<Vec<u8>> = ConnectionDriver::new(endpoint(Side::Server, None), Some(ours), TIMEOUT);
    let mut other: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Client, None), Some(theirs), TIMEOUT);
    let sizes = [1, 125, 70_000, buffer_pool::WRITE_SIZE, buffer_pool::WRITE_SIZE + 1, 3_000_000];
    for size in sizes {
        other.sender().send_message(MessageKind::Binary, &vec![b'x'; size], None).unwrap();
    }
    let (mut echoed, mut is_written) = (Vec::new(), false);
    while echoed.len() < sizes.len() {
        let _ = other.flush();
        conn.read(false, usize::MAX);
        while let (Some(Event::Message { kind, payload }), mut sender) = conn.poll_event_and_sender() {
            let bytes: &[u8] = match &payload {
                Payload::Slice(slice) => slice,
                Payload::Buffer(buffer) => buffer,
            };
            sender.send_message(kind, bytes, None).unwrap();
            // A part of a large message is written before the flush.
            is_written |= sender.send_half().written() > 0 && bytes.len() == 3_000_000;
        }
        let _ = conn.flush();
        other.read(false, usize::MAX);
        while let Some(event) = other.poll_event() {
            if let Event::Message { payload, .. } = event {
                echoed.push(payload_len(&payload));
            }
        }
    }
    assert_eq!(echoed, sizes);
    assert!(is_written);
}

#[test]
fn flush_and_advance_writes_the_frames_of_the_close() {
    let (client, server) = layers(&[]);
    let (mut client, mut server) = (End::new(client), End::new(server));
    shake_hands(&mut client, &mut server, 1000);
    let (ours, theirs) = sockets(None);
    let mut conn: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Server, Some(server.layer)), Some(ours), TIMEOUT);
    let mut other: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Client, Some(client.layer)), Some(theirs), TIMEOUT);
    assert_eq!(conn.flush_and_advance(Instant::now), (Flushed::All, Progress::Open));
    other.begin_close(None, "", Instant::now()).unwrap();
    assert_eq!(other.flush_and_advance(Instant::now), (Flushed::All, Progress::Closing));
    while conn.send_half().close_received().is_none() {
        conn.read(false, usize::MAX);
        while conn.poll_event().is_some() {}
    }
    // The close frame is sent, then close_notify, then TCP ends.
    assert_eq!(conn.flush_and_advance(Instant::now), (Flushed::All, Progress::Over));
    while !other.send_half().is_eof() {
        other.read(false, usize::MAX);
        while other.poll_event().is_some() {}
    }
    assert_eq!(other.flush_and_advance(Instant::now).1, Progress::Over);
    assert!(other.send_half().failure().is_none() && other.send_half().close_received().is_some());
    // With a transport the close frame stays queued.
    let mut on_transport: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Client, None), None, TIMEOUT);
    on_transport.begin_close(None, "", Instant::now()).unwrap();
    assert_eq!(on_transport.flush_and_advance(Instant::now).1, Progress::Closing);
    assert!(!on_transport.take_output().is_empty());
}
