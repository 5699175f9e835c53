//! The write queue on a socket: own and shared parts, written in pieces as the kernel has room.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // tests fail by panicking

mod support;

use std::sync::Arc;

use support::{endpoint, layers, shake_hands, sockets};
use wirespeed_driver::endpoint::Failure;
use wirespeed_driver::frames::Frames;
use wirespeed_driver::protocol::{Event, MessageKind, Payload, Side};
use wirespeed_driver::socket::Mode;
use wirespeed_driver::write_queue::{Flushed, WriteQueue};
use wirespeed_driver::{ConnectionDriver, Endpoint};

#[test]
fn parts_are_written_in_order() {
    let (ours, theirs) = sockets(Some(8 * 1024));
    let shared = Arc::new(Frames::from((0..50_000u32).map(|at| at as u8).collect::<Vec<_>>()));
    let (mut queue, mut expected, mut read) = (WriteQueue::default(), Vec::new(), Vec::with_capacity(1 << 22));
    let mut blocked = 0;
    for turn in 0..60usize {
        let own = vec![turn as u8; turn * 37];
        queue.tail().extend_from_slice(&own);
        expected.extend_from_slice(&own);
        if turn % 2 == 0 {
            let from = turn * 100;
            queue.push_shared(Arc::clone(&shared), from);
            expected.extend_from_slice(&shared[from..]);
        }
        blocked += usize::from(queue.flush(&ours, Mode::NonBlocking).unwrap() == Flushed::Blocked);
        let _ = theirs.receive(&mut read, 20_000, Mode::NonBlocking);
        assert_eq!(queue.written() + queue.len() as u64, expected.len() as u64);
    }
    while queue.flush(&ours, Mode::NonBlocking).unwrap() == Flushed::Blocked {
        let _ = theirs.receive(&mut read, usize::MAX, Mode::NonBlocking);
    }
    while theirs.receive(&mut read, usize::MAX, Mode::NonBlocking).is_ok() {}
    assert!(blocked > 10, "the kernel's buffer was never full");
    assert!(read == expected, "bytes arrived in another order");
    assert_eq!((queue.len(), queue.capacity(), Arc::strong_count(&shared)), (0, 0, 1));
}

/// Without TLS, all connections share one allocation.
#[test]
fn shared_frames_are_not_copied() {
    let frames = Arc::new(Frames::from(vec![0; 10_000]));
    let mut peers: Vec<_> = (0..10).map(|_| endpoint(Side::Server, None)).collect();
    for endpoint in &mut peers {
        endpoint.send_half_mut().send_shared(&frames, 9_996, false).unwrap();
        assert_eq!((endpoint.send_half().queued(), endpoint.held_capacity()), (10_000, 0));
    }
    assert_eq!(Arc::strong_count(&frames), 11);
    assert_eq!(peers[0].send_half_mut().take_output(), &frames[..]);
    drop(peers);
    assert_eq!(Arc::strong_count(&frames), 1);
    // Small frames are copied, and so are frames for TLS.
    let (client, server) = layers(&[]);
    let (mut client, mut server) = (support::End::new(client), support::End::new(server));
    shake_hands(&mut client, &mut server, 1000);
    let mut secure = endpoint(Side::Server, Some(server.layer));
    secure.send_half_mut().send_shared(&frames, 9_996, false).unwrap();
    let mut plain = endpoint(Side::Server, None);
    let small = Arc::new(Frames::from(vec![0; 100]));
    plain.send_half_mut().send_shared(&small, 98, false).unwrap();
    assert_eq!((Arc::strong_count(&frames), Arc::strong_count(&small)), (1, 1));
    let wire = secure.send_half_mut().take_output();
    client.receive(&wire, 1000);
    assert_eq!(client.plain, &frames[..]);
}

/// Queued frames share TLS records, as an overhead of 22 bytes each would be large for small messages.
#[test]
fn frames_share_tls_records() {
    let (client, server) = layers(&[]);
    let (mut client, mut server) = (support::End::new(client), support::End::new(server));
    shake_hands(&mut client, &mut server, 1000);
    let mut secure = endpoint(Side::Server, Some(server.layer));
    for _ in 0..100 {
        secure.send_half_mut().send_message(MessageKind::Binary, &[7; 62], None).unwrap();
    }
    assert_eq!(secure.send_half().queued(), 6_400, "bytes count before they are encrypted");
    let wire = secure.send_half_mut().take_output();
    assert!(wire.len() < 6_400 + 30, "{}", wire.len());
    client.receive(&wire, 1000);
    assert_eq!(client.plain.len(), 6_400);
    assert_eq!(secure.held_capacity(), 0);
}

