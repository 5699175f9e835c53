//! The pool of read buffers and its limit for all connections together. A separate program, as the pool is per process.

#![allow(missing_docs, clippy::unwrap_used)] // tests fail by panicking

mod support;

use std::sync::{Mutex, PoisonError};

use support::{End, endpoint, layers, shake_hands, sockets};
use wirespeed_driver::Endpoint;
use wirespeed_driver::buffer_pool::{self, CHECKED_OUT_MAX, LARGE_READ_SIZE, READ_SIZE, SMALL_READ_SIZE};
use wirespeed_driver::endpoint::payload_len;
use wirespeed_driver::protocol::{Event, MessageKind, Side};
use wirespeed_driver::socket::Mode;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn large_reads_are_only_for_streams_without_tls() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let checked_out = |endpoint: &mut Endpoint, most| {
        let before = buffer_pool::checked_out();
        let read = endpoint.begin_large_read(most);
        (buffer_pool::checked_out() - before, read.is_large())
    };
    for tls in [false, true] {
        let (client_socket, server_socket) = sockets(None);
        let layer = if tls { Some(layers(&[]).1) } else { None };
        let (mut client, mut server) = (endpoint(Side::Client, None), endpoint(Side::Server, layer));
        assert_eq!(checked_out(&mut server, usize::MAX), (READ_SIZE, false));
        client.send_half_mut().send_message(MessageKind::Binary, &vec![0; 2 * SMALL_READ_SIZE], None).unwrap();
        client.send_half_mut().flush(&client_socket, Mode::NonBlocking).unwrap();
        // A read that fills its buffer. The buffer is small while many are checked out.
        let out: Vec<_> = (0..CHECKED_OUT_MAX / READ_SIZE).map(|_| buffer_pool::take_read()).collect();
        let mut read = server.begin_large_read(usize::MAX);
        let result = read.read(&server_socket, Mode::NonBlocking);
        server.complete_read(read, result);
        drop(out);
        assert_eq!(checked_out(&mut server, LARGE_READ_SIZE), (if tls { READ_SIZE } else { LARGE_READ_SIZE }, true));
        assert_eq!(checked_out(&mut server, LARGE_READ_SIZE - 1), (READ_SIZE, true));
    }
    // The rest of a large message is read with a large buffer, independent of the previous read.
    let (mut client, mut server) = (endpoint(Side::Client, None), endpoint(Side::Server, None));
    client.send_half_mut().send_message(MessageKind::Binary, &vec![0; 2 * SMALL_READ_SIZE], None).unwrap();
    server.receive_slice(&client.send_half_mut().take_output()[..1000]);
    assert!(server.poll_event().is_none());
    assert!(server.begin_read(usize::MAX).is_large());
}

/// A TLS record may be larger than a small buffer: 16 KiB and its overhead.
#[test]
fn tls_records_are_read_with_small_buffers() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (client, server) = layers(&[]);
    let (mut client, mut server) = (End::new(client), End::new(server));
    shake_hands(&mut client, &mut server, 1000);
    let (client_socket, server_socket) = sockets(None);
    let (mut client, mut server) =
        (endpoint(Side::Client, Some(client.layer)), endpoint(Side::Server, Some(server.layer)));
    let _out: Vec<_> = (0..CHECKED_OUT_MAX / READ_SIZE).map(|_| buffer_pool::take_read()).collect();
    for size in [10, 16_300, 16_384, 70_000, 200_000] {
        client.send_half_mut().send_message(MessageKind::Binary, &vec![7; size], None).unwrap();
        let mut received = None;
        for _ in 0..200 {
            client.send_half_mut().flush(&client_socket, Mode::NonBlocking).unwrap();
            let mut read = server.begin_read(usize::MAX);
            let result = read.read(&server_socket, Mode::NonBlocking);
            server.complete_read(read, result);
            if let Some(Event::Message { payload, .. }) = server.poll_event() {
                received = Some(payload_len(&payload));
                break;
            }
            assert!(server.send_half().failure().is_none() && !server.send_half().is_eof(), "of {size} bytes");
        }
        assert_eq!(received, Some(size));
        server.release_parsed();
    }
}

#[test]
fn checked_out_buffers_are_limited_together() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(buffer_pool::checked_out(), 0);
    let buffers: Vec<_> = (0..2 * CHECKED_OUT_MAX / READ_SIZE).map(|_| buffer_pool::take_read()).collect();
    let whole = buffers.iter().filter(|buffer| buffer.capacity() == READ_SIZE).count();
    assert_eq!(whole, CHECKED_OUT_MAX / READ_SIZE);
    assert!(buffers.iter().all(|buffer| buffer.capacity() >= SMALL_READ_SIZE));
    // No large buffers are given out meanwhile.
    assert!(buffer_pool::take_large_read().capacity() <= READ_SIZE);
    drop(buffers);
    assert_eq!(buffer_pool::checked_out(), 0);
    assert_eq!(buffer_pool::take_read().capacity(), READ_SIZE);

    let large: Vec<_> = (0..64).map(|_| buffer_pool::take_large_read()).collect();
    let together: usize = large.iter().map(|buffer| buffer.capacity()).sum();
    assert!(together < 2 * CHECKED_OUT_MAX / 4, "{together}");
    // Large buffers are given out as long as no more than 12 MiB are checked out.
    assert!(
        large.iter().map(|buffer| buffer.capacity()).eq([[LARGE_READ_SIZE; 13].as_slice(), &[READ_SIZE; 51]].concat())
    );
    drop(large);

    // A buffer that grew, or that another thread returns, counts with its original size.
    let mut grown = buffer_pool::take_read();
    grown.reserve(READ_SIZE + 1);
    std::thread::spawn(move || drop(grown)).join().expect("no panic");
    assert_eq!(buffer_pool::checked_out(), 0);
}
