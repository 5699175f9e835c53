//! A batch of events as a Python sequence. Each event becomes an object when it is accessed, not before.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyException, PyIndexError, PyOverflowError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice};
use wirespeed_driver::protocol::{MessageKind, Payload};
use wirespeed_engine::Engine;
use wirespeed_engine::events::{Batch, Ended, Event};

use super::event::{Connected, Disconnected, Invalid};
use super::message::{self, ReusedMessages};
use super::session::PySession;
use crate::payload::{self, PyPayload};

/// The codec of one route, which decodes messages.
pub(crate) struct Codec {
    /// The functions for text and for binary messages, which take `bytes`. `None`: messages of this kind are invalid.
    pub(super) decoders: [Option<Py<PyAny>>; 2],
    /// Whether an invalid message closes the session.
    pub(super) closes: bool,
}

/// The codecs of an engine by the tags of routes; tag 0 has none. The engine, its batches and undecoded messages share
/// this object, so that the garbage collector sees all references to the codecs.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Codecs(pub(super) Vec<Option<Codec>>);

#[pymethods]
impl Codecs {
    // There is no `__clear__`, as it is immutable: the collector breaks a cycle at the engine, or in the decoding
    // functions.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let mut decoders = self.0.iter().flatten().flat_map(|codec| codec.decoders.iter().flatten());
        decoders.try_for_each(|decode| visit.call(decode))
    }
}

/// The events of one turn of a worker.
pub(super) struct BatchPart {
    pub(super) batch: Batch,
    /// The sessions of the batch, in its order.
    pub(super) sessions: Vec<Py<PySession>>,
    /// The indices of events that were found invalid, so that each is counted once, however often it is accessed.
    pub(super) refused: Mutex<BTreeSet<usize>>,
}

impl BatchPart {
    /// Records that an event is invalid. Returns whether that is new.
    fn refuse(&self, index: usize) -> bool {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).insert(index)
    }
}

/// A batch of events.
#[pyclass(frozen, sequence, name = "Batch", module = "wirespeed.engine")]
pub(crate) struct PyBatch {
    parts: Vec<BatchPart>,
    len: usize,
    /// `None`: no route has a codec.
    codecs: Option<Py<Codecs>>,
    engine: Arc<Engine>,
}

impl PyBatch {
    pub(super) fn new(parts: Vec<BatchPart>, codecs: Option<Py<Codecs>>, engine: Arc<Engine>) -> Self {
        Self { len: parts.iter().map(|part| part.batch.len()).sum(), parts, codecs, engine }
    }

    fn find(&self, mut index: usize) -> Option<(&BatchPart, usize)> {
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
        self.event(py, part, index, None, false)
    }

    /// Returns an event as an object. `reused`: reusable message objects. `raw`: messages that a codec would decode are
    /// returned undecoded.
    #[inline]
    fn event(
        &self,
        py: Python<'_>,
        part: &BatchPart,
        index: usize,
        reused: Option<&mut ReusedMessages>,
        raw: bool,
    ) -> PyResult<Py<PyAny>> {
        wirespeed_engine::driver::protocol::failpoint::hit("python.event");
        let (session_index, event) = part.batch.get(index).ok_or_else(missing)?; // cannot fail: the index is in range
        let session = part.sessions.get(session_index).ok_or_else(missing)?.clone_ref(py);
        Ok(match event {
            Event::Message { kind, data } => {
                let data = match self.codec(&session) {
                    None => to_python(py, kind, data)?,
                    Some((codecs, _)) if raw => {
                        let data = to_python(py, MessageKind::Binary, data)?;
                        let (codecs, engine) = (codecs.clone_ref(py), Arc::clone(&self.engine));
                        return Ok(Py::new(py, Undecoded { session, data, kind, codecs, engine })?.into_any());
                    }
                    Some((_, codec)) => {
                        let given = to_python(py, MessageKind::Binary, data)?;
                        let is_first = || part.refuse(index);
                        match decode(py, &self.engine, &session, codec, kind, given, is_first)? {
                            Ok(decoded) => decoded,
                            Err(error) => {
                                let data = to_python(py, kind, data)?;
                                return Ok(Py::new(py, Invalid { session, data, error })?.into_any());
                            }
                        }
                    }
                };
                match reused {
                    Some(reused) => reused.message(py, session, data)?,
                    None => message::new(py, session, data)?,
                }
            }
            Event::Connected => Py::new(py, Connected { session })?.into_any(),
            Event::Disconnected(Ended { code, reason, failure }) => {
                let (code, reason, failure) = (*code, reason.clone(), failure.clone());
                Py::new(py, Disconnected { session, code, reason, failure })?.into_any()
            }
        })
    }

    #[inline]
    fn codec(&self, session: &Py<PySession>) -> Option<(&Py<Codecs>, &Codec)> {
        // Without any codec, the session's tag need not be read.
        let codecs = self.codecs.as_ref()?;
        Some((codecs, codec_of(codecs, session)?))
    }
}

