//! Helpers of several test suites: a simple codec of frames, a simple inflater, events that own their bytes, a generator
//! of reproducible bytes. They follow the RFCs and share no code with the crate, to be independent of its errors.

#![allow(dead_code, unreachable_pub, reason = "each suite uses its own part")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

pub mod inflate;
pub mod model;
pub mod wire;

use wirespeed_protocol::deflate::Params;
use wirespeed_protocol::{CloseFrame, Config, Connection, Delivery, Event, Fault, Limits, MessageKind, Payload, Side};

pub use wire::Frame;

/// The key of RFC 6455 5.7.
pub const KEY: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];

pub const SIDES: [Side; 2] = [Side::Client, Side::Server];

/// An event that owns its bytes, or the fault that failed the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Message(MessageKind, Vec<u8>),
    Fragment(MessageKind, Vec<u8>, bool),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(CloseFrame),
    Fault(Fault),
}

impl Seen {
    pub fn text(text: &str) -> Self {
        Self::Message(MessageKind::Text, text.as_bytes().to_vec())
    }

    pub fn binary(bytes: &[u8]) -> Self {
        Self::Message(MessageKind::Binary, bytes.to_vec())
    }
}

pub fn owned(payload: Payload<'_, Vec<u8>>) -> Vec<u8> {
    match payload {
        Payload::Slice(slice) => slice.to_vec(),
        Payload::Buffer(buffer) => buffer,
    }
}

pub fn seen(event: Event<'_, Vec<u8>>) -> Seen {
    match event {
        Event::Message { kind, payload } => Seen::Message(kind, owned(payload)),
        Event::Fragment { kind, payload, fin } => Seen::Fragment(kind, owned(payload), fin),
        Event::Ping(payload) => Seen::Ping(payload.as_slice().to_vec()),
        Event::Pong(payload) => Seen::Pong(payload.as_slice().to_vec()),
        Event::Close(close) => Seen::Close(close),
        other => panic!("unknown event: {other:?}"),
    }
}

pub fn connection(side: Side) -> Connection {
    Connection::new(Config::new(side))
}

pub fn connection_with(side: Side, limits: Limits, deflate: Option<Params>) -> Connection {
    Connection::new(Config { side, limits, deflate })
}

/// Feeds a chunk and returns the events; a fault is the last.
pub fn feed(connection: &mut Connection, bytes: &[u8]) -> Vec<Seen> {
    let mut chunk = bytes.to_vec();
    let mut input = chunk.as_mut_slice();
    let mut events = Vec::new();
    loop {
        match connection.receive(&mut input) {
            Ok(Some(event)) => events.push(seen(event)),
            Ok(None) => {
                assert!(input.is_empty(), "receive answered None and left input");
                return events;
            }
            Err(fault) => {
                assert!(input.is_empty(), "a fault left input");
                assert_eq!(connection.fault(), Some(fault));
                events.push(Seen::Fault(fault));
                return events;
            }
        }
    }
}

/// Feeds the chunks and returns the events. Checks that none follows a fault or a close frame.
pub fn feed_all<'a>(connection: &mut Connection, chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Seen> {
    let mut events = Vec::new();
    for chunk in chunks {
        let over = matches!(events.last(), Some(Seen::Fault(_) | Seen::Close(_)));
        let fresh = feed(connection, chunk);
        assert!(!over || fresh.is_empty(), "an event behind the end: {fresh:?}");
        events.extend(fresh);
    }
    events
}

/// Receives a whole stream with a new connection.
pub fn receive(side: Side, bytes: &[u8]) -> Vec<Seen> {
    feed(&mut connection(side), bytes)
}

/// Returns the step of an exhaustive loop: 1, or `step` under Miri, which is a thousand times slower.
pub const fn sparse(step: usize) -> usize {
    if cfg!(miri) { step } else { 1 }
}

