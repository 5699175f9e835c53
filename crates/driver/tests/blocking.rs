//! [`Blocking`]: threads that share a connection, without an interpreter.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // tests fail by panicking

mod support;

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use support::{NativeHost, endpoint, endpoint_with, hooked, sockets, until};
use wirespeed_driver::blocking::{Blocking, Error, Host, Settings, Timeout};
use wirespeed_driver::protocol::{CloseCode, Delivery, MessageKind, Payload, Side, State};
use wirespeed_driver::socket::{Mode, Readiness, Socket};
use wirespeed_driver::{Endpoint, buffer_pool};

type Connection = Arc<Blocking<Vec<u8>, Vec<u8>>>;

const MS: Duration = Duration::from_millis(1);

fn pair(buffer: Option<usize>, keepalive: Option<Duration>) -> (Connection, Connection) {
    let (client, server) = sockets(buffer);
    let settings = Settings { close_timeout: Some(2000 * MS), ..Settings::default() };
    (
        Arc::new(Blocking::new(endpoint_with(Side::Client, None, keepalive), client, settings)),
        Arc::new(Blocking::new(endpoint(Side::Server, None), server, settings)),
    )
}

fn soon() -> Timeout {
    Timeout::Until(Some(Instant::now() + 5000 * MS))
}

fn receive(connection: &Connection) -> Vec<u8> {
    connection.receive(&NativeHost::default(), soon(), Delivery::Messages).unwrap().message
}

#[test]
fn two_ends_that_send_large_messages_do_not_deadlock() {
    let host = NativeHost::default();
    let (client, server) = pair(Some(4096), None);
    let other = {
        let server = Arc::clone(&server);
        thread::spawn(move || {
            for i in 0..20u8 {
                server.send(&NativeHost::default(), MessageKind::Binary, &vec![i; 100_000][..], None).unwrap();
            }
            (0..20).map(|_| receive(&server)).collect::<Vec<_>>()
        })
    };
    for i in 0..20u8 {
        client.send(&host, MessageKind::Binary, &vec![i; 100_000][..], None).unwrap();
    }
    for i in 0..20u8 {
        assert!(receive(&client) == vec![i; 100_000]);
    }
    for (i, message) in other.join().unwrap().into_iter().enumerate() {
        assert!(message == vec![i as u8; 100_000]);
    }
}

#[test]
fn a_timeout_is_exact_and_loses_nothing() {
    let host = NativeHost::default();
    let (client, server) = pair(None, None);
    for wait in [0, 5, 30, 120] {
        let start = Instant::now();
        let result = client.receive(&host, Timeout::Until(Some(start + wait * MS)), Delivery::Messages);
        let took = start.elapsed();
        assert!(matches!(result, Err(Error::TimedOut)));
        assert!(took >= wait * MS && took < wait * MS + 100 * MS, "{wait} ms took {took:?}");
    }
    server.send(&host, MessageKind::Text, &b"late"[..], None).unwrap();
    assert_eq!(receive(&client), b"late");
}

#[test]
fn every_message_goes_to_one_of_many_receivers() {
    let host = NativeHost::default();
    let (client, server) = pair(None, None);
    let receivers: Vec<_> = (0..4)
        .map(|_| {
            let client = Arc::clone(&client);
            thread::spawn(move || {
                let mut got = Vec::new();
                loop {
                    match receive(&client).as_slice() {
                        b"stop" => return got,
                        message => got.push(u32::from_le_bytes(message.try_into().unwrap())),
                    }
                }
            })
        })
        .collect();
    for i in 0..2000u32 {
        server.send(&host, MessageKind::Binary, &i.to_le_bytes()[..], None).unwrap();
    }
    for _ in 0..4 {
        server.send(&host, MessageKind::Binary, &b"stop"[..], None).unwrap();
    }
    let mut all: Vec<u32> = receivers.into_iter().flat_map(|receiver| receiver.join().unwrap()).collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..2000));
}

