//! The TLS configuration of a listener, which is replaced while it serves: sessions that are open keep theirs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use wirespeed_driver::tls::Stamp;
use wirespeed_driver::tls::server::ServerConfig;

use crate::locks::{lock, read, write};

/// Between two looks at the files.
const LOOK: Duration = Duration::from_secs(1);

/// Makes a configuration of what the files say now; an error is in words that hold no secret.
pub type Load = dyn Fn() -> Result<Arc<ServerConfig>, String> + Send + Sync;

/// Where a configuration is from, so that it is made again when that changes.
#[derive(Clone)]
pub struct Renewal {
    /// The certificate, its key, and authorities of clients.
    pub files: Vec<PathBuf>,
    /// Reads them.
    pub load: Arc<Load>,
}

impl std::fmt::Debug for Renewal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewal").field("files", &self.files).finish_non_exhaustive()
    }
}

struct Watch {
    renewal: Renewal,
    /// What was loaded, or could not be.
    known: Stamp,
    /// What the last look has shown, if it was something new: files that are being written are left alone until two
    /// looks show the same.
    seen: Option<Stamp>,
}

impl Watch {
    /// Begins to watch the files that a configuration is from; and the configuration, as they say it by now. The look
    /// comes first: what changes after it is seen by the next one.
    fn begin(config: Arc<ServerConfig>, renewal: Option<Renewal>) -> (Arc<ServerConfig>, Option<Self>) {
        let Some(renewal) = renewal.filter(|renewal| !renewal.files.is_empty()) else { return (config, None) };
        let known = Stamp::of(&renewal.files);
        // What was read before is good, whatever the files say.
        let config = (renewal.load)().unwrap_or(config);
        (config, Some(Self { renewal, known, seen: None }))
    }

    /// Makes the configuration again, if the files have changed and rest.
    fn renew(&mut self) -> Option<Result<Arc<ServerConfig>, String>> {
        let there = Stamp::of(&self.renewal.files);
        if there == self.known {
            self.seen = None;
            return None;
        }
        if self.seen.as_ref() != Some(&there) {
            self.seen = Some(there);
            return None;
        }
        // Also where it fails: it is tried again once they have changed again.
        self.known = there;
        self.seen = None;
        Some((self.renewal.load)())
    }
}

/// See the module.
pub(crate) struct Certificate {
    current: RwLock<Arc<ServerConfig>>,
    start: Instant,
    /// When the files were looked at, in nanoseconds since `start`.
    looked: AtomicU64,
    /// Of the files that the current one is from; whoever replaces that holds it.
    watch: Mutex<Option<Watch>>,
}

impl Certificate {
    pub(crate) fn new(config: Arc<ServerConfig>, renewal: Option<Renewal>, start: Instant) -> Self {
        let (config, watch) = Watch::begin(config, renewal);
        Self { current: RwLock::new(config), start, looked: AtomicU64::new(0), watch: Mutex::new(watch) }
    }

    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&read(&self.current))
    }

    /// From now on another one, and its files are looked at.
    pub(crate) fn replace(&self, config: Arc<ServerConfig>, renewal: Option<Renewal>) {
        let (config, begun) = Watch::begin(config, renewal);
        let mut watch = lock(&self.watch);
        *write(&self.current) = config;
        *watch = begun;
    }

    /// Looks at the files, if that was a second ago at least; what has come of it, if they have changed. By one
    /// thread at a time, for which nobody waits but who replaces it.
    pub(crate) fn renew(&self, now: Instant) -> Option<Result<(), String>> {
        let now = u64::try_from(now.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX);
        let looked = self.looked.load(Ordering::Relaxed);
        if now.saturating_sub(looked) < LOOK.as_nanos() as u64
            || self.looked.compare_exchange(looked, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return None;
        }
        let mut watch = lock(&self.watch);
        Some(watch.as_mut()?.renew()?.map(|config| *write(&self.current) = config))
    }
}
