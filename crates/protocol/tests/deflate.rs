//! permessage-deflate on the wire, compared with a simple inflater that measures how far a stream refers back. The tests
//! of the negotiation are in `negotiate.rs`.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use proptest::prelude::*;
use support::inflate::{FixedBlock, Inflater, stored};
use support::{
    Frame, KEY, Rng, SIDES, Seen, cases, connection, connection_with, feed, feed_all, params, receive_every_split,
    sparse, stream_to, to,
};
use wirespeed_protocol::deflate::Params;
use wirespeed_protocol::{Connection, Fault, Limits, MessageKind, Side};

const NO_LIMITS: Limits = Limits { message_size: None, fragment_size: None, fragments: None };
const BINARY: MessageKind = MessageKind::Binary;

fn sender(params: Params) -> Connection {
    connection_with(Side::Client, NO_LIMITS, Some(params))
}

fn receiver(params: Params) -> Connection {
    connection_with(Side::Server, NO_LIMITS, Some(params))
}

/// Inflates the output of a sender message by message, as the RFC describes it.
struct Reader {
    inflater: Inflater,
    no_context_takeover: bool,
}

impl Reader {
    fn new(params: &Params) -> Self {
        Self { inflater: Inflater::default(), no_context_takeover: params.local_no_context_takeover }
    }

    fn messages(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        let mut open: Option<(bool, Vec<u8>)> = None;
        for frame in Frame::decode_all(bytes) {
            // RFC 7692 6: RSV1 is set on the first frame of a compressed message only.
            assert!(frame.rsv == 0 || frame.rsv == 4 && frame.opcode != 0, "{frame:?}");
            let (compressed, mut payload) = open.take().unwrap_or((frame.rsv == 4, Vec::new()));
            payload.extend(frame.payload);
            if !frame.fin {
                open = Some((compressed, payload));
                continue;
            }
            messages.push(if compressed { self.inflater.message(&payload).unwrap() } else { payload });
            if self.no_context_takeover {
                self.inflater.reset();
            }
        }
        assert!(open.is_none());
        messages
    }
}

/// Tries every setting. Each message is decompressed by the simple inflater, which fails if the message refers back too
/// far, and by the receiving side, byte by byte.
#[test]
fn messages_round_trip_with_every_setting() {
    let mut rng = Rng::new(7);
    let sizes = [1200, 300, 700, 900].map(|size| size / sparse(10));
    let messages = [rng.prose(sizes[0]), rng.bytes(sizes[1]), b"x".to_vec(), vec![b'-'; sizes[2]], rng.prose(sizes[3])];
    for level in (0..=9).step_by(sparse(9)) {
        for memory_level in (1..=9).step_by(sparse(8)) {
            for bits in (8..=15).step_by(sparse(7)) {
                for no_context_takeover in [false, true] {
                    let setting = Params { level, memory_level, ..params(bits, no_context_takeover) };
                    let mut sender = sender(setting);
                    let mut bytes = Vec::new();
                    for message in &messages {
                        sender.send_message(BINARY, message, None, || KEY, &mut bytes).unwrap();
                    }
                    let mut reader = Reader::new(&setting);
                    assert!(reader.messages(&bytes) == messages, "{setting:?}");
                    assert!(reader.inflater.reach <= 1 << bits, "{} in {setting:?}", reader.inflater.reach);

                    let mut receiver = receiver(setting);
                    let step = if bits == 8 { 1 } else { 1 + usize::from(memory_level) };
                    let received = feed_all(&mut receiver, bytes.chunks(step));
                    assert!(received.iter().zip(&messages).all(|(seen, message)| *seen == Seen::binary(message)));
                    assert_eq!(received.len(), messages.len());
                }
            }
        }
    }
}

