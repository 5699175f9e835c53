//! What those who run an engine ask of it: answers over HTTP, an end without haste, a restart that nobody notices.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::{Client, PATIENCE, address, config};
use wirespeed_engine::admission::Limits;
use wirespeed_engine::driver::protocol::handshake::HeaderList;
use wirespeed_engine::{Admission, Config, Drain, Drained, Engine, Http, Place, Role};

fn echo() -> Config {
    let accept = |_: &_, _| Admission::Accept { role: Role::Echo, subprotocol: None, headers: HeaderList::new() };
    Config { admit: Arc::new(accept), ..config() }
}

fn internal() -> Http {
    Http { at: Some(Place::Tcp("127.0.0.1:0".parse().unwrap())), ..Http::default() }
}

fn inside_of(engine: &Engine) -> SocketAddr {
    match engine.http_place().unwrap() {
        Place::Tcp(address) => *address,
        Place::Unix(_) => panic!("a path"),
    }
}

/// Status, head and body.
fn ask(at: SocketAddr, line: &str, fields: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("{line}\r\nHost: localhost\r\n{fields}\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), head.to_owned(), body.to_owned())
}

fn get(at: SocketAddr, path: &str) -> (u16, String) {
    let (status, _, body) = ask(at, &format!("GET {path} HTTP/1.1"), "");
    (status, body)
}

#[test]
fn health_and_readiness_where_clients_connect() {
    let engine = Engine::start(echo()).unwrap();
    let at = address(&engine);
    assert_eq!(get(at, "/health"), (200, "ok\n".to_owned()));
    assert_eq!(get(at, "/ready?probe=1"), (200, "ready\n".to_owned()));
    let (status, head, body) = ask(at, "HEAD /health HTTP/1.1", "");
    assert_eq!((status, body.as_str()), (200, ""));
    assert!(head.contains("Content-Length: 3\r\n") && head.contains("Cache-Control: no-store"), "{head}");
    assert_eq!(ask(at, "GET /health HTTP/1.0", "").0, 200);
    let (status, head, _) = ask(at, "POST /health HTTP/1.1", "Content-Length: 0\r\n");
    assert!(status == 405 && head.contains("Allow: GET, HEAD"), "{head}");
    // Nobody is told what is counted unless it is asked for, and other paths are as they were.
    assert_eq!((get(at, "/metrics").0, get(at, "/").0), (426, 426));
    // Paths of WebSockets are the application's.
    let mut client = Client::open(&engine, "/health");
    client.send_text("hello");
    assert_eq!(client.receive_text(), "hello");
    // Who asks so is no client that failed.
    let failed: u64 = engine.figures().total().failures.iter().sum();
    assert_eq!(failed, 2);
}

#[test]
fn metrics_at_an_address_of_their_own() {
    let http = Http { metrics_token: Some("secret".into()), ..internal() };
    let engine =
        Engine::start(Config { http, admission: Limits { max_connections: 1, ..Limits::default() }, ..echo() })
            .unwrap();
    let client = Client::open(&engine, "/");
    let at = inside_of(&engine);
    assert_eq!(get(at, "/metrics").0, 401);
    for (token, status) in [("secret", 200), ("secre", 401), ("secret1", 401), ("", 401)] {
        let fields = format!("Authorization: Bearer {token}\r\n");
        assert_eq!(ask(at, "GET /metrics HTTP/1.1", &fields).0, status, "{token}");
    }
    let (_, head, body) = ask(at, "GET /metrics HTTP/1.1", "authorization: bearer secret\r\n");
    assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.contains("wirespeed_sessions{worker=\"0\"}") && body.ends_with("# EOF\n"), "{body}");
    assert_eq!(get(at, "/ready"), (503, "full\n".to_owned()));
    assert_eq!(get(at, "/health").0, 200);
    let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                   Sec-WebSocket-Version: 13\r\n";
    assert_eq!(ask(at, "GET / HTTP/1.1", upgrade).0, 404);
    drop(client);
}