/// Returns the number of cases of a property: `count`, or `PROPTEST_CASES` under Miri.
pub fn cases(count: u32) -> u32 {
    if cfg!(miri) {
        std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(count)
    } else {
        count
    }
}

/// Receives `bytes` whole, byte by byte, in two parts at every split, and in three parts if they are few. Uses
/// connections made by `make` and expects the same events each time.
pub fn receive_every_split(make: impl Fn() -> Connection, bytes: &[u8]) -> Vec<Seen> {
    let whole = feed(&mut make(), bytes);
    assert_eq!(feed_all(&mut make(), bytes.chunks(1)), whole, "byte by byte");
    for split in (0..=bytes.len()).step_by(sparse(7)) {
        let (first, second) = bytes.split_at(split);
        assert_eq!(feed_all(&mut make(), [first, second]), whole, "split at {split}");
        if bytes.len() <= 48 {
            for again in (0..=second.len()).step_by(sparse(5)) {
                let (second, third) = second.split_at(again);
                assert_eq!(feed_all(&mut make(), [first, second, third]), whole, "split at {split} and {again} more");
            }
        }
    }
    whole
}

/// Works like [`receive_every_split`] for long streams: byte by byte and in two parts at the given splits.
pub fn receive_some_splits(
    make: impl Fn() -> Connection,
    bytes: &[u8],
    splits: impl IntoIterator<Item = usize>,
) -> Vec<Seen> {
    let whole = feed(&mut make(), bytes);
    assert_eq!(feed_all(&mut make(), bytes.chunks(1)), whole, "byte by byte");
    for split in splits.into_iter().step_by(sparse(31)) {
        let (first, second) = bytes.split_at(split);
        assert_eq!(feed_all(&mut make(), [first, second]), whole, "split at {split}");
    }
    whole
}

/// Encodes a frame that is sent to `side`: masked if the sender is the client.
pub fn to(side: Side, frame: Frame) -> Vec<u8> {
    match side {
        Side::Client => frame.encode(),
        Side::Server => frame.masked(KEY).encode(),
    }
}

pub fn stream_to(side: Side, frames: impl IntoIterator<Item = Frame>) -> Vec<u8> {
    frames.into_iter().flat_map(|frame| to(side, frame)).collect()
}

/// Returns parameters of permessage-deflate, the same in both directions.
pub fn params(window_bits: u8, no_context_takeover: bool) -> Params {
    Params {
        local_no_context_takeover: no_context_takeover,
        remote_no_context_takeover: no_context_takeover,
        local_window_bits: window_bits,
        remote_window_bits: window_bits,
        level: 6,
        memory_level: 5,
        threshold: 0,
    }
}

/// Switches the connection to delivery in fragments.
pub fn fragments(mut connection: Connection) -> Connection {
    connection.set_delivery(Delivery::Fragments);
    connection
}

/// A reproducible random generator, xorshift64*.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((self.next() >> 32) as usize) % bound
    }

    pub fn key(&mut self) -> [u8; 4] {
        (self.next() as u32).to_le_bytes()
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 56) as u8).collect()
    }

    /// Returns compressible bytes: words of a small vocabulary, literals and long runs, with matches at many distances.
    pub fn prose(&mut self, len: usize) -> Vec<u8> {
        let mut out: Vec<u8> = Vec::with_capacity(len + 300);
        while out.len() < len {
            match self.below(8) {
                0..4 => out.extend_from_slice(
                    [b"price ".as_slice(), b"{\"bid\":", b"volume", b"1.2345,", b" and "][self.below(5)],
                ),
                4 => {
                    let count = self.below(20);
                    out.extend(self.bytes(count));
                }
                5 => out.extend(std::iter::repeat_n(b'=', self.below(300))),
                _ if out.is_empty() => {}
                _ => {
                    let distance = 1 + self.below(out.len().min(40_000));
                    let count = 3 + self.below(60);
                    for _ in 0..count {
                        out.push(out[out.len() - distance]);
                    }
                }
            }
        }
        out.truncate(len);
        out
    }
}
