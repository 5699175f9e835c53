//! A session of the engine, for Python: a handle that is usable from any thread, also after the session's end.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyPermissionError, PyRuntimeError, PyStopIteration, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyDict};
use wirespeed_driver::protocol::CloseCode;
use wirespeed_engine::control::Refused;
use wirespeed_engine::{Engine, NotRefreshed, Session, TopicPermission};

use super::arguments::{pattern, topic, with_message};
use super::capacity::{self, SIGNAL_INTERVAL};
use super::refusals::{forked, refused};
use super::wakers::CapacityWaker;
use crate::{errors, headers};

/// How long a worker may take to reply with the statistics of a session; after that it counts as stuck.
const STATS_TIMEOUT: Duration = Duration::from_secs(5);

/// A session.
#[pyclass(frozen, weakref, name = "Session", module = "wirespeed.engine")]
pub(crate) struct PySession {
    pub(crate) session: Session,
    /// The engine, which may have been dropped.
    pub(crate) engine: Weak<Engine>,
}

impl PySession {
    pub(crate) fn describe(&self, _py: Python<'_>) -> String {
        format!("<Session {}>", self.session.id())
    }

    /// Returns the session. Raises in a forked child, where the worker does not exist and locks may stay held.
    fn usable(&self) -> PyResult<&Session> {
        if self.session.is_forked() { Err(forked()) } else { Ok(&self.session) }
    }
}

fn permissions(subscribe: bool, publish: bool) -> Vec<TopicPermission> {
    [(TopicPermission::Subscribe, subscribe), (TopicPermission::Publish, publish)]
        .into_iter()
        .filter_map(|(permission, wanted)| wanted.then_some(permission))
        .collect()
}

fn invalid_pattern(error: &wirespeed_engine::auth::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pymethods]
impl PySession {
    /// The number of the session, unique within the engine.
    #[getter]
    fn id(&self) -> u64 {
        self.session.id()
    }

    #[getter]
    fn path(&self) -> &str {
        self.session.path()
    }

    #[getter]
    fn query(&self) -> &str {
        self.session.query()
    }

    #[getter]
    fn headers(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        headers::make_headers(py, headers::to_python(&self.session.headers())).map(Bound::unbind)
    }

    #[getter]
    fn remote_address(&self) -> Option<(String, u16)> {
        self.session.remote_address().map(|address| (address.ip().to_string(), address.port()))
    }

    #[getter]
    fn subprotocol(&self) -> Option<&str> {
        self.session.subprotocol()
    }

    /// The path pattern of its route; `None` without routes.
    #[getter]
    fn route(&self) -> Option<&str> {
        self.session.route().pattern()
    }

