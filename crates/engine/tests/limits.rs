//! Limits on clients: in total, per address and per user, and on pending handshakes.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod auth_support;
mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use auth_support::{SECRET, hs256};
use serde_json::json;
use socket2::{Domain, Socket, Type};
use support::{Client, TIMEOUT, address, config};
use wirespeed_engine::auth::{Algorithm, Jwt, JwtOptions, Key};
use wirespeed_engine::config::{Limits, Networks, Proxies, Rate};
use wirespeed_engine::driver::protocol::CloseCode;
use wirespeed_engine::driver::protocol::handshake::HeaderList;
use wirespeed_engine::{Admission, Config, Engine, Http, Place, Reason, Role};

fn limited(limits: Limits) -> Engine {
    Engine::start(Config { admission: limits, ..config() }).unwrap()
}

/// Connects from this loopback address.
fn dial(engine: &Engine, from: [u8; 4]) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::from(from), 0)).into()).unwrap();
    socket.connect(&address(engine).into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn head(fields: &str) -> String {
    format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{fields}\r\n"
    )
}

/// Requests a session. Returns the status and the head of the response; 0 if the connection was closed.
fn request_session(stream: &mut TcpStream, fields: &str) -> (u16, String) {
    let _ = stream.write_all(head(fields).as_bytes());
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        answer.push(byte[0]);
    }
    let answer = String::from_utf8(answer).unwrap();
    (answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0), answer)
}

fn open(engine: &Engine, from: [u8; 4]) -> (TcpStream, u16) {
    let mut stream = dial(engine, from);
    let (status, _) = request_session(&mut stream, "");
    (stream, status)
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "the condition did not become true");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn sessions(engine: &Engine) -> u64 {
    engine.figures().total().sessions
}

fn failed(engine: &Engine, failed: Reason) -> u64 {
    engine.figures().total().failures[failed.index()]
}

/// Whether the server has closed the connection.
fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match (&mut &*stream).read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

#[test]
fn rejected_client_gets_retry_after() {
    let engine = limited(Limits { max_connections: 2, retry_after: Duration::from_millis(6500), ..Limits::default() });
    let mut clients = [open(&engine, [127, 0, 0, 1]), open(&engine, [127, 0, 0, 1])];
    assert!(clients.iter().all(|(_, status)| *status == 101));
    let (status, answer) = request_session(&mut dial(&engine, [127, 0, 0, 1]), "");
    assert_eq!(status, 503, "{answer}");
    assert!(answer.contains("Retry-After: 7\r\n"), "{answer}");
    wait_until(|| failed(&engine, Reason::Full) == 1);
    // Any end of a session frees its place, whether client or server ends it.
    clients[0].0.shutdown(Shutdown::Both).unwrap();
    wait_until(|| sessions(&engine) == 1);
    clients[0] = open(&engine, [127, 0, 0, 1]);
    assert_eq!(clients[0].1, 101);
    engine.drain(CloseCode::GOING_AWAY, "");
    drop(clients);
    engine.join().unwrap();
    assert_eq!(sessions(&engine), 0);
}

#[test]
fn waiting_request_takes_no_place() {
    let engine = limited(Limits { max_connections: 1, ..Limits::default() });
    let mut slow: Vec<_> = (0..50).map(|_| dial(&engine, [127, 0, 0, 2])).collect();
    for stream in &mut slow {
        stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    }
    let (_kept, status) = open(&engine, [127, 0, 0, 1]);
    assert_eq!(status, 101);
    // The limit applies to the clients that come later.
    let mut draining_input = slow.pop().unwrap();
    draining_input.write_all(&head("").as_bytes()[16..]).unwrap();
    let (status, _) = request_session(&mut draining_input, "");
    assert_eq!(status, 503);
}

#[test]
fn concurrent_rejections_are_limited() {
    let engine = limited(Limits { max_connections: 1, ..Limits::default() });
    let (kept, status) = open(&engine, [127, 0, 0, 1]);
    assert_eq!(status, 101);
    let silent: Vec<_> = (0..200).map(|_| dial(&engine, [127, 0, 0, 2])).collect();
    // Some had to make room for later ones.
    wait_until(|| failed(&engine, Reason::Full) + failed(&engine, Reason::Crowded) == 136);
    assert_eq!(engine.figures().total().connections, 65);
    wait_until(|| silent.iter().filter(|stream| is_closed(stream)).count() == 136);
    // The connections without a response do not count once there is room.
    drop(kept);
    wait_until(|| sessions(&engine) == 0);
    assert_eq!(open(&engine, [127, 0, 0, 1]).1, 101);
}

