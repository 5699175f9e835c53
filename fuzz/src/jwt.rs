//! Signed tokens are accepted if, and only if, their header and claims are valid according to a general JSON parser. No
//! token with a changed bit is accepted.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use wirespeed_engine::auth::{Denied, Jwt, JwtOptions};

use crate::input::Input;
use crate::keys::{Pair, pairs, sign};

const NOW: u64 = 1_700_000_000;

/// Values of claims.
const VALUES: [&str; 30] = [
    "null",
    "\"alice\"",
    "\"\"",
    "\"bob\"",
    "0",
    "-1",
    "1700000060",
    "1700000000",
    "1699999970",
    "1699999971",
    "1699999970.5",
    "1700000030",
    "1700000031",
    "1700000030.5",
    "1e10",
    "18446744073709551615",
    "18446744073709551616",
    "1.8e308",
    "-0.5",
    "true",
    "[]",
    "[\"us\"]",
    "[\"us\",\"them\"]",
    "[\"them\",1]",
    "\"us\"",
    "\"them\"",
    "{}",
    "{\"a\":{\"a\":1}}",
    "\"\\u0061lice\"",
    "\"\\ud83d\\ude00\"",
];

const CLAIMS: [&str; 8] = ["sub", "exp", "nbf", "iss", "aud", "topics", "x", "\\u0065xp"];

/// The first byte selects the comparison, the second the options. The others are the token or its parts.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let which = input.byte();
    let options = |pair: &Pair| {
        let mut options = JwtOptions::new([pair.algorithm], pair.key.clone());
        options.key_id = (which & 1 != 0).then(|| "k".to_owned());
        options.issuer = (which & 2 != 0).then(|| "alice".to_owned());
        options.audience = if which & 4 != 0 { vec!["us".to_owned()] } else { Vec::new() };
        if which & 8 != 0 {
            options.required = vec!["x".to_owned()];
        }
        options
    };
    let secret = &pairs()[0];
    match choice & 3 {
        0 => {
            // A token without a valid signature.
            let jwt = Jwt::new(options(secret)).unwrap();
            let text = String::from_utf8_lossy(input.rest()).into_owned();
            let denied = jwt.verify_token(&text, NOW).expect_err("a token without a valid signature");
            check_denied(&denied);
        }
        1 => {
            // Any header and payload, signed.
            let len = input.byte();
            let (header, payload) = (input.take(usize::from(len)), input.rest());
            check_token(&options(secret), secret, header, payload);
        }
        _ => {
            let pair = &pairs()[[0, 0, 1, 2, 0, 3, 0, 4][usize::from(choice >> 2 & 7)]];
            let header = header(&mut input, pair);
            let payload = payload(&mut input);
            let options = options(pair);
            if let Some(token) = check_token(&options, pair, header.as_bytes(), payload.as_bytes()) {
                check_changed_token(&mut input, &options, &token);
            }
        }
    }
}

fn header(input: &mut Input<'_>, pair: &Pair) -> String {
    let algorithm = match input.below(12) {
        0 => *input.pick(&["none", "HS256", "HS384", "RS256", "ES256", "EdDSA", "hs256", ""]),
        _ => pair.algorithm.name(),
    };
    let mut members = vec![format!("\"alg\":\"{algorithm}\"")];
    let more = [
        "\"typ\":\"JWT\"",
        "\"kid\":\"k\"",
        "\"kid\":\"other\"",
        "\"kid\":null",
        "\"crit\":[]",
        "\"crit\":null",
        "\"kid\":7",
        "\"jwk\":{\"k\":\"AA\"}",
    ];
    for _ in 0..input.below(4) {
        members.push((*input.pick(&more)).to_owned());
    }
    if input.byte() & 1 == 0 {
        members.reverse();
    }
    format!("{{{}}}", members.join(","))
}

fn payload(input: &mut Input<'_>) -> String {
    let mut members = Vec::new();
    // Most tokens have the usual claims, so that most are accepted.
    let usual = input.byte();
    if usual & 1 == 0 {
        members.push("\"sub\":\"alice\"".to_owned());
    }
    if usual & 2 == 0 {
        members.push("\"exp\":1700000060".to_owned());
    }
    for _ in 0..input.below(5) {
        let (name, value) = (*input.pick(&CLAIMS), *input.pick(&VALUES));
        members.push(format!("\"{name}\":{value}"));
    }
    let space = *input.pick(&["", " ", "\n\t"]);
    format!("{space}{{{}}}{space}", members.join(&format!("{space},")))
}

