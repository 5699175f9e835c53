//! Many messages in one call.

use std::sync::Arc;

use pyo3::exceptions::{PyBlockingIOError, PyException, PyTypeError, PyUnicodeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use wirespeed_engine::broker::EnqueueResult;
use wirespeed_engine::topics::Topic;
use wirespeed_engine::{Engine, Item};

use super::broker;
use super::session::{EAGAIN, refused_by_engine, topic, with_message};
use crate::source;

/// Messages, and bytes of them, that are published at once: while they are taken from an iterator, which may be slow,
/// nobody waits for them.
const ITEMS: usize = 256;
const BYTES: usize = 1 << 20;

/// Publishes what an iterable yields; to how many sessions that goes in all.
pub(super) fn publish(engine: &Engine, items: &Bound<'_, PyAny>, text: Option<bool>) -> PyResult<Py<PyAny>> {
    let py = items.py();
    let mut iterator = items.try_iter()?;
    let (mut count, mut forwarded, mut before) = (0, true, 0);
    let mut known = None;
    loop {
        let mut chunk = Vec::new();
        let mut bytes = 0;
        // What it cannot say any more, or is wrong: after what came before.
        let mut end = None;
        while end.is_none() && chunk.len() < ITEMS && bytes < BYTES {
            match iterator.next() {
                None => end = Some(Ok(())),
                Some(Err(error)) => end = Some(Err(error)),
                Some(Ok(object)) => match item(engine, &object, text, &mut known) {
                    Ok(item) => {
                        bytes += item.message.size();
                        chunk.push(item);
                    }
                    Err(error) => end = Some(Err(at(py, before + chunk.len(), error))),
                },
            }
        }
        let len = chunk.len();
        if len > 0 {
            let published = engine.publish_many(chunk);
            let published =
                published.map_err(|(index, refusal)| at(py, before + index, refused_by_engine(py, refusal)));
            let published = match (published, end) {
                (Ok(published), said) => {
                    end = said;
                    published
                }
                // What is to end the program does, whatever else there is to say.
                (Err(error), Some(Err(interrupt))) if !interrupt.is_instance_of::<PyException>(py) => {
                    interrupt.value(py).setattr("__context__", error.value(py))?;
                    return Err(interrupt);
                }
                (Err(error), _) => return Err(error),
            };
            count += published.count;
            forwarded &= published.took == EnqueueResult::Yes;
            before += len;
        }
        if let Some(end) = end {
            return end.and_then(|()| broker::published(py, count, forwarded && before > 0));
        }
        py.check_signals()?;
    }
}

/// `known`: the topic of the item before, which may be the same.
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

/// The error with the place of the item that it is about.
fn at(py: Python<'_>, index: usize, error: PyErr) -> PyErr {
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
