//! Sessions leave descriptors to others. A test file of its own, because the limit applies to the whole process.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{Client, TIMEOUT, address, config};
use wirespeed_engine::{Config, Engine, Reason};

const MOST: u64 = 256;

fn status_of(engine: &Engine, path: &str) -> String {
    let mut stream = TcpStream::connect(address(engine)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn exhausted_descriptors_give_503_and_leave_some_to_the_application() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(MOST), maximum }).unwrap();
    let engine = Engine::start(Config { workers: 1, ..config() }).unwrap();
    // The clients use descriptors of the same process.
    let mut clients = Vec::new();
    let refused = loop {
        let client = Client::request(&engine, "/", "");
        if client.status != 101 {
            break client;
        }
        clients.push(client);
    };
    assert_eq!(refused.status, 503);
    assert!(refused.head.contains("Retry-After"), "{}", refused.head);
    drop(refused);
    assert!(clients.len() > 80 && clients.len() < MOST as usize / 2, "{}", clients.len());
    for _ in 0..20 {
        let files: Vec<_> = (0..8).map(|_| File::open("/dev/null")).collect();
        assert!(files.iter().all(Result::is_ok), "{files:?}");
        assert_eq!(status_of(&engine, "/health"), "HTTP/1.1 200 OK");
        assert_eq!(status_of(&engine, "/ready"), "HTTP/1.1 200 OK");
        assert_eq!(Client::request(&engine, "/", "").status, 503);
    }
    let full = || engine.figures().total().failures_by_reason().find(|(reason, _)| *reason == Reason::Full).unwrap().1;
    let deadline = Instant::now() + TIMEOUT;
    while full() < 21 {
        assert!(Instant::now() < deadline, "{} refusals were counted", full());
        std::thread::yield_now();
    }
    // A client that disconnects makes room for another one.
    let sessions = clients.len() as u64;
    for _ in 0..20 {
        drop(clients.pop());
        let deadline = Instant::now() + TIMEOUT;
        while engine.figures().total().sessions >= sessions {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        clients.push(Client::open(&engine, "/"));
        assert_eq!(Client::request(&engine, "/", "").status, 503);
    }
    // The last sessions are served like all others.
    for (number, session) in engine.sessions().into_iter().enumerate().take(20) {
        session.send(wirespeed_engine::driver::protocol::MessageKind::Text, number.to_string().as_bytes()).unwrap();
    }
    for client in clients.iter_mut().rev().take(20) {
        client.receive_text();
        client.send_text("x");
    }
}
