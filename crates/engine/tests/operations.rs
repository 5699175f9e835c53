//! Operation of an engine: HTTP endpoints, graceful shutdown, and restarts without lost clients.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::{Client, TIMEOUT, address, config};
use wirespeed_engine::config::Limits;
use wirespeed_engine::driver::protocol::handshake::HeaderList;
use wirespeed_engine::{Admission, Config, Drain, Drained, Engine, Http, Place, Role};

fn echo() -> Config {
    let accept = |_: &_, _| Admission::Accept { role: Role::Echo, subprotocol: None, headers: HeaderList::new() };
    Config { admit: Arc::new(accept), ..config() }
}

fn internal() -> Http {
    Http { at: Some(Place::Tcp("127.0.0.1:0".parse().unwrap())), ..Http::default() }
}

fn internal_address(engine: &Engine) -> SocketAddr {
    match engine.http_place().unwrap() {
        Place::Tcp(address) => *address,
        Place::Unix(_) => panic!("a path"),
    }
}

/// Returns status, head and body.
fn request(at: SocketAddr, line: &str, fields: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(format!("{line}\r\nHost: localhost\r\n{fields}\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), head.to_owned(), body.to_owned())
}

fn get(at: SocketAddr, path: &str) -> (u16, String) {
    let (status, _, body) = request(at, &format!("GET {path} HTTP/1.1"), "");
    (status, body)
}

#[test]
fn health_and_readiness_are_served_to_clients() {
    let engine = Engine::start(echo()).unwrap();
    let at = address(&engine);
    assert_eq!(get(at, "/health"), (200, "ok\n".to_owned()));
    assert_eq!(get(at, "/ready?probe=1"), (200, "ready\n".to_owned()));
    let (status, head, body) = request(at, "HEAD /health HTTP/1.1", "");
    assert_eq!((status, body.as_str()), (200, ""));
    assert!(head.contains("Content-Length: 3\r\n") && head.contains("Cache-Control: no-store"), "{head}");
    assert_eq!(request(at, "GET /health HTTP/1.0", "").0, 200);
    let (status, head, _) = request(at, "POST /health HTTP/1.1", "Content-Length: 0\r\n");
    assert!(status == 405 && head.contains("Allow: GET, HEAD"), "{head}");
    // Metrics are off by default, and other paths are unaffected.
    assert_eq!((get(at, "/metrics").0, get(at, "/").0), (426, 426));
    // The paths of WebSocket requests belong to the application.
    let mut client = Client::open(&engine, "/health");
    client.send_text("hello");
    assert_eq!(client.receive_text(), "hello");
    // Such requests do not count as failed handshakes.
    let failed: u64 = engine.figures().total().failures.iter().sum();
    assert_eq!(failed, 2);
}

#[test]
fn metrics_are_served_at_a_separate_address() {
    let http = Http { metrics_token: Some("secret".into()), ..internal() };
    let engine =
        Engine::start(Config { http, admission: Limits { max_connections: 1, ..Limits::default() }, ..echo() })
            .unwrap();
    let client = Client::open(&engine, "/");
    let at = internal_address(&engine);
    assert_eq!(get(at, "/metrics").0, 401);
    for (token, status) in [("secret", 200), ("secre", 401), ("secret1", 401), ("", 401)] {
        let fields = format!("Authorization: Bearer {token}\r\n");
        assert_eq!(request(at, "GET /metrics HTTP/1.1", &fields).0, status, "{token}");
    }
    let (_, head, body) = request(at, "GET /metrics HTTP/1.1", "authorization: bearer secret\r\n");
    assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.contains("wirespeed_sessions{worker=\"0\"}") && body.ends_with("# EOF\n"), "{body}");
    assert_eq!(get(at, "/ready"), (503, "full\n".to_owned()));
    assert_eq!(get(at, "/health").0, 200);
    let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                   Sec-WebSocket-Version: 13\r\n";
    assert_eq!(request(at, "GET / HTTP/1.1", upgrade).0, 404);
    drop(client);
}

#[test]
fn stuck_worker_fails_the_health_check() {
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
    let at = internal_address(&engine);
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| Client::open(&engine, "/"));
        while !stuck.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(300));
        // The system may choose the stuck worker, which answers no client: that is no 200 either.
        let deadline = Instant::now() + TIMEOUT;
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
    // The released worker answers its client before its turn ends, and counts as stuck until then.
    let deadline = Instant::now() + TIMEOUT;
    while get(at, "/health") != (200, "ok\n".to_owned()) {
        assert!(Instant::now() < deadline, "the worker is still stuck");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(waiting);
}

