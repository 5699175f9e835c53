//! What users say in numbers.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A hundred years: clocks can be asked for what comes after so long.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A number of seconds; what no clock counts is as long as one goes.
pub(super) fn seconds(name: &str, value: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = value else { return Ok(None) };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(PyValueError::new_err(format!("{name} must be a number of seconds from 0 up")));
    }
    Ok(Some(Duration::try_from_secs_f64(seconds).map_or(LONGEST, |duration| duration.min(LONGEST))))
}

/// The moment so many seconds from now; none for ever.
pub(super) fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    Ok(seconds("timeout", timeout)?.and_then(|timeout| Instant::now().checked_add(timeout)))
}

/// A number of something, from `least` up.
pub(super) fn count(name: &str, value: i128, least: u64) -> PyResult<u64> {
    match u64::try_from(value) {
        Ok(count) if count >= least && count >> 62 == 0 => Ok(count),
        _ => Err(PyValueError::new_err(format!("{name} must be at least {least} and less than 2**62"))),
    }
}
