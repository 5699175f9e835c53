//! Sends random messages: a simple decoder finds the requested frames, and the peer receives the messages.

use wirespeed_protocol::deflate::Params;
use wirespeed_protocol::{CloseCode, CloseFrame, Delivery, Limits, MessageKind, SendError, Side, State};

use crate::input::{Input, pieces};
use crate::support::inflate::Inflater;
use crate::support::wire::{CLOSE, CONTINUATION};
use crate::support::{Frame, Rng, Seen, connection_with, feed_all};

const LIMITS: Limits = Limits { message_size: None, fragment_size: None, fragments: None };

/// The first bytes select the side and the parameters of the compression, the others the steps.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let (side, peer) = if choice & 1 == 0 { (Side::Client, Side::Server) } else { (Side::Server, Side::Client) };
    let deflate = (choice & 2 != 0).then(|| Params {
        local_no_context_takeover: choice & 4 != 0,
        remote_no_context_takeover: false,
        local_window_bits: 8 + input.below(8),
        remote_window_bits: 15,
        level: input.below(10),
        memory_level: 1 + input.below(9),
        threshold: usize::from(input.byte()),
    });
    let mut rng = Rng::new(u64::from(input.byte()));

    let mut sender = connection_with(side, LIMITS, deflate);
    let mut out = Vec::new();
    let mut expected = Vec::new();
    let mut open: Option<(MessageKind, Vec<u8>)> = None;
    while !input.is_empty() && out.len() < 1 << 17 {
        let step = input.byte();
        let key = rng.key();
        let mut payload = input.payload();
        let compress = [None, Some(true), Some(false)][usize::from(step >> 4) % 3];
        let kind = if step & 128 == 0 { MessageKind::Binary } else { MessageKind::Text };
        if kind == MessageKind::Text {
            payload.iter_mut().for_each(|byte| *byte &= 127);
        }
        let state = sender.state();
        let allowed = |result: Result<(), SendError>, expected| {
            let expected = if state == State::Open { expected } else { Err(SendError::NotOpen) };
            assert_eq!(result, expected);
            expected.is_ok()
        };
        match step & 7 {
            0 => {
                payload.truncate(125);
                if allowed(sender.send_ping(&payload, || key, &mut out), Ok(())) {
                    expected.push(Seen::Ping(payload));
                }
            }
            1 if state == State::Open => {
                payload.truncate(125);
                sender.send_pong(&payload, || key, &mut out).unwrap();
                expected.push(Seen::Pong(payload));
            }
            2 | 3 => {
                let result = if open.is_some() { Err(SendError::MessageOpen) } else { Ok(()) };
                if allowed(sender.send_first_fragment(kind, &payload, compress, || key, &mut out), result) {
                    open = Some((kind, payload));
                }
            }
            4 | 5 => {
                let fin = step & 8 != 0;
                let result = if open.is_some() { Ok(()) } else { Err(SendError::NoMessageOpen) };
                if let Some((MessageKind::Text, _)) = open {
                    payload.iter_mut().for_each(|byte| *byte &= 127);
                }
                if allowed(sender.send_fragment(&payload, fin, || key, &mut out), result)
                    && let Some((kind, message)) = &mut open
                {
                    message.extend_from_slice(&payload);
                    if fin {
                        expected.push(Seen::Message(*kind, std::mem::take(message)));
                        open = None;
                    }
                }
            }
            6 if step & 0x78 == 0x78 => {
                let code = CloseCode(1000 + u16::from(step >> 7));
                if allowed(sender.send_close(Some(code), "end", || key, &mut out), Ok(())) {
                    // Inside a message, the close frame reports that the message is lost.
                    let (code, reason) = match open {
                        Some(_) => (CloseCode::INTERNAL_ERROR, "close during fragmented message"),
                        None => (code, "end"),
                    };
                    expected.push(Seen::Close(CloseFrame { code: Some(code), reason: reason.to_owned() }));
                }
            }
            _ => {
                if step & 64 != 0 {
                    sender.release_idle();
                }
                let result = if open.is_some() { Err(SendError::MessageOpen) } else { Ok(()) };
                if allowed(sender.send_message(kind, &payload, compress, || key, &mut out), result) {
                    expected.push(Seen::Message(kind, payload));
                }
            }
        }
    }

    let frames = Frame::decode_all(&out);
    assert_eq!(decode(&frames, side, deflate), expected, "frame by frame");
    let received = Params { remote_no_context_takeover: choice & 4 != 0, ..deflate.unwrap_or(NO_PARAMS) };
    let make = || connection_with(peer, LIMITS, deflate.map(|_| received));
    let mut receiver = make();
    assert_eq!(feed_all(&mut receiver, pieces(&out, &mut rng)), expected, "received");

    // Delivered in fragments, each message has the same bytes.
    let mut receiver = make();
    receiver.set_delivery(Delivery::Fragments);
    let mut open = Vec::new();
    let mut joined = Vec::new();
    for event in feed_all(&mut receiver, pieces(&out, &mut rng)) {
        match event {
            Seen::Fragment(kind, bytes, fin) => {
                open.extend(bytes);
                if fin {
                    joined.push(Seen::Message(kind, std::mem::take(&mut open)));
                }
            }
            other => joined.push(other),
        }
    }
    assert_eq!(joined, expected, "in fragments");
}

const NO_PARAMS: Params = Params {
    local_no_context_takeover: false,
    remote_no_context_takeover: false,
    local_window_bits: 15,
    remote_window_bits: 15,
    level: 6,
    memory_level: 5,
    threshold: 0,
};

/// Decodes the frames with the simple codec.
fn decode(frames: &[Frame], side: Side, deflate: Option<Params>) -> Vec<Seen> {
    let mut inflater = Inflater::default();
    let mut events = Vec::new();
    let mut open: Option<(u8, bool, Vec<u8>)> = None;
    for frame in frames {
        assert_eq!(frame.key.is_some(), side == Side::Client);
        assert!(!matches!(events.last(), Some(Seen::Close(_))), "a frame after the close frame");
        match frame.opcode {
            8 => {
                let code = CloseCode(u16::from_be_bytes([frame.payload[0], frame.payload[1]]));
                let reason = String::from_utf8(frame.payload[2..].to_vec()).unwrap();
                events.push(Seen::Close(CloseFrame { code: Some(code), reason }));
            }
            9 => events.push(Seen::Ping(frame.payload.clone())),
            10 => events.push(Seen::Pong(frame.payload.clone())),
            opcode => {
                assert_eq!(open.is_some(), opcode == CONTINUATION);
                let fresh = (opcode, frame.rsv == 4, Vec::new());
                let (opcode, compressed, mut payload) = open.take().unwrap_or(fresh);
                payload.extend_from_slice(&frame.payload);
                if !frame.fin {
                    open = Some((opcode, compressed, payload));
                } else {
                    let kind = if opcode == 1 { MessageKind::Text } else { MessageKind::Binary };
                    let payload = if compressed { inflater.message(&payload).unwrap() } else { payload };
                    events.push(Seen::Message(kind, payload));
                    if deflate.is_some_and(|params| params.local_no_context_takeover) {
                        inflater.reset();
                    }
                }
            }
        }
        let first = matches!(frame.opcode, 1 | 2);
        assert!(frame.rsv == 0 || frame.rsv == 4 && deflate.is_some() && first);
        assert!(frame.fin || frame.opcode < CLOSE);
    }
    if let Some(params) = deflate {
        assert!(inflater.reach <= 1 << params.local_window_bits, "{} in {params:?}", inflater.reach);
    }
    events
}
