//! Verifies tokens, and defines the order of the checks.
//!
//! Nothing in a token is trusted before its signature is verified, except `alg` and `kid`, which only choose among the
//! keys that are configured for that algorithm. The claims are parsed after the signature is verified.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::algorithm::Algorithm;
use super::claims::{Claims, Header};
use super::error::Error;
use super::jwks::KeyFile;
use super::keys::VerifyingKey;
use super::options::{JwtOptions, Key, Source};
use super::{Head, Identity, source};
use crate::reasons::Denied;

/// Verifies signed JSON Web Tokens (RFC 7519) in the compact form of RFC 7515.
///
/// 1. Call [`Self::new`] once.
/// 2. Call [`Self::refresh`] from time to time, and [`Self::verify`] for each handshake.
/// 3. Call [`Self::verify_token`] when a session presents a new token.
///
/// It can be shared between threads. No lock is held for long, except that a token with an unknown `kid` may read the
/// file of keys, at most once per second.
#[derive(Debug)]
pub struct Jwt {
    /// The options without the keys, which are in `keys`.
    options: JwtOptions,
    keys: Keys,
}

#[derive(Debug)]
enum Keys {
    /// The current key and optionally the previous one, each with the `kid` that it requires.
    Fixed(Vec<(Option<String>, VerifyingKey)>),
    File(KeyFile),
}

