//! The settings of a route apply to its clients only.

#![allow(clippy::unwrap_used, missing_docs)] // tests fail by panicking

mod auth_support;
mod support;

use std::sync::Arc;
use std::time::Instant;

use auth_support::{SECRET, hs256};
use serde_json::json;
use support::{Client, TIMEOUT, config};
use wirespeed_engine::auth::{Algorithm, Jwt, JwtOptions, Key};
use wirespeed_engine::config::{Inbound, Origins, Policy, Rate, RatePolicy, RouteSettings};
use wirespeed_engine::driver::protocol::deflate::negotiate;
use wirespeed_engine::driver::protocol::handshake::HeaderList;
use wirespeed_engine::driver::protocol::{Limits, MessageKind};
use wirespeed_engine::events::Event;
use wirespeed_engine::{Admission, Config, Engine, Reason, Relay, Role, Route, Routes, Session};

fn jwt(secret: &[u8]) -> Arc<Jwt> {
    Arc::new(Jwt::new(JwtOptions::new([Algorithm::HS256], Key::Secret(secret.to_vec()))).unwrap())
}

fn token() -> String {
    format!("Authorization: Bearer {}\r\n", hs256(&json!({"sub": "ann", "exp": 4e9 as u64})))
}

/// An engine with these routes and "/plain", which has the engine's settings.
fn engine(config: Config, paths: Vec<(&str, Route)>) -> Engine {
    let mut routes = Routes::new();
    routes.add("/plain", Route::new(Role::Events, config.route_settings())).unwrap();
    for (path, route) in paths {
        routes.add(path, route).unwrap();
    }
    Engine::start(Config { routes: Some(Arc::new(routes)), ..config }).unwrap()
}

/// Returns the session of the next event.
fn session(engine: &Engine) -> Session {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let batches = engine.events().take(1, Some(deadline)).unwrap();
        assert!(!batches.is_empty(), "no client connected");
        for (session, event) in batches.iter().flat_map(|batch| batch.iter()) {
            if matches!(event, Event::Connected) {
                return session.clone();
            }
        }
    }
}

#[test]
fn routes_have_their_own_tokens() {
    let config = Config { auth: Some(jwt(SECRET)), ..config() };
    let open = Route::new(Role::Events, RouteSettings { auth: None, ..config.route_settings() });
    let other = Route::new(
        Role::Events,
        RouteSettings { auth: Some(jwt(auth_support::OTHER_SECRET)), ..config.route_settings() },
    );
    let engine = engine(config, vec![("/open", open), ("/other", other)]);
    let answers = ["/plain", "/open", "/other", "/none"]
        .map(|path| [Client::request(&engine, path, "").status, Client::request(&engine, path, &token()).status]);
    assert_eq!(answers, [[401, 101], [101, 101], [401, 401], [404, 404]]);
    for _ in 0..3 {
        let session = session(&engine);
        assert_eq!(session.identity().is_some(), session.path() == "/plain");
    }
}

#[test]
fn routes_have_their_own_origins_and_subprotocols() {
    let config = Config {
        origins: Origins::Listed(vec!["https://shop.example".to_owned()]),
        subprotocols: vec!["one".to_owned()],
        ..config()
    };
    let any = Route::new(
        Role::Events,
        RouteSettings {
            origins: Origins::Any,
            subprotocols: vec!["three".to_owned(), "two".to_owned()],
            ..config.route_settings()
        },
    );
    let engine = engine(config, vec![("/any", any)]);
    let foreign = "Origin: https://elsewhere.example\r\n";
    assert_eq!(Client::request(&engine, "/plain", foreign).status, 403);
    assert_eq!(Client::request(&engine, "/plain", "Origin: https://shop.example\r\n").status, 101);
    assert_eq!(Client::request(&engine, "/any", foreign).status, 101);
    assert_eq!(engine.figures().total().failures[Reason::Origin.index()], 1);
    let offered = "Sec-WebSocket-Protocol: one, two, three\r\n";
    for (path, chosen) in [("/plain", "one"), ("/any", "three")] {
        let client = Client::request(&engine, path, offered);
        assert!(client.head.contains(&format!("Sec-WebSocket-Protocol: {chosen}\r\n")), "{}", client.head);
    }
}

#[test]
fn routes_have_their_own_compression() {
    let config = Config { compression: Some(negotiate::Config::server()), ..config() };
    let bare = Route::new(Role::Echo, RouteSettings { compression: None, ..config.route_settings() });
    let dense = Route::new(Role::Echo, config.route_settings());
    let engine = engine(config, vec![("/bare", bare), ("/dense", dense)]);
    for (path, compressed) in [("/bare", false), ("/dense", true)] {
        let mut client = Client::request(&engine, path, "Sec-WebSocket-Extensions: permessage-deflate\r\n");
        assert_eq!(client.head.contains("permessage-deflate"), compressed, "{}", client.head);
        let text = "again and again ".repeat(1000);
        client.send_text(&text);
        assert_eq!(client.receive_text(), text);
    }
}

