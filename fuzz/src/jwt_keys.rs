//! Keys as PEM and as JWK sets: any bytes are a key or an error whose message has no part of them. A key is used only for
//! the purpose and the algorithm that it states.

use serde_json::{Value, json};
use wirespeed_engine::auth::{Algorithm, Jwt, JwtOptions, Key};
use wirespeed_engine::fuzzing::jwk_set;

use crate::input::Input;
use crate::keys::{Pair, pairs, sign};

const NOW: u64 = 1_700_000_000;

/// The first bytes select the comparison and the key pair. The others are a key, or the changes of a key.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let pair = input.pick(pairs());
    match choice & 3 {
        0 => drop(pem(pair, input.rest())),
        1 => changed_pem(&mut input, pair),
        2 => drop(set(input.rest(), &[pair.algorithm])),
        _ => keys(&mut input, pair),
    }
}

/// Parses a file that may be a key for the algorithm of `pair`.
fn pem(pair: &Pair, text: &[u8]) -> Option<Jwt> {
    match Jwt::new(JwtOptions::new([pair.algorithm], Key::Pem(text.to_vec()))) {
        Ok(jwt) => {
            assert!(pair.algorithm != Algorithm::HS256, "a PEM key is not a secret for HMAC");
            Some(jwt)
        }
        Err(error) => {
            check_message(&error.to_string(), text);
            None
        }
    }
}

/// Parses a key for this algorithm or another one, with or without changes.
fn changed_pem(input: &mut Input<'_>, pair: &Pair) {
    let given = input.pick(pairs());
    let kind = input.below(8);
    let mut text = if kind == 0 { given.private.clone() } else { given.public.clone() };
    let changes = input.below(4);
    for _ in 0..changes {
        let at = usize::from(input.number()) % text.len().max(1);
        match input.below(6) {
            0 if at < text.len() => text[at] ^= 1 << input.below(8),
            1 if at < text.len() => drop(text.remove(at)),
            2 => text.insert(at, input.byte()),
            3 => text.truncate(at),
            4 => text.extend(given.public.clone()),
            _ => {
                text = String::from_utf8_lossy(&text)
                    .replace('\n', input.pick::<&str>(&["\r\n", "", " ", "\n\n"]))
                    .into_bytes()
            }
        }
    }
    let jwt = pem(pair, &text);
    if kind == 0 && changes == 0 {
        assert!(jwt.is_none(), "a private key");
    }
    if kind != 0 && changes == 0 {
        let fits = pair.algorithm == given.algorithm && pair.algorithm != Algorithm::HS256;
        assert_eq!(jwt.is_some(), fits, "{} for {}", given.algorithm, pair.algorithm);
        if let Some(jwt) = jwt {
            let header = format!("{{\"alg\":\"{}\"}}", pair.algorithm);
            let token = sign(header.as_bytes(), format!("{{\"sub\":\"a\",\"exp\":{}}}", NOW + 1).as_bytes(), pair);
            jwt.verify_token(&token, NOW).expect("signed by the key");
        }
    }
}

/// Parses a file that may be a JWK set. Returns the number of usable keys.
fn set(text: &[u8], algorithms: &[Algorithm]) -> Option<usize> {
    match jwk_set(text, algorithms) {
        Ok(count) => Some(count),
        Err(error) => {
            check_message(&error, text);
            None
        }
    }
}

/// Checks how many keys of a JWK set can be used for the algorithm of `pair`.
fn keys(input: &mut Input<'_>, pair: &Pair) {
    let mut keys = Vec::new();
    let mut usable = 0;
    for _ in 0..input.below(6) {
        let given = input.pick(pairs());
        let mut key = json!({"kty": match given.algorithm {
            Algorithm::HS256 => "oct",
            Algorithm::RS256 => "RSA",
            Algorithm::EdDSA => "OKP",
            _ => "EC",
        }});
        match given.algorithm {
            Algorithm::ES256 => key["crv"] = json!("P-256"),
            Algorithm::ES384 => key["crv"] = json!("P-384"),
            Algorithm::EdDSA => key["crv"] = json!("Ed25519"),
            _ => {}
        }
        for (name, value) in &given.jwk {
            key[*name] = json!(value);
        }
        let mut fits = given.algorithm == pair.algorithm;
        for _ in 0..input.below(3) {
            fits &= add_member(input, &mut key, given.algorithm, pair.algorithm);
        }
        usable += usize::from(fits);
        keys.push(key);
    }
    if input.below(16) == 0 {
        // Keys of other types make no difference.
        keys.extend(vec![json!({"kty": "oct", "k": ""}); 100]);
    }
    let expected = if usable == 0 && !keys.is_empty() { None } else { Some(usable) };
    let text = json!({"keys": keys}).to_string();
    assert_eq!(set(text.as_bytes(), &[pair.algorithm]), expected, "{text} for {}", pair.algorithm);
}

/// Adds a member to a key. Returns whether the key can still be used.
fn add_member(input: &mut Input<'_>, key: &mut Value, own: Algorithm, wanted: Algorithm) -> bool {
    let (name, value, fits) = match input.below(14) {
        0 => ("use", json!("sig"), true),
        1 => ("use", json!("enc"), false),
        2 => ("use", json!("both"), false),
        3 => ("use", json!(1), false),
        4 => ("key_ops", json!(["verify"]), true),
        5 => ("key_ops", json!(["sign", "verify"]), true),
        6 => ("key_ops", json!(["sign"]), false),
        7 => ("key_ops", json!([]), false),
        8 => ("alg", json!(own.name()), own == wanted),
        9 => ("alg", json!("HS512"), false),
        10 => ("alg", json!("none"), false),
        11 => ("kid", json!("name"), true),
        12 => ("x5t", json!("AA"), true),
        _ => ("kty", json!("none"), false),
    };
    // The first value of a member counts.
    if key.get(name).is_some() && name != "kty" {
        return true;
    }
    key[name] = value;
    fits
}

/// Checks that the message of an error has no part of a key.
fn check_message(message: &str, text: &[u8]) {
    assert!(message.len() < 300 && !message.chars().any(char::is_control), "{message:?}");
    let body = String::from_utf8_lossy(text);
    for part in body.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|part| part.len() > 20) {
        assert!(!message.contains(part), "{message:?} shows {part:?}");
    }
}
