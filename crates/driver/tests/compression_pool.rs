//! The budget for compressors and decompressors. A separate program, as the budget is per process.

#![allow(clippy::unwrap_used)] // tests fail by panicking

mod support;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use wirespeed_driver::compression_pool::{self, BUDGET, Reservation};
use wirespeed_driver::frames::Frames;
use wirespeed_driver::protocol::deflate::Params;
use wirespeed_driver::protocol::{Config, Connection, Event, MessageKind, Payload, Side};
use wirespeed_driver::{Endpoint, Keepalive};

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

fn endpoint(side: Side) -> Endpoint {
    let connection = Connection::new(Config { deflate: Some(PARAMS), ..Config::new(side) });
    Endpoint::new(connection, None, &[], Vec::new(), Keepalive::new(None, None, Instant::now()))
}

/// Sends a message from one endpoint to the other. Returns the number of bytes sent.
fn send(from: &mut Endpoint, to: &mut Endpoint) -> usize {
    from.send_half_mut().send_message(MessageKind::Text, TEXT, None).unwrap();
    let bytes = from.send_half_mut().take_output();
    to.receive_slice(&bytes);
    let mut received = 0;
    while let Some(event) = to.poll_event() {
        if let Event::Message { payload: Payload::Buffer(text), .. } = event {
            assert_eq!(text, TEXT);
            received += 1;
        }
    }
    assert_eq!(received, 1);
    bytes.len()
}

/// Memory of the compressor of one endpoint, 16 + 128 + 16 KiB; and with the decompressor of the other.
const COMPRESSOR: usize = 160 << 10;
const PAIR: usize = COMPRESSOR + (48 << 10);

fn send_all(pairs: &mut [(Endpoint, Endpoint)]) -> Vec<usize> {
    pairs.iter_mut().map(|(from, to)| send(from, to)).collect()
}

/// Returns whether the number of compressors is plausible if the whole budget is used, with at most one decompressor for
/// each.
fn within(compressors: usize) -> bool {
    (BUDGET * 9 / 10 / PAIR..=BUDGET / COMPRESSOR).contains(&compressors)
}

static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn messages_are_compressed_independently_above_the_budget() {
    let _alone = ALONE.lock().unwrap();
    let mut pairs: Vec<_> = (0..600).map(|_| (endpoint(Side::Server), endpoint(Side::Client))).collect();
    let alone = send_all(&mut pairs)[0];
    send_all(&mut pairs);
    let keep: Vec<_> = send_all(&mut pairs).iter().map(|size| *size < alone).collect();
    for _ in 0..3 {
        let now: Vec<_> = send_all(&mut pairs).iter().map(|size| *size < alone).collect();
        assert_eq!(now, keep, "connections keep their compressors");
    }
    assert!(keep[..BUDGET / PAIR].iter().all(|keeps| *keeps), "the first connections get compressors");
    // Decompressors are smaller, so more of them fit.
    let keeping = keep.iter().filter(|keeps| **keeps).count();
    assert!(within(keeping), "{keeping}");
    assert!(Reservation::take(COMPRESSOR).is_none());

    // Idle and closed connections release memory for others. Idle ones can continue.
    for (from, to) in &mut pairs[..100] {
        from.send_half_mut().release_idle();
        to.send_half_mut().release_idle();
    }
    pairs.drain(100..200);
    send_all(&mut pairs[100..]);
    let sizes = send_all(&mut pairs[100..]);
    let keeping = sizes.iter().filter(|size| **size < alone).count();
    assert!(within(keeping), "{keeping}");
    send_all(&mut pairs[..100]);
    drop(pairs);
    assert!(Reservation::take(BUDGET).is_some());

    // A changed budget applies to existing connections.
    let mut pairs: Vec<_> = (0..20).map(|_| (endpoint(Side::Server), endpoint(Side::Client))).collect();
    send_all(&mut pairs);
    for count in [10, 0, 3] {
        compression_pool::set_budget(count * PAIR);
        assert_eq!(compression_pool::budget(), count * PAIR);
        send_all(&mut pairs);
        send_all(&mut pairs);
        let keeping = send_all(&mut pairs).iter().filter(|size| **size < alone).count();
        assert!((count..=count + 1).contains(&keeping), "{keeping} of {count}");
        assert!(!compression_pool::is_exceeded());
    }
    compression_pool::set_budget(BUDGET);
    send_all(&mut pairs);
    assert!(send_all(&mut pairs).iter().all(|size| *size < alone));

    // Memory that threads reserve for later connections is returned when they end.
    drop(pairs);
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(|| drop(Reservation::take(COMPRESSOR)))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(Reservation::take(BUDGET).is_some());
}

/// After a shared message, the compressor is reset and its memory is reused for the next message.
#[test]
fn reset_compressor_is_reused() {
    let _alone = ALONE.lock().unwrap();
    let (mut from, mut to) = (endpoint(Side::Server), endpoint(Side::Client));
    let mut sizes = Vec::new();
    for turn in 0..3 {
        sizes.push(send(&mut from, &mut to));
        sizes.push(send(&mut from, &mut to));
        // As `broadcast` encodes it: compressed independently.
        let frames = independent_frames();
        from.send_half_mut().send_shared(&frames, TEXT.len() as u64, true).unwrap();
        to.receive_slice(&from.send_half_mut().take_output());
        assert!(matches!(to.poll_event(), Some(Event::Message { .. })), "turn {turn}");
        assert!(to.poll_event().is_none());
    }
    assert_eq!(sizes[..2], sizes[2..4]);
    assert!(sizes[1] < sizes[0]);
}

fn independent_frames() -> Arc<Frames> {
    let mut encoder = endpoint(Side::Server);
    encoder.send_half_mut().send_message(MessageKind::Text, TEXT, None).unwrap();
    Arc::new(encoder.send_half_mut().take_output().into())
}
