//! Listeners change hands, and whoever fails on the way takes no client with it.

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
use support::{Client, PATIENCE, address, config};
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

/// An engine that hands over, by hand.
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

    /// Gives its listener to whoever asks, who is yet to say that he is ready.
    fn give(&self) -> UnixStream {
        let (stream, _) = self.asked.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(hear(&stream), "wirespeed handoff 1");
        let line = format!("{{\"tcp\":\"{}\"}}\n", self.at());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let listeners = [self.clients.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&listeners)));
        let sent = sendmsg(&stream, &[IoSlice::new(line.as_bytes())], &mut control, SendFlags::empty()).unwrap();
        assert_eq!(sent, line.len());
        assert_eq!(hear(&stream), "next");
        (&stream).write_all(b"end\n").unwrap();
        stream
    }
}

fn hear(mut stream: &UnixStream) -> String {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1);
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

/// Connects, and asks for a session.
fn ask(at: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
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

/// One that cannot be had, which takes a while to be found.
struct Nowhere;

impl Connect for Nowhere {
    fn connect(&self, _: Arc<dyn Sink>) -> io::Result<Arc<dyn Broker>> {
        std::thread::sleep(Duration::from_millis(500));
        Err(ErrorKind::NotFound.into())
    }
}

#[test]
fn one_with_more_workers_that_fails_takes_no_client_with_it() {
    let path = socket("fails");
    let old = Engine::start(echo(None, 1, &path)).unwrap();
    let at = address(&old);
    let new = begin(Config { broker: Some(Arc::new(Nowhere)), ..echo(Some(at), 8, &path) });
    std::thread::sleep(Duration::from_millis(200));
    let clients: Vec<_> = (0..64).map(|_| ask(at)).collect();
    assert_eq!(new.join().unwrap().unwrap_err().kind(), ErrorKind::NotFound);
    for mut client in clients {
        let mut head = [0; 12];
        client.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 101");
    }
    // The address is still that of one engine: nothing else may join it.
    let other = Engine::start(Config { reuse_port: true, handoff: None, ..echo(Some(at), 1, &path) });
    assert_eq!(other.unwrap_err().kind(), ErrorKind::AddrInUse);
}

#[test]
fn one_that_nobody_lets_go_for_accepts_nobody() {
    let path = socket("kept");
    let old = Old::new(&path);
    let new = begin(echo(Some(old.at()), 2, &path));
    let mut stream = old.give();
    assert_eq!(hear(&stream), "ready");
    let mut client = ask(old.at());
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
fn one_that_never_says_that_it_has_let_go_is_named_by_the_error() {
    let path = socket("silent");
    let old = Old::new(&path);
    let new = begin(echo(Some(old.at()), 2, &path));
    let stream = old.give();
    assert_eq!(hear(&stream), "ready");
    let error = new.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("has not answered"), "{error}");
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn one_that_dies_when_it_has_heard_that_the_next_is_ready_has_let_go() {
    let path = socket("dies");
    let old = Old::new(&path);
    let at = old.at();
    let new = begin(echo(Some(at), 2, &path));
    let stream = old.give();
    assert_eq!(hear(&stream), "ready");
    drop((stream, old));
    let new = new.join().unwrap().unwrap();
    let mut client = Client::open(&new, "/");
    client.send_text("on");
    assert_eq!(client.receive_text(), "on");
    assert!(path.exists());
}

/// It hears nothing any more, and whether it lives shows at the path.
#[test]
fn one_that_ends_before_that_has_let_go_if_it_is_gone() {
    for lives in [false, true] {
        let path = socket("ends");
        let old = Old::new(&path);
        let new = begin(echo(Some(old.at()), 2, &path));
        drop(old.give());
        if lives {
            drop(old.give()); // it is asked again
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
fn more_workers_than_before_all_get_clients_and_so_do_those_that_follow() {
    let path = socket("more");
    let mut engine = Engine::start(echo(None, 1, &path)).unwrap();
    let at = address(&engine);
    for workers in [4, 4, 6] {
        let new = Engine::start(echo(Some(at), workers, &path)).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while engine.events().take(1, Some(deadline)).is_ok() {
            assert!(Instant::now() < deadline, "the old one goes on");
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
fn of_two_that_start_at_the_same_moment_one_takes_over_from_the_other() {
    let path = socket("both");
    let old = Engine::start(echo(None, 2, &path)).unwrap();
    let at = address(&old);
    let both = [(); 2].map(|()| begin(echo(Some(at), 2, &path)));
    let both = both.map(|new| new.join().unwrap().unwrap());
    let deadline = Instant::now() + PATIENCE;
    let has_ended = |engine: &Engine| engine.events().take(1, Some(Instant::now())).is_err();
    while !has_ended(&old) || both.iter().filter(|new| has_ended(new)).count() != 1 {
        assert!(Instant::now() < deadline, "only the last one goes on");
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
fn one_that_has_drained_leaves_the_socket_of_who_came_after_the_next() {
    let path = socket("number");
    let first = Engine::start(echo(None, 1, &path)).unwrap();
    let at = address(&first);
    let client = Client::open(&first, "/"); // it drains for as long as this one stays
    let second = Engine::start(echo(Some(at), 1, &path)).unwrap();
    let third = Engine::start(echo(Some(at), 1, &path)).unwrap(); // its file may have the number that the first one's had
    drop(client);
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(path.exists());
    drop(third);
    assert!(!path.exists());
}
