//! The verification of tokens: algorithms, forms and claims.

#![allow(clippy::unwrap_used, clippy::panic)] // tests fail by panicking

mod auth_support;

use auth_support::*;
use jsonwebtoken::EncodingKey;
use proptest::prelude::*;
use serde_json::{Value, json};
use wirespeed_engine::auth::{Algorithm, Denied, Jwt, JwtOptions, Key};

const A1: &str = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const A1_KEY: &str = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
const A2: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
const A2_N: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
const A3: &str = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
const ED: &str = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
/// The `exp` of the tokens in RFC 7515.
const RFC_EXP: u64 = 1_300_819_380;

/// A verifier with one JWK that requires no claims.
fn of_jwk(name: &str, algorithm: Algorithm, jwk: Value) -> Jwt {
    let path = std::env::temp_dir().join(format!("auth_jwt-{}-{name}.json", std::process::id()));
    std::fs::write(&path, json!({"keys": [jwk]}).to_string()).unwrap();
    let mut options = JwtOptions::new([algorithm], Key::Jwks(path.clone()));
    options.required.clear();
    let jwt = Jwt::new(options).unwrap();
    std::fs::remove_file(path).unwrap();
    jwt
}

fn rfc7515(jwt: &Jwt, token: &str) {
    let identity = jwt.verify_token(token, RFC_EXP + 29).unwrap();
    assert_eq!(identity.claims["iss"], "joe");
    assert_eq!(identity.claims["http://example.com/is_root"], true);
    assert_eq!((identity.user.as_str(), identity.expires, identity.source), ("", Some(RFC_EXP + 30), None));
    assert_eq!(jwt.verify_token(token, RFC_EXP + 30), Err(Denied::Expired));
    let (message, signature) = token.rsplit_once('.').unwrap();
    let first = if signature.starts_with('D') { 'E' } else { 'D' };
    let forged = format!("{message}.{first}{}", &signature[1..]);
    assert_eq!(jwt.verify_token(&forged, RFC_EXP), Err(Denied::Signature));
}

#[test]
fn rfc_7515_appendix_a_1() {
    rfc7515(&of_jwk("a1", Algorithm::HS256, json!({"kty": "oct", "k": A1_KEY})), A1);
}

#[test]
fn rfc_7515_appendix_a_2() {
    rfc7515(&of_jwk("a2", Algorithm::RS256, json!({"kty": "RSA", "n": A2_N, "e": "AQAB"})), A2);
}

#[test]
fn rfc_7515_appendix_a_3() {
    let (x, y) = ("f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0");
    rfc7515(&of_jwk("a3", Algorithm::ES256, json!({"kty": "EC", "crv": "P-256", "x": x, "y": y})), A3);
}

#[test]
fn rfc_8037_appendix_a_4() {
    let x = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
    let jwt = of_jwk("ed", Algorithm::EdDSA, json!({"kty": "OKP", "crv": "Ed25519", "x": x}));
    // The payload of the example contains no claims, so verification fails only after the signature.
    assert_eq!(jwt.verify_token(ED, NOW), Err(Denied::Malformed));
    assert_eq!(jwt.verify_token(&ED.replace(".hgyY", ".igyY"), NOW), Err(Denied::Signature));
    assert_eq!(jwt.verify_token(&ED.replace(".RXhh", ".RXhi"), NOW), Err(Denied::Signature));
}

