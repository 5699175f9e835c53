//! Keys: invalid ones, two at a time, and files of keys.

#![allow(clippy::unwrap_used, clippy::panic)] // tests fail by panicking

mod auth_support;

use std::fs;
use std::path::PathBuf;

use auth_support::*;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{DecodingKey, EncodingKey};
use serde_json::{Value, json};
use wirespeed_engine::auth::{Algorithm, Denied, Error, Jwt, JwtOptions, Key, Source};

use Algorithm::*;

const RSA_1024: &str = "-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQCzuRVKDtjsSPpZRTnNTb4UN7eQ
AcgpUS1IpOUIIXyN7dV8UksJpvlxkZE5W0cJNRwCTs+kgJ2zej+UtTJpM4wxa4GI
wd/5wjdpBo2sLIOaRdBmfCDBG7jdNqk2d8OYhZt8A9GbproHZRtf4jH5cMFqZ3Pq
Z/XqKtgHobFnphEkUwIDAQAB
-----END PUBLIC KEY-----
";
const P_521: &str = "-----BEGIN PUBLIC KEY-----
MIGbMBAGByqGSM49AgEGBSuBBAAjA4GGAAQBn6cd09TU8LT+SOiDv+FfPl7v+PLX
sB7BCxtoAwEHr+l4KjJfs/KVEYg29W0S6BhGLyLcTaBnEVPhitlIaiXXnNYAjJ5n
tmYFnSiitIotxPk1he0zQ00HLnzaxe2zSu5gBFU7qbLEsuB8jpAv81t3Uws11ZQ+
69oz4jNEfkteROXuYNY=
-----END PUBLIC KEY-----
";
/// A curve with the same size as P-256.
const SECP256K1: &str = "-----BEGIN PUBLIC KEY-----
MFYwEAYHKoZIzj0CAQYFK4EEAAoDQgAEUYkTKvCuN8sK/xMoOFl1/IxwUHvWVV+H
NizONWeUVRJ2bF/JUitc+TT78pNCq8tTmtDHdE5wDbSxESId3UZYSg==
-----END PUBLIC KEY-----
";

fn refusal(options: JwtOptions) -> String {
    Jwt::new(options).unwrap_err().to_string()
}

fn pem(text: &str) -> Key {
    Key::Pem(text.as_bytes().to_vec())
}

#[test]
fn algorithm_names_are_parsed() {
    for (algorithm, ..) in all() {
        assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
    }
    assert_eq!("Ed25519".parse(), Ok(EdDSA), "RFC 9864");
    for none in ["none", "None"] {
        let error = none.parse::<Algorithm>().unwrap_err().to_string();
        assert_eq!(error, "algorithms: `none` would accept unsigned tokens");
    }
    for other in ["", "hs256", "ES521", "ES256K", "ed25519", "RS1", "HS256 "] {
        let error = other.parse::<Algorithm>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("algorithms: {other:?} is not supported: HS256, ")), "{error}");
    }
}

#[test]
fn one_key_has_one_family() {
    assert_eq!(refusal(JwtOptions::new([], Key::Secret(SECRET.to_vec()))), "algorithms: at least one is needed");
    for (other, key) in [(HS256, rsa().key()), (ES256, rsa().key()), (EdDSA, rsa().key())] {
        let expected = format!("algorithms: RS256 and {other} are not for the same key");
        assert_eq!(refusal(JwtOptions::new([RS256, other], key)), expected);
    }
    let error = refusal(JwtOptions::new([HS256, RS256], Key::Secret(SECRET.to_vec())));
    assert_eq!(error, "algorithms: HS256 and RS256 are not for the same key");
    let error = refusal(JwtOptions::new([RS256, HS256], Key::Jwks(PathBuf::from("/nonexistent"))));
    assert_eq!(error, "algorithms: RS256 and HS256 are not for the same key");
}

