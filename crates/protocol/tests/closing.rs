//! The closing handshake: the state transitions, the frames that may be sent in each state, close codes, and the close
//! frames that answer faults.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use support::{Frame, KEY, SIDES, Seen, connection, connection_with, feed, params, sparse, stream_to, to};
use wirespeed_protocol::{CloseCode, CloseFrame, Connection, Fault, Limits, MessageKind, SendError, Side, State};

fn close(code: u16, reason: &str) -> CloseFrame {
    CloseFrame { code: Some(CloseCode(code)), reason: reason.to_owned() }
}

/// Returns the only frame that `send` appends, decoded and unmasked; `None` if it appends nothing.
fn sent(side: Side, send: impl FnOnce(&mut Vec<u8>)) -> Option<Frame> {
    let mut out = Vec::new();
    send(&mut out);
    let mut frames = Frame::decode_all(&out);
    let frame = frames.pop();
    assert_eq!(frames, [], "more than one frame");
    if let Some(frame) = &frame {
        assert_eq!(frame.key.is_some(), side == Side::Client, "RFC 6455 5.1");
    }
    frame.map(|frame| Frame { key: None, ..frame })
}

/// Returns a connection in `state`.
fn in_state(side: Side, state: State) -> Connection {
    let mut connection = connection(side);
    let mut out = Vec::new();
    if matches!(state, State::CloseSent | State::Closed) {
        connection.send_close(Some(CloseCode(1000)), "", || KEY, &mut out).unwrap();
    }
    if matches!(state, State::CloseReceived | State::Closed) {
        feed(&mut connection, &to(side, Frame::close(1000, "")));
    }
    if state == State::Failed {
        feed(&mut connection, &to(side, Frame::new(3, "")));
    }
    assert_eq!(connection.state(), state);
    connection
}

const STATES: [State; 5] = [State::Open, State::CloseReceived, State::CloseSent, State::Closed, State::Failed];

/// The transitions in the table of the module `state`.
#[test]
fn transitions_match_the_table() {
    use State::{CloseReceived, CloseSent, Closed, Failed, Open};
    for side in SIDES {
        // state, after a close frame received, after a close frame of ours, after the end of the stream
        for (state, received, closed, eof) in [
            (Open, CloseReceived, CloseSent, Failed),
            (CloseReceived, CloseReceived, Closed, Failed),
            (CloseSent, Closed, CloseSent, Failed),
            (Closed, Closed, Closed, Closed),
            (Failed, Failed, Failed, Failed),
        ] {
            let mut connection = in_state(side, state);
            let events = feed(&mut connection, &to(side, Frame::close(1001, "away")));
            assert_eq!(connection.state(), received, "{state:?}");
            let expected = if state.can_receive() { vec![Seen::Close(close(1001, "away"))] } else { vec![] };
            assert_eq!(events, expected, "{state:?}");

            let mut connection = in_state(side, state);
            let mut out = Vec::new();
            let result = connection.send_close(Some(CloseCode(1001)), "", || KEY, &mut out);
            assert_eq!(connection.state(), closed, "{state:?}");
            let refused = !matches!(state, Open | CloseReceived);
            assert_eq!(result, if refused { Err(SendError::NotOpen) } else { Ok(()) }, "{state:?}");
            assert_eq!(out.is_empty(), refused);

            let mut connection = in_state(side, state);
            connection.receive_eof();
            assert_eq!(connection.state(), eof, "{state:?}");
            assert_eq!(feed(&mut connection, &to(side, Frame::text("late"))), []);
        }
    }
}

