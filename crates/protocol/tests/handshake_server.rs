//! The server's side of the opening handshake, with input split at every byte.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use proptest::prelude::*;
use support::sparse;
use wirespeed_protocol::deflate::negotiate::Config;
use wirespeed_protocol::handshake::{
    ClientHandshake, ClientRequest, HandshakeError, HeaderList, Limits, Progress, Request, ServerConfig,
    ServerHandshake, Version,
};

/// The request of RFC 6455 1.2.
const REQUEST: &str = "GET /chat HTTP/1.1\r\n\
    Host: server.example.com\r\n\
    Upgrade: websocket\r\n\
    Connection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Origin: http://example.com\r\n\
    Sec-WebSocket-Protocol: chat, superchat\r\n\
    Sec-WebSocket-Version: 13\r\n\
    \r\n";
const FRAME: &[u8] = &[0x81, 0x82, 0, 0, 0, 0, b'h', b'i'];

fn config() -> ServerConfig {
    ServerConfig {
        deflate: Some(Config::server()),
        subprotocols: vec!["none".to_owned(), "superchat".to_owned(), "chat".to_owned()],
    }
}

fn server() -> ServerHandshake {
    ServerHandshake::new(config(), Limits::default())
}

fn headers(fields: &[(&str, &str)]) -> HeaderList {
    let mut headers = HeaderList::new();
    for (name, value) in fields {
        headers.push(name, value).unwrap();
    }
    headers
}

/// Feeds the pieces. Returns the handshake and the number of bytes that were not consumed, or the error.
fn feed<'a>(
    mut server: ServerHandshake,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<(ServerHandshake, usize), HandshakeError> {
    let mut pieces = pieces.into_iter();
    while let Some(piece) = pieces.next() {
        if let Progress::Complete { consumed, .. } = server.receive(piece)? {
            return Ok((server, piece.len() - consumed + pieces.map(<[u8]>::len).sum::<usize>()));
        }
    }
    Err(server.receive_eof())
}

type Outcome = Result<(Option<Request>, usize), HandshakeError>;

/// Feeds the bytes whole, byte by byte and in two parts at every split, and expects the same result each time.
fn feed_every_split(limits: Limits, bytes: &[u8]) -> Result<(ServerHandshake, usize), HandshakeError> {
    let new = || ServerHandshake::new(config(), limits);
    let outcome = |fed: &Result<(ServerHandshake, usize), HandshakeError>| -> Outcome {
        fed.as_ref().map(|(server, left)| (server.request().cloned(), *left)).map_err(Clone::clone)
    };
    let whole = feed(new(), [bytes]);
    let check = |other: Outcome| match (outcome(&whole), other) {
        (Err(HandshakeError::MalformedStartLine { .. }), Err(HandshakeError::MalformedStartLine { .. })) => {}
        (whole, other) => assert_eq!(whole, other),
    };
    check(outcome(&feed(new(), bytes.chunks(1))));
    for split in (0..=bytes.len()).step_by(sparse(37)) {
        let (head, tail) = bytes.split_at(split);
        check(outcome(&feed(new(), [head, tail])));
    }
    whole
}

fn received(request: &str) -> ServerHandshake {
    feed_every_split(Limits::default(), request.as_bytes()).unwrap().0
}

/// Returns the error of the head or of the check, and the text of the response to it.
fn refuse(request: &str) -> (HandshakeError, String) {
    match feed_every_split(Limits::default(), request.as_bytes()) {
        Ok((server, _)) => {
            let error = server.check().unwrap_err();
            let same = server.accept(None, &HeaderList::new()).unwrap_err();
            assert_eq!(same, error, "accept does not depend on check having been called");
            let response = server.reject_error(&error);
            (error, String::from_utf8(response.to_bytes()).unwrap())
        }
        Err(error) => {
            let response = server().reject_error(&error);
            (error, String::from_utf8(response.to_bytes()).unwrap())
        }
    }
}

