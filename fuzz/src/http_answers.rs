//! The responses of an engine to any HTTP request: data are returned only with their token. Requests for a WebSocket get
//! no HTTP response on this path.

use std::sync::OnceLock;

use wirespeed_engine::fuzzing::answer;
use wirespeed_engine::{Config, Engine, Http};
use wirespeed_protocol::handshake::{Limits, Progress, Request, ServerConfig, ServerHandshake};

use crate::client_head::{head_lines, tokens, values};
use crate::input::Input;

/// The tokens of the page and of the metrics.
const TOKENS: [&str; 2] = ["PageToken", "MetricsToken"];

const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "OPTIONS", "get"];

const TARGETS: [&str; 22] = [
    "/",
    "/health",
    "/ready",
    "/metrics",
    "/_wirespeed/",
    "/_wirespeed",
    "figures",
    "sessions",
    "/",
    "disconnect",
    "1",
    "0",
    "-1",
    "99999999999999999999",
    "?find=",
    "%",
    "%ff",
    "a",
    "#",
    "?",
    "http://h",
    "//",
];

const VALUES: [&str; 14] = [
    "Bearer ",
    "bearer ",
    "BEARER",
    " ",
    "PageToken",
    "MetricsToken",
    "Basic ",
    "websocket",
    ",",
    "x",
    "close",
    "\t",
    "é",
    "Upgrade",
];

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let [page, token] = TOKENS.map(|token| Some(token.into()));
        let http = Http { metrics: Some("/metrics".to_owned()), metrics_token: token, page, ..Http::default() };
        Engine::start(Config { workers: 1, http, ..Config::default() }).unwrap()
    })
}

/// The first byte selects the form of the input: the others are a request, or the parts of one.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let bytes = if choice & 1 == 0 {
        input.rest().to_vec()
    } else {
        let (method, target) = (*input.pick(&METHODS), input.words(6, &TARGETS));
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: h\r\n");
        for _ in 0..input.below(5) {
            let name = input.pick(&["Authorization", "authorization", "Upgrade", "Connection", "Origin", "X-Token"]);
            let value = input.words(5, &VALUES);
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        format!("{head}\r\n").into_bytes()
    };
    let mut handshake = ServerHandshake::new(ServerConfig::default(), Limits::default());
    let Ok(Progress::Complete { consumed, .. }) = handshake.receive(&bytes) else { return };
    let request = handshake.request().expect("it is complete");
    let lines = head_lines(&bytes[..consumed]);
    let outside = answer(engine(), &handshake, false);
    let inside = answer(engine(), &handshake, true).expect("there is always one");
    if tokens(&lines, "upgrade").contains(&b"websocket".to_vec()) {
        assert!(outside.is_none(), "{}", bytes.escape_ascii());
    }
    for response in outside.into_iter().chain([inside]) {
        let written = response.to_bytes();
        let end = written.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        check(request, &lines, &written[..end], &written[end..]);
    }
}

fn check(request: &Request, lines: &[&[u8]], head: &[u8], body: &[u8]) {
    let answer = head_lines(head);
    let status = std::str::from_utf8(&answer[0][9..12]).unwrap();
    let text = String::from_utf8_lossy(body);
    assert!(head.starts_with(b"HTTP/1.1 ") && ["200", "401", "404", "405", "503"].contains(&status), "{status}");
    let length = values(&answer, "content-length");
    assert!(length.len() == 1 && (request.method == "HEAD" || length[0] == body.len().to_string().as_bytes()));
    assert!(request.method != "HEAD" || body.is_empty(), "{text}");
    assert_eq!(values(&answer, "cache-control"), [b"no-store"]);
    assert_eq!(status == "405", !values(&answer, "allow").is_empty());
    assert_eq!(status == "401", !values(&answer, "www-authenticate").is_empty());
    assert!(TOKENS.iter().all(|token| !text.contains(token) || status == "200"));
    assert!(!text.contains(TOKENS[1]) && (!text.contains(TOKENS[0]) || text.starts_with("<!")), "{text}");
    // Data require their token in the only Authorization field.
    let given = values(lines, "authorization");
    let has = |token: &str| matches!(&given[..], [one] if one.len() == 7 + token.len() && one[..7].eq_ignore_ascii_case(b"bearer ") && one.ends_with(token.as_bytes()));
    let kind = values(&answer, "content-type").concat();
    if status == "200" && kind.starts_with(b"application/json") {
        assert!(has(TOKENS[0]), "{text}");
        serde_json::from_str::<serde_json::Value>(&text)
            .ok()
            .or((request.method == "HEAD").then_some(().into()))
            .expect("JSON");
    }
    if status == "200"
        && !kind.starts_with(b"application/json")
        && !["ok\n", "ready\n", ""].contains(&&*text)
        && !text.starts_with("<!")
    {
        assert!(has(TOKENS[1]), "{text}");
    }
}
