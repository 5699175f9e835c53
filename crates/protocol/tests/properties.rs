//! Properties of receiver and sender, compared with simple models: a receiver that has the whole stream at once, and a
//! codec that decodes frames byte by byte.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use proptest::prelude::*;
use support::model::model;
use support::wire::{self, BINARY, CLOSE, CONTINUATION, LengthForm, PING, PONG, TEXT};
use support::{Frame, KEY, Rng, Seen, cases, connection_with, feed, feed_all, params};
use wirespeed_protocol::frame::{Header, Opcode};
use wirespeed_protocol::{Delivery, Limits, MessageKind, Side, State};

/// Generates payloads of every length form, most of them text.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => "[a-zé€😀]{0,12}".prop_map(String::into_bytes),
        2 => prop::collection::vec(any::<u8>(), 0..8),
        2 => (prop::sample::select(vec![124_usize, 125, 126, 127, 300]), any::<u8>()).prop_map(|(len, byte)| vec![byte & 127; len]),
        1 => prop::sample::select(vec![65_535_usize, 65_536]).prop_map(|len| vec![b'l'; len]),
    ]
}

/// Generates frames that sometimes violate a rule.
fn frames() -> impl Strategy<Value = Vec<(Frame, LengthForm)>> {
    let opcode = prop_oneof![
        3 => Just(TEXT),
        3 => Just(BINARY),
        6 => Just(CONTINUATION),
        2 => Just(PING),
        1 => Just(PONG),
        1 => Just(CLOSE),
        1 => 0..16_u8,
    ];
    let frame = (
        opcode,
        any::<bool>(),
        payload(),
        prop::bool::weighted(0.98),
        prop::option::weighted(0.03, 0..8_u8),
        any::<u16>(),
        0..30_u8,
    )
        .prop_map(|(opcode, fin, mut payload, mask_right, rsv, code, form)| {
            if opcode == CLOSE && payload.len() > 2 {
                let code = if code % 2 == 0 { 1000 + code % 20 } else { code };
                payload[..2].copy_from_slice(&code.to_be_bytes());
            }
            let fin = fin || opcode >= CLOSE && code % 16 != 0;
            let frame = Frame { fin, rsv: rsv.unwrap_or(0), opcode, key: mask_right.then_some(KEY), payload };
            let form = match form {
                0 if frame.payload.len() < 65_536 => LengthForm::Two,
                1 => LengthForm::Eight,
                _ => frame.shortest_form(),
            };
            (frame, form)
        });
    prop::collection::vec(frame, 0..10)
}

/// Encodes the frames. With `mend`, it corrects most continuations and masks, which would otherwise end a random stream
/// at its first frame.
fn stream(side: Side, frames: Vec<(Frame, LengthForm)>, mend: bool) -> Vec<u8> {
    let mut open = false;
    let mut bytes = Vec::new();
    for (mut frame, form) in frames {
        if mend && matches!(frame.opcode, CONTINUATION..=BINARY) {
            match (open, frame.opcode) {
                (true, _) => frame.opcode = CONTINUATION,
                (false, CONTINUATION) => frame.opcode = TEXT,
                _ => {}
            }
            open = !frame.fin;
        }
        let masked = frame.key.is_some() == (side == Side::Server);
        frame.key = masked.then_some([frame.payload.len() as u8, 2, 3, 250]);
        bytes.extend(frame.encode_as(form));
    }
    bytes
}

fn limits() -> impl Strategy<Value = Limits> {
    let size = |weight| prop::option::weighted(weight, prop::sample::select(vec![0_usize, 10, 125, 400, 70_000]));
    (size(0.5), size(0.2), prop::option::weighted(0.3, 1..5_u32))
        .prop_map(|(message_size, fragment_size, fragments)| Limits { message_size, fragment_size, fragments })
}

fn side() -> impl Strategy<Value = Side> {
    prop::sample::select(vec![Side::Client, Side::Server])
}

