//! [`Endpoint`] on sockets with small buffers: pongs, large messages, the end of the stream, checked-out input.

#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation)] // tests fail by panicking

mod support;

use std::any::Any;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use support::{End, client_with, endpoint, layers, shake_hands, sockets};
use wirespeed_driver::endpoint::Failure;
use wirespeed_driver::keepalive::Traffic;
use wirespeed_driver::protocol::deflate::Params;
use wirespeed_driver::protocol::{
    CloseCode, Config, Connection, Delivery, Event, MessageKind, Payload, SendError, Side, State,
};
use wirespeed_driver::socket::{Mode, Socket};
use wirespeed_driver::tls::{Error, Layer};
use wirespeed_driver::{Endpoint, Keepalive, buffer_pool};

/// Reads and writes until the socket would block. Returns the received messages.
fn pump(endpoint: &mut Endpoint, socket: &Socket) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    loop {
        while let Some(event) = endpoint.poll_event() {
            if let Event::Message { payload, .. } = event {
                messages.push(match payload {
                    Payload::Slice(slice) => slice.to_vec(),
                    Payload::Buffer(buffer) => buffer,
                });
            }
        }
        let _ = endpoint.send_half_mut().flush(socket, Mode::NonBlocking);
        if endpoint.poll_eof() {
            return messages;
        }
        let mut read = endpoint.begin_read(usize::MAX);
        let result = read.read(socket, Mode::NonBlocking);
        let blocked = result.is_err();
        endpoint.complete_read(read, result);
        if blocked {
            return messages;
        }
    }
}

#[test]
fn large_messages_pass_through_small_socket_buffers() {
    for tls in [false, true] {
        let (client_socket, server_socket) = sockets(Some(4096));
        let (mut client, mut server) = if tls {
            let (client, server) = layers(&[]);
            let (mut client, mut server) = (End::new(client), End::new(server));
            shake_hands(&mut client, &mut server, 1000);
            (endpoint(Side::Client, Some(client.layer)), endpoint(Side::Server, Some(server.layer)))
        } else {
            (endpoint(Side::Client, None), endpoint(Side::Server, None))
        };
        let message: Vec<u8> = (0..1_000_003u32).map(|i| (i * 7) as u8).collect();
        client.send_half_mut().send_message(MessageKind::Binary, &message, None).unwrap();
        let mut received = Vec::new();
        for _ in 0..100_000 {
            pump(&mut client, &client_socket);
            received.extend(pump(&mut server, &server_socket));
            if !received.is_empty() {
                break;
            }
        }
        assert!(received == [message], "tls: {tls}");
        assert_eq!(client.send_half().queued(), 0);
    }
}

#[test]
fn control_frames_wait_for_the_end_of_a_large_message() {
    let (client_socket, server_socket) = sockets(None);
    let (mut client, mut server) = (endpoint(Side::Client, None), endpoint(Side::Server, None));
    let message = vec![b'x'; 3 * buffer_pool::WRITE_SIZE];
    let mut large = client.send_half_mut().begin_large(MessageKind::Binary, message.len()).unwrap();
    assert!(!client.send_half_mut().append_large(&mut large, &message[..buffer_pool::WRITE_SIZE]));
    assert!(client.send_half_mut().send_ping(b"no").is_err(), "rejected inside a frame");
    // A ping and a close frame that arrive now are answered after the end of the message.
    server.send_half_mut().send_ping(b"ping").unwrap();
    server.send_half_mut().send_close(Some(CloseCode::NORMAL_CLOSURE), "").unwrap();
    server.send_half_mut().flush(&server_socket, Mode::NonBlocking).unwrap();
    pump(&mut client, &client_socket);
    assert!(client.send_half_mut().append_large(&mut large, &message[buffer_pool::WRITE_SIZE..]));
    let mut received = Vec::new();
    for _ in 0..100 {
        pump(&mut client, &client_socket);
        received.extend(pump(&mut server, &server_socket));
    }
    assert!(received == [message]);
    assert_eq!((client.send_half().state(), server.send_half().state()), (State::Closed, State::Closed));
    assert!(server.send_half().failure().is_none(), "{:?}", server.send_half().failure());
}