#[test]
fn drain_closes_sessions_in_batches() {
    let engine = Engine::start(Config { http: internal(), ..echo() }).unwrap();
    let (at, internal) = (address(&engine), internal_address(&engine));
    let clients: Vec<_> = (0..60).map(|_| Client::open(&engine, "/")).collect();
    // One client has sent no request, and another one a part of it.
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
        assert!(text.starts_with("HTTP/1.1 101"), "an accepted client gets a session: {text}");
        assert!(text.contains("service restart"), "and a close frame with the reason: {text}");
        let ended: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        // The incomplete request is disconnected at the timeout, and does not count as a session.
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
    assert!(engine.events().take(1, None).is_err(), "the engine has ended");
    engine.stop().unwrap();
}

#[test]
fn sessions_that_do_not_close_are_disconnected_at_the_timeout() {
    let engine = Engine::start(echo()).unwrap();
    let clients: Vec<_> = (0..3).map(|_| Client::open(&engine, "/")).collect(); // they read nothing
    let begin = Instant::now();
    let timeout = Duration::from_millis(500);
    assert_eq!(engine.begin_drain(Drain { timeout, ..Drain::default() }).finish(), Drained { ended: 0, cut: 3 });
    assert!(begin.elapsed() < Duration::from_secs(3));
    drop(clients);
}

#[test]
fn readiness_fails_before_the_drain() {
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

/// Clients that connect at the same moment: more than a worker accepts at once, so that some remain in the queue.
const CROWD: usize = 150;

/// Opens sessions as fast as possible until stopped. Returns their number, and the failures before an upgrade.
fn storm(at: SocketAddr, stop: &AtomicBool, pause: Duration) -> (usize, Vec<String>) {
    let open = || -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(at)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
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
        // Close with a reset: TIME_WAIT would use up the ports.
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
fn restart_refuses_no_client() {
    let path = socket("restart");
    let how = Drain { timeout: Duration::from_secs(2), ..Drain::default() };
    let begin = |at: Option<SocketAddr>, workers| {
        // Accepting is slow, so that the queues are not empty at the handoff.
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
        // To more workers, to fewer, and to the same number.
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
            let deadline = Instant::now() + TIMEOUT;
            while engine.events().take(1, Some(deadline)).is_ok() {
                assert!(Instant::now() < deadline, "the old engine continues");
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
fn metrics_address_moves_to_the_new_engine_at_once() {
    let path = socket("metrics");
    let begin = |at: Place| {
        let http = Http { at: Some(at), ..Http::default() };
        Engine::start(Config { http, handoff: Some(path.clone()), ..echo() }).unwrap()
    };
    let old = begin(Place::Tcp("127.0.0.1:0".parse().unwrap()));
    let client = Client::open(&old, "/"); // it reads nothing, so the old engine drains slowly
    let at = internal_address(&old);
    let new = begin(Place::Tcp(at));
    let deadline = Instant::now() + TIMEOUT;
    // Until the old workers have processed the command.
    while !(0..50).all(|_| get(at, "/ready") == (200, "ready\n".to_owned())) {
        assert!(Instant::now() < deadline);
    }
    assert!(get(at, "/metrics").1.contains("wirespeed_sessions{worker=\"0\"} 0"));
    assert_eq!(old.figures().total().sessions, 1);
    drop((client, new));
}

#[test]
fn unix_socket_is_handed_over_too() {
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
    let deadline = Instant::now() + TIMEOUT;
    drop(early);
    while old.events().take(1, Some(deadline)).is_ok() {
        assert!(Instant::now() < deadline, "the old engine continues");
    }
    let mut stream = UnixStream::connect(&at).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(old);
    assert!(at.exists(), "the file belongs to the new engine");
    drop(new);
    assert!(!at.exists());
}

#[test]
fn engine_without_a_usable_handoff_path_takes_nothing_over() {
    let path = socket("next");
    let old = Engine::start(Config { handoff: Some(path.clone()), ..echo() }).unwrap();
    let at = address(&old);
    // At the path of its temporary socket.
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

/// More clients than are accepted in one turn are in the queue when the workers stop accepting.
#[test]
fn queued_clients_are_served_when_accepting_stops() {
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
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            let request = "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                           Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
            stream.write_all(request.as_bytes()).unwrap();
            stream
        })
        .collect();
    let mut draining = engine.begin_drain(Drain { timeout: TIMEOUT, ..Drain::default() });
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
fn failed_handoff_changes_nothing() {
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