/// Each frame may be sent in certain states only (RFC 6455 5.5.1). A failed call changes nothing.
#[test]
fn each_frame_may_be_sent_in_certain_states_only() {
    for side in SIDES {
        for state in STATES {
            let open = state == State::Open;
            let pong = matches!(state, State::Open | State::CloseSent);
            let refused = Err(SendError::NotOpen);
            let expect = |allowed: bool| if allowed { Ok(()) } else { refused };
            let mut out = Vec::new();
            let mut connection = in_state(side, state);
            let binary = MessageKind::Binary;
            assert_eq!(connection.send_message(binary, b"x", None, || KEY, &mut out), expect(open), "{state:?}");
            assert_eq!(connection.send_message_header(binary, 1, None).map(drop), expect(open), "{state:?}");
            assert_eq!(connection.send_ping(b"x", || KEY, &mut out), expect(open), "{state:?}");
            assert_eq!(connection.send_pong(b"x", || KEY, &mut out), expect(pong), "{state:?}");
            assert_eq!(connection.send_first_fragment(binary, b"x", None, || KEY, &mut out), expect(open), "{state:?}");
            assert_eq!(connection.send_fragment(b"x", true, || KEY, &mut out), expect(open), "{state:?}");
            let frames = Frame::decode_all(&out).len();
            assert_eq!(frames, if open { 5 } else { usize::from(pong) }, "{state:?}");
            assert_eq!(connection.state(), state);
            assert!(!connection.is_sending_fragments());
        }
    }
}

#[test]
fn messages_and_fragments_exclude_each_other() {
    for side in SIDES {
        for deflate in [None, Some(params(15, false))] {
            let mut connection = connection_with(side, Limits::default(), deflate);
            let mut out = Vec::new();
            let text = MessageKind::Text;
            assert_eq!(connection.send_fragment(b"", true, || KEY, &mut out), Err(SendError::NoMessageOpen));
            connection.send_first_fragment(text, b"a", None, || KEY, &mut out).unwrap();
            assert!(connection.is_sending_fragments());
            let before = out.clone();
            assert_eq!(connection.send_message(text, b"b", None, || KEY, &mut out), Err(SendError::MessageOpen));
            assert_eq!(connection.send_first_fragment(text, b"b", None, || KEY, &mut out), Err(SendError::MessageOpen));
            assert_eq!(connection.send_message_header(text, 1, None).map(drop), Err(SendError::MessageOpen));
            assert_eq!(out, before, "a refused call wrote");
            connection.send_ping(b"", || KEY, &mut out).unwrap();
            connection.send_fragment(b"c", true, || KEY, &mut out).unwrap();
            assert!(!connection.is_sending_fragments());
            assert_eq!(connection.send_fragment(b"", true, || KEY, &mut out), Err(SendError::NoMessageOpen));
            connection.send_message(text, b"d", None, || KEY, &mut out).unwrap();
            let opcodes: Vec<_> = Frame::decode_all(&out).iter().map(|frame| (frame.opcode, frame.fin)).collect();
            assert_eq!(opcodes, [(1, false), (9, true), (0, true), (1, true)]);

            // A close frame may arrive inside the message, which ends the message.
            connection.send_first_fragment(text, b"e", None, || KEY, &mut out).unwrap();
            connection.send_close(None, "", || KEY, &mut out).unwrap();
            assert_eq!(connection.send_fragment(b"f", true, || KEY, &mut out), Err(SendError::NotOpen));
        }
    }
}

#[test]
fn invalid_arguments_are_rejected() {
    for side in SIDES {
        let mut connection = connection(side);
        let mut out = Vec::new();
        let long = [b'x'; 126];
        let reason = "x".repeat(124);
        assert_eq!(connection.send_ping(&long, || KEY, &mut out), Err(SendError::ControlTooLong(126)));
        assert_eq!(connection.send_pong(&long, || KEY, &mut out), Err(SendError::ControlTooLong(126)));
        let code = Some(CloseCode(1000));
        assert_eq!(connection.send_close(code, &reason, || KEY, &mut out), Err(SendError::ReasonTooLong(124)));
        assert_eq!(connection.send_close(None, "why", || KEY, &mut out), Err(SendError::ReasonWithoutCode));
        assert_eq!(
            connection.send_close(Some(CloseCode(1005)), "", || KEY, &mut out),
            Err(SendError::InvalidCloseCode(1005))
        );
        assert_eq!((out.len(), connection.state()), (0, State::Open));

        connection.send_ping(&long[..125], || KEY, &mut out).unwrap();
        connection.send_close(code, &reason[..123], || KEY, &mut out).unwrap();
        let frames = Frame::decode_all(&out);
        assert_eq!((frames[0].payload.len(), frames[1].payload.len()), (125, 125));
    }
}