#[test]
fn many_senders_do_not_mix_their_messages() {
    let (client, server) = pair(Some(4096), None);
    let senders: Vec<_> = (0..4u8)
        .map(|i| {
            let client = Arc::clone(&client);
            thread::spawn(move || {
                for n in 0..20usize {
                    let len = if n % 2 == 0 { 100 } else { 150_000 };
                    client.send(&NativeHost::default(), MessageKind::Binary, &vec![i; len][..], None).unwrap();
                }
            })
        })
        .collect();
    for _ in 0..80 {
        let message = receive(&server);
        assert!(message.iter().all(|byte| *byte == message[0]));
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
}

#[test]
fn abort_wakes_all_waiting_threads() {
    let (client, server) = pair(Some(4096), None);
    let receiver = {
        let server = Arc::clone(&server);
        thread::spawn(move || server.receive(&NativeHost::default(), Timeout::Until(None), Delivery::Messages))
    };
    let sender = {
        let server = Arc::clone(&server);
        thread::spawn(move || server.send(&NativeHost::default(), MessageKind::Binary, &vec![0; 10_000_000][..], None))
    };
    thread::sleep(50 * MS); // both threads wait by now; otherwise the test passes too
    server.abort(&NativeHost::default());
    assert!(matches!(sender.join().unwrap(), Err(Error::Closed)));
    assert!(matches!(receiver.join().unwrap(), Err(Error::Closed)));
    assert!(server.state(&NativeHost::default()).1);
    drop(client);
}

#[test]
fn a_close_from_both_sides_is_clean() {
    let host = NativeHost::default();
    let (client, server) = pair(None, None);
    server.send(&host, MessageKind::Text, &b"before"[..], None).unwrap();
    let other = {
        let server = Arc::clone(&server);
        thread::spawn(move || server.close(&NativeHost::default(), Some(CloseCode::NORMAL_CLOSURE), "a"))
    };
    client.close(&host, Some(CloseCode::GOING_AWAY), "b").unwrap();
    other.join().unwrap().unwrap();
    for connection in [&client, &server] {
        assert_eq!(connection.state(&host), (State::Closed, true));
        assert!(connection.closing(&host).received.is_some());
    }
    assert_eq!(receive(&client), b"before");
    assert!(matches!(client.receive(&host, soon(), Delivery::Messages), Err(Error::Closed)));
}

#[test]
fn silent_peer_fails_the_keepalive() {
    let host = NativeHost::default();
    let (client, server) = pair(None, Some(100 * MS));
    let start = Instant::now();
    assert!(matches!(client.receive(&host, soon(), Delivery::Messages), Err(Error::Closed)));
    let took = start.elapsed();
    assert!(took > 150 * MS && took < 1500 * MS, "{took:?}");
    let sent = client.closing(&host).sent.unwrap();
    assert_eq!(sent.code, Some(CloseCode::INTERNAL_ERROR));
    drop(server);
}

#[test]
fn a_peer_that_answers_pings_is_kept() {
    let host = NativeHost::default();
    let (client, server) = pair(None, Some(50 * MS));
    let other = {
        let server = Arc::clone(&server);
        thread::spawn(move || server.receive(&NativeHost::default(), Timeout::Until(None), Delivery::Messages))
    };
    let timeout = Timeout::Until(Some(Instant::now() + 400 * MS));
    assert!(matches!(client.receive(&host, timeout, Delivery::Messages), Err(Error::TimedOut)));
    assert_eq!(client.state(&host).0, State::Open);
    assert!(client.with_endpoint(&host, |endpoint| endpoint.send_half().latency()).is_some());
    client.abort(&host);
    assert!(matches!(other.join().unwrap(), Err(Error::Closed)));
}

#[test]
fn lock_owner_is_detected() {
    let (client, server) = pair(None, None);
    let in_other_thread = || thread::scope(|scope| scope.spawn(|| client.is_reentrant()).join().unwrap());
    let called = AtomicBool::new(false);
    let on_message = || {
        assert!(client.is_reentrant());
        assert!(!in_other_thread());
        called.store(true, Ordering::Relaxed);
    };
    server.send(&NativeHost::default(), MessageKind::Text, &b"x"[..], None).unwrap();
    assert!(!client.is_reentrant());
    client.receive(&hooked(on_message, || {}), soon(), Delivery::Messages).unwrap();
    assert!(called.into_inner());
    assert!(!client.is_reentrant());
}

#[test]
fn thread_waits_for_a_taken_lock() {
    let (client, server) = pair(None, None);
    server.send(&NativeHost::default(), MessageKind::Text, &b"x"[..], None).unwrap();
    let (taken, waits) = (AtomicBool::new(false), AtomicBool::new(false));
    let holds_lock = || {
        taken.store(true, Ordering::Relaxed);
        until(|| waits.load(Ordering::Relaxed));
    };
    thread::scope(|scope| {
        scope.spawn(|| client.receive(&hooked(holds_lock, || {}), soon(), Delivery::Messages).unwrap());
        until(|| taken.load(Ordering::Relaxed));
        let waiting = hooked(|| {}, || waits.store(true, Ordering::Relaxed));
        assert_eq!(client.state(&waiting), (State::Open, false));
    });
}

// The tests below control the other end by hand.

fn other_end(side: Side, settings: Settings) -> (Connection, Endpoint, Socket) {
    let (ours, theirs) = sockets(None);
    let other_side = if side == Side::Client { Side::Server } else { Side::Client };
    (Arc::new(Blocking::new(endpoint(side, None), ours, settings)), endpoint(other_side, None), theirs)
}

fn send_text(connection: &Connection, text: &[u8]) -> Result<(), Error<&'static str>> {
    connection.send(&NativeHost::default(), MessageKind::Text, text, None)
}

