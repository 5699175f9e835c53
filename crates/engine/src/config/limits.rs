//! Limits on the clients of an engine and on their messages, and what happens beyond them.

use std::time::Duration;

/// A rate and a burst, as of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    per_second: f64,
    burst: f64,
}

impl Rate {
    /// `burst` defaults to one second's worth and is at least 1. Returns `None` if a number is not positive and finite.
    #[must_use]
    pub fn new(per_second: f64, burst: Option<f64>) -> Option<Self> {
        let is_valid = |number: f64| number.is_finite() && number > 0.0;
        let burst = burst.unwrap_or(per_second);
        (is_valid(per_second) && is_valid(burst)).then(|| Self { per_second, burst: burst.max(1.0) })
    }

    /// The long-term rate in events per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.per_second
    }

    /// The number of events that may happen at once.
    #[must_use]
    pub fn burst(&self) -> f64 {
        self.burst
    }
}

/// Limits on the number of clients. The engine answers clients beyond them with 503 or 429 and `Retry-After`.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// The maximum number of sessions. Further clients get 503.
    pub max_connections: usize,
    /// The maximum number of handshakes that are pending for longer than a second: see
    /// [`HandshakeLimiter`](wirespeed_driver::accept::HandshakeLimiter). The workers share it
    /// equally.
    pub max_pending: usize,
    /// The maximum number of sessions per address (IPv6: per /64). Further clients get 429.
    pub max_connections_per_address: usize,
    /// The maximum rate of new connections per address. Further clients get 429.
    pub rate_per_address: Option<Rate>,
    /// The maximum number of sessions per user, the `sub` of the token. Tokens without `sub` are not counted. Beyond:
    /// 429.
    pub max_sessions_per_user: usize,
    /// The `Retry-After` of rejections that have no time of their own.
    pub retry_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: usize::MAX,
            max_pending: 1024,
            max_connections_per_address: usize::MAX,
            rate_per_address: None,
            max_sessions_per_user: usize::MAX,
            retry_after: Duration::from_secs(5),
        }
    }
}

/// What happens to messages above the rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RatePolicy {
    /// They are read later, until the client cannot send on. Nothing is lost. Pings of the client wait behind them.
    #[default]
    Delay,
    /// They are dropped.
    Drop,
    /// The session is closed, with code 1008 (RFC 6455 7.4.1).
    Disconnect,
}

/// The rates of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Inbound {
    /// Messages per second; `None`: unlimited.
    pub messages: Option<Rate>,
    /// Bytes of payload per second, after decompression; `None`: unlimited.
    pub bytes: Option<Rate>,
    /// What happens above the rates.
    pub policy: RatePolicy,
}

/// What happens to a session whose client reads too slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The session is closed, with code 1013 if the close frame still reaches the client.
    #[default]
    Disconnect,
    /// The oldest queued messages are dropped for the new one.
    DropOldest,
    /// The new message is dropped.
    DropNewest,
    /// A message replaces the queued one with the same key. Messages without a key, and those that do not fit
    /// nevertheless, are handled by [`Policy::DropOldest`].
    Conflate,
}