#[test]
fn routes_have_their_own_limits() {
    let config = config();
    let small = Route::new(
        Role::Echo,
        RouteSettings {
            limits: Limits { message_size: Some(10), ..config.limits },
            inbound: Inbound {
                messages: Rate::new(0.01, Some(2.0)),
                policy: RatePolicy::Disconnect,
                ..Inbound::default()
            },
            ..config.route_settings()
        },
    );
    let large = Route::new(Role::Echo, config.route_settings());
    let engine = engine(config, vec![("/small", small), ("/large", large)]);
    let mut client = Client::open(&engine, "/small");
    client.send(MessageKind::Binary, &[1; 11]);
    assert_eq!(client.end().unwrap().0, 1009);
    let mut client = Client::open(&engine, "/large");
    client.send(MessageKind::Binary, &[1; 11]);
    for _ in 0..10 {
        client.send_text("often");
    }
    assert_eq!(client.receive().unwrap().1.len(), 11);
    assert!((0..10).all(|_| client.receive_text() == "often"));
    let mut client = Client::open(&engine, "/small");
    for _ in 0..3 {
        client.send_text("often");
    }
    assert_eq!(client.end(), Some((1008, "too many messages".to_owned())));
}

#[test]
fn routes_have_their_own_outbox_limits() {
    let config = Config { workers: 1, ..config() };
    let lossy = Route::new(
        Role::Events,
        RouteSettings { outbox_limit: 200_000, policy: Policy::DropNewest, ..config.route_settings() },
    );
    let engine = engine(config, vec![("/lossy", lossy)]);
    let _deaf = Client::open(&engine, "/lossy");
    let session = session(&engine);
    let payload = vec![0; 50_000];
    let deadline = Instant::now() + TIMEOUT;
    while engine.figures().total().dropped_by_policy().all(|(_, count)| count == 0) {
        assert!(Instant::now() < deadline, "nothing was dropped");
        session.send(MessageKind::Binary, &payload).unwrap();
        let _ = engine.wait_for_capacity(None, Some(deadline));
    }
    let dropped: Vec<_> = engine.figures().total().dropped_by_policy().filter(|(_, count)| *count > 0).collect();
    assert_eq!(dropped[0].0, "drop_newest");
    assert_eq!(dropped.len(), 1);
    assert!(session.is_open());
    assert!(session.queued() < 4 << 20, "{} bytes wait", session.queued());
}

#[test]
fn session_knows_its_route() {
    let config = config();
    let tagged = Route { tag: 7, ..Route::new(Role::Events, config.route_settings()) };
    let plain = Route::new(Role::Events, config.route_settings());
    let unnamed = Route::new(Role::Events, config.route_settings());
    let mut routes = Routes::new();
    routes.add("/feed/{symbol}", tagged).unwrap();
    routes.add("/files/{user}/{*rest}", plain).unwrap();
    routes.set_fallback(unnamed);
    let engine = Engine::start(Config { routes: Some(Arc::new(routes)), workers: 1, ..config }).unwrap();
    for (target, pattern, tag, params) in [
        ("/feed/EUR%2fUSD?a=b", Some("/feed/{symbol}"), 7, vec![("symbol", "EUR/USD")]),
        ("/feed/J%C3%BCrgen", Some("/feed/{symbol}"), 7, vec![("symbol", "J\u{fc}rgen")]),
        ("/feed/%FF", Some("/feed/{symbol}"), 7, vec![("symbol", "%FF")]),
        ("/files/ann/a%20b/c", Some("/files/{user}/{*rest}"), 0, vec![("user", "ann"), ("rest", "a b/c")]),
        ("/elsewhere", None, 0, vec![]),
    ] {
        let _client = Client::open(&engine, target);
        let session = session(&engine);
        assert_eq!((session.route().pattern(), session.tag()), (pattern, tag), "{target}");
        let known = session.params();
        let known: Vec<_> = known.iter().map(|(name, text)| (*name, text.as_ref())).collect();
        assert_eq!(known, params, "{target}");
    }
}