#[test]
fn close_frame_before_the_end_of_the_stream_is_read() {
    let host = NativeHost::default();
    let (client, mut server, socket) = other_end(Side::Client, Settings::default());
    server.send_half_mut().send_close(Some(CloseCode::GOING_AWAY), "bye").unwrap();
    server.send_half_mut().flush(&socket, Mode::NonBlocking).unwrap();
    drop(socket);
    assert!(matches!(send_text(&client, b"x"), Err(Error::Closed)));
    assert_eq!(client.closing(&host).received.unwrap().reason.as_str(), "bye");
    assert!(client.state(&host).1);
}

/// The loss may be found by the first write, or before or during the wait for room.
#[test]
fn connection_is_over_after_a_failed_send() {
    let host = NativeHost::default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for round in 0..200 {
        let ours = Socket::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap().into());
        let mut theirs = listener.accept().unwrap().0;
        let connection = Blocking::<Vec<u8>, Vec<u8>>::new(endpoint(Side::Client, None), ours, Settings::default());
        let end = thread::spawn(move || {
            theirs.read_exact(&mut vec![0; 100_014]).unwrap();
            // With bytes unread, this resets the connection.
            socket2::SockRef::from(&theirs).set_linger(Some(Duration::ZERO)).unwrap();
        });
        let error = loop {
            if let Err(error) = connection.send(&host, MessageKind::Binary, &vec![0; 100_000][..], None) {
                break error;
            }
        };
        assert!(matches!(error, Error::Closed), "{error:?}");
        assert!(connection.state(&host).1, "round {round}");
        end.join().unwrap();
    }
}

#[test]
fn queued_messages_are_received_after_our_close_frame() {
    let host = NativeHost::default();
    let (client, server) = pair(None, None);
    send_text(&server, b"before").unwrap();
    client.with_endpoint(&host, |endpoint| endpoint.send_half_mut().send_close(None, "")).unwrap();
    assert!(matches!(send_text(&client, b"x"), Err(Error::Closed)));
    assert_eq!(client.state(&host), (State::CloseSent, false));
    assert_eq!(receive(&client), b"before");
}

#[test]
fn send_during_close_returns_at_the_end() {
    let (client, server) = pair(None, None);
    thread::scope(|scope| {
        scope.spawn(|| client.close(&NativeHost::default(), None, "").unwrap());
        until(|| client.state(&NativeHost::default()).0 == State::CloseSent);
        let sender = scope.spawn(|| (send_text(&client, b"x"), client.state(&NativeHost::default())));
        thread::sleep(20 * MS); // the sender waits by now; otherwise the test passes too
        server.close(&NativeHost::default(), None, "").unwrap();
        let (result, state) = sender.join().unwrap();
        assert!(matches!(result, Err(Error::Closed)));
        assert_eq!(state, (State::Closed, true));
    });
}

