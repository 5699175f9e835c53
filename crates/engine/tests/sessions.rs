//! The list of sessions, their figures, and tokens that replace others.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod auth_support;
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use auth_support::{OTHER_SECRET, SECRET, hs256};
use serde_json::json;
use support::{Client, TIMEOUT, config};
use wirespeed_engine::auth::{Algorithm, Denied, Jwt, JwtOptions, Key};
use wirespeed_engine::broker::EnqueueResult;
use wirespeed_engine::config::RouteSettings;
use wirespeed_engine::driver::encoded::Encoded;
use wirespeed_engine::driver::protocol::MessageKind;
use wirespeed_engine::events::Event;
use wirespeed_engine::topics::{Pattern, Topic};
use wirespeed_engine::{Config, Engine, Item, NotRefreshed, Role, Route, Routes, Session, TopicPermission};

fn take(engine: &Engine, mut wanted: impl FnMut(&Session, &Event<'_>) -> bool) -> Session {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let batches = engine.events().take(1, Some(deadline)).unwrap();
        assert!(!batches.is_empty(), "no event arrived");
        for (session, event) in batches.iter().flat_map(|batch| batch.iter()) {
            if wanted(session, &event) {
                return session.clone();
            }
        }
    }
}

fn connected(engine: &Engine) -> Session {
    take(engine, |_, event| matches!(event, Event::Connected))
}

fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

fn item(name: &str, text: &str) -> Item {
    let message = Arc::new(Encoded::new(MessageKind::Text, text.as_bytes()).unwrap());
    Item { topic: topic(name), message, key: None }
}

#[test]
fn many_messages_are_sent_in_one_call() {
    let engine = Engine::start(config()).unwrap();
    let mut clients: Vec<_> = (0..4).map(|_| Client::open(&engine, "/")).collect();
    for _ in 0..4 {
        connected(&engine).subscribe(&Pattern::new("prices.*").unwrap()).unwrap();
    }
    let items = (0..1000).map(|number| item(&format!("prices.{}", number % 3), &number.to_string()));
    let done = engine.publish_many(items.chain([item("nobody", "x")])).unwrap();
    assert_eq!((done.count, done.broker), (4000, EnqueueResult::Local));
    for client in &mut clients {
        assert!((0..1000).all(|number| client.receive_text() == number.to_string()));
    }
    assert_eq!(engine.publish_many([]).unwrap().count, 0);
    engine.stop().unwrap();
    let (index, _) = engine.publish_many([item("prices.1", "late")]).unwrap_err();
    assert_eq!(index, 0);
}

#[test]
fn excess_messages_of_one_call_are_refused_at_their_index() {
    let engine = Engine::start(Config { mailbox_limit: 1, workers: 1, ..config() }).unwrap();
    let mut client = Client::open(&engine, "/");
    connected(&engine).subscribe(&Pattern::new("a").unwrap()).unwrap();
    // The worker is woken when the mailbox is full, and may have processed the first messages before the last.
    let (index, _) = engine.publish_many((0..100_000).map(|number| item("a", &number.to_string()))).unwrap_err();
    assert!(index > 0);
    for number in 0..index {
        assert_eq!(client.receive_text(), number.to_string());
    }
}

#[test]
fn sessions_are_listed() {
    let mut routes = Routes::new();
    routes.add("/room", Route::new(Role::Events, config().route_settings())).unwrap();
    routes.add("/echo", Route::new(Role::Echo, config().route_settings())).unwrap();
    let engine = Engine::start(Config { routes: Some(Arc::new(routes)), ..config() }).unwrap();
    assert!(engine.sessions().is_empty());
    let mut room = Client::open(&engine, "/room");
    let mut echo = Client::open(&engine, "/echo");
    let known = connected(&engine);
    echo.send_text("here");
    echo.receive_text();
    let sessions = engine.sessions();
    assert_eq!(sessions.iter().map(Session::path).collect::<Vec<_>>(), ["/echo", "/room"]);
    assert_eq!(sessions[1], known);
    assert_eq!(engine.session(known.id()), Some(known.clone()));
    assert_eq!(engine.session(12345), None);
    room.close(1000, "");
    room.end();
    take(&engine, |_, event| matches!(event, Event::Disconnected(_)));
    assert_eq!(engine.session(known.id()), None);
    assert_eq!(engine.sessions().len(), 1);
}