#[test]
fn pongs_that_the_peer_does_not_read_do_not_accumulate() {
    let (client_socket, server_socket) = sockets(Some(4096));
    let (mut client, mut server) = (endpoint(Side::Client, None), endpoint(Side::Server, None));
    for i in 0..20_000u32 {
        server.send_half_mut().send_ping(&i.to_be_bytes()).unwrap();
        if i % 100 == 0 {
            let _ = server.send_half_mut().flush(&server_socket, Mode::NonBlocking);
            pump(&mut client, &client_socket);
        }
    }
    let mut last = None;
    for _ in 0..10_000 {
        // The server writes everything before it reads anything.
        let _ = server.send_half_mut().flush(&server_socket, Mode::NonBlocking);
        pump(&mut client, &client_socket);
        assert!(client.send_half().queued() < 256 * 1024, "{} bytes of pongs", client.send_half().queued());
        if server.send_half().queued() == 0 {
            break;
        }
    }
    for _ in 0..10_000 {
        let mut read = server.begin_read(usize::MAX);
        let result = read.read(&server_socket, Mode::NonBlocking);
        server.complete_read(read, result);
        while let Some(event) = server.poll_event() {
            if let Event::Pong(payload) = event {
                last = Some(payload.as_slice().to_vec());
            }
        }
        pump(&mut client, &client_socket);
    }
    assert_eq!(last.as_deref(), Some(&19_999u32.to_be_bytes()[..]), "the last ping is answered (RFC 6455 5.5.3)");
}

#[test]
fn pending_pong_is_sent_before_a_close_frame() {
    let (client_socket, server_socket) = sockets(None);
    let (mut client, mut server) = (endpoint(Side::Client, None), endpoint(Side::Server, None));
    client.send_half_mut().send_message(MessageKind::Binary, &[0; 200_000], None).unwrap();
    server.send_half_mut().send_ping(b"still due").unwrap();
    server.send_half_mut().flush(&server_socket, Mode::NonBlocking).unwrap();
    let mut read = client.begin_read(usize::MAX);
    let result = read.read(&client_socket, Mode::NonBlocking);
    client.complete_read(read, result);
    while client.poll_event().is_some() {}
    client.send_half_mut().send_close(Some(CloseCode::NORMAL_CLOSURE), "").unwrap();
    let mut pongs = 0;
    for _ in 0..100 {
        let _ = client.send_half_mut().flush(&client_socket, Mode::NonBlocking);
        let mut read = server.begin_read(usize::MAX);
        let result = read.read(&server_socket, Mode::NonBlocking);
        server.complete_read(read, result);
        while let Some(event) = server.poll_event() {
            match event {
                Event::Pong(payload) => pongs += usize::from(payload.as_slice() == b"still due"),
                Event::Close(_) => {
                    assert_eq!(pongs, 1);
                    return;
                }
                _ => {}
            }
        }
    }
    panic!("no close frame, {pongs} pongs");
}

#[test]
fn pending_pong_is_replaced_by_a_later_one() {
    let (server_socket, client_socket) = sockets(Some(4096));
    let (mut client, mut server) = (endpoint(Side::Client, None), endpoint(Side::Server, None));
    server.send_half_mut().send_message(MessageKind::Binary, &[0; 100_000], None).unwrap();
    let mut ping = |server: &mut Endpoint, payload: &[u8]| {
        client.send_half_mut().send_ping(payload).unwrap();
        server.receive_slice(&client.send_half_mut().take_output());
        assert!(matches!(server.poll_event(), Some(Event::Ping(_))));
        assert!(server.poll_event().is_none());
    };
    // At the first ping too many bytes are queued for a pong; at the second, few bytes are queued.
    ping(&mut server, b"first");
    let mut bytes = Vec::new();
    while server.send_half().queued() > 0 {
        if server.send_half().queued() < 30_000 && !bytes.is_empty() {
            ping(&mut server, b"second");
            break;
        }
        let _ = server.send_half_mut().flush(&server_socket, Mode::NonBlocking);
        bytes.reserve(4096);
        let _ = client_socket.receive(&mut bytes, 4096, Mode::NonBlocking);
    }
    let mut pongs = Vec::new();
    while server.send_half().queued() > 0 || !bytes.is_empty() {
        if !bytes.is_empty() {
            client.receive_slice(&std::mem::take(&mut bytes));
        }
        while let Some(event) = client.poll_event() {
            if let Event::Pong(payload) = event {
                pongs.push(payload.as_slice().to_vec());
            }
        }
        let _ = server.send_half_mut().flush(&server_socket, Mode::NonBlocking);
        bytes.reserve(4096);
        let _ = client_socket.receive(&mut bytes, 4096, Mode::NonBlocking);
    }
    assert_eq!(pongs, [b"second"]);
}

