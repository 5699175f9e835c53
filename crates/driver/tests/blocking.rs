//! Threads that share a connection, without an interpreter.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // tests fail by panicking

mod support;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use support::{NativeHost, peer, peer_with, sockets};
use wirespeed_driver::blocking::{Blocking, Error, Patience, Settings};
use wirespeed_driver::protocol::{CloseCode, Delivery, MessageKind, Side, State};

type Connection = Arc<Blocking<Vec<u8>, Vec<u8>>>;

const MS: Duration = Duration::from_millis(1);

fn pair(buffer: Option<usize>, keepalive: Option<Duration>) -> (Connection, Connection) {
    let (client, server) = sockets(buffer);
    let settings = Settings { close_timeout: Some(2000 * MS), ..Settings::default() };
    (
        Arc::new(Blocking::new(peer_with(Side::Client, None, keepalive), client, settings)),
        Arc::new(Blocking::new(peer(Side::Server, None), server, settings)),
    )
}

fn soon() -> Patience {
    Patience::Until(Some(Instant::now() + 5000 * MS))
}

fn receive(connection: &Connection) -> Vec<u8> {
    connection.receive(&NativeHost::default(), soon(), Delivery::Messages).unwrap().message
}

#[test]
fn two_ends_that_both_send_much_do_not_block_each_other() {
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
        let result = client.receive(&host, Patience::Until(Some(start + wait * MS)), Delivery::Messages);
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
fn abort_wakes_whoever_waits() {
    let (client, server) = pair(Some(4096), None);
    let receiver = {
        let server = Arc::clone(&server);
        thread::spawn(move || server.receive(&NativeHost::default(), Patience::Until(None), Delivery::Messages))
    };
    let sender = {
        let server = Arc::clone(&server);
        thread::spawn(move || server.send(&NativeHost::default(), MessageKind::Binary, &vec![0; 10_000_000][..], None))
    };
    thread::sleep(50 * MS); // both are waiting; if not, the test is easier
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
fn a_silent_peer_is_given_up() {
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
        thread::spawn(move || server.receive(&NativeHost::default(), Patience::Until(None), Delivery::Messages))
    };
    let patience = Patience::Until(Some(Instant::now() + 400 * MS));
    assert!(matches!(client.receive(&host, patience, Delivery::Messages), Err(Error::TimedOut)));
    assert_eq!(client.state(&host).0, State::Open);
    assert!(client.with_peer(&host, |peer| peer.link.latency()).is_some());
    client.abort(&host);
    assert!(matches!(other.join().unwrap(), Err(Error::Closed)));
}