#[test]
fn valid_request_is_accepted() {
    let bytes = [REQUEST.as_bytes(), FRAME].concat();
    let (server, left) = feed_every_split(Limits::default(), &bytes).unwrap();
    assert_eq!(left, FRAME.len(), "frames behind the head are not eaten");
    let request = server.request().unwrap();
    assert_eq!((request.method.as_str(), request.target.as_str(), request.version), ("GET", "/chat", Version::Http11));
    assert_eq!(request.headers.len(), 7);
    server.check().unwrap();
    assert_eq!(server.offered_subprotocols().collect::<Vec<_>>(), ["chat", "superchat"]);
    let accepted = server.accept(Some("chat"), &headers(&[("Server", "test")])).unwrap();
    assert_eq!(
        String::from_utf8(accepted.response.to_bytes()).unwrap(),
        "HTTP/1.1 101 Switching Protocols\r\n\
         Upgrade: websocket\r\n\
         Connection: Upgrade\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
         Sec-WebSocket-Protocol: chat\r\n\
         Server: test\r\n\
         \r\n"
    );
    assert_eq!((accepted.subprotocol.as_deref(), accepted.deflate), (Some("chat"), None));
    assert_eq!(server.into_request().unwrap().target, "/chat");
}

#[test]
fn unusual_valid_requests_are_accepted() {
    let request = "\r\n\r\nGET http://example.com:80/chat?x=1 HTTP/1.1\r\n\
        host:example.com:80\r\n\
        UPGRADE: h2c, WebSocket\r\n\
        Connection: keep-alive\r\n\
        connection: Upgrade\r\n\
        Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAB==\r\n\
        Content-Length: 0\r\n\
        Sec-WebSocket-Version:13\r\n\
        Sec-WebSocket-Extensions: x-other; a=b, permessage-deflate; client_max_window_bits\r\n\
        \r\n";
    let server = received(request);
    server.check().unwrap();
    assert_eq!(server.request().unwrap().path_and_query(), Some("/chat?x=1"));
    assert_eq!(server.select_subprotocol(), None);
    let accepted = server.accept(None, &HeaderList::new()).unwrap();
    assert_eq!(
        accepted.response.headers.value_str("Sec-WebSocket-Extensions"),
        Some("permessage-deflate; server_max_window_bits=12; client_max_window_bits=12")
    );
    assert_eq!(accepted.deflate.unwrap().local_window_bits, 12);
    assert!(!accepted.response.headers.contains("Sec-WebSocket-Protocol"));
}

#[test]
fn path_and_query_of_targets() {
    for (target, path) in [
        ("/", Some("/")),
        ("/a?b=/c", Some("/a?b=/c")),
        ("http://host", Some("/")),
        ("HTTPS://host:1/a?b", Some("/a?b")),
        ("http://host?b", None),
        ("http:///a", None),
        ("ftp://host/a", None),
        ("host:80", None),
        ("*", None),
    ] {
        let server = received(&REQUEST.replace("/chat", target));
        assert_eq!(server.request().unwrap().path_and_query(), path, "{target}");
    }
}

#[test]
fn server_uses_its_own_order_of_subprotocols() {
    let server = received(REQUEST);
    assert_eq!(server.select_subprotocol(), Some("superchat"));
    let error = server.accept(Some("none"), &HeaderList::new()).unwrap_err();
    assert!(matches!(error, HandshakeError::InvalidArgument { argument: "subprotocol", .. }));
    assert_eq!(error.status(), 500);
}

#[test]
fn reserved_headers_are_rejected() {
    let server = received(REQUEST);
    for name in [
        "upgrade",
        "Connection",
        "Sec-WebSocket-Accept",
        "Sec-WebSocket-Extensions",
        "Sec-WebSocket-Protocol",
        "Content-Length",
        "Transfer-Encoding",
    ] {
        let error = server.accept(None, &headers(&[(name, "x")])).unwrap_err();
        assert!(matches!(error, HandshakeError::RefusedHeader { .. }), "{name}: {error:?}");
    }
}