/// A compressor never refers back beyond its window, with data for which it otherwise would. For each window size, some
/// level refers back nearly to the end of the window. A window of 8 bits is compressed with 9, as zlib has no 8.
#[test]
fn compressor_never_refers_back_beyond_its_window() {
    let data = Rng::new(11).prose(120_000 / sparse(40));
    for bits in (8..=15).step_by(sparse(8)) {
        let mut reach = 0;
        for level in (1..=9).step_by(sparse(8)) {
            for (memory_level, pieces) in [(9, 1), (5, 7), (1, 60)] {
                let setting = Params { level, memory_level, ..params(bits, false) };
                let mut sender = sender(setting);
                let mut reader = Reader::new(&setting);
                for piece in data.chunks(data.len().div_ceil(pieces)) {
                    let mut bytes = Vec::new();
                    sender.send_message(BINARY, piece, None, || KEY, &mut bytes).unwrap();
                    assert!(reader.messages(&bytes) == [piece]);
                }
                assert!(reader.inflater.reach <= 1 << bits, "{} in {setting:?}", reader.inflater.reach);
                reach = reach.max(reader.inflater.reach);
            }
        }
        // The compressor reserves 262 bytes of its window.
        let window = 1_usize << bits.max(9);
        assert!(reach > window - window / 8 - 262, "{reach} of {window}");
    }
}

/// Compresses incompressible payloads of every size, so that the output buffer ends at every position of the flush.
#[test]
fn payloads_of_every_size_round_trip() {
    let noise = Rng::new(13).bytes(1500);
    for level in [0, 1, 6] {
        let setting = Params { level, ..params(15, true) };
        let mut sender = sender(setting);
        for len in (1..noise.len()).step_by(sparse(97)) {
            sender.release_idle();
            let mut bytes = Vec::new();
            sender.send_message(BINARY, &noise[..len], None, || KEY, &mut bytes).unwrap();
            assert!(Reader::new(&setting).messages(&bytes) == [&noise[..len]], "{len}");
        }
    }
}

/// Compresses messages of megabytes, which are many times larger than the window.
#[test]
fn large_messages_round_trip() {
    let mut rng = Rng::new(17);
    let large = (1 << 20) / sparse(256);
    for level in [0, 1, 3, 6, 9] {
        for data in [rng.prose(large), rng.bytes(large), vec![0; 3 * large]] {
            let setting = Params { level, ..params(15, false) };
            let mut sender = sender(setting);
            let mut bytes = Vec::new();
            sender.send_message(BINARY, &data, None, || KEY, &mut bytes).unwrap();
            let received = feed_all(&mut receiver(setting), bytes.chunks(65_537));
            assert!(received == [Seen::binary(&data)]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(200)))]

    /// Sends messages in random fragments, some of them uncompressed, with pings in between. Buffers are released at
    /// times.
    #[test]
    fn any_sequence_of_messages(
        seed: u64,
        level in 0..=9_u8,
        memory_level in 1..=9_u8,
        bits in 8..=15_u8,
        no_context_takeover: bool,
        threshold in 0..300_usize,
        messages in prop::collection::vec((0..4000 / sparse(20), 0..5_usize, prop::option::of(any::<bool>()), any::<bool>()), 1..12),
    ) {
        let setting = Params { level, memory_level, threshold, ..params(bits, no_context_takeover) };
        let mut rng = Rng::new(seed);
        let (mut sender, mut receiver) = (sender(setting), receiver(setting));
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (len, cuts, compress, release) in messages {
            let message = if rng.below(4) == 0 { rng.bytes(len) } else { rng.prose(len) };
            if cuts == 0 {
                sender.send_message(BINARY, &message, compress, || KEY, &mut bytes).unwrap();
            } else {
                let mut rest = &message[..];
                for index in 0..=cuts {
                    let (piece, behind) = rest.split_at(if index == cuts { rest.len() } else { rng.below(rest.len() + 1) });
                    rest = behind;
                    if index == 0 {
                        sender.send_first_fragment(BINARY, piece, compress, || KEY, &mut bytes).unwrap();
                    } else {
                        sender.send_ping(b"", || KEY, &mut bytes).unwrap();
                        sender.send_fragment(piece, index == cuts, || KEY, &mut bytes).unwrap();
                    }
                    if release {
                        sender.release_idle();
                    }
                }
            }
            if release {
                sender.release_idle();
            }
            expected.push(message);
        }
        let pings = Seen::Ping(vec![]);
        let mut messages: Vec<Seen> = Vec::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(1 + rng.below(rest.len().min(2000)));
            rest = behind;
            messages.extend(feed(&mut receiver, piece).into_iter().filter(|event| *event != pings));
            receiver.release_idle();
        }
        prop_assert!(messages == expected.iter().map(|message| Seen::binary(message)).collect::<Vec<_>>());

        let frames: Vec<_> = Frame::decode_all(&bytes).into_iter().filter(|frame| frame.opcode < 8).collect();
        let data: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        let mut reader = Reader::new(&setting);
        prop_assert!(reader.messages(&data) == expected);
        prop_assert!(reader.inflater.reach <= 1 << bits);
    }

    /// Receives random bytes in compressed frames, whole and split. Both give the same events without a panic, and the
    /// delivered messages are those of the simple inflater.
    #[test]
    fn any_bytes_as_a_compressed_message(bytes in prop::collection::vec(any::<u8>(), 0..60), split in 0..60_usize) {
        let setting = params(15, false);
        let stream = to(Side::Server, Frame::binary(&bytes).rsv(4));
        let whole = feed(&mut receiver(setting), &stream);
        prop_assert_eq!(&feed_all(&mut receiver(setting), stream.chunks(1)), &whole);
        let (first, second) = stream.split_at(split.min(stream.len()));
        prop_assert_eq!(&feed_all(&mut receiver(setting), [first, second]), &whole);
        if let Ok(inflated) = Inflater::default().message(&bytes) {
            prop_assert_eq!(whole, [Seen::Message(BINARY, inflated)]);
        }
    }
}