/// Receives and sends every possible code (RFC 6455 7.4 and the IANA registry).
#[test]
fn only_valid_close_codes_are_sent_and_received() {
    for code in (0..=u16::MAX).step_by(sparse(31)).chain(999..=1017).chain(2999..=3000) {
        // 1004 is reserved; 1005, 1006 and 1015 are only for APIs; 1016 to 2999 are not assigned; codes from 5000 on
        // do not exist.
        let valid =
            matches!(code, 1000 | 1001 | 1002 | 1003 | 1007..=1011 | 1012..=1014) || (3000..5000).contains(&code);
        let side = SIDES[usize::from(code) % 2];
        let mut receiver = connection(side);
        let events = feed(&mut receiver, &to(side, Frame::close(code, "")));
        let mut out = Vec::new();
        let result = connection(side).send_close(Some(CloseCode(code)), "", || KEY, &mut out);
        if valid {
            assert_eq!(events, [Seen::Close(close(code, ""))]);
            assert_eq!(result, Ok(()));
        } else {
            assert_eq!(events, [Seen::Fault(Fault::InvalidCloseCode(code))]);
            assert_eq!(result, Err(SendError::InvalidCloseCode(code)));
        }
        assert_eq!(CloseCode(code).is_sendable(), valid);
    }
}

#[test]
fn close_payloads_are_decoded_and_validated() {
    for side in SIDES {
        let payload = |bytes: &[u8]| feed(&mut connection(side), &to(side, Frame::new(8, bytes)));
        assert_eq!(payload(b""), [Seen::Close(CloseFrame { code: None, reason: String::new() })]);
        assert_eq!(payload(b"\x03"), [Seen::Fault(Fault::ClosePayloadTooShort)]);
        assert_eq!(payload("\u{3}\u{3e8}".as_bytes()).len(), 1);
        let longest = [b"\x03\xe8".as_slice(), "é".repeat(61).as_bytes(), b"."].concat();
        assert_eq!(payload(&longest), [Seen::Close(close(1000, &("é".repeat(61) + ".")))]);
        for reason in [&b"\x80"[..], b"ok\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"] {
            assert_eq!(payload(&[b"\x03\xe8", reason].concat()), [Seen::Fault(Fault::InvalidUtf8)]);
        }
    }
}

/// The reply echoes the close frame (RFC 6455 5.5.1). It is sent once, and only if it is due.
#[test]
fn close_reply_echoes_once() {
    for side in SIDES {
        for frame in [Frame::close(1001, "going"), Frame::close(4000, ""), Frame::new(8, "")] {
            let mut connection = connection(side);
            feed(&mut connection, &to(side, frame.clone()));
            assert_eq!(sent(side, |out| connection.send_close_reply(|| KEY, out)), Some(frame));
            assert_eq!(connection.state(), State::Closed);
            assert_eq!(connection.close_sent(), connection.close_received());
            assert_eq!(sent(side, |out| connection.send_close_reply(|| KEY, out)), None);
        }
        for state in [State::Open, State::CloseSent, State::Closed, State::Failed] {
            let mut connection = in_state(side, state);
            assert_eq!(sent(side, |out| connection.send_close_reply(|| KEY, out)), None, "{state:?}");
            assert_eq!(connection.state(), state);
        }
        // The application may reply with another code and reason.
        let mut connection = in_state(side, State::CloseReceived);
        let frame = sent(side, |out| connection.send_close(Some(CloseCode(4001)), "own", || KEY, out).unwrap());
        assert_eq!(frame, Some(Frame::close(4001, "own")));
        assert_eq!(connection.state(), State::Closed);
        assert_eq!(connection.close_sent(), Some(&close(4001, "own")));
    }
}

