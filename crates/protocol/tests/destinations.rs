//! Destinations: buffers into which large payloads are read.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(unsafe_code, reason = "Connection::put_destination takes the caller's word for initialised bytes")]

mod support;

use std::mem::MaybeUninit;

use support::inflate::stored;
use support::{
    Frame, KEY, Rng, SIDES, Seen, connection, connection_with, feed, fragments, params, sparse, stream_to, to,
};
use wirespeed_protocol::{Connection, Fault, Limits};

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

const NO_LIMITS: Limits = Limits { message_size: None, fragment_size: None, fragments: None };

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
        let mut receiver = connection_with(side, NO_LIMITS, Some(params(15, false)));
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