#[test]
fn violations_of_each_rule_are_rejected() {
    let host = "a host name or address, with a port or without";
    let invalid =
        |name, value: &str, expected| HandshakeError::InvalidHeader { name, value: value.to_owned(), expected };
    let missing = |name| HandshakeError::MissingHeader { name };
    let duplicate = |name: &str| HandshakeError::DuplicateHeader { name: name.to_owned() };
    let upgrade = |name, value: Option<&str>| HandshakeError::InvalidUpgrade { name, value: value.map(str::to_owned) };
    let http = |version: &str| HandshakeError::UnsupportedHttpVersion { version: version.to_owned() };
    let method = |method: &str| HandshakeError::InvalidMethod { method: method.to_owned() };
    let target = |target: &str| HandshakeError::InvalidTarget { target: target.to_owned() };
    let version =
        |version: Option<&str>| HandshakeError::UnsupportedWebSocketVersion { version: version.map(str::to_owned) };
    let key = |value| invalid("Sec-WebSocket-Key", value, "the base64 of 16 bytes");
    let extensions = "a list of extensions with their parameters";
    for (from, to, error, status) in [
        ("HTTP/1.1", "HTTP/1.0", http("HTTP/1.0"), 505),
        ("HTTP/1.1", "HTTP/2.0", http("HTTP/2.0"), 505),
        ("HTTP/1.1", "HTTP/1.2", http("HTTP/1.2"), 505),
        ("GET", "POST", method("POST"), 405),
        ("GET", "get", method("get"), 405),
        ("/chat", "*", target("*"), 400),
        ("/chat", "example.com:80", target("example.com:80"), 400),
        ("Host: server.example.com\r\n", "", missing("Host"), 400),
        ("Host: server.example.com\r\n", "Host: a\r\nHost: a\r\n", duplicate("Host"), 400),
        ("Host: server.example.com", "Host:", invalid("Host", "", host), 400),
        ("Host: server.example.com", "Host: a b", invalid("Host", "a b", host), 400),
        ("Host: server.example.com", "Host: a/b", invalid("Host", "a/b", host), 400),
        ("Host: server.example.com", "Host: u@b", invalid("Host", "u@b", host), 400),
        ("Host: server.example.com", "Host: a, b", invalid("Host", "a, b", host), 400),
        ("Upgrade: websocket\r\n", "", upgrade("Upgrade", None), 426),
        ("Upgrade: websocket", "Upgrade: h2c", upgrade("Upgrade", Some("h2c")), 426),
        ("Connection: Upgrade\r\n", "", upgrade("Connection", None), 426),
        ("Connection: Upgrade", "Connection: keep-alive", upgrade("Connection", Some("keep-alive")), 426),
        ("Sec-WebSocket-Version: 13\r\n", "", version(None), 426),
        ("Version: 13", "Version: 8", version(Some("8")), 426),
        ("Version: 13", "Version: 013", version(Some("013")), 426),
        ("Version: 13", "Version: 13, 8", version(Some("13, 8")), 426),
        ("Version: 13\r\n", "Version: 13\r\nSec-WebSocket-Version: 13\r\n", duplicate("Sec-WebSocket-Version"), 400),
        ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "", missing("Sec-WebSocket-Key"), 400),
        (
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
            duplicate("Sec-WebSocket-Key"),
            400,
        ),
        ("dGhlIHNhbXBsZSBub25jZQ==", "", key(""), 400),
        ("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZQ", key("dGhlIHNhbXBsZSBub25jZQ"), 400),
        ("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZQo=", key("dGhlIHNhbXBsZSBub25jZQo="), 400),
        ("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZSEh", key("dGhlIHNhbXBsZSBub25jZSEh"), 400),
        ("dGhlIHNhbXBsZSBub25jZQ==", "SGVsbG8sIHdvcmxkIQ==", key("SGVsbG8sIHdvcmxkIQ=="), 400),
        ("dGhlIHNhbXBsZSBub25jZQ==", "dGhl!HNhbXBsZSBub25jZQ==", key("dGhl!HNhbXBsZSBub25jZQ=="), 400),
        (
            "chat, superchat",
            "chat, super chat",
            invalid("Sec-WebSocket-Protocol", "super chat", "a list of tokens"),
            400,
        ),
        (
            "Origin: http://example.com",
            "Sec-WebSocket-Extensions: permessage-deflate;",
            invalid("Sec-WebSocket-Extensions", "permessage-deflate;", extensions),
            400,
        ),
        ("Origin: http://example.com", "Content-Length: 1", HandshakeError::UnexpectedBody, 400),
        ("Origin: http://example.com", "Content-Length: x", HandshakeError::UnexpectedBody, 400),
        ("Origin: http://example.com", "Content-Length: 0, 1", HandshakeError::UnexpectedBody, 400),
        ("Origin: http://example.com", "Transfer-Encoding: chunked", HandshakeError::UnexpectedBody, 400),
    ] {
        let request = REQUEST.replacen(from, to, 1);
        assert_ne!(request, REQUEST);
        let (found, response) = refuse(&request);
        assert_eq!(found, error, "{request}");
        assert_eq!(found.status(), status, "{found:?}");
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
        let text = response.split_once("\r\n\r\n").unwrap().1;
        assert!(response.contains(&format!("Content-Length: {}\r\n", text.len())), "{response}");
        assert!(text.contains(&found.to_string()), "{response}");
    }
}