/// If both sides send a close frame at once, neither sends a reply, and both are closed.
#[test]
fn simultaneous_closes_need_no_reply() {
    for side in SIDES {
        let mut connection = in_state(side, State::CloseSent);
        assert_eq!(feed(&mut connection, &to(side, Frame::close(1001, ""))), [Seen::Close(close(1001, ""))]);
        assert_eq!(connection.state(), State::Closed);
        assert_eq!(sent(side, |out| connection.send_close_reply(|| KEY, out)), None);
        assert_eq!(connection.close_sent(), Some(&close(1000, "")));
        assert_eq!(connection.close_received(), Some(&close(1001, "")));
    }
}

/// Messages are still received after our close frame, and pings may be answered (RFC 6455 5.5.2).
#[test]
fn messages_are_received_after_our_close_frame() {
    for side in SIDES {
        let mut connection = in_state(side, State::CloseSent);
        let stream =
            stream_to(side, [Frame::text("late"), Frame::ping("?"), Frame::close(1000, ""), Frame::text("no")]);
        let events = feed(&mut connection, &stream);
        assert_eq!(events, [Seen::text("late"), Seen::Ping(b"?".to_vec()), Seen::Close(close(1000, ""))]);
        assert_eq!(connection.state(), State::Closed);
    }
}

/// A peer may send a close frame inside a fragmented message. The rest of the message is lost.
#[test]
fn close_frame_inside_a_received_message_is_valid() {
    for side in SIDES {
        let mut connection = connection(side);
        let stream = stream_to(side, [Frame::text("half").open(), Frame::close(1000, ""), Frame::continuation("")]);
        assert_eq!(feed(&mut connection, &stream), [Seen::Close(close(1000, ""))]);
        assert_eq!(connection.state(), State::CloseReceived);
    }
}

/// As in the `websockets` library, a close frame inside our own fragmented message has a code and a reason for this. The
/// reply to a close frame does not.
#[test]
fn close_frame_inside_a_sent_message_has_code_1011() {
    for side in SIDES {
        for (state, expected) in [
            (State::Open, Frame::close(1011, "close during fragmented message")),
            (State::CloseReceived, Frame::close(1001, "bye")),
        ] {
            let mut connection = connection(side);
            connection.send_first_fragment(MessageKind::Text, b"half", None, || KEY, &mut Vec::new()).unwrap();
            if state == State::CloseReceived {
                feed(&mut connection, &to(side, Frame::close(1000, "")));
            }
            let frame = sent(side, |out| connection.send_close(Some(CloseCode(1001)), "bye", || KEY, out).unwrap());
            assert_eq!(frame, Some(expected));
        }
        let mut connection = connection(side);
        let frame = sent(side, |out| connection.send_close(Some(CloseCode(1001)), "bye", || KEY, out).unwrap());
        assert_eq!(frame, Some(Frame::close(1001, "bye")));
    }
}

fn every_fault() -> Vec<(Fault, u16)> {
    vec![
        (Fault::ReservedBits(4), 1002),
        (Fault::ReservedBits(7), 1002),
        (Fault::UnknownOpcode(3), 1002),
        (Fault::FragmentedControl, 1002),
        (Fault::ControlTooLong(u64::MAX >> 1), 1002),
        (Fault::LengthNotMinimal, 1002),
        (Fault::LengthTooLarge, 1002),
        (Fault::MaskMissing, 1002),
        (Fault::MaskUnexpected, 1002),
        (Fault::ContinuationUnexpected, 1002),
        (Fault::ContinuationExpected, 1002),
        (Fault::ClosePayloadTooShort, 1002),
        (Fault::InvalidCloseCode(65535), 1002),
        (Fault::InvalidDeflate, 1002),
        (Fault::InvalidUtf8, 1007),
        (Fault::MessageTooBig { size: Some(u64::MAX), limit: usize::MAX }, 1009),
        (Fault::MessageTooBig { size: None, limit: usize::MAX }, 1009),
        (Fault::FragmentTooBig { size: Some(u64::MAX), limit: usize::MAX }, 1009),
        (Fault::FragmentTooBig { size: None, limit: 0 }, 1009),
        (Fault::TooManyFragments { limit: u32::MAX }, 1009),
        (Fault::OutOfMemory, 1011),
    ]
}