#[test]
fn session_figures_are_counted() {
    let engine = Engine::start(config()).unwrap();
    let mut client = Client::open(&engine, "/");
    let session = connected(&engine);
    session.subscribe(&Pattern::new("a").unwrap()).unwrap();
    session.subscribe(&Pattern::new("b.*").unwrap()).unwrap();
    for _ in 0..3 {
        client.send_text("1234");
    }
    let mut left = 3;
    take(&engine, |_, event| {
        left -= u32::from(matches!(event, Event::Message { .. }));
        left == 0
    });
    session.send(MessageKind::Text, b"12").unwrap();
    assert_eq!(client.receive_text(), "12");
    let counted = session.figures(Instant::now() + TIMEOUT).unwrap();
    assert_eq!((counted.messages_received, counted.bytes_received), (3, 12));
    assert_eq!((counted.messages_sent, counted.bytes_sent), (1, 2));
    assert_eq!((counted.subscriptions, counted.messages_dropped, counted.messages_limited), (2, 0, 0));
    assert!(counted.open > Duration::ZERO);
    client.close(1000, "");
    client.end();
    take(&engine, |_, event| matches!(event, Event::Disconnected(_)));
    let last = session.figures(Instant::now()).unwrap();
    assert_eq!((last.messages_received, last.bytes_sent, last.queued_bytes), (3, 2, 0));
    assert!(last.open >= counted.open);
    assert_eq!(session.figures(Instant::now()).unwrap(), last, "the final figures stay");
}

#[test]
fn calls_return_while_the_engine_stops() {
    let engine = Engine::start(config()).unwrap();
    let _client = Client::open(&engine, "/");
    let session = connected(&engine);
    engine.stop().unwrap();
    assert!(session.figures(Instant::now() + TIMEOUT).is_ok());
}

fn jwt(secret: &[u8]) -> Arc<Jwt> {
    Arc::new(
        Jwt::new(JwtOptions { leeway: 0, ..JwtOptions::new([Algorithm::HS256], Key::Secret(secret.to_vec())) })
            .unwrap(),
    )
}

/// The unix second that is `seconds` from now.
fn soon(seconds: u64) -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() + seconds
}

fn enter(engine: &Engine, path: &str, claims: &serde_json::Value) -> (Client, Session) {
    let client = Client::request(engine, path, &format!("Authorization: Bearer {}\r\n", hs256(claims)));
    assert_eq!(client.status, 101, "{}", client.head);
    (client, connected(engine))
}

#[test]
fn new_token_replaces_the_first() {
    let engine = Engine::start(Config { auth: Some(jwt(SECRET)), ..config() }).unwrap();
    let first = soon(5);
    let claims = json!({"sub": "ann", "exp": first, "topics": {"allow": ["old", "app"], "deny": ["none"]}});
    let (mut client, session) = enter(&engine, "/", &claims);
    session.allow(&[TopicPermission::Subscribe], &["given"], &["app"]).unwrap();
    session.subscribe(&Pattern::new("old").unwrap()).unwrap();
    let later = json!({"sub": "ann", "exp": soon(3600), "name": "Ann", "topics": {"allow": ["new", "app"]}});
    session.refresh(&hs256(&later)).unwrap();
    let identity = session.identity().unwrap();
    assert_eq!((identity.user.as_str(), identity.claims.get("name")), ("ann", Some(&json!("Ann"))));
    let may = ["old", "new", "given", "app"].map(|name| session.may(TopicPermission::Subscribe, name));
    assert_eq!(may, [false, true, true, false], "grants of the application stay, and deny wins");
    assert_eq!(engine.publish(&topic("old"), MessageKind::Text, b"still", None, None).unwrap().0, 1);
    assert_eq!(client.receive_text(), "still");
    // Longer than the first token is valid, and until the next check of expired tokens.
    std::thread::sleep(Duration::from_secs(first.saturating_sub(soon(0))) + Duration::from_millis(500));
    assert!(session.is_open());
    session.send(MessageKind::Text, b"still here").unwrap();
    assert_eq!(client.receive_text(), "still here");
    // An earlier expiry applies too.
    session.refresh(&hs256(&json!({"sub": "ann", "exp": soon(3)}))).unwrap();
    assert_eq!(client.end(), Some((1008, "token expired".to_owned())));
    assert_eq!(session.refresh(&hs256(&later)), Err(NotRefreshed::Closed));
}