#[test]
fn error_responses_have_the_fields_of_their_status() {
    let (_, response) = refuse(&REQUEST.replace("GET", "PUT"));
    assert!(response.contains("\r\nAllow: GET\r\n") && response.contains("\r\nConnection: close\r\n"), "{response}");
    let (_, response) = refuse(&REQUEST.replace("Upgrade: websocket\r\n", ""));
    assert!(response.contains("\r\nUpgrade: websocket\r\nContent-Type: text/plain; charset=utf-8\r\n"), "{response}");
    assert!(response.contains("\r\nConnection: close, Upgrade\r\n"), "{response}");
    let (_, response) = refuse(&REQUEST.replace("Version: 13", "Version: 7"));
    assert!(response.contains("\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"), "{response}");
}

#[test]
fn internal_errors_are_not_described_to_the_client() {
    let server = received(REQUEST);
    let error = server.accept(None, &headers(&[("Upgrade", "x")])).unwrap_err();
    let response = String::from_utf8(server.reject_error(&error).to_bytes()).unwrap();
    assert!(response.starts_with("HTTP/1.1 500 ") && !response.contains("Upgrade"), "{response}");
}

#[test]
fn malformed_heads_are_rejected() {
    let start = |error: &HandshakeError| matches!(error, HandshakeError::MalformedStartLine { .. });
    let header = |error: &HandshakeError| matches!(error, HandshakeError::MalformedHeader { .. });
    let ending = |error: &HandshakeError| matches!(error, HandshakeError::MalformedLineEnding { .. });
    type Check = fn(&HandshakeError) -> bool;
    for (request, check) in [
        ("\x16\x03\x01\x02", start as Check),
        ("GET /\r\n\r\n", start),
        ("GET / HTTP\r\n\r\n", start),
        ("GET  / HTTP/1.1\r\n\r\n", start),
        ("GET / x HTTP/1.1\r\n\r\n", start),
        ("GET / HTTP/1.1 \r\n\r\n", start),
        ("GET HTTP/2.0\r\n\r\n", start),
        ("GET / HTTP/x\r\n\r\n", start),
        ("G(T / HTTP/1.1\r\n\r\n", start),
        ("GET /\x7f HTTP/1.1\r\n\r\n", start),
        ("\rGET / HTTP/1.1\r\n\r\n", start),
        (" GET / HTTP/1.1\r\n\r\n", start),
        ("GET / HTTP/1.1\n\n", ending),
        ("\nGET / HTTP/1.1\r\n\r\n", ending),
        ("GET / HTTP/1.1\r\nHost: a\n\r\n", ending),
        ("GET / HTTP/1.1\r\nHost: a\r\n\n", ending),
        ("GET / HTTP/1.1\r\nHost a\r\n\r\n", header),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", header),
        ("GET / HTTP/1.1\r\n Host: a\r\n\r\n", header),
        ("GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", header),
        ("GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n", header),
        ("GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n", header),
    ] {
        let (error, response) = refuse(request);
        assert!(check(&error), "{request:?}: {error:?}");
        assert!(response.starts_with("HTTP/1.1 400 "));
    }
}

