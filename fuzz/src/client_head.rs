//! Any bytes as the response of a server or a proxy. The result depends on the bytes only, and accepted responses obey
//! RFC 6455 4.1.

use wirespeed_protocol::deflate::Config;
use wirespeed_protocol::handshake::{
    ClientHandshake, ClientRequest, ConnectHandshake, ConnectRequest, HandshakeError, Limits, Progress,
};

use crate::input::{Input, pieces};
use crate::support::Rng;

/// The nonce and the accept value of RFC 6455 1.3.
const NONCE: [u8; 16] = *b"the sample nonce";
const ACCEPT: &[u8] = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// Two bytes select the handshake, the limits and the pieces. The others are the response.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let limits = match choice & 3 {
        0 => Limits { head_size: 200, headers: 5, body_size: 10 },
        _ => Limits::default(),
    };
    let mut rng = Rng::new(u64::from(input.byte()));
    let bytes = input.rest();
    if choice & 4 != 0 {
        let make = || {
            let mut handshake = ConnectHandshake::new(&ConnectRequest::new("example.com:443"), limits).unwrap();
            move |piece: Option<&[u8]>| match piece {
                Some(piece) => handshake.receive(piece),
                None => Err(handshake.receive_eof()),
            }
        };
        let outcome = every_way(make, bytes, &mut rng);
        if let Ok((response, consumed)) = outcome {
            assert!((200..300).contains(&response.status));
            assert!(bytes[..consumed].ends_with(b"\r\n\r\n"));
        }
        return;
    }
    let make = || {
        let mut request = ClientRequest::new("example.com", "/");
        request.subprotocols = vec!["chat".to_owned(), "superchat".to_owned()];
        request.deflate = (choice & 8 != 0).then(Config::client);
        let mut handshake = ClientHandshake::new(&request, NONCE, limits).unwrap();
        move |piece: Option<&[u8]>| match piece {
            Some(piece) => handshake.receive(piece),
            None => Err(handshake.receive_eof()),
        }
    };
    if let Ok((accepted, consumed)) = every_way(make, bytes, &mut rng) {
        let lines = head_lines(&bytes[..consumed]);
        // The last head, after interim responses.
        let start = lines.iter().rposition(|line| line.starts_with(b"HTTP/1.1 101")).expect("a status of 101");
        let lines = &lines[start..];
        assert_eq!(tokens(lines, "upgrade"), [b"websocket"]);
        assert!(tokens(lines, "connection").contains(&b"upgrade".to_vec()));
        assert_eq!(values(lines, "sec-websocket-accept"), [ACCEPT]);
        match accepted.subprotocol {
            Some(name) => assert_eq!(values(lines, "sec-websocket-protocol"), [name.as_bytes()]),
            None => assert!(values(lines, "sec-websocket-protocol").is_empty()),
        }
        let extensions = values(lines, "sec-websocket-extensions");
        assert_eq!(extensions.is_empty(), accepted.deflate.is_none());
        if let Some(params) = accepted.deflate {
            assert!(choice & 8 != 0);
            assert!((8..=15).contains(&params.local_window_bits) && (8..=15).contains(&params.remote_window_bits));
            assert!(extensions[0].windows(18).any(|part| part == b"permessage-deflate"));
        }
    }
}

/// Feeds the bytes whole, in pieces and one by one, and expects the same result each time.
fn every_way<T, F>(make: impl Fn() -> F, bytes: &[u8], rng: &mut Rng) -> Result<(T, usize), HandshakeError>
where
    T: PartialEq + std::fmt::Debug,
    F: FnMut(Option<&[u8]>) -> Result<Progress<T>, HandshakeError>,
{
    let try_feed = |pieces: &[&[u8]]| {
        let mut receive = make();
        let mut before = 0;
        for piece in pieces {
            match receive(Some(piece))? {
                Progress::Incomplete => before += piece.len(),
                Progress::Complete { consumed, output } => return Ok((output, before + consumed)),
            }
        }
        match receive(None) {
            Err(error) => Err(error),
            Ok(progress) => panic!("{progress:?} at the end of the stream"),
        }
    };
    let feed = |pieces: &[&[u8]]| try_feed(pieces).map_err(without_excerpt);
    let whole = feed(&[bytes]);
    assert_eq!(feed(&pieces(bytes, rng)), whole, "in pieces");
    if bytes.len() < 1000 {
        assert_eq!(feed(&bytes.chunks(1).collect::<Vec<_>>()), whole, "byte by byte");
    }
    if let Err(error) = &whole {
        let text = error.to_string();
        assert!(text.len() < 1500 && !text.chars().any(char::is_control), "{text:?}");
    }
    whole
}

/// Removes the excerpt of a malformed first line from an error. It has the bytes read so far, so it depends on the pieces.
pub(crate) fn without_excerpt(error: HandshakeError) -> HandshakeError {
    match error {
        HandshakeError::MalformedStartLine { .. } => HandshakeError::MalformedStartLine { line: String::new() },
        other => other,
    }
}

/// Returns the lines of a head without their line endings and without the empty line at the end.
pub(crate) fn head_lines(head: &[u8]) -> Vec<&[u8]> {
    assert!(head.ends_with(b"\r\n\r\n"));
    let lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.filter(|line| !line.is_empty()).collect()
}

/// Returns the values of a field, whose name is given in lower case.
pub(crate) fn values(lines: &[&[u8]], name: &str) -> Vec<Vec<u8>> {
    let mut values = Vec::new();
    for line in &lines[1..] {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        if line[..colon].to_ascii_lowercase() == name.as_bytes() {
            values.push(line[colon + 1..].trim_ascii().to_vec());
        }
    }
    values
}

/// Returns the elements of a list, in lower case.
pub(crate) fn tokens(lines: &[&[u8]], name: &str) -> Vec<Vec<u8>> {
    let mut tokens = Vec::new();
    for value in values(lines, name) {
        for token in value.split(|byte| *byte == b',') {
            let token = token.trim_ascii().to_ascii_lowercase();
            if !token.is_empty() {
                tokens.push(token);
            }
        }
    }
    tokens
}
