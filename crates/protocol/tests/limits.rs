//! Limits on messages, to the byte.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(unsafe_code, reason = "Connection::put_destination takes the caller's word for initialised bytes")]

mod support;

use std::cell::Cell;
use std::mem::MaybeUninit;

use support::inflate::stored;
use support::wire::{BINARY, LengthForm, TEXT, header};
use support::{
    Frame, KEY, Rng, SIDES, Seen, connection_with, feed, feed_all, fragments, params, sparse, stream_to, to,
};
use wirespeed_protocol::{
    Config, Connection, Event, Fault, Limits, MessageKind, OutOfMemory, Payload, PayloadBuffer, Side,
};

const NO_LIMITS: Limits = Limits { message_size: None, fragment_size: None, fragments: None };

fn limited(side: Side, limits: Limits, deflate: bool) -> Connection {
    connection_with(side, limits, deflate.then(|| params(15, false)))
}

#[test]
fn message_size_is_exact() {
    for side in SIDES {
        for limit in [0, 1, 125, 126, 1000, 70_000].into_iter().step_by(sparse(3)) {
            let limits = Limits { message_size: Some(limit), ..NO_LIMITS };
            let fits = vec![b'x'; limit];
            let over = vec![b'x'; limit + 1];
            let fault = Fault::MessageTooBig { size: Some(limit as u64 + 1), limit };
            for opcode in [TEXT, BINARY] {
                for size in [1, 1000, usize::MAX] {
                    let bytes = to(side, Frame::new(opcode, &fits));
                    let events = feed_all(&mut limited(side, limits, false), bytes.chunks(size.min(bytes.len())));
                    assert_eq!(events.len(), 1);
                    assert!(!matches!(events[0], Seen::Fault(_)), "{limit}");
                }
                // The header alone is rejected.
                let bytes = to(side, Frame::new(opcode, &over));
                let events = feed(&mut limited(side, limits, false), &bytes[..bytes.len() - limit - 1]);
                assert_eq!(events, [Seen::Fault(fault)]);
            }
        }
    }
}

#[test]
fn message_size_counts_all_fragments() {
    let limits = Limits { message_size: Some(10), ..NO_LIMITS };
    for side in SIDES {
        for streamed in [false, true] {
            let make = || {
                let connection = limited(side, limits, false);
                if streamed { fragments(connection) } else { connection }
            };
            let parts = |last: &[u8]| {
                stream_to(
                    side,
                    [Frame::binary("1234").open(), Frame::continuation("5678").open(), Frame::continuation(last)],
                )
            };
            let mut receiver = make();
            let events = feed(&mut receiver, &parts(b"90"));
            assert!(!matches!(events.last(), Some(Seen::Fault(_))), "{events:?}");
            // The count restarts with each message.
            let again = feed(&mut receiver, &parts(b"90"));
            assert_eq!(events, again);

            let events = feed(&mut make(), &parts(b"90a"));
            let fault = Seen::Fault(Fault::MessageTooBig { size: Some(11), limit: 10 });
            assert_eq!(events.last(), Some(&fault));
            assert_eq!(events.len(), if streamed { 3 } else { 1 });
        }
    }
}

#[test]
fn huge_announced_sizes_do_not_overflow() {
    for side in SIDES {
        let key = (side == Side::Server).then_some(KEY);
        let bytes =
            [to(side, Frame::binary("12345").open()), header(true, 0, 0, key, (1 << 63) - 1, LengthForm::Eight)]
                .concat();
        // A sum above the maximum of u64 must not wrap to a small number.
        let limits = Limits { message_size: Some(usize::MAX), ..NO_LIMITS };
        let events = feed(&mut limited(side, limits, false), &bytes);
        assert_eq!(events, []);
        let limits = Limits { message_size: Some(1000), ..NO_LIMITS };
        let events = feed(&mut limited(side, limits, false), &bytes);
        assert_eq!(events, [Seen::Fault(Fault::MessageTooBig { size: Some((1 << 63) + 4), limit: 1000 })]);
    }
}

