//! Waiting for send capacity in threads.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use wirespeed_engine::Refusal;
use wirespeed_engine::control::Refused;

use super::arguments::deadline;

/// The longest delay of a signal handler while a thread waits.
pub(super) const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Waits in the calling thread, in slices between which signal handlers run. Returns false after the timeout.
pub(super) fn wait(
    py: Python<'_>,
    timeout: Option<f64>,
    refused: fn(Python<'_>, Refusal) -> PyErr,
    wait: impl Fn(Instant) -> Result<(), Refused> + Sync,
) -> PyResult<bool> {
    let deadline = deadline(timeout)?;
    loop {
        let now = Instant::now();
        let slice = deadline.map_or(now + SIGNAL_INTERVAL, |deadline| deadline.min(now + SIGNAL_INTERVAL));
        match py.detach(|| wait(slice)) {
            Ok(()) => return Ok(true),
            Err(Refused::Closed) => return Err(refused(py, Refused::Closed.into())),
            Err(Refused::Full) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => return Ok(false),
            Err(Refused::Full) => py.check_signals()?,
        }
    }
}