#[test]
fn message_before_the_end_of_the_stream_is_delivered() {
    let (client_socket, server_socket) = sockets(None);
    let (mut client, mut server) = (endpoint(Side::Client, None), endpoint(Side::Server, None));
    server.send_half_mut().send_message(MessageKind::Text, b"last words", None).unwrap();
    server.send_half_mut().flush(&server_socket, Mode::NonBlocking).unwrap();
    drop(server_socket);
    assert_eq!(pump(&mut client, &client_socket), [b"last words"]);
    assert!(matches!(client.send_half().failure(), Some(Failure::Eof)));
    assert_eq!(client.send_half().state(), State::Failed);
}

#[test]
fn half_closed_peer_receives_the_close_reply() {
    let (client_socket, server_socket) = sockets(None);
    let (mut client, mut server) = (endpoint(Side::Client, None), endpoint(Side::Server, None));
    server.send_half_mut().send_close(Some(CloseCode::GOING_AWAY), "bye").unwrap();
    server.send_half_mut().flush(&server_socket, Mode::NonBlocking).unwrap();
    server_socket.shutdown_write();
    pump(&mut client, &client_socket);
    pump(&mut server, &server_socket);
    assert_eq!((client.send_half().state(), server.send_half().state()), (State::Closed, State::Closed));
    assert_eq!(server.send_half().close_received().and_then(|close| close.code), Some(CloseCode::GOING_AWAY));
    assert_eq!(client.send_half().received_then_sent(), Some(true));
    assert_eq!(server.send_half().received_then_sent(), Some(false));
}

#[test]
fn idle_endpoints_hold_no_buffers() {
    let (client_socket, server_socket) = sockets(None);
    let (mut client, mut server) = (endpoint(Side::Client, None), endpoint(Side::Server, None));
    for len in [10, 100_000, 1_000_000] {
        client.send_half_mut().send_message(MessageKind::Binary, &vec![1; len], None).unwrap();
        for _ in 0..100 {
            pump(&mut client, &client_socket);
            pump(&mut server, &server_socket);
        }
        assert_eq!(client.held_capacity() + server.held_capacity(), 0, "after {len} bytes");
    }
}

#[test]
fn rejected_message_allocates_no_buffer() {
    for tls in [false, true] {
        let layer = tls.then(|| {
            let (client, server) = layers(&[]);
            let (mut client, mut server) = (End::new(client), End::new(server));
            shake_hands(&mut client, &mut server, 1000);
            client.layer
        });
        let mut client = endpoint(Side::Client, layer);
        client.send_half_mut().send_first_fragment(MessageKind::Text, b"begun", None).unwrap();
        drop(client.send_half_mut().take_output());
        let held = client.held_capacity();
        assert_eq!(
            client.send_half_mut().send_message(MessageKind::Text, b"between", None),
            Err(SendError::MessageOpen)
        );
        assert_eq!(client.held_capacity(), held);
        client.fail(Failure::Aborted);
        assert_eq!(client.send_half_mut().send_message(MessageKind::Text, b"after", None), Err(SendError::NotOpen));
        assert_eq!(client.held_capacity(), held);
    }
}

#[test]
fn fault_ends_the_events_and_releases_the_input() {
    let mut server = endpoint(Side::Server, None);
    server.receive_slice(b"\x81\x81\0\0\0\0a\x81\x01b\x81\x81\0\0\0\0c"); // the second frame has no mask
    assert!(matches!(server.poll_event(), Some(Event::Message { payload: Payload::Slice(b"a"), .. })));
    assert!(server.poll_event().is_none() && matches!(server.send_half().failure(), Some(Failure::Fault(_))));
    let output = server.send_half_mut().take_output();
    assert_eq!((output[0], &output[2..4]), (0x88, &1002u16.to_be_bytes()[..]), "a close frame");
    assert!(!server.poll_eof() && !server.has_input());
    assert_eq!(server.held_capacity(), 0);
    assert!(server.poll_event().is_none());
}

