//! The blocking client's native objects.

pub(crate) mod connection;
mod host;
pub(crate) mod opening;
pub(crate) mod ping;

use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The moment `seconds` from now; none for ever.
fn deadline(seconds: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = seconds else { return Ok(None) };
    if seconds.is_nan() {
        return Err(PyValueError::new_err("timeout must not be NaN"));
    }
    // What is too far for the clock is for ever.
    Ok(Duration::try_from_secs_f64(seconds.max(0.0)).ok().and_then(|timeout| Instant::now().checked_add(timeout)))
}

/// A duration that an option gives in seconds; none switches it off.
fn duration(name: &str, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    match seconds {
        None => Ok(None),
        Some(seconds) if seconds.is_nan() || seconds < 0.0 => {
            Err(PyValueError::new_err(format!("{name} must not be negative: use None to switch it off")))
        }
        Some(seconds) => Ok(Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))),
    }
}