#[test]
fn a_worker_that_is_stuck_is_seen() {
    let (stuck, release) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let block = {
        let (stuck, release) = (Arc::clone(&stuck), Arc::clone(&release));
        move |_: &_, _| {
            stuck.store(true, Ordering::Release);
            while !release.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Admission::Accept { role: Role::Echo, subprotocol: None, headers: HeaderList::new() }
        }
    };
    let http = Http { stuck_after: Duration::from_millis(200), ..internal() };
    let engine = Engine::start(Config { admit: Arc::new(block), http, workers: 2, ..config() }).unwrap();
    let at = inside_of(&engine);
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| Client::open(&engine, "/"));
        while !stuck.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(300));
        // The system may choose the stuck one, which answers nobody: that is no 200 either.
        let deadline = Instant::now() + PATIENCE;
        let told = loop {
            assert!(Instant::now() < deadline);
            let mut stream = TcpStream::connect(at).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let mut answer = String::new();
            if stream.read_to_string(&mut answer).is_ok() {
                break answer;
            }
        };
        assert!(told.starts_with("HTTP/1.1 503") && told.contains("is stuck"), "{told}");
        release.store(true, Ordering::Release);
        waiting.join().unwrap()
    });
    // The released worker answers its client before its turn ends: until then it still counts as stuck.
    let deadline = Instant::now() + PATIENCE;
    while get(at, "/health") != (200, "ok\n".to_owned()) {
        assert!(Instant::now() < deadline, "the worker is still stuck");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(waiting);
}

#[test]
fn a_drain_closes_a_few_at_a_time() {
    let engine = Engine::start(Config { http: internal(), ..echo() }).unwrap();
    let (at, internal) = (address(&engine), inside_of(&engine));
    let clients: Vec<_> = (0..60).map(|_| Client::open(&engine, "/")).collect();
    // One never says what it wants, and one is about to.
    let _silent = TcpStream::connect(at).unwrap();
    let mut draining_input = TcpStream::connect(at).unwrap();
    draining_input.write_all(b"GET /late HTTP/1.1\r\nHost: localhost\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let begin = Instant::now();
    let how = Drain { timeout: Duration::from_secs(4), batch: 10, ..Drain::default() };
    let mut draining = engine.begin_drain(how);
    let ended = std::thread::scope(|scope| {
        let clients: Vec<_> =
            clients.into_iter().map(|mut client| scope.spawn(move || (client.end(), begin.elapsed()))).collect();
        let drain = scope.spawn(|| draining.finish());
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(get(internal, "/ready"), (503, "draining\n".to_owned()));
        assert_eq!(get(internal, "/health").0, 200);
        assert_eq!(TcpStream::connect(at).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        draining_input
            .write_all(
                b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
              Sec-WebSocket-Version: 13\r\n\r\n",
            )
            .unwrap();
        let mut answer = Vec::new();
        let _ = draining_input.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(text.starts_with("HTTP/1.1 101"), "who was accepted has a session: {text}");
        assert!(text.contains("service restart"), "and is told why it ends: {text}");
        let ended: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        // The one that said too little is cut off with the rest of the time, and is no session.
        assert_eq!(drain.join().unwrap(), Drained { ended: 60, cut: 1 });
        ended
    });
    let mut times: Vec<_> = ended.iter().map(|(_, at)| at.as_millis()).collect();
    times.sort_unstable();
    for (close, _) in &ended {
        assert_eq!(close.as_ref().map(|(code, reason)| (*code, reason.as_str())), Some((1012, "service restart")));
    }
    assert!(times[0] < 400 && times[59] > 1500 && times[59] < 4000, "{times:?}");
    let within = |from: u128| times.iter().filter(|time| (from..from + 300).contains(*time)).count();
    assert!(times.iter().all(|time| within(*time) <= 22), "spread: {times:?}");
    assert!(engine.events().take(1, None).is_err(), "it is over");
    engine.stop().unwrap();
}

#[test]
fn who_does_not_close_is_cut_in_time() {
    let engine = Engine::start(echo()).unwrap();
    let clients: Vec<_> = (0..3).map(|_| Client::open(&engine, "/")).collect(); // they do not read
    let begin = Instant::now();
    let timeout = Duration::from_millis(500);
    assert_eq!(engine.begin_drain(Drain { timeout, ..Drain::default() }).finish(), Drained { ended: 0, cut: 3 });
    assert!(begin.elapsed() < Duration::from_secs(3));
    drop(clients);
}

#[test]
fn notice_is_given() {
    let engine = Engine::start(echo()).unwrap();
    let at = address(&engine);
    let notice = Duration::from_millis(600);
    let mut draining = engine.begin_drain(Drain { notice, ..Drain::default() });
    std::thread::scope(|scope| {
        let drain = scope.spawn(move || draining.finish());
        assert_eq!(get(at, "/ready"), (503, "draining\n".to_owned()));
        let mut client = Client::open(&engine, "/");
        client.send_text("still here");
        assert_eq!(client.receive_text(), "still here");
        assert_eq!(client.end().map(|(code, _)| code), Some(1012));
        drain.join().unwrap();
    });
}

fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("wirespeed-{name}-{}.sock", std::process::id()))
}

