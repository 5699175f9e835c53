//! Input that is checked out and returned at any time: the events are those of an endpoint that gets all bytes at once.

use std::time::Instant;

use wirespeed_driver::buffer_pool::ReadBuffer;
use wirespeed_driver::endpoint::Endpoint;
use wirespeed_driver::{Keepalive, buffer_pool};
use wirespeed_protocol::deflate::Params;
use wirespeed_protocol::{CloseFrame, Delivery, Event, Limits, Side, State};

use crate::input::{Input, pieces};
use crate::support::{Rng, Seen, connection_with, owned, params};

/// The events of a connection and its final state.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    events: Vec<Seen>,
    /// Number of close frames of the peer.
    closings: usize,
    state: Option<State>,
    failure: Option<String>,
    close: Option<CloseFrame>,
    /// The output of a server. The output of clients differs, as their keys are random.
    output: Vec<u8>,
}

/// The first bytes select the side, the parameters and the limits, as in `receive`. The others are the peer's bytes,
/// after which the stream ends.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let side = if choice & 1 == 0 { Side::Client } else { Side::Server };
    let delivery = if choice & 2 == 0 { Delivery::Messages } else { Delivery::Fragments };
    let deflate = (choice & 4 != 0).then(|| params(15, choice & 8 != 0));
    let choice = input.byte();
    let sizes = [None, Some(0), Some(10), Some(1000)];
    let limits = Limits {
        message_size: sizes[usize::from(choice & 3)].or(Some(1 << 20)),
        fragment_size: sizes[usize::from(choice >> 2 & 3)],
        fragments: [None, Some(1), Some(3), Some(4096)][usize::from(choice >> 4 & 3)],
    };
    let mut rng = Rng::new(u64::from(input.number()));
    let bytes = input.rest();
    let bytes = &bytes[..bytes.len().min(buffer_pool::READ_SIZE / 2 - 1)];
    let whole = at_once(endpoint(side, delivery, limits, deflate), bytes);
    for _ in 0..3 {
        assert_eq!(checked_out(endpoint(side, delivery, limits, deflate), bytes, &mut rng), whole);
    }
}

fn endpoint(side: Side, delivery: Delivery, limits: Limits, deflate: Option<Params>) -> Endpoint {
    let keepalive = Keepalive::new(None, None, Instant::now());
    let mut peer = Endpoint::new(connection_with(side, limits, deflate), None, &[], Vec::new(), keepalive);
    peer.set_delivery(delivery);
    peer
}

fn at_once(mut peer: Endpoint, bytes: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    peer.receive_slice(bytes);
    while poll(&mut peer, &mut outcome) {}
    peer.receive_eof();
    end(peer, outcome)
}

/// Receives the bytes in pieces, while the input is checked out and returned, sometimes as a copy.
fn checked_out(mut peer: Endpoint, bytes: &[u8], rng: &mut Rng) -> Outcome {
    let mut outcome = Outcome::default();
    let mut pieces = pieces(bytes, rng).into_iter().filter(|piece| !piece.is_empty()).peekable();
    let mut out: Option<(ReadBuffer, usize)> = None;
    let mut more = true;
    while more || out.is_some() || pieces.peek().is_some() || !peer.send_half().is_eof() {
        match rng.below(8) {
            0 | 1 => match pieces.next() {
                Some(piece) => {
                    peer.receive_slice(piece);
                    more = true;
                }
                None => peer.receive_eof(),
            },
            2..=4 if out.is_none() => more = poll(&mut peer, &mut outcome),
            5 if out.is_none() => out = Some(peer.take_input()),
            6 => peer.shrink_input(),
            _ => {
                if let Some((input, start)) = out.take() {
                    let kept = rng.below(2) == 0;
                    peer.put_input(if kept { (ReadBuffer::exact(&input[start..]), 0) } else { (input, start) });
                    more = true;
                }
            }
        }
        if out.is_some() || more && peer.has_input() {
            assert!(peer.has_input() && !peer.poll_eof(), "checked-out input is still to be processed");
        }
    }
    end(peer, outcome)
}

/// Polls an event. Returns false if there is none.
fn poll(peer: &mut Endpoint, outcome: &mut Outcome) -> bool {
    let seen = match peer.poll_event() {
        Some(Event::Message { kind, payload }) => Seen::Message(kind, owned(payload)),
        Some(Event::Fragment { kind, payload, fin }) => Seen::Fragment(kind, owned(payload), fin),
        Some(Event::Ping(payload)) => Seen::Ping(payload.as_slice().to_vec()),
        Some(Event::Pong(payload)) => Seen::Pong(payload.as_slice().to_vec()),
        Some(Event::Close(_)) => {
            outcome.closings += 1;
            return true;
        }
        Some(_) | None => return false,
    };
    assert_eq!(outcome.closings, 0, "an event after the end: {seen:?}");
    outcome.events.push(seen);
    true
}

fn end(mut peer: Endpoint, mut outcome: Outcome) -> Outcome {
    assert!(!peer.has_input() && peer.poll_eof());
    assert!(!poll(&mut peer, &mut outcome));
    outcome.state = Some(peer.send_half().state());
    outcome.failure = peer.send_half().failure().map(|failure| format!("{failure:?}"));
    outcome.close = peer.send_half().close_received().cloned();
    if peer.side() == Side::Server {
        outcome.output = peer.send_half_mut().take_output();
    } else {
        drop(peer.send_half_mut().take_output());
    }
    assert_eq!(peer.held_capacity(), 0, "a connection that is over holds no buffers");
    outcome
}
