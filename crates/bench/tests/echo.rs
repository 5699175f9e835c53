//! Tests of the paths of the echo server.

mod support;

use std::io::{ErrorKind, Read as _, Write as _};
use std::ops::Range;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use wirespeed_protocol::{MessageKind, Side};

use support::peer::{Peer, Received, assert_numbered, frame};
use support::{Echo, command};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the answer of a path to `report`.
fn report(client: &mut Peer) -> Value {
    client.text("report");
    let (0, report) = client.receive_numbered(0) else { panic!("something else comes first") };
    report
}

#[test]
fn stamp_puts_two_times_into_the_echo() {
    let echo = Echo::start();
    let mut client = Peer::connect(&echo.url, "/stamp");
    let mut last = 0;
    for size in [24_usize, 100, 70_000, 300_000] {
        let message: Vec<u8> = (0..size).map(|index| (index % 200) as u8).collect();
        client.send(MessageKind::Binary, &message);
        let reply = client.receive_binary();
        assert_eq!((&reply[..8], &reply[24..]), (&message[..8], &message[24..]));
        let time = |range: Range<usize>| u64::from_le_bytes(reply[range].try_into().expect("8 bytes"));
        let (taken, sent) = (time(8..16), time(16..24));
        assert!(last < taken && taken <= sent, "{last} {taken} {sent}");
        last = sent;
    }
    for (kind, size) in [(MessageKind::Binary, 23), (MessageKind::Text, 24)] {
        let mut client = Peer::connect(&echo.url, "/stamp");
        client.send(kind, &vec![b'a'; size]);
        assert_eq!(client.receive(), Received::Close(1008), "it cannot contain two times");
    }
}

#[test]
fn hash_reports_the_hash_of_all_messages() {
    let echo = Echo::start();
    let mut client = Peer::connect(&echo.url, "/hash");
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    for number in 0..20_u8 {
        let message = vec![number; usize::from(number) * 1000];
        hash.update(&message);
        bytes += message.len();
        client.send(MessageKind::Binary, &message);
        let expected = json!({"messages": number + 1, "bytes": bytes, "sha256": hex(&hash.clone().finalize())});
        assert_eq!(report(&mut client), expected);
    }
}

#[test]
fn file_sends_numbered_messages_and_their_hash_on_each_request() {
    let echo = Echo::start();
    // The last message may be shorter, even than its number.
    for (size, bytes) in [(100, 1050), (65_536, 1_000_000), (300_000, 1_000_000), (64, 640), (10, 25), (10, 0)] {
        let mut client = Peer::connect(&echo.url, &format!("/file?size={size}&bytes={bytes}"));
        for _ in 0..3 {
            let (mut hash, mut count, mut left) = (Sha256::new(), 0, bytes);
            while left > 0 {
                let message = client.receive_binary();
                assert_numbered(&message, count, size.min(left));
                hash.update(&message);
                count += 1;
                left -= message.len();
            }
            let expected = json!({"messages": count, "bytes": bytes, "sha256": hex(&hash.finalize())});
            assert_eq!(client.receive_numbered(0), (0, expected));
            client.text("again");
        }
    }
}

#[test]
fn duplex_receives_while_it_sends() {
    let echo = Echo::start();
    // The larger message exceeds the limit of queued replies.
    for size in [2048, 16_777_216] {
        let mut client = Peer::connect(&echo.url, &format!("/duplex?size={size}"));
        // More than the buffers of both sockets hold. A server that waited for the client to read would deadlock.
        for _ in 0..500 {
            client.send(MessageKind::Binary, &[1; 100_000]);
        }
        client.text("report");
        let (count, report) = client.receive_numbered(size);
        assert_eq!(report, json!({"messages": 500, "bytes": 50_000_000}));
        assert_numbered(&client.receive_binary(), count, size); // sending continues
    }
}

