//! The reasons why a client gets no session: of any kind ([`Reason`]), and of its token ([`Denied`]).

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// Why a client gets no session.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[$doc])* $name,)+
        }

        impl Reason {
            /// All reasons, in the order of [`Self::index`].
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Returns the name for metrics and logs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

reasons! {
    /// The handshake took too long.
    Timeout = "timeout",
    /// The TLS handshake failed.
    Tls = "tls",
    /// The request is not HTTP, or breaks the rules of the opening handshake.
    Malformed = "malformed",
    /// The request does not ask for a WebSocket.
    NotWebSocket = "not_websocket",
    /// The token is missing or invalid.
    Unauthorized = "unauthorized",
    /// The client lacks permission.
    Forbidden = "forbidden",
    /// The page's origin is not allowed.
    Origin = "origin",
    /// The path has no route.
    NotFound = "not_found",
    /// The engine has the maximum number of sessions.
    Full = "full",
    /// The address has the maximum number of sessions.
    Address = "address",
    /// The user has the maximum number of sessions.
    User = "user",
    /// The address connects too often.
    RateLimited = "rate_limited",
    /// The handshake was idle and made room for others, because too many were pending.
    Crowded = "crowded",
    /// The connection does not begin with the required PROXY header.
    Proxy = "proxy",
    /// The client closed the connection before the handshake was complete.
    Reset = "reset",
    /// The engine shuts down.
    Stopping = "stopping",
    /// A bug in the engine.
    Panic = "panic",
    /// The application refused the client for another reason.
    Refused = "refused",
}

impl Reason {
    /// The number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// Returns the index in [`Self::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the reason for an HTTP status.
    #[must_use]
    pub const fn of_status(status: u16) -> Self {
        match status {
            401 => Self::Unauthorized,
            403 => Self::Forbidden,
            404 => Self::NotFound,
            426 => Self::NotWebSocket,
            408 => Self::Timeout,
            429 => Self::RateLimited,
            503 => Self::Full,
            400 | 405 | 414 | 431 | 505 => Self::Malformed,
            _ => Self::Refused,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a token is denied.
///
/// `Display` is for the server's log; the client gets [`Denied::client_text`]. No text contains a token, a part of one
/// or a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Denied {
    /// None of the configured sources contains a token.
    Missing,
    /// The token is longer than [`JwtOptions::max_token`](crate::auth::JwtOptions::max_token).
    TooLong,
    /// It is not a signed token in compact form, or there are several tokens where one is allowed.
    Malformed,
    /// The token requires an extension (`crit`); none is supported.
    Extension,
    /// The algorithm is not allowed or does not fit the key.
    Algorithm,
    /// The `kid` is missing or unknown.
    KeyId,
    /// No key matches the signature.
    Signature,
    /// The token has expired.
    Expired,
    /// The token is not valid yet (`nbf`).
    NotYet,
    /// The token is from another issuer.
    Issuer,
    /// The token is for another audience.
    Audience,
    /// A required claim is missing.
    MissingClaim(String),
    /// A claim has an invalid type or form.
    BadClaim(String),
}

impl Denied {
    /// The names for metrics, in the order of [`Self::index`].
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

    /// Returns the index in [`Self::NAMES`].
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

    /// Returns the HTTP status: 403 if the token is authentic and valid but gives no access here, so that a fresh token
    /// of the same kind would not help; otherwise 401.
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

    /// Returns the value of `WWW-Authenticate`, which a 401 must have (RFC 9110 section 15.5.2, RFC 6750 section 3);
    /// `None` if the status is not 401.
    pub fn challenge(&self) -> Option<&'static str> {
        match self {
            // RFC 6750 section 3.1: no error code for a request without any authentication.
            Self::Missing => Some("Bearer"),
            _ if self.status() == 401 => Some("Bearer error=\"invalid_token\""),
            _ => None,
        }
    }

    /// Returns the text for the client. It says when a new token is needed, and nothing about the keys.
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
