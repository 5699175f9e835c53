//! Limits on messages, to the byte, and destinations: buffers into which large payloads are read.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(unsafe_code, reason = "Connection::put_destination takes the caller's word for initialised bytes")]

mod support;

use std::cell::Cell;
use std::mem::MaybeUninit;

use support::inflate::stored;
use support::wire::{BINARY, LengthForm, TEXT, header};
use support::{
    Frame, KEY, Rng, SIDES, Seen, connection, connection_with, feed, feed_all, fragments, params, sparse, stream_to, to,
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

/// Receives a large payload as the driver does: reads `step` bytes at a time straight into the message's buffer.
fn through_destinations(receiver: &mut Connection, mut bytes: &[u8], first: usize, step: usize) -> Vec<Seen> {
    let take = |bytes: &mut &[u8], len: usize| {
        let (front, rest) = bytes.split_at(len.min(bytes.len()));
        *bytes = rest;
        front.to_vec()
    };
    let mut events = feed(receiver, &take(&mut bytes, first));
    loop {
        while let Some(mut destination) = receiver.take_destination(1) {
            let room = destination.room();
            assert!(!room.is_empty(), "a destination without room");
            let written = room.len().min(step).min(bytes.len());
            for (to, from) in room.iter_mut().zip(take(&mut bytes, written)) {
                to.write(from);
            }
            // SAFETY: the loop above initialised the first `written` bytes of the room.
            if let Err(fault) = unsafe { receiver.put_destination(destination, written) } {
                events.push(Seen::Fault(fault));
                return events;
            }
            if bytes.is_empty() {
                break;
            }
        }
        // A call with empty input returns the event that the destination completed.
        events.extend(feed(receiver, &[]));
        if bytes.is_empty() {
            return events;
        }
        events.extend(feed(receiver, &take(&mut bytes, step.min(11))));
    }
}

#[test]
fn payloads_can_be_read_into_a_destination() {
    let text = "aé€😀".repeat(3000 / sparse(10));
    let cut = text.len() * 7 / 30 + 1;
    let mut rng = Rng::new(5);
    let binary = rng.bytes(30_000 / sparse(10));
    for side in SIDES {
        let stream = stream_to(
            side,
            [
                Frame::text(&text),
                Frame::ping("between"),
                Frame::binary(&binary),
                Frame::binary(""),
                Frame::text(&text.as_bytes()[..cut]).open(),
                Frame::pong(""),
                Frame::continuation(&text.as_bytes()[cut..]),
                Frame::binary("short"),
            ],
        );
        let expected = feed(&mut connection(side), &stream);
        assert_eq!(expected.len(), 7);
        let streamed = feed(&mut fragments(connection(side)), &stream);
        assert_eq!(streamed.len(), 8);
        for first in [0, 1, 2, 5, 8, 9, 17, 100, 20_000, 30_010, stream.len()].into_iter().step_by(sparse(5)) {
            for step in [1, 3, 5, 4096, 100_000].into_iter().skip(sparse(4) - 1) {
                assert_eq!(through_destinations(&mut connection(side), &stream, first, step), expected);
                let mut receiver = fragments(connection(side));
                assert_eq!(through_destinations(&mut receiver, &stream, first, step), streamed);
            }
        }
    }
}

#[test]
fn invalid_text_in_a_destination_is_a_fault() {
    for side in SIDES {
        let mut text = vec![b'a'; 5000];
        text[3000] = 0xFF;
        let bytes = to(side, Frame::text(&text));
        let mut receiver = connection(side);
        let events = through_destinations(&mut receiver, &bytes[..bytes.len() - 1000], 100, 10_000);
        assert_eq!(events, [Seen::Fault(Fault::InvalidUtf8)]);
        assert!(receiver.take_destination(1).is_none());
        // The text ends inside a character.
        let bytes = to(side, Frame::text([&[b'a'; 500][..], b"\xe2\x82"].concat()));
        let events = through_destinations(&mut connection(side), &bytes, 100, 10_000);
        assert_eq!(events, [Seen::Fault(Fault::InvalidUtf8)]);
    }
}

#[test]
fn destinations_are_only_for_large_plain_payloads() {
    for side in SIDES {
        let mut receiver = limited(side, NO_LIMITS, true);
        assert!(receiver.take_destination(0).is_none(), "nothing has come");
        let frame = to(side, Frame::ping([0; 100]));
        feed(&mut receiver, &frame[..20]);
        assert!(receiver.take_destination(1).is_none(), "a control frame");
        feed(&mut receiver, &frame[20..]);

        let frame = to(side, Frame::binary(stored(&[0; 100])).rsv(4));
        feed(&mut receiver, &frame[..20]);
        assert!(receiver.take_destination(1).is_none(), "a compressed frame");
        feed(&mut receiver, &frame[20..]);

        let frame = to(side, Frame::binary([0; 100]));
        feed(&mut receiver, &frame[..frame.len() - 50]);
        assert!(receiver.take_destination(51).is_none(), "less is missing");
        let mut destination = receiver.take_destination(50).unwrap();
        assert!(receiver.take_destination(1).is_none(), "it is out");
        assert_eq!(destination.room().len(), 50);
        destination.room().fill(MaybeUninit::new(0));
        // SAFETY: the room was filled.
        unsafe { receiver.put_destination(destination, 50) }.unwrap();
        assert!(receiver.take_destination(0).is_none(), "the payload is complete");
        assert_eq!(feed(&mut receiver, &[]).len(), 1);
    }
}

/// If the stream ends or the connection fails while a destination is out, its bytes are discarded.
#[test]
fn destination_of_a_failed_connection_is_discarded() {
    for side in SIDES {
        let mut receiver = connection(side);
        let frame = to(side, Frame::text([b'x'; 1000]));
        feed(&mut receiver, &frame[..100]);
        let mut destination = receiver.take_destination(1).unwrap();
        let mut out = Vec::new();
        receiver.send_failure(wirespeed_protocol::CloseCode(1011), "keepalive", || KEY, &mut out);
        destination.room()[0].write(0xFF);
        // SAFETY: one byte was written.
        assert_eq!(unsafe { receiver.put_destination(destination, 1) }, Ok(()));
        assert!(receiver.take_destination(1).is_none());
        assert_eq!(feed(&mut receiver, &frame[101..]), []);
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