/// A server writes a large message without copying it, between other queued messages.
#[test]
fn large_message_is_written_in_place() {
    let (ours, theirs) = sockets(Some(8 * 1024));
    let mut conn = ConnectionDriver::new(endpoint(Side::Server, None), Some(ours), None);
    let mut client = endpoint(Side::Client, None);
    let shared: Arc<[u8]> = vec![9; 5_000].into();
    let (mut sent, mut got, mut pongs, mut partial) = (Vec::new(), Vec::new(), 0, 0);
    let mut pump = |conn: &mut ConnectionDriver<Vec<u8>>, client: &mut Endpoint, got: &mut Vec<Vec<u8>>| {
        let _ = client.send_half_mut().flush(&theirs, Mode::NonBlocking);
        let mut read = client.begin_read(30_000);
        let result = read.read(&theirs, Mode::NonBlocking);
        client.complete_read(read, result);
        while let Some(event) = client.poll_event() {
            match event {
                Event::Message { payload: Payload::Slice(bytes), .. } => got.push(bytes.to_vec()),
                Event::Message { payload: Payload::Buffer(bytes), .. } => got.push(bytes),
                Event::Pong(_) => pongs += 1,
                _ => {}
            }
        }
        conn.read(true, usize::MAX);
        while conn.poll_event().is_some() {}
    };
    for turn in 0..40usize {
        let message: Vec<u8> = (0..turn * 4_000 + 65_536).map(|at| (at * 7 + turn) as u8).collect();
        conn.send_half_mut().send_message(MessageKind::Binary, &message[..turn], None).unwrap();
        sent.push(message[..turn].to_vec());
        for _ in 0..turn % 20 {
            let mut frame = vec![0x82, 126, 0x13, 0x88];
            frame.extend_from_slice(&shared);
            conn.send_half_mut().send_shared(&Arc::new(frame.into()), 5_000, false).unwrap();
            sent.push(shared.to_vec());
        }
        assert!(conn.send_half().is_large(message.len(), None));
        let mut large = conn.send_half_mut().begin_large(MessageKind::Binary, message.len()).unwrap();
        client.send_half_mut().send_ping(b"in the middle").unwrap();
        let mut start = 0;
        while conn.send_half().is_mid_frame() {
            let written = conn.write_large(&mut large, &message[start..]).unwrap();
            start += written;
            partial += usize::from(start < message.len());
            pump(&mut conn, &mut client, &mut got);
        }
        assert_eq!(start, message.len());
        sent.push(message);
    }
    while conn.flush().unwrap() == Flushed::Blocked || got.len() < sent.len() {
        pump(&mut conn, &mut client, &mut got);
    }
    assert!(partial > 100, "the kernel's buffer was never full");
    assert!(got == sent, "messages arrived in another order");
    assert!(pongs > 0 && client.send_half().failure().is_none());
    assert_eq!((conn.send_half().queued(), conn.endpoint().held_capacity()), (0, 0));
}

#[test]
fn masked_and_encrypted_messages_are_not_written_in_place() {
    let (ours, _theirs) = sockets(None);
    let mut masked = ConnectionDriver::new(endpoint(Side::Client, None), Some(ours), None);
    let mut large = masked.send_half_mut().begin_large(MessageKind::Binary, 200_000).unwrap();
    assert!(masked.write_large(&mut large, &[0; 200_000]).is_none());
    let (_, layer) = layers(&[]);
    let (ours, _theirs) = sockets(None);
    let mut secure = ConnectionDriver::new(endpoint(Side::Server, Some(layer)), Some(ours), None);
    assert!(!secure.send_half().is_large(100_000, None));
    let mut large = secure.send_half_mut().begin_large(MessageKind::Binary, 200_000).unwrap();
    assert!(secure.write_large(&mut large, &[0; 200_000]).is_none());
}

/// For a socket that cannot be written any more, nothing is queued.
#[test]
fn large_message_to_a_closed_socket_fails() {
    let (ours, theirs) = sockets(None);
    drop(theirs);
    let mut conn = ConnectionDriver::new(endpoint(Side::Server, None), Some(ours), None);
    let mut large = conn.send_half_mut().begin_large(MessageKind::Binary, 200_000).unwrap();
    assert_eq!(conn.write_large(&mut large, &[0; 200_000]), Some(0));
    assert!(matches!(conn.send_half().failure(), Some(Failure::Io(_))));
    assert_eq!(conn.send_half().queued(), 0);
}
