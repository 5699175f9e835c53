//! Conversion of arguments: numbers, topics, messages.

use std::time::{Duration, Instant};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use wirespeed_driver::protocol::MessageKind;
use wirespeed_driver::source::Source;
use wirespeed_engine::Refusal;
use wirespeed_engine::topics::{Pattern, Topic};

use crate::source;

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

/// Converts the name of a topic.
pub(super) fn topic(text: &str) -> PyResult<Topic> {
    Topic::new(text).map_err(|error| PyValueError::new_err(format!("topic {text:?}: {error}")))
}

/// Converts a pattern of topics.
pub(super) fn pattern(text: &str) -> PyResult<Pattern> {
    Pattern::new(text).map_err(|error| PyValueError::new_err(format!("topic {text:?}: {error}")))
}

/// Converts a message argument, and passes it to `send`.
pub(super) fn with_message<R>(
    message: &Bound<'_, PyAny>,
    text: Option<bool>,
    send: impl FnOnce(MessageKind, &[u8]) -> Result<R, Refusal>,
) -> PyResult<Result<R, Refusal>> {
    let Some((kind, bytes)) = source::message(message, text)? else {
        let name = source::type_name(message);
        return Err(PyTypeError::new_err(format!("message must be str or bytes-like, not {name}")));
    };
    Ok(send(kind, bytes.piece(0..bytes.len())))
}
