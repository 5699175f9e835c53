//! HTTP CONNECT to a proxy.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use support::sparse;
use wirespeed_protocol::handshake::{ConnectHandshake, ConnectRequest, HandshakeError, Limits, Progress, Response};

fn feed(bytes: &[u8], split: usize) -> Result<(Response, usize), HandshakeError> {
    let mut proxy = ConnectHandshake::new(&ConnectRequest::new("example.com:443"), Limits::default()).unwrap();
    let (head, tail) = bytes.split_at(split);
    match proxy.receive(head)? {
        Progress::Complete { consumed, output } => return Ok((output, bytes.len() - consumed)),
        Progress::Incomplete => {}
    }
    match proxy.receive(tail)? {
        Progress::Complete { consumed, output } => Ok((output, tail.len() - consumed)),
        Progress::Incomplete => Err(proxy.receive_eof()),
    }
}

fn feed_every_split(bytes: &[u8]) -> Result<(Response, usize), HandshakeError> {
    let whole = feed(bytes, bytes.len());
    for split in (0..bytes.len()).step_by(sparse(37)) {
        assert_eq!(feed(bytes, split), whole, "split at {split}");
    }
    whole
}

#[test]
fn request_has_all_fields() {
    let mut request = ConnectRequest::new("[::1]:8080");
    request.authorization = Some("Basic c2VjcmV0".to_owned());
    request.headers.push("User-Agent", "agent").unwrap();
    let bytes = ConnectHandshake::new(&request, Limits::default()).unwrap().request_bytes();
    assert_eq!(
        String::from_utf8(bytes).unwrap(),
        "CONNECT [::1]:8080 HTTP/1.1\r\nHost: [::1]:8080\r\nProxy-Authorization: Basic c2VjcmV0\r\nUser-Agent: agent\r\n\r\n"
    );
    assert!(!format!("{request:?}").contains("c2VjcmV0"));
    request.headers.push("proxy-authorization", "Basic other").unwrap();
    let handshake = ConnectHandshake::new(&request, Limits::default()).unwrap();
    assert_eq!(handshake.request().headers.single("Proxy-Authorization").unwrap(), Some(b"Basic other".as_slice()));
}

#[test]
fn invalid_destinations_are_rejected() {
    for authority in
        ["", "example.com", "example.com:", "example.com:0", "example.com:65536", "a b:1", "a\r\nX: y:1", "u@h:1"]
    {
        let error = ConnectHandshake::new(&ConnectRequest::new(authority), Limits::default()).unwrap_err();
        assert!(matches!(error, HandshakeError::InvalidArgument { .. }), "{authority}: {error:?}");
    }
    let mut request = ConnectRequest::new("example.com:443");
    request.headers.push("Content-Length", "5").unwrap();
    let error = ConnectHandshake::new(&request, Limits::default()).unwrap_err();
    assert!(matches!(error, HandshakeError::RefusedHeader { .. }));
}

#[test]
fn every_2xx_opens_the_tunnel() {
    for head in [
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.0 200 Connection established\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 299 x\r\n\r\n",
        "HTTP/1.1 204\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let (response, left) = feed_every_split(format!("{head}\x16\x03\x01").as_bytes()).unwrap();
        assert!((200..300).contains(&response.status));
        assert_eq!(left, 3, "bytes of the tunnel are not eaten");
    }
}

#[test]
fn other_responses_are_rejections() {
    let answer =
        "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 2\r\n\r\nno";
    match feed_every_split(answer.as_bytes()).unwrap_err() {
        HandshakeError::Rejected(response) => {
            assert_eq!(response.status, 407);
            assert_eq!(response.headers.value_str("proxy-authenticate"), Some("Basic"));
            assert_eq!(response.body, b"no");
        }
        other => panic!("{other:?}"),
    }
    let error = feed_every_split(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").unwrap_err();
    assert!(matches!(error, HandshakeError::Rejected(response) if response.status == 101));
    let error = feed_every_split(b"HTTP/1.1 200 OK\r\n").unwrap_err();
    assert_eq!(error, HandshakeError::ConnectionClosed { received: 17 });
}
