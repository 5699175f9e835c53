//! Events never depend on how the bytes were split: every split point of every kind of frame, on both sides, with and
//! without compression.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use support::inflate::stored;
use support::wire::{BINARY, LengthForm, TEXT, header};
use support::{
    Frame, KEY, Rng, SIDES, Seen, connection, connection_with, feed, feed_all, fragments, params, receive_every_split,
    receive_some_splits, sparse, stream_to, to,
};
use wirespeed_protocol::{CloseCode, CloseFrame, Connection, Delivery, Fault, Limits, MessageKind, Side};

const TEXT_OF_MANY: &str = "aé€😀 ß∂🎉z";

/// All combinations of side, delivery in fragments, and negotiated compression.
fn variants() -> impl Iterator<Item = (Side, bool, bool)> {
    SIDES.into_iter().flat_map(|side| {
        [false, true].into_iter().flat_map(move |streamed| [false, true].map(|deflate| (side, streamed, deflate)))
    })
}

fn make(side: Side, streamed: bool, deflate: bool) -> Connection {
    let connection = connection_with(side, Limits::default(), deflate.then(|| params(15, false)));
    if streamed { fragments(connection) } else { connection }
}

/// Returns the event of a message, as a whole or as a fragment.
fn delivered(streamed: bool, kind: MessageKind, bytes: &[u8]) -> Seen {
    if streamed { Seen::Fragment(kind, bytes.to_vec(), true) } else { Seen::Message(kind, bytes.to_vec()) }
}

#[test]
fn single_frames() {
    for (side, streamed, deflate) in variants() {
        for len in [0, 1, 2, 7, 20, 125, 126, 127, 200] {
            let payload = Rng::new(len as u64).bytes(len);
            let bytes = to(side, Frame::binary(&payload));
            let events = receive_every_split(|| make(side, streamed, deflate), &bytes);
            assert_eq!(events, [delivered(streamed, MessageKind::Binary, &payload)]);
        }
        let bytes = to(side, Frame::text(TEXT_OF_MANY));
        let events = receive_every_split(|| make(side, streamed, deflate), &bytes);
        assert_eq!(events, [delivered(streamed, MessageKind::Text, TEXT_OF_MANY.as_bytes())]);
    }
}

#[test]
fn long_frames_around_every_length_form() {
    for side in SIDES {
        for len in [1000, 65_535, 65_536, 65_537, 70_000].into_iter().step_by(sparse(5)) {
            let payload = Rng::new(len as u64).bytes(len);
            let bytes = to(side, Frame::binary(&payload));
            let end = bytes.len();
            let splits = (0..40).chain((40..end).step_by(4093)).chain(end - 40..=end);
            let events = receive_some_splits(|| connection(side), &bytes, splits);
            assert_eq!(events, [Seen::binary(&payload)]);
        }
    }
}

#[test]
fn control_frames() {
    let longest = [b'x'; 125];
    for (side, streamed, deflate) in variants() {
        for payload in [&b""[..], b"p", b"ping", &longest] {
            let bytes = stream_to(side, [Frame::ping(payload), Frame::pong(payload)]);
            let events = receive_every_split(|| make(side, streamed, deflate), &bytes);
            assert_eq!(events, [Seen::Ping(payload.to_vec()), Seen::Pong(payload.to_vec())]);
        }
        for (frame, code, reason) in [
            (Frame::new(8, ""), None, ""),
            (Frame::close(1000, ""), Some(CloseCode::NORMAL_CLOSURE), ""),
            (Frame::close(4999, TEXT_OF_MANY), Some(CloseCode(4999)), TEXT_OF_MANY),
        ] {
            // Input after a close frame is discarded.
            let bytes = stream_to(side, [frame, Frame::ping("late"), Frame::text(b"\xFF").rsv(7)]);
            let events = receive_every_split(|| make(side, streamed, deflate), &bytes);
            assert_eq!(events, [Seen::Close(CloseFrame { code, reason: reason.to_owned() })]);
        }
    }
}