#[test]
fn silent_connections_do_not_block_rejections() {
    let limits = Limits { max_connections: 1, ..Limits::default() };
    let open_timeout = Duration::from_secs(3600);
    let engine = Engine::start(Config { admission: limits, open_timeout, workers: 1, ..config() }).unwrap();
    let (_kept, status) = open(&engine, [127, 0, 0, 1]);
    assert_eq!(status, 101);
    let silent: Vec<_> = (0..64).map(|number| dial(&engine, [127, 0, 1, number])).collect();
    wait_until(|| engine.figures().total().connections == 65);
    std::thread::sleep(Duration::from_millis(50));
    for _ in 0..3 {
        assert_eq!(open(&engine, [127, 0, 0, 3]).1, 503);
    }
    let mut probe = dial(&engine, [127, 0, 0, 3]);
    probe.write_all(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut answer = String::new();
    probe.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(failed(&engine, Reason::Crowded) <= 4);
    // Connections that will be rejected do not have to be waited for.
    let began = Instant::now();
    wait_until(|| silent.iter().all(is_closed));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// A connection that was answered but stays open does not count against the limit.
#[test]
fn lingering_connections_do_not_block_rejections() {
    let engine = limited(Limits { max_connections: 1, ..Limits::default() });
    let (_kept, status) = open(&engine, [127, 0, 0, 1]);
    assert_eq!(status, 101);
    let mut lingering = Vec::new();
    for number in 0..100 {
        lingering.push(open(&engine, [127, 0, 1, number]));
        assert_eq!(lingering.last().map(|(_, status)| *status), Some(503), "{number}");
    }
}

#[test]
fn slow_handshakes_of_one_address_do_not_lock_others_out() {
    let engine = limited(Limits { max_pending: 64, ..Limits::default() });
    let mut slow = Vec::new();
    let mut slowest = Duration::ZERO;
    for number in 0..2000 {
        slow.push(dial(&engine, [127, 0, 0, 2]));
        if number % 3 == 0 {
            slow.last_mut().unwrap().write_all(b"GET / HTT").unwrap();
        }
        if number % 40 == 0 {
            let begin = Instant::now();
            let (_, status) = open(&engine, [127, 0, 0, 3]);
            assert_eq!(status, 101);
            slowest = slowest.max(begin.elapsed());
        }
    }
    assert!(slowest < Duration::from_millis(500), "{slowest:?}"); // 100 ms, plus the load of test machines
    // A slow handshake from another address is not evicted by them.
    let mut honest = dial(&engine, [127, 0, 0, 4]);
    honest.write_all(&head("").as_bytes()[..30]).unwrap();
    wait_until(|| failed(&engine, Reason::Crowded) >= 2000 - 64 - 2);
    wait_until(|| engine.figures().total().connections <= 66);
    honest.write_all(&head("").as_bytes()[30..]).unwrap();
    let mut answer = [0; 12];
    honest.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
    drop(slow);
    wait_until(|| engine.figures().total().connections == 1);
}

#[test]
fn honest_burst_is_served_completely() {
    let engine = limited(Limits { max_pending: 8, ..Limits::default() });
    let mut streams: Vec<_> = (0..90).map(|_| dial(&engine, [127, 0, 0, 2])).collect();
    std::thread::sleep(Duration::from_millis(100));
    for stream in &mut streams {
        assert_eq!(request_session(stream, "").0, 101);
    }
    assert_eq!(sessions(&engine), 90);
}

#[test]
fn sessions_per_address_are_limited() {
    let engine = limited(Limits { max_connections_per_address: 3, ..Limits::default() });
    let clients: Vec<_> = (0..3).map(|_| open(&engine, [127, 0, 0, 2])).collect();
    assert!(clients.iter().all(|(_, status)| *status == 101));
    let (status, answer) = request_session(&mut dial(&engine, [127, 0, 0, 2]), "");
    assert!(status == 429 && answer.contains("Retry-After: 5\r\n"), "{answer}");
    assert_eq!(open(&engine, [127, 0, 0, 3]).1, 101);
    wait_until(|| failed(&engine, Reason::Address) == 1);
    drop(clients);
    wait_until(|| sessions(&engine) == 0);
    assert_eq!(open(&engine, [127, 0, 0, 2]).1, 101);
}

#[test]
fn rate_of_connections_per_address_is_limited() {
    let rate_per_address = Rate::new(2.0, Some(5.0));
    let engine = limited(Limits { rate_per_address, ..Limits::default() });
    let statuses: Vec<_> = (0..8).map(|_| open(&engine, [127, 0, 0, 2]).1).collect();
    assert_eq!(statuses[..5], [101; 5]);
    assert_eq!(statuses[7], 429, "{statuses:?}");
    let (_, answer) = request_session(&mut dial(&engine, [127, 0, 0, 2]), "");
    assert!(answer.contains("Retry-After: 1\r\n"), "{answer}");
    assert_eq!(open(&engine, [127, 0, 0, 3]).1, 101);
    wait_until(|| failed(&engine, Reason::RateLimited) >= 2);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(open(&engine, [127, 0, 0, 2]).1, 101);
}

#[test]
fn limit_holds_for_concurrent_requests() {
    let options = JwtOptions::new([Algorithm::HS256], Key::Secret(SECRET.to_vec()));
    let limits =
        Limits { max_connections: 40, max_connections_per_address: 25, max_sessions_per_user: 10, ..Limits::default() };
    let auth = Some(Arc::new(Jwt::new(options).unwrap()));
    let engine = Engine::start(Config { admission: limits, auth, workers: 4, ..config() }).unwrap();
    let token = |user: &str| format!("Authorization: Bearer {}\r\n", hs256(&json!({"sub": user, "exp": 4e9 as u64})));
    let users = [token("ann"), token("bob"), token("eve")];
    for _ in 0..5 {
        let opened: [AtomicUsize; 3] = Default::default();
        let all = Barrier::new(6);
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (engine, users, opened, all) = (&engine, &users, &opened, &all);
                scope.spawn(move || {
                    let mut kept = Vec::new();
                    for number in 0..30 {
                        let user = (thread + number) % 3;
                        let mut stream = dial(engine, [127, 0, 0, 2 + (thread % 2) as u8]);
                        if request_session(&mut stream, &users[user]).0 == 101 {
                            opened[user].fetch_add(1, Ordering::Relaxed);
                            kept.push(stream);
                        }
                    }
                    all.wait(); // no client leaves before all have sent a request
                });
            }
        });
        assert_eq!(opened.map(AtomicUsize::into_inner), [10; 3]);
        wait_until(|| sessions(&engine) == 0 && engine.figures().total().connections == 0);
    }
    assert!(failed(&engine, Reason::User) > 0);
    // Exactly the limit.
    let mut kept = Vec::new();
    for _ in 0..15 {
        let mut stream = dial(&engine, [127, 0, 0, 9]);
        let (status, answer) = request_session(&mut stream, &users[0]);
        assert_eq!(status, if kept.len() < 10 { 101 } else { 429 }, "{answer}");
        if status == 101 {
            kept.push(stream);
        }
    }
}