#[test]
fn invalid_paths_are_refused() {
    let route = || Route::new(Role::Events, config().route_settings());
    let mut routes = Routes::new();
    routes.add("/a/{name}", route()).unwrap();
    assert!(routes.add("a", route()).unwrap_err().contains("slash"));
    assert!(routes.add("/a/{other}", route()).is_err(), "it conflicts with another path");
    assert!(routes.add("/b/{", route()).is_err());
    // The error contains the path escaped.
    routes.add("/f/{*\u{f}eme}", route()).unwrap();
    let error = routes.add("/f/{*\u{f}est}", route()).unwrap_err();
    assert!(error.contains(r#"conflicts with "/f/{*\u{f}eme}""#), "{error}");
    assert!(routes.add("/c/{x}/d/{x}", route()).unwrap_err().contains("\"x\" occurs twice"));
    assert!(routes.add("/c/{x}/d/{*x}", route()).unwrap_err().contains("\"x\" occurs twice"));
    assert!(routes.add("/c/{{topic}}", route()).unwrap_err().contains("%7B"));
    let path = |count| (0..count).map(|number| format!("/{{n{number}}}")).collect::<String>();
    assert!(routes.add(&path(26), route()).unwrap_err().contains("more than 25 parameters"));
    routes.add(&path(25), route()).unwrap();
    let relay = Route::new(Role::Relay(Relay::default()), config().route_settings());
    assert!(routes.add("/relay/{{topic}}", relay.clone()).is_err());
    assert!(routes.add("/relay/{topics}", relay).unwrap_err().contains("topic"));
}

#[test]
fn other_paths_use_the_fallback() {
    let config = config();
    let mut routes = Routes::new();
    routes.add("/{name}", Route::new(Role::Echo, config.route_settings())).unwrap();
    let mut alone = routes.clone();
    alone.add("/{name}/b", Route::new(Role::Echo, config.route_settings())).unwrap();
    routes.set_fallback(Route::new(Role::Events, config.route_settings()));
    let both = Engine::start(Config { routes: Some(Arc::new(routes)), ..config.clone() }).unwrap();
    let mut client = Client::open(&both, "/a");
    client.send_text("a");
    assert_eq!(client.receive_text(), "a");
    for path in ["/", "/a/b", "/a/b/c"] {
        let _client = Client::open(&both, path);
        let session = session(&both);
        assert_eq!((session.path(), session.route().pattern()), (path, None));
    }
    let alone = Engine::start(Config { routes: Some(Arc::new(alone)), ..config }).unwrap();
    assert_eq!(
        ["/a", "/a/b", "/a/b/c", "/"].map(|path| Client::request(&alone, path, "").status),
        [101, 101, 404, 404]
    );
}

#[test]
fn partial_match_of_a_segment_falls_back_to_other_routes() {
    let config = config();
    let mut routes = Routes::new();
    for path in ["/{name}a/b/{rest}", "/{name}/b/"] {
        routes.add(path, Route::new(Role::Echo, config.route_settings())).unwrap();
    }
    let engine = Engine::start(Config { routes: Some(Arc::new(routes)), ..config }).unwrap();
    let status = |path| Client::request(&engine, path, "").status;
    assert_eq!(["/a/b/", "/xa/b/", "/xa/b/c"].map(status), [101; 3]);
    assert_eq!(["/xa/b", "/xb/b/c", "//b/"].map(status), [404; 3]);
}

/// RFC 9112 3.2.2: "a server MUST accept the absolute-form in requests even though most HTTP/1.1 clients will only send
/// the absolute-form to a proxy", and MUST ignore the Host of such a request.
#[test]
fn targets_may_be_absolute() {
    let config = config();
    let relay = Route::new(Role::Relay(Relay::default()), config.route_settings());
    let open = Route::new(Role::Events, config.route_settings());
    let engine = engine(config, vec![("/feed/{topic}", relay), ("/a/{name}", open)]);
    for (target, path, query) in [
        ("http://example.com/plain", "/plain", ""),
        ("HTTPS://example.com:8443/a/b?c=d?e", "/a/b", "c=d?e"),
        ("/a/b#c?d", "/a/b", ""),
        ("/a/b?c#d?e", "/a/b", "c"),
    ] {
        let client = Client::request(&engine, target, "");
        assert_eq!(client.status, 101, "{target}: {}", client.head);
        let session = session(&engine);
        assert_eq!((session.path(), session.query()), (path, query), "{target}");
        assert_eq!(
            session.params(),
            session.route().params(path).into_iter().map(|(name, text)| (name, text.into())).collect::<Vec<_>>()
        );
    }
    let mut clients = ["http://example.com/feed/one", "/feed/one"].map(|target| Client::open(&engine, target));
    clients[0].send_text("hello");
    assert_eq!(clients[1].receive_text(), "hello");
    for (target, origin, status) in [
        ("http://example.com/plain", "http://example.com", 101),
        ("http://example.com/plain", "http://localhost", 403),
        ("/plain", "http://localhost", 101),
    ] {
        assert_eq!(
            Client::request(&engine, target, &format!("Origin: {origin}\r\n")).status,
            status,
            "{target} {origin}"
        );
    }
    for target in ["*", "example.com:80", "ftp://example.com/plain", "http:///plain"] {
        let status = Client::request(&engine, target, "").status;
        assert!(matches!(status, 400 | 404), "{target}: {status}");
    }
}

#[test]
fn relay_without_a_route_is_answered_with_500() {
    let accept = |_: &_, _| Admission::Accept {
        role: Role::Relay(Relay::default()),
        subprotocol: None,
        headers: HeaderList::new(),
    };
    let engine = Engine::start(Config { admit: Arc::new(accept), ..config() }).unwrap();
    assert_eq!(Client::request(&engine, "/feed/one", "").status, 500);
}
