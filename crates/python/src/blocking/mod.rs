//! The blocking API: connections and pings for threads, over `driver::blocking`.

pub(crate) mod connection;
pub(crate) mod host;
pub(crate) mod ping;

use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Returns the time `seconds` from now, or `None` for no deadline.
pub(crate) fn deadline(seconds: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = seconds else { return Ok(None) };
    if seconds.is_nan() {
        return Err(PyValueError::new_err("timeout must not be NaN"));
    }
    // A time beyond the clock's range means no deadline.
    Ok(Duration::try_from_secs_f64(seconds.max(0.0)).ok().and_then(|timeout| Instant::now().checked_add(timeout)))
}