#[test]
fn checked_out_input_is_still_processed_after_the_end() {
    let (client_socket, server_socket) = sockets(None);
    let (mut client, mut server) = (endpoint(Side::Client, None), endpoint(Side::Server, None));
    for text in [&b"one"[..], b"two"] {
        client.send_half_mut().send_message(MessageKind::Text, text, None).unwrap();
    }
    client.send_half_mut().send_close(Some(CloseCode(4001)), "").unwrap();
    client.send_half_mut().flush(&client_socket, Mode::NonBlocking).unwrap();
    drop(client_socket);
    let mut read = server.begin_read(usize::MAX);
    let result = read.read(&server_socket, Mode::NonBlocking);
    server.complete_read(read, result);
    assert!(matches!(server.poll_event(), Some(Event::Message { payload: Payload::Slice(b"one"), .. })));
    // While the input is checked out, the stream ends and our side closes.
    let checked_out = server.take_input();
    assert!(server.has_input());
    assert_eq!((server.unparsed(), checked_out.0.len() - checked_out.1), (0, 2 + 4 + 3 + 2 + 4 + 2));
    server.receive_eof();
    server.send_half_mut().send_close(Some(CloseCode(1000)), "").unwrap();
    assert!(!server.poll_eof());
    server.put_input(checked_out);
    assert!(matches!(server.poll_event(), Some(Event::Message { payload: Payload::Slice(b"two"), .. })));
    assert!(matches!(server.poll_event(), Some(Event::Close(_))));
    assert_eq!(server.send_half().close_received().unwrap().code, Some(CloseCode(4001)));
}

#[test]
fn later_input_follows_checked_out_input() {
    let (mut client, mut server) = (endpoint(Side::Client, None), endpoint(Side::Server, None));
    let mut send = |text: &[u8]| {
        client.send_half_mut().send_message(MessageKind::Text, text, None).unwrap();
        client.send_half_mut().take_output()
    };
    assert!(!server.has_input());
    server.receive_slice(&send(b"one"));
    server.receive_slice(&send(b"two"));
    assert!(server.has_input());
    assert!(matches!(server.poll_event(), Some(Event::Message { payload: Payload::Slice(b"one"), .. })));
    let checked_out = server.take_input();
    server.receive_slice(&send(b"three"));
    server.put_input(checked_out);
    for text in [&b"two"[..], b"three"] {
        let Some(Event::Message { payload: Payload::Slice(next), .. }) = server.poll_event() else { panic!() };
        assert_eq!(next, text);
    }
    assert!(server.poll_event().is_none());
    // Checked-out input of a connection that is over is discarded.
    server.receive_slice(&send(b"four"));
    let checked_out = server.take_input();
    server.refuse();
    server.put_input(checked_out);
    assert!(!server.has_input());
    assert_eq!(server.held_capacity() - server.send_half().queued(), 0);
}

#[test]
fn remaining_input_is_copied_to_a_small_vector() {
    let (mut client, mut server) = (endpoint(Side::Client, None), endpoint(Side::Server, None));
    for text in [&b"one"[..], b"two"] {
        client.send_half_mut().send_message(MessageKind::Text, text, None).unwrap();
    }
    server.receive_slice(&client.send_half_mut().take_output());
    assert!(server.poll_event().is_some());
    assert_eq!(server.held_capacity(), buffer_pool::READ_SIZE);
    server.shrink_input();
    assert_eq!((server.unparsed(), server.held_capacity()), (9, 9));
    server.shrink_input();
    assert!(matches!(server.poll_event(), Some(Event::Message { payload: Payload::Slice(b"two"), .. })));
}

#[test]
fn read_errors_other_than_retries_end_the_connection() {
    let mut server: Endpoint = endpoint(Side::Server, None);
    for (kind, ends) in
        [(ErrorKind::WouldBlock, false), (ErrorKind::Interrupted, false), (ErrorKind::ConnectionReset, true)]
    {
        let read = server.begin_read(usize::MAX);
        server.complete_read(read, Err(kind.into()));
        assert_eq!(server.send_half().failure().is_some(), ends);
    }
    assert!(
        matches!(server.send_half().failure(), Some(Failure::Io(error)) if error.kind() == ErrorKind::ConnectionReset)
    );
    assert_eq!(server.send_half().state(), State::Failed);
}

#[test]
fn end_of_stream_does_not_wait_for_a_partial_frame() {
    let mut client: Endpoint = endpoint(Side::Client, None);
    let mut large = client.send_half_mut().begin_large(MessageKind::Binary, 2).unwrap();
    assert!(!client.send_half_mut().append_large(&mut large, b"x"));
    client.receive_eof();
    assert!(client.poll_eof());
    assert!(matches!(client.send_half().failure(), Some(Failure::Eof)));
}