#[test]
fn secret_must_be_as_long_as_the_hash() {
    for (algorithm, len) in [(HS256, 32), (HS384, 48), (HS512, 64)] {
        let of = |len: usize| Jwt::new(JwtOptions::new([algorithm], Key::Secret(SECRET[..len].to_vec())));
        assert!(of(len).is_ok());
        let expected = format!("key: {algorithm} needs {len} bytes of secret at least, not {}", len - 1);
        assert_eq!(of(len - 1).unwrap_err().to_string(), expected);
        assert!(of(0).is_err());
    }
    let mut options = JwtOptions::new([HS256, HS512], Key::Secret(SECRET[..63].to_vec()));
    assert_eq!(refusal(options.clone()), "key: HS512 needs 64 bytes of secret at least, not 63");
    options.key = Key::Secret(SECRET.to_vec());
    options.previous_key = Some(Key::Secret(SECRET[..40].to_vec()));
    assert_eq!(refusal(options), "previous_key: HS512 needs 64 bytes of secret at least, not 40");
}

#[test]
fn public_key_as_a_secret_is_refused() {
    for pair in [rsa(), p256(), ed()] {
        for text in [pair.public.clone(), format!("\n\n{}", pair.public), pair.private.clone()] {
            let error = refusal(JwtOptions::new([HS256], Key::Secret(text.into_bytes())));
            assert_eq!(error, "key: the secret is a PEM file, which may be public");
        }
        let error = refusal(JwtOptions::new([HS256], pair.key()));
        assert_eq!(error, "key: a public key is not a secret for HMAC: anyone could sign");
    }
    let error = refusal(JwtOptions::new([RS256], Key::Secret(SECRET.to_vec())));
    assert_eq!(error, "key: RS256 takes a public key and no secret");
}

#[test]
fn pem_of_another_kind_is_refused() {
    let wrong = "key: not a public key of the kind that the algorithms need";
    for (algorithm, key) in
        [(RS256, p256()), (RS256, ed()), (ES256, rsa()), (ES256, ed()), (EdDSA, rsa()), (EdDSA, p256())]
    {
        assert_eq!(refusal(JwtOptions::new([algorithm], key.key())), wrong);
    }
    assert_eq!(refusal(JwtOptions::new([ES256], p384().key())), "key: ES256 needs the curve P-256");
    assert_eq!(refusal(JwtOptions::new([ES384], p256().key())), "key: ES384 needs the curve P-384");
    assert_eq!(refusal(JwtOptions::new([ES256, ES384], p256().key())), "key: ES384 needs the curve P-384");
    assert_eq!(refusal(JwtOptions::new([ES384], pem(P_521))), "key: ES384 needs the curve P-384");
    assert_eq!(refusal(JwtOptions::new([ES512], p384().key())), "key: ES512 needs the curve P-521");
    assert!(Jwt::new(JwtOptions::new([ES512], pem(P_521))).is_ok());
    assert_eq!(refusal(JwtOptions::new([ES256], pem(SECP256K1))), "key: ES256 needs the curve P-256");
    assert_eq!(refusal(JwtOptions::new([RS256], pem(RSA_1024))), "key: RS256 needs an RSA key of 2048 to 8192 bits");
    for (text, problem) in [
        (String::new(), "not PEM"),
        ("secret".to_owned(), "not PEM"),
        (p256().private.clone(), "a private key; verifying takes the public one, and nothing else should be here"),
        (
            rsa().public.replace("PUBLIC", "RSA PRIVATE"),
            "a private key; verifying takes the public one, and nothing else should be here",
        ),
        (
            rsa().public.replace("PUBLIC KEY", "CERTIFICATE"),
            "a certificate; give the public key: openssl x509 -pubkey -noout",
        ),
        (rsa().public.replace("PUBLIC", "EC"), "not a public key"),
        (format!("{}{}", rsa().public, p256().public), "several PEM blocks"),
        (rsa().public.replace("END", "DNE"), "not a public key of the kind that the algorithms need"),
        (rsa().public.replace("MII", "AII"), "not a public key of the kind that the algorithms need"),
    ] {
        assert_eq!(refusal(JwtOptions::new([RS256], Key::Pem(text.into_bytes()))), format!("key: {problem}"));
    }
}