#[test]
fn fragments_with_control_frames_between_them() {
    let text = TEXT_OF_MANY.as_bytes();
    for (side, streamed, deflate) in variants() {
        // Split the text everywhere, also inside characters.
        for cut in 0..=text.len() {
            let bytes = stream_to(
                side,
                [
                    Frame::text(&text[..cut]).open(),
                    Frame::ping("1"),
                    Frame::continuation("").open(),
                    Frame::pong("2"),
                    Frame::continuation(&text[cut..]),
                    Frame::ping(""),
                ],
            );
            let splits = if cut % 5 == 0 { 0..=bytes.len() } else { 0..=0 };
            let events = receive_some_splits(|| make(side, streamed, deflate), &bytes, splits);
            let (ping, pong) = (Seen::Ping(b"1".to_vec()), Seen::Pong(b"2".to_vec()));
            if streamed {
                let fragment = |bytes: &[u8], fin| Seen::Fragment(MessageKind::Text, bytes.to_vec(), fin);
                let expected = [
                    fragment(&text[..cut], false),
                    ping,
                    fragment(b"", false),
                    pong,
                    fragment(&text[cut..], true),
                    Seen::Ping(vec![]),
                ];
                assert_eq!(events, expected);
            } else {
                assert_eq!(events, [ping, pong, Seen::text(TEXT_OF_MANY), Seen::Ping(vec![])]);
            }
        }
    }
}

#[test]
fn compressed_messages() {
    let text = TEXT_OF_MANY.repeat(3);
    for side in SIDES {
        for no_context_takeover in [false, true] {
            let params = params(15, no_context_takeover);
            let peer = if side == Side::Client { Side::Server } else { Side::Client };
            let mut sender = connection_with(peer, Limits::default(), Some(params));
            let mut bytes = Vec::new();
            let key = || KEY;
            for _ in 0..2 {
                sender.send_message(MessageKind::Text, text.as_bytes(), None, key, &mut bytes).unwrap();
            }
            // Send it in fragments, one of them empty, with a control frame in between.
            let (first, second) = text.as_bytes().split_at(17);
            sender.send_first_fragment(MessageKind::Text, first, None, key, &mut bytes).unwrap();
            sender.send_fragment(b"", false, key, &mut bytes).unwrap();
            sender.send_ping(b"between", key, &mut bytes).unwrap();
            sender.send_fragment(second, false, key, &mut bytes).unwrap();
            sender.send_fragment(b"", true, key, &mut bytes).unwrap();
            sender.send_message(MessageKind::Binary, &[7; 100], Some(false), key, &mut bytes).unwrap();
            sender.send_message(MessageKind::Binary, &[7; 100], None, key, &mut bytes).unwrap();

            let make = || connection_with(side, Limits::default(), Some(params));
            let ping = Seen::Ping(b"between".to_vec());
            let expected = [
                Seen::text(&text),
                Seen::text(&text),
                ping.clone(),
                Seen::text(&text),
                Seen::binary(&[7; 100]),
                Seen::binary(&[7; 100]),
            ];
            assert_eq!(receive_every_split(make, &bytes), expected);

            // Together the fragments are the text.
            let events = receive_every_split(|| fragments(make()), &bytes);
            let pieces: Vec<u8> = events
                .iter()
                .filter_map(|event| match event {
                    Seen::Fragment(MessageKind::Text, bytes, _) => Some(&bytes[..]),
                    _ => None,
                })
                .collect::<Vec<_>>()
                .concat();
            assert_eq!(pieces, text.repeat(3).into_bytes());
            assert!(events.contains(&ping));
        }
    }
}