/// Signs a token and checks the result of its verification. Returns the token if it is accepted.
fn check_token(options: &JwtOptions, pair: &Pair, header: &[u8], payload: &[u8]) -> Option<String> {
    let jwt = Jwt::new(options.clone()).unwrap();
    let token = sign(header, payload, pair);
    let outcome = jwt.verify_token(&token, NOW);
    if token.len() > options.max_token {
        assert_eq!(outcome, Err(Denied::TooLong));
        return None;
    }
    let claims: Option<Map<String, Value>> = serde_json::from_slice(payload).ok().filter(|_| !repeats(payload));
    let good = header_is_good(options, pair, header);
    let accepted = claims.as_ref().is_some_and(|claims| claims_are_good(options, claims));
    let shown = || format!("{} {}", header.escape_ascii(), payload.escape_ascii());
    match (&outcome, good) {
        // The part that this JSON parser rejects may be in an irrelevant member.
        (Ok(_), None) => assert!(accepted, "{}", shown()),
        (Err(denied), None) => {
            check_denied(denied);
            return None;
        }
        (outcome, Some(good)) => assert_eq!(outcome.is_ok(), good && accepted, "{outcome:?} {}", shown()),
    }
    match outcome {
        Ok(identity) => {
            let claims = claims?;
            assert_eq!(identity.user, claims.get("sub").and_then(Value::as_str).unwrap_or_default());
            assert_eq!(identity.claims, claims);
            assert!(identity.expires.is_none_or(|at| at > NOW));
            Some(token)
        }
        Err(denied) => {
            check_denied(&denied);
            None
        }
    }
}

/// Returns whether a header is valid; `None` if the parser cannot decide.
fn header_is_good(options: &JwtOptions, pair: &Pair, header: &[u8]) -> Option<bool> {
    let Ok(Value::Object(members)) = serde_json::from_slice::<Value>(header) else { return None };
    if repeats(header) {
        return None; // irrelevant members may be duplicated
    }
    let kid = members.get("kid").filter(|kid| !kid.is_null());
    Some(
        members.get("alg") == Some(&json!(pair.algorithm.name()))
            && !members.contains_key("crit")
            && kid.is_none_or(Value::is_string)
            && options.key_id.as_ref().is_none_or(|wanted| kid == Some(&json!(wanted))),
    )
}

/// Returns whether an object has a duplicate member.
fn repeats(text: &[u8]) -> bool {
    struct Names(bool);
    impl<'de> serde::Deserialize<'de> for Names {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Names;

                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("an object")
                }

                fn visit_map<A: serde::de::MapAccess<'de>>(self, mut access: A) -> Result<Names, A::Error> {
                    let (mut names, mut count) = (BTreeSet::new(), 0);
                    while let Some((name, _)) = access.next_entry::<String, Value>()? {
                        names.insert(name);
                        count += 1;
                    }
                    Ok(Names(names.len() < count))
                }
            }
            deserializer.deserialize_map(Visitor)
        }
    }
    serde_json::from_slice::<Names>(text).is_ok_and(|names| names.0)
}

/// Returns whether the claims are valid (RFC 7519 4.1) with the options.
fn claims_are_good(options: &JwtOptions, claims: &Map<String, Value>) -> bool {
    let claim = |name: &str| claims.get(name).filter(|value| !value.is_null());
    let date = |name: &str, holds: &dyn Fn(f64) -> bool| match claim(name) {
        None => true,
        Some(Value::Number(seconds)) => holds(seconds.as_f64().unwrap()),
        Some(_) => false,
    };
    let (now, leeway) = (NOW as f64, options.leeway as f64);
    let audience = match claim("aud") {
        None => options.audience.is_empty(),
        Some(Value::String(one)) => options.audience.contains(one),
        Some(Value::Array(several)) => {
            several.iter().all(Value::is_string)
                && several.iter().any(|one| options.audience.iter().any(|our| one == our))
        }
        Some(_) => false,
    };
    let text = |name: &str| claim(name).is_none_or(Value::is_string);
    let user_is_wanted = options.required.iter().any(|name| name == "sub");
    date("exp", &|at| now < at + leeway)
        && date("nbf", &|at| now + leeway >= at)
        && options.issuer.as_ref().is_none_or(|issuer| claim("iss") == Some(&json!(issuer)))
        && audience
        && options.required.iter().all(|name| claim(name).is_some())
        && text("sub")
        && !(user_is_wanted && claim("sub") == Some(&json!("")))
}

/// Changes an accepted token by a bit or more, and checks that it is rejected.
fn check_changed_token(input: &mut Input<'_>, options: &JwtOptions, token: &str) {
    let jwt = Jwt::new(options.clone()).unwrap();
    let mut bytes = token.as_bytes().to_vec();
    let at = usize::from(input.number()) % bytes.len();
    match input.below(8) {
        0..=3 => bytes[at] ^= 1 << input.below(7), // the result is ASCII too
        4 => drop(bytes.remove(at)),
        5 => bytes.insert(at, *input.pick(b"A.= \n-_/+")),
        6 => bytes.truncate(at),
        _ => bytes.push(*input.pick(b"A.=")),
    }
    let text = String::from_utf8(bytes).unwrap();
    let outcome = jwt.verify_token(&text, NOW);
    assert!(outcome.is_err(), "{token} and {text}");
}

/// Checks the status and the message of a rejection.
fn check_denied(denied: &Denied) {
    assert!(denied.status() == 401 || denied.status() == 403);
    assert_eq!(denied.challenge().is_some(), denied.status() == 401);
    assert!(denied.to_string().chars().all(|letter| !letter.is_control()));
}
