//! How much a read takes from the socket, and what it reports about the rest.

#![allow(clippy::unwrap_used)] // tests fail by panicking

mod support;

use support::{endpoint, sockets};
use wirespeed_driver::Endpoint;
use wirespeed_driver::buffer_pool::READ_SIZE;
use wirespeed_driver::protocol::{Event, MessageKind, Payload, Side};
use wirespeed_driver::socket::{Mode, Socket};

/// Reads once. Returns the number of bytes, and whether the socket is drained.
fn read(endpoint: &mut Endpoint, socket: &Socket) -> (usize, bool) {
    let mut operation = endpoint.begin_read(usize::MAX);
    let result = operation.read(socket, Mode::NonBlocking);
    let (came, drained) = (result.as_ref().copied().unwrap_or(0), operation.is_drained(&result));
    endpoint.complete_read(operation, result);
    (came, drained)
}

/// Returns the sizes of the messages that can be parsed.
fn messages(endpoint: &mut Endpoint) -> Vec<usize> {
    let mut sizes = Vec::new();
    while let Some(event) = endpoint.poll_event() {
        let Event::Message { payload, .. } = event else { continue };
        sizes.push(match payload {
            Payload::Slice(slice) => slice.len(),
            Payload::Buffer(buffer) => buffer.len(),
        });
    }
    sizes
}

fn frame(size: usize) -> Vec<u8> {
    let mut server = endpoint(Side::Server, None);
    server.send_half_mut().send_message(MessageKind::Binary, &vec![7; size], None).unwrap();
    server.send_half_mut().take_output()
}

/// `filled` is not 0 only if the read filled its buffer. The caller then reads again.
#[test]
fn full_read_reports_its_size() {
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
    assert_eq!(filled(&mut client), 0, "the socket is empty");
    theirs.send(&frame(1000), Mode::NonBlocking).unwrap();
    assert_eq!(filled(&mut client), 0, "there was room for more");
    let large = frame(2 * READ_SIZE);
    theirs.send(&[&large[..], &large].concat(), Mode::NonBlocking).unwrap();
    assert_eq!(filled(&mut client), READ_SIZE);
    assert_eq!(filled(&mut client), large.len(), "the rest of the message, and as much of the next as before");
    assert_eq!(filled(&mut client), 0, "nothing follows the rest of the second");
    drop(theirs);
    assert_eq!(filled(&mut client), 0, "the end of the stream");
}

#[test]
fn read_reports_whether_the_socket_is_drained() {
    let (ours, theirs) = sockets(Some(1 << 20));
    let mut client = endpoint(Side::Client, None);
    assert_eq!(read(&mut client, &ours), (0, true), "the socket is empty");
    theirs.send(&frame(1000), Mode::NonBlocking).unwrap();
    assert_eq!(read(&mut client, &ours), (1004, true));
    assert_eq!(messages(&mut client), [1000]);
    drop(theirs);
    assert_eq!(read(&mut client, &ours), (0, false), "no edge follows the end of the stream");
}

/// After a large message, a read takes just enough for the header of the next. The rest is read straight into the
/// buffer of the message, so that each byte is copied only once.
#[test]
fn another_large_message_is_expected_after_a_large_one() {
    let (ours, theirs) = sockets(Some(4 << 20));
    let mut client = endpoint(Side::Client, None);
    let large = frame(100_000);
    theirs.send(&[&large[..], &large, &large].concat(), Mode::NonBlocking).unwrap();
    let (came, drained) = read(&mut client, &ours);
    assert!(came > 200_000, "the first read takes everything: {came}");
    let mut sizes = messages(&mut client);
    let mut drained = drained;
    while !drained {
        let (came, last) = read(&mut client, &ours);
        assert!(came < 110_000, "at most a message and the header of the next: {came}");
        drained = last;
        sizes.extend(messages(&mut client));
    }
    assert_eq!(sizes, [100_000; 3]);
    // Another large message takes two reads: its beginning, and the rest into its buffer.
    theirs.send(&large, Mode::NonBlocking).unwrap();
    assert_eq!(read(&mut client, &ours), (4096, false));
    assert_eq!(messages(&mut client), []);
    assert_eq!(read(&mut client, &ours), (large.len() - 4096, true));
    assert_eq!(messages(&mut client), [100_000]);
    // After small messages no large one is expected.
    theirs.send(&[frame(10), frame(10_000), frame(10_000)].concat(), Mode::NonBlocking).unwrap();
    assert_eq!(read(&mut client, &ours), (4096, false));
    assert_eq!(messages(&mut client), [10]);
    let rest = 12 + 2 * 10_004 - 4096;
    assert_eq!(read(&mut client, &ours), (rest, true));
    assert_eq!(messages(&mut client), [10_000, 10_000]);
}