impl Jwt {
    /// Checks the options against each other and against the keys, and reads the file of keys.
    pub fn new(mut options: JwtOptions) -> Result<Self, Error> {
        options.check()?;
        let algorithms = &options.algorithms;
        let fixed = |name: &'static str, key: &Key| match key {
            Key::Secret(secret) => VerifyingKey::from_secret(name, secret, algorithms),
            Key::Pem(pem) => VerifyingKey::from_pem(name, pem, algorithms),
            Key::Jwks(_) => Err(Error::option(name, "a file of keys is not one key")),
        };
        let keys = match &options.key {
            Key::Jwks(path) => Keys::File(KeyFile::open(path, algorithms)?),
            key => {
                let mut keys = vec![(options.key_id.clone(), fixed("key", key)?)];
                if let Some(previous) = &options.previous_key {
                    let id = options.previous_key_id.clone().or_else(|| options.key_id.clone());
                    keys.push((id, fixed("previous_key", previous)?));
                }
                Keys::Fixed(keys)
            }
        };
        // Only `keys` keeps a copy, and wipes it when dropped.
        if !matches!(options.key, Key::Jwks(_)) {
            options.key = Key::Secret(Vec::new());
            options.previous_key = None;
        }
        Ok(Self { options, keys })
    }

    /// Verifies the token of a request at the unix second `now`, and returns the client's identity.
    pub fn verify(&self, head: &impl Head, now: u64) -> Result<Identity, Denied> {
        let (token, source) = source::find(head, &self.options.sources)?;
        let mut identity = self.authenticate(&token, now)?;
        identity.source = Some(source.clone());
        Ok(identity)
    }

    /// Verifies a token at the unix second `now`, for a session that outlives its first token. The caller must check
    /// that the user is the same as before.
    pub fn verify_token(&self, token: &str, now: u64) -> Result<Identity, Denied> {
        self.authenticate(token.as_bytes(), now)
    }

    /// Reads the file of keys if it has changed, and returns whether there are new keys. Checks at most once per
    /// second.
    ///
    /// A file that cannot be read or has no usable key is an error, and the keys stay as they are; an empty set
    /// withdraws all of them. A key that was removed from the file is accepted until this is called. Other kinds of
    /// keys never change.
    pub fn refresh(&self, now: u64) -> Result<bool, Error> {
        match &self.keys {
            Keys::Fixed(_) => Ok(false),
            Keys::File(file) => file.refresh(now),
        }
    }

    /// Returns the error of the last attempt to read the file of keys, if it failed. [`Self::verify`] may have made
    /// that attempt.
    pub fn key_file_error(&self) -> Option<Error> {
        match &self.keys {
            Keys::Fixed(_) => None,
            Keys::File(file) => file.error(),
        }
    }

    /// Whether this entry of `Sec-WebSocket-Protocol` carries a token. Such an entry must not be chosen as the
    /// subprotocol, nor logged.
    pub fn carries_token(&self, entry: &str) -> bool {
        self.options
            .sources
            .iter()
            .any(|source| matches!(source, Source::Subprotocol(prefix) if entry.starts_with(prefix.as_str())))
    }

    /// Whether an entry of `Sec-WebSocket-Protocol` may carry a token.
    pub fn looks_at_subprotocols(&self) -> bool {
        self.options.sources.iter().any(|source| matches!(source, Source::Subprotocol(_)))
    }

    fn authenticate(&self, token: &[u8], now: u64) -> Result<Identity, Denied> {
        if token.is_empty() {
            return Err(Denied::Missing);
        }
        if token.len() > self.options.max_token {
            return Err(Denied::TooLong);
        }
        // RFC 7515 section 7.1: a signed token has three parts; an encrypted one has five (RFC 7516 section 7.1).
        let mut parts = token.split(|&byte| byte == b'.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Denied::Malformed);
        };
        let message = token.get(..header.len() + 1 + payload.len()).ok_or(Denied::Malformed)?;
        let (header, signature) = (decode(header)?, decode(signature)?);
        // RFC 7515 section 4 requires UTF-8. The whole text is checked, because the JSON parser skips unknown members.
        let header = str::from_utf8(&header).map_err(|_| Denied::Malformed)?;
        let header: Header<'_> = serde_json::from_str(header).map_err(|_| Denied::Malformed)?;
        // RFC 7515 section 4.1.11: a token with an extension that is not understood MUST be rejected.
        if header.crit.0 {
            return Err(Denied::Extension);
        }
        let algorithm = Algorithm::named(&header.alg)
            .filter(|algorithm| self.options.algorithms.contains(algorithm))
            .ok_or(Denied::Algorithm)?;
        self.check_signature(algorithm, header.kid.as_deref(), message, &signature, now)?;
        Claims::parse(&decode(payload)?)?.check(&self.options, now)
    }

    fn check_signature(
        &self,
        algorithm: Algorithm,
        id: Option<&str>,
        message: &[u8],
        signature: &Vec<u8>,
        now: u64,
    ) -> Result<(), Denied> {
        let file = match &self.keys {
            Keys::Fixed(keys) => {
                let matching = keys.iter().filter(|(required, _)| required.is_none() || required.as_deref() == id);
                return check_with(matching.map(|(_, key)| key), algorithm, message, signature);
            }
            Keys::File(file) => file,
        };
        if self.options.key_id.as_deref().is_some_and(|required| id != Some(required)) {
            return Err(Denied::KeyId);
        }
        let try_keys = || {
            let keys = file.keys();
            let matching = keys.iter().filter(|key| id.is_none() || key.id.as_deref() == id);
            check_with(matching.map(|key| &key.key), algorithm, message, signature)
        };
        match try_keys() {
            // The issuer may have added a new key to the file.
            Err(Denied::KeyId) => {
                // The error is stored, and the next call of [`Self::refresh`] returns it.
                let _ = file.refresh(now);
                try_keys()
            }
            result => result,
        }
    }
}

/// The maximum number of keys that are tried for one token: a token without `kid` fits many, and each costs time.
const MAX_KEYS_TRIED: usize = 32;

/// Verifies a signature with the keys that match the token's `kid`.
fn check_with<'a>(
    keys: impl Iterator<Item = &'a VerifyingKey>,
    algorithm: Algorithm,
    message: &[u8],
    signature: &Vec<u8>,
) -> Result<(), Denied> {
    let mut denied = Denied::KeyId;
    let mut tried = 0;
    for key in keys {
        if !key.fits(algorithm) {
            if denied == Denied::KeyId {
                denied = Denied::Algorithm;
            }
        } else if tried == MAX_KEYS_TRIED {
            return Err(Denied::KeyId);
        } else if key.verify(algorithm, message, signature) {
            return Ok(());
        } else {
            denied = Denied::Signature;
            tried += 1;
        }
    }
    Err(denied)
}

/// RFC 7515 section 2: base64url without padding or whitespace. The unused bits of the last character must be zero, so
/// that each token has only one form.
fn decode(part: &[u8]) -> Result<Vec<u8>, Denied> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| Denied::Malformed)
}