#[test]
fn keepalive_pings_without_timeout_do_not_accumulate() {
    let now = Instant::now();
    let second = Duration::from_secs(1);
    for (timeout, backlog, sent) in [(None, 100_000, 0), (None, 10, 1), (Some(second), 100_000, 1)] {
        let mut client = client_with(Keepalive::new(Some(second), timeout, now));
        client.send_half_mut().send_message(MessageKind::Binary, &vec![0; backlog], None).unwrap();
        let before = client.send_half().queued();
        client.send_half_mut().send_keepalive(now + second, Traffic::default());
        assert_eq!(client.send_half().queued() - before, sent * (2 + 4 + 4));
        assert_eq!(client.send_half().keepalive().next_ping(), Some(now + 2 * second));
    }
}

#[test]
fn tls_close_notify_ends_the_stream() {
    let (client, server) = layers(&[]);
    let (mut client, mut server) = (End::new(client), End::new(server));
    shake_hands(&mut client, &mut server, 1000);
    let mut client = endpoint(Side::Client, Some(client.layer));
    let mut server = endpoint(Side::Server, Some(server.layer));
    server.send_half_mut().send_message(MessageKind::Text, b"last", None).unwrap();
    client.receive_slice(&server.send_half_mut().take_output());
    assert!(!client.send_half().is_eof());
    server.send_half_mut().send_close_notify();
    client.receive_slice(&server.send_half_mut().take_output());
    assert!(client.send_half().is_eof());
    assert!(matches!(client.poll_event(), Some(Event::Message { payload: Payload::Slice(b"last"), .. })));
}

/// A layer that answers all input, as TLS does with alerts and key updates.
struct AnsweringLayer;

impl Layer for AnsweringLayer {
    fn receive(&mut self, incoming: &mut [u8], _: &mut Vec<u8>, outgoing: &mut Vec<u8>) -> Result<usize, Error> {
        outgoing.extend_from_slice(b"answer");
        Ok(incoming.len())
    }

    fn send(&mut self, _: &mut [u8], plain: &[u8], outgoing: &mut Vec<u8>) -> Result<(), Error> {
        outgoing.extend_from_slice(plain);
        Ok(())
    }

    fn close(&mut self, _: &mut [u8], outgoing: &mut Vec<u8>) {
        outgoing.extend_from_slice(b"end");
    }

    fn is_handshaking(&self) -> bool {
        false
    }

    fn is_peer_closed(&self) -> bool {
        false
    }

    fn alpn(&self) -> Option<Vec<u8>> {
        None
    }