#[test]
fn limits_apply_to_the_address_in_the_proxy_header() {
    let trusted = Networks::parse(&["127.0.0.0/30"]).unwrap();
    let proxies = Proxies { protocol: trusted.clone(), trusted, ..Proxies::default() };
    let admission = Limits { max_connections_per_address: 1, ..Limits::default() };
    let engine = Engine::start(Config { admission, proxies, ..config() }).unwrap();
    let mut kept = Vec::new();
    let mut through = |proxied: &str, fields: &str| {
        let mut stream = dial(&engine, [127, 0, 0, 2]);
        let mut bytes = proxied.as_bytes().to_vec();
        bytes.extend(head(fields).as_bytes());
        // The header arrives in single bytes, and its last one together with the request.
        for byte in &bytes[..proxied.len() - 1] {
            stream.write_all(&[*byte]).unwrap();
        }
        stream.write_all(&bytes[proxied.len() - 1..]).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        kept.push(stream);
        String::from_utf8(answer[9..].to_vec()).unwrap()
    };
    let of = |client: &str| format!("PROXY TCP4 {client} 127.0.0.1 7 8\r\n");
    assert_eq!(through(&of("203.0.113.1"), ""), "101");
    assert_eq!(through(&of("203.0.113.1"), ""), "429");
    assert_eq!(through(&of("203.0.113.2"), "X-Forwarded-For: 203.0.113.1\r\n"), "101");
    // The address in the PROXY header is a trusted proxy, which names the client.
    assert_eq!(through(&of("127.0.0.1"), "X-Forwarded-For: 203.0.113.1\r\n"), "429");
    assert_eq!(through(&of("127.0.0.1"), "X-Forwarded-For: 203.0.113.3\r\n"), "101");
    assert_eq!(through("PROXY UNKNOWN\r\n", ""), "101");
    assert_eq!(through("PROXY UNKNOWN\r\n", ""), "429");
    // A peer that is not a proxy must not send a PROXY header.
    assert_eq!(open(&engine, [127, 0, 0, 5]).1, 101);
    let mut direct = dial(&engine, [127, 0, 0, 6]);
    direct.write_all(of("203.0.113.9").as_bytes()).unwrap();
    assert_eq!(request_session(&mut direct, "").0, 400);
    let silent = dial(&engine, [127, 0, 0, 2]);
    let mut request = dial(&engine, [127, 0, 0, 2]);
    assert_eq!(request_session(&mut request, "").0, 0);
    wait_until(|| failed(&engine, Reason::Proxy) == 1);
    assert!(!is_closed(&silent));
}

