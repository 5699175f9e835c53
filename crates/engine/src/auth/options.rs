//! What an operator may ask of tokens, and the checks that need no key.

use std::fmt;
use std::path::PathBuf;

use super::algorithm::{Algorithm, Family};
use super::error::Error;

/// How tokens are verified. [`JwtOptions::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct JwtOptions {
    /// The algorithms to accept. All must be of the key's family; with a file of keys, `HS...` must not stand
    /// beside others.
    pub algorithms: Vec<Algorithm>,
    /// What signatures are verified with.
    pub key: Key,
    /// A key to accept besides, while tokens that it has signed are still about; not with a file of keys, which
    /// holds several. Default: none.
    pub previous_key: Option<Key>,
    /// The `kid` that tokens must have; with a file of keys the only one of its keys to use. Default: any, or none.
    pub key_id: Option<String>,
    /// The `kid` that tokens of the previous key must have. Default: that of `key_id`.
    pub previous_key_id: Option<String>,
    /// The `iss` that tokens must have. Default: any, or none.
    pub issuer: Option<String>,
    /// Who we are: tokens must have one of these in `aud`. Default, empty: tokens must have no `aud`, for they are
    /// meant for somebody else (RFC 7519 section 4.1.3).
    pub audience: Vec<String>,
    /// How many seconds the clock of the issuer may differ from ours, for `exp` and `nbf`. Default: 30.
    pub leeway: u64,
    /// Claims that tokens must have, and not `null`. Default: `exp` and `sub`.
    pub required: Vec<String>,
    /// How many bytes a token may have. Default: 8192, as much as common servers take for one header.
    pub max_token: usize,
    /// Where to look for a token, in this order: the first one found decides. Default: [`Source::Bearer`].
    pub sources: Vec<Source>,
}

impl JwtOptions {
    /// The defaults with this key.
    pub fn new(algorithms: impl Into<Vec<Algorithm>>, key: Key) -> Self {
        Self {
            algorithms: algorithms.into(),
            key,
            previous_key: None,
            key_id: None,
            previous_key_id: None,
            issuer: None,
            audience: Vec::new(),
            leeway: 30,
            required: vec!["exp".to_owned(), "sub".to_owned()],
            max_token: 8192,
            sources: vec![Source::Bearer],
        }
    }

    /// Checks what can be checked without looking at keys.
    pub(super) fn check(&self) -> Result<(), Error> {
        let Some(first) = self.algorithms.first() else {
            return Err(Error::option("algorithms", "at least one is needed"));
        };
        let mixed = self.algorithms.iter().find(|algorithm| algorithm.family() != first.family());
        if let Some(mixed) = mixed {
            // One key that serves two families is how a public key becomes an HMAC secret (RFC 8725 section 2.1).
            // The keys of a file have each its own kind; with secrets among them the file is not a public one.
            let with_secret = self.algorithms.iter().any(|algorithm| algorithm.family() == Family::Hmac);
            if with_secret || !matches!(self.key, Key::Jwks(_)) {
                let problem = format!("{first} and {mixed} are not for the same key");
                return Err(Error::option("algorithms", problem));
            }
        }
        if matches!(self.previous_key, Some(Key::Jwks(_)))
            || (self.previous_key.is_some() && matches!(self.key, Key::Jwks(_)))
        {
            return Err(Error::option("previous_key", "not with a file of keys: the file holds the previous ones too"));
        }
        if self.previous_key_id.is_some() && self.previous_key.is_none() {
            return Err(Error::option("previous_key_id", "there is no previous_key"));
        }
        if self.max_token == 0 {
            return Err(Error::option("max_token", "no token is that short"));
        }
        self.sources.iter().try_for_each(Source::check)
    }
}

/// What signatures are verified with. `Debug` does not show it.
#[derive(Clone)]
pub enum Key {
    /// A secret for `HS...`; at least as long as the hash: 32, 48 or 64 bytes.
    Secret(Vec<u8>),
    /// A public key, PEM: `PUBLIC KEY`, or `RSA PUBLIC KEY`.
    Pem(Vec<u8>),
    /// The path of a JWK set, RFC 7517, which is read again when the file has changed: see
    /// [`Jwt::refresh`](super::Jwt::refresh).
    Jwks(PathBuf),
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret(_) => f.write_str("Secret(..)"),
            Self::Pem(_) => f.write_str("Pem(..)"),
            Self::Jwks(path) => f.debug_tuple("Jwks").field(path).finish(),
        }
    }
}

/// A place in the head where a token may be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The first cookie of this name. See [the module](super) about `Origin`.
    Cookie(String),
    /// `Authorization: Bearer TOKEN`.
    Bearer,
    /// The first parameter of this name in the query. It will be in the logs of proxies.
    Query(String),
    /// The first entry of `Sec-WebSocket-Protocol` that begins with this prefix; the token is the rest of it.
    /// The entry must not be chosen as subprotocol: see [`Jwt::carries_token`](super::Jwt::carries_token).
    Subprotocol(String),
}

impl Source {
    fn check(&self) -> Result<(), Error> {
        let problem = match self {
            Self::Cookie(name) if !is_token(name) => "the name of a cookie has letters, digits and !#$%&'*+-.^_`|~",
            Self::Query(name) if name.is_empty() => "the parameter has no name",
            Self::Subprotocol(prefix) if !is_token(prefix) => {
                "the prefix of a subprotocol has letters, digits and !#$%&'*+-.^_`|~"
            }
            _ => return Ok(()),
        };
        Err(Error::option("sources", problem))
    }
}

/// Whether this is a `token` of RFC 9110 section 5.6.2, as the names of cookies and subprotocols are.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}
