//! Keys, tokens and heads for the tests of `auth`.

#![allow(dead_code, unreachable_pub)] // each test file uses a part of it

use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm as Signing, EncodingKey};
use serde_json::{Value, json};
use wirespeed_engine::auth::{Algorithm, Denied, Head, Identity, Jwt, JwtOptions, Key};

pub const NOW: u64 = 1_700_000_000;
/// Long enough for all HMAC algorithms.
pub const SECRET: &[u8; 64] = b"0123456789abcdef-a-secret-that-must-not-be-shown-fedcba987654321";
pub const OTHER_SECRET: &[u8; 64] = b"another-secret-of-sixty-four-bytes-that-is-not-the-first-one----";

/// A key pair: the signing key, and both keys as PEM.
pub struct Pair {
    pub signing: EncodingKey,
    pub public: String,
    pub private: String,
}

impl Pair {
    pub fn key(&self) -> Key {
        Key::Pem(self.public.clone().into_bytes())
    }
}

fn pair(key: &rcgen::KeyPair, read: fn(&[u8]) -> jsonwebtoken::errors::Result<EncodingKey>) -> Pair {
    let private = key.serialize_pem();
    Pair {
        signing: read(private.as_bytes()).unwrap(),
        public: rcgen::PublicKeyData::subject_public_key_info(key).pem(),
        private,
    }
}

trait Pem {
    fn pem(&self) -> String;
}

impl Pem for Vec<u8> {
    fn pem(&self) -> String {
        let body = base64::engine::general_purpose::STANDARD.encode(self);
        let lines: Vec<&str> = body.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", lines.join("\n"))
    }
}

pub fn rsa() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(new_rsa)
}

pub fn new_rsa() -> Pair {
    let key = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap();
    pair(&key, EncodingKey::from_rsa_pem)
}

pub fn new_p256() -> Pair {
    pair(&rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap(), EncodingKey::from_ec_pem)
}

pub fn p256() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(new_p256)
}

pub fn p384() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(|| {
        pair(&rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap(), EncodingKey::from_ec_pem)
    })
}

pub fn new_ed() -> Pair {
    pair(&rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap(), EncodingKey::from_ed_pem)
}

pub fn ed() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(new_ed)
}

/// Returns each algorithm with its signing key and its verifying key.
pub fn all() -> Vec<(Algorithm, EncodingKey, Key)> {
    use Algorithm::*;
    let secret = || (EncodingKey::from_secret(SECRET).unwrap(), Key::Secret(SECRET.to_vec()));
    let of = |pair: &Pair| (pair.signing.clone(), pair.key());
    [
        (HS256, secret()),
        (HS384, secret()),
        (HS512, secret()),
        (RS256, of(rsa())),
        (RS384, of(rsa())),
        (RS512, of(rsa())),
        (PS256, of(rsa())),
        (PS384, of(rsa())),
        (PS512, of(rsa())),
        (ES256, of(p256())),
        (ES384, of(p384())),
        (EdDSA, of(ed())),
    ]
    .into_iter()
    .map(|(algorithm, (signing, key))| (algorithm, signing, key))
    .collect()
}

pub fn library(algorithm: Algorithm) -> Signing {
    algorithm.name().parse().unwrap()
}

pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns a signed token with exactly this header and payload.
pub fn raw(header: &str, payload: impl AsRef<[u8]>, key: &EncodingKey, algorithm: Algorithm) -> String {
    let message = format!("{}.{}", encode(header), encode(payload));
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), key, library(algorithm)).unwrap();
    format!("{message}.{signature}")
}

pub fn signed(algorithm: Algorithm, key: &EncodingKey, claims: &Value) -> String {
    raw(&format!(r#"{{"alg":"{algorithm}","typ":"JWT"}}"#), claims.to_string(), key, algorithm)
}

pub fn with_kid(algorithm: Algorithm, key: &EncodingKey, kid: &str, claims: &Value) -> String {
    raw(&json!({"alg": algorithm.name(), "kid": kid}).to_string(), claims.to_string(), key, algorithm)
}

/// Returns a token signed with [`SECRET`] and HS256.
pub fn hs256(claims: &Value) -> String {
    signed(Algorithm::HS256, &EncodingKey::from_secret(SECRET).unwrap(), claims)
}

pub fn hs256_with(secret: &[u8], claims: &Value) -> String {
    signed(Algorithm::HS256, &EncodingKey::from_secret(secret).unwrap(), claims)
}

pub fn claims() -> Value {
    json!({"sub": "alice", "exp": NOW + 60})
}

/// Returns the usual claims and `more`.
pub fn claims_and(more: Value) -> Value {
    let mut all = claims();
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

pub fn options() -> JwtOptions {
    JwtOptions::new([Algorithm::HS256], Key::Secret(SECRET.to_vec()))
}

/// Returns a verifier of the tokens of [`hs256`], with changed options.
pub fn jwt(change: impl FnOnce(&mut JwtOptions)) -> Jwt {
    let mut options = options();
    change(&mut options);
    Jwt::new(options).unwrap()
}

/// Verifies a token with these claims, with changed options.
pub fn check(change: impl FnOnce(&mut JwtOptions), claims: &Value) -> Result<Identity, Denied> {
    jwt(change).verify_token(&hs256(claims), NOW)
}

/// The head of a request.
#[derive(Default)]
pub struct Request {
    pub headers: Vec<(String, Vec<u8>)>,
    pub target: String,
}

impl Request {
    pub fn to(target: &str) -> Self {
        Self { headers: Vec::new(), target: target.to_owned() }
    }

    pub fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }
}

impl Head for Request {
    fn headers(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.headers.iter().filter(move |(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_slice())
    }

    fn target(&self) -> &str {
        &self.target
    }
}