/// Inflates matches at chosen distances across two messages, up to the end of the largest window.
#[test]
fn matches_may_refer_to_the_previous_message() {
    let past = Rng::new(19).bytes(40_000);
    let distances = [1, 2, 3, 255, 256, 257, 24_577, 32_505, 32_506, 32_767, 32_768];
    for distance in distances.into_iter().step_by(sparse(10)) {
        let mut all = past.clone();
        for _ in 0..3 {
            all.push(all[all.len() - distance]);
        }
        all.extend(b"!\xF0");
        let expected = [Seen::binary(&past), Seen::binary(&all[past.len()..])];
        for side in SIDES {
            let bytes = stream_to(
                side,
                [
                    Frame::binary(stored(&past)).rsv(4),
                    Frame::binary(FixedBlock::new().back(distance).literal(b'!').literal(0xF0).finish()).rsv(4),
                ],
            );
            for chunk in [1, 1000, 1_000_000].into_iter().skip(sparse(3) - 1) {
                let mut receiver = connection_with(side, NO_LIMITS, Some(params(15, false)));
                assert!(feed_all(&mut receiver, bytes.chunks(chunk)) == expected, "{distance}");
            }
        }
    }
}

/// A match must not refer to bytes before the beginning, or to an earlier message without context takeover.
#[test]
fn matches_that_refer_back_too_far_are_faults() {
    let fault = Seen::Fault(Fault::InvalidDeflate);
    for side in SIDES {
        let make =
            |no_context_takeover| move || connection_with(side, NO_LIMITS, Some(params(15, no_context_takeover)));
        let before = to(side, Frame::binary(FixedBlock::new().literal(b'a').back(2).finish()).rsv(4));
        for no_context_takeover in [false, true] {
            assert_eq!(receive_every_split(make(no_context_takeover), &before), std::slice::from_ref(&fault));
        }
        let again = stream_to(
            side,
            [Frame::binary(stored(b"abc")).rsv(4), Frame::binary(FixedBlock::new().back(3).finish()).rsv(4)],
        );
        let abc = Seen::binary(b"abc");
        assert_eq!(receive_every_split(make(false), &again), [abc.clone(), abc.clone()]);
        assert_eq!(receive_every_split(make(true), &again), [abc.clone(), fault.clone()]);
        // A final block ends the stream and its window.
        let mut last = FixedBlock::new().back(3).finish();
        last.splice(0..0, [1, 3, 0, 0xFC, 0xFF, b'x', b'y', b'z']);
        let bytes = stream_to(side, [Frame::binary(stored(b"abc")).rsv(4), Frame::binary(last).rsv(4)]);
        assert_eq!(receive_every_split(make(false), &bytes), [abc, fault.clone()]);
    }
}