    fn version(&self) -> Option<String> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// RFC 8446 6.1: close_notify is the last record of our direction. Nothing is sent after it, as TCP may have ended.
#[test]
fn nothing_is_sent_after_close_notify() {
    let mut server = endpoint(Side::Server, Some(Box::new(AnsweringLayer)));
    server.receive_slice(b"first");
    assert_eq!(server.send_half_mut().take_output(), b"answer");
    server.receive_slice(b"second");
    server.send_half_mut().send_close_notify();
    assert_eq!(server.send_half_mut().take_output(), b"answerend");
    server.receive_slice(b"third");
    assert_eq!(server.send_half_mut().take_output(), b"");
    assert!(!server.send_half().is_eof());
}

#[test]
fn read_takes_at_most_the_requested_bytes() {
    let (client_socket, server_socket) = sockets(Some(1 << 20));
    let (mut client, mut server) = (endpoint(Side::Client, None), endpoint(Side::Server, None));
    for _ in 0..100 {
        client.send_half_mut().send_message(MessageKind::Binary, &[7; 1000], None).unwrap();
    }
    client.send_half_mut().flush(&client_socket, Mode::NonBlocking).unwrap();
    let mut read = server.begin_read(40_000);
    let result = read.read(&server_socket, Mode::NonBlocking);
    server.complete_read(read, result);
    assert_eq!(server.unparsed(), 40_000);
    // But it takes at least a small buffer, so that a read receives many small messages.
    while server.poll_event().is_some() {}
    let mut read = server.begin_read(0);
    let result = read.read(&server_socket, Mode::NonBlocking);
    server.complete_read(read, result);
    assert_eq!(server.unparsed(), buffer_pool::SMALL_READ_SIZE);
    let messages = std::iter::from_fn(|| server.poll_event().map(drop)).count();
    assert!(messages > 8, "{messages}");
}

/// Returns the number of reads that it takes to receive a message.
fn reads_of_a_message(endpoint: &mut Endpoint, socket: &Socket) -> usize {
    for reads in 1..10_000 {
        let mut read = endpoint.begin_read(usize::MAX);
        let result = read.read(socket, Mode::NonBlocking);
        endpoint.complete_read(read, result);
        while let Some(event) = endpoint.poll_event() {
            if matches!(event, Event::Message { .. } | Event::Fragment { fin: true, .. }) {
                return reads;
            }
        }
    }
    panic!("no message arrives");
}

/// After a large message, only the header of the next is read first, so that the rest can be read into its buffer.
/// Compressed and fragmented messages are still read with few calls.
#[test]
fn messages_without_a_destination_need_few_reads() {
    const SIZE: usize = 200_000;
    let random: Vec<u8> = (0..SIZE as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for delivery in [Delivery::Messages, Delivery::Fragments] {
        let (here, there) = sockets(Some(4 << 20));
        let params = Params {
            local_no_context_takeover: false,
            remote_no_context_takeover: false,
            local_window_bits: 15,
            remote_window_bits: 15,
            level: 6,
            memory_level: 8,
            threshold: 100,
        };
        let [mut sender, mut receiver] = [Side::Client, Side::Server].map(|side| {
            let connection = Connection::new(Config { deflate: Some(params), ..Config::new(side) });
            Endpoint::new(connection, None, &[], Vec::new(), Keepalive::new(None, None, Instant::now()))
        });
        receiver.set_delivery(delivery);
        let mut receive = |sender: &mut Endpoint| {
            sender.send_half_mut().flush(&here, Mode::NonBlocking).unwrap();
            assert_eq!(sender.send_half().queued(), 0);
            reads_of_a_message(&mut receiver, &there)
        };
        let kinds: [&dyn Fn(&mut Endpoint); 3] = [
            &|sender| sender.send_half_mut().send_message(MessageKind::Binary, &random, Some(false)).unwrap(),
            &|sender| sender.send_half_mut().send_message(MessageKind::Binary, &random, Some(true)).unwrap(),
            &|sender| {
                sender.send_half_mut().send_first_fragment(MessageKind::Binary, &random[..1000], Some(false)).unwrap();
                for piece in random[1000..].chunks(1000) {
                    sender.send_half_mut().send_fragment(piece, false).unwrap();
                }
                sender.send_half_mut().send_fragment(b"", true).unwrap();
            },
        ];
        for send in kinds {
            for before in kinds {
                before(&mut sender);
                receive(&mut sender);
                send(&mut sender);
                let reads = receive(&mut sender);
                assert!(reads <= 4, "{reads} reads");
            }
        }
    }
}

/// In an endless stream of messages, a pong is sent after the bytes that were queued when the ping arrived.
#[test]
fn pong_is_sent_inside_an_endless_stream() {
    let (mut ours, mut theirs) = (endpoint(Side::Server, None), endpoint(Side::Client, None));
    let (here, there) = sockets(Some(20_000));
    let fill = |ours: &mut Endpoint| {
        while ours.send_half().queued() < 500_000 {
            ours.send_half_mut().send_message(MessageKind::Binary, &[0; 50_000], None).unwrap();
        }
        let _ = ours.send_half_mut().flush(&here, Mode::NonBlocking);
    };
    fill(&mut ours);
    for payload in [b"one", b"two"] {
        theirs.send_half_mut().send_ping(payload).unwrap();
    }
    ours.receive_slice(&theirs.send_half_mut().take_output());
    while ours.poll_event().is_some() {}
    let mut taken = 0;
    let answer = 'read: loop {
        let mut read = theirs.begin_read(usize::MAX);
        let result = read.read(&there, Mode::NonBlocking);
        theirs.complete_read(read, result);
        while let Some(event) = theirs.poll_event() {
            match event {
                Event::Pong(payload) => break 'read payload.as_slice().to_vec(),
                Event::Message { .. } => taken += 50_000,
                _ => {}
            }
        }
        fill(&mut ours);
        assert!(ours.send_half().queued() > 100_000);
        assert!(taken < 2_000_000, "no pong after {taken} bytes");
    };
    // RFC 6455 5.5.3: it is enough to answer the last of several pings.
    assert_eq!(answer, b"two");
}