#[test]
fn limits_of_the_head_apply() {
    let fits = Limits { head_size: REQUEST.len(), headers: 7, body_size: 0 };
    assert!(feed_every_split(fits, REQUEST.as_bytes()).is_ok());
    let error = feed_every_split(Limits { head_size: REQUEST.len() - 1, ..fits }, REQUEST.as_bytes()).unwrap_err();
    assert_eq!((error.status(), error), (431, HandshakeError::HeadTooLarge { limit: REQUEST.len() - 1 }));
    let error = feed_every_split(Limits { headers: 6, ..fits }, REQUEST.as_bytes()).unwrap_err();
    assert_eq!((error.status(), error), (431, HandshakeError::TooManyHeaders { limit: 6 }));
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(300));
    let error = feed_every_split(fits, long.as_bytes()).unwrap_err();
    assert_eq!((error.status(), error), (414, HandshakeError::StartLineTooLong { limit: REQUEST.len() }));
    let empty = "\r\n".repeat(300);
    assert!(feed_every_split(fits, empty.as_bytes()).is_err(), "empty lines count towards the limit");
}

#[test]
fn end_of_stream_inside_the_head_is_an_error() {
    for length in (0..REQUEST.len()).step_by(sparse(7)) {
        let error = feed(server(), [&REQUEST.as_bytes()[..length]]).unwrap_err();
        assert_eq!(error, HandshakeError::ConnectionClosed { received: length });
    }
}

#[test]
fn calls_out_of_order_are_errors() {
    let out_of_order = |error| matches!(error, HandshakeError::OutOfOrder { .. });
    let mut early = server();
    assert!(early.request().is_none());
    assert!(out_of_order(early.check().unwrap_err()));
    assert!(out_of_order(early.accept(None, &HeaderList::new()).unwrap_err()));
    assert!(early.receive(b"\x16").is_err());
    assert!(out_of_order(early.receive(b"x").unwrap_err()));
    assert!(out_of_order(early.receive_eof()));
    let mut late = received(REQUEST);
    assert!(out_of_order(late.receive(b"x").unwrap_err()));
    assert!(out_of_order(late.receive_eof()));
    assert!(late.check().is_ok(), "a call out of order changes nothing");
}