/// A message that ends inside a block is invalid. The tail must not complete the block.
#[test]
fn message_that_ends_inside_a_block_is_a_fault() {
    let whole = stored(&[b'x'; 100]);
    for side in SIDES {
        let make = || connection_with(side, NO_LIMITS, Some(params(15, false)));
        for len in (6..105).step_by(sparse(9)) {
            let bytes = to(side, Frame::binary(&whole[..len]).rsv(4));
            assert_eq!(feed(&mut make(), &bytes), [Seen::Fault(Fault::InvalidDeflate)], "{len}");
        }
    }
}

/// If data violates two rules, the first fault in the stream is reported, independent of how the bytes were split.
#[test]
fn first_of_two_faults_is_reported() {
    let block = |data: &[u8]| stored(data)[..5 + data.len()].to_vec();
    let broken: &[u8] = b"\x07"; // a block of the invalid type
    for side in SIDES {
        let make = |limit| {
            let limits = Limits { message_size: limit, ..NO_LIMITS };
            move || connection_with(side, limits, Some(params(15, false)))
        };
        let frame = |payload: &[&[u8]]| to(side, Frame::text(payload.concat()).rsv(4));
        let too_big = |limit| Seen::Fault(Fault::MessageTooBig { size: None, limit });
        let (utf8, deflate) = (Seen::Fault(Fault::InvalidUtf8), Seen::Fault(Fault::InvalidDeflate));
        for (limit, payload, fault) in [
            (None, [&block(b"ok\xFF")[..], broken], utf8.clone()),
            (None, [&block(b"ok")[..], broken], deflate.clone()),
            (Some(1), [&block(b"ok")[..], broken], too_big(1)),
            (Some(2), [&block(b"ok")[..], broken], deflate),
            (Some(1), [&block(b"o\xFF")[..], broken], utf8),
            (Some(0), [&block(b"o\xFF")[..], broken], too_big(0)),
        ] {
            assert_eq!(receive_every_split(make(limit), &frame(&payload)), [fault]);
        }
    }
}

/// Messages from the threshold on are compressed, unless the caller overrides it. Empty messages never are, and none
/// without negotiation.
#[test]
fn threshold_and_caller_select_compression() {
    let rsv = |connection: &mut Connection, len: usize, compress| {
        let mut out = Vec::new();
        let payload = vec![b'x'; len];
        assert_eq!(
            connection.wants_compression(len, compress),
            {
                connection.send_message(BINARY, &payload, compress, || KEY, &mut out).unwrap();
                Frame::decode_all(&out)[0].rsv == 4
            },
            "{len} {compress:?}"
        );
        Frame::decode_all(&out)[0].rsv
    };
    for side in SIDES {
        let setting = Params { threshold: 32, ..params(15, false) };
        let mut with = connection_with(side, NO_LIMITS, Some(setting));
        for (len, compress, expected) in [
            (0, None, 0),
            (0, Some(true), 0),
            (31, None, 0),
            (32, None, 4),
            (31, Some(true), 4),
            (1000, Some(false), 0),
            (1000, None, 4),
        ] {
            assert_eq!(rsv(&mut with, len, compress), expected, "{len} {compress:?}");
            assert_eq!(rsv(&mut connection(side), len, compress), 0);
        }
        // The threshold does not apply to fragmented messages.
        for (compress, expected) in [(None, 4), (Some(true), 4), (Some(false), 0)] {
            let mut out = Vec::new();
            with.send_first_fragment(BINARY, b"", compress, || KEY, &mut out).unwrap();
            with.send_fragment(b"x", true, || KEY, &mut out).unwrap();
            let frames = Frame::decode_all(&out);
            assert_eq!((frames[0].rsv, frames[1].rsv), (expected, 0));
        }
    }
}

