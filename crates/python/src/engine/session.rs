//! One client of the engine, for Python: a handle that may be used from any thread, also after its end.

use pyo3::exceptions::{PyBlockingIOError, PyPermissionError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use wirespeed_driver::blocking::Source;
use wirespeed_driver::protocol::CloseCode;
use wirespeed_engine::topics::{Pattern, Topic};
use wirespeed_engine::{Refusal, Session};

use crate::{errors, headers, source};

/// "Resource temporarily unavailable", of Linux and, as `errno` has it, most others.
const EAGAIN: i32 = if cfg!(target_os = "macos") { 35 } else { 11 };

/// See the module.
#[pyclass(frozen, weakref, name = "Session", module = "wirespeed.engine")]
pub(crate) struct PySession {
    pub(crate) session: Session,
}

impl PySession {
    pub(crate) fn describe(&self, _py: Python<'_>) -> String {
        format!("<Session {}>", self.session.id())
    }
}

/// The message of a call, for whoever sends it.
pub(super) fn with_message<R>(
    message: &Bound<'_, PyAny>,
    text: Option<bool>,
    send: impl FnOnce(wirespeed_driver::protocol::MessageKind, &[u8]) -> Result<R, Refusal>,
) -> PyResult<Result<R, Refusal>> {
    let Some((kind, bytes)) = source::message(message, text)? else {
        let name = source::type_name(message);
        return Err(PyTypeError::new_err(format!("message must be str or bytes-like, not {name}")));
    };
    Ok(send(kind, bytes.piece(0..bytes.len())))
}

/// What cannot be said.
pub(super) fn refused(py: Python<'_>, refusal: Refusal) -> PyErr {
    match refusal {
        Refusal::Invalid(error) => errors::refused(py, error),
        Refusal::Closed => errors::session_closed(py),
        Refusal::Full => PyBlockingIOError::new_err((
            EAGAIN,
            "more waits to be sent than may: wait with engine.wait_for_room() when send, publish or broadcast say so",
        )),
        Refusal::Denied => PyPermissionError::new_err("the session's token does not allow it to subscribe to this"),
        Refusal::TooManySubscriptions(limit) => {
            PyRuntimeError::new_err(format!("the session subscribes to {limit} topics, as many as it may"))
        }
    }
}

fn pattern(text: &str) -> PyResult<Pattern> {
    Pattern::new(text).map_err(|error| PyValueError::new_err(format!("topic {text:?}: {error}")))
}

/// The name of a topic.
pub(super) fn topic(text: &str) -> PyResult<Topic> {
    Topic::new(text).map_err(|error| PyValueError::new_err(format!("topic {text:?}: {error}")))
}

#[pymethods]
impl PySession {
    /// The session's number: no other one of this engine has had it, or will.
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
        static HEADERS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let pairs = headers::to_python(self.session.headers());
        HEADERS.import(py, "wirespeed.datastructures", "Headers")?.call1((pairs,)).map(Bound::unbind)
    }

    #[getter]
    fn remote_address(&self) -> Option<(String, u16)> {
        self.session.remote_address().map(|address| (address.ip().to_string(), address.port()))
    }

    #[getter]
    fn subprotocol(&self) -> Option<&str> {
        self.session.subprotocol()
    }

    #[getter]
    fn user(&self) -> Option<&str> {
        self.session.identity().map(|identity| identity.user.as_str())
    }

    #[getter]
    fn claims(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let Some(identity) = self.session.identity() else { return Ok(None) };
        let text = serde_json::to_string(&identity.claims).map_err(|error| PyValueError::new_err(error.to_string()))?;
        LOADS.import(py, "json", "loads")?.call1((text,)).map(|claims| Some(claims.unbind()))
    }

    #[getter]
    fn is_open(&self) -> bool {
        self.session.is_open()
    }

    #[getter]
    fn queued(&self) -> usize {
        self.session.queued()
    }

    /// Sends a message, after everything that was sent to the session before.
    #[pyo3(signature = (message, text = None))]
    fn send(&self, message: &Bound<'_, PyAny>, text: Option<bool>) -> PyResult<bool> {
        with_message(message, text, |kind, bytes| self.session.send(kind, bytes))?
            .map_err(|refusal| refused(message.py(), refusal))
    }

    /// Subscribes the session to a topic, or to all that match a pattern; false: it does already.
    fn subscribe(&self, py: Python<'_>, topic: &str) -> PyResult<bool> {
        self.session.subscribe(&pattern(topic)?).map_err(|refusal| refused(py, refusal))
    }

    /// Ends that; false: it does not subscribe to it.
    fn unsubscribe(&self, topic: &str) -> PyResult<bool> {
        Ok(self.session.unsubscribe(&pattern(topic)?))
    }

    /// What it subscribes to.
    #[getter]
    fn topics(&self) -> Vec<String> {
        self.session.topics().iter().map(ToString::to_string).collect()
    }

    /// Closes the session, after everything that was sent to it before.
    #[pyo3(signature = (code = 1000, reason = ""))]
    fn close(&self, py: Python<'_>, code: u16, reason: &str) -> PyResult<()> {
        self.session.close(CloseCode(code), reason).map_err(|error| errors::refused(py, error))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        self.describe(py)
    }
}
