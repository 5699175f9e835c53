//! The client's side of the opening handshake, with input split at every byte.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use proptest::prelude::*;
use support::sparse;
use wirespeed_protocol::deflate::negotiate::Config;
use wirespeed_protocol::handshake::{
    Accepted, ClientHandshake, ClientRequest, HandshakeError, HeaderError, HeaderList, Limits, Progress, Response,
    Version, accept_key,
};

const NONCE: [u8; 16] = *b"the sample nonce";

/// The response of RFC 6455 1.2 without its subprotocol. [`FRAME`] may follow it.
const ACCEPT: &str = "HTTP/1.1 101 Switching Protocols\r\n\
    Upgrade: websocket\r\n\
    Connection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
    \r\n";
const FRAME: &[u8] = &[0x81, 0x02, b'h', b'i'];

fn request() -> ClientRequest {
    let mut request = ClientRequest::new("server.example.com", "/chat");
    request.subprotocols = vec!["chat".to_owned(), "superchat".to_owned()];
    request.deflate = Some(Config::client());
    request
}

fn handshake(request: &ClientRequest) -> ClientHandshake {
    ClientHandshake::new(request, NONCE, Limits::default()).unwrap()
}

fn headers(fields: &[(&str, &str)]) -> HeaderList {
    let mut headers = HeaderList::new();
    for (name, value) in fields {
        headers.push(name, value).unwrap();
    }
    headers
}

/// Feeds the pieces until the handshake is over, then the end of the stream. Returns the result and the number of bytes
/// that were not consumed.
fn feed<'a>(
    mut client: ClientHandshake,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Result<Accepted, HandshakeError>, usize) {
    let mut pieces = pieces.into_iter();
    let outcome = loop {
        let Some(piece) = pieces.next() else { break Err(client.receive_eof()) };
        match client.receive(piece) {
            Ok(Progress::Incomplete) => {}
            Ok(Progress::Complete { consumed, output }) => {
                return (Ok(output), piece.len() - consumed + pieces.map(<[u8]>::len).sum::<usize>());
            }
            Err(error) => break Err(error),
        }
    };
    (outcome, 0)
}

/// Feeds the bytes whole, byte by byte and in two parts at every split, and expects the same result each time. Only the
/// quoted line of a malformed start line may differ, as it has the bytes received so far.
fn feed_every_split(client: &ClientHandshake, bytes: &[u8]) -> (Result<Accepted, HandshakeError>, usize) {
    let whole = feed(client.clone(), [bytes]);
    let check = |other: (Result<Accepted, HandshakeError>, usize)| match (&whole.0, &other.0) {
        (Err(HandshakeError::MalformedStartLine { .. }), Err(HandshakeError::MalformedStartLine { .. })) => {}
        _ => assert_eq!(whole, other),
    };
    check(feed(client.clone(), bytes.chunks(1)));
    for split in (0..=bytes.len()).step_by(sparse(37)) {
        let (head, tail) = bytes.split_at(split);
        check(feed(client.clone(), [head, tail]));
    }
    whole
}

fn refuse(request: &ClientRequest, response: &str) -> HandshakeError {
    feed_every_split(&handshake(request), response.as_bytes()).0.unwrap_err()
}

fn rejection(response: &str) -> Response {
    match refuse(&request(), response) {
        HandshakeError::Rejected(response) => *response,
        other => panic!("{other:?}"),
    }
}

#[test]
fn accept_key_matches_the_rfc() {
    assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}