/// RFC 7692 6: compressed and uncompressed messages may follow each other. Uncompressed ones do not enter the window.
#[test]
fn uncompressed_messages_do_not_change_the_window() {
    for side in SIDES {
        let bytes = stream_to(
            side,
            [
                Frame::binary(stored(b"abc")).rsv(4),
                Frame::binary("plain"),
                Frame::text("plain").open(),
                Frame::continuation(""),
                Frame::binary(FixedBlock::new().back(3).finish()).rsv(4),
            ],
        );
        let make = || connection_with(side, NO_LIMITS, Some(params(15, false)));
        let abc = Seen::binary(b"abc");
        assert_eq!(receive_every_split(make, &bytes), [abc.clone(), Seen::binary(b"plain"), Seen::text("plain"), abc]);
    }
}

/// Sends messages that were compressed elsewhere, for many peers, between messages of the connection itself.
#[test]
fn messages_compressed_elsewhere_can_be_mixed_in() {
    let own = params(15, false);
    let alone = Params { local_no_context_takeover: true, ..own };
    let (mut sender, mut reader) = (sender(own), Reader::new(&own));
    let mut rng = Rng::new(7);
    let words: Vec<Vec<u8>> = (0..8).map(|_| (0..90).map(|_| rng.next() as u8 % 16).collect()).collect();
    let mut expected = Vec::new();
    let mut wire = Vec::new();
    for round in 0..40 {
        let message: Vec<u8> = words[round % 8].iter().chain(&words[(round * 3) % 8]).copied().collect();
        if round % 3 == 1 {
            let mut once = connection_with(Side::Client, NO_LIMITS, Some(alone));
            once.send_message(BINARY, &message, None, || KEY, &mut wire).unwrap();
            drop(sender.reset_compressor());
        } else {
            sender.send_message(BINARY, &message, None, || KEY, &mut wire).unwrap();
        }
        expected.push(message);
    }
    assert_eq!(reader.messages(&wire), expected);
}

/// A connection that has released its compressor still sends and receives, as does its peer, which has released nothing.
#[test]
fn idle_connections_continue_without_their_compressor() {
    let (mut sender, mut receiver) = (sender(params(15, false)), receiver(params(15, false)));
    let message = b"the same again and again, the same again and again".repeat(4);
    let mut sizes = Vec::new();
    for round in 0..4 {
        let mut wire = Vec::new();
        sender.send_message(BINARY, &message, None, || KEY, &mut wire).unwrap();
        sizes.push(wire.len());
        assert_eq!(feed(&mut receiver, &wire), [Seen::Message(BINARY, message.clone())], "round {round}");
        if round == 1 {
            sender.release_idle();
            receiver.release_idle();
        }
    }
    assert!(sizes[1] < sizes[0], "a window that is remembered: {sizes:?}");
    assert_eq!(sizes[2], sizes[0]);
    assert_eq!(sizes[3], sizes[1]);
}

/// zlib consumes and produces at most 4 GiB in one call. The rest must not be lost.
#[test]
#[ignore = "half a minute, and 7 GiB of address space: run it after changes of the compressor"]
fn payloads_above_4_gib_are_not_truncated() {
    let message = vec![0; (1 << 32) + (1 << 20)];
    let mut bytes = Vec::new();
    sender(params(15, false)).send_message(BINARY, &message, None, || KEY, &mut bytes).unwrap();
    let [frame] = &Frame::decode_all(&bytes)[..] else { panic!("one frame") };
    let (mut inflate, mut piece, mut len) = (zlib_rs::Inflate::new(false, 15), vec![1; 1 << 20], 0);
    loop {
        let (consumed, produced) = (inflate.total_in() as usize, inflate.total_out());
        inflate.decompress(&frame.payload[consumed..], &mut piece, zlib_rs::InflateFlush::SyncFlush).unwrap();
        let produced = (inflate.total_out() - produced) as usize;
        assert!(piece[..produced].iter().all(|&byte| byte == 0));
        len += produced;
        if produced == 0 {
            break;
        }
    }
    assert_eq!(len, message.len());
}
