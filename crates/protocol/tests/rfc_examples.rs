//! The examples of RFC 6455 5.7 and RFC 7692 7.2.3, sent and received, split at every byte.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use support::{KEY, Seen, connection, connection_with, feed, params, receive_every_split};
use wirespeed_protocol::{CloseCode, Connection, Limits, MessageKind, Side};

fn plain(side: Side) -> impl Fn() -> Connection {
    move || connection(side)
}

/// Returns a connection with permessage-deflate and context takeover in both directions.
fn deflated() -> Connection {
    connection_with(Side::Client, Limits::default(), Some(params(15, false)))
}

#[test]
fn single_frame_unmasked_text() {
    let bytes = [0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
    assert_eq!(receive_every_split(plain(Side::Client), &bytes), [Seen::text("Hello")]);
    let mut out = Vec::new();
    connection(Side::Server).send_message(MessageKind::Text, b"Hello", None, || unreachable!(), &mut out).unwrap();
    assert_eq!(out, bytes);
}

#[test]
fn single_frame_masked_text() {
    let bytes = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    assert_eq!(receive_every_split(plain(Side::Server), &bytes), [Seen::text("Hello")]);
    let mut out = Vec::new();
    connection(Side::Client).send_message(MessageKind::Text, b"Hello", None, || KEY, &mut out).unwrap();
    assert_eq!(out, bytes);
}

#[test]
fn fragmented_unmasked_text() {
    let bytes = [0x01, 0x03, 0x48, 0x65, 0x6c, 0x80, 0x02, 0x6c, 0x6f];
    assert_eq!(receive_every_split(plain(Side::Client), &bytes), [Seen::text("Hello")]);
    let mut server = connection(Side::Server);
    let mut out = Vec::new();
    server.send_first_fragment(MessageKind::Text, b"Hel", None, || unreachable!(), &mut out).unwrap();
    server.send_fragment(b"lo", true, || unreachable!(), &mut out).unwrap();
    assert_eq!(out, bytes);
}

#[test]
fn unmasked_ping_and_masked_pong() {
    let ping = [0x89, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
    let pong = [0x8a, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    assert_eq!(receive_every_split(plain(Side::Client), &ping), [Seen::Ping(b"Hello".to_vec())]);
    assert_eq!(receive_every_split(plain(Side::Server), &pong), [Seen::Pong(b"Hello".to_vec())]);
    let mut out = Vec::new();
    connection(Side::Server).send_ping(b"Hello", || unreachable!(), &mut out).unwrap();
    assert_eq!(out, ping);
    out.clear();
    connection(Side::Client).send_pong(b"Hello", || KEY, &mut out).unwrap();
    assert_eq!(out, pong);
}

#[test]
fn binary_of_256_bytes_and_of_64_kib() {
    for (header, len) in [(&[0x82, 0x7e, 0x01, 0x00][..], 256), (&[0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0][..], 65536)] {
        let payload = vec![0xA5; len];
        let bytes = [header, &payload].concat();
        assert_eq!(feed(&mut connection(Side::Client), &bytes), [Seen::binary(&payload)]);
        let mut out = Vec::new();
        connection(Side::Server)
            .send_message(MessageKind::Binary, &payload, None, || unreachable!(), &mut out)
            .unwrap();
        assert_eq!(out, bytes);
    }
}

/// RFC 7692 7.2.3.1, in one frame and in two.
#[test]
fn one_compressed_block() {
    let whole = [0xc1, 0x07, 0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
    assert_eq!(receive_every_split(deflated, &whole), [Seen::text("Hello")]);
    let fragments = [0x41, 0x03, 0xf2, 0x48, 0xcd, 0x80, 0x04, 0xc9, 0xc9, 0x07, 0x00];
    assert_eq!(receive_every_split(deflated, &fragments), [Seen::text("Hello")]);

    let mut server = connection_with(Side::Server, Limits::default(), Some(params(15, false)));
    let mut out = Vec::new();
    server.send_message(MessageKind::Text, b"Hello", None, || unreachable!(), &mut out).unwrap();
    assert_eq!(out, whole);
}

/// RFC 7692 7.2.3.2: the second message refers to the first, or does not.
#[test]
fn sharing_the_window() {
    let shared = [
        0xc1, 0x07, 0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, //
        0xc1, 0x05, 0xf2, 0x00, 0x11, 0x00, 0x00,
    ];
    assert_eq!(receive_every_split(deflated, &shared), [Seen::text("Hello"), Seen::text("Hello")]);

    let mut server = connection_with(Side::Server, Limits::default(), Some(params(15, false)));
    let mut out = Vec::new();
    for _ in 0..2 {
        server.send_message(MessageKind::Text, b"Hello", None, || unreachable!(), &mut out).unwrap();
    }
    assert_eq!(out, shared);
}

#[test]
fn not_sharing_the_window() {
    let alone = [0xc1, 0x07, 0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00].repeat(2);
    // A receiver that keeps its window can receive it too.
    for no_context_takeover in [false, true] {
        let make = || connection_with(Side::Client, Limits::default(), Some(params(15, no_context_takeover)));
        assert_eq!(receive_every_split(make, &alone), [Seen::text("Hello"), Seen::text("Hello")]);
    }
    let mut server = connection_with(Side::Server, Limits::default(), Some(params(15, true)));
    let mut out = Vec::new();
    for _ in 0..2 {
        server.send_message(MessageKind::Text, b"Hello", None, || unreachable!(), &mut out).unwrap();
    }
    assert_eq!(out, alone);
}

/// RFC 7692 7.2.3.3.
#[test]
fn a_block_without_compression() {
    let bytes = [0xc1, 0x0b, 0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00];
    assert_eq!(receive_every_split(deflated, &bytes), [Seen::text("Hello")]);
}

/// RFC 7692 7.2.3.4: the message ends the deflate stream; the next begins another.
#[test]
fn a_final_block() {
    let last = [0xc1, 0x08, 0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00];
    assert_eq!(receive_every_split(deflated, &last), [Seen::text("Hello")]);
    let more = [&last[..], &last, &[0xc1, 0x07, 0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]].concat();
    assert_eq!(receive_every_split(deflated, &more), vec![Seen::text("Hello"); 3]);
}

/// RFC 7692 7.2.3.5.
#[test]
fn two_blocks_in_one_message() {
    let bytes = [0xc1, 0x0d, 0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00];
    assert_eq!(receive_every_split(deflated, &bytes), [Seen::text("Hello")]);
}

/// RFC 7692 7.2.3.6: an empty message is one empty block, by itself or after a compressed fragment.
#[test]
fn an_empty_message() {
    assert_eq!(receive_every_split(deflated, &[0xc1, 0x01, 0x00]), [Seen::text("")]);
    let mut server = connection_with(Side::Server, Limits::default(), Some(params(15, false)));
    let mut out = Vec::new();
    server.send_first_fragment(MessageKind::Text, b"Hello", None, || unreachable!(), &mut out).unwrap();
    server.send_fragment(b"", true, || unreachable!(), &mut out).unwrap();
    assert_eq!(out[out.len() - 3..], [0x80, 0x01, 0x00]);
    assert_eq!(receive_every_split(deflated, &out), [Seen::text("Hello")]);
}

/// RFC 6455 5.5.1.
#[test]
fn a_close_frame_with_code_and_reason() {
    let bytes = [0x88, 0x05, 0x03, 0xe8, b'b', b'y', b'e'];
    let events = receive_every_split(plain(Side::Client), &bytes);
    let [Seen::Close(close)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((close.code, close.reason.as_str()), (Some(CloseCode::NORMAL_CLOSURE), "bye"));
    let mut out = Vec::new();
    connection(Side::Server).send_close(close.code, "bye", || unreachable!(), &mut out).unwrap();
    assert_eq!(out, bytes);
}