#[test]
fn request_has_all_fields() {
    let mut request = request();
    request.origin = Some("http://example.com".to_owned());
    request.authorization = Some("Basic eDp5".to_owned());
    request.user_agent = Some("agent/1".to_owned());
    request.headers = headers(&[("X-One", "1"), ("x-one", "2")]);
    let client = handshake(&request);
    assert_eq!(
        String::from_utf8(client.request_bytes()).unwrap(),
        "GET /chat HTTP/1.1\r\n\
         Host: server.example.com\r\n\
         Upgrade: websocket\r\n\
         Connection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\
         Sec-WebSocket-Protocol: chat, superchat\r\n\
         Origin: http://example.com\r\n\
         Authorization: Basic eDp5\r\n\
         User-Agent: agent/1\r\n\
         X-One: 1\r\n\
         x-one: 2\r\n\
         \r\n"
    );
    assert_eq!(client.request().target, "/chat");
    assert_eq!(client.request().headers.len(), 12);
}

#[test]
fn additional_headers_replace_defaults() {
    let mut request = request();
    request.origin = Some("http://one".to_owned());
    request.authorization = Some("Basic one".to_owned());
    request.user_agent = Some("one".to_owned());
    let two = [
        ("user-agent", "two"),
        ("AUTHORIZATION", "Bearer two"),
        ("origin", "http://two"),
        ("host", "two:8080"),
        ("sec-websocket-protocol", "two, three"),
    ];
    request.headers = headers(&two);
    let client = handshake(&request);
    let sent = &client.request().headers;
    for (name, value) in two {
        assert_eq!(sent.single(name).unwrap(), Some(value.as_bytes()), "{name}");
    }
    assert_eq!(sent.iter().next().unwrap().name(), "Host", "RFC 9110 7.2: Host comes first");
    // The server may choose from the subprotocols in the additional field.
    let chosen = ACCEPT.replace("\r\n\r\n", "\r\nSec-WebSocket-Protocol: three\r\n\r\n");
    assert_eq!(feed_every_split(&client, chosen.as_bytes()).0.unwrap().subprotocol.as_deref(), Some("three"));
    let chosen = ACCEPT.replace("\r\n\r\n", "\r\nSec-WebSocket-Protocol: chat\r\n\r\n");
    assert!(feed_every_split(&client, chosen.as_bytes()).0.is_err());
}

#[test]
fn reserved_headers_are_rejected() {
    for name in [
        "upgrade",
        "Connection",
        "SEC-WebSocket-Key",
        "Sec-WebSocket-Version",
        "Sec-WebSocket-Accept",
        "Sec-WebSocket-Extensions",
        "Content-Length",
        "Transfer-Encoding",
    ] {
        let mut request = request();
        request.headers = headers(&[(name, "1")]);
        match ClientHandshake::new(&request, NONCE, Limits::default()) {
            Err(HandshakeError::RefusedHeader { name: refused, .. }) => assert!(refused.eq_ignore_ascii_case(name)),
            other => panic!("{name}: {other:?}"),
        }
    }
    for name in ["Host", "Origin", "Authorization", "User-Agent"] {
        let mut request = request();
        request.headers = headers(&[(name, "one"), (name, "two")]);
        let error = ClientHandshake::new(&request, NONCE, Limits::default()).unwrap_err();
        assert!(
            matches!(error, HandshakeError::RefusedHeader { name: ref refused, .. } if refused == name),
            "{error:?}"
        );
    }
}