#[test]
fn each_algorithm_accepts_only_its_own_tokens() {
    let all = all();
    for (algorithm, _, key) in &all {
        let jwt = Jwt::new(JwtOptions::new([*algorithm], key.clone())).unwrap();
        for (other, signing, _) in &all {
            let token = signed(*other, signing, &claims());
            let result = jwt.verify_token(&token, NOW);
            if other == algorithm {
                assert_eq!(result.unwrap().user, "alice");
            } else {
                assert_eq!(result, Err(Denied::Algorithm), "{other} for {algorithm}");
            }
            // The same token with the header of the expected algorithm.
            let message = format!("{}.{}", encode(format!(r#"{{"alg":"{algorithm}"}}"#)), encode(claims().to_string()));
            let signature = jsonwebtoken::crypto::sign(message.as_bytes(), signing, library(*other)).unwrap();
            let relabelled = jwt.verify_token(&format!("{message}.{signature}"), NOW);
            assert_eq!(relabelled.is_ok(), other == algorithm, "{other} as {algorithm}: {relabelled:?}");
        }
    }
}

#[test]
fn algorithms_of_one_family_can_be_combined() {
    let jwt = Jwt::new(JwtOptions::new([Algorithm::RS256, Algorithm::PS512], rsa().key())).unwrap();
    for (algorithm, good) in [(Algorithm::RS256, true), (Algorithm::PS512, true), (Algorithm::RS512, false)] {
        assert_eq!(jwt.verify_token(&signed(algorithm, &rsa().signing, &claims()), NOW).is_ok(), good);
    }
}

#[test]
fn public_key_is_not_accepted_as_a_secret() {
    for (pair, algorithm) in [(rsa(), Algorithm::RS256), (p256(), Algorithm::ES256), (ed(), Algorithm::EdDSA)] {
        let jwt = Jwt::new(JwtOptions::new([algorithm], pair.key())).unwrap();
        let pem = pair.public.as_bytes();
        let der = der_of(&pair.public);
        for secret in [pem, pair.public.trim().as_bytes(), &der] {
            for forged in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
                let key = EncodingKey::from_secret(secret).unwrap();
                assert_eq!(jwt.verify_token(&signed(forged, &key, &claims()), NOW), Err(Denied::Algorithm));
                let header = format!(r#"{{"alg":"{algorithm}"}}"#);
                let result = jwt.verify_token(&raw(&header, claims().to_string(), &key, forged), NOW);
                assert_eq!(result, Err(Denied::Signature));
            }
        }
    }
}

fn der_of(pem: &str) -> Vec<u8> {
    use base64::Engine as _;
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    base64::engine::general_purpose::STANDARD.decode(body).unwrap()
}

#[test]
fn algorithm_none_is_refused() {
    for (algorithm, _, key) in all() {
        let jwt = Jwt::new(JwtOptions::new([algorithm], key)).unwrap();
        for name in ["none", "None", "NONE", "nOnE", ""] {
            let message = format!("{}.{}", encode(json!({"alg": name}).to_string()), encode(claims().to_string()));
            for signature in ["", "AA", &encode([0; 32])] {
                assert_eq!(jwt.verify_token(&format!("{message}.{signature}"), NOW), Err(Denied::Algorithm));
            }
        }
        let unsigned = format!("{}.{}.", encode(format!(r#"{{"alg":"{algorithm}"}}"#)), encode(claims().to_string()));
        assert_eq!(jwt.verify_token(&unsigned, NOW), Err(Denied::Signature));
    }
}

#[test]
fn trivial_signatures_are_refused() {
    for (algorithm, _, key) in all() {
        let jwt = Jwt::new(JwtOptions::new([algorithm], key)).unwrap();
        let message = format!("{}.{}", encode(format!(r#"{{"alg":"{algorithm}"}}"#)), encode(claims().to_string()));
        for len in [1, 32, 48, 64, 96, 256] {
            for byte in [0, 1, 0xff] {
                let signature = encode(vec![byte; len]);
                assert_eq!(jwt.verify_token(&format!("{message}.{signature}"), NOW), Err(Denied::Signature));
            }
        }
    }
}

#[test]
fn unusual_headers_are_handled() {
    let key = EncodingKey::from_secret(SECRET).unwrap();
    let jwt = jwt(|_| {});
    let verify = |header: &str| {
        jwt.verify_token(&raw(header, claims().to_string(), &key, Algorithm::HS256), NOW).map(|identity| identity.user)
    };
    let alice = || Ok("alice".to_owned());
    assert_eq!(verify(r#"{"alg":"HS256"}"#), alice());
    assert_eq!(verify(" {\"typ\":\"JWT\",\r\n \"alg\" : \"HS256\"} "), alice());
    assert_eq!(verify(r#"{"alg":"\u0048S256","x":[{}],"kid":null}"#), alice());
    for malformed in [
        "",
        "{}",
        "[]",
        "null",
        "\"HS256\"",
        r#"{"typ":"JWT"}"#,
        r#"{"alg":null}"#,
        r#"{"alg":256}"#,
        r#"{"alg":["HS256"]}"#,
        r#"{"alg":"HS256","alg":"HS256"}"#,
        r#"{"alg":"HS256","alg":"none"}"#,
        r#"{"alg":"none","alg":"HS256"}"#,
        r#"{"alg":"HS256","kid":1}"#,
        r#"{"alg":"HS256","kid":"a","kid":"a"}"#,
        r#"{"alg":"HS256"}x"#,
        r#"{"alg":"HS256""#,
        r#"{"alg":"HS256",}"#,
        "\u{feff}{\"alg\":\"HS256\"}",
    ] {
        assert_eq!(verify(malformed), Err(Denied::Malformed), "{malformed}");
    }
    for other in ["hs256", "HS256 ", "HS2566", "HS512", "ES256K", "RS256", "dir"] {
        assert_eq!(verify(&json!({"alg": other}).to_string()), Err(Denied::Algorithm), "{other}");
    }
    for crit in [r#"["exp"]"#, r#"["b64"],"b64":false"#, "[]", "null", "1"] {
        assert_eq!(verify(&format!(r#"{{"alg":"HS256","crit":{crit}}}"#)), Err(Denied::Extension), "{crit}");
    }
    let not_utf8 = format!("{}.{}", encode(b"{\"alg\":\"HS256\",\"x\":\"\xff\"}"), encode(claims().to_string()));
    assert_eq!(jwt.verify_token(&format!("{not_utf8}.AA"), NOW), Err(Denied::Malformed));
}

#[test]
fn keys_in_a_token_are_ignored() {
    let jwt = Jwt::new(JwtOptions::new([Algorithm::ES256], p256().key())).unwrap();
    let stranger = new_p256();
    let jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(&stranger.signing, library(Algorithm::ES256)).unwrap();
    let header = json!({"alg": "ES256", "jwk": jwk, "jku": "https://example.com/keys", "x5c": ["AAAA"]});
    let token = raw(&header.to_string(), claims().to_string(), &stranger.signing, Algorithm::ES256);
    assert_eq!(jwt.verify_token(&token, NOW), Err(Denied::Signature));
}

#[test]
fn every_truncation_is_refused() {
    for (algorithm, signing, key) in all() {
        let jwt = Jwt::new(JwtOptions::new([algorithm], key)).unwrap();
        let token = signed(algorithm, &signing, &claims());
        jwt.verify_token(&token, NOW).unwrap();
        for len in 0..token.len() {
            jwt.verify_token(&token[..len], NOW).unwrap_err();
            jwt.verify_token(&token[token.len() - len..], NOW).unwrap_err();
        }
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    use Algorithm::*;
    let whole = [HS256, ES256, EdDSA, RS256];
    for (algorithm, signing, key) in all().into_iter().filter(|(algorithm, ..)| whole.contains(algorithm)) {
        let mut options = JwtOptions::new([algorithm], key);
        options.sources = vec![wirespeed_engine::auth::Source::Bearer];
        let jwt = Jwt::new(options).unwrap();
        let token = signed(algorithm, &signing, &claims());
        for position in 0..token.len() {
            for bit in 0..8 {
                let mut flipped = b"Bearer ".to_vec();
                flipped.extend_from_slice(token.as_bytes());
                flipped[7 + position] ^= 1 << bit;
                // Whitespace around a token is ignored as in every field; within a token it is refused.
                let request = Request::to("/").with("Authorization", &flipped);
                assert!(jwt.verify(&request, NOW).is_err(), "{algorithm}: bit {bit} of {position}");
            }
        }
    }
}

#[test]
fn each_token_has_one_form() {
    let jwt = jwt(|_| {});
    let token = hs256(&claims());
    jwt.verify_token(&token, NOW).unwrap();
    let [header, payload, signature] = token.split('.').collect::<Vec<_>>()[..] else { panic!("{token}") };
    for other in [
        format!("{header}.{payload}.{signature}="),
        format!("{header}=.{payload}.{signature}"),
        format!("{header}.{payload}.{signature}\n"),
        format!(" {token}"),
        format!("{token} "),
        format!("{token}."),
        format!(".{token}"),
        format!("{header}..{payload}.{signature}"),
        format!("{header}.{payload}"),
        format!("{header}.{payload}.{signature}.{signature}.{signature}"),
        token.replace(['-', '_'], "+"),
        "...".to_owned(),
        "..".to_owned(),
        ".".to_owned(),
        format!("{}\u{e9}.{payload}.{signature}", &header[1..]),
    ] {
        if other != token {
            assert_eq!(jwt.verify_token(&other, NOW), Err(Denied::Malformed), "{other:?}");
        }
    }
    assert_eq!(jwt.verify_token("", NOW), Err(Denied::Missing));
    // 32 bytes are 43 characters; the last one has two unused bits.
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for last in alphabet.iter().map(|&byte| char::from(byte)) {
        let other = format!("{}{last}", &token[..token.len() - 1]);
        assert_eq!(jwt.verify_token(&other, NOW).is_ok(), other == token, "{last}");
    }
}

#[test]
fn length_of_tokens_is_limited() {
    let sized = |len: usize| {
        let mut padding = len;
        loop {
            let token = hs256(&claims_and(json!({"x": "x".repeat(padding)})));
            match token.len().cmp(&len) {
                std::cmp::Ordering::Greater => padding -= 1,
                std::cmp::Ordering::Equal => return token,
                std::cmp::Ordering::Less => panic!("no token of {len} bytes"),
            }
        }
    };
    let token = sized(600);
    assert!(jwt(|options| options.max_token = 600).verify_token(&token, NOW).is_ok());
    assert_eq!(jwt(|options| options.max_token = 599).verify_token(&token, NOW), Err(Denied::TooLong));
    assert_eq!(jwt(|_| {}).verify_token(&"a".repeat(8192), NOW), Err(Denied::Malformed));
    assert_eq!(jwt(|_| {}).verify_token(&"a".repeat(8193), NOW), Err(Denied::TooLong));
    assert_eq!(jwt(|_| {}).verify_token(&".".repeat(1 << 24), NOW), Err(Denied::TooLong));
    let large = jwt(|options| options.max_token = 1 << 20);
    assert_eq!(large.verify_token(&".".repeat(1 << 20), NOW), Err(Denied::Malformed));
    assert!(large.verify_token(&hs256(&claims_and(json!({"x": "x".repeat(500_000)}))), NOW).is_ok());
}

#[test]
fn deeply_nested_json_is_handled() {
    let jwt = jwt(|options| options.max_token = 1 << 20);
    let key = EncodingKey::from_secret(SECRET).unwrap();
    for deep in ["[".repeat(300_000), "{\"a\":".repeat(100_000), format!("{}{}", "[".repeat(200), "]".repeat(200))] {
        let payload = format!(r#"{{"sub":"a","exp":{},"x":{deep}}}"#, NOW + 1);
        let token = raw(r#"{"alg":"HS256"}"#, &payload, &key, Algorithm::HS256);
        assert_eq!(jwt.verify_token(&token, NOW), Err(Denied::Malformed));
        let header = format!(r#"{{"alg":"HS256","x":{deep}}}"#);
        let token = raw(&header, claims().to_string(), &key, Algorithm::HS256);
        // Other members of the header are ignored at any depth, but must be valid JSON.
        assert_eq!(jwt.verify_token(&token, NOW).is_ok(), deep.ends_with(']'));
    }
}

#[test]
fn unusual_payloads_are_handled() {
    let key = EncodingKey::from_secret(SECRET).unwrap();
    let jwt = jwt(|_| {});
    let exp = NOW + 9;
    for malformed in [
        String::new(),
        "null".to_owned(),
        "[]".to_owned(),
        "\"sub\"".to_owned(),
        format!(r#"{{"sub":"a","exp":{exp}"#),
        format!(r#"{{"sub":"a","exp":{exp}}}}}"#),
        format!(r#"{{"sub":"a","exp":{exp},"sub":"b"}}"#),
        format!(r#"{{"sub":"a","exp":1,"exp":{exp}}}"#),
        format!(r#"{{"sub":"a","exp":{exp},"x":1,"\u0078":1}}"#),
        format!(r#"{{"sub":"\ud800","exp":{exp}}}"#),
        format!(r#"{{"sub":"a","exp":{exp},"x":1e999}}"#),
        r#"{"sub":"a","exp":NaN}"#.to_owned(),
        format!(r#"{{'sub':'a','exp':{exp}}}"#),
    ] {
        let token = raw(r#"{"alg":"HS256"}"#, &malformed, &key, Algorithm::HS256);
        assert_eq!(jwt.verify_token(&token, NOW), Err(Denied::Malformed), "{malformed}");
    }
    let not_utf8 = [format!(r#"{{"exp":{exp},"sub":""#).as_bytes(), b"\xff\"}"].concat();
    let token = raw(r#"{"alg":"HS256"}"#, not_utf8, &key, Algorithm::HS256);
    assert_eq!(jwt.verify_token(&token, NOW), Err(Denied::Malformed));
    let odd = format!(r#" {{"":[{{}}],"sub":"a\u0000\"b","exp":{exp}.0e0,"n":-0.0}} "#);
    let identity = jwt.verify_token(&raw(r#"{"alg":"HS256"}"#, odd, &key, Algorithm::HS256), NOW).unwrap();
    assert_eq!((identity.user.as_str(), identity.expires), ("a\0\"b", Some(exp + 30)));
}

#[test]
fn expiry_is_checked() {
    let at = |exp: Value, leeway: u64, now: u64| {
        let claims = json!({"sub": "a", "exp": exp});
        jwt(|options| options.leeway = leeway).verify_token(&hs256(&claims), now).map(|identity| identity.expires)
    };
    let exp = 1000;
    assert_eq!(at(json!(exp), 0, 0), Ok(Some(exp)));
    assert_eq!(at(json!(exp), 0, exp - 1), Ok(Some(exp)));
    assert_eq!(at(json!(exp), 0, exp), Err(Denied::Expired));
    assert_eq!(at(json!(exp), 30, exp + 29), Ok(Some(exp + 30)));
    assert_eq!(at(json!(exp), 30, exp + 30), Err(Denied::Expired));
    assert_eq!(at(json!(exp), 30, u64::MAX), Err(Denied::Expired));
    assert_eq!(at(json!(1000.5), 0, exp), Ok(Some(exp + 1)));
    assert_eq!(at(json!(1000.5), 0, exp + 1), Err(Denied::Expired));
    assert_eq!(at(json!(0), 0, 0), Err(Denied::Expired));
    assert_eq!(at(json!(-5), 0, 0), Err(Denied::Expired));
    assert_eq!(at(json!(-1e300), 0, 0), Err(Denied::Expired));
    assert_eq!(at(json!(1e300), 30, NOW), Ok(Some(u64::MAX)));
    assert_eq!(at(json!(u64::MAX), u64::MAX, u64::MAX - 1), Ok(Some(u64::MAX)));
    assert_eq!(at(json!(u64::MAX), u64::MAX, u64::MAX), Err(Denied::Expired));
    assert_eq!(at(Value::Null, 30, NOW), Err(Denied::MissingClaim("exp".to_owned())));
    for wrong in [json!("1700009999"), json!(true), json!([NOW]), json!({})] {
        assert_eq!(at(wrong, 30, NOW), Err(Denied::BadClaim("exp".to_owned())));
    }
    // It is checked even if it is not required.
    let lax = |claims: Value| check(|options| options.required.clear(), &claims).map(|identity| identity.expires);
    assert_eq!(lax(json!({})), Ok(None));
    assert_eq!(lax(json!({"exp": null})), Ok(None));
    assert_eq!(lax(json!({"exp": NOW - 31})), Err(Denied::Expired));
    assert_eq!(lax(json!({"exp": "never"})), Err(Denied::BadClaim("exp".to_owned())));
}

#[test]
fn not_before_is_checked() {
    let at = |nbf: Value, leeway: u64, now: u64| {
        let claims = json!({"sub": "a", "exp": u64::MAX, "nbf": nbf});
        jwt(|options| options.leeway = leeway).verify_token(&hs256(&claims), now).map(drop)
    };
    assert_eq!(at(json!(1000), 0, 1000), Ok(()));
    assert_eq!(at(json!(1000), 0, 999), Err(Denied::NotYet));
    assert_eq!(at(json!(1000), 30, 970), Ok(()));
    assert_eq!(at(json!(1000), 30, 969), Err(Denied::NotYet));
    assert_eq!(at(json!(1000.1), 0, 1000), Err(Denied::NotYet));
    assert_eq!(at(json!(1000.1), 0, 1001), Ok(()));
    assert_eq!(at(json!(-1), 0, 0), Ok(()));
    assert_eq!(at(json!(1e300), 30, NOW), Err(Denied::NotYet));
    assert_eq!(at(Value::Null, 0, 0), Ok(()));
    assert_eq!(at(json!("1000"), 30, NOW), Err(Denied::BadClaim("nbf".to_owned())));
}

#[test]
fn issuer_is_checked() {
    let wanted = |options: &mut JwtOptions| options.issuer = Some("https://issuer.example".to_owned());
    let of = |iss: Value| check(wanted, &claims_and(json!({"iss": iss}))).map(|identity| identity.user);
    assert_eq!(of(json!("https://issuer.example")), Ok("alice".to_owned()));
    assert_eq!(of(json!("https://issuer.example/")), Err(Denied::Issuer));
    assert_eq!(of(json!("HTTPS://issuer.example")), Err(Denied::Issuer));
    assert_eq!(of(json!("")), Err(Denied::Issuer));
    assert_eq!(of(json!(["https://issuer.example"])), Err(Denied::BadClaim("iss".to_owned())));
    assert_eq!(of(Value::Null), Err(Denied::MissingClaim("iss".to_owned())));
    assert_eq!(check(wanted, &claims()), Err(Denied::MissingClaim("iss".to_owned())));
    assert!(check(|_| {}, &claims_and(json!({"iss": "anybody"}))).is_ok());
}

#[test]
fn audience_is_checked() {
    let of = |ours: &[&str], aud: Value| {
        check(
            |options| options.audience = ours.iter().map(ToString::to_string).collect(),
            &claims_and(json!({"aud": aud})),
        )
        .map(drop)
    };
    assert_eq!(of(&["chat"], json!("chat")), Ok(()));
    assert_eq!(of(&["chat"], json!(["mail", "chat"])), Ok(()));
    assert_eq!(of(&["news", "chat"], json!("chat")), Ok(()));
    assert_eq!(of(&["news", "chat"], json!(["chat", "mail"])), Ok(()));
    assert_eq!(of(&["chat"], json!("mail")), Err(Denied::Audience));
    assert_eq!(of(&["chat"], json!("Chat")), Err(Denied::Audience));
    assert_eq!(of(&["chat"], json!("chat,mail")), Err(Denied::Audience));
    assert_eq!(of(&["chat"], json!(["mail", "news"])), Err(Denied::Audience));
    assert_eq!(of(&["chat"], json!([])), Err(Denied::Audience));
    assert_eq!(of(&["chat"], Value::Null), Err(Denied::MissingClaim("aud".to_owned())));
    for wrong in [json!(1), json!({"chat": 1}), json!(["chat", 1]), json!([["chat"]]), json!(true)] {
        assert_eq!(of(&["chat"], wrong), Err(Denied::BadClaim("aud".to_owned())));
    }
    // RFC 7519 section 4.1.3: a recipient that is not named must reject the token; without options we have no name.
    assert_eq!(of(&[], json!("chat")), Err(Denied::Audience));
    assert_eq!(of(&[], json!([])), Err(Denied::Audience));
    assert_eq!(of(&[], Value::Null), Ok(()));
}

#[test]
fn required_claims_are_checked() {
    let missing = |name: &str| Err(Denied::MissingClaim(name.to_owned()));
    let user = |claims: Value| check(|_| {}, &claims).map(|identity| identity.user);
    assert_eq!(user(json!({"exp": NOW + 1})), missing("sub"));
    assert_eq!(user(json!({"exp": NOW + 1, "sub": null})), missing("sub"));
    assert_eq!(user(json!({"exp": NOW + 1, "sub": ""})), Err(Denied::BadClaim("sub".to_owned())));
    assert_eq!(user(json!({"exp": NOW + 1, "sub": 42})), Err(Denied::BadClaim("sub".to_owned())));
    assert_eq!(user(json!({"sub": "a"})), missing("exp"));
    let tenant = |claims: Value| {
        check(|options| options.required = vec!["exp".to_owned(), "tenant".to_owned()], &claims)
            .map(|identity| identity.user)
    };
    assert_eq!(tenant(claims()), missing("tenant"));
    assert_eq!(tenant(claims_and(json!({"tenant": null}))), missing("tenant"));
    assert_eq!(tenant(claims_and(json!({"tenant": false}))), Ok("alice".to_owned()));
    assert_eq!(tenant(json!({"exp": NOW + 1, "tenant": 1})), Ok(String::new()));
}

#[test]
fn identity_holds_all_claims() {
    let claims = claims_and(json!({"role": ["admin"], "nested": {"a": [1, 2.5, null]}}));
    let identity = check(|_| {}, &claims).unwrap();
    assert_eq!(Value::Object(identity.claims.clone()), claims);
    assert_eq!((identity.user.as_str(), identity.expires, identity.source), ("alice", Some(NOW + 90), None));
}

#[test]
fn denials_have_a_status_and_texts() {
    let of = |denied: Denied| (denied.status(), denied.challenge().is_some());
    let name = || "x".to_owned();
    for denied in [
        Denied::Missing,
        Denied::TooLong,
        Denied::Malformed,
        Denied::Extension,
        Denied::Algorithm,
        Denied::KeyId,
        Denied::Signature,
        Denied::Expired,
        Denied::NotYet,
    ] {
        assert_eq!(of(denied), (401, true));
    }
    for denied in [Denied::Issuer, Denied::Audience, Denied::MissingClaim(name()), Denied::BadClaim(name())] {
        assert_eq!(of(denied), (403, false));
    }
    assert_eq!(Denied::Missing.challenge(), Some("Bearer"));
    assert_eq!(Denied::Expired.challenge(), Some("Bearer error=\"invalid_token\""));
    assert_eq!(Denied::MissingClaim("a\nb".to_owned()).to_string(), r#"the token lacks the claim "a\nb""#);
    // The texts reveal nothing about the keys.
    let texts = [Denied::Malformed, Denied::Algorithm, Denied::KeyId, Denied::Signature].map(|d| d.client_text());
    assert!(texts.iter().all(|text| *text == texts[0]));
}

#[test]
fn debug_and_display_hide_secrets_and_tokens() {
    let secret = std::str::from_utf8(SECRET).unwrap();
    let previous = std::str::from_utf8(OTHER_SECRET).unwrap();
    let mut options = options();
    options.previous_key = Some(Key::Secret(OTHER_SECRET.to_vec()));
    let pem = JwtOptions::new([Algorithm::ES256], p256().key());
    let mut shown = vec![format!("{options:?}{:#?}", options.key), format!("{pem:?}")];
    let jwt = Jwt::new(options).unwrap();
    shown.push(format!("{jwt:?}{jwt:#?}{:?}", Jwt::new(pem).unwrap()));
    let marked = claims_and(json!({"private": "mark-of-a-private-claim"}));
    let token = hs256(&marked);
    let identity = jwt.verify_token(&token, NOW).unwrap();
    shown.push(format!("{identity:?}"));
    assert!(shown[3].contains("alice") && shown[3].contains("private"));
    let signature = token.rsplit_once('.').unwrap().1;
    for bad in [
        token.replace('.', ","),
        format!("{token}x"),
        hs256(&json!({"sub": ["mark-of-a-private-claim"], "exp": NOW + 1})),
        hs256(&json!({"sub": "a", "exp": "mark-of-a-private-claim"})),
        with_kid(Algorithm::HS512, &EncodingKey::from_secret(SECRET).unwrap(), "mark-of-a-private-claim", &marked),
        "mark-of-a-private-claim".to_owned(),
    ] {
        let denied = jwt.verify_token(&bad, NOW).unwrap_err();
        shown.push(format!("{denied:?} {denied} {} {:?}", denied.client_text(), denied.challenge()));
    }
    let bytes = format!("{:?}", SECRET.as_slice());
    let pem_line = p256().public.lines().nth(1).unwrap().to_owned();
    let short = Jwt::new(JwtOptions::new([Algorithm::HS512], Key::Secret(SECRET[..50].to_vec()))).unwrap_err();
    shown.push(format!("{short:?} {short}"));
    for text in shown {
        for hidden in [secret, previous, &secret[..20], &bytes, &bytes[1..40], &token, signature, &pem_line] {
            assert!(!text.contains(hidden), "{text}");
        }
        assert!(!text.contains("mark-of-a-private-claim"), "{text}");
    }
}

#[test]
fn verifier_is_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>(_: &T) {}
    shared(&jwt(|_| {}));
}

proptest! {
    #[test]
    fn random_text_is_never_accepted(token in ".{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let jwt = jwt(|_| {});
        prop_assert!(jwt.verify_token(&token, NOW).is_err());
        let request = Request::to(&token).with("authorization", [b"Bearer ", &bytes[..]].concat());
        prop_assert!(jwt.verify(&request, NOW).is_err());
    }

    #[test]
    fn random_parts_are_never_accepted(header in ".{0,60}", payload in ".{0,60}", signature in proptest::collection::vec(any::<u8>(), 0..80)) {
        let token = format!("{}.{}.{}", encode(header), encode(payload), encode(signature));
        let result = jwt(|_| {}).verify_token(&token, NOW);
        prop_assert!(result.is_err());
    }

    #[test]
    fn arbitrary_signed_payload_causes_no_panic(payload in r#"\{("(sub|exp|nbf|aud|iss)":(-?[0-9]{1,25}(\.[0-9]{1,3})?|"x"|null|\[\]|\{\}),){0,4}"sub":"u"\}"#, now in any::<u64>(), leeway in any::<u64>()) {
        let token = raw(r#"{"alg":"HS256"}"#, payload, &EncodingKey::from_secret(SECRET).unwrap(), Algorithm::HS256);
        let jwt = jwt(|options| { options.leeway = leeway; options.audience = vec!["x".to_owned()]; });
        if let Ok(identity) = jwt.verify_token(&token, now) {
            prop_assert!(identity.expires.unwrap() > now);
        }
    }

    #[test]
    fn the_lifetime_is_an_interval(nbf in 0u64..200, exp in 0u64..200, leeway in 0u64..50, now in 0u64..250) {
        let token = hs256(&json!({"sub": "a", "nbf": nbf, "exp": exp}));
        let accepted = jwt(|options| options.leeway = leeway).verify_token(&token, now).is_ok();
        prop_assert_eq!(accepted, nbf <= now + leeway && now < exp + leeway);
    }
}
