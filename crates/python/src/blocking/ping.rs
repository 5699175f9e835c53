//! The return value of `ping()`, and the argument of `pong()`.

use std::sync::Arc;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use wirespeed_driver::blocking::PingTicket;

use super::connection::BlockingConnection;
use super::deadline;

/// A ping that was sent. `wait()` returns the latency when the pong arrives.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Ping {
    pub(super) ticket: Arc<PingTicket>,
    pub(super) connection: Py<BlockingConnection>,
}

#[pymethods]
impl Ping {
    /// Waits for the pong and returns the latency in seconds.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<f64> {
        let deadline = deadline(timeout)?;
        self.connection.get().wait_for_pong(py, &self.ticket, deadline)
    }

    /// Whether the pong has arrived.
    fn is_set(&self) -> bool {
        matches!(self.ticket.outcome(), Some(Ok(_)))
    }

    /// Whether the connection ended before the pong arrived.
    fn _has_failed(&self) -> bool {
        matches!(self.ticket.outcome(), Some(Err(())))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.connection)
    }

    /// The latency in seconds, `None` until the pong has arrived.
    #[getter]
    fn latency(&self) -> Option<f64> {
        self.ticket.outcome()?.ok().map(|latency| latency.as_secs_f64())
    }
}

/// The argument of `pong`, where `None` is not a valid value.
pub(super) enum PongData<'py> {
    Empty,
    Value(Bound<'py, PyAny>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for PongData<'py> {
    type Error = std::convert::Infallible;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> Result<Self, Self::Error> {
        Ok(Self::Value(object.to_owned()))
    }
}