#[test]
fn invalid_arguments_are_rejected() {
    let with = |change: fn(&mut ClientRequest)| {
        let mut request = request();
        change(&mut request);
        ClientHandshake::new(&request, NONCE, Limits::default()).unwrap_err()
    };
    for (argument, error) in [
        ("host", with(|request| request.host.clear())),
        ("host", with(|request| request.host = "example.com\r\nX: y".to_owned())),
        ("host", with(|request| request.host = "user@example.com".to_owned())),
        ("host", with(|request| request.host = "example.com/path".to_owned())),
        ("host", with(|request| request.headers.push("Host", "a b").unwrap())),
        ("request target", with(|request| request.target.clear())),
        ("request target", with(|request| request.target = "chat".to_owned())),
        ("request target", with(|request| request.target = "/a b".to_owned())),
        ("request target", with(|request| request.target = "/a\r\nX: y".to_owned())),
        ("request target", with(|request| request.target = "/a#b".to_owned())),
        ("request target", with(|request| request.target = "/\u{e9}".to_owned())),
        ("subprotocol", with(|request| request.subprotocols = vec![String::new()])),
        ("subprotocol", with(|request| request.subprotocols = vec!["a b".to_owned()])),
        ("subprotocol", with(|request| request.subprotocols = vec!["a,".to_owned()])),
        ("subprotocol", with(|request| request.subprotocols = vec!["a".to_owned(), "a".to_owned()])),
        ("compression level", with(|request| request.deflate.as_mut().unwrap().level = 10)),
        ("server_max_window_bits", with(|request| request.deflate.as_mut().unwrap().server_max_window_bits = Some(7))),
    ] {
        assert!(
            matches!(error, HandshakeError::InvalidArgument { argument: named, .. } if named == argument),
            "{argument}: {error:?}"
        );
    }
    for (name, error) in [
        ("Origin", with(|request| request.origin = Some("a\r\nX: y".to_owned()))),
        ("Authorization", with(|request| request.authorization = Some("secret\nX: y".to_owned()))),
        ("User-Agent", with(|request| request.user_agent = Some("a\0".to_owned()))),
        ("Sec-WebSocket-Protocol", with(|request| request.subprotocols = vec!["a\r\nX: y".to_owned()])),
    ] {
        assert_eq!(error, HandshakeError::InvalidOutgoingHeader(HeaderError::Value { name: name.to_owned() }));
        assert!(!error.to_string().contains("secret"));
    }
}

#[test]
fn debug_output_has_no_secrets() {
    let mut request = request();
    request.authorization = Some("Basic c2VjcmV0".to_owned());
    request.headers = headers(&[("Cookie", "c2VjcmV0")]);
    assert!(!format!("{request:?}").contains("c2VjcmV0"));
    assert!(!format!("{:?}", handshake(&request)).contains("c2VjcmV0"));
}

#[test]
fn valid_response_is_accepted() {
    let bytes = [ACCEPT.as_bytes(), FRAME].concat();
    let (outcome, left) = feed_every_split(&handshake(&request()), &bytes);
    let accepted = outcome.unwrap();
    assert_eq!(left, FRAME.len(), "frames behind the head are not eaten");
    assert_eq!((accepted.subprotocol, accepted.deflate), (None, None));
    assert_eq!((accepted.response.status, accepted.response.reason.as_str()), (101, "Switching Protocols"));
    assert_eq!(accepted.response.headers.len(), 3);
}

#[test]
fn unusual_valid_responses_are_accepted() {
    let bytes = "HTTP/1.1 101\r\n\
        upgrade:WebSocket  \r\n\
        CONNECTION: keep-alive,\t uPGRADE\r\n\
        Connection: other\r\n\
        sec-websocket-accept: \t s3pPLMBiTxaQ9kYGzzhZRbK+xOo= \r\n\
        Sec-WebSocket-Protocol: superchat\r\n\
        Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=\"10\"\r\n\
        X-Latin: caf\u{e9}\r\n\r\n";
    let (outcome, left) = feed_every_split(&handshake(&request()), bytes.as_bytes());
    let accepted = outcome.unwrap();
    assert_eq!(left, 0);
    assert_eq!(accepted.subprotocol.as_deref(), Some("superchat"));
    assert_eq!(accepted.deflate.unwrap().local_window_bits, 10);
    assert_eq!(accepted.response.headers.value_str("x-latin"), Some("caf\u{e9}"));
}

#[test]
fn interim_responses_are_skipped() {
    let bytes = format!(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nContent-Length: 5\r\n\r\n\
         HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n{ACCEPT}"
    );
    let (outcome, left) = feed_every_split(&handshake(&request()), bytes.as_bytes());
    assert_eq!(outcome.unwrap().response.headers.len(), 3);
    assert_eq!(left, 0);
    let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(17);
    assert_eq!(refuse(&request(), &endless), HandshakeError::TooManyInterimResponses { limit: 16 });
}