/// Splits the bytes into pieces of random length, often small ones.
fn pieces(bytes: &[u8], seed: u64) -> Vec<&[u8]> {
    let mut rng = Rng::new(seed);
    let mut rest = bytes;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let bound = [3, 20, 100_000][rng.below(3)];
        let (piece, behind) = rest.split_at(rng.below(bound).min(rest.len()));
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(1500)))]

    /// Any stream, whole or in pieces, gives the events of the model.
    #[test]
    fn receiver_matches_the_model(
        side in side(),
        limits in limits(),
        streamed: bool,
        frames in frames(),
        mend in prop::bool::weighted(0.8),
        missing in prop_oneof![Just(0_usize), 0..20_usize],
        seed: u64,
    ) {
        let bytes = stream(side, frames, mend);
        let bytes = &bytes[..bytes.len().saturating_sub(missing)];
        let delivery = if streamed { Delivery::Fragments } else { Delivery::Messages };
        let expected = model(side, limits, delivery, bytes);
        let make = || {
            let mut connection = connection_with(side, limits, None);
            connection.set_delivery(delivery);
            connection
        };
        let mut receiver = make();
        prop_assert_eq!(&feed(&mut receiver, bytes), &expected);
        let state = match expected.last() {
            Some(Seen::Fault(_)) => State::Failed,
            Some(Seen::Close(_)) => State::CloseReceived,
            _ => State::Open,
        };
        prop_assert_eq!(receiver.state(), state);
        prop_assert_eq!(&feed_all(&mut make(), pieces(bytes, seed)), &expected);
        if bytes.len() < 2000 {
            prop_assert_eq!(&feed_all(&mut make(), bytes.chunks(1)), &expected);
        }
    }

    /// Random bytes give the events of the model.
    #[test]
    fn random_bytes_match_the_model(side in side(), deflate: bool, streamed: bool, bytes in prop::collection::vec(any::<u8>(), 0..80), seed: u64) {
        let make = || {
            let mut connection = connection_with(side, Limits::default(), deflate.then(|| params(15, false)));
            if streamed {
                connection.set_delivery(Delivery::Fragments);
            }
            connection
        };
        let whole = feed(&mut make(), &bytes);
        prop_assert_eq!(&feed_all(&mut make(), bytes.chunks(1)), &whole);
        prop_assert_eq!(&feed_all(&mut make(), pieces(&bytes, seed)), &whole);
        if !deflate {
            let delivery = if streamed { Delivery::Fragments } else { Delivery::Messages };
            prop_assert_eq!(&model(side, Limits::default(), delivery, &bytes), &whole);
        }
    }

    /// Headers are encoded and decoded as by the simple codec.
    #[test]
    fn headers_match_the_simple_codec(
        fin: bool,
        rsv1: bool,
        opcode in prop::sample::select(vec![Opcode::Continuation, Opcode::Text, Opcode::Binary, Opcode::Close, Opcode::Ping, Opcode::Pong]),
        mask: Option<[u8; 4]>,
        length in prop_oneof![0..126_u64, 126..65_536_u64, 65_536..(1_u64 << 63)],
    ) {
        let header = Header { fin, rsv1, opcode, mask, length };
        let form = match length {
            0..126 => LengthForm::Short,
            126..65_536 => LengthForm::Two,
            _ => LengthForm::Eight,
        };
        let bytes = wire::header(fin, if rsv1 { 4 } else { 0 }, opcode as u8, mask, length, form);
        let encoded = header.encode();
        prop_assert_eq!(encoded.as_slice(), &bytes);
        if opcode.is_control() && (length > 125 || !fin) {
            prop_assert!(Header::decode(&bytes).is_err());
        } else {
            for end in 0..bytes.len() {
                prop_assert_eq!(Header::decode(&bytes[..end]), Ok(None));
            }
            let behind = [&bytes[..], b"behind"].concat();
            prop_assert_eq!(Header::decode(&behind), Ok(Some((header, bytes.len()))));
        }
    }

    /// Each sent frame is as requested, and the other endpoint receives it.
    #[test]
    fn sending_and_receiving(
        side in side(),
        steps in prop::collection::vec((0..6_u8, payload(), any::<bool>(), any::<[u8; 4]>()), 0..12),
        seed: u64,
    ) {
        let mut sender = connection_with(side, Limits::default(), None);
        let mut out = b"already there".to_vec();
        let mut frames = Vec::new();
        let mut events = Vec::new();
        let mut open: Option<(MessageKind, Vec<u8>)> = None;
        for (step, payload, fin, key) in steps {
            let draw = || key;
            let kind = if std::str::from_utf8(&payload).is_ok() && fin { MessageKind::Text } else { MessageKind::Binary };
            let opcode = if kind == MessageKind::Text { TEXT } else { BINARY };
            let mask = (side == Side::Client).then_some(key);
            let frame = match (step, &mut open) {
                (0, _) if payload.len() <= 125 => {
                    sender.send_ping(&payload, draw, &mut out).unwrap();
                    events.push(Seen::Ping(payload.clone()));
                    Frame::ping(&payload)
                }
                (1, _) if payload.len() <= 125 => {
                    sender.send_pong(&payload, draw, &mut out).unwrap();
                    events.push(Seen::Pong(payload.clone()));
                    Frame::pong(&payload)
                }
                (2, None) => {
                    // Only a header: the caller writes the payload.
                    let header = sender.send_message_header(kind, payload.len(), mask).unwrap();
                    out.extend_from_slice(header.as_slice());
                    match mask {
                        Some(key) => wirespeed_protocol::mask::append(&mut out, &payload, key, 0),
                        None => out.extend_from_slice(&payload),
                    }
                    events.push(Seen::Message(kind, payload.clone()));
                    Frame::new(opcode, &payload)
                }
                (3, None) => {
                    sender.send_first_fragment(kind, &payload, None, draw, &mut out).unwrap();
                    open = Some((kind, payload.clone()));
                    Frame::new(opcode, &payload).open()
                }
                (_, None) => {
                    sender.send_message(kind, &payload, None, draw, &mut out).unwrap();
                    events.push(Seen::Message(kind, payload.clone()));
                    Frame::new(opcode, &payload)
                }
                (_, Some((kind, message))) => {
                    let text = *kind == MessageKind::Text;
                    let payload = if text && std::str::from_utf8(&payload).is_err() { Vec::new() } else { payload };
                    sender.send_fragment(&payload, fin, draw, &mut out).unwrap();
                    message.extend_from_slice(&payload);
                    let frame = Frame { fin, ..Frame::continuation(&payload) };
                    if fin {
                        events.push(Seen::Message(*kind, std::mem::take(message)));
                        open = None;
                    }
                    frame
                }
            };
            frames.push(Frame { key: mask, ..frame });
        }
        let bytes = out.strip_prefix(b"already there").unwrap();
        prop_assert_eq!(Frame::decode_all(bytes), frames);
        let peer = if side == Side::Client { Side::Server } else { Side::Client };
        let mut receiver = connection_with(peer, Limits::default(), None);
        prop_assert_eq!(feed_all(&mut receiver, pieces(bytes, seed)), events);
    }
}
