//! Authenticates clients from the head of their handshake, before a session exists, and determines their rights.
//!
//! Owns the verification of JSON Web Tokens ([`Jwt`]) and the topic rights that they carry ([`acl`]). Knows no
//! sockets, threads or clocks: the caller passes the head as a [`Head`] and the time as unix seconds. Workers call
//! [`Jwt::verify`] for each handshake; a session calls [`Jwt::verify_token`] to renew its token.
//!
//! Browsers send cookies from any page. With [`Source::Cookie`] the caller must therefore check `Origin` too.

pub mod acl;
mod algorithm;
pub(crate) mod authenticate;
mod claims;
mod error;
mod jwks;
mod jwt;
mod keys;
mod options;
mod pattern;
pub(crate) mod principal;
mod source;

#[cfg(feature = "fuzzing")]
pub(crate) use jwks::count as jwk_set;

pub use algorithm::Algorithm;
pub use error::Error;
pub use jwt::Jwt;
pub use options::{JwtOptions, Key, Source};

use std::fmt;

pub use crate::reasons::Denied;
use serde_json::{Map, Value};

/// The parts of a request that identify the client.
pub trait Head {
    /// Returns the values of all fields with this name, in their order on the wire. `name` is in lowercase, and the
    /// comparison must ignore case.
    fn headers(&self, name: &str) -> impl Iterator<Item = &[u8]>;

    /// Returns the request target as it was sent: `/path?query`.
    fn target(&self) -> &str;
}

/// The identity of an authenticated client.
///
/// `Debug` shows the names of the claims, not their values.
#[derive(Clone, PartialEq)]
pub struct Identity {
    /// The `sub` claim; empty if the token has none and [`JwtOptions::required`] does not ask for it.
    pub user: String,
    /// All claims of the token, including `sub` and `exp`.
    pub claims: Map<String, Value>,
    /// The unix second at which the token expires, `exp` plus the leeway; `None` if it never expires.
    pub expires: Option<u64>,
    /// The source of the token; `None` if it was passed to [`Jwt::verify_token`].
    pub source: Option<Source>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("user", &self.user)
            .field("claims", &self.claims.keys().collect::<Vec<_>>())
            .field("expires", &self.expires)
            .field("source", &self.source)
            .finish()
    }
}