/// Each fault has its close code, and its text fits into a close frame.
#[test]
fn each_fault_has_a_code_and_a_short_text() {
    for (fault, code) in every_fault() {
        assert_eq!(fault.close_code(), CloseCode(code), "{fault:?}");
        assert!(fault.close_code().is_sendable());
        let text = fault.to_string();
        assert!(!text.is_empty() && text.len() <= CloseFrame::MAX_REASON && text.is_ascii(), "{text}");
    }
}

/// A fault is answered with one close frame, unless one was sent before (RFC 6455 7.1.7).
#[test]
fn fault_is_answered_with_one_close_frame() {
    for side in SIDES {
        let mut connection = connection(side);
        feed(&mut connection, &to(side, Frame::text(b"\xff")));
        assert_eq!(connection.state(), State::Failed);
        assert_eq!(connection.fault(), Some(Fault::InvalidUtf8));
        let frame = sent(side, |out| connection.send_fault(|| KEY, out));
        assert_eq!(frame, Some(Frame::close(1007, "invalid UTF-8")));
        assert_eq!(connection.close_sent(), Some(&close(1007, "invalid UTF-8")));
        assert_eq!(sent(side, |out| connection.send_fault(|| KEY, out)), None);
        assert_eq!(sent(side, |out| connection.send_failure(CloseCode(1011), "", || KEY, out)), None);
        assert_eq!(connection.state(), State::Failed);

        // After our own close frame nothing more is sent.
        let mut connection = in_state(side, State::CloseSent);
        feed(&mut connection, &to(side, Frame::text(b"\xff")));
        assert_eq!(connection.state(), State::Failed);
        assert_eq!(sent(side, |out| connection.send_fault(|| KEY, out)), None);
        assert_eq!(connection.close_sent(), Some(&close(1000, "")));

        // The first fault is kept; later input is discarded.
        assert_eq!(feed(&mut connection, &to(side, Frame::new(3, ""))), []);
        assert_eq!(connection.fault(), Some(Fault::InvalidUtf8));

        // Without a fault nothing is sent.
        for state in [State::Open, State::CloseReceived, State::CloseSent, State::Closed] {
            let mut connection = in_state(side, state);
            assert_eq!(sent(side, |out| connection.send_fault(|| KEY, out)), None, "{state:?}");
            assert_eq!(connection.state(), state);
        }
    }
}

/// Failures for other reasons than received bytes: a missing pong, the end of the stream.
#[test]
fn local_failure_sends_its_code_and_reason() {
    for side in SIDES {
        for state in STATES {
            let mut connection = in_state(side, state);
            let frame = sent(side, |out| connection.send_failure(CloseCode(1011), "no pong", || KEY, out));
            let due = matches!(state, State::Open | State::Failed);
            assert_eq!(frame, due.then(|| Frame::close(1011, "no pong")), "{state:?}");
            let expected = if state == State::Closed { State::Closed } else { State::Failed };
            assert_eq!(connection.state(), expected, "{state:?}");
        }
        // A long reason is truncated at the end of a character.
        for (reason, kept) in [
            ("é".repeat(100), "é".repeat(61)),
            ("x".repeat(200), "x".repeat(123)),
            (format!("{}😀", "x".repeat(120)), "x".repeat(120)),
        ] {
            let mut connection = connection(side);
            let frame = sent(side, |out| connection.send_failure(CloseCode(1011), &reason, || KEY, out));
            assert_eq!(frame, Some(Frame::close(1011, &kept)));
            assert_eq!(connection.close_sent(), Some(&close(1011, &kept)));
        }
    }
}

/// The end of the stream inside a message discards the message.
#[test]
fn end_of_stream_discards_an_open_message() {
    for side in SIDES {
        let mut connection = connection(side);
        let bytes = to(side, Frame::text("message"));
        assert_eq!(feed(&mut connection, &bytes[..bytes.len() - 1]), []);
        assert!(connection.is_mid_message());
        connection.receive_eof();
        assert!(!connection.is_mid_message());
        assert_eq!((connection.state(), connection.fault()), (State::Failed, None));
        assert_eq!(feed(&mut connection, &bytes[bytes.len() - 1..]), []);
    }
}
