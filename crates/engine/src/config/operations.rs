//! Options for the operation of an engine: its HTTP endpoints, and its graceful shutdown.

use std::sync::Arc;
use std::time::Duration;

use wirespeed_driver::protocol::CloseCode;

use super::listen::Place;

/// The settings of the HTTP endpoints.
#[derive(Clone)]
pub struct Http {
    /// The path of the health check: 200 while all workers work, otherwise 503. `None`: disabled.
    pub health: Option<String>,
    /// The path of the readiness check: 200; 503 while clients are not accepted or soon will not be. `None`: disabled.
    pub ready: Option<String>,
    /// The path of the metrics where clients connect. Default: none, because metrics reveal internals.
    pub metrics: Option<String>,
    /// The `Authorization: Bearer` token for the metrics, at both addresses.
    pub metrics_token: Option<Arc<str>>,
    /// A separate address for `/metrics` and the two checks, which serves nothing else.
    pub at: Option<Place>,
    /// The token of the page at `/_wirespeed/`. `None`: disabled.
    pub page: Option<Arc<str>>,
    /// Whether the readiness check passes without a connection to the broker: clients then get local messages only.
    pub ready_without_broker: bool,
    /// The time after which a busy worker counts as stuck, and a waiting event makes the readiness check fail.
    pub stuck_after: Duration,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            health: Some("/health".to_owned()),
            ready: Some("/ready".to_owned()),
            metrics: None,
            metrics_token: None,
            at: None,
            page: None,
            ready_without_broker: false,
            stuck_after: Duration::from_secs(5),
        }
    }
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http")
            .field("health", &self.health)
            .field("ready", &self.ready)
            .field("metrics", &self.metrics)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

/// The settings of a graceful shutdown.
#[derive(Clone, Debug)]
pub struct Drain {
    /// The maximum duration. Sessions that are still open then are disconnected.
    pub timeout: Duration,
    /// The number of sessions that are closed at once. Larger if the timeout requires it.
    pub batch: usize,
    /// The time before the first step. `/ready` already fails, and clients are still accepted.
    pub notice: Duration,
    /// The code of the close frames.
    pub code: CloseCode,
    /// The reason of the close frames.
    pub reason: String,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            batch: 100,
            notice: Duration::ZERO,
            // RFC 6455 11.7, 1012: "service restart".
            code: CloseCode(1012),
            reason: "service restart".to_owned(),
        }
    }
}