/// Compressed frames that our compressor never writes: a character is split by a fragment and by a block.
#[test]
fn compressed_fragments_may_split_characters() {
    for (side, streamed, _) in variants() {
        let compressed = stored(TEXT_OF_MANY.as_bytes());
        for cut in (0..=compressed.len()).step_by(sparse(7)) {
            let bytes = stream_to(
                side,
                [Frame::text(&compressed[..cut]).rsv(4).open(), Frame::continuation(&compressed[cut..])],
            );
            let events = receive_some_splits(|| make(side, streamed, true), &bytes, (0..=bytes.len()).step_by(3));
            let text: Vec<u8> = events
                .iter()
                .flat_map(|event| match event {
                    Seen::Message(MessageKind::Text, bytes) | Seen::Fragment(MessageKind::Text, bytes, _) => {
                        bytes.clone()
                    }
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(text, TEXT_OF_MANY.as_bytes());
            assert_eq!(events.len(), if streamed { 2 } else { 1 });
        }
    }
}

/// After a valid message, each fault of a header is reported after the message, at every split.
#[test]
fn faults_follow_the_message_before_them() {
    for side in SIDES {
        let key = (side == Side::Server).then_some(KEY);
        let wrong_key = (side == Side::Client).then_some(KEY);
        let wrong_mask = if side == Side::Client { Fault::MaskUnexpected } else { Fault::MaskMissing };
        let raw = |fin, rsv, opcode, length, form| header(fin, rsv, opcode, key, length, form);
        let table: Vec<(Vec<u8>, Fault)> = vec![
            (raw(true, 4, TEXT, 0, LengthForm::Short), Fault::ReservedBits(4)),
            (raw(true, 2, BINARY, 0, LengthForm::Short), Fault::ReservedBits(2)),
            (raw(true, 1, 9, 0, LengthForm::Short), Fault::ReservedBits(1)),
            (raw(true, 7, 8, 0, LengthForm::Short), Fault::ReservedBits(7)),
            (raw(true, 4, 9, 0, LengthForm::Short), Fault::ReservedBits(4)),
            (raw(true, 0, 3, 0, LengthForm::Short), Fault::UnknownOpcode(3)),
            (raw(true, 0, 7, 0, LengthForm::Short), Fault::UnknownOpcode(7)),
            (raw(true, 0, 11, 0, LengthForm::Short), Fault::UnknownOpcode(11)),
            (raw(true, 0, 15, 5, LengthForm::Short), Fault::UnknownOpcode(15)),
            (raw(false, 0, 9, 0, LengthForm::Short), Fault::FragmentedControl),
            (raw(false, 0, 8, 0, LengthForm::Short), Fault::FragmentedControl),
            (raw(true, 0, 9, 126, LengthForm::Two), Fault::ControlTooLong(126)),
            (raw(true, 0, 10, 65_536, LengthForm::Eight), Fault::ControlTooLong(65_536)),
            (raw(true, 0, TEXT, 125, LengthForm::Two), Fault::LengthNotMinimal),
            (raw(true, 0, TEXT, 0, LengthForm::Two), Fault::LengthNotMinimal),
            (raw(true, 0, BINARY, 125, LengthForm::Eight), Fault::LengthNotMinimal),
            (raw(true, 0, BINARY, 65_535, LengthForm::Eight), Fault::LengthNotMinimal),
            (raw(true, 0, BINARY, 1 << 63, LengthForm::Eight), Fault::LengthTooLarge),
            (raw(true, 0, BINARY, u64::MAX, LengthForm::Eight), Fault::LengthTooLarge),
            (
                raw(true, 0, BINARY, (1 << 63) - 1, LengthForm::Eight),
                Fault::MessageTooBig { size: Some((1 << 63) - 1), limit: 1 << 20 },
            ),
            (raw(true, 0, 0, 0, LengthForm::Short), Fault::ContinuationUnexpected),
            (raw(false, 0, 0, 1, LengthForm::Short), Fault::ContinuationUnexpected),
            (to(side, Frame::new(8, "x")), Fault::ClosePayloadTooShort),
            (to(side, Frame::close(1005, "")), Fault::InvalidCloseCode(1005)),
            (to(side, Frame::new(8, b"\x03\xe8\xff")), Fault::InvalidUtf8),
            (to(side, Frame::text(b"\xff")), Fault::InvalidUtf8),
            (stream_to(side, [Frame::text("a").open(), Frame::text("b")]), Fault::ContinuationExpected),
            (stream_to(side, [Frame::text("a").open(), Frame::ping("").rsv(4)]), Fault::ReservedBits(4)),
            (Frame { key: wrong_key, ..Frame::text("mask") }.encode(), wrong_mask),
            (Frame { key: wrong_key, ..Frame::ping("") }.encode(), wrong_mask),
        ];
        for (bytes, fault) in table {
            let stream = [to(side, Frame::text("first")), bytes, to(side, Frame::text("never"))].concat();
            let events = receive_every_split(|| connection(side), &stream);
            assert_eq!(events, [Seen::text("first"), Seen::Fault(fault)]);
        }
        // RFC 7692 6: with compression, RSV1 is valid on the first frame only.
        let make = || connection_with(side, Limits::default(), Some(params(15, false)));
        for (frames, fault) in [
            (vec![Frame::text("").rsv(4).open(), Frame::continuation("").rsv(4)], Fault::ReservedBits(4)),
            (vec![Frame::text("").open(), Frame::continuation("").rsv(4)], Fault::ReservedBits(4)),
            (vec![Frame::ping("").rsv(4)], Fault::ReservedBits(4)),
            (vec![Frame::text("").rsv(6)], Fault::ReservedBits(6)),
            (vec![Frame::text(b"\x07").rsv(4)], Fault::InvalidDeflate),
            (vec![Frame::text(b"\x00\x05\x00\xfa\xfe").rsv(4)], Fault::InvalidDeflate),
            (vec![Frame::text(stored(b"\xff")).rsv(4)], Fault::InvalidUtf8),
            (vec![Frame::text(stored(b"\xe2\x82")).rsv(4)], Fault::InvalidUtf8),
        ] {
            let stream = stream_to(side, [Frame::text("first")].into_iter().chain(frames));
            assert_eq!(receive_every_split(make, &stream), [Seen::text("first"), Seen::Fault(fault)]);
        }
    }
}

#[test]
fn many_messages_in_one_input() {
    for side in SIDES {
        let mut expected = Vec::new();
        let mut bytes = Vec::new();
        let mut rng = Rng::new(3);
        for index in (0..2000_usize).step_by(sparse(31)) {
            let payload = rng.bytes(index % 150);
            bytes.extend(to(side, Frame::binary(&payload)));
            expected.push(Seen::binary(&payload));
        }
        assert_eq!(feed(&mut connection(side), &bytes), expected);
        for size in [2, 3, 5, 7, 13, 14, 15, 64, 1000, 4096] {
            assert_eq!(feed_all(&mut connection(side), bytes.chunks(size)), expected, "in chunks of {size}");
        }
    }
}

/// A message that lies as a whole in the input is delivered in place.
#[test]
fn whole_messages_are_not_copied() {
    let mut bytes = to(Side::Server, Frame::binary([1, 2, 3]));
    let range = bytes.as_ptr_range();
    let mut receiver = connection(Side::Server);
    let mut input = bytes.as_mut_slice();
    let Some(wirespeed_protocol::Event::Message { payload: wirespeed_protocol::Payload::Slice(slice), .. }) =
        receiver.receive(&mut input).unwrap()
    else {
        panic!("no message in place");
    };
    assert_eq!(slice, [1, 2, 3]);
    assert!(range.contains(&slice.as_ptr()));
}

/// Switches the delivery to fragments and back at each point of a message of four fragments.
#[test]
fn delivery_can_change_inside_a_message() {
    let kind = MessageKind::Binary;
    for side in SIDES {
        for sizes in [[2, 3, 1, 4], [0, 3, 0, 4], [0, 0, 0, 0]] {
            let payloads: Vec<Vec<u8>> = sizes.iter().map(|size| Rng::new(9).bytes(*size)).collect();
            let frames = [
                Frame::binary(&payloads[0]).open(),
                Frame::continuation(&payloads[1]).open(),
                Frame::continuation(&payloads[2]).open(),
                Frame::continuation(&payloads[3]),
            ];
            for on in 0..=4 {
                for off in on..=4 {
                    let mut receiver = connection(side);
                    let mut events = Vec::new();
                    for (index, frame) in frames.iter().enumerate() {
                        if index == on {
                            receiver.set_delivery(Delivery::Fragments);
                        }
                        if index == off {
                            receiver.set_delivery(Delivery::Messages);
                        }
                        events.extend(feed_all(&mut receiver, to(side, frame.clone()).chunks(1)));
                    }
                    // The frames before `on` are delivered at the switch, those in on..off one by one, and the
                    // rest together, as a fragment if a fragment was delivered before.
                    let mut expected: Vec<Seen> = Vec::new();
                    let mut held = Vec::new();
                    for (index, payload) in payloads.iter().enumerate() {
                        if index == on && on < off && !held.is_empty() {
                            expected.push(Seen::Fragment(kind, std::mem::take(&mut held), false));
                        }
                        held.extend_from_slice(payload);
                        let streaming = (on..off).contains(&index);
                        if index == 3 && !streaming && expected.is_empty() {
                            expected.push(Seen::Message(kind, std::mem::take(&mut held)));
                        } else if index == 3 || streaming {
                            expected.push(Seen::Fragment(kind, std::mem::take(&mut held), index == 3));
                        }
                    }
                    assert_eq!(events, expected, "{sizes:?}, on at {on}, off at {off}");
                    // The next message depends on the delivery only.
                    let streamed = on <= 3 && off == 4;
                    assert_eq!(
                        feed(&mut receiver, &to(side, Frame::binary("next"))),
                        [delivered(streamed, kind, b"next")]
                    );
                }
            }
        }
    }
}
