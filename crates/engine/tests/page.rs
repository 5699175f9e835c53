//! The live page: its data, and access to it.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Client, TIMEOUT, address, config};
use wirespeed_engine::topics::Pattern;
use wirespeed_engine::{Config, Engine, Http, Session};

const TOKEN: &str = "the-token-of-the-page";

fn engine() -> Engine {
    let http = Http { page: Some(TOKEN.into()), ..Http::default() };
    Engine::start(Config { http, ..config() }).unwrap()
}

/// Returns status, head and body.
fn request(engine: &Engine, line: &str, token: Option<&str>) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address(engine)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    stream.write_all(format!("{line} HTTP/1.1\r\nHost: localhost\r\n{token}\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), head.to_owned(), body.to_owned())
}

fn json(engine: &Engine, line: &str) -> Value {
    let (status, head, body) = request(engine, line, Some(TOKEN));
    assert_eq!(status, 200, "{head}");
    serde_json::from_str(&body).unwrap()
}

fn sessions(engine: &Engine, count: usize) -> Vec<Session> {
    let mut sessions = Vec::new();
    while sessions.len() < count {
        let batches = engine.events().take(count, Some(Instant::now() + TIMEOUT)).unwrap();
        assert!(!batches.is_empty());
        sessions.extend(batches.iter().flat_map(|batch| batch.iter()).map(|(session, _)| session.clone()));
    }
    sessions
}

#[test]
fn only_the_html_is_served_without_a_token() {
    let engine = engine();
    let (status, head, body) = request(&engine, "GET /_wirespeed/", None);
    assert!(status == 200 && head.contains("frame-ancestors 'none'") && body.contains("</html>"), "{head}");
    assert!(!body.contains(TOKEN));
    for path in ["figures", "sessions", "sessions/1", "nothing"] {
        for token in [None, Some("the-token-of-the-pagf"), Some("")] {
            assert_eq!(request(&engine, &format!("GET /_wirespeed/{path}"), token).0, 401, "{path}");
        }
    }
    for (line, status) in [
        ("GET /_wirespeed/nothing", 404),
        ("GET /_wirespeed/sessions/1", 404),
        ("GET /_wirespeed/sessions/x", 404),
        ("GET /_wirespeed/sessions/1/disconnect", 405),
        ("POST /_wirespeed/figures", 405),
        ("POST /_wirespeed/", 405),
        ("POST /_wirespeed/sessions/1/disconnect", 404),
        ("POST /_wirespeed/sessions/1/disconnect/more", 405),
    ] {
        assert_eq!(request(&engine, line, Some(TOKEN)).0, status, "{line}");
    }
    // Without a configured token there is no page.
    let plain = Engine::start(config()).unwrap();
    assert_eq!(request(&plain, "GET /_wirespeed/", Some(TOKEN)).0, 426);
}

#[test]
fn figures_topics_and_sessions_are_served() {
    let engine = engine();
    let mut clients: Vec<_> =
        (0..3).map(|number| Client::open(&engine, &format!("/room/{number}?token=secret"))).collect();
    let sessions = sessions(&engine, 3);
    for (count, topic) in [(3, "prices.*"), (2, "news"), (1, "a.b")] {
        for session in &sessions[..count] {
            session.subscribe(&Pattern::new(topic).unwrap()).unwrap();
        }
    }
    let figures = json(&engine, "GET /_wirespeed/figures");
    assert_eq!(figures["total"]["sessions"], 3);
    assert_eq!(figures["workers"].as_array().unwrap().len(), 2);
    let topics: Vec<_> = figures["topics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| (of["topic"].as_str().unwrap(), of["subscribers"].as_u64().unwrap()))
        .collect();
    assert_eq!(topics, [("prices.*", 3), ("news", 2), ("a.b", 1)]);
    let all = json(&engine, "GET /_wirespeed/sessions?find=");
    assert_eq!(all.as_array().unwrap().len(), 3);
    assert!(!all.to_string().contains("secret"));
    let found = json(&engine, "GET /_wirespeed/sessions?find=room%2F1");
    let id = found[0]["id"].as_u64().unwrap();
    assert_eq!((found.as_array().unwrap().len(), found[0]["path"].as_str()), (1, Some("/room/1")));
    let session = sessions.iter().find(|session| session.id() == id).unwrap();
    let details = json(&engine, &format!("GET /_wirespeed/sessions/{id}"));
    assert_eq!(details["topic_count"], session.topics().len());
    assert_eq!(details["open"], true);
    assert_eq!(json(&engine, &format!("POST /_wirespeed/sessions/{id}/disconnect"))["id"], id);
    assert_eq!(clients[1].end(), Some((1008, "disconnected by the operator".to_owned())));
    let deadline = Instant::now() + TIMEOUT;
    while request(&engine, &format!("GET /_wirespeed/sessions/{id}"), Some(TOKEN)).0 != 404 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(json(&engine, "GET /_wirespeed/figures")["total"]["sessions"], 2);
}
