//! The write queue over a socket: own and shared parts, in pieces as the kernel has room.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // tests fail by panicking

mod support;

use std::sync::Arc;

use support::{layers, peer, shake_hands, sockets};
use wirespeed_driver::protocol::{MessageKind, Side};
use wirespeed_driver::socket::Mode;
use wirespeed_driver::write_queue::{Flushed, WriteQueue};

#[test]
fn parts_leave_in_their_order() {
    let (ours, theirs) = sockets(Some(8 * 1024));
    let shared: Arc<[u8]> = (0..50_000u32).map(|at| at as u8).collect();
    let (mut queue, mut expected, mut read) = (WriteQueue::default(), Vec::new(), Vec::with_capacity(1 << 22));
    let mut blocked = 0;
    for turn in 0..60usize {
        let own = vec![turn as u8; turn * 37];
        queue.tail().extend_from_slice(&own);
        expected.extend_from_slice(&own);
        if turn % 2 == 0 {
            queue.push_shared(Arc::clone(&shared));
            expected.extend_from_slice(&shared);
        }
        blocked += usize::from(queue.flush(&ours, Mode::NonBlocking).unwrap() == Flushed::Blocked);
        let _ = theirs.receive(&mut read, 20_000, Mode::NonBlocking);
        assert_eq!(queue.written() + queue.len() as u64, expected.len() as u64);
    }
    while queue.flush(&ours, Mode::NonBlocking).unwrap() == Flushed::Blocked {
        let _ = theirs.receive(&mut read, usize::MAX, Mode::NonBlocking);
    }
    while theirs.receive(&mut read, usize::MAX, Mode::NonBlocking).is_ok() {}
    assert!(blocked > 10, "the kernel never had too little room");
    assert!(read == expected, "bytes came in another order");
    assert_eq!((queue.len(), queue.capacity(), Arc::strong_count(&shared)), (0, 0, 1));
}

/// One allocation for all, where nothing is encrypted.
#[test]
fn what_is_shared_is_not_copied() {
    let frames: Arc<[u8]> = vec![0; 10_000].into();
    let mut peers: Vec<_> = (0..10).map(|_| peer(Side::Server, None)).collect();
    for peer in &mut peers {
        peer.link.send_shared(&frames, 9_996, false).unwrap();
        assert_eq!((peer.link.queued(), peer.held_capacity()), (10_000, 0));
    }
    assert_eq!(Arc::strong_count(&frames), 11);
    assert_eq!(peers[0].link.take_output(), &frames[..]);
    drop(peers);
    assert_eq!(Arc::strong_count(&frames), 1);
    // Small ones, and what is encrypted, are.
    let (client, server) = layers(&[]);
    let (mut client, mut server) = (support::End::new(client), support::End::new(server));
    shake_hands(&mut client, &mut server, 1000);
    let mut secure = peer(Side::Server, Some(server.layer));
    secure.link.send_shared(&frames, 9_996, false).unwrap();
    let mut plain = peer(Side::Server, None);
    let small: Arc<[u8]> = vec![0; 100].into();
    plain.link.send_shared(&small, 98, false).unwrap();
    assert_eq!((Arc::strong_count(&frames), Arc::strong_count(&small)), (1, 1));
    let wire = secure.link.take_output();
    client.receive(&wire, 1000);
    assert_eq!(client.plain, &frames[..]);
}

/// What waits to be encrypted shares the records: 22 bytes each would be as much again as small messages are.
#[test]
fn frames_share_records() {
    let (client, server) = layers(&[]);
    let (mut client, mut server) = (support::End::new(client), support::End::new(server));
    shake_hands(&mut client, &mut server, 1000);
    let mut secure = peer(Side::Server, Some(server.layer));
    for _ in 0..100 {
        secure.link.send_message(MessageKind::Binary, &[7; 62], None).unwrap();
    }
    assert_eq!(secure.link.queued(), 6_400, "it is counted before it is encrypted");
    let wire = secure.link.take_output();
    assert!(wire.len() < 6_400 + 30, "{}", wire.len());
    client.receive(&wire, 1000);
    assert_eq!(client.plain.len(), 6_400);
    assert_eq!(secure.held_capacity(), 0);
}
