//! The budget of the compressors and decompressors of a process. One test, in a process of its own.

#![allow(clippy::unwrap_used)] // tests fail by panicking

mod support;

use std::time::Instant;

use wirespeed_driver::contexts::{BUDGET, Context};
use wirespeed_driver::peer::PeerEvent;
use wirespeed_driver::protocol::deflate::Params;
use wirespeed_driver::protocol::{Config, Connection, MessageKind, Payload, Side};
use wirespeed_driver::{Keepalive, Peer};

const PARAMS: Params = Params {
    local_no_context_takeover: false,
    remote_no_context_takeover: false,
    local_window_bits: 12,
    remote_window_bits: 12,
    level: 6,
    memory_level: 5,
    threshold: 0,
};
const TEXT: &[u8] = b"the same words again and again, the same words again and again";

fn peer(side: Side) -> Peer {
    let connection = Connection::new(Config { deflate: Some(PARAMS), ..Config::new(side) });
    Peer::new(connection, None, &[], Vec::new(), Keepalive::new(None, None, Instant::now()))
}

/// Sends a message from one to the other; the bytes that it took.
fn send(from: &mut Peer, to: &mut Peer) -> usize {
    from.link.send_message(MessageKind::Text, TEXT, None).unwrap();
    let bytes = from.link.take_output();
    to.receive_slice(&bytes);
    let mut received = 0;
    while let Some(event) = to.poll_event() {
        if let PeerEvent::Message { payload: Payload::Buffer(text), .. } = event {
            assert_eq!(text, TEXT);
            received += 1;
        }
    }
    assert_eq!(received, 1);
    bytes.len()
}

/// Of a pair: the compressor of one end, 16 + 128 + 16 KiB, and the decompressor of the other.
const COMPRESSOR: usize = 160 << 10;
const PAIR: usize = COMPRESSOR + (48 << 10);

fn send_all(pairs: &mut [(Peer, Peer)]) -> Vec<usize> {
    pairs.iter_mut().map(|(from, to)| send(from, to)).collect()
}

#[test]
fn beyond_the_budget_each_message_is_compressed_by_itself() {
    let mut pairs: Vec<_> = (0..600).map(|_| (peer(Side::Server), peer(Side::Client))).collect();
    let alone = send_all(&mut pairs)[0];
    for _ in 0..3 {
        let sizes = send_all(&mut pairs);
        let keeping = sizes.iter().take_while(|size| **size < alone).count();
        assert!((BUDGET / PAIR..=BUDGET / PAIR + 1).contains(&keeping), "{keeping}");
        assert!(sizes[keeping..].iter().all(|size| *size == alone), "who comes first keeps its own");
    }
    assert!(Context::take(COMPRESSOR).is_none());

    // Who is idle, or gone, leaves room for others, and goes on where it was.
    for (from, to) in &mut pairs[..100] {
        from.link.release_idle();
        to.link.release_idle();
    }
    pairs.drain(100..200);
    send_all(&mut pairs[100..]);
    let sizes = send_all(&mut pairs[100..]);
    let keeping = sizes.iter().filter(|size| **size < alone).count();
    assert!((BUDGET / PAIR..=BUDGET / PAIR + 1).contains(&keeping), "{keeping}");
    send_all(&mut pairs[..100]);
    drop(pairs);
    assert!(Context::take(BUDGET).is_some());
}