#[test]
fn violations_of_each_rule_are_rejected() {
    let invalid =
        |name, value: &str, expected| HandshakeError::InvalidHeader { name, value: value.to_owned(), expected };
    let upgrade = |name, value: Option<&str>| HandshakeError::InvalidUpgrade { name, value: value.map(str::to_owned) };
    let duplicate = |name: &str| HandshakeError::DuplicateHeader { name: name.to_owned() };
    let hash = "the hash of this request's Sec-WebSocket-Key";
    for (from, to, expected) in [
        ("HTTP/1.1", "HTTP/1.0", HandshakeError::UnsupportedHttpVersion { version: "HTTP/1.0".to_owned() }),
        ("HTTP/1.1", "HTTP/2", HandshakeError::UnsupportedHttpVersion { version: "HTTP/2".to_owned() }),
        ("Upgrade: websocket\r\n", "", upgrade("Upgrade", None)),
        ("Upgrade: websocket", "Upgrade: h2c", upgrade("Upgrade", Some("h2c"))),
        ("Upgrade: websocket", "Upgrade: websocket, h2c", upgrade("Upgrade", Some("websocket, h2c"))),
        ("Upgrade: websocket", "Upgrade: websockets", upgrade("Upgrade", Some("websockets"))),
        ("Connection: Upgrade\r\n", "", upgrade("Connection", None)),
        ("Connection: Upgrade", "Connection: close", upgrade("Connection", Some("close"))),
        ("Connection: Upgrade", "Connection: Upgrades", upgrade("Connection", Some("Upgrades"))),
        (
            "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n",
            "",
            HandshakeError::MissingHeader { name: "Sec-WebSocket-Accept" },
        ),
        ("s3pPLM", "S3pPLM", invalid("Sec-WebSocket-Accept", "S3pPLMBiTxaQ9kYGzzhZRbK+xOo=", hash)),
        ("xOo=", "xOo=x", invalid("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=x", hash)),
        ("xOo=", "xOo", invalid("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo", hash)),
        (
            "xOo=\r\n",
            "xOo=\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n",
            duplicate("Sec-WebSocket-Accept"),
        ),
        (
            "xOo=\r\n",
            "xOo=\r\nSec-WebSocket-Protocol: other\r\n",
            HandshakeError::SubprotocolNotOffered { subprotocol: "other".to_owned() },
        ),
        (
            "xOo=\r\n",
            "xOo=\r\nSec-WebSocket-Protocol: Chat\r\n",
            HandshakeError::SubprotocolNotOffered { subprotocol: "Chat".to_owned() },
        ),
        (
            "xOo=\r\n",
            "xOo=\r\nSec-WebSocket-Protocol: chat, superchat\r\n",
            HandshakeError::SubprotocolNotOffered { subprotocol: "chat, superchat".to_owned() },
        ),
        (
            "xOo=\r\n",
            "xOo=\r\nSec-WebSocket-Protocol:\r\n",
            HandshakeError::SubprotocolNotOffered { subprotocol: String::new() },
        ),
        (
            "xOo=\r\n",
            "xOo=\r\nSec-WebSocket-Protocol: chat\r\nSec-WebSocket-Protocol: chat\r\n",
            duplicate("Sec-WebSocket-Protocol"),
        ),
        (
            "xOo=\r\n",
            "xOo=\r\nSec-WebSocket-Extensions: x-mux\r\n",
            HandshakeError::ExtensionNotOffered { extension: "x-mux".to_owned() },
        ),
        (
            "xOo=\r\n",
            "xOo=\r\nSec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Extensions: permessage-deflate\r\n",
            HandshakeError::DuplicateExtension { extension: "permessage-deflate".to_owned() },
        ),
        (
            "xOo=\r\n",
            "xOo=\r\nSec-WebSocket-Extensions: permessage-deflate; x\r\n",
            HandshakeError::UnknownParameter { parameter: "x".to_owned() },
        ),
    ] {
        let response = ACCEPT.replacen(from, to, 1);
        assert_ne!(response, ACCEPT);
        let error = refuse(&request(), &response);
        assert_eq!(error, expected, "{response}");
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn only_offered_extensions_and_subprotocols_are_accepted() {
    let plain = ClientRequest::new("localhost", "/");
    let response = ACCEPT.replace("\r\n\r\n", "\r\nSec-WebSocket-Protocol: chat\r\n\r\n");
    assert!(matches!(refuse(&plain, &response), HandshakeError::SubprotocolNotOffered { .. }));
    let response = ACCEPT.replace("\r\n\r\n", "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n");
    assert!(matches!(refuse(&plain, &response), HandshakeError::ExtensionNotOffered { .. }));
}

#[test]
fn invalid_101_response_is_available() {
    let mut client = handshake(&request());
    assert!(client.receive(ACCEPT.replace("s3p", "xxx").as_bytes()).is_err());
    assert_eq!(client.invalid_response().unwrap().headers.value_str("Upgrade"), Some("websocket"));
    let over = client.receive(b"x").unwrap_err();
    assert!(matches!(over, HandshakeError::OutOfOrder { .. }));
}

#[test]
fn malformed_heads_are_rejected() {
    let start = |error: &HandshakeError| matches!(error, HandshakeError::MalformedStartLine { .. });
    let header = |error: &HandshakeError| matches!(error, HandshakeError::MalformedHeader { .. });
    let ending = |error: &HandshakeError| matches!(error, HandshakeError::MalformedLineEnding { .. });
    type Check = fn(&HandshakeError) -> bool;
    for (response, check) in [
        ("SSH-2.0-OpenSSH_9.6\r\n", start as Check),
        ("\r\nHTTP/1.1 101 x\r\n\r\n", start),
        ("http/1.1 101 x\r\n\r\n", start),
        ("HTTP/1.1  101 x\r\n\r\n", start),
        ("HTTP/1.1 1x1 x\r\n\r\n", start),
        ("HTTP/1.1 099 x\r\n\r\n", start),
        ("HTTP/1.1 101 \x01\r\n\r\n", start),
        ("HTTP/one 101 x\r\n\r\n", start),
        ("HTTP/1.1 101 x\n\n", ending),
        ("HTTP/1.1 101 x\r\nA: b\n\r\n", ending),
        ("HTTP/1.1 101 x\r\nA b\r\n\r\n", header),
        ("HTTP/1.1 101 x\r\nA : b\r\n\r\n", header),
        ("HTTP/1.1 101 x\r\nA: b\r\n folded\r\n\r\n", header),
        ("HTTP/1.1 101 x\r\nA: b\rc\r\n\r\n", header),
        ("HTTP/1.1 101 x\r\nA: b\0\r\n\r\n", header),
        ("HTTP/1.1 101 x\r\n: b\r\n\r\n", header),
    ] {
        let error = refuse(&request(), response);
        assert!(check(&error), "{response:?}: {error:?}");
    }
    match refuse(&request(), "HTTP/1.1 101 x\r\nGood: 1\r\nb\u{e4}d: 2\r\nGood: 3\r\n\r\n") {
        HandshakeError::MalformedHeader { line } => assert_eq!(line, "b\\xc3\\xa4d: 2"),
        other => panic!("{other:?}"),
    }
    // A TLS alert is rejected at its first byte.
    let mut client = handshake(&request());
    assert!(matches!(client.receive(&[0x15]), Err(HandshakeError::MalformedStartLine { .. })));
}

#[test]
fn limits_of_the_head_apply() {
    let limits = Limits { head_size: ACCEPT.len(), headers: 3, body_size: 10 };
    let client = |limits| ClientHandshake::new(&request(), NONCE, limits).unwrap();
    assert!(feed_every_split(&client(limits), ACCEPT.as_bytes()).0.is_ok());
    let small = Limits { head_size: ACCEPT.len() - 1, ..limits };
    let error = feed_every_split(&client(small), ACCEPT.as_bytes()).0.unwrap_err();
    assert_eq!(error, HandshakeError::HeadTooLarge { limit: ACCEPT.len() - 1 });
    let few = Limits { headers: 2, ..limits };
    let error = feed_every_split(&client(few), ACCEPT.as_bytes()).0.unwrap_err();
    assert_eq!(error, HandshakeError::TooManyHeaders { limit: 2 });
    let endless = format!("HTTP/1.1 101 {}", "x".repeat(200));
    let error = feed_every_split(&client(limits), endless.as_bytes()).0.unwrap_err();
    assert_eq!(error, HandshakeError::StartLineTooLong { limit: ACCEPT.len() });
}

#[test]
fn end_of_stream_inside_the_head_is_an_error() {
    for length in (0..ACCEPT.len()).step_by(sparse(7)) {
        let error = feed(handshake(&request()), [&ACCEPT.as_bytes()[..length]]).0.unwrap_err();
        assert_eq!(error, HandshakeError::ConnectionClosed { received: length });
    }
    let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP";
    assert_eq!(refuse(&request(), interim), HandshakeError::ConnectionClosed { received: interim.len() });
}

#[test]
fn rejection_has_the_response() {
    for (framing, body, kept, truncated) in [
        ("Content-Length: 5\r\n", "hello", "hello", false),
        ("Content-Length: 5, 5\r\nContent-Length: 5\r\n", "hello more", "hello", false),
        ("Content-Length: 0\r\n", "hello", "", false),
        ("Content-Length: 9\r\n", "hello", "hello", true),
        ("Content-Length: x\r\n", "hello", "", true),
        ("Content-Length: +5\r\n", "hello", "", true),
        ("Content-Length: 5, 6\r\n", "hello", "", true),
        ("Content-Length: 99999999999999999999\r\n", "hello", "", true),
        ("", "hello", "hello", false),
        ("", "", "", false),
        ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n", "hello", false),
        (
            "Transfer-Encoding: gzip, Chunked\r\nContent-Length: 1\r\n",
            "3;x=y\r\nhel\r\n02\r\nlo\r\n0\r\nT: 1\r\n\r\n",
            "hello",
            false,
        ),
        ("Transfer-Encoding: chunked\r\n", "5\r\nhello", "hello", true),
        ("Transfer-Encoding: chunked\r\n", "5\r\nhel", "hel", true),
        ("Transfer-Encoding: chunked\r\n", "5\r\nhelloX\r\n0\r\n\r\n", "hello", true),
        ("Transfer-Encoding: chunked\r\n", "x\r\nhello", "", true),
        ("Transfer-Encoding: chunked\r\n", "5\nhello", "", true),
        ("Transfer-Encoding: chunked\r\n", "fffffffffffffffff\r\nhello", "", true),
        ("Transfer-Encoding: gzip\r\n", "hello", "hello", false),
    ] {
        let response = rejection(&format!("HTTP/1.1 404 Not Found\r\n{framing}X-Why: because\r\n\r\n{body}"));
        assert_eq!(response.status, 404);
        assert_eq!(response.reason, "Not Found");
        assert_eq!(response.headers.value_str("X-Why"), Some("because"));
        let outcome = (String::from_utf8(response.body).unwrap(), response.body_truncated);
        assert_eq!(outcome, (kept.to_owned(), truncated), "{framing} {body}");
    }
    for status in [204, 304] {
        let response = rejection(&format!("HTTP/1.1 {status} x\r\nContent-Length: 5\r\n\r\nhello"));
        assert_eq!((response.status, response.body.len(), response.body_truncated), (status, 0, false));
    }
    assert_eq!(rejection("HTTP/1.0 403 No\r\n\r\nhi").version, Version::Http10);
}

#[test]
fn body_of_a_rejection_is_truncated_at_its_limit() {
    let limits = Limits { body_size: 4, ..Limits::default() };
    let client = ClientHandshake::new(&request(), NONCE, limits).unwrap();
    for (framing, body, truncated) in [
        ("Content-Length: 5\r\n", "hello", true),
        ("Content-Length: 4\r\n", "hell", false),
        ("", "hello", true),
        ("", "hell", false),
        ("Transfer-Encoding: chunked\r\n", "3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", true),
        ("Transfer-Encoding: chunked\r\n", "3\r\nhel\r\n1\r\nl\r\n0\r\n\r\n", false),
    ] {
        let bytes = format!("HTTP/1.1 500 x\r\n{framing}\r\n{body}");
        match feed_every_split(&client, bytes.as_bytes()).0.unwrap_err() {
            HandshakeError::Rejected(response) => {
                assert_eq!(
                    (response.body.as_slice(), response.body_truncated),
                    (b"hell".as_slice(), truncated),
                    "{bytes}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    // An endless chunk-size line truncates the body too.
    let bytes = format!("HTTP/1.1 500 x\r\nTransfer-Encoding: chunked\r\n\r\n1;{}", "x".repeat(2000));
    match feed_every_split(&client, bytes.as_bytes()).0.unwrap_err() {
        HandshakeError::Rejected(response) => assert!(response.body_truncated),
        other => panic!("{other:?}"),
    }
}

#[test]
fn complete_rejection_is_returned_at_once() {
    let mut client = handshake(&request());
    let head = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n";
    assert_eq!(client.receive(head), Ok(Progress::Incomplete));
    assert_eq!(client.receive(b"n"), Ok(Progress::Incomplete));
    let error = client.receive(b"o").unwrap_err();
    assert!(error.to_string().contains("401 Unauthorized"), "{error}");
    assert!(matches!(error, HandshakeError::Rejected(response) if response.body == b"no"));
}

#[test]
fn text_of_the_peer_is_escaped_and_truncated() {
    let response = ACCEPT.replace("websocket", &format!("\u{85}{}", "x".repeat(300)));
    let text = refuse(&request(), &response).to_string();
    assert!(text.len() < 300 && text.contains("\\u{85}") && text.contains("..."), "{text}");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), split in any::<prop::sample::Index>()) {
        for prefix in ["", "HTTP/1.1 101 x\r\n", "HTTP/1.1 404 x\r\n\r\n", "HTTP/1.1 404 x\r\nTransfer-Encoding: chunked\r\n\r\n"] {
            let bytes = [prefix.as_bytes(), &bytes].concat();
            let (head, tail) = bytes.split_at(split.index(bytes.len() + 1));
            let whole = feed(handshake(&request()), [bytes.as_slice()]);
            let parts = feed(handshake(&request()), [head, tail]);
            let malformed = |outcome: &Result<Accepted, HandshakeError>| {
                matches!(outcome, Err(HandshakeError::MalformedStartLine { .. }))
            };
            prop_assert!(whole == parts || (malformed(&whole.0) && malformed(&parts.0)));
        }
    }

    #[test]
    fn mutated_responses_never_panic(position in 0..ACCEPT.len(), byte in any::<u8>()) {
        let mut bytes = ACCEPT.as_bytes().to_vec();
        bytes[position] = byte;
        let whole = feed(handshake(&request()), [bytes.as_slice()]);
        let parts = feed(handshake(&request()), bytes.chunks(7));
        prop_assert!(whole == parts || whole.0.is_err() && parts.0.is_err());
    }
}
