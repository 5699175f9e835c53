//! Any bytes as a request. The result depends on the bytes only, and accepted requests obey RFC 6455 4.2.1.

use wirespeed_protocol::deflate::Config;
use wirespeed_protocol::handshake::{
    ClientHandshake, ClientRequest, HandshakeError, HeaderList, Limits, Progress, Request, ServerConfig,
    ServerHandshake,
};

use crate::client_head::{head_lines, tokens, values, without_excerpt};
use crate::input::{Input, pieces};
use crate::support::Rng;

/// Two bytes select the limits and the pieces. The others are the request.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let limits = match input.byte() & 3 {
        0 => Limits { head_size: 200, headers: 5, body_size: 10 },
        _ => Limits::default(),
    };
    let mut rng = Rng::new(u64::from(input.byte()));
    let bytes = input.rest();
    let config =
        ServerConfig { deflate: Some(Config::server()), subprotocols: vec!["chat".to_owned(), "superchat".to_owned()] };
    let make = || ServerHandshake::new(config.clone(), limits);

    let (handshake, whole) = feed(make(), [bytes]);
    assert_eq!(feed(make(), pieces(bytes, &mut rng)).1, whole, "in pieces");
    if bytes.len() < 1000 {
        assert_eq!(feed(make(), bytes.chunks(1)).1, whole, "byte by byte");
    }
    let error = match whole {
        Ok((_, consumed)) => {
            assert!(consumed <= limits.head_size);
            match handshake.accept(handshake.select_subprotocol(), &HeaderList::new()) {
                Ok(accepted) => {
                    check(&bytes[..consumed]);
                    check_client_accepts(&bytes[..consumed], &accepted.response.to_bytes());
                    return;
                }
                Err(error) => error,
            }
        }
        Err(error) => error,
    };
    let response = handshake.reject_error(&error);
    let text = format!("{error}");
    assert!(text.len() < 1500 && !text.chars().any(char::is_control), "{text:?}");
    // A client can parse the response.
    let mut client = client([0; 16]);
    match client.receive(&response.to_bytes()) {
        Err(HandshakeError::Rejected(read)) => assert_eq!((read.status, &read.body), (error.status(), &response.body)),
        // RFC 9110 9.3.2: the response to HEAD announces a body, but has none.
        Ok(Progress::Incomplete) if bytes.trim_ascii_start().starts_with(b"HEAD ") => {}
        other => panic!("{other:?}"),
    }
}

type Outcome = Result<(Request, usize), HandshakeError>;

fn feed<'a>(mut handshake: ServerHandshake, pieces: impl IntoIterator<Item = &'a [u8]>) -> (ServerHandshake, Outcome) {
    let mut before = 0;
    for piece in pieces {
        match handshake.receive(piece) {
            Ok(Progress::Incomplete) => before += piece.len(),
            Ok(Progress::Complete { consumed, .. }) => {
                let request = handshake.request().unwrap().clone();
                return (handshake, Ok((request, before + consumed)));
            }
            Err(error) => return (handshake, Err(without_excerpt(error))),
        }
    }
    let error = handshake.receive_eof();
    (handshake, Err(without_excerpt(error)))
}

fn client(nonce: [u8; 16]) -> ClientHandshake {
    let mut request = ClientRequest::new("example.com", "/");
    request.subprotocols = vec!["chat".to_owned(), "superchat".to_owned()];
    request.deflate = Some(Config::client());
    ClientHandshake::new(&request, nonce, Limits::default()).unwrap()
}

/// Checks an accepted head line by line (RFC 6455 4.2.1).
fn check(head: &[u8]) {
    let lines = head_lines(head);
    let start: Vec<&[u8]> = lines[0].split(|byte| *byte == b' ').collect();
    assert!(matches!(start[..], [b"GET", _, b"HTTP/1.1"]), "{lines:?}");
    assert_eq!(values(&lines, "host").len(), 1);
    assert!(tokens(&lines, "upgrade").contains(&b"websocket".to_vec()));
    assert!(tokens(&lines, "connection").contains(&b"upgrade".to_vec()));
    assert_eq!(values(&lines, "sec-websocket-version"), [b"13"]);
    let keys = values(&lines, "sec-websocket-key");
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0].len(), 24);
    assert!(keys[0].ends_with(b"=="));
    assert!(values(&lines, "transfer-encoding").is_empty());
}

/// Checks that a client with the nonce of the request accepts the response, if it made the same offers.
fn check_client_accepts(request: &[u8], response: &[u8]) {
    let lines = head_lines(request);
    let offered = tokens(&lines, "sec-websocket-extensions");
    let subprotocols = tokens(&lines, "sec-websocket-protocol");
    let Some(nonce) = decode_base64(&values(&lines, "sec-websocket-key")[0]) else { return };
    let outcome = client(nonce).receive(response);
    if offered.is_empty() && subprotocols.iter().all(|name| *name == b"chat" || *name == b"superchat") {
        let Ok(Progress::Complete { consumed, .. }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(consumed, response.len());
    }
}

/// Returns the 16 bytes of a key if its unused bits are zero. Only then does encoding them give the same key.
fn decode_base64(key: &[u8]) -> Option<[u8; 16]> {
    let mut bits: Vec<u8> = Vec::new();
    for byte in key.strip_suffix(b"==")? {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits.extend((0..6).rev().map(|bit| value >> bit & 1));
    }
    let (bits, unused) = bits.split_at_checked(128)?;
    if unused.contains(&1) {
        return None;
    }
    let bytes: Vec<u8> = bits.chunks(8).map(|byte| byte.iter().fold(0, |sum, bit| sum << 1 | bit)).collect();
    bytes.try_into().ok()
}
