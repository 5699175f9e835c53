//! Authentication over real sockets: tokens decide which clients get a session, and its rights.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod auth_support;
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use auth_support::{SECRET, hs256};
use serde_json::json;
use support::{Client, TIMEOUT, config};
use wirespeed_engine::auth::acl::{AclOptions, DefaultPolicy};
use wirespeed_engine::auth::{Algorithm, Jwt, JwtOptions, Key};
use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::events::Event;
use wirespeed_engine::topics::{Pattern, Topic};
use wirespeed_engine::{Config, Engine, Refusal, Session, TopicPermission};

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

fn engine(leeway: u64) -> Engine {
    let options = JwtOptions { leeway, ..JwtOptions::new([Algorithm::HS256], Key::Secret(SECRET.to_vec())) };
    Engine::start(Config { auth: Some(Arc::new(Jwt::new(options).unwrap())), ..config() }).unwrap()
}

fn connected(engine: &Engine) -> Session {
    let batches = engine.events().take(1, Some(Instant::now() + TIMEOUT)).unwrap();
    let (session, event) = batches[0].iter().next().unwrap();
    assert!(matches!(event, Event::Connected), "{event:?}");
    session.clone()
}

fn request(engine: &Engine, token: &str) -> Client {
    Client::request(engine, "/", &format!("Authorization: Bearer {token}\r\n"))
}

#[test]
fn token_determines_identity_and_rights() {
    let engine = engine(30);
    let topics = json!({"allow": ["prices.*", "users.{user}.>"], "deny": ["prices.secret"]});
    let token = hs256(&json!({"sub": "ann", "exp": now() + 60, "topics": topics}));
    let client = request(&engine, &token);
    assert_eq!(client.status, 101, "{}", client.head);
    let session = connected(&engine);
    assert_eq!(session.identity().unwrap().user, "ann");
    for (topic, may) in [
        ("prices.a", true),
        ("prices.secret", false),
        ("prices.*", false),
        ("users.ann.mail", true),
        ("users.ann.>", true),
        ("users.bob.mail", false),
        ("other", false),
    ] {
        let subscribed = session.subscribe(&Pattern::new(topic).unwrap());
        assert_eq!(subscribed, if may { Ok(true) } else { Err(Refusal::Denied) }, "{topic}");
    }
    assert_eq!(session.topics().len(), 3);
}

#[test]
fn invalid_token_gets_no_session() {
    let engine = engine(0);
    for (token, status) in [
        (hs256(&json!({"sub": "ann", "exp": now() - 5})), 401),
        (hs256(&json!({"exp": now() + 60})), 403),
        (hs256(&json!({"sub": "ann", "exp": now() + 60})) + "x", 401),
        ("nonsense".to_owned(), 401),
    ] {
        let client = request(&engine, &token);
        assert_eq!(client.status, status, "{}", client.head);
        assert!(!client.head.contains(&token));
    }
    let client = Client::request(&engine, "/", "");
    assert_eq!(client.status, 401);
    assert!(client.head.contains("WWW-Authenticate: Bearer"), "{}", client.head);
    assert!(engine.events().take(1, Some(Instant::now())).unwrap().is_empty());
}

#[test]
fn expired_session_delivers_no_more_messages() {
    let engine = engine(0);
    let mut client = request(&engine, &hs256(&json!({"sub": "ann", "exp": now() + 2})));
    let session = connected(&engine);
    while session.is_open() {
        std::thread::sleep(Duration::from_millis(10));
    }
    // It does not answer the close frame and keeps sending.
    client.queue(MessageKind::Text, b"late");
    client.flush();
    std::thread::sleep(Duration::from_millis(100));
    client.stream.shutdown(std::net::Shutdown::Both).unwrap();
    let batches = engine.events().take(10, Some(Instant::now() + TIMEOUT)).unwrap();
    let events: Vec<_> = batches.iter().flat_map(|batch| batch.iter()).collect();
    assert!(matches!(events[..], [(_, Event::Disconnected(_))]), "{} events", events.len());
    assert_eq!(engine.figures().total().limited, 1);
}

