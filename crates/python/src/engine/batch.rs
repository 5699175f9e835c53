//! What has happened, as a sequence: each event becomes an object when it is reached, not before.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyException, PyIndexError, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PySlice};
use wirespeed_driver::protocol::{MessageKind, Payload};
use wirespeed_engine::Engine;
use wirespeed_engine::events::{Batch, Ended, Event};

use super::event::{Connected, Disconnected, Invalid, Message};
use super::session::PySession;
use crate::payload::{self, PyPayload};

/// What messages are decoded by, of one route.
pub(crate) struct Codec {
    /// Of text and of binary messages, a function of their bytes, which are given as `bytes`; `None`: such messages
    /// are not valid.
    pub(super) decoders: [Option<Py<PyAny>>; 2],
    /// Whether a session is closed whose message is not valid.
    pub(super) closes: bool,
}

/// By the tags of routes; 0 is none.
pub(crate) type Codecs = Vec<Option<Codec>>;

/// Events of one turn of a worker.
pub(super) struct Part {
    pub(super) batch: Batch,
    /// As many as it has, in their order.
    pub(super) sessions: Vec<Py<PySession>>,
    /// Which of its events were found not to be valid, so that each is counted once, however often it is reached.
    pub(super) refused: Mutex<BTreeSet<usize>>,
}

impl Part {
    /// Whether an event was not found to be invalid before.
    fn refuse(&self, index: usize) -> bool {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).insert(index)
    }
}

/// See the module.
#[pyclass(frozen, sequence, name = "Batch", module = "wirespeed.engine")]
pub(crate) struct PyBatch {
    parts: Vec<Part>,
    len: usize,
    codecs: Arc<Codecs>,
    engine: Arc<Engine>,
}

impl PyBatch {
    pub(super) fn new(parts: Vec<Part>, codecs: Arc<Codecs>, engine: Arc<Engine>) -> Self {
        Self { len: parts.iter().map(|part| part.batch.len()).sum(), parts, codecs, engine }
    }

    fn find(&self, mut index: usize) -> Option<(&Part, usize)> {
        for part in &self.parts {
            match index.checked_sub(part.batch.len()) {
                None => return Some((part, index)),
                Some(left) => index = left,
            }
        }
        None
    }

    fn at(&self, py: Python<'_>, index: usize) -> PyResult<Py<PyAny>> {
        let (part, index) = self.find(index).ok_or_else(missing)?;
        self.event(py, part, index)
    }

    fn event(&self, py: Python<'_>, part: &Part, index: usize) -> PyResult<Py<PyAny>> {
        let (whose, event) = part.batch.get(index).ok_or_else(missing)?; // not if its own counts are right
        let session = part.sessions.get(whose).ok_or_else(missing)?.clone_ref(py);
        Ok(match event {
            Event::Message { kind, data } => {
                if let Some(codec) = self.codec(&session) {
                    return self.decoded(py, session, codec, kind, data, || part.refuse(index));
                }
                Py::new(py, Message { session, data: plain(py, kind, data)? })?.into_any()
            }
            Event::Connected => Py::new(py, Connected { session })?.into_any(),
            Event::Disconnected(Ended { code, reason, failure }) => {
                let (code, reason, failure) = (*code, reason.clone(), failure.clone());
                Py::new(py, Disconnected { session, code, reason, failure })?.into_any()
            }
        })
    }

    #[inline]
    fn codec(&self, session: &Py<PySession>) -> Option<&Codec> {
        // Without any, the session need not be looked at.
        if self.codecs.is_empty() {
            return None;
        }
        self.codecs.get(session.get().session.tag() as usize)?.as_ref()
    }

    fn decoded(
        &self,
        py: Python<'_>,
        session: Py<PySession>,
        codec: &Codec,
        kind: MessageKind,
        data: &[u8],
        is_first: impl FnOnce() -> bool,
    ) -> PyResult<Py<PyAny>> {
        let (named, error) = match &codec.decoders[usize::from(kind == MessageKind::Binary)] {
            Some(decode) => match decode.call1(py, (plain(py, MessageKind::Binary, data)?,)) {
                Ok(data) => return Ok(Py::new(py, Message { session, data })?.into_any()),
                // What is to end the program does.
                Err(error) if !error.is_instance_of::<PyException>(py) => return Err(error),
                // Its text may be that of the message.
                Err(error) => {
                    let named = error.get_type(py).name().map_or_else(|_| String::new(), |name| name.to_string());
                    let text = error.value(py).str().map(|text| text.to_string());
                    (named.clone(), text.unwrap_or(named))
                }
            },
            None if kind == MessageKind::Text => told("a text message, where only binary ones are understood"),
            None => told("a binary message, where only text is understood"),
        };
        if is_first() {
            self.engine.refuse_message(&session.get().session, &named, &error, codec.closes);
        }
        Ok(Py::new(py, Invalid { session, data: plain(py, kind, data)?, error })?.into_any())
    }
}

fn missing() -> PyErr {
    PyIndexError::new_err("the batch has fewer events")
}

/// What is wrong, where nothing of the message says so.
fn told(text: &str) -> (String, String) {
    (text.to_owned(), text.to_owned())
}

fn plain(py: Python<'_>, kind: MessageKind, data: &[u8]) -> PyResult<Py<PyAny>> {
    let payload: Payload<'_, PyPayload> = Payload::Slice(data);
    payload::message(py, kind, payload, None)
}

#[pymethods]
impl PyBatch {
    fn __len__(&self) -> usize {
        self.len
    }

    fn __getitem__(&self, py: Python<'_>, index: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        if let Ok(slice) = index.cast::<PySlice>() {
            let indices = slice.indices(self.len.cast_signed())?;
            let mut at = indices.start;
            let mut events = Vec::with_capacity(indices.slicelength);
            for _ in 0..indices.slicelength {
                events.push(self.at(py, at.cast_unsigned())?);
                // Beyond the last one that is wanted it may be any number.
                at = at.wrapping_add(indices.step);
            }
            return PyList::new(py, events).map(|list| list.into_any().unbind());
        }
        let index = match index.extract::<isize>() {
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => return Err(missing()),
            extracted => extracted?,
        };
        let index = if index < 0 { index + self.len.cast_signed() } else { index };
        self.at(py, usize::try_from(index).unwrap_or(usize::MAX)) // before the first: there is none
    }

    fn __iter__(slf: Py<Self>) -> BatchIterator {
        BatchIterator { batch: slf, part: 0, next: 0 }
    }

    fn __repr__(&self) -> String {
        format!("<Batch of {}>", self.len)
    }
}

/// Each event of a batch, in their order.
#[pyclass(module = "wirespeed.engine")]
pub(crate) struct BatchIterator {
    batch: Py<PyBatch>,
    part: usize,
    next: usize,
}

#[pymethods]
impl BatchIterator {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let batch = self.batch.get();
        while let Some(part) = batch.parts.get(self.part) {
            if self.next < part.batch.len() {
                let event = batch.event(py, part, self.next)?;
                self.next += 1;
                return Ok(Some(event));
            }
            self.part += 1;
            self.next = 0;
        }
        Ok(None)
    }

    fn __length_hint__(&self) -> usize {
        let batch = self.batch.get();
        let all: usize = batch.parts.iter().skip(self.part).map(|part| part.batch.len()).sum();
        all.saturating_sub(self.next)
    }
}
