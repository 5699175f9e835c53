//! Conversion of numeric arguments.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A hundred years, which every clock can add to the current time.
const MAX_DURATION: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Converts a number of seconds; larger values are clamped to [`MAX_DURATION`].
pub(super) fn seconds(name: &str, value: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = value else { return Ok(None) };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(PyValueError::new_err(format!("{name} must be a number of seconds from 0 up")));
    }
    Ok(Some(Duration::try_from_secs_f64(seconds).map_or(MAX_DURATION, |duration| duration.min(MAX_DURATION))))
}

/// Returns the moment `timeout` seconds from now; `None` means no deadline.
pub(super) fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    Ok(seconds("timeout", timeout)?.and_then(|timeout| Instant::now().checked_add(timeout)))
}

/// Converts a count that must be at least `minimum`.
pub(super) fn count(name: &str, value: i128, minimum: u64) -> PyResult<u64> {
    match u64::try_from(value) {
        Ok(count) if count >= minimum && count >> 62 == 0 => Ok(count),
        _ => Err(PyValueError::new_err(format!("{name} must be at least {minimum} and less than 2**62"))),
    }
}