#[test]
fn mixed_sends_nine_for_each_message() {
    let echo = Echo::start();
    for size in [0, 100, 20_000, 1 << 20] {
        let mut client = Peer::connect(&echo.url, &format!("/mixed?size={size}"));
        for turn in 0..5 {
            for number in 9 * turn..9 * (turn + 1) {
                assert_numbered(&client.receive_binary(), number, size);
            }
            // Requests for a report are not counted, and no message arrives unasked.
            assert_eq!(report(&mut client), json!({"messages": turn, "bytes": 3 * turn}));
            client.send(MessageKind::Binary, b"yes");
        }
    }
}

#[test]
fn blast_sends_numbered_messages() {
    let echo = Echo::start();
    for size in [0, 8, 2048, 100_000, 1 << 20] {
        let mut client = Peer::connect(&echo.url, &format!("/blast?size={size}"));
        for number in 0..10_000_000 / (size as u64 + 1000) {
            assert_numbered(&client.receive_binary(), number, size);
        }
    }
}

#[test]
fn echoes_to_a_slow_reader_are_bounded_and_continue() {
    let echo = Echo::start();
    let mut client = Peer::connect(&echo.url, "/");
    // More than the buffers of both sockets can hold.
    let (size, count) = (1 << 20, 512_u64);
    let mut writer = client.stream.try_clone().expect("a descriptor");
    let (blocked, is_blocked) = std::sync::mpsc::channel();
    let writing = std::thread::spawn(move || {
        writer.set_write_timeout(Some(Duration::from_millis(300))).expect("an option");
        let mut frame = frame(Side::Client, MessageKind::Binary, &vec![7; size]);
        for number in 0..count {
            let end = frame.len() - 8;
            frame[end..].copy_from_slice(&number.to_le_bytes());
            let mut left = &frame[..];
            while !left.is_empty() {
                match writer.write(left) {
                    Ok(written) => left = &left[written..],
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        let _ = blocked.send(()); // only the first one is received
                    }
                }
            }
        }
    });
    is_blocked.recv().expect("the server queues without a limit");
    for number in 0..count {
        let message = client.receive_binary();
        assert_eq!((message.len(), &message[size - 8..]), (size, &number.to_le_bytes()[..]));
    }
    writing.join().expect("all was sent");
}

#[test]
fn protocol_error_is_answered_with_its_close_code() {
    let echo = Echo::start();
    let mut client = Peer::connect(&echo.url, "/");
    // An unmasked frame, followed by more than one read: a reset would lose the close frame.
    let mut bytes = vec![0x82, 1, 0];
    bytes.resize(1 << 20, 0);
    client.stream.write_all(&bytes).expect("it is sent");
    assert_eq!(client.receive(), Received::Close(1002));
    assert_eq!(client.stream.read(&mut [0]).expect("no reset"), 0);
}

#[test]
fn half_closed_client_gets_the_remaining_echoes() {
    let echo = Echo::start();
    let mut client = Peer::connect(&echo.url, "/");
    let message = vec![5; 8 << 20]; // more than the sockets hold
    client.send(MessageKind::Binary, &message);
    client.stream.shutdown(std::net::Shutdown::Write).expect("it is open");
    assert_eq!(client.receive_binary(), message);
    assert_eq!(client.stream.read(&mut [0]).expect("no reset"), 0);
}

#[test]
fn close_uses_the_requested_code() {
    let echo = Echo::start();
    assert_eq!(Peer::connect(&echo.url, "/close?code=4001").receive(), Received::Close(4001));
}

#[test]
fn port_in_use_is_reported_in_one_line() {
    let echo = Echo::start();
    let port = echo.url.rsplit(':').next().expect("a port");
    let begin = SystemTime::now();
    let output = command().args(["echo", "--port", port]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.lines().count() == 1 && error.contains(port) && error.contains("in use"), "{error}");
    assert!(begin.elapsed().is_ok_and(|took| took < Duration::from_secs(10)));
}
