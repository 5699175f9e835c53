//! What the event loop holds of a connection: the callbacks for a descriptor, or the protocol of a transport.
//!
//! The loop keeps its callbacks alive, so this refers to the connection weakly; an application that forgets a connection is told, and its
//! socket closed. While a task waits on the connection, or a listener listens, the reference is strong: then the loop keeps both alive, as
//! it does with any other transport.

use std::time::Instant;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyWeakrefMethods, PyWeakrefReference};

use super::connection::AsyncConnection;
use super::guarded::Guarded;

/// See the module.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Port {
    weak: Py<PyWeakrefReference>,
    strong: Guarded<Option<Py<AsyncConnection>>>,
}

impl Port {
    pub(super) fn new(connection: &Bound<'_, AsyncConnection>) -> PyResult<Self> {
        Ok(Self { weak: PyWeakrefReference::new(connection)?.unbind(), strong: Guarded::new(None) })
    }

    /// Keeps the connection alive from now on.
    pub(super) fn hold(&self, connection: &Bound<'_, AsyncConnection>) {
        let mut strong = self.strong.lock(connection.py());
        if strong.is_none() {
            *strong = Some(connection.clone().unbind());
        }
    }

    /// Does so no longer.
    pub(super) fn release(&self, py: Python<'_>) {
        let released = self.strong.lock(py).take();
        drop(released);
    }

    #[inline]
    fn connection<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, AsyncConnection>>> {
        if let Some(connection) = &*self.strong.lock(py) {
            return Ok(Some(connection.bind(py).clone()));
        }
        self.weak.bind(py).upgrade_as::<AsyncConnection>()
    }

    pub(super) fn readable(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        AsyncConnection::on_readable(&connection)
    }

    pub(super) fn writable(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        AsyncConnection::on_writable(&connection)
    }

    pub(super) fn handle_timer(slf: &Bound<'_, Self>, now: Instant) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        AsyncConnection::on_timer(&connection, now)
    }
}

#[pymethods]
impl Port {
    /// The descriptor is readable.
    fn _readable(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::readable(slf)
    }

    /// The descriptor is writable.
    fn _writable(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::writable(slf)
    }

    // ---- asyncio.Protocol ----

    fn connection_made(slf: &Bound<'_, Self>, transport: &Bound<'_, PyAny>) -> PyResult<()> {
        match slf.get().connection(slf.py())? {
            Some(connection) => AsyncConnection::on_transport(&connection, transport),
            None => transport.call_method0("abort").map(drop),
        }
    }

    fn data_received(slf: &Bound<'_, Self>, data: &Bound<'_, PyBytes>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        AsyncConnection::on_bytes(&connection, data.as_bytes())
    }

    /// False: the transport closes itself; by then everything was said.
    fn eof_received(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(false) };
        AsyncConnection::on_end(&connection, None)?;
        Ok(true)
    }

    #[pyo3(signature = (exc))]
    fn connection_lost(slf: &Bound<'_, Self>, exc: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        AsyncConnection::on_lost(&connection, exc)
    }

    fn pause_writing(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        connection.get().on_pause_writing(slf.py());
        Ok(())
    }

    fn resume_writing(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        AsyncConnection::on_writable(&connection)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.weak)?;
        self.strong.try_lock_for_gc().map_or(Ok(()), |strong| visit.call(&*strong))
    }

    fn __clear__(&self) {
        let taken = self.strong.try_lock_for_gc().and_then(|mut strong| strong.take());
        drop(taken);
    }
}