#[test]
fn forwarded_address_counts_for_the_limits() {
    let everybody = Networks::parse(&["127.0.0.0/8"]).unwrap();
    let proxies = Proxies { protocol: everybody, ..Proxies::default() };
    let rate_per_address = Rate::new(0.001, Some(1.0));
    let admission = Limits { max_connections_per_address: 1, rate_per_address, ..Limits::default() };
    let http = Http { at: Some(Place::Tcp("127.0.0.1:0".parse().unwrap())), ..Http::default() };
    let engine = Engine::start(Config { admission, proxies, http, ..config() }).unwrap();
    let Some(Place::Tcp(internal)) = engine.http_place() else { panic!("no address") };
    for _ in 0..5 {
        let mut stream = TcpStream::connect(internal).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
    }
    let mut client = dial(&engine, [127, 0, 0, 1]);
    client.write_all(b"PROXY UNKNOWN\r\n").unwrap();
    assert_eq!(request_session(&mut client, "").0, 101);
}

#[test]
fn panic_frees_the_place() {
    let admit = |request: &wirespeed_engine::driver::protocol::handshake::Request, _| {
        assert_ne!(request.target, "/panic");
        Admission::Accept { role: Role::Events, subprotocol: None, headers: HeaderList::new() }
    };
    let admission = Limits { max_connections: 1, max_connections_per_address: 1, ..Limits::default() };
    let engine = Engine::start(Config { admission, admit: Arc::new(admit), ..config() }).unwrap();
    for _ in 0..3 {
        assert_eq!(Client::request(&engine, "/panic", "").status, 0);
    }
    assert_eq!(Client::request(&engine, "/", "").status, 101);
    wait_until(|| failed(&engine, Reason::Panic) == 3);
}

