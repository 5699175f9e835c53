//! What has happened, as a sequence: each event becomes an object when it is reached, not before.

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
use super::message::{self, Turns};
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

/// The codecs of an engine by the tags of routes; 0 is none. The engine, its batches and undecoded messages share one: it
/// is an object, so that the collector sees all references to it.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Codecs(pub(super) Vec<Option<Codec>>);

#[pymethods]
impl Codecs {
    // It does not change: a cycle through it is cleared at the engine, or in what decodes.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let mut decoders = self.0.iter().flatten().flat_map(|codec| codec.decoders.iter().flatten());
        decoders.try_for_each(|decode| visit.call(decode))
    }
}

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
    /// `None`: no route has one.
    codecs: Option<Py<Codecs>>,
    engine: Arc<Engine>,
}

impl PyBatch {
    pub(super) fn new(parts: Vec<Part>, codecs: Option<Py<Codecs>>, engine: Arc<Engine>) -> Self {
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
        self.event(py, part, index, None, false)
    }

    /// An event as an object; a message as one of those that take turns, if there are any. `raw`: what is to be decoded
    /// is left to be.
    #[inline]
    fn event(
        &self,
        py: Python<'_>,
        part: &Part,
        index: usize,
        turns: Option<&mut Turns>,
        raw: bool,
    ) -> PyResult<Py<PyAny>> {
        wirespeed_engine::driver::protocol::failpoint::hit("python.event");
        let (whose, event) = part.batch.get(index).ok_or_else(missing)?; // not if its own counts are right
        let session = part.sessions.get(whose).ok_or_else(missing)?.clone_ref(py);
        Ok(match event {
            Event::Message { kind, data } => {
                let data = match self.codec(&session) {
                    None => plain(py, kind, data)?,
                    Some((codecs, _)) if raw => {
                        let data = plain(py, MessageKind::Binary, data)?;
                        let (codecs, engine) = (codecs.clone_ref(py), Arc::clone(&self.engine));
                        return Ok(Py::new(py, Undecoded { session, data, kind, codecs, engine })?.into_any());
                    }
                    Some((_, codec)) => {
                        let given = plain(py, MessageKind::Binary, data)?;
                        let is_first = || part.refuse(index);
                        match decode(py, &self.engine, &session, codec, kind, given, is_first)? {
                            Ok(decoded) => decoded,
                            Err(error) => {
                                let data = plain(py, kind, data)?;
                                return Ok(Py::new(py, Invalid { session, data, error })?.into_any());
                            }
                        }
                    }
                };
                match turns {
                    Some(turns) => turns.message(py, session, data)?,
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
        // Without any, the session need not be looked at.
        let codecs = self.codecs.as_ref()?;
        Some((codecs, codec_of(codecs, session)?))
    }
}

fn codec_of<'a>(codecs: &'a Py<Codecs>, session: &Py<PySession>) -> Option<&'a Codec> {
    codecs.get().0.get(session.get().session.tag() as usize)?.as_ref()
}

/// What the codec makes of a message, or why it does not understand it.
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
        engine.refuse_message(&session.get().session, &named, &error, codec.closes);
    }
    Ok(Err(error))
}

/// A message of a route with a codec that nobody has decoded yet: as large as it came, where what is made of it may be
/// many times as large. What holds messages for later holds these.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Undecoded {
    /// Whose.
    #[pyo3(get)]
    session: Py<PySession>,
    /// Its bytes, text or not.
    #[pyo3(get)]
    data: Py<PyAny>,
    kind: MessageKind,
    codecs: Py<Codecs>,
    engine: Arc<Engine>,
}

#[pymethods]
impl Undecoded {
    /// What has happened. To be asked once: each time counts.
    fn decode(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let session = self.session.clone_ref(py);
        let codec = codec_of(&self.codecs, &session).ok_or_else(missing)?; // it has one, by its making
        match decode(py, &self.engine, &session, codec, self.kind, self.data.clone_ref(py), || true)? {
            Ok(data) => message::new(py, session, data),
            Err(error) => {
                let data = plain(py, self.kind, self.data.bind(py).cast::<PyBytes>()?.as_bytes())?;
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
        BatchIterator { batch: slf, part: 0, next: 0, turns: Turns::default(), raw: false }
    }

    /// The same, but what a codec is to decode is left to be: see [`Undecoded`].
    fn _undecoded(slf: Py<Self>) -> BatchIterator {
        BatchIterator { batch: slf, part: 0, next: 0, turns: Turns::default(), raw: true }
    }

    fn __repr__(&self) -> String {
        format!("<Batch of {}>", self.len)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.codecs)
    }
}

/// Each event of a batch, in their order.
#[pyclass(module = "wirespeed.engine")]
pub(crate) struct BatchIterator {
    batch: Py<PyBatch>,
    part: usize,
    next: usize,
    turns: Turns,
    /// It decodes nothing.
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
                let event = batch.event(py, part, self.next, Some(&mut self.turns), self.raw)?;
                self.next += 1;
                return Ok(Some(event));
            }
            self.part += 1;
            self.next = 0;
        }
        self.turns.forget();
        Ok(None)
    }

    fn __length_hint__(&self) -> usize {
        let batch = self.batch.get();
        let all: usize = batch.parts.iter().skip(self.part).map(|part| part.batch.len()).sum();
        all.saturating_sub(self.next)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.batch)?;
        self.turns.traverse(&visit)
    }

    fn __clear__(&mut self) {
        self.turns.forget();
    }
}
