//! Events as objects. They refer only to sessions, text and bytes, which refer to nothing, so they need no garbage
//! collection.

use pyo3::prelude::*;

use super::session::PySession;

/// A session was opened.
#[pyclass(frozen, name = "Connected", module = "wirespeed.engine")]
pub(crate) struct Connected {
    /// The opened session.
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

/// Describes a payload by its type and size, without its content.
pub(super) fn measure(data: &Bound<'_, PyAny>) -> PyResult<String> {
    let kind = data.get_type().name()?;
    Ok(data.len().map_or_else(|_| kind.to_string(), |size| format!("{kind} of {size}")))
}

/// A session received a message that the codec of its route cannot decode.
#[pyclass(frozen, name = "Invalid", module = "wirespeed.engine")]
pub(crate) struct Invalid {
    /// The session that received it.
    #[pyo3(get)]
    pub(crate) session: Py<PySession>,
    /// The payload: text as `str`, binary as `bytes`.
    #[pyo3(get)]
    pub(crate) data: Py<PyAny>,
    /// The error of the codec.
    #[pyo3(get)]
    pub(crate) error: String,
}

#[pymethods]
impl Invalid {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str) {
        ("session", "data", "error")
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let data = measure(self.data.bind(py))?;
        Ok(format!("Invalid({}, {data}, {:?})", self.session.get().describe(py), self.error))
    }
}

/// A session has ended; no further event of it follows.
#[pyclass(frozen, name = "Disconnected", module = "wirespeed.engine")]
pub(crate) struct Disconnected {
    /// The ended session.
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
