//! From a token to an identity: the order of the checks.
//!
//! Nothing of a token is trusted before its signature is right, except `alg` and `kid`, which only choose among keys
//! that are configured for that algorithm. Claims are parsed after it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::algorithm::Algorithm;
use super::claims::{Claims, Header};
use super::error::{Denied, Error};
use super::jwks::KeyFile;
use super::keys::VerifyingKey;
use super::options::{JwtOptions, Key, Source};
use super::{Head, Identity, source};

/// Verifies JSON Web Tokens (RFC 7519) that are signed, in the compact form of RFC 7515.
///
/// Shared between threads as it is. Verifying takes no lock that another verification could hold for long, but for
/// a token with an unknown `kid` it may read the file of keys, once in a second at most.
#[derive(Debug)]
pub struct Jwt {
    /// Without its keys, which are in `keys`.
    options: JwtOptions,
    keys: Keys,
}

#[derive(Debug)]
enum Keys {
    /// The current key and maybe the previous one, each with the `kid` that it asks for.
    Fixed(Vec<(Option<String>, VerifyingKey)>),
    File(KeyFile),
}

impl Jwt {
    /// Checks the options against each other and against the keys; reads the file of keys.
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
        // The one copy that is kept is in `keys`, which wipes it when dropped.
        if !matches!(options.key, Key::Jwks(_)) {
            options.key = Key::Secret(Vec::new());
            options.previous_key = None;
        }
        Ok(Self { options, keys })
    }

    /// Who the client is that has sent this head, at this unix second.
    pub fn verify(&self, head: &impl Head, now: u64) -> Result<Identity, Denied> {
        let (token, source) = source::find(head, &self.options.sources)?;
        let mut identity = self.authenticate(&token, now)?;
        identity.source = Some(source.clone());
        Ok(identity)
    }

    /// Who this token is for, at this unix second: for a session that is to go on after its first token has expired.
    /// Whether that is the same user as before is for the caller to check.
    pub fn verify_token(&self, token: &str, now: u64) -> Result<Identity, Denied> {
        self.authenticate(token.as_bytes(), now)
    }

    /// Looks whether the file of keys has changed, and reads it then, but does nothing if that was done in this
    /// second already; whether there are new keys.
    ///
    /// A file that cannot be read or has no usable key is an error, and the keys stay as they are; an empty set
    /// withdraws all of them. A key that was removed from the file is accepted until this is called. With any other
    /// kind of key there is nothing to do.
    pub fn refresh(&self, now: u64) -> Result<bool, Error> {
        match &self.keys {
            Keys::Fixed(_) => Ok(false),
            Keys::File(file) => file.refresh(now),
        }
    }

    /// Why the keys in use are not those in the file, if the last attempt to read it has failed; it may have been
    /// made by [`Self::verify`].
    pub fn key_file_error(&self) -> Option<Error> {
        match &self.keys {
            Keys::Fixed(_) => None,
            Keys::File(file) => file.error(),
        }
    }

    /// Whether this entry of `Sec-WebSocket-Protocol` is a place for a token, and hence not to be chosen as the
    /// subprotocol, nor logged.
    pub fn carries_token(&self, entry: &str) -> bool {
        self.options
            .sources
            .iter()
            .any(|source| matches!(source, Source::Subprotocol(prefix) if entry.starts_with(prefix.as_str())))
    }

    /// Whether tokens may be there at all.
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
        // RFC 7515 section 7.1: three parts; an encrypted token has five (RFC 7516 section 7.1).
        let mut parts = token.split(|&byte| byte == b'.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Denied::Malformed);
        };
        let message = token.get(..header.len() + 1 + payload.len()).ok_or(Denied::Malformed)?;
        let (header, signature) = (decode(header)?, decode(signature)?);
        // As text first: members that are passed over would not be looked at, and RFC 7515 section 4 asks for UTF-8.
        let header = str::from_utf8(&header).map_err(|_| Denied::Malformed)?;
        let header: Header<'_> = serde_json::from_str(header).map_err(|_| Denied::Malformed)?;
        // RFC 7515 section 4.1.11: a token MUST be rejected if it demands an extension that is not understood.
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
                let named = keys.iter().filter(|(wanted, _)| wanted.is_none() || wanted.as_deref() == id);
                return check_with(named.map(|(_, key)| key), algorithm, message, signature);
            }
            Keys::File(file) => file,
        };
        if self.options.key_id.as_deref().is_some_and(|wanted| id != Some(wanted)) {
            return Err(Denied::KeyId);
        }
        let attempt = || {
            let keys = file.keys();
            let named = keys.iter().filter(|key| id.is_none() || key.id.as_deref() == id);
            check_with(named.map(|key| &key.key), algorithm, message, signature)
        };
        match attempt() {
            // The issuer may have put a new key in the file.
            Err(Denied::KeyId) => {
                // The error is kept: the next call of [`Self::refresh`] returns it.
                let _ = file.refresh(now);
                attempt()
            }
            result => result,
        }
    }
}

/// Keys that one token is tried with, at most: a token without `kid` fits many, and each costs time.
const TRIED: usize = 32;

/// Tries the keys that the token's `kid` leaves.
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
        } else if tried == TRIED {
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

/// RFC 7515 section 2: base64url without padding, whitespace or anything else; the unused bits of the last
/// character are zero, so that each token has one form.
fn decode(part: &[u8]) -> Result<Vec<u8>, Denied> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| Denied::Malformed)
}