#[test]
fn token_without_a_user_cannot_replace_another() {
    let options =
        JwtOptions { required: Vec::new(), ..JwtOptions::new([Algorithm::HS256], Key::Secret(SECRET.to_vec())) };
    let settings = Config { auth: Some(Arc::new(Jwt::new(options).unwrap())), ..config() };
    let mut routes = Routes::new();
    routes.add("/room", Route::new(Role::Events, settings.route_settings())).unwrap();
    let engine = Engine::start(Config { routes: Some(Arc::new(routes)), ..settings }).unwrap();
    let (ann, nobody) = (json!({"sub": "ann", "exp": soon(3600)}), json!({"exp": soon(3600)}));
    let (_client, session) = enter(&engine, "/room", &ann);
    assert_eq!(session.refresh(&hs256(&nobody)), Err(NotRefreshed::OtherUser));
    let (_other_client, session) = enter(&engine, "/room", &nobody);
    for claims in [ann, nobody, json!({"sub": ""})] {
        assert_eq!(session.refresh(&hs256(&claims)), Err(NotRefreshed::OtherUser), "{claims}");
    }
}

#[test]
fn invalid_token_changes_nothing() {
    let mut routes = Routes::new();
    let settings = Config { auth: Some(jwt(SECRET)), ..config() };
    routes.add("/room", Route::new(Role::Events, settings.route_settings())).unwrap();
    routes.add("/open", Route::new(Role::Events, RouteSettings { auth: None, ..settings.route_settings() })).unwrap();
    routes
        .add(
            "/other",
            Route::new(Role::Events, RouteSettings { auth: Some(jwt(OTHER_SECRET)), ..settings.route_settings() }),
        )
        .unwrap();
    let engine = Engine::start(Config { routes: Some(Arc::new(routes)), ..settings }).unwrap();
    let claims = json!({"sub": "ann", "exp": soon(3600)});
    let (_client, session) = enter(&engine, "/room", &claims);
    let other_key = auth_support::hs256_with(OTHER_SECRET, &claims);
    assert_eq!(session.refresh(&hs256(&json!({"sub": "bob", "exp": soon(3600)}))), Err(NotRefreshed::OtherUser));
    assert_eq!(session.refresh(&hs256(&json!({"sub": "ann", "exp": 1}))), Err(NotRefreshed::Denied(Denied::Expired)));
    assert_eq!(session.refresh(&other_key), Err(NotRefreshed::Denied(Denied::Signature)));
    assert_eq!(session.refresh(""), Err(NotRefreshed::Denied(Denied::Missing)));
    let bad = json!({"sub": "ann", "exp": soon(3600), "topics": "all"});
    assert!(matches!(session.refresh(&hs256(&bad)), Err(NotRefreshed::Denied(Denied::BadClaim(_)))));
    assert_eq!(session.identity().unwrap().claims.get("exp"), claims.get("exp"));
    let _open = Client::open(&engine, "/open");
    let open = connected(&engine);
    assert_eq!(open.refresh(&hs256(&claims)), Err(NotRefreshed::NoAuth));
    let fields = format!("Authorization: Bearer {other_key}\r\n");
    let _other = Client::request(&engine, "/other", &fields);
    let other = connected(&engine);
    assert_eq!(
        other.refresh(&hs256(&claims)),
        Err(NotRefreshed::Denied(Denied::Signature)),
        "by the rules of its route"
    );
    other.refresh(&other_key).unwrap();
}