#[test]
fn caller_can_reject_with_its_own_response() {
    let server = received(REQUEST);
    let additional = headers(&[("Retry-After", "5"), ("Content-Length", "99"), ("Connection", "keep-alive")]);
    let response = server.reject(503, &additional, b"later").unwrap();
    assert_eq!(
        String::from_utf8(response.to_bytes()).unwrap(),
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\nContent-Length: 5\r\n\r\nlater"
    );
    let response = server.reject(204, &HeaderList::new(), b"").unwrap();
    assert_eq!(response.to_bytes(), b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
    let head = received(&REQUEST.replace("GET", "HEAD"));
    let response = head.reject(200, &HeaderList::new(), b"hello").unwrap();
    assert_eq!(response.to_bytes(), b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n");
    for (status, body) in [(101, ""), (100, ""), (0, ""), (1000, ""), (204, "x"), (304, "x")] {
        let error = server.reject(status, &HeaderList::new(), body.as_bytes()).unwrap_err();
        assert!(matches!(error, HandshakeError::InvalidArgument { .. }), "{status}");
    }
    let error = server.reject(200, &headers(&[("Transfer-Encoding", "chunked")]), b"").unwrap_err();
    assert!(matches!(error, HandshakeError::RefusedHeader { .. }));
}

#[test]
fn reason_phrase_cannot_inject_a_line() {
    let mut response = received(REQUEST).reject(400, &HeaderList::new(), b"").unwrap();
    response.reason = "a\r\nX: y".to_owned();
    assert!(response.to_bytes().starts_with(b"HTTP/1.1 400 a  X: y\r\nContent-Length: 0\r\n"));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), split in any::<prop::sample::Index>()) {
        for prefix in ["", "GET / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: "] {
            let bytes = [prefix.as_bytes(), &bytes].concat();
            let (head, tail) = bytes.split_at(split.index(bytes.len() + 1));
            let outcome = |fed: Result<(ServerHandshake, usize), HandshakeError>| match fed {
                Ok((server, left)) => Ok((server.check(), left)),
                Err(HandshakeError::MalformedStartLine { .. }) => Err(None),
                Err(error) => Err(Some(error)),
            };
            prop_assert_eq!(outcome(feed(server(), [bytes.as_slice()])), outcome(feed(server(), [head, tail])));
        }
    }

    #[test]
    fn mutated_requests_never_panic(position in 0..REQUEST.len(), byte in any::<u8>()) {
        let mut bytes = REQUEST.as_bytes().to_vec();
        bytes[position] = byte;
        let error = match feed(server(), [bytes.as_slice()]) {
            Ok((server, _)) => server.accept(server.select_subprotocol(), &HeaderList::new()).err(),
            Err(error) => Some(error),
        };
        if let Some(error) = error {
            let response = server().reject_error(&error);
            prop_assert!(matches!(response.status, 400 | 405 | 414 | 426 | 431 | 505));
        }
    }

    /// The server accepts the client's request and the client the server's response, for any valid request.
    #[test]
    fn both_sides_agree(
        nonce in any::<[u8; 16]>(),
        target in "/[a-z0-9/?=%._~-]{0,40}",
        host in "[a-z0-9.-]{1,20}(:[0-9]{1,5})?",
        offered in proptest::collection::hash_set("[a-z0-9.!#]{1,8}", 0..4),
        supported in proptest::collection::vec("[a-z0-9.!#]{1,8}", 0..4),
        value in "[ -~]{0,20}",
        deflate in any::<(bool, bool)>(),
    ) {
        let mut request = ClientRequest::new(&host, &target);
        request.subprotocols = offered.into_iter().collect();
        request.headers.push("X-Value", &value).unwrap();
        request.deflate = deflate.0.then(Config::client);
        let mut client = ClientHandshake::new(&request, nonce, Limits::default()).unwrap();
        let config = ServerConfig {
            deflate: deflate.1.then(Config::server),
            subprotocols: supported.iter().chain(request.subprotocols.last()).cloned().collect(),
        };
        let (server, left) = feed(ServerHandshake::new(config, Limits::default()), [client.request_bytes().as_slice()]).unwrap();
        prop_assert_eq!(left, 0);
        prop_assert_eq!(server.request(), Some(client.request()));
        let accepted = server.accept(server.select_subprotocol(), &HeaderList::new()).unwrap();
        let bytes = [accepted.response.to_bytes().as_slice(), FRAME].concat();
        match client.receive(&bytes).unwrap() {
            Progress::Complete { consumed, output } => {
                prop_assert_eq!(consumed, bytes.len() - FRAME.len());
                prop_assert_eq!(&output.subprotocol, &accepted.subprotocol);
                prop_assert_eq!(output.subprotocol.is_some(), !request.subprotocols.is_empty());
                prop_assert_eq!(output.deflate.is_some(), deflate.0 && deflate.1);
            }
            Progress::Incomplete => prop_assert!(false, "incomplete"),
        }
    }
}