fn codec_of<'a>(codecs: &'a Py<Codecs>, session: &Py<PySession>) -> Option<&'a Codec> {
    codecs.get().0.get(session.get().session.tag() as usize)?.as_ref()
}

/// Decodes a message. Returns the object, or why the message is invalid.
fn decode(
    py: Python<'_>,
    engine: &Engine,
    session: &Py<PySession>,
    codec: &Codec,
    kind: MessageKind,
    data: Py<PyAny>,
    is_first: impl FnOnce() -> bool,
) -> PyResult<Result<Py<PyAny>, String>> {
    let [text, binary] = &codec.decoders;
    let (named, error) = match if kind == MessageKind::Binary { binary } else { text } {
        Some(decode) => match decode.call1(py, (data,)) {
            Ok(data) => return Ok(Ok(data)),
            // Exceptions that end the program, such as `KeyboardInterrupt`, propagate.
            Err(error) if !error.is_instance_of::<PyException>(py) => return Err(error),
            // The text of the exception may contain the message, so its type is logged instead.
            Err(error) => {
                let named = error.get_type(py).name().map_or_else(|_| String::new(), |name| name.to_string());
                let text = error.value(py).str().map(|text| text.to_string());
                (named.clone(), text.unwrap_or(named))
            }
        },
        None if kind == MessageKind::Text => without_content("a text message, where only binary ones are understood"),
        None => without_content("a binary message, where only text is understood"),
    };
    if is_first() {
        engine.refuse_message(&session.get().session, &named, &error, codec.closes);
    }
    Ok(Err(error))
}

/// A message of a route with a codec, not decoded yet. Event loops and thread pools queue these, as the decoded object
/// may be many times larger.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Undecoded {
    /// The session that received it.
    #[pyo3(get)]
    session: Py<PySession>,
    /// Its payload as bytes, for text as well.
    #[pyo3(get)]
    data: Py<PyAny>,
    kind: MessageKind,
    codecs: Py<Codecs>,
    engine: Arc<Engine>,
}

#[pymethods]
impl Undecoded {
    /// Decodes the message, and returns the event. Call it once: each call counts an invalid message again.
    fn decode(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let session = self.session.clone_ref(py);
        let codec = codec_of(&self.codecs, &session).ok_or_else(missing)?; // exists, as for all undecoded messages
        match decode(py, &self.engine, &session, codec, self.kind, self.data.clone_ref(py), || true)? {
            Ok(data) => message::new(py, session, data),
            Err(error) => {
                let data = to_python(py, self.kind, self.data.bind(py).cast::<PyBytes>()?.as_bytes())?;
                Ok(Py::new(py, Invalid { session, data, error })?.into_any())
            }
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.codecs)
    }
}

fn missing() -> PyErr {
    PyIndexError::new_err("the batch has fewer events")
}

/// Returns an error text that contains nothing of the message, for the log and the event.
fn without_content(text: &str) -> (String, String) {
    (text.to_owned(), text.to_owned())
}

fn to_python(py: Python<'_>, kind: MessageKind, data: &[u8]) -> PyResult<Py<PyAny>> {
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
                // After the last wanted index it may overflow.
                at = at.wrapping_add(indices.step);
            }
            return PyList::new(py, events).map(|list| list.into_any().unbind());
        }
        let index = match index.extract::<isize>() {
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => return Err(missing()),
            extracted => extracted?,
        };
        let index = if index < 0 { index + self.len.cast_signed() } else { index };
        self.at(py, usize::try_from(index).unwrap_or(usize::MAX)) // an index before the first event is out of range
    }

    fn __iter__(slf: Py<Self>) -> BatchIterator {
        BatchIterator { batch: slf, part: 0, next: 0, reused: ReusedMessages::default(), raw: false }
    }

    /// Iterates like `__iter__`, but leaves messages with a codec undecoded; see [`Undecoded`].
    fn _undecoded(slf: Py<Self>) -> BatchIterator {
        BatchIterator { batch: slf, part: 0, next: 0, reused: ReusedMessages::default(), raw: true }
    }

    fn __repr__(&self) -> String {
        format!("<Batch of {}>", self.len)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.codecs)
    }
}

/// Iterates over the events of a batch.
#[pyclass(module = "wirespeed.engine")]
pub(crate) struct BatchIterator {
    batch: Py<PyBatch>,
    part: usize,
    next: usize,
    reused: ReusedMessages,
    /// Leaves messages undecoded.
    raw: bool,
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
                let event = batch.event(py, part, self.next, Some(&mut self.reused), self.raw)?;
                self.next += 1;
                return Ok(Some(event));
            }
            self.part += 1;
            self.next = 0;
        }
        self.reused.forget();
        Ok(None)
    }

    fn __length_hint__(&self) -> usize {
        let batch = self.batch.get();
        let all: usize = batch.parts.iter().skip(self.part).map(|part| part.batch.len()).sum();
        all.saturating_sub(self.next)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.batch)?;
        self.reused.traverse(&visit)
    }

    fn __clear__(&mut self) {
        self.reused.forget();
    }
}
