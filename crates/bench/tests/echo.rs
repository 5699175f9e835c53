//! The paths of the echo server.

mod support;

use std::io::{Read as _, Write as _};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use support::client::{Client, Received};
use support::{Echo, command};

fn json_of(received: Received) -> Value {
    match received {
        Received::Text(text) => serde_json::from_str(&text).expect("JSON"),
        other => panic!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn stamp_puts_two_times_into_the_echo() {
    let echo = Echo::start();
    let mut client = Client::connect(&echo.url, "/stamp");
    let mut last = 0;
    for size in [24_usize, 100, 70_000, 300_000] {
        let message: Vec<u8> = (0..size).map(|index| (index % 200) as u8).collect();
        client.binary(&message);
        let Received::Binary(reply) = client.receive() else { panic!("no binary message") };
        assert_eq!((&reply[..8], &reply[24..]), (&message[..8], &message[24..]));
        let time = |range: std::ops::Range<usize>| u64::from_le_bytes(reply[range].try_into().expect("8 bytes"));
        let (taken, sent) = (time(8..16), time(16..24));
        assert!(last < taken && taken <= sent, "{last} {taken} {sent}");
        last = sent;
    }
}

#[test]
fn stamp_refuses_what_has_no_room_for_them() {
    let echo = Echo::start();
    let mut short = Client::connect(&echo.url, "/stamp");
    short.binary(&[0; 23]);
    assert_eq!(short.receive(), Received::Close(1008));
    let mut text = Client::connect(&echo.url, "/stamp");
    text.text("a text of twenty-four bytes or more");
    assert_eq!(text.receive(), Received::Close(1008));
}

#[test]
fn hash_tells_what_all_messages_hash_to() {
    let echo = Echo::start();
    let mut client = Client::connect(&echo.url, "/hash");
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    for number in 0..20_u8 {
        let message = vec![number; usize::from(number) * 1000];
        hash.update(&message);
        bytes += message.len();
        client.binary(&message);
        client.text("report");
        let expected = json!({"messages": number + 1, "bytes": bytes, "sha256": hex(&hash.clone().finalize())});
        assert_eq!(json_of(client.receive()), expected);
    }
}

#[test]
fn file_sends_numbered_messages_and_their_hash_as_often_as_asked() {
    let echo = Echo::start();
    for (size, bytes) in [(100, 1050), (65_536, 1_000_000), (300_000, 1_000_000), (64, 640), (10, 0)] {
        let mut client = Client::connect(&echo.url, &format!("/file?size={size}&bytes={bytes}"));
        for _ in 0..3 {
            let (mut hash, mut count, mut arrived) = (Sha256::new(), 0_u64, 0);
            let end = loop {
                match client.receive() {
                    Received::Binary(message) => {
                        assert_eq!(message[..8.min(message.len())], count.to_le_bytes()[..8.min(message.len())]);
                        assert_eq!(message.len(), size.min(bytes - arrived));
                        hash.update(&message);
                        count += 1;
                        arrived += message.len();
                    }
                    end => break json_of(end),
                }
            };
            assert_eq!(end, json!({"messages": count, "bytes": bytes, "sha256": hex(&hash.finalize())}));
            client.text("again");
        }
    }
}

#[test]
fn duplex_receives_while_it_sends() {
    let echo = Echo::start();
    let mut client = Client::connect(&echo.url, "/duplex?size=2048");
    // Much more than the buffers of both sockets hold, and nothing is read meanwhile: a server that waited
    // would wait for ever.
    let message = vec![1; 100_000];
    client.stream.set_write_timeout(Some(Duration::from_secs(10))).expect("an option");
    for _ in 0..500 {
        client.binary(&message);
    }
    client.text("report");
    let mut number = 0_u64;
    let report = loop {
        match client.receive() {
            Received::Binary(message) => {
                assert_eq!((message.len(), &message[..8]), (2048, &number.to_le_bytes()[..]));
                number += 1;
            }
            other => break json_of(other),
        }
    };
    assert_eq!(report, json!({"messages": 500, "bytes": 50_000_000}));
    assert!(number > 0);
    assert!(matches!(client.receive(), Received::Binary(_)), "it goes on");
}

#[test]
fn blast_goes_on() {
    let echo = Echo::start();
    for size in [8, 2048, 100_000, 1 << 20] {
        let mut client = Client::connect(&echo.url, &format!("/blast?size={size}"));
        for number in 0..50_000_000 / (size as u64 + 1000) {
            let Received::Binary(message) = client.receive() else { panic!("no binary message") };
            assert_eq!((message.len(), &message[..8]), (size, &number.to_le_bytes()[..]));
        }
    }
}

#[test]
fn duplex_receives_behind_a_message_that_nobody_reads() {
    let echo = Echo::start();
    // One message is more than is kept of answers.
    let mut client = Client::connect(&echo.url, "/duplex?size=16777216");
    client.stream.set_write_timeout(Some(Duration::from_secs(10))).expect("an option");
    for _ in 0..500 {
        client.binary(&[1; 100_000]);
    }
}

#[test]
fn an_echo_that_nobody_reads_is_bounded_and_goes_on_when_it_is_read() {
    let echo = Echo::start();
    let mut client = Client::connect(&echo.url, "/");
    // More than the buffers of both sockets may hold, however the system is set.
    let (size, count) = (1 << 20, 512_u64);
    let mut writer = client.stream.try_clone().expect("a descriptor");
    let (blocked, is_blocked) = std::sync::mpsc::channel();
    let writing = std::thread::spawn(move || {
        writer.set_write_timeout(Some(Duration::from_millis(300))).expect("an option");
        let mut waits = 0;
        for number in 0..count {
            let mut frame = vec![0x82, 0x80 | 127]; // a key of zeros masks nothing
            frame.extend_from_slice(&(size as u64).to_be_bytes());
            frame.extend_from_slice(&[0; 4]);
            frame.extend_from_slice(&number.to_le_bytes());
            frame.resize(2 + 8 + 4 + size, 7);
            let mut left = &frame[..];
            while !left.is_empty() {
                match writer.write(left) {
                    Ok(written) => left = &left[written..],
                    Err(error) => {
                        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                        waits += 1;
                        let _ = blocked.send(()); // once is heard
                    }
                }
            }
        }
        waits
    });
    is_blocked.recv().expect("it keeps all that it is sent");
    for number in 0..count {
        let Received::Binary(message) = client.receive() else { panic!("no binary message") };
        assert_eq!((message.len(), &message[..8]), (size, &number.to_le_bytes()[..]));
    }
    assert!(writing.join().expect("all was sent") > 0);
}

#[test]
fn who_breaks_the_protocol_reads_why() {
    let echo = Echo::start();
    let mut client = Client::connect(&echo.url, "/");
    // A frame without a mask, and more than is read at once behind it: a reset would lose the close frame.
    let mut bytes = vec![0x82, 1, 0];
    bytes.resize(1 << 20, 0);
    client.stream.write_all(&bytes).expect("it is sent");
    assert_eq!(client.receive(), Received::Close(1002));
    assert_eq!(client.stream.read(&mut [0]).expect("no reset"), 0);
}

#[test]
fn who_ends_its_direction_gets_the_rest() {
    let echo = Echo::start();
    let mut client = Client::connect(&echo.url, "/");
    let message = vec![5; 8 << 20]; // more than the sockets hold
    client.binary(&message);
    client.stream.shutdown(std::net::Shutdown::Write).expect("it is open");
    assert_eq!(client.receive(), Received::Binary(message));
    assert_eq!(client.stream.read(&mut [0]).expect("no reset"), 0);
}

#[test]
fn deaf_says_nothing() {
    let echo = Echo::start();
    let mut client = Client::connect(&echo.url, "/deaf");
    client.text("hello");
    client.stream.set_read_timeout(Some(Duration::from_millis(200))).expect("an option");
    let error = client.stream.read(&mut [0; 10]).expect_err("nothing comes");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    let mut other = Client::connect(&echo.url, "/");
    other.text("the others are served");
    assert_eq!(other.receive(), Received::Text("the others are served".into()));
}

#[test]
fn a_port_in_use_is_one_clear_line() {
    let echo = Echo::start();
    let port = echo.url.rsplit(':').next().expect("a port");
    let begin = SystemTime::now();
    let output = command().args(["echo", "--port", port]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.lines().count() == 1 && error.contains(port) && error.contains("in use"), "{error}");
    assert!(begin.elapsed().is_ok_and(|took| took < Duration::from_secs(10)));
}
