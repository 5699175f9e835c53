//! The handoff of listeners: no client is lost, whichever engine fails.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use support::{Client, TIMEOUT, address, config};
use wirespeed_engine::broker::{Broker, Connect, Sink};
use wirespeed_engine::driver::protocol::handshake::HeaderList;
use wirespeed_engine::{Admission, Config, Engine, Place, Role};

fn socket(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("wirespeed-{}-handoff-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn echo(at: Option<SocketAddr>, workers: usize, path: &Path) -> Config {
    let accept = |_: &_, _| Admission::Accept { role: Role::Echo, subprotocol: None, headers: HeaderList::new() };
    let mut config = Config { admit: Arc::new(accept), workers, handoff: Some(path.to_owned()), ..config() };
    if let Some(at) = at {
        config.listen[0].at = Place::Tcp(at);
    }
    config
}

/// An old engine, whose side of the protocol the test performs itself.
struct Old {
    clients: TcpListener,
    asked: UnixListener,
}

impl Old {
    fn new(path: &Path) -> Self {
        Self { clients: TcpListener::bind("127.0.0.1:0").unwrap(), asked: UnixListener::bind(path).unwrap() }
    }

    fn at(&self) -> SocketAddr {
        self.clients.local_addr().unwrap()
    }

    /// Hands its listener to the process that asks, which has yet to report that it is ready.
    fn transfer(&self) -> UnixStream {
        let (stream, _) = self.asked.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(receive_line(&stream), "wirespeed handoff 1");
        let line = format!("{{\"tcp\":\"{}\"}}\n", self.at());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let listeners = [self.clients.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&listeners)));
        let sent = sendmsg(&stream, &[IoSlice::new(line.as_bytes())], &mut control, SendFlags::empty()).unwrap();
        assert_eq!(sent, line.len());
        assert_eq!(receive_line(&stream), "next");
        (&stream).write_all(b"end\n").unwrap();
        stream
    }
}

fn receive_line(mut stream: &UnixStream) -> String {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1);
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

/// Connects and requests a session.
fn request_session(at: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
        .write_all(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
              Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        )
        .unwrap();
    stream
}

fn begin(config: Config) -> std::thread::JoinHandle<io::Result<Engine>> {
    std::thread::spawn(|| Engine::start(config))
}

/// A place that cannot be bound, which takes a while to find out.
struct Nowhere;

impl Connect for Nowhere {
    fn connect(&self, _: Arc<dyn Sink>) -> io::Result<Arc<dyn Broker>> {
        std::thread::sleep(Duration::from_millis(500));
        Err(ErrorKind::NotFound.into())
    }
}

#[test]
fn failed_start_with_more_workers_loses_no_client() {
    let path = socket("fails");
    let old = Engine::start(echo(None, 1, &path)).unwrap();
    let at = address(&old);
    let new = begin(Config { broker: Some(Arc::new(Nowhere)), ..echo(Some(at), 8, &path) });
    std::thread::sleep(Duration::from_millis(200));
    let clients: Vec<_> = (0..64).map(|_| request_session(at)).collect();
    assert_eq!(new.join().unwrap().unwrap_err().kind(), ErrorKind::NotFound);
    for mut client in clients {
        let mut head = [0; 12];
        client.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 101");
    }
    // The listener still belongs to one engine only: no other socket may join it.
    let other = Engine::start(Config { reuse_port: true, handoff: None, ..echo(Some(at), 1, &path) });
    assert_eq!(other.unwrap_err().kind(), ErrorKind::AddrInUse);
}