    /// The named segments of the path, decoded.
    #[getter]
    fn params<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.session.params().into_py_dict(py)
    }

    #[getter]
    fn user(&self) -> PyResult<Option<String>> {
        Ok(self.usable()?.identity().map(|identity| identity.user.clone()))
    }

    #[getter]
    fn claims(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let Some(identity) = self.usable()?.identity() else { return Ok(None) };
        let text = serde_json::to_string(&identity.claims).map_err(|error| PyValueError::new_err(error.to_string()))?;
        LOADS.import(py, "json", "loads")?.call1((text,)).map(|claims| Some(claims.unbind()))
    }

    #[getter]
    fn is_open(&self) -> bool {
        !self.session.is_forked() && self.session.is_open()
    }

    #[getter]
    fn queued(&self) -> usize {
        self.session.queued()
    }

    /// Replaces the token by another one of the same user.
    fn refresh(&self, py: Python<'_>, token: &str) -> PyResult<()> {
        let session = self.usable()?;
        // This may read a file of keys.
        py.detach(|| session.refresh(token)).map_err(|error| match error {
            NotRefreshed::Closed => errors::session_closed(py),
            NotRefreshed::NoAuth => PyRuntimeError::new_err("the session's path requires no token"),
            NotRefreshed::Denied(denied) => PyPermissionError::new_err(denied.to_string()),
            NotRefreshed::OtherUser => {
                PyPermissionError::new_err("the token is of another user than the session, or of none")
            }
        })
    }

    /// Returns the statistics of the session.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let session = self.usable()?;
        let deadline = Instant::now() + STATS_TIMEOUT;
        let figures = loop {
            let slice = deadline.min(Instant::now() + SIGNAL_INTERVAL);
            match py.detach(|| session.figures(slice)) {
                Ok(figures) => break figures,
                Err(Refused::Closed) => return Err(errors::session_closed(py)),
                Err(Refused::Full) if Instant::now() >= deadline => {
                    return Err(PyTimeoutError::new_err("the thread of the session does not answer"));
                }
                Err(Refused::Full) => py.check_signals()?,
            }
        };
        let stats = PyDict::new(py);
        for (name, value) in [
            ("messages_received", figures.messages_received),
            ("bytes_received", figures.bytes_received),
            ("messages_sent", figures.messages_sent),
            ("bytes_sent", figures.bytes_sent),
            ("messages_dropped", figures.messages_dropped),
            ("messages_limited", figures.messages_limited),
            ("messages_denied", figures.messages_denied),
            ("queued_bytes", figures.queued_bytes as u64),
            ("subscriptions", figures.subscriptions as u64),
        ] {
            stats.set_item(name, value)?;
        }
        stats.set_item("open_seconds", figures.open.as_secs_f64())?;
        Ok(stats)
    }

    /// Sends a message, after everything that was sent to the session before.
    #[pyo3(signature = (message, text = None))]
    fn send(slf: &Bound<'_, Self>, message: &Bound<'_, PyAny>, text: Option<bool>) -> PyResult<Py<Sent>> {
        let py = slf.py();
        let session = slf.get().usable()?;
        let room = with_message(message, text, |kind, bytes| session.send(kind, bytes))?
            .map_err(|refusal| refused(py, refusal))?;
        Sent::new(slf, room)
    }

    /// Returns whether there is capacity for more messages.
    #[getter]
    fn has_room(&self) -> PyResult<bool> {
        Ok(self.usable()?.has_capacity() == Ok(true))
    }

    /// Waits until there is capacity; false: not in time.
    #[pyo3(signature = (timeout = None))]
    fn wait_for_room(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let session = self.usable()?;
        capacity::wait(py, timeout, refused, |deadline| session.wait_for_capacity(Some(deadline)))
    }

    /// Returns a waker that fires whenever there may be capacity again, until it is closed.
    fn _capacity_waker(&self) -> PyResult<CapacityWaker> {
        let session = self.usable()?;
        CapacityWaker::new(|wake| session.watch_capacity(wake))
    }

    /// Returns a key that is the same for all objects which share a waker.
    fn _capacity_key(&self) -> usize {
        self.session.capacity_key()
    }

    /// Subscribes the session to a topic or pattern. Returns false if it is subscribed already.
    fn subscribe(&self, py: Python<'_>, topic: &str) -> PyResult<bool> {
        self.usable()?.subscribe(&pattern(topic)?).map_err(|refusal| refused(py, refusal))
    }

    /// Allows matching topics, in addition to those that the token allows.
    #[pyo3(signature = (*patterns, subscribe = true, publish = true))]
    fn allow(&self, patterns: Vec<String>, subscribe: bool, publish: bool) -> PyResult<()> {
        self.usable()?.allow(&permissions(subscribe, publish), &patterns, &[]).map_err(|error| invalid_pattern(&error))
    }

    /// Denies matching topics, regardless of what allows them.
    #[pyo3(signature = (*patterns, subscribe = true, publish = true))]
    fn deny(&self, patterns: Vec<String>, subscribe: bool, publish: bool) -> PyResult<()> {
        self.usable()?.allow(&permissions(subscribe, publish), &[], &patterns).map_err(|error| invalid_pattern(&error))
    }

    fn may_subscribe(&self, topic: &str) -> PyResult<bool> {
        Ok(self.usable()?.may(TopicPermission::Subscribe, pattern(topic)?.as_str()))
    }

    fn may_publish(&self, topic: &str) -> PyResult<bool> {
        Ok(self.usable()?.may(TopicPermission::Publish, self::topic(topic)?.as_str()))
    }

    /// Publishes a message on behalf of the session, if it may.
    #[pyo3(signature = (topic, message, *, text = None, exclude_self = false, key = None))]
    fn publish(
        &self,
        topic: &str,
        message: &Bound<'_, PyAny>,
        text: Option<bool>,
        exclude_self: bool,
        key: Option<&str>,
    ) -> PyResult<usize> {
        let py = message.py();
        let session = self.usable()?;
        let topic = self::topic(topic)?;
        let engine = self.engine.upgrade().ok_or_else(|| errors::session_closed(py))?;
        let key = key.map(Arc::from);
        with_message(message, text, |kind, bytes| engine.publish_as(session, &topic, kind, bytes, exclude_self, key))?
            .map(|(count, _)| count)
            .map_err(|refusal| refused(py, refusal))
    }

    /// Unsubscribes the session. Returns false if it was not subscribed.
    fn unsubscribe(&self, topic: &str) -> PyResult<bool> {
        Ok(self.usable()?.unsubscribe(&pattern(topic)?))
    }

    /// Returns the subscribed topics and patterns.
    #[getter]
    fn topics(&self) -> PyResult<Vec<String>> {
        Ok(self.usable()?.topics().iter().map(ToString::to_string).collect())
    }

    /// Pauses or resumes reading from the client.
    fn _set_reading(&self, reads: bool) -> PyResult<()> {
        self.usable()?.set_reading(reads);
        Ok(())
    }

    /// Closes the session, after everything that was sent to it before.
    #[pyo3(signature = (code = 1000, reason = ""))]
    fn close(&self, py: Python<'_>, code: i64, reason: &str) -> PyResult<()> {
        // Codes out of range become 0, which is invalid as well.
        let code = u16::try_from(code).unwrap_or(0);
        self.usable()?.close(CloseCode(code), reason).map_err(|error| errors::refused(py, error))
    }

    /// Compares sessions, because several objects may stand for one session.
    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| other.get().session == self.session)
    }

    fn __hash__(&self) -> u64 {
        self.session.id()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        self.describe(py)
    }
}

