//! Waiting for send capacity, in threads and by `await`.

use std::time::Instant;

use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use wirespeed_engine::Refusal;
use wirespeed_engine::mailbox::Refused;

use super::arguments::deadline;
use super::handle::SIGNAL_INTERVAL;
use super::session::PySession;

/// Waits in the calling thread, in slices between which signal handlers run. Returns false after the timeout.
pub(super) fn wait(
    py: Python<'_>,
    timeout: Option<f64>,
    refused: fn(Python<'_>, Refusal) -> PyErr,
    wait: impl Fn(Instant) -> Result<(), Refused> + Sync,
) -> PyResult<bool> {
    let deadline = deadline(timeout)?;
    loop {
        let now = Instant::now();
        let slice = deadline.map_or(now + SIGNAL_INTERVAL, |deadline| deadline.min(now + SIGNAL_INTERVAL));
        match py.detach(|| wait(slice)) {
            Ok(()) => return Ok(true),
            Err(Refused::Closed) => return Err(refused(py, Refused::Closed.into())),
            Err(Refused::Full) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => return Ok(false),
            Err(Refused::Full) => py.check_signals()?,
        }
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
