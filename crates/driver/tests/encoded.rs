//! [`Encoded`] and [`FrameBatch`]: messages that are encoded once for many connections.

#![allow(clippy::unwrap_used)] // tests fail by panicking

mod support;

use std::time::Instant;

use support::endpoint;
use wirespeed_driver::encoded::{Encoded, FrameBatch};
use wirespeed_driver::protocol::deflate::Params;
use wirespeed_driver::protocol::{Config, Connection, Event, MessageKind, SendError, Side};
use wirespeed_driver::{Endpoint, Keepalive};

const PARAMS: Params = Params {
    local_no_context_takeover: false,
    remote_no_context_takeover: false,
    local_window_bits: 15,
    remote_window_bits: 15,
    level: 6,
    memory_level: 5,
    threshold: 100,
};

fn compressing(side: Side, params: Params) -> Endpoint {
    let connection = Connection::new(Config { deflate: Some(params), ..Config::new(side) });
    Endpoint::new(connection, None, &[], Vec::new(), Keepalive::new(None, None, Instant::now()))
}

/// Sends the message from one endpoint to the other. Returns the received payload and the number of bytes sent.
fn deliver(message: &Encoded, from: &mut Endpoint, to: &mut Endpoint) -> (Vec<u8>, usize) {
    message.send(from.send_half_mut()).unwrap();
    let bytes = from.send_half_mut().take_output();
    to.receive_slice(&bytes);
    let Some(Event::Message { kind, payload }) = to.poll_event() else { panic!("no message") };
    assert_eq!(kind, message.kind());
    (payload.as_slice().to_vec(), bytes.len())
}

#[test]
fn message_is_masked_and_compressed_per_connection() {
    for len in [0_usize, 1, 99, 100, 125, 126, 70_000] {
        let text = "the same again ".repeat(len.div_ceil(15)).as_bytes()[..len].to_vec();
        let message = Encoded::new(MessageKind::Text, &text).unwrap();
        assert_eq!((message.payload(), message.kind()), (&text[..], MessageKind::Text));
        let (mut server, mut client) = (endpoint(Side::Server, None), endpoint(Side::Client, None));
        for _ in 0..2 {
            assert_eq!(deliver(&message, &mut server, &mut client), (text.clone(), message.size()));
            // Frames of clients are masked, each with another key (RFC 6455 5.3).
            assert_eq!(deliver(&message, &mut client, &mut server), (text.clone(), message.size() + 4));
        }
        for bits in [9, 15] {
            let (ours, theirs) =
                (Params { local_window_bits: bits, ..PARAMS }, Params { remote_window_bits: bits, ..PARAMS });
            let (mut server, mut client) = (compressing(Side::Server, ours), compressing(Side::Client, theirs));
            for _ in 0..2 {
                let (received, bytes) = deliver(&message, &mut server, &mut client);
                assert_eq!(received, text);
                assert_eq!(bytes < message.size(), len >= PARAMS.threshold, "{bytes} of {len}");
            }
        }
    }
}

#[test]
fn closing_connection_rejects_the_message() {
    let message = Encoded::new(MessageKind::Binary, b"late").unwrap();
    let mut server = endpoint(Side::Server, None);
    server.send_half_mut().send_close(None, "").unwrap();
    let before = server.send_half().queued();
    assert_eq!(message.send(server.send_half_mut()), Err(SendError::NotOpen));
    assert_eq!((server.send_half().queued(), server.send_half().stats().messages_sent), (before, 0));
}

#[test]
fn batch_sends_all_its_messages() {
    let payloads: Vec<Vec<u8>> = [0, 1, 125, 126, 3000, 2000].iter().map(|len| vec![*len as u8; *len]).collect();
    let messages: Vec<_> = payloads.iter().map(|one| Encoded::new(MessageKind::Binary, one).unwrap()).collect();
    let batch = FrameBatch::new(messages.iter());
    assert_eq!((batch.len(), batch.size()), (6, messages.iter().map(Encoded::size).sum()));
    for without in 0..=6 {
        let (mut server, mut client) = (endpoint(Side::Server, None), endpoint(Side::Client, None));
        assert!(server.send_half().accepts_batches() && !client.send_half().accepts_batches());
        messages[0].send(server.send_half_mut()).unwrap(); // a message is queued before
        server.send_half_mut().send_batch(&batch, without).unwrap();
        messages[1].send(server.send_half_mut()).unwrap();
        let stats = server.send_half().stats();
        let rest: Vec<_> = [&payloads[..1], &payloads[without..], &payloads[1..2]].concat();
        assert_eq!(stats.messages_sent, rest.len() as u64);
        assert_eq!(stats.bytes_sent, rest.iter().map(|one| one.len() as u64).sum::<u64>());
        client.receive_slice(&server.send_half_mut().take_output());
        for payload in rest {
            let Some(Event::Message { payload: got, .. }) = client.poll_event() else { panic!("no message") };
            assert_eq!(got.as_slice(), payload);
        }
    }
    assert!(!compressing(Side::Server, PARAMS).send_half().accepts_batches());
    let mut closing = endpoint(Side::Server, None);
    closing.send_half_mut().send_close(None, "").unwrap();
    assert_eq!(closing.send_half_mut().send_batch(&batch, 0), Err(SendError::NotOpen));
}
