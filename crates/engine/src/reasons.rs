//! The reasons why a client gets no session.

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