#[test]
fn session_ends_with_its_token() {
    let engine = engine(0);
    let token = hs256(&json!({"sub": "ann", "exp": now() + 2}));
    let mut client = request(&engine, &token);
    let session = connected(&engine);
    let begin = Instant::now();
    assert_eq!(client.end(), Some((1008, "token expired".to_owned())));
    assert!(begin.elapsed() > Duration::from_millis(500) && begin.elapsed() < Duration::from_secs(4));
    assert!(!session.is_open());
}

/// Tokens have whole seconds, and clients connect at any time between them.
#[test]
fn session_ends_at_the_exact_expiry_of_its_token() {
    let engine = engine(0);
    let since = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    // The token is issued late in its second: ignoring the fraction would end the session up to 1 s too late.
    let begun = since();
    std::thread::sleep(Duration::from_millis(1800).saturating_sub(Duration::from_nanos(begun.subsec_nanos().into())));
    let expires = now() + 1;
    let mut client = request(&engine, &hs256(&json!({"sub": "ann", "exp": expires})));
    assert_eq!(client.end(), Some((1008, "token expired".to_owned())));
    let draining_input = since().checked_sub(Duration::from_secs(expires)).expect("it ended before its token");
    assert!(draining_input < Duration::from_millis(700), "{draining_input:?} after its token");
}

#[test]
fn application_rights_add_to_those_of_the_token() {
    let engine = engine(0);
    let topics = json!({
        "subscribe": {"allow": ["prices.*"], "deny": ["prices.secret"]},
        "publish": {"allow": ["chat.{user}"]},
    });
    let token = hs256(&json!({"sub": "ann", "exp": now() + 60, "topics": topics}));
    let mut client = request(&engine, &token);
    let session = connected(&engine);
    let may = |deed, topic| session.may(deed, topic);
    use TopicPermission::{Publish, Subscribe};
    assert!(may(Publish, "chat.ann") && !may(Publish, "chat.bob") && !may(Publish, "prices.a"));
    session.allow(&[Subscribe], &["news.>", "chat.{user}", "prices.secret"], &[]).unwrap();
    session.allow(&[Subscribe, Publish], &[], &["news.internal.>", "chat.ann"]).unwrap();
    for (topic, subscribe) in [
        ("prices.a", true),
        ("news.sport", true),
        ("news.internal.a", false),
        ("news.>", false),
        ("chat.ann", false),
        ("prices.secret", false), // deny wins, by token or application
    ] {
        assert_eq!(may(Subscribe, topic), subscribe, "{topic}");
        let pattern = Pattern::new(topic).unwrap();
        assert_eq!(session.subscribe(&pattern), if subscribe { Ok(true) } else { Err(Refusal::Denied) });
        assert!(!may(Publish, topic), "{topic}");
    }
    // An invalid pattern changes nothing.
    assert!(session.allow(&[Publish], &["good", "a..b"], &[]).is_err());
    assert!(!may(Publish, "good"));
    session.allow(&[Publish], &["prices.>"], &[]).unwrap();
    let publish = |topic: &str, except_self| {
        let topic = Topic::new(topic).unwrap();
        engine.publish_as(&session, &topic, MessageKind::Text, b"1", except_self, None).map(|(count, _)| count)
    };
    assert_eq!(publish("news.sport", false), Err(Refusal::Denied));
    assert_eq!(publish("prices.a", true), Ok(0));
    assert_eq!(publish("prices.a", false), Ok(1));
    assert_eq!(client.receive_text(), "1");
}

#[test]
fn default_policy_applies_without_a_token() {
    for (default_policy, may) in [(DefaultPolicy::All, true), (DefaultPolicy::Nothing, false)] {
        let acl = AclOptions { default_policy, ..AclOptions::default() };
        let engine = Engine::start(Config { acl, ..config() }).unwrap();
        let _client = Client::open(&engine, "/");
        let session = connected(&engine);
        assert_eq!(session.may(TopicPermission::Subscribe, "a.b"), may);
        assert_eq!(session.subscribe(&Pattern::new("a.b").unwrap()).is_ok(), may);
        session.allow(&[TopicPermission::Subscribe], &["a.*"], &["a.c"]).unwrap();
        assert!(session.may(TopicPermission::Subscribe, "a.b") && !session.may(TopicPermission::Subscribe, "a.c"));
        assert_eq!(session.may(TopicPermission::Publish, "a.c"), may);
        assert!(session.allow(&[TopicPermission::Subscribe], &["{user}.a"], &[]).is_err());
    }
}
