//! What has happened, as objects. They refer to sessions and to what a message says, neither of which refers
//! to anything, so the collector need not know them.

use pyo3::prelude::*;

use super::session::PySession;

/// A session is open.
#[pyclass(frozen, name = "Connected", module = "wirespeed.engine")]
pub(crate) struct Connected {
    /// Whose.
    #[pyo3(get)]
    pub(crate) session: Py<PySession>,
}

#[pymethods]
impl Connected {
    #[classattr]
    fn __match_args__() -> (&'static str,) {
        ("session",)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("Connected({})", self.session.get().describe(py))
    }
}

/// A message came.
#[pyclass(frozen, name = "Message", module = "wirespeed.engine")]
pub(crate) struct Message {
    /// Whose.
    #[pyo3(get)]
    pub(crate) session: Py<PySession>,
    /// Text as `str`, binary as `bytes`.
    #[pyo3(get)]
    pub(crate) data: Py<PyAny>,
}

#[pymethods]
impl Message {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str) {
        ("session", "data")
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let size = self.data.bind(py).len()?;
        let kind = self.data.bind(py).get_type().name()?;
        Ok(format!("Message({}, {kind} of {size})", self.session.get().describe(py)))
    }
}

/// A session is over; nothing of it follows.
#[pyclass(frozen, name = "Disconnected", module = "wirespeed.engine")]
pub(crate) struct Disconnected {
    /// Whose.
    #[pyo3(get)]
    pub(crate) session: Py<PySession>,
    /// The close code that the client sent; 1005 if its close frame had none, 1006 without a close frame.
    #[pyo3(get)]
    pub(crate) code: u16,
    /// The reason that the client gave.
    #[pyo3(get)]
    pub(crate) reason: String,
    /// Why the connection failed, in words; `None` if it did not.
    #[pyo3(get)]
    pub(crate) failure: Option<String>,
}

#[pymethods]
impl Disconnected {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str) {
        ("session", "code", "reason")
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("Disconnected({}, {}, {:?})", self.session.get().describe(py), self.code, self.reason)
    }
}
