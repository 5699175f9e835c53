//! What a read takes from the socket, and what it says of what is left.

#![allow(clippy::unwrap_used)] // tests fail by panicking

mod support;

use support::{endpoint, sockets};
use wirespeed_driver::Endpoint;
use wirespeed_driver::buffer_pool::READ_SIZE;
use wirespeed_driver::endpoint::PeerEvent;
use wirespeed_driver::protocol::{MessageKind, Payload, Side};
use wirespeed_driver::socket::{Mode, Socket};

/// Reads once; how much came, and whether that was all.
fn read(endpoint: &mut Endpoint, socket: &Socket) -> (usize, bool) {
    let mut operation = endpoint.begin_read(usize::MAX);
    let result = operation.read(socket, Mode::NonBlocking);
    let (came, drained) = (result.as_ref().copied().unwrap_or(0), operation.is_drained(&result));
    endpoint.complete_read(operation, result);
    (came, drained)
}

/// The sizes of the messages that are there.
fn messages(endpoint: &mut Endpoint) -> Vec<usize> {
    let mut sizes = Vec::new();
    while let Some(event) = endpoint.poll_event() {
        let PeerEvent::Message { payload, .. } = event else { continue };
        sizes.push(match payload {
            Payload::Slice(slice) => slice.len(),
            Payload::Buffer(buffer) => buffer.len(),
        });
    }
    sizes
}

fn frame(size: usize) -> Vec<u8> {
    let mut server = endpoint(Side::Server, None);
    server.send_half.send_message(MessageKind::Binary, &vec![7; size], None).unwrap();
    server.send_half.take_output()
}

/// Who is asked again and again reads on, for a while, what has filled its room; nothing else.
#[test]
fn a_read_that_fills_its_room_says_so() {
    let (ours, theirs) = sockets(Some(4 << 20));
    let mut client = endpoint(Side::Client, None);
    let filled = |client: &mut Endpoint| {
        let mut operation = client.begin_read(usize::MAX);
        let result = operation.read(&ours, Mode::NonBlocking);
        let filled = operation.filled(&result);
        client.complete_read(operation, result);
        let _ = messages(client);
        filled
    };
    assert_eq!(filled(&mut client), 0, "nothing is there");
    theirs.send(&frame(1000), Mode::NonBlocking).unwrap();
    assert_eq!(filled(&mut client), 0, "there was room for more");
    let large = frame(2 * READ_SIZE);
    theirs.send(&[&large[..], &large].concat(), Mode::NonBlocking).unwrap();
    assert_eq!(filled(&mut client), READ_SIZE);
    assert_eq!(filled(&mut client), large.len(), "the rest of it, and as much behind it as before");
    assert_eq!(filled(&mut client), 0, "the rest of that has nothing behind it");
    drop(theirs);
    assert_eq!(filled(&mut client), 0, "the end");
}

#[test]
fn a_read_says_whether_more_is_there() {
    let (ours, theirs) = sockets(Some(1 << 20));
    let mut client = endpoint(Side::Client, None);
    assert_eq!(read(&mut client, &ours), (0, true), "nothing is there");
    theirs.send(&frame(1000), Mode::NonBlocking).unwrap();
    assert_eq!(read(&mut client, &ours), (1004, true));
    assert_eq!(messages(&mut client), [1000]);
    drop(theirs);
    assert_eq!(read(&mut client, &ours), (0, false), "the end is no edge to come");
}

/// After a large message no more is read than shows the header of the next: the rest goes straight to its
/// place, and each byte is copied once.
#[test]
fn large_messages_are_expected_after_large_ones() {
    let (ours, theirs) = sockets(Some(4 << 20));
    let mut client = endpoint(Side::Client, None);
    let large = frame(100_000);
    theirs.send(&[&large[..], &large, &large].concat(), Mode::NonBlocking).unwrap();
    let (came, drained) = read(&mut client, &ours);
    assert!(came > 200_000, "the first read takes what there is: {came}");
    let mut sizes = messages(&mut client);
    let mut drained = drained;
    while !drained {
        let (came, last) = read(&mut client, &ours);
        assert!(came < 110_000, "no more than a message and what shows the next: {came}");
        drained = last;
        sizes.extend(messages(&mut client));
    }
    assert_eq!(sizes, [100_000; 3]);
    // Another one is read in two: its beginning, and the rest into its place.
    theirs.send(&large, Mode::NonBlocking).unwrap();
    assert_eq!(read(&mut client, &ours), (4096, false));
    assert_eq!(messages(&mut client), []);
    assert_eq!(read(&mut client, &ours), (large.len() - 4096, true));
    assert_eq!(messages(&mut client), [100_000]);
    // Small ones end the expectation.
    theirs.send(&[frame(10), frame(10_000), frame(10_000)].concat(), Mode::NonBlocking).unwrap();
    assert_eq!(read(&mut client, &ours), (4096, false));
    assert_eq!(messages(&mut client), [10]);
    let rest = 12 + 2 * 10_004 - 4096;
    assert_eq!(read(&mut client, &ours), (rest, true));
    assert_eq!(messages(&mut client), [10_000, 10_000]);
}