/// Clients that come in the same moment: more than are accepted in one turn, so that some are left in the queue.
const CROWD: usize = 150;

/// Opens sessions as fast as asked, until told to stop; how many, and what has gone wrong before an upgrade.
fn storm(at: SocketAddr, stop: &AtomicBool, pause: Duration) -> (usize, Vec<String>) {
    let open = || -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(at)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
              Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        )?;
        Ok(stream)
    };
    let end = |mut stream: TcpStream| -> std::io::Result<()> {
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        if &head != b"HTTP/1.1 101" {
            return Err(std::io::Error::other(String::from_utf8_lossy(&head).into_owned()));
        }
        // No time wait at our end, or ports would run out.
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))
    };
    let (mut opened, mut failed) = (0, Vec::new());
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let crowd: Vec<_> = (0..CROWD).map(|_| open()).collect();
        for stream in crowd {
            match stream.and_then(end) {
                Ok(()) => opened += 1,
                Err(error) => failed.push(error.to_string()),
            }
        }
        next += pause * CROWD as u32;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    (opened, failed)
}

#[test]
fn a_restart_refuses_nobody() {
    let path = socket("restart");
    let how = Drain { timeout: Duration::from_secs(2), ..Drain::default() };
    let begin = |at: Option<SocketAddr>, workers| {
        // It takes its time for each, so that the queues are not empty when they change hands.
        let slow = |_: &_, _| {
            std::thread::sleep(Duration::from_micros(300));
            Admission::Accept { role: Role::Echo, subprotocol: None, headers: HeaderList::new() }
        };
        let (handoff, drain, admit) = (Some(path.clone()), how.clone(), Arc::new(slow));
        let mut config = Config { handoff, drain, workers, admit, ..config() };
        if let Some(at) = at {
            config.listen[0].at = Place::Tcp(at);
        }
        Engine::start(config).unwrap()
    };
    let mut engine = begin(None, 2);
    let at = address(&engine);
    let (stop, threads, each) = (AtomicBool::new(false), 4, Duration::from_millis(2));
    let failures = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let storms: Vec<_> = (0..threads).map(|_| scope.spawn(|| storm(at, &stop, each))).collect();
        let mut old = Vec::new();
        // To more workers, to fewer, to as many.
        for workers in [3, 1, 1, 1, 2, 1, 1] {
            std::thread::sleep(Duration::from_millis(330));
            let next = begin(Some(at), workers);
            assert_eq!(address(&next), at);
            old.push(std::mem::replace(&mut engine, next));
        }
        std::thread::sleep(Duration::from_millis(700));
        stop.store(true, Ordering::Relaxed);
        let mut opened = 0;
        for storm in storms {
            let (count, failed) = storm.join().unwrap();
            opened += count;
            failures.fetch_add(failed.len(), Ordering::Relaxed);
            assert!(failed.is_empty(), "{failed:?} of {count}");
        }
        assert!(opened > 1000, "{opened}");
        for engine in old {
            let deadline = Instant::now() + PATIENCE;
            while engine.events().take(1, Some(deadline)).is_ok() {
                assert!(Instant::now() < deadline, "the old one goes on");
            }
            engine.join().unwrap();
        }
    });
    drop(engine);
    assert!(!path.exists());
    assert_eq!(TcpStream::connect(at).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn sessions_of_the_old_engine_go_on_until_it_drains_and_end_with_1012() {
    let path = socket("sessions");
    let drain = Drain { timeout: Duration::from_secs(2), ..Drain::default() };
    let old = Engine::start(Config { handoff: Some(path.clone()), drain, ..echo() }).unwrap();
    let at = address(&old);
    let mut client = Client::open(&old, "/");
    // Accepted, and slower than the restart.
    let mut slow = TcpStream::connect(at).unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let mut config = Config { handoff: Some(path), ..echo() };
    config.listen[0].at = Place::Tcp(at);
    let new = Engine::start(config).unwrap();
    assert_eq!(client.end().map(|(code, _)| code), Some(1012));
    slow.write_all(
        b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    )
    .unwrap();
    let mut answer = [0; 12];
    slow.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
    let mut client = Client::open(&new, "/");
    client.send_text("new");
    assert_eq!(client.receive_text(), "new");
    assert_eq!(new.figures().total().sessions, 1);
}

#[test]
fn metrics_are_those_of_the_new_engine_at_once() {
    let path = socket("metrics");
    let begin = |at: Place| {
        let http = Http { at: Some(at), ..Http::default() };
        Engine::start(Config { http, handoff: Some(path.clone()), ..echo() }).unwrap()
    };
    let old = begin(Place::Tcp("127.0.0.1:0".parse().unwrap()));
    let client = Client::open(&old, "/"); // it does not read, so the old engine takes its time
    let at = inside_of(&old);
    let new = begin(Place::Tcp(at));
    let deadline = Instant::now() + PATIENCE;
    // Until the old workers have heard of it.
    while !(0..50).all(|_| get(at, "/ready") == (200, "ready\n".to_owned())) {
        assert!(Instant::now() < deadline);
    }
    assert!(get(at, "/metrics").1.contains("wirespeed_sessions{worker=\"0\"} 0"));
    assert_eq!(old.figures().total().sessions, 1);
    drop((client, new));
}

#[test]
fn a_unix_socket_is_handed_over_too() {
    use std::os::unix::net::UnixStream;
    let (path, at) = (socket("unix"), socket("unix-clients"));
    let begin = || {
        let mut config = Config { handoff: Some(path.clone()), workers: 2, ..echo() };
        config.listen[0].at = Place::Unix(at.clone());
        Engine::start(config).unwrap()
    };
    let old = begin();
    let early = UnixStream::connect(&at).unwrap();
    let new = begin();
    let deadline = Instant::now() + PATIENCE;
    drop(early);
    while old.events().take(1, Some(deadline)).is_ok() {
        assert!(Instant::now() < deadline, "the old one goes on");
    }
    let mut stream = UnixStream::connect(&at).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(old);
    assert!(at.exists(), "it is the new engine's");
    drop(new);
    assert!(!at.exists());
}

#[test]
fn who_cannot_be_asked_next_takes_nothing_over() {
    let path = socket("next");
    let old = Engine::start(Config { handoff: Some(path.clone()), ..echo() }).unwrap();
    let at = address(&old);
    // Where its socket would be first.
    let mut fresh = path.clone().into_os_string();
    fresh.push(format!(".{}", std::process::id()));
    std::fs::create_dir(&fresh).unwrap();
    let begin = || {
        let mut config = Config { handoff: Some(path.clone()), ..echo() };
        config.listen[0].at = Place::Tcp(at);
        Engine::start(config)
    };
    begin().unwrap_err();
    let mut client = Client::open(&old, "/");
    client.send_text("on");
    assert_eq!(client.receive_text(), "on");
    std::fs::remove_dir(&fresh).unwrap();
    let new = begin().unwrap();
    assert_eq!(client.end().map(|(code, _)| code), Some(1012));
    Client::open(&new, "/");
    assert!(path.exists());
    new.stop().unwrap();
    assert!(!path.exists());
}

/// More clients than are accepted in one turn wait while the workers hear of the end.
#[test]
fn whoever_waits_when_the_doors_close_comes_in() {
    let release = Arc::new(AtomicBool::new(false));
    let block = {
        let release = Arc::clone(&release);
        move |_: &_, _| {
            while !release.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Admission::Accept { role: Role::Echo, subprotocol: None, headers: HeaderList::new() }
        }
    };
    let engine = Engine::start(Config { admit: Arc::new(block), workers: 1, ..config() }).unwrap();
    let at = address(&engine);
    let clients: Vec<_> = (0..CROWD)
        .map(|_| {
            let mut stream = TcpStream::connect(at).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let request = "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                           Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    let mut draining = engine.begin_drain(Drain { timeout: PATIENCE, ..Drain::default() });
    draining.step(Instant::now());
    release.store(true, Ordering::Release);
    std::thread::scope(|scope| {
        let drain = scope.spawn(move || draining.finish());
        for mut stream in clients {
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"HTTP/1.1 101");
        }
        assert_eq!(drain.join().unwrap(), Drained { ended: CROWD as u64, cut: 0 });
    });
}

#[test]
fn who_asks_and_fails_changes_nothing() {
    let path = socket("fails");
    let engine = Engine::start(Config { handoff: Some(path.clone()), ..echo() }).unwrap();
    for line in ["wirespeed handoff 1\n", "nonsense\n", ""] {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        drop(stream);
    }
    std::thread::sleep(Duration::from_millis(100));
    let mut client = Client::open(&engine, "/");
    client.send_text("on");
    assert_eq!(client.receive_text(), "on");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    engine.stop().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(!path.exists());
}
