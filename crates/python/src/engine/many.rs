//! Publishing many messages in one call.

use std::sync::Arc;

use pyo3::exceptions::{PyBlockingIOError, PyException, PyTypeError, PyUnicodeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use wirespeed_engine::broker::EnqueueResult;
use wirespeed_engine::topics::Topic;
use wirespeed_engine::{Engine, Item};

use super::arguments::{topic, with_message};
use super::broker;
use super::refusals::{EAGAIN, refused_by_engine};
use crate::source;

/// The maximum number and size in bytes of messages that are published at once. Full chunks are published while the
/// iterator, which may be slow, is still running.
const MAX_ITEMS: usize = 256;
const MAX_BYTES: usize = 1 << 20;

/// Publishes the items of an iterable. Returns the total number of receiving sessions.
pub(super) fn publish(engine: &Engine, items: &Bound<'_, PyAny>, text: Option<bool>) -> PyResult<Py<PyAny>> {
    let py = items.py();
    let mut iterator = items.try_iter()?;
    let (mut count, mut forwarded, mut before) = (0, true, 0);
    let mut known = None;
    loop {
        let mut chunk = Vec::new();
        let mut bytes = 0;
        // The end of the iterator or an error, which is handled after the items before it.
        let mut end = None;
        while end.is_none() && chunk.len() < MAX_ITEMS && bytes < MAX_BYTES {
            match iterator.next() {
                None => end = Some(Ok(())),
                Some(Err(error)) => end = Some(Err(error)),
                Some(Ok(object)) => match item(engine, &object, text, &mut known) {
                    Ok(item) => {
                        bytes += item.message.size();
                        chunk.push(item);
                    }
                    Err(error) => end = Some(Err(with_index(py, before + chunk.len(), error))),
                },
            }
        }
        let len = chunk.len();
        if len > 0 {
            let published = engine.publish_many(chunk);
            let published =
                published.map_err(|(index, refusal)| with_index(py, before + index, refused_by_engine(py, refusal)));
            let published = match (published, end) {
                (Ok(published), said) => {
                    end = said;
                    published
                }
                // Exceptions that end the program have precedence over other errors.
                (Err(error), Some(Err(interrupt))) if !interrupt.is_instance_of::<PyException>(py) => {
                    interrupt.value(py).setattr("__context__", error.value(py))?;
                    return Err(interrupt);
                }
                (Err(error), _) => return Err(error),
            };
            count += published.count;
            forwarded &= published.broker == EnqueueResult::Yes;
            before += len;
        }
        if let Some(end) = end {
            return end.and_then(|()| broker::published(py, count, forwarded && before > 0));
        }
        py.check_signals()?;
    }
}

/// `known`: the topic of the previous item, which is often the same.
fn item(engine: &Engine, object: &Bound<'_, PyAny>, text: Option<bool>, known: &mut Option<Topic>) -> PyResult<Item> {
    let parts = object.cast::<PyTuple>().ok().filter(|tuple| matches!(tuple.len(), 2 | 3)).ok_or_else(|| {
        let name = source::type_name(object);
        PyTypeError::new_err(format!("it must be (topic, message) or (topic, message, key), not {name}"))
    })?;
    let (name, message) = (parts.get_item(0)?, parts.get_item(1)?);
    let name: &str = name.extract().map_err(|_| PyTypeError::new_err("the topic must be a str"))?;
    let topic = match known {
        Some(topic) if topic.as_str() == name => topic.clone(),
        _ => known.insert(topic(name)?).clone(),
    };
    let key: Option<String> = match parts.len() {
        3 => parts.get_item(2)?.extract().map_err(|_| PyTypeError::new_err("the key must be a str or None"))?,
        _ => None,
    };
    let encoded = with_message(&message, text, |kind, bytes| engine.encode(kind, bytes))?;
    let encoded = encoded.map_err(|refusal| refused_by_engine(object.py(), refusal))?;
    Ok(Item { topic, message: encoded, key: key.map(Arc::from) })
}

/// Returns the error with the index of its item.
fn with_index(py: Python<'_>, index: usize, error: PyErr) -> PyErr {
    let text = format!("item {index}: {}", error.value(py));
    let named = if error.is_instance_of::<PyTypeError>(py) {
        PyTypeError::new_err(text)
    } else if error.is_instance_of::<PyUnicodeError>(py) {
        PyUnicodeError::new_err(text)
    } else if error.is_instance_of::<PyValueError>(py) {
        PyValueError::new_err(text)
    } else if error.is_instance_of::<PyBlockingIOError>(py) {
        let said = error.value(py).getattr("strerror").map(|said| said.to_string()).unwrap_or_default();
        PyBlockingIOError::new_err((EAGAIN, format!("item {index}: {said}"), index))
    } else {
        return error;
    };
    named.set_cause(py, Some(error));
    named
}