#[test]
fn each_failure_has_its_reason() {
    let options = JwtOptions::new([Algorithm::HS256], Key::Secret(SECRET.to_vec()));
    let open_timeout = Duration::from_millis(300);
    let admit = |request: &wirespeed_engine::driver::protocol::handshake::Request, _| Admission::Refuse {
        status: request.target[1..].parse().unwrap(),
        headers: HeaderList::new(),
        body: Vec::new(),
    };
    let auth = Some(Arc::new(Jwt::new(options).unwrap()));
    let engine = Engine::start(Config { open_timeout, admit: Arc::new(admit), auth, ..config() }).unwrap();
    let token = format!("Authorization: Bearer {}\r\n", hs256(&json!({"sub": "ann", "exp": 4e9 as u64})));
    for status in [403, 404, 410] {
        assert_eq!(Client::request(&engine, &format!("/{status}"), &token).status, status);
    }
    assert_eq!(Client::request(&engine, "/", "").status, 401);
    let mut invalid = dial(&engine, [127, 0, 0, 1]);
    invalid.write_all(b"nonsense\r\n\r\n").unwrap();
    drop(dial(&engine, [127, 0, 0, 1]));
    let timeout = dial(&engine, [127, 0, 0, 1]);
    wait_until(|| is_closed(&timeout));
    drop(invalid);
    let reasons = [
        Reason::Forbidden,
        Reason::NotFound,
        Reason::Refused,
        Reason::Unauthorized,
        Reason::Malformed,
        Reason::Reset,
        Reason::Timeout,
    ];
    wait_until(|| reasons.iter().all(|reason| failed(&engine, *reason) == 1));
    let _last = dial(&engine, [127, 0, 0, 1]);
    wait_until(|| engine.figures().total().connections == 1);
    engine.stop().unwrap();
    assert_eq!(failed(&engine, Reason::Stopping), 1);
}

/// Whether a rejected client that keeps sending pieces of this size is disconnected.
fn is_disconnected(mut stream: impl Write, at_once: usize, pause: Duration, most: usize) -> bool {
    let bytes = vec![b'x'; at_once];
    let deadline = Instant::now() + TIMEOUT;
    let mut sent = 0;
    while sent < most && Instant::now() < deadline {
        if stream.write_all(&bytes).is_err() {
            return true;
        }
        sent += at_once;
        std::thread::sleep(pause);
    }
    false
}

#[test]
fn rejected_client_is_not_read_from_for_long() {
    let limits = Limits { max_connections: 1, ..Limits::default() };
    let open_timeout = Duration::from_secs(3600);
    let engine = Engine::start(Config { admission: limits, open_timeout, ..config() }).unwrap();
    let _first = Client::open(&engine, "/");
    let slowly = Duration::from_millis(20);
    for (at_once, pause) in [(64 * 1024, Duration::ZERO), (1, slowly)] {
        let second = Client::request(&engine, "/", "");
        assert_eq!(second.status, 503);
        assert!(is_disconnected(&second.stream, at_once, pause, 64 << 20), "{at_once}");
    }
    wait_until(|| engine.figures().total().connections == 1);
}

#[test]
fn client_rejected_over_tls_is_not_read_from_for_long() {
    use wirespeed_engine::driver::tls::{client, server};
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = certified.cert.pem().into_bytes();
    let options = server::Options {
        certificate: certificate.clone(),
        key: certified.signing_key.serialize_pem().into_bytes(),
        client_ca: Vec::new(),
        alpn: Vec::new(),
        versions: Vec::new(),
    };
    let limits = Limits { max_connections: 1, ..Limits::default() };
    let mut listen = config().listen;
    listen[0].tls = Some(options.build().unwrap());
    let open_timeout = Duration::from_secs(3600);
    let engine = Engine::start(Config { listen, admission: limits, open_timeout, ..config() }).unwrap();
    let options = client::Options { ca: vec![certificate], ..client::Options::default() };
    let config = options.build().unwrap();
    let dial = || {
        let stream = dial(&engine, [127, 0, 0, 1]);
        let name = client::server_name("localhost").unwrap();
        let session = rustls::ClientConnection::new(std::sync::Arc::clone(&config), name).unwrap();
        let mut stream = rustls::StreamOwned::new(session, stream);
        stream.write_all(head("").as_bytes()).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (stream, String::from_utf8(status[9..].to_vec()).unwrap())
    };
    let (_first, status) = dial();
    assert_eq!(status, "101");
    for (at_once, pause) in [(64 * 1024, Duration::ZERO), (1, Duration::from_millis(20))] {
        let (second, status) = dial();
        assert_eq!(status, "503");
        assert!(is_disconnected(second, at_once, pause, 64 << 20), "{at_once}");
    }
    wait_until(|| engine.figures().total().connections == 1);
}