#[test]
fn new_engine_accepts_no_client_before_the_old_one_lets_go() {
    let path = socket("kept");
    let old = Old::new(&path);
    let new = begin(echo(Some(old.at()), 2, &path));
    let mut stream = old.transfer();
    assert_eq!(receive_line(&stream), "ready");
    let mut client = request_session(old.at());
    std::thread::sleep(Duration::from_millis(200));
    stream.write_all(b"no\n").unwrap();
    assert_eq!(new.join().unwrap().unwrap_err().kind(), ErrorKind::InvalidData);
    old.clients.set_nonblocking(true).unwrap();
    let (mut served, _) = old.clients.accept().unwrap();
    served.write_all(b"here").unwrap();
    let mut answer = [0; 4];
    client.read_exact(&mut answer).unwrap();
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn timeout_error_names_the_handoff_path() {
    let path = socket("silent");
    let old = Old::new(&path);
    let new = begin(echo(Some(old.at()), 2, &path));
    let stream = old.transfer();
    assert_eq!(receive_line(&stream), "ready");
    let error = new.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("has not answered"), "{error}");
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn old_engine_that_dies_after_ready_has_let_go() {
    let path = socket("dies");
    let old = Old::new(&path);
    let at = old.at();
    let new = begin(echo(Some(at), 2, &path));
    let stream = old.transfer();
    assert_eq!(receive_line(&stream), "ready");
    drop((stream, old));
    let new = new.join().unwrap().unwrap();
    let mut client = Client::open(&new, "/");
    client.send_text("on");
    assert_eq!(client.receive_text(), "on");
    assert!(path.exists());
}

/// The old engine does not answer any more, and the path shows whether it is alive.
#[test]
fn old_engine_that_dies_before_ready_has_let_go() {
    for lives in [false, true] {
        let path = socket("ends");
        let old = Old::new(&path);
        let new = begin(echo(Some(old.at()), 2, &path));
        drop(old.transfer());
        if lives {
            drop(old.transfer()); // the path is checked again
            let refused = new.join().unwrap().unwrap_err().kind();
            assert!(matches!(refused, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{refused:?}");
        } else {
            drop(old);
            drop(Client::open(&new.join().unwrap().unwrap(), "/"));
        }
        let _ = std::fs::remove_file(&path);
    }
}

#[test]
fn more_workers_than_before_all_get_clients() {
    let path = socket("more");
    let mut engine = Engine::start(echo(None, 1, &path)).unwrap();
    let at = address(&engine);
    for workers in [4, 4, 6] {
        let new = Engine::start(echo(Some(at), workers, &path)).unwrap();
        let deadline = Instant::now() + TIMEOUT;
        while engine.events().take(1, Some(deadline)).is_ok() {
            assert!(Instant::now() < deadline, "the old engine continues");
        }
        let clients: Vec<_> = (0..256).map(|_| Client::open(&new, "/")).collect();
        let opened: Vec<_> = new.figures().workers.iter().map(|worker| worker.sessions_opened).collect();
        assert_eq!(opened.iter().sum::<u64>(), 256);
        assert!(opened.iter().all(|count| *count > 0), "{opened:?}");
        drop(clients);
        engine = new;
    }
}

#[test]
fn engines_that_start_at_once_take_over_one_after_the_other() {
    let path = socket("both");
    let old = Engine::start(echo(None, 2, &path)).unwrap();
    let at = address(&old);
    let both = [(); 2].map(|()| begin(echo(Some(at), 2, &path)));
    let both = both.map(|new| new.join().unwrap().unwrap());
    let deadline = Instant::now() + TIMEOUT;
    let has_ended = |engine: &Engine| engine.events().take(1, Some(Instant::now())).is_err();
    while !has_ended(&old) || both.iter().filter(|new| has_ended(new)).count() != 1 {
        assert!(Instant::now() < deadline, "an older engine continues");
        std::thread::sleep(Duration::from_millis(5));
    }
    let last = both.iter().find(|new| !has_ended(new)).unwrap();
    for _ in 0..64 {
        drop(Client::open(last, "/"));
    }
    assert_eq!(last.figures().total().sessions_opened, 64);
    assert!(!path.with_extension("lock").exists());
}

#[test]
fn drained_engine_keeps_the_socket_of_a_later_one() {
    let path = socket("number");
    let first = Engine::start(echo(None, 1, &path)).unwrap();
    let at = address(&first);
    let client = Client::open(&first, "/"); // keeps the engine draining
    let second = Engine::start(echo(Some(at), 1, &path)).unwrap();
    let third = Engine::start(echo(Some(at), 1, &path)).unwrap(); // its file may reuse the inode of the first
    drop(client);
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(path.exists());
    drop(third);
    assert!(!path.exists());
}
