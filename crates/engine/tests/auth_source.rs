//! The sources of tokens in the head of a request, and their order.

#![allow(clippy::unwrap_used, clippy::panic)] // tests fail by panicking

mod auth_support;

use auth_support::*;
use serde_json::json;
use wirespeed_engine::auth::{Denied, Jwt, Source};

fn cookie() -> Source {
    Source::Cookie("session".to_owned())
}

fn query() -> Source {
    Source::Query("token".to_owned())
}

fn subprotocol() -> Source {
    Source::Subprotocol("bearer.".to_owned())
}

fn looking_at(sources: &[Source]) -> Jwt {
    jwt(|options| options.sources = sources.to_vec())
}

fn of(user: &str) -> String {
    hs256(&claims_and(json!({"sub": user})))
}

fn found(source: Source, request: &Request) -> Result<String, Denied> {
    let identity = looking_at(std::slice::from_ref(&source)).verify(request, NOW)?;
    assert_eq!(identity.source, Some(source));
    Ok(identity.user)
}

fn alice() -> Result<String, Denied> {
    Ok("alice".to_owned())
}

#[test]
fn bearer_tokens_are_found() {
    let token = of("alice");
    let with = |value: &str| found(Source::Bearer, &Request::to("/").with("Authorization", value));
    for value in [
        format!("Bearer {token}"),
        format!("bearer {token}"),
        format!("BEARER   {token}"),
        format!(" \tBearer {token}\t "),
    ] {
        assert_eq!(with(&value), alice(), "{value:?}");
    }
    for value in ["", "Bearer", "Bearer ", "Basic YTpi", &token, &format!("Bearer{token}"), &format!("Token {token}")] {
        assert_eq!(with(value), Err(Denied::Missing), "{value:?}");
    }
    for value in [
        format!("Bearer {token},"),
        format!("Bearer \"{token}\""),
        format!("Bearer {token} {token}"),
        format!("Bearer {token}, Basic YTpi"),
    ] {
        assert_eq!(with(&value), Err(Denied::Malformed), "{value:?}");
    }
    let request = Request::to("/").with("Authorization", b"Bearer \xff\xfe.\x00.\r\n");
    assert_eq!(found(Source::Bearer, &request), Err(Denied::Malformed));
    assert_eq!(found(Source::Bearer, &Request::to("/")), Err(Denied::Missing));
}

#[test]
fn two_authorization_fields_are_refused() {
    let request =
        |first: &str, second: &str| Request::to("/").with("Authorization", first).with("authorization", second);
    let token = format!("Bearer {}", of("alice"));
    for (first, second) in
        [(token.as_str(), token.as_str()), (&token, "Basic YTpi"), ("Basic YTpi", &token), ("", &token)]
    {
        assert_eq!(found(Source::Bearer, &request(first, second)), Err(Denied::Malformed));
    }
}

#[test]
fn cookies_are_parsed() {
    let token = of("alice");
    let with = |value: &str| found(cookie(), &Request::to("/").with("Cookie", value));
    for value in [
        format!("session={token}"),
        format!("a=b; session={token}; c=d"),
        format!("a=b;session={token};c=d"),
        format!("a=b;  \tsession = {token} ; c"),
        format!("session=\"{token}\""),
        format!("; ;=;a; session={token}"),
        format!("session={token}; session={}", of("mallory")),
        format!("xsession={}; session={token}", of("mallory")),
        format!("session.x={}; session={token}", of("mallory")),
    ] {
        assert_eq!(with(&value), alice(), "{value:?}");
    }
    for value in
        ["", "session", "session=", "session=\"\"", &format!("SESSION={token}"), &format!("sessio={token}"), "=; ;;"]
    {
        assert_eq!(with(value), Err(Denied::Missing), "{value:?}");
    }
    for value in [
        format!("session=\"{token}"),
        format!("session={token}\""),
        format!("session=x={token}"),
        "session=\"".to_owned(),
    ] {
        assert_eq!(with(&value), Err(Denied::Malformed), "{value:?}");
    }
    // Gateways from HTTP/2 to HTTP/1 may leave several fields.
    let request = Request::to("/").with("cookie", "a=b").with("cookie", format!("session={token}"));
    assert_eq!(found(cookie(), &request), alice());
    let request =
        Request::to("/").with("cookie", b"\xff=\xfe; session\xc3=1").with("cookie", format!("session={token}"));
    assert_eq!(found(cookie(), &request), alice());
}

#[test]
fn first_cookie_is_used() {
    let value = format!("session=wrong; session={}", of("alice"));
    assert_eq!(found(cookie(), &Request::to("/").with("Cookie", value)), Err(Denied::Malformed));
}

#[test]
fn query_parameters_are_parsed() {
    let token = of("alice");
    let encoded: String = token.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let with = |target: &str| found(query(), &Request::to(target));
    for target in [
        format!("/?token={token}"),
        format!("/chat?room=1&token={token}&x=y"),
        format!("/chat?token={encoded}"),
        format!("/chat?%74o%6Ben={}", token.replace('.', "%2E")),
        format!("/chat?token={token}&token={}", of("mallory")),
        format!("/?&&=&a&token={token}"),
        format!("http://example.com/chat?token={token}"),
        format!("?token={token}#rest"),
    ] {
        assert_eq!(with(&target), alice(), "{target:?}");
    }
    for target in [
        "",
        "/",
        "/?",
        "/?token",
        "/?token=",
        "/?tokens=x",
        "/?Token=x",
        "/token=x",
        "/#?token=x",
        "/?to%6",
        "/?a=token",
        "/#?token=",
    ] {
        assert_eq!(with(target), Err(Denied::Missing), "{target:?}");
    }
    for target in [
        format!("/?token={token}+"),
        format!("/?token={token}%20"),
        format!("/?token=+{token}"),
        format!("/?token={token}%"),
        "/?token=%2".to_owned(),
        "/?token=%ff%fe%00".to_owned(),
        format!("/?token={}", token.replace('.', "%252E")),
        format!("/?token={token};x"),
        "/?token=a?b".to_owned(),
    ] {
        assert_eq!(with(&target), Err(Denied::Malformed), "{target:?}");
    }
    let odd = Source::Query("t&k = %é".to_owned());
    assert_eq!(found(odd, &Request::to(&format!("/?t%26k%20%3D%20%25%C3%A9={token}"))), alice());
}

