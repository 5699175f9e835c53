//! After a fork, connections belong to the parent: the child encodes and writes nothing. A separate program, as the
//! generation of forks is per process.

#![allow(clippy::unwrap_used)] // tests fail by panicking

mod support;

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use support::{End, NativeHost, endpoint, hooked, layers, shake_hands, sockets, until};
use wirespeed_driver::blocking::{Blocking, Error, Settings, Timeout};
use wirespeed_driver::buffer_pool::{self, CHECKED_OUT_MAX, READ_SIZE};
use wirespeed_driver::compression_pool;
use wirespeed_driver::connection::{ConnectionDriver, Progress};
use wirespeed_driver::endpoint::Failure;
use wirespeed_driver::protocol::{Delivery, MessageKind, Side};
use wirespeed_driver::socket::{Mode, Socket};
use wirespeed_driver::write_queue::Flushed;

fn is_silent(socket: &Socket) -> bool {
    let mut buffer = Vec::with_capacity(64);
    matches!(socket.receive(&mut buffer, usize::MAX, Mode::NonBlocking), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// A fork concerns all connections of the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn child_does_not_wait_for_a_lock_of_the_parent() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (there, here) = sockets(None);
    let mut server = endpoint(Side::Server, None);
    server.send_half_mut().send_message(MessageKind::Text, b"x", None).unwrap();
    server.send_half_mut().flush(&there, Mode::NonBlocking).unwrap();
    let connection: Blocking<Vec<u8>, Vec<u8>> = Blocking::new(endpoint(Side::Client, None), here, Settings::default());
    let (taken, looked) = (AtomicBool::new(false), AtomicBool::new(false));
    let holds_lock = || {
        taken.store(true, Ordering::Relaxed);
        until(|| looked.load(Ordering::Relaxed));
        assert!(!connection.is_reentrant(), "the lock is the parent's");
    };
    let timeout = Timeout::Until(Some(Instant::now() + Duration::from_secs(5)));
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| connection.receive(&hooked(holds_lock, || {}), timeout, Delivery::Messages));
        until(|| taken.load(Ordering::Relaxed));
        wirespeed_driver::after_fork();
        let waits = AtomicBool::new(false);
        let on_wait = || {
            waits.store(true, Ordering::Relaxed);
            looked.store(true, Ordering::Relaxed);
        };
        let (_, over) = connection.state(&hooked(|| {}, on_wait));
        looked.store(true, Ordering::Relaxed);
        assert!(over && !waits.into_inner());
        let _ = receiver.join().unwrap();
    });
}

#[test]
fn child_writes_nothing() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let host = NativeHost::default();
    let (client, server) = layers(&[]);
    let (mut client, mut server) = (End::new(client), End::new(server));
    shake_hands(&mut client, &mut server, 1000);
    let (there, here) = sockets(None);
    let mut driver: ConnectionDriver<Vec<u8>> =
        ConnectionDriver::new(endpoint(Side::Client, Some(client.layer)), Some(here), None);
    let (blocking_there, blocking_here) = sockets(None);
    let blocking: Blocking<Vec<u8>, Vec<u8>> =
        Blocking::new(endpoint(Side::Client, None), blocking_here, Settings::default());
    let (queued_there, queued_here) = sockets(None);
    let mut queued = endpoint(Side::Client, None);
    queued.send_half_mut().send_message(MessageKind::Text, b"before", None).unwrap();

    wirespeed_driver::after_fork();

    // The parent writes messages that were queued before.
    assert_eq!(queued.send_half_mut().flush(&queued_here, Mode::NonBlocking).unwrap(), Flushed::All);
    assert!(queued.send_half_mut().take_output().is_empty());
    assert!(is_silent(&queued_there));

    // Nothing is encrypted, queued or written.
    let _ = driver.send_half_mut().send_message(MessageKind::Text, b"x", None);
    let _ = driver.send_half_mut().send_ping(b"x");
    driver.send_half_mut().send_close_notify();
    assert_eq!(driver.send_half().queued(), 0);
    assert_eq!(driver.flush().unwrap(), Flushed::All);
    assert!(is_silent(&there));
    // The connection is over at its first use, but the socket stays open for the parent.
    driver.end_after_fork();
    assert_eq!(driver.advance(Instant::now), Progress::Over);
    assert!(matches!(driver.send_half().failure(), Some(Failure::Forked)));
    let kept = driver.take_ended();
    assert!(is_silent(&there));
    drop(kept);

    assert!(matches!(blocking.send(&host, MessageKind::Text, &b"x"[..], None), Err(Error::Closed)));
    let timeout = Timeout::Until(Some(Instant::now() + Duration::from_secs(5)));
    assert!(matches!(blocking.receive(&host, timeout, Delivery::Messages), Err(Error::Closed)));
    blocking.close(&host, None, "").unwrap();
    assert!(blocking.socket(&host).is_none());
    // The only descriptor is closed here, so the stream ends. A frame would have arrived before the end.
    let mut buffer = Vec::with_capacity(64);
    assert_eq!(blocking_there.receive(&mut buffer, usize::MAX, Mode::NonBlocking).unwrap(), 0);
}

/// Buffers and compressors of the parent's threads do not count in the child, as they are never returned there.
#[test]
fn child_counts_only_its_own_buffers() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let out: Vec<_> = (0..CHECKED_OUT_MAX / READ_SIZE).map(|_| buffer_pool::take_read()).collect();
    let context = compression_pool::Reservation::take(compression_pool::BUDGET - (2 << 20)).unwrap();
    assert!(compression_pool::Reservation::take(4 << 20).is_none());
    wirespeed_driver::after_fork();
    assert_eq!(buffer_pool::checked_out(), 0);
    let own = compression_pool::Reservation::take(compression_pool::BUDGET - (2 << 20)).unwrap();
    // Objects of the parent do not count when they are dropped here.
    drop((out, context));
    assert_eq!(buffer_pool::checked_out(), 0);
    assert!(compression_pool::Reservation::take(4 << 20).is_none());
    drop(own);
    assert!(compression_pool::Reservation::take(4 << 20).is_some());
}
