//! Listening addresses: engines share one only if both are configured to.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Barrier;

use socket2::{Domain, Socket, Type};
use support::{Client, TIMEOUT, address, config};
use wirespeed_engine::{Config, Engine, Http, Listen, Place};

fn at(address: SocketAddr) -> Config {
    Config { listen: vec![Listen { at: Place::Tcp(address), tls: None }], ..config() }
}

#[test]
fn address_belongs_to_one_engine() {
    for workers in [1, 2] {
        let first = Engine::start(Config { workers, ..config() }).unwrap();
        for reuse_port in [false, true] {
            if workers > 1 && reuse_port {
                continue; // its workers share the port, so others with the option may join
            }
            let refused = Engine::start(Config { reuse_port, ..at(address(&first)) }).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::AddrInUse, "{workers}");
        }
        let internal = Http { at: Some(Place::Tcp(address(&first))), ..Http::default() };
        assert_eq!(Engine::start(Config { http: internal, ..config() }).unwrap_err().kind(), ErrorKind::AddrInUse);
        for _ in 0..32 {
            drop(Client::open(&first, "/"));
        }
        let place = address(&first);
        first.stop().unwrap();
        let ready = Engine::start(at(place)).unwrap();
        drop(Client::open(&ready, "/"));
    }
}

#[test]
fn unix_socket_clients_are_spread_over_all_workers() {
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let path = std::env::temp_dir().join(format!("wirespeed-{}-turns", std::process::id()));
    let listen = vec![Listen { at: Place::Unix(path.clone()), tls: None }];
    let engine = Engine::start(Config { listen, workers: 4, ..config() }).unwrap();
    // One after the other, so that any worker could accept all of them.
    let clients: Vec<_> = (0..40)
        .map(|_| {
            let mut client = UnixStream::connect(&path).unwrap();
            client.set_read_timeout(Some(TIMEOUT)).unwrap();
            client.write_all(REQUEST).unwrap();
            let mut answer = [0; 12];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"HTTP/1.1 101");
            client
        })
        .collect();
    let sessions: Vec<_> = engine.figures().workers.iter().map(|worker| worker.sessions_opened).collect();
    assert_eq!(sessions, [10; 4]);
    drop(clients);
    engine.stop().unwrap();
    let _ = std::fs::remove_file(&path);
}

#[test]
fn of_concurrent_starts_only_one_succeeds() {
    for _ in 0..20 {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = free.local_addr().unwrap();
        drop(free);
        let (barrier, ended) = (Barrier::new(4), Barrier::new(4));
        let started = std::thread::scope(|scope| {
            let begin = || {
                barrier.wait();
                let engine = Engine::start(at(place));
                ended.wait();
                engine.is_ok()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(begin)).collect();
            threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum::<usize>()
        });
        assert!(started <= 1, "{started}");
    }
}

#[test]
fn existing_listener_keeps_its_address() {
    for reuse_port in [false, true] {
        let other = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        other.set_reuse_address(true).unwrap();
        other.set_reuse_port(reuse_port).unwrap();
        other.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        other.listen(8).unwrap();
        let place = other.local_addr().unwrap().as_socket().unwrap();
        assert_eq!(Engine::start(at(place)).unwrap_err().kind(), ErrorKind::AddrInUse);
        TcpStream::connect(place).unwrap();
        other.accept().unwrap();
    }
}

#[test]
fn engines_share_an_address_with_reuse_port() {
    let first = Engine::start(Config { reuse_port: true, ..config() }).unwrap();
    let second = Engine::start(Config { reuse_port: true, ..at(address(&first)) }).unwrap();
    let clients: Vec<_> = (0..64).map(|_| Client::open(&first, "/")).collect();
    let opened = [&first, &second].map(|engine| engine.figures().total().sessions_opened);
    assert_eq!(opened.iter().sum::<u64>(), 64);
    assert!(opened.iter().all(|count| *count > 0), "{opened:?}");
    drop(clients);
}

#[test]
fn all_workers_of_an_engine_get_clients() {
    let engine = Engine::start(Config { workers: 4, ..config() }).unwrap();
    let _clients: Vec<_> = (0..256).map(|_| Client::open(&engine, "/")).collect();
    let opened: Vec<_> = engine.figures().workers.iter().map(|worker| worker.sessions_opened).collect();
    assert_eq!(opened.iter().sum::<u64>(), 256);
    assert!(opened.iter().all(|count| *count > 0), "{opened:?}");
}