#[test]
fn broken_pem_is_an_error() {
    for (algorithm, pair) in [(RS256, rsa()), (ES256, p256()), (EdDSA, ed())] {
        for position in 0..pair.public.len() {
            let mut bytes = pair.public.clone().into_bytes();
            bytes[position] ^= 5;
            let _ = Jwt::new(JwtOptions::new([algorithm], Key::Pem(bytes.clone())));
            bytes.truncate(position);
            let _ = Jwt::new(JwtOptions::new([algorithm], Key::Pem(bytes)));
        }
    }
}

#[test]
fn contradictory_options_are_refused() {
    let with = |change: &dyn Fn(&mut JwtOptions)| {
        let mut options = options();
        change(&mut options);
        refusal(options)
    };
    assert_eq!(with(&|options| options.max_token = 0), "max_token: no token is that short");
    for source in [Source::Cookie(String::new()), Source::Cookie("a b".to_owned()), Source::Cookie("a=".to_owned())] {
        assert!(
            with(&|options| options.sources = vec![source.clone()]).starts_with("sources: the name of a cookie has")
        );
    }
    for prefix in ["", "bearer,", "bearer "] {
        let error = with(&|options| options.sources = vec![Source::Subprotocol(prefix.to_owned())]);
        assert!(error.starts_with("sources: the prefix of a subprotocol has"), "{error}");
    }
    let error = with(&|options| options.sources = vec![Source::Query(String::new())]);
    assert_eq!(error, "sources: the parameter has no name");
    let not_with_file = "previous_key: not with a file of keys: the file holds the previous ones too";
    assert_eq!(with(&|options| options.previous_key = Some(Key::Jwks(PathBuf::from("x")))), not_with_file);
    let both = |options: &mut JwtOptions| {
        options.key = Key::Jwks(PathBuf::from("x"));
        options.previous_key = Some(Key::Secret(SECRET.to_vec()));
    };
    assert_eq!(with(&both), not_with_file);
    let error = with(&|options| options.previous_key_id = Some("a".to_owned()));
    assert_eq!(error, "previous_key_id: there is no previous_key");
}

#[test]
fn previous_key() {
    let old = new_p256();
    let mut options = JwtOptions::new([ES256], p256().key());
    let of = |options: &JwtOptions, pair: &Pair| {
        Jwt::new(options.clone()).unwrap().verify_token(&signed(ES256, &pair.signing, &claims()), NOW).map(drop)
    };
    assert_eq!(of(&options, &old), Err(Denied::Signature));
    options.previous_key = Some(old.key());
    assert_eq!(of(&options, &old), Ok(()));
    assert_eq!(of(&options, p256()), Ok(()));
    assert_eq!(of(&options, &new_p256()), Err(Denied::Signature));
    options.previous_key = Some(rsa().key());
    assert_eq!(refusal(options), "previous_key: not a public key of the kind that the algorithms need");
}

#[test]
fn key_ids_restrict_fixed_keys() {
    let (new, old) = (EncodingKey::from_secret(SECRET).unwrap(), EncodingKey::from_secret(OTHER_SECRET).unwrap());
    let mut options = options();
    let kid = |options: &JwtOptions, key: &EncodingKey, kid: &str| {
        Jwt::new(options.clone()).unwrap().verify_token(&with_kid(HS256, key, kid, &claims()), NOW).map(drop)
    };
    assert_eq!(kid(&options, &new, "anything"), Ok(()));
    options.key_id = Some("2".to_owned());
    assert_eq!(kid(&options, &new, "2"), Ok(()));
    assert_eq!(kid(&options, &new, "1"), Err(Denied::KeyId));
    assert_eq!(kid(&options, &new, ""), Err(Denied::KeyId));
    assert_eq!(Jwt::new(options.clone()).unwrap().verify_token(&hs256(&claims()), NOW), Err(Denied::KeyId));
    options.previous_key = Some(Key::Secret(OTHER_SECRET.to_vec()));
    assert_eq!(kid(&options, &old, "2"), Ok(()));
    assert_eq!(kid(&options, &old, "1"), Err(Denied::KeyId));
    options.previous_key_id = Some("1".to_owned());
    assert_eq!(kid(&options, &old, "1"), Ok(()));
    assert_eq!(kid(&options, &old, "2"), Err(Denied::Signature));
    assert_eq!(kid(&options, &new, "1"), Err(Denied::Signature));
    assert_eq!(kid(&options, &new, "2"), Ok(()));
}

