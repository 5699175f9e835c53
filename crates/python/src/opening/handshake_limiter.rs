//! The limit of pending handshakes, for servers written in Python: which handshake to close first.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use wirespeed_driver::opening::handshake_limiter::{BURST, Due, GRACE, HandshakeLimiter, IDLE_TIME};

use crate::options::duration;

/// The origin that a client is counted under, chosen by the caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, FromPyObject)]
enum Origin {
    Name(String),
    Prefix([u8; 8]),
}

/// Limits the pending handshakes of a server, see the driver's [`HandshakeLimiter`]. Times are seconds of the
/// caller's clock, starting at 0.
#[pyclass(frozen, name = "HandshakeLimiter", module = "wirespeed._native")]
pub(crate) struct PyHandshakeLimiter {
    pending: Mutex<HandshakeLimiter<u64, Origin>>,
    start: Instant,
    patience: Duration,
    grace: Duration,
}

impl PyHandshakeLimiter {
    fn lock(&self) -> MutexGuard<'_, HandshakeLimiter<u64, Origin>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, now: f64) -> Instant {
        let since = Duration::try_from_secs_f64(now).unwrap_or_default();
        self.start.checked_add(since).unwrap_or(self.start)
    }

    /// Returns how long the next victim still has. `unread` is called without the lock, as it may call back.
    fn left(&self, patience: Duration, now: f64, unread: &Bound<'_, PyAny>) -> PyResult<Duration> {
        let now = self.at(now);
        loop {
            let due = self.lock().due(patience, now);
            match due {
                Due::In(left) => return Ok(left),
                Due::Now(key) if unread.call1((key,))?.is_truthy()? => {
                    self.lock().progress(key, now);
                }
                Due::Now(_) => return Ok(Duration::ZERO),
            }
        }
    }
}

#[pymethods]
impl PyHandshakeLimiter {
    #[classattr]
    const BURST: usize = BURST;

    #[classattr]
    #[pyo3(name = "PATIENCE")]
    fn patience() -> f64 {
        IDLE_TIME.as_secs_f64()
    }

    #[classattr]
    #[pyo3(name = "GRACE")]
    fn grace() -> f64 {
        GRACE.as_secs_f64()
    }

    #[new]
    fn new(limit: usize, patience: f64, grace: f64) -> PyResult<Self> {
        let of = |name, seconds| duration(name, Some(seconds)).map(Option::unwrap_or_default);
        let (patience, grace) = (of("patience", patience)?, of("grace", grace)?);
        let pending = Mutex::new(HandshakeLimiter::with_idle_time(limit, patience, grace));
        Ok(Self { pending, start: Instant::now(), patience, grace })
    }

    fn __len__(&self) -> usize {
        self.lock().len()
    }

    #[getter]
    fn is_over_limit(&self) -> bool {
        self.lock().is_over_limit()
    }

    #[getter]
    fn is_full(&self) -> bool {
        self.lock().is_full()
    }

    #[getter]
    fn room(&self) -> usize {
        self.lock().room()
    }

    fn add(&self, key: u64, origin: Origin, now: f64) {
        let now = self.at(now);
        self.lock().add(key, origin, now);
    }

    fn progress(&self, key: u64, now: f64) -> bool {
        let now = self.at(now);
        self.lock().progress(key, now)
    }

    fn remove(&self, key: u64) -> bool {
        self.lock().remove(key)
    }

    fn first(&self) -> Option<u64> {
        self.lock().first().map(|(key, _)| key)
    }

    /// Returns how many handshakes have the same origin.
    fn companions(&self, key: u64) -> usize {
        self.lock().count_same_origin(key)
    }

    fn next_victim(&self, now: f64, unread: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        let left = self.left(self.patience, now, unread)?;
        Ok(left.is_zero().then(|| self.first()).flatten())
    }

    fn next_victim_in(&self, now: f64) -> Option<f64> {
        self.lock().next_victim_in(self.at(now)).map(|left| left.as_secs_f64())
    }

    fn delay(&self, now: f64, unread: &Bound<'_, PyAny>) -> PyResult<f64> {
        Ok(self.left(self.grace, now, unread)?.as_secs_f64())
    }
}
