//! Who a client is and what it may do, decided from the head of its WebSocket handshake, before a session exists.
//!
//! Owns the verification of JSON Web Tokens ([`Jwt`]) and the topic rights that they carry ([`acl`]). Knows no
//! socket, no thread and no clock: the head comes through [`Head`], the time as unix seconds in `now`. The listener
//! calls [`Jwt::verify`] for a handshake, a session [`Jwt::verify_token`] to prolong itself, and the engine's timer
//! [`Jwt::refresh`].
//!
//! A token in a cookie is sent by browsers whatever page opens the connection: where [`Source::Cookie`] is
//! configured, the caller must check `Origin` too.

pub mod acl;
mod algorithm;
mod claims;
mod error;
mod jwks;
mod jwt;
mod keys;
mod options;
mod pattern;
mod source;

#[cfg(feature = "fuzzing")]
pub(crate) use jwks::count as jwk_set;

pub use algorithm::Algorithm;
pub use error::{Denied, Error};
pub use jwt::Jwt;
pub use options::{JwtOptions, Key, Source};

use std::fmt;

use serde_json::{Map, Value};

/// The parts of a handshake's head that tell who the client is.
pub trait Head {
    /// The values of every field of this name, in their order on the wire. `name` is in lowercase; the fields'
    /// names are to be compared without regard to case.
    fn headers(&self, name: &str) -> impl Iterator<Item = &[u8]>;

    /// The request target, as it was sent: `/path?query`.
    fn target(&self) -> &str;
}

/// A client that has proved who it is.
///
/// `Debug` shows the names of the claims and not their values.
#[derive(Clone, PartialEq)]
pub struct Identity {
    /// The `sub` claim; empty if the token has none and [`JwtOptions::required`] does not ask for it.
    pub user: String,
    /// Every claim of the token, `sub` and `exp` too.
    pub claims: Map<String, Value>,
    /// The unix second from which on the token is no longer accepted: `exp` and the leeway; `None`: it does not
    /// expire.
    pub expires: Option<u64>,
    /// Where the token was; `None`: it came by [`Jwt::verify_token`].
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
