//! The supported signature algorithms and their requirements for keys.

use std::fmt;
use std::str::FromStr;

use super::Error;

/// A signature algorithm of RFC 7518 or RFC 8037.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)] // the registered names are sufficient
pub enum Algorithm {
    HS256,
    HS384,
    HS512,
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    ES512,
    /// With keys on the curve Ed25519. The name `Ed25519` of RFC 9864 is accepted as well.
    EdDSA,
}

/// The kinds of keys. A key is used only with algorithms of its own family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Hmac,
    Rsa,
    Ec,
    Ed,
}

impl Algorithm {
    const ALL: [Self; 13] = [
        Self::HS256,
        Self::HS384,
        Self::HS512,
        Self::RS256,
        Self::RS384,
        Self::RS512,
        Self::PS256,
        Self::PS384,
        Self::PS512,
        Self::ES256,
        Self::ES384,
        Self::ES512,
        Self::EdDSA,
    ];

    /// Returns the registered name, as in the `alg` header of a token.
    pub fn name(self) -> &'static str {
        match self {
            Self::HS256 => "HS256",
            Self::HS384 => "HS384",
            Self::HS512 => "HS512",
            Self::RS256 => "RS256",
            Self::RS384 => "RS384",
            Self::RS512 => "RS512",
            Self::PS256 => "PS256",
            Self::PS384 => "PS384",
            Self::PS512 => "PS512",
            Self::ES256 => "ES256",
            Self::ES384 => "ES384",
            Self::ES512 => "ES512",
            Self::EdDSA => "EdDSA",
        }
    }

    /// Returns the algorithm with this name. Case matters (RFC 7515 section 4.1.1).
    pub(super) fn named(name: &str) -> Option<Self> {
        // RFC 9864 section 2.2 deprecates `EdDSA`, because it does not name the curve.
        if name == "Ed25519" {
            return Some(Self::EdDSA);
        }
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    pub(super) fn family(self) -> Family {
        match self {
            Self::HS256 | Self::HS384 | Self::HS512 => Family::Hmac,
            Self::RS256 | Self::RS384 | Self::RS512 | Self::PS256 | Self::PS384 | Self::PS512 => Family::Rsa,
            Self::ES256 | Self::ES384 | Self::ES512 => Family::Ec,
            Self::EdDSA => Family::Ed,
        }
    }

    /// The minimum length of a secret in bytes: that of the hash (RFC 7518 section 3.2); 0 for public-key algorithms.
    pub(super) fn secret_len(self) -> usize {
        match self {
            Self::HS256 => 32,
            Self::HS384 => 48,
            Self::HS512 => 64,
            _ => 0,
        }
    }

    /// The length of an uncompressed point of a public key in bytes; 0 for algorithms without a NIST curve.
    pub(super) fn point_len(self) -> usize {
        match self {
            Self::ES256 => 1 + 2 * 32,
            Self::ES384 => 1 + 2 * 48,
            Self::ES512 => 1 + 2 * 66,
            _ => 0,
        }
    }

    /// The algorithm in the library; `None` if the library does not support it.
    pub(super) fn library(self) -> Option<jsonwebtoken::Algorithm> {
        Some(match self {
            Self::HS256 => jsonwebtoken::Algorithm::HS256,
            Self::HS384 => jsonwebtoken::Algorithm::HS384,
            Self::HS512 => jsonwebtoken::Algorithm::HS512,
            Self::RS256 => jsonwebtoken::Algorithm::RS256,
            Self::RS384 => jsonwebtoken::Algorithm::RS384,
            Self::RS512 => jsonwebtoken::Algorithm::RS512,
            Self::PS256 => jsonwebtoken::Algorithm::PS256,
            Self::PS384 => jsonwebtoken::Algorithm::PS384,
            Self::PS512 => jsonwebtoken::Algorithm::PS512,
            Self::ES256 => jsonwebtoken::Algorithm::ES256,
            Self::ES384 => jsonwebtoken::Algorithm::ES384,
            Self::ES512 => return None,
            Self::EdDSA => jsonwebtoken::Algorithm::EdDSA,
        })
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::named(name).ok_or_else(|| {
            let problem = if name.eq_ignore_ascii_case("none") {
                "`none` would accept unsigned tokens".to_owned()
            } else {
                format!("{name:?} is not supported: {}", Self::ALL.map(Self::name).join(", "))
            };
            Error::option("algorithms", problem)
        })
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