#[test]
fn sending_thread_detects_the_peers_close() {
    let host = NativeHost::default();
    let (server, mut client, socket) = other_end(Side::Server, Settings::default());
    send_text(&server, b"a").unwrap();
    client.send_half_mut().send_close(Some(CloseCode::GOING_AWAY), "").unwrap();
    client.send_half_mut().flush(&socket, Mode::NonBlocking).unwrap();
    thread::sleep(10 * MS);
    assert!(matches!(send_text(&server, b"b"), Err(Error::Closed)));
    assert_eq!(server.closing(&host).received.unwrap().code, Some(CloseCode::GOING_AWAY));
    assert_eq!(server.state(&host), (State::Closed, true));
}

/// RFC 6455, section 7.1.1: the server ends TCP.
#[test]
fn sending_client_waits_for_the_server_to_close_tcp() {
    let host = NativeHost::default();
    let (client, mut server, socket) = other_end(Side::Client, Settings::default());
    send_text(&client, b"a").unwrap();
    server.send_half_mut().send_close(None, "").unwrap();
    server.send_half_mut().flush(&socket, Mode::NonBlocking).unwrap();
    thread::sleep(10 * MS);
    thread::scope(|scope| {
        let sender = scope.spawn(|| send_text(&client, b"b"));
        until(|| client.state(&host).0 == State::Closed);
        thread::sleep(20 * MS);
        assert!(!client.state(&host).1);
        drop(socket);
        assert!(matches!(sender.join().unwrap(), Err(Error::Closed)));
    });
    assert!(client.state(&host).1);
}

#[test]
fn sending_thread_does_not_read_with_a_full_queue() {
    let host = NativeHost::default();
    let settings = Settings { queue_messages: 1, queue_bytes: 0, ..Settings::default() };
    let (client, mut server, socket) = other_end(Side::Client, settings);
    send_text(&client, b"first").unwrap();
    for _ in 0..3 {
        server.send_half_mut().send_message(MessageKind::Text, b"x", None).unwrap();
        server.send_half_mut().flush(&socket, Mode::NonBlocking).unwrap();
        thread::sleep(10 * MS);
        send_text(&client, b"y").unwrap();
        assert_eq!((client.stats(&host).1, client.with_endpoint(&host, |endpoint| endpoint.unparsed())), (1, 0));
    }
}

#[test]
fn close_is_processed_with_a_full_queue_but_a_pong_is_not() {
    let host = NativeHost::default();
    let settings = Settings { queue_messages: 2, queue_bytes: 1000, ..Settings::default() };
    let (client, mut server, socket) = other_end(Side::Client, settings);
    for _ in 0..100 {
        server.send_half_mut().send_message(MessageKind::Binary, &[7; 1000], None).unwrap();
    }
    let ticket = client.ping(&host, b"hello").unwrap();
    server.send_half_mut().send_pong(b"hello").unwrap();
    server.send_half_mut().send_close(None, "").unwrap();
    server.send_half_mut().flush(&socket, Mode::NonBlocking).unwrap();
    assert!(matches!(client.wait_for_pong(&host, &ticket, None), Err(Error::QueueFull)));
    let queued = client.stats(&host).1;
    let unparsed = client.with_endpoint(&host, |endpoint| endpoint.unparsed());
    assert!(queued == 2 && unparsed <= buffer_pool::SMALL_READ_SIZE, "{queued}, {unparsed}");
    socket.shutdown_write();
    client.close(&host, None, "").unwrap();
    assert!(client.closing(&host).received.is_some());
    assert_eq!(client.stats(&host).1, 2);
    assert!(ticket.outcome().unwrap().is_ok());
}

#[test]
fn only_large_messages_are_moved_without_the_host_lock() {
    let (client, server) = pair(Some(1 << 20), None);
    let host = hooked(|| {}, || {});
    client.send(&host, MessageKind::Binary, &vec![0; 10_000][..], None).unwrap();
    assert_eq!(host.much.load(Ordering::Relaxed), 0);
    assert_eq!(receive(&server).len(), 10_000);
    client.send(&host, MessageKind::Binary, &vec![0; 100_000][..], None).unwrap();
    assert_eq!(host.much.load(Ordering::Relaxed), 1);
}

