//! The sources of tokens in a request: a simple parser finds the same token, in the order of the sources. A token that is
//! offered as a subprotocol is never selected as the subprotocol.

use wirespeed_engine::auth::{Denied, Head, Identity, Jwt, JwtOptions, Source};
use wirespeed_protocol::handshake::{Header, Limits, Progress, Request, ServerConfig, ServerHandshake};

use crate::input::Input;
use crate::keys::{pairs, sign};

const NOW: u64 = 1_700_000_000;

/// Parts of requests. `TOKEN` stands for a valid token.
const WORDS: [&str; 26] = [
    "TOKEN",
    "token",
    "=",
    ";",
    ",",
    " ",
    "\t",
    "\"",
    "jwt.",
    "jwt",
    "Bearer",
    "bEARER",
    "Basic",
    "&",
    "?",
    "#",
    "%74oken",
    "%",
    "%2",
    "+",
    "x",
    "token=TOKEN",
    "jwt.TOKEN",
    "Bearer TOKEN",
    "/",
    "TOKE%4E",
];

struct Fields<'a>(&'a Request);

impl Head for Fields<'_> {
    fn headers(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.0.headers.iter().filter(move |field| field.name().eq_ignore_ascii_case(name)).map(Header::value)
    }

    fn target(&self) -> &str {
        &self.0.target
    }
}

/// The first bytes select the sources; the others are the request.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let pair = &pairs()[0];
    let mut options = JwtOptions::new([pair.algorithm], pair.key.clone());
    let all = [
        Source::Cookie("token".to_owned()),
        Source::Bearer,
        Source::Query("token".to_owned()),
        Source::Subprotocol("jwt.".to_owned()),
    ];
    options.sources = (0..input.below(5)).map(|_| input.pick(&all).clone()).collect();
    let sources = options.sources.clone();
    let jwt = Jwt::new(options).unwrap();
    let token = sign(br#"{"alg":"HS256"}"#, br#"{"sub":"alice","exp":1700000060}"#, pair);
    let text = input.words(9, &WORDS);
    let mut head = format!("GET /{text} HTTP/1.1\r\nHost: x\r\n");
    for _ in 0..input.below(6) {
        let name = input.pick(&["Cookie", "cookie", "Authorization", "Sec-WebSocket-Protocol", "X-Token"]);
        let value = input.words(9, &WORDS);
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let head = head.replace("TOKEN", &token);
    let mut handshake = ServerHandshake::new(ServerConfig::default(), Limits::default());
    let Ok(Progress::Complete { .. }) = handshake.receive(head.as_bytes()) else { return };
    let request = handshake.request().expect("it is complete");
    let expected = find(&head, &sources);
    match (jwt.verify(&Fields(request), NOW), expected) {
        (Ok(Identity { user, source, .. }), Ok(Some((found, place)))) => {
            assert_eq!((user.as_str(), source.as_ref(), found), ("alice", Some(place), token), "{head}");
        }
        (Err(Denied::Missing), Ok(None)) => {}
        (Err(Denied::Malformed), Err(())) => {}
        (Err(denied), Ok(Some((found, _)))) if denied != Denied::Missing => assert_ne!(found, token, "{head}"),
        (outcome, expected) => panic!("{outcome:?} instead of {expected:?}: {head}"),
    }
    let prefixed = sources.iter().any(|source| matches!(source, Source::Subprotocol(_)));
    assert_eq!(jwt.looks_at_subprotocols(), prefixed);
    for offered in handshake.offered_subprotocols() {
        assert_eq!(jwt.carries_token(offered), prefixed && offered.starts_with("jwt."), "{offered}");
    }
}

type Found<'a> = Result<Option<(String, &'a Source)>, ()>;

/// Finds the token with a simple parser. An error means that the request is ambiguous.
fn find<'a>(head: &str, sources: &'a [Source]) -> Found<'a> {
    let lines: Vec<(&str, &str)> = head.lines().skip(1).filter_map(|line| line.split_once(':')).collect();
    let values = |wanted: &str| -> Vec<&str> {
        let named = lines.iter().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        named.map(|(_, value)| value.trim_matches([' ', '\t'])).collect()
    };
    for source in sources {
        let mut found = None;
        match source {
            Source::Cookie(_) => {
                for pair in values("cookie").join(";").split(';') {
                    let Some((name, value)) = pair.split_once('=') else { continue };
                    if name.trim_matches([' ', '\t']) == "token" && found.is_none() {
                        let value = value.trim_matches([' ', '\t']);
                        let bare = (value.len() > 1 && value.starts_with('"') && value.ends_with('"'))
                            .then(|| &value[1..value.len() - 1]);
                        found = Some(bare.unwrap_or(value).to_owned());
                    }
                }
            }
            Source::Bearer => match values("authorization")[..] {
                [] => {}
                [value] => {
                    let (scheme, rest) = value.split_once(' ').unwrap_or((value, ""));
                    if scheme.to_lowercase() == "bearer" {
                        found = Some(rest.trim_matches([' ', '\t']).to_owned());
                    }
                }
                _ => return Err(()),
            },
            Source::Query(_) => {
                let target = head.split(' ').nth(1).unwrap_or_default().split('#').next().unwrap_or_default();
                let query = target.split_once('?').map_or("", |(_, query)| query);
                for pair in query.split('&') {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    if found.is_none() && decode(name) == b"token" {
                        found = Some(String::from_utf8_lossy(&decode(value)).into_owned());
                    }
                }
            }
            Source::Subprotocol(prefix) => {
                for entry in values("sec-websocket-protocol").join(",").split(',') {
                    if found.is_none()
                        && let Some(rest) = entry.trim_matches([' ', '\t']).strip_prefix(prefix.as_str())
                    {
                        found = Some(rest.to_owned());
                    }
                }
            }
            _ => {}
        }
        if let Some(token) = found.filter(|token| !token.is_empty()) {
            return Ok(Some((token, source)));
        }
    }
    Ok(None)
}

/// Decodes percent-encoding (RFC 3986 2.1). Malformed sequences are left as they are.
fn decode(text: &str) -> Vec<u8> {
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let hex = text
            .get(at + 1..at + 3)
            .filter(|hex| bytes[at] == b'%' && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}