/// A file of keys that is removed when this is dropped.
struct Set(PathBuf);

impl Set {
    fn new(name: &str, keys: &[Value]) -> Self {
        let set = Self(std::env::temp_dir().join(format!("auth_keys-{}-{name}.json", std::process::id())));
        set.replace(&json!({"keys": keys}).to_string());
        set
    }

    /// Replaces the file by a new one, as an operator should.
    fn replace(&self, text: &str) {
        let fresh = self.0.with_extension("new");
        fs::write(&fresh, text).unwrap();
        fs::rename(&fresh, &self.0).unwrap();
    }

    fn put(&self, keys: &[Value]) {
        self.replace(&json!({"keys": keys}).to_string());
    }

    fn options(&self, algorithms: impl Into<Vec<Algorithm>>) -> JwtOptions {
        JwtOptions::new(algorithms, Key::Jwks(self.0.clone()))
    }

    fn jwt(&self, algorithms: impl Into<Vec<Algorithm>>) -> Jwt {
        Jwt::new(self.options(algorithms)).unwrap()
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn jwk(pair: &Pair, algorithm: Algorithm, kid: &str, more: Value) -> Value {
    let pem = pair.public.as_bytes();
    let key = match algorithm {
        ES256 | ES384 => DecodingKey::from_ec_pem(pem),
        EdDSA => DecodingKey::from_ed_pem(pem),
        _ => DecodingKey::from_rsa_pem(pem),
    };
    let mut jwk = serde_json::to_value(Jwk::from_decoding_key(&key.unwrap(), None).unwrap()).unwrap();
    let members = jwk.as_object_mut().unwrap();
    members.insert("kid".to_owned(), json!(kid));
    members.extend(more.as_object().unwrap().clone());
    jwk
}

fn verdict(jwt: &Jwt, token: &str, now: u64) -> Result<(), Denied> {
    // Tokens are checked at another time than the file.
    jwt.verify_token(token, now).map(drop)
}

#[test]
fn set_of_several_keys_is_used_by_kid() {
    let second = new_p256();
    let set = Set::new(
        "several",
        &[
            jwk(rsa(), RS256, "r", json!({"alg": "RS256", "use": "sig"})),
            jwk(p256(), ES256, "e1", json!({})),
            jwk(&second, ES256, "e2", json!({"alg": "ES256", "key_ops": ["verify"]})),
            jwk(p384(), ES384, "e3", json!({})),
            jwk(ed(), EdDSA, "d", json!({"use": "sig"})),
        ],
    );
    let jwt = set.jwt([RS256, RS384, PS256, ES256, ES384, EdDSA]);
    let of = |algorithm: Algorithm, pair: &Pair, kid: &str| {
        verdict(&jwt, &with_kid(algorithm, &pair.signing, kid, &claims()), NOW)
    };
    assert_eq!(of(RS256, rsa(), "r"), Ok(()));
    assert_eq!(of(RS384, rsa(), "r"), Err(Denied::Algorithm), "the key says alg RS256");
    assert_eq!(of(PS256, rsa(), "r"), Err(Denied::Algorithm));
    assert_eq!(of(ES256, p256(), "e1"), Ok(()));
    assert_eq!(of(ES256, &second, "e2"), Ok(()));
    assert_eq!(of(ES384, p384(), "e3"), Ok(()));
    assert_eq!(of(EdDSA, ed(), "d"), Ok(()));
    assert_eq!(of(ES256, p256(), "e2"), Err(Denied::Signature));
    assert_eq!(of(ES256, p256(), "e3"), Err(Denied::Algorithm));
    assert_eq!(of(ES256, p256(), "r"), Err(Denied::Algorithm));
    assert_eq!(of(ES256, p256(), "E1"), Err(Denied::KeyId));
    let secret = EncodingKey::from_secret(SECRET).unwrap();
    assert_eq!(verdict(&jwt, &with_kid(HS256, &secret, "unknown", &claims()), NOW), Err(Denied::Algorithm));
    // Without a kid, each fitting key is tried.
    assert_eq!(verdict(&jwt, &signed(ES256, &second.signing, &claims()), NOW), Ok(()));
    assert_eq!(verdict(&jwt, &signed(ES256, &new_p256().signing, &claims()), NOW), Err(Denied::Signature));
    assert_eq!(
        verdict(&jwt, &signed(HS256, &EncodingKey::from_secret(SECRET).unwrap(), &claims()), NOW),
        Err(Denied::Algorithm)
    );
}

#[test]
fn key_id_option_selects_one_key_of_a_set() {
    let second = new_p256();
    let set = Set::new("pick", &[jwk(p256(), ES256, "1", json!({})), jwk(&second, ES256, "2", json!({}))]);
    let mut options = set.options([ES256]);
    options.key_id = Some("2".to_owned());
    let jwt = Jwt::new(options).unwrap();
    assert_eq!(verdict(&jwt, &with_kid(ES256, &second.signing, "2", &claims()), NOW), Ok(()));
    assert_eq!(verdict(&jwt, &with_kid(ES256, &p256().signing, "1", &claims()), NOW), Err(Denied::KeyId));
    assert_eq!(verdict(&jwt, &signed(ES256, &second.signing, &claims()), NOW), Err(Denied::KeyId));
}

#[test]
fn two_keys_may_share_a_kid() {
    let set = Set::new("same", &[jwk(rsa(), RS256, "k", json!({})), jwk(p256(), ES256, "k", json!({}))]);
    let jwt = set.jwt([RS256, ES256]);
    assert_eq!(verdict(&jwt, &with_kid(RS256, &rsa().signing, "k", &claims()), NOW), Ok(()));
    assert_eq!(verdict(&jwt, &with_kid(ES256, &p256().signing, "k", &claims()), NOW), Ok(()));
}

#[test]
fn secrets_in_a_set_are_used() {
    let oct = |len: usize, kid: &str| json!({"kty": "oct", "k": encode(&SECRET[..len]), "kid": kid});
    let set = Set::new("oct", &[oct(64, "long"), oct(32, "short"), oct(31, "none")]);
    let jwt = set.jwt([HS256, HS512]);
    let of = |algorithm: Algorithm, len: usize, kid: &str| {
        verdict(&jwt, &with_kid(algorithm, &EncodingKey::from_secret(&SECRET[..len]).unwrap(), kid, &claims()), NOW)
    };
    assert_eq!(of(HS512, 64, "long"), Ok(()));
    assert_eq!(of(HS256, 64, "long"), Ok(()));
    assert_eq!(of(HS256, 32, "short"), Ok(()));
    assert_eq!(of(HS512, 32, "short"), Err(Denied::Algorithm));
    assert_eq!(of(HS256, 31, "none"), Err(Denied::KeyId));
    let shown = format!("{jwt:?}{:?}", set.options([HS256]));
    assert!(!shown.contains(&encode(SECRET)[..20]) && !shown.contains("48, 49, 50"), "{shown}");
}

#[test]
fn unusable_keys_are_ignored() {
    let good = jwk(p256(), ES256, "good", json!({}));
    let unusable = [
        jwk(p256(), ES256, "enc", json!({"use": "enc"})),
        jwk(p256(), ES256, "ops", json!({"key_ops": ["sign"]})),
        jwk(p256(), ES256, "alg", json!({"alg": "ES384"})),
        jwk(p256(), ES256, "oaep", json!({"alg": "RSA-OAEP"})),
        jwk(p256(), ES256, "hs", json!({"alg": "HS256"})),
        jwk(p256(), ES256, "kty", json!({"kty": "RSA"})),
        jwk(p256(), ES256, "x", json!({"x": "AAAA"})),
        jwk(p256(), ES256, "b64", json!({"x": "!"})),
        jwk(p256(), ES256, "curve", json!({"crv": "P-384"})),
        jwk(ed(), EdDSA, "x25519", json!({"crv": "X25519"})),
        jwk(ed(), EdDSA, "p256", json!({"crv": "P-256"})),
        jwk(ed(), EdDSA, "short", json!({"x": "AAAA"})),
        jwk(rsa(), RS256, "n", json!({"n": "AQAB"})),
        json!({"kty": "oct", "k": encode(SECRET), "kid": "oct"}),
        json!({"kty": "new", "kid": "new"}),
        json!({}),
        json!(null),
        json!("good"),
        json!(["good"]),
    ];
    let algorithms = [ES256, EdDSA, RS256];
    let nothing = "no key in it is for verifying with the configured algorithms";
    for key in &unusable {
        let set = Set::new("unusable", std::slice::from_ref(key));
        let expected = Error::KeyFile { path: set.0.clone(), problem: nothing.to_owned() };
        assert_eq!(Jwt::new(set.options(algorithms)).unwrap_err(), expected, "{key}");
    }
    let set = Set::new("mixed", &[&unusable[..], &[good]].concat());
    let jwt = set.jwt(algorithms);
    assert_eq!(verdict(&jwt, &with_kid(ES256, &p256().signing, "good", &claims()), NOW), Ok(()));
    assert_eq!(verdict(&jwt, &with_kid(ES256, &p256().signing, "enc", &claims()), NOW), Err(Denied::KeyId));
}

#[test]
fn private_part_of_a_key_in_a_set_is_ignored() {
    let set = Set::new("private", &[jwk(p256(), ES256, "k", json!({"d": encode([1; 32])}))]);
    let jwt = set.jwt([ES256]);
    assert_eq!(verdict(&jwt, &signed(ES256, &p256().signing, &claims()), NOW), Ok(()));
    assert!(!format!("{jwt:?}").contains(&encode([1; 32])));
}

#[test]
fn invalid_files_are_refused() {
    let set = Set::new("bad", &[]);
    let problem = |text: &str| {
        set.replace(text);
        match Jwt::new(set.options([HS256])).unwrap_err() {
            Error::KeyFile { path, problem } if path == set.0 => problem,
            other => panic!("{other}"),
        }
    };
    assert_eq!(problem(r#"{"keys":[]}"#), "there are no keys in it");
    assert_eq!(problem(""), "not a JWK set: Eof error in line 1, column 0");
    assert_eq!(problem("{\"keys\":\n x}"), "not a JWK set: Syntax error in line 2, column 2");
    let quoted = problem(&json!({"keys": std::str::from_utf8(SECRET).unwrap()}).to_string());
    assert!(quoted.starts_with("not a JWK set: Data error in line 1") && !quoted.contains("012345"), "{quoted}");
    assert_eq!(problem(&" ".repeat((1 << 20) + 1)), "longer than 1048576 bytes");
    assert_eq!(
        problem(&format!(r#"{{"keys":[{}"#, "[".repeat(100_000))).split(" in ").next(),
        Some("not a JWK set: Syntax error")
    );
    let missing = Jwt::new(JwtOptions::new([HS256], Key::Jwks(set.0.with_extension("missing")))).unwrap_err();
    assert!(missing.to_string().contains("missing: No such file"), "{missing}");
    let directory = Jwt::new(JwtOptions::new([HS256], Key::Jwks(std::env::temp_dir()))).unwrap_err();
    assert!(directory.to_string().ends_with(": not a regular file"), "{directory}");
}

#[test]
fn unknown_kid_reloads_the_file() {
    let second = new_p256();
    let (first_key, second_key) = (jwk(p256(), ES256, "1", json!({})), jwk(&second, ES256, "2", json!({})));
    let set = Set::new("rotation", std::slice::from_ref(&first_key));
    let jwt = set.jwt([ES256]);
    let (old, new) =
        (with_kid(ES256, &p256().signing, "1", &claims()), with_kid(ES256, &second.signing, "2", &claims()));
    assert_eq!(verdict(&jwt, &new, NOW), Err(Denied::KeyId));
    set.put(&[first_key, second_key.clone()]);
    assert_eq!(verdict(&jwt, &new, NOW), Err(Denied::KeyId), "already checked in this second");
    assert_eq!(verdict(&jwt, &old, NOW), Ok(()));
    assert_eq!(verdict(&jwt, &new, NOW + 1), Ok(()));
    assert_eq!(verdict(&jwt, &old, NOW + 1), Ok(()));
    // A removed key is accepted until the file is checked.
    set.put(std::slice::from_ref(&second_key));
    assert_eq!(verdict(&jwt, &old, NOW + 2), Ok(()));
    assert_eq!(jwt.refresh(NOW + 2), Ok(true));
    assert_eq!(verdict(&jwt, &old, NOW + 2), Err(Denied::KeyId));
    assert_eq!(verdict(&jwt, &new, NOW + 2), Ok(()));
    // All keys are withdrawn.
    set.put(&[]);
    assert_eq!(jwt.refresh(NOW + 2), Ok(false));
    assert_eq!(jwt.refresh(NOW + 3), Ok(true));
    assert_eq!(verdict(&jwt, &new, NOW + 3), Err(Denied::KeyId));
    // The clock is set back.
    set.put(&[second_key]);
    assert_eq!(jwt.refresh(NOW - 100), Ok(true));
    assert_eq!(verdict(&jwt, &new, NOW), Ok(()));
}

#[test]
fn only_a_changed_file_is_reloaded() {
    let key = jwk(p256(), ES256, "1", json!({}));
    let set = Set::new("unchanged", std::slice::from_ref(&key));
    let jwt = set.jwt([ES256]);
    for later in 0..5 {
        assert_eq!(jwt.refresh(NOW + later), Ok(false));
    }
    // The same content in another file counts as a change, because only reading it shows that it is the same.
    set.put(&[key]);
    assert_eq!(jwt.refresh(NOW + 5), Ok(true));
    assert_eq!(jwt.refresh(NOW + 6), Ok(false));
}

#[cfg(unix)]
#[test]
fn file_written_in_place_with_its_old_time_is_reloaded() {
    let other = new_p256();
    let set = Set::new("inplace", &[jwk(p256(), ES256, "1", json!({}))]);
    let jwt = set.jwt([ES256]);
    let before = fs::metadata(&set.0).unwrap();
    let text = json!({"keys": [jwk(&other, ES256, "1", json!({}))]}).to_string();
    assert_eq!(text.len() as u64, before.len());
    // The clock of the file system ticks every few milliseconds.
    while fs::metadata(&set.0).unwrap().modified().unwrap() == before.modified().unwrap() {
        fs::write(&set.0, &text).unwrap();
    }
    fs::File::options().write(true).open(&set.0).unwrap().set_modified(before.modified().unwrap()).unwrap();
    assert_eq!(fs::metadata(&set.0).unwrap().modified().unwrap(), before.modified().unwrap());
    assert_eq!(jwt.refresh(NOW), Ok(true));
    assert_eq!(verdict(&jwt, &with_kid(ES256, &other.signing, "1", &claims()), NOW), Ok(()));
}

#[test]
fn invalid_file_keeps_the_keys() {
    let second = new_p256();
    let set = Set::new("keeps", &[jwk(p256(), ES256, "1", json!({}))]);
    let jwt = set.jwt([ES256]);
    let (old, new) =
        (with_kid(ES256, &p256().signing, "1", &claims()), with_kid(ES256, &second.signing, "2", &claims()));
    assert_eq!(jwt.key_file_error(), None);
    let mut now = NOW;
    for bad in ["", "{\"keys\":", "[]", r#"{"keys":[{"kty":"oct"}]}"#] {
        set.replace(bad);
        now += 1;
        let error = jwt.refresh(now).unwrap_err();
        assert_eq!(jwt.refresh(now), Err(error.clone()), "the same error in the same second");
        assert_eq!(jwt.key_file_error(), Some(error));
        assert_eq!(verdict(&jwt, &old, now), Ok(()));
        assert_eq!(verdict(&jwt, &new, now), Err(Denied::KeyId));
    }
    fs::remove_file(&set.0).unwrap();
    // Detected by a client's token, not by `refresh`.
    assert_eq!(verdict(&jwt, &new, now + 1), Err(Denied::KeyId));
    assert!(jwt.key_file_error().unwrap().to_string().contains("No such file"));
    assert_eq!(verdict(&jwt, &old, now + 1), Ok(()));
    set.put(&[jwk(&second, ES256, "2", json!({}))]);
    assert_eq!(verdict(&jwt, &new, now + 2), Ok(()));
    assert_eq!(jwt.key_file_error(), None);
    assert_eq!(verdict(&jwt, &old, now + 2), Err(Denied::KeyId));
}

#[test]
fn missing_file_is_reloaded_when_it_is_back() {
    let set = Set::new("away", &[jwk(p256(), ES256, "1", json!({}))]);
    let folder = set.0.with_extension("folder");
    let elsewhere = set.0.with_extension("elsewhere");
    fs::create_dir(&folder).unwrap();
    fs::rename(&set.0, folder.join("keys.json")).unwrap();
    let jwt = Jwt::new(JwtOptions::new([ES256], Key::Jwks(folder.join("keys.json")))).unwrap();
    fs::rename(&folder, &elsewhere).unwrap();
    assert!(jwt.refresh(NOW).is_err());
    // The file itself has not changed.
    fs::rename(&elsewhere, &folder).unwrap();
    assert_eq!(jwt.refresh(NOW + 1), Ok(true));
    assert_eq!((jwt.key_file_error(), jwt.refresh(NOW + 2)), (None, Ok(false)));
    assert_eq!(verdict(&jwt, &with_kid(ES256, &p256().signing, "1", &claims()), NOW), Ok(()));
    fs::remove_dir_all(&folder).unwrap();
}

#[cfg(unix)]
#[test]
fn unreadable_file_keeps_the_keys() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let set = Set::new("unreadable", &[jwk(p256(), ES256, "1", json!({}))]);
    let jwt = set.jwt([ES256]);
    let old = with_kid(ES256, &p256().signing, "1", &claims());
    set.put(&[]);
    fs::set_permissions(&set.0, fs::Permissions::from_mode(0o000)).unwrap();
    // root can read it anyway.
    if fs::File::open(&set.0).is_err() {
        assert!(jwt.refresh(NOW).unwrap_err().to_string().contains("Permission denied"));
    }
    fs::remove_file(&set.0).unwrap();
    symlink("/dev/zero", &set.0).unwrap();
    assert!(jwt.refresh(NOW + 1).unwrap_err().to_string().ends_with("not a regular file"));
    fs::remove_file(&set.0).unwrap();
    symlink(&set.0, &set.0).unwrap();
    assert!(jwt.refresh(NOW + 2).is_err());
    if fs::File::open(&set.0).is_err() {
        assert_eq!(jwt.key_file_error(), jwt.refresh(NOW + 2).err());
    }
    assert_eq!(verdict(&jwt, &old, NOW + 2), Ok(()));
}

#[test]
fn refreshing_a_fixed_key_does_nothing() {
    let jwt = jwt(|_| {});
    assert_eq!((jwt.refresh(NOW), jwt.key_file_error()), (Ok(false), None));
}

#[test]
fn threads_verify_while_the_file_changes() {
    let second = new_p256();
    let keys = [jwk(p256(), ES256, "1", json!({})), jwk(&second, ES256, "2", json!({}))];
    let set = Set::new("threads", &keys);
    let jwt = set.jwt([ES256]);
    let always = with_kid(ES256, &p256().signing, "1", &claims());
    let sometimes = with_kid(ES256, &second.signing, "2", &claims());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for i in 0..200 {
                    assert_eq!(verdict(&jwt, &always, NOW - i), Ok(()));
                    let result = verdict(&jwt, &sometimes, NOW - i);
                    assert!(matches!(result, Ok(()) | Err(Denied::KeyId)), "{result:?}");
                }
            });
        }
        for i in 0..100 {
            set.put(&keys[..1 + i % 2]);
            jwt.refresh(NOW + i as u64).unwrap();
        }
    });
}