/// The limit applies to the decompressed size: in one frame, in fragments and across blocks.
#[test]
fn decompressed_size_is_exact() {
    for side in SIDES {
        for limit in [0, 1, 100, 1000, 1023, 1024, 1025, 5000, 70_000].into_iter().step_by(sparse(5)) {
            let limits = Limits { message_size: Some(limit), ..NO_LIMITS };
            for (len, fits) in [(limit, true), (limit + 1, false), (limit + 2, false), (3 * limit + 7, false)] {
                let payload = Rng::new(limit as u64).prose(len);
                for compressed in [stored(&payload), compress(&payload)] {
                    for streamed in [false, true] {
                        let make = || {
                            let connection = limited(side, limits, true);
                            if streamed { fragments(connection) } else { connection }
                        };
                        let half = compressed.len() / 2;
                        let one = to(side, Frame::binary(&compressed).rsv(4));
                        let two = stream_to(
                            side,
                            [
                                Frame::binary(&compressed[..half]).rsv(4).open(),
                                Frame::continuation(&compressed[half..]),
                            ],
                        );
                        for bytes in [one, two] {
                            for size in [7, 4096, usize::MAX].into_iter().skip(sparse(3) - 1) {
                                let events = feed_all(&mut make(), bytes.chunks(size.min(bytes.len())));
                                if fits {
                                    let received: Vec<u8> = events.iter().flat_map(payload_of).collect();
                                    assert!(received == payload, "{limit}");
                                } else {
                                    let fault = Fault::MessageTooBig { size: None, limit };
                                    assert_eq!(events.last(), Some(&Seen::Fault(fault)), "{limit} {len}");
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn payload_of(event: &Seen) -> Vec<u8> {
    match event {
        Seen::Message(_, bytes) | Seen::Fragment(_, bytes, _) => bytes.clone(),
        other => panic!("{other:?}"),
    }
}

/// Returns the compressed payload of a message, without its frame header.
fn compress(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut sender = connection_with(Side::Server, NO_LIMITS, Some(params(15, false)));
    sender.send_message(MessageKind::Binary, payload, Some(true), || unreachable!(), &mut out).unwrap();
    Frame::decode_all(&out).remove(0).payload
}

/// A buffer that records its largest capacity.
struct Measured(Vec<u8>);

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

impl Measured {
    fn measure(&self) {
        LARGEST.set(LARGEST.get().max(self.0.capacity()));
    }

    fn take_largest() -> usize {
        LARGEST.replace(0)
    }
}

impl PayloadBuffer for Measured {
    fn with_capacity(kind: MessageKind, expected: usize) -> Result<Self, OutOfMemory> {
        let buffer = Self(<Vec<u8> as PayloadBuffer>::with_capacity(kind, expected)?);
        buffer.measure();
        Ok(buffer)
    }

    fn as_slice(&self) -> &[u8] {
        &self.0
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn spare(&mut self, additional: usize) -> Result<&mut [MaybeUninit<u8>], OutOfMemory> {
        self.0.spare(additional)?;
        self.measure();
        Ok(self.0.spare_capacity_mut())
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        self.0.room()
    }

    unsafe fn advance(&mut self, written: usize) {
        // SAFETY: the caller guarantees it.
        unsafe { self.0.advance(written) };
    }
}

/// A bomb of 64 MiB of zeros in 64 KiB is rejected with no more memory than the limit, or twice as much because of the
/// growth of a vector.
#[test]
#[cfg_attr(miri, ignore = "hours: 64 MiB are compressed")]
fn decompression_bomb_is_rejected_at_the_limit() {
    let bomb = compress(&vec![0; 64 << 20]);
    assert!(bomb.len() < 128 << 10);
    for side in SIDES {
        for limit in [0, 1000, 1 << 20] {
            for frames in [
                vec![Frame::binary(&bomb).rsv(4)],
                vec![Frame::binary("").rsv(4).open(), Frame::continuation(&bomb).open()],
            ] {
                let limits = Limits { message_size: Some(limit), ..Limits::default() };
                let config = Config { side, limits, deflate: Some(params(15, false)) };
                let mut receiver = Connection::<Measured>::new(config);
                let mut bytes = stream_to(side, frames);
                let mut input = bytes.as_mut_slice();
                let fault = receiver.receive(&mut input).map(drop).unwrap_err();
                assert_eq!(fault, Fault::MessageTooBig { size: None, limit });
                let largest = Measured::take_largest();
                assert!(largest <= 2 * limit + 64, "{largest} bytes for a limit of {limit}");
            }
        }
    }
}

/// A frame that announces a large payload and sends little of it gets a small buffer.
#[test]
fn announced_sizes_are_not_allocated_in_advance() {
    for side in SIDES {
        let key = (side == Side::Server).then_some(KEY);
        let mut bytes = header(true, 0, BINARY, key, 1 << 40, LengthForm::Eight);
        bytes.extend([0; 100]);
        let config = Config { side, limits: NO_LIMITS, deflate: None };
        let mut receiver = Connection::<Measured>::new(config);
        let mut input = bytes.as_mut_slice();
        assert!(receiver.receive(&mut input).unwrap().is_none());
        assert!(Measured::take_largest() <= 16 << 20);
        // A destination is no larger either.
        let destination = receiver.take_destination(1 << 20).unwrap();
        assert!(Measured::take_largest() <= 16 << 20);
        drop(destination);
    }
}

#[test]
fn fragment_size_applies_to_each_fragment() {
    let limits = Limits { fragment_size: Some(8), ..NO_LIMITS };
    for side in SIDES {
        let fault = |size| Seen::Fault(Fault::FragmentTooBig { size, limit: 8 });
        let fits = stream_to(side, [Frame::binary([1; 8]).open(), Frame::continuation([2; 8])]);
        assert_eq!(feed(&mut limited(side, limits, false), &fits).len(), 1);
        let over = stream_to(side, [Frame::binary([1; 8]).open(), Frame::continuation([2; 9])]);
        assert_eq!(feed(&mut limited(side, limits, false), &over), [fault(Some(9))]);
        let whole = to(side, Frame::text([b'x'; 9]));
        assert_eq!(feed(&mut limited(side, limits, false), &whole), [fault(Some(9))]);
        // Control frames are not fragments.
        assert_eq!(feed(&mut limited(side, limits, false), &to(side, Frame::ping([0; 100]))).len(), 1);

        // After decompression, the limit applies with each kind of delivery.
        let large = to(side, Frame::binary(compress(&[7; 100])).rsv(4));
        assert!(large.len() < 8 + 8);
        assert_eq!(feed(&mut limited(side, limits, true), &large), [fault(None)]);
        assert_eq!(feed(&mut fragments(limited(side, limits, true)), &large), [fault(None)]);
        // The error names the smaller of two limits.
        let both = Limits { message_size: Some(4), ..limits };
        let events = feed(&mut fragments(limited(side, both, true)), &large);
        assert_eq!(events, [Seen::Fault(Fault::MessageTooBig { size: None, limit: 4 })]);
    }
}

/// The limit applies to the whole of each decompressed fragment, independent of its chunks and of earlier fragments.
#[test]
fn fragment_size_applies_after_decompression() {
    let limits = Limits { fragment_size: Some(20), ..NO_LIMITS };
    let part = |len| [compress(&vec![7; len]), vec![0, 0, 0xFF, 0xFF]].concat();
    for side in SIDES {
        let message = |last| {
            let first = Frame::binary(part(20)).rsv(4).open();
            stream_to(
                side,
                [first, Frame::continuation(part(20)).open(), Frame::continuation(compress(&vec![7; last]))],
            )
        };
        let fault = Seen::Fault(Fault::FragmentTooBig { size: None, limit: 20 });
        for chunk in [1, 3, 1000] {
            let mut receiver = limited(side, limits, true);
            assert_eq!(feed_all(&mut receiver, message(20).chunks(chunk)), [Seen::binary(&[7; 60])]);
            let mut receiver = limited(side, limits, true);
            assert_eq!(feed_all(&mut receiver, message(21).chunks(chunk)), std::slice::from_ref(&fault));
            let events = feed_all(&mut fragments(limited(side, limits, true)), message(21).chunks(chunk));
            assert_eq!(events.len(), 3);
            assert_eq!(events.last(), Some(&fault));
        }
        // The delivery changes after the first fragment.
        for last in [20, 21] {
            let (mut receiver, bytes) = (limited(side, limits, true), message(last));
            let at = to(side, Frame::binary(part(20)).rsv(4).open()).len();
            assert!(feed(&mut receiver, &bytes[..at]).is_empty());
            let mut receiver = fragments(receiver);
            let events = feed(&mut receiver, &bytes[at..]);
            assert_eq!(events.len(), 3);
            assert_eq!(events.last() == Some(&fault), last == 21);
        }
    }
}

#[test]
fn number_of_fragments_is_limited() {
    for side in SIDES {
        for limit in [1, 2, 4096 / sparse(64) as u32] {
            let limits = Limits { fragments: Some(limit), ..Limits::default() };
            let frames = |count: u32| {
                (0..count).map(move |index| {
                    let frame = if index == 0 { Frame::text("") } else { Frame::continuation("") };
                    Frame { fin: index + 1 == count, ..frame }
                })
            };
            for streamed in [false, true] {
                let make =
                    || if streamed { fragments(limited(side, limits, false)) } else { limited(side, limits, false) };
                let mut receiver = make();
                for _ in 0..2 {
                    let events = feed(&mut receiver, &stream_to(side, frames(limit)));
                    assert!(!matches!(events.last(), None | Some(Seen::Fault(_))), "{limit}");
                }
                let events = feed(&mut make(), &stream_to(side, frames(limit + 1)));
                assert_eq!(events.last(), Some(&Seen::Fault(Fault::TooManyFragments { limit })));
                // An endless message is rejected before its last fragment.
                let endless = stream_to(side, frames(limit + 2).map(Frame::open));
                let events = feed(&mut make(), &endless);
                assert_eq!(events.last(), Some(&Seen::Fault(Fault::TooManyFragments { limit })));
            }
        }
        // Without a limit any number is accepted.
        let count = 10_000 / sparse(50);
        let many = (0..count).map(|index| if index == 0 { Frame::text("") } else { Frame::continuation("a") }.open());
        let bytes = stream_to(side, many.chain([Frame::continuation("")]));
        let Seen::Message(_, text) = &feed(&mut limited(side, NO_LIMITS, false), &bytes)[0] else { panic!() };
        assert_eq!(text.len(), count - 1);
    }
}

/// Control frames inside a message take no memory and do not count towards its limits.
#[test]
fn control_frames_do_not_count_towards_limits() {
    for side in SIDES {
        let limits = Limits { message_size: Some(4), fragments: Some(2), fragment_size: Some(2) };
        let config = Config { side, limits, deflate: None };
        let mut receiver = Connection::<Measured>::new(config);
        let mut feed = |mut bytes: Vec<u8>| {
            let mut input = bytes.as_mut_slice();
            let mut events = 0;
            while receiver.receive(&mut input).unwrap().is_some() {
                events += 1;
            }
            events
        };
        assert_eq!(feed(to(side, Frame::text("ab").open())), 0);
        Measured::take_largest();
        let count = 1000 / sparse(100);
        let flood = stream_to(side, (0..count).map(|_| Frame::ping([b'x'; 125])));
        for _ in 0..20 {
            assert_eq!(feed(flood.clone()), count);
        }
        assert_eq!(Measured::take_largest(), 0);
        assert_eq!(feed(to(side, Frame::continuation("cd"))), 1);
    }
}

/// A buffer that never gets memory, which must be an error and not a panic.
#[derive(Debug)]
struct NoMemory;

impl PayloadBuffer for NoMemory {
    fn with_capacity(_: MessageKind, _: usize) -> Result<Self, OutOfMemory> {
        Err(OutOfMemory)
    }

    fn as_slice(&self) -> &[u8] {
        &[]
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut []
    }

    fn spare(&mut self, _: usize) -> Result<&mut [MaybeUninit<u8>], OutOfMemory> {
        Err(OutOfMemory)
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        &mut []
    }

    unsafe fn advance(&mut self, _: usize) {}
}

#[test]
fn missing_memory_is_an_error() {
    for side in SIDES {
        let mut receiver = Connection::<NoMemory>::new(Config::new(side));
        let mut bytes = stream_to(side, [Frame::text("in place"), Frame::text("not").open()]);
        let mut input = bytes.as_mut_slice();
        assert!(matches!(receiver.receive(&mut input), Ok(Some(Event::Message { .. }))));
        assert_eq!(receiver.receive(&mut input).unwrap_err(), Fault::OutOfMemory);
    }
}

/// A buffer with room for a few bytes, which loses its contents when it has to grow.
#[derive(Debug)]
struct Forgetful(Vec<u8>);

impl PayloadBuffer for Forgetful {
    fn with_capacity(_: MessageKind, _: usize) -> Result<Self, OutOfMemory> {
        Ok(Self(Vec::with_capacity(8)))
    }

    fn as_slice(&self) -> &[u8] {
        &self.0
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn spare(&mut self, additional: usize) -> Result<&mut [MaybeUninit<u8>], OutOfMemory> {
        if self.0.len() + additional > 8 {
            self.0.clear();
            return Err(OutOfMemory);
        }
        Ok(self.room())
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        self.0.spare_capacity_mut()
    }

    unsafe fn advance(&mut self, written: usize) {
        // SAFETY: the caller guarantees it.
        unsafe { self.0.set_len(self.0.len() + written) }
    }
}

#[test]
fn missing_memory_inside_a_message_is_an_error() {
    for side in SIDES {
        for opcode in [TEXT, BINARY] {
            let mut receiver = Connection::<Forgetful>::new(Config::new(side));
            let mut bytes = stream_to(side, [Frame::new(opcode, b"12345678").open(), Frame::continuation("9")]);
            let mut input = bytes.as_mut_slice();
            assert_eq!(receiver.receive(&mut input).unwrap_err(), Fault::OutOfMemory);
        }
    }
}

/// The defaults are 1 MiB per message and 4096 fragments.
#[test]
fn default_limits() {
    let limits = Limits::default();
    assert_eq!((limits.message_size, limits.fragment_size, limits.fragments), (Some(1 << 20), None, Some(4096)));
}

/// A payload that is delivered in place needs no buffer.
#[test]
fn whole_frames_need_no_buffer() {
    let mut receiver = Connection::<NoMemory>::new(Config::new(Side::Client));
    let mut bytes = to(Side::Client, Frame::binary(vec![1; 1 << 20]));
    let mut input = bytes.as_mut_slice();
    let event = receiver.receive(&mut input).unwrap();
    assert!(matches!(event, Some(Event::Message { payload: Payload::Slice(slice), .. }) if slice.len() == 1 << 20));
}
