//! The TLS configuration of a listener. It can be replaced at run time; open sessions keep the old one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use wirespeed_driver::tls::Stamp;
use wirespeed_driver::tls::server::ServerConfig;

use crate::config::Renewal;
use crate::util::locks::{lock, read, write};

/// The time between two checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

struct Watch {
    renewal: Renewal,
    /// The state of the files at the last attempt to load them.
    loaded: Stamp,
    /// The new state that the last check found. Files may still be written to, so they are loaded only when two
    /// checks in a row find the same state.
    seen: Option<Stamp>,
}

impl Watch {
    /// Starts to watch the files of a configuration, and returns it as the files define it now. The check comes
    /// before the load: so the next check detects any later change.
    fn start(config: Arc<ServerConfig>, renewal: Option<Renewal>) -> (Arc<ServerConfig>, Option<Self>) {
        let Some(renewal) = renewal.filter(|renewal| !renewal.files.is_empty()) else { return (config, None) };
        let loaded = Stamp::of(&renewal.files);
        // If the files cannot be loaded, the configuration of the caller stays in use.
        let config = (renewal.load)().unwrap_or(config);
        (config, Some(Self { renewal, loaded, seen: None }))
    }

    /// Rebuilds the configuration if the files have changed and are no longer being written to.
    fn renew(&mut self) -> Option<Result<Arc<ServerConfig>, String>> {
        let current = Stamp::of(&self.renewal.files);
        if current == self.loaded {
            self.seen = None;
            return None;
        }
        if self.seen.as_ref() != Some(&current) {
            self.seen = Some(current);
            return None;
        }
        // Set even if loading fails: the next attempt waits for another change.
        self.loaded = current;
        self.seen = None;
        Some((self.renewal.load)())
    }
}

/// The current configuration, and the watch over its files.
pub(crate) struct Certificate {
    current: RwLock<Arc<ServerConfig>>,
    start: Instant,
    /// When the files were last checked, in nanoseconds since `start`.
    checked_at: AtomicU64,
    /// The watch over the files of `current`. Its lock is held while `current` is replaced.
    watch: Mutex<Option<Watch>>,
}

impl Certificate {
    pub(crate) fn new(config: Arc<ServerConfig>, renewal: Option<Renewal>, start: Instant) -> Self {
        let (config, watch) = Watch::start(config, renewal);
        Self { current: RwLock::new(config), start, checked_at: AtomicU64::new(0), watch: Mutex::new(watch) }
    }

    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&read(&self.current))
    }

    /// Replaces the configuration and watches the files of the new one.
    pub(crate) fn replace(&self, config: Arc<ServerConfig>, renewal: Option<Renewal>) {
        let (config, started) = Watch::start(config, renewal);
        let mut watch = lock(&self.watch);
        *write(&self.current) = config;
        *watch = started;
    }

    /// Checks the files, unless they were checked less than a second ago, and returns the result of the reload if they
    /// have changed. Only one thread at a time does so; other callers return at once, but `replace` waits for it.
    pub(crate) fn renew(&self, now: Instant) -> Option<Result<(), String>> {
        let now = u64::try_from(now.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX);
        let checked_at = self.checked_at.load(Ordering::Relaxed);
        if now.saturating_sub(checked_at) < CHECK_INTERVAL.as_nanos() as u64
            || self.checked_at.compare_exchange(checked_at, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return None;
        }
        let mut watch = lock(&self.watch);
        Some(watch.as_mut()?.renew()?.map(|config| *write(&self.current) = config))
    }
}