/// The result of `Session.send`: true if there is capacity for more. Awaiting it waits for capacity.
#[pyclass(frozen, module = "wirespeed.engine")]
pub(crate) struct Sent {
    /// The session to wait for; `None` if it has capacity.
    session: Option<Py<PySession>>,
}

impl Sent {
    pub(super) fn new(session: &Bound<'_, PySession>, room: bool) -> PyResult<Py<Self>> {
        static ROOM: PyOnceLock<Py<Sent>> = PyOnceLock::new();
        let py = session.py();
        if room {
            return ROOM.get_or_try_init(py, || Py::new(py, Self { session: None })).map(|sent| sent.clone_ref(py));
        }
        Py::new(py, Self { session: Some(session.clone().unbind()) })
    }
}

#[pymethods]
impl Sent {
    fn __bool__(&self) -> bool {
        self.session.is_none()
    }

    fn __repr__(&self) -> &'static str {
        if self.session.is_none() { "<Sent: there is room>" } else { "<Sent: no room>" }
    }

    fn __await__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        static WAIT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = slf.py();
        match &slf.get().session {
            None => Ok(slf.into_any()),
            Some(session) => {
                let wait = WAIT.import(py, "wirespeed.engine._event_loop", "wait_for_session")?;
                wait.call1((session,))?.call_method0("__await__")
            }
        }
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// With capacity, awaiting it completes at once.
    fn __next__(&self) -> PyResult<()> {
        Err(PyStopIteration::new_err(true))
    }
}
