//! Receives any bytes: the events depend on the bytes only, never on how they were split or read.

use wirespeed_protocol::{Connection, Delivery, Limits, Side};

use crate::input::{Input, pieces};
use crate::support::model::model;
use crate::support::{Rng, Seen, connection_with, feed, feed_all, params};

/// The first byte selects the side, the delivery and the compression, the second the limits, the next two the pieces.
/// The others are received.
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
    let make = || {
        let mut connection = connection_with(side, limits, deflate);
        connection.set_delivery(delivery);
        connection
    };

    let whole = feed(&mut make(), bytes);
    assert_eq!(feed_all(&mut make(), pieces(bytes, &mut rng)), whole, "in pieces");
    assert_eq!(through_destinations(&mut make(), bytes, &mut rng), whole, "through destinations");
    if bytes.len() < 500 {
        assert_eq!(feed_all(&mut make(), bytes.chunks(1)), whole, "byte by byte");
    }
    if deflate.is_none() {
        assert_eq!(model(side, limits, delivery, bytes), whole, "the model");
    }
    for event in &whole {
        if let Seen::Message(_, payload) | Seen::Fragment(_, payload, _) = event {
            assert!(payload.len() <= limits.message_size.unwrap_or(usize::MAX));
        }
    }
}

/// Reads the missing part of a large payload straight into the message, as the driver does.
fn through_destinations(connection: &mut Connection, mut bytes: &[u8], rng: &mut Rng) -> Vec<Seen> {
    let mut events = Vec::new();
    loop {
        while let Some(mut destination) = connection.take_destination(1 + rng.below(4)) {
            let room = destination.room();
            assert!(!room.is_empty());
            let len = rng.below(room.len() + 1).min(bytes.len());
            let (read, behind) = bytes.split_at(len);
            for (to, from) in room.iter_mut().zip(read) {
                to.write(*from);
            }
            bytes = behind;
            // SAFETY: the first `len` bytes of the room were written.
            if let Err(fault) = unsafe { connection.put_destination(destination, len) } {
                events.push(Seen::Fault(fault));
                return events;
            }
            if len == 0 {
                break;
            }
        }
        let (chunk, behind) = bytes.split_at(rng.below(60).min(bytes.len()));
        let end = bytes.is_empty();
        bytes = behind;
        events.extend(feed(connection, chunk));
        if end {
            return events;
        }
    }
}
