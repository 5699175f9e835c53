//! Why a client got no session.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// Why a client got no session.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[$doc])* $name,)+
        }

        impl Reason {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Its name, in metrics and logs.
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
    /// It took longer than it may.
    Timeout = "timeout",
    /// The TLS handshake failed.
    Tls = "tls",
    /// What it sent is no HTTP, or breaks the rules of the opening handshake.
    Malformed = "malformed",
    /// It asked for no WebSocket.
    NotWebSocket = "not_websocket",
    /// It has no good token.
    Unauthorized = "unauthorized",
    /// It may not.
    Forbidden = "forbidden",
    /// A page of another origin.
    Origin = "origin",
    /// Nothing is served at its path.
    NotFound = "not_found",
    /// There are as many clients as there may be.
    Full = "full",
    /// There are as many of its address as there may be.
    Address = "address",
    /// There are as many of its user as there may be.
    User = "user",
    /// Its address came too often.
    RateLimited = "rate_limited",
    /// It did not go on, and there were others.
    Crowded = "crowded",
    /// What came first was no PROXY header, where there is to be one.
    Proxy = "proxy",
    /// It left before it was answered.
    Reset = "reset",
    /// The engine ends.
    Stopping = "stopping",
    /// A defect of ours.
    Panic = "panic",
    /// Anything else, refused by the application.
    Refused = "refused",
}

impl Reason {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// Its place among [`Self::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// What an answer's status tells of the reason.
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
