//! What goes wrong, by fault: [`Error`] is the operator's, [`Denied`] the client's.
//!
//! No text of either holds a token, a part of one or a secret.

use std::fmt;
use std::path::{Path, PathBuf};

/// A configuration that cannot work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An option has a value that it must not have.
    Option {
        /// The option's name.
        name: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The file of keys cannot be used.
    KeyFile {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    pub(super) fn option(name: &'static str, problem: impl Into<String>) -> Self {
        Self::Option { name, problem: problem.into() }
    }

    pub(super) fn key_file(path: &Path, problem: impl Into<String>) -> Self {
        Self::KeyFile { path: path.to_owned(), problem: problem.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option { name, problem } => write!(f, "{name}: {problem}"),
            Self::KeyFile { path, problem } => write!(f, "key file {}: {problem}", path.display()),
        }
    }
}

impl std::error::Error for Error {}

/// Why a client is not let in.
///
/// `Display` is for the log of the server; what the client is told is [`Denied::client_text`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Denied {
    /// There is no token in any of the places where one is looked for.
    Missing,
    /// The token is longer than [`JwtOptions::max_token`](super::JwtOptions::max_token).
    TooLong,
    /// It is not a signed token in the compact form, or there are several where one is allowed.
    Malformed,
    /// It says that an extension must be understood (`crit`); none is.
    Extension,
    /// Its algorithm is not allowed, or the key is of another kind.
    Algorithm,
    /// It names no key, or none that is known.
    KeyId,
    /// No key has made its signature.
    Signature,
    /// It is no longer valid.
    Expired,
    /// It is not valid yet.
    NotYet,
    /// It is from somebody else.
    Issuer,
    /// It is for somebody else.
    Audience,
    /// A claim that is required is not there.
    MissingClaim(String),
    /// A claim has a type or form that it must not have.
    BadClaim(String),
}

impl Denied {
    /// Names of the kinds in metrics, in the order of [`Self::index`].
    pub const NAMES: [&'static str; 13] = [
        "missing",
        "too_long",
        "malformed",
        "extension",
        "algorithm",
        "key_id",
        "signature",
        "expired",
        "not_yet",
        "issuer",
        "audience",
        "missing_claim",
        "bad_claim",
    ];

    /// The place of its kind among [`Self::NAMES`].
    #[must_use]
    pub const fn index(&self) -> usize {
        match self {
            Self::Missing => 0,
            Self::TooLong => 1,
            Self::Malformed => 2,
            Self::Extension => 3,
            Self::Algorithm => 4,
            Self::KeyId => 5,
            Self::Signature => 6,
            Self::Expired => 7,
            Self::NotYet => 8,
            Self::Issuer => 9,
            Self::Audience => 10,
            Self::MissingClaim(_) => 11,
            Self::BadClaim(_) => 12,
        }
    }

    /// The HTTP status of the refusal: 403 when the token is authentic and valid but not good here, so that no
    /// fresh one of the same kind would help, else 401.
    pub fn status(&self) -> u16 {
        match self {
            Self::Missing
            | Self::TooLong
            | Self::Malformed
            | Self::Extension
            | Self::Algorithm
            | Self::KeyId
            | Self::Signature
            | Self::Expired
            | Self::NotYet => 401,
            Self::Issuer | Self::Audience | Self::MissingClaim(_) | Self::BadClaim(_) => 403,
        }
    }

    /// The value of `WWW-Authenticate`, which goes with a 401 (RFC 9110 section 15.5.2, RFC 6750 section 3);
    /// `None`: the status is not 401.
    pub fn challenge(&self) -> Option<&'static str> {
        match self {
            // RFC 6750 section 3.1: no error code for a request without any authentication.
            Self::Missing => Some("Bearer"),
            _ if self.status() == 401 => Some("Bearer error=\"invalid_token\""),
            _ => None,
        }
    }

    /// What the client is told: enough to fetch a token or a fresh one, nothing about the keys.
    pub fn client_text(&self) -> &'static str {
        match self {
            Self::Missing => "a token is required",
            Self::TooLong => "the token is too long",
            Self::Expired => "the token has expired",
            Self::NotYet => "the token is not valid yet",
            Self::Issuer | Self::Audience | Self::MissingClaim(_) | Self::BadClaim(_) => {
                "the token does not give access here"
            }
            Self::Malformed | Self::Extension | Self::Algorithm | Self::KeyId | Self::Signature => {
                "the token is invalid"
            }
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("no token"),
            Self::TooLong => f.write_str("the token is longer than max_token"),
            Self::Malformed => f.write_str("not a signed token"),
            Self::Extension => f.write_str("the token has a crit header"),
            Self::Algorithm => f.write_str("the token's algorithm is not allowed or not the key's"),
            Self::KeyId => f.write_str("the token's kid is missing or not known"),
            Self::Signature => f.write_str("the token's signature is wrong"),
            Self::Expired => f.write_str("the token has expired"),
            Self::NotYet => f.write_str("the token is not valid yet"),
            Self::Issuer => f.write_str("the token is from another issuer"),
            Self::Audience => f.write_str("the token is for another audience"),
            Self::MissingClaim(name) => write!(f, "the token lacks the claim {name:?}"),
            Self::BadClaim(name) => write!(f, "the token's claim {name:?} has a wrong form"),
        }
    }
}

impl std::error::Error for Denied {}