/// While a sender waits for room, the peer violates the protocol. The queued message is sent first, then the close frame
/// of the fault.
#[test]
fn close_frame_of_a_fault_follows_queued_messages() {
    for receives in [false, true] {
        let (client, theirs) = sockets(Some(4096));
        let settings = Settings { close_timeout: Some(5000 * MS), ..Settings::default() };
        let server = Arc::new(Blocking::new(endpoint(Side::Server, None), client, settings));
        let receiver = receives.then(|| {
            let server = Arc::clone(&server);
            thread::spawn(move || server.receive(&NativeHost::default(), soon(), Delivery::Messages).map(drop))
        });
        let sender = {
            let server = Arc::clone(&server);
            thread::spawn(move || {
                let host = NativeHost::default();
                let first = server.send(&host, MessageKind::Binary, &vec![7; 40_000][..], None);
                (first, server.send(&host, MessageKind::Binary, &b"next"[..], None))
            })
        };
        thread::sleep(100 * MS);
        theirs.send(b"\x81\x81\0\0\0\0\xff", Mode::NonBlocking).unwrap();
        thread::sleep(100 * MS);
        let mut received = Vec::new();
        let end = Instant::now() + 5000 * MS;
        loop {
            let mut buffer = Vec::with_capacity(4096);
            let _ = theirs.wait(Readiness { readable: true, writable: false }, Some(end));
            match theirs.receive(&mut buffer, 4096, Mode::NonBlocking) {
                Ok(0) => break,
                Ok(_) => received.extend(buffer),
                Err(error) => unreachable!("{error}"),
            }
        }
        drop(theirs);
        let (first, second) = sender.join().unwrap();
        assert!(first.is_ok(), "{first:?}");
        assert!(matches!(second, Err(Error::Closed)), "{second:?}");
        if let Some(receiver) = receiver {
            assert!(matches!(receiver.join().unwrap(), Err(Error::Closed)));
        }
        assert_eq!(&received[..4], [0x82, 126, 0x9c, 0x40]);
        assert!(received[4..40_004].iter().all(|byte| *byte == 7));
        assert_eq!(received[40_004], 0x88, "receives: {receives}");
        assert_eq!(received[40_006..40_008], 1007u16.to_be_bytes());
    }
}

/// If one of several messages cannot be created, the call fails, and the next call returns the other messages.
#[test]
fn failure_to_create_a_message_loses_no_other() {
    let (client, server) = pair(None, None);
    for number in 0..5u8 {
        server.send(&NativeHost::default(), MessageKind::Binary, &[number][..], None).unwrap();
    }
    let failing = Failing::default();
    let result = client.receive_many(&failing, soon(), 10);
    assert!(matches!(result, Err(Error::Interrupted("no memory"))));
    let rest = client.receive_many(&failing, soon(), 10).unwrap();
    let numbers: Vec<u8> = rest.iter().map(|item| item.message[0]).collect();
    assert_eq!(numbers, [0, 1, 3, 4]);
}

/// A host that fails to create the third message.
#[derive(Default)]
struct Failing {
    made: AtomicUsize,
}

impl Host for Failing {
    type Buffer = Vec<u8>;
    type Message = Vec<u8>;
    type Interrupt = &'static str;

    fn message(&self, kind: MessageKind, payload: Payload<'_, Vec<u8>>, whole: bool) -> Result<Vec<u8>, &'static str> {
        if self.made.fetch_add(1, Ordering::Relaxed) == 2 {
            return Err("no memory");
        }
        NativeHost::default().message(kind, payload, whole)
    }

    fn join(&self, kind: MessageKind, fragments: Vec<Vec<u8>>) -> Result<Vec<u8>, &'static str> {
        NativeHost::default().join(kind, fragments)
    }

    fn wait<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        f()
    }

    fn check_interrupt(&self) -> Result<(), &'static str> {
        Ok(())
    }
}