#[test]
fn subprotocols_are_parsed() {
    let token = of("alice");
    let with = |value: &str| found(subprotocol(), &Request::to("/").with("Sec-WebSocket-Protocol", value));
    for value in [
        format!("bearer.{token}"),
        format!("chat, bearer.{token}"),
        format!("chat,bearer.{token},other"),
        format!(",\tbearer.{token} , bearer.{}", of("mallory")),
    ] {
        assert_eq!(with(&value), alice(), "{value:?}");
    }
    for value in ["", "chat", "bearer.", "bearer", &format!("Bearer.{token}"), &format!("x.bearer.{token}"), ",,"] {
        assert_eq!(with(value), Err(Denied::Missing), "{value:?}");
    }
    assert_eq!(with("bearer.x, chat"), Err(Denied::Malformed));
    let request = Request::to("/")
        .with("Sec-WebSocket-Protocol", "chat")
        .with("sec-websocket-protocol", format!("bearer.{token}"));
    assert_eq!(found(subprotocol(), &request), alice());
}

#[test]
fn entries_with_tokens_are_not_subprotocols() {
    let jwt = looking_at(&[Source::Bearer, subprotocol(), Source::Subprotocol("auth-".to_owned())]);
    for (entry, carries) in [
        ("chat", false),
        ("bearer", false),
        ("Bearer.x", false),
        ("bearer.", true),
        ("bearer.x.y.z", true),
        ("auth-x", true),
    ] {
        assert_eq!(jwt.carries_token(entry), carries, "{entry}");
    }
    assert!(!looking_at(&[Source::Bearer]).carries_token("bearer.x"));
}

#[test]
fn first_source_with_a_token_is_used() {
    let all = [cookie(), Source::Bearer, query(), subprotocol()];
    let request = |skip: usize| {
        let mut request = Request::to("/");
        if skip < 1 {
            request = request.with("Cookie", format!("session={}", of("user-0")));
        }
        if skip < 2 {
            request = request.with("Authorization", format!("Bearer {}", of("user-1")));
        }
        if skip < 3 {
            request.target = format!("/?token={}", of("user-2"));
        }
        if skip < 4 {
            request = request.with("Sec-WebSocket-Protocol", format!("bearer.{}", of("user-3")));
        }
        request
    };
    for skip in 0..4 {
        let identity = looking_at(&all).verify(&request(skip), NOW).unwrap();
        assert_eq!((identity.user, identity.source), (format!("user-{skip}"), Some(all[skip].clone())));
    }
    assert_eq!(looking_at(&all).verify(&request(4), NOW), Err(Denied::Missing));
    // In any order, the first source of the list is used.
    for rotation in 0..4 {
        let mut sources = all.to_vec();
        sources.rotate_left(rotation);
        let identity = looking_at(&sources).verify(&request(0), NOW).unwrap();
        assert_eq!(identity.user, format!("user-{rotation}"));
    }
}

#[test]
fn invalid_token_is_not_replaced_by_a_later_source() {
    let jwt = looking_at(&[cookie(), Source::Bearer]);
    let bearer = format!("Bearer {}", of("alice"));
    let with = |session: &str| {
        let request = Request::to("/").with("Cookie", format!("session={session}")).with("Authorization", &bearer);
        jwt.verify(&request, NOW).map(|identity| identity.user)
    };
    assert_eq!(with("nonsense"), Err(Denied::Malformed));
    assert_eq!(with(&hs256(&json!({"sub": "a", "exp": NOW - 99}))), Err(Denied::Expired));
    // An empty cookie counts as missing.
    assert_eq!(with(""), alice());
    assert_eq!(with("\"\""), alice());
}

#[test]
fn unconfigured_sources_are_ignored() {
    let request = Request::to(&format!("/?token={}", of("a")))
        .with("Cookie", format!("session={}; other={}", of("a"), of("a")))
        .with("Sec-WebSocket-Protocol", format!("bearer.{}", of("a")));
    assert_eq!(looking_at(&[Source::Bearer]).verify(&request, NOW), Err(Denied::Missing));
    assert_eq!(looking_at(&[]).verify(&request, NOW), Err(Denied::Missing));
}

#[test]
fn long_tokens_are_refused_from_every_source() {
    let long = "x".repeat(9000);
    let requests = [
        Request::to("/").with("Cookie", format!("session={long}")),
        Request::to("/").with("Authorization", format!("Bearer {long}")),
        Request::to(&format!("/?token={long}")),
        Request::to("/").with("Sec-WebSocket-Protocol", format!("bearer.{long}")),
    ];
    for (request, source) in requests.iter().zip([cookie(), Source::Bearer, query(), subprotocol()]) {
        assert_eq!(found(source, request), Err(Denied::TooLong));
    }
}
