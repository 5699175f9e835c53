//! The options for the verification of tokens, and the checks of them that need no key.

use std::fmt;
use std::path::PathBuf;

use super::algorithm::{Algorithm, Family};
use super::error::Error;

/// How tokens are verified. [`JwtOptions::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct JwtOptions {
    /// The algorithms to accept. All must belong to the key's family. With a file of keys, `HS...` must not be combined
    /// with others.
    pub algorithms: Vec<Algorithm>,
    /// The key that verifies signatures.
    pub key: Key,
    /// A further key to accept, while tokens that it has signed are still in use. Not allowed with a file of keys,
    /// which can hold several. Default: none.
    pub previous_key: Option<Key>,
    /// The `kid` that tokens must have. With a file of keys, only the key with this `kid` is used. Default: any or
    /// none.
    pub key_id: Option<String>,
    /// The `kid` that tokens of the previous key must have. Default: `key_id`.
    pub previous_key_id: Option<String>,
    /// The `iss` that tokens must have. Default: any or none.
    pub issuer: Option<String>,
    /// The names of this server: `aud` of a token must contain one of them. Default: empty. Then tokens must have no
    /// `aud`, because one with `aud` is intended for another recipient (RFC 7519 section 4.1.3).
    pub audience: Vec<String>,
    /// The clock skew in seconds that is tolerated for `exp` and `nbf`. Default: 30.
    pub leeway: u64,
    /// Claims that tokens must have, with a value other than `null`. Default: `exp` and `sub`.
    pub required: Vec<String>,
    /// The maximum length of a token in bytes. Default: 8192, the limit of common servers for one header.
    pub max_token: usize,
    /// The sources of tokens, in order of preference: the first token found is used. Default: [`Source::Bearer`].
    pub sources: Vec<Source>,
}

impl JwtOptions {
    /// Returns the default options with this key.
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

    /// Checks the options as far as no key has to be read.
    pub(super) fn check(&self) -> Result<(), Error> {
        let Some(first) = self.algorithms.first() else {
            return Err(Error::option("algorithms", "at least one is needed"));
        };
        let mixed = self.algorithms.iter().find(|algorithm| algorithm.family() != first.family());
        if let Some(mixed) = mixed {
            // A key used for two families lets a public key become an HMAC secret (RFC 8725 section 2.1). Each key of a
            // file has its own type, but a file with secrets among its keys is not public.
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

/// A key that verifies signatures. `Debug` does not show it.
#[derive(Clone)]
pub enum Key {
    /// A secret for `HS...`, at least as long as the hash: 32, 48 or 64 bytes.
    Secret(Vec<u8>),
    /// A public key in PEM form: `PUBLIC KEY` or `RSA PUBLIC KEY`.
    Pem(Vec<u8>),
    /// The path of a JWK set (RFC 7517). It is read again when the file changes: see
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

/// A place in a request that may contain a token.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The first cookie with this name. Requires a check of `Origin`: see [the module](super).
    Cookie(String),
    /// `Authorization: Bearer TOKEN`.
    Bearer,
    /// The first query parameter with this name. It appears in the logs of proxies.
    Query(String),
    /// The first entry of `Sec-WebSocket-Protocol` with this prefix; the token is the rest of it. The entry must not be
    /// chosen as the subprotocol: see [`Jwt::carries_token`](super::Jwt::carries_token).
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

/// Whether the text is a `token` of RFC 9110 section 5.6.2, the form of cookie and subprotocol names.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}
