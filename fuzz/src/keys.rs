//! Signing keys, generated once per process, and a function that signs tokens.

use std::sync::OnceLock;

use jsonwebtoken::EncodingKey;
use rcgen::{KeyPair, PublicKeyData};
use wirespeed_engine::auth::{Algorithm, Key};

/// A secret that is long enough for every HMAC.
pub(crate) const SECRET: &[u8; 64] = b"0123456789abcdef-a-secret-that-must-not-be-shown-fedcba987654321";

pub(crate) struct Pair {
    pub(crate) algorithm: Algorithm,
    pub(crate) signing: EncodingKey,
    pub(crate) key: Key,
    /// The public key as PEM; for HMAC, the secret.
    pub(crate) public: Vec<u8>,
    pub(crate) private: Vec<u8>,
    /// The parts of a JWK, base64url: `x` and `y`, `n` and `e`, `k`.
    pub(crate) jwk: Vec<(&'static str, String)>,
}

/// Returns a key pair of each kind.
pub(crate) fn pairs() -> &'static [Pair] {
    static PAIRS: OnceLock<Vec<Pair>> = OnceLock::new();
    PAIRS.get_or_init(|| {
        let secret = Pair {
            algorithm: Algorithm::HS256,
            signing: EncodingKey::from_secret(SECRET).unwrap(),
            key: Key::Secret(SECRET.to_vec()),
            public: SECRET.to_vec(),
            private: SECRET.to_vec(),
            jwk: vec![("k", base64url(SECRET))],
        };
        let p256 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let p384 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        let ed = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let rsa = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap();
        vec![
            secret,
            pair(Algorithm::ES256, &p256),
            pair(Algorithm::EdDSA, &ed),
            pair(Algorithm::ES384, &p384),
            pair(Algorithm::RS256, &rsa),
        ]
    })
}

fn pair(algorithm: Algorithm, key: &KeyPair) -> Pair {
    let private = key.serialize_pem().into_bytes();
    let raw = key.der_bytes();
    let (signing, jwk) = match algorithm {
        Algorithm::RS256 => {
            // RFC 8017 A.1.1, with 2048 bits: a sequence of two numbers, whose lengths take two bytes and one byte.
            let (n, e) = (&raw[9..9 + 256], &raw[raw.len() - 3..]);
            (EncodingKey::from_rsa_pem(&private), vec![("n", base64url(n)), ("e", base64url(e))])
        }
        Algorithm::EdDSA => (EncodingKey::from_ed_pem(&private), vec![("x", base64url(raw))]),
        _ => {
            // SEC 1, 2.3.3: the first byte means that both coordinates follow.
            let half = raw.len() / 2;
            let point = vec![("x", base64url(&raw[1..=half])), ("y", base64url(&raw[1 + half..]))];
            (EncodingKey::from_ec_pem(&private), point)
        }
    };
    let public = pem(&key.subject_public_key_info());
    Pair { algorithm, signing: signing.unwrap(), key: Key::Pem(public.clone()), public, private, jwk }
}

fn pem(der: &[u8]) -> Vec<u8> {
    let text = base64url(der).replace('-', "+").replace('_', "/");
    let text = format!("{text}{}", "=".repeat((4 - text.len() % 4) % 4));
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", lines.join("\n")).into_bytes()
}

/// Encodes bytes as base64url (RFC 7515, appendix C).
pub(crate) fn base64url(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().chain([&0; 2]).take(3).fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let letters = [18, 12, 6, 0].map(|shift| char::from(LETTERS[(bits >> shift & 63) as usize]));
        text.extend(&letters[..=three.len()]);
    }
    text
}

/// Returns a token with exactly this header and payload.
pub(crate) fn sign(header: &[u8], payload: &[u8], pair: &Pair) -> String {
    let message = format!("{}.{}", base64url(header), base64url(payload));
    let algorithm = pair.algorithm.name().parse().unwrap();
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &pair.signing, algorithm).unwrap();
    format!("{message}.{signature}")
}
