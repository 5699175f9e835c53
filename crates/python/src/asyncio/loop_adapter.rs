//! What the event loop holds of a connection: the callbacks for a descriptor, or the protocol of a transport.
//!
//! The loop keeps its callbacks alive, so this refers to the connection weakly; an application that forgets a
//! connection is told, and its socket closed. While a task waits on the connection, or a listener listens,
//! the reference is strong: then the loop keeps both alive, as it does with any other transport.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Instant;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyWeakrefMethods, PyWeakrefReference};

use super::connection::AsyncConnection;
use super::gil_mutex::GilMutex;
use super::invoke;

/// See the module.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct LoopAdapter {
    weak: Py<PyWeakrefReference>,
    strong: GilMutex<Option<Py<AsyncConnection>>>,
    /// In which a listener is called: that of whoever has opened the connection, as of any callback.
    context: OnceLock<Py<PyAny>>,
}

impl LoopAdapter {
    pub(super) fn new(connection: &Bound<'_, AsyncConnection>) -> PyResult<Self> {
        let weak = PyWeakrefReference::new(connection)?.unbind();
        Ok(Self { weak, strong: GilMutex::new(None), context: OnceLock::new() })
    }

    /// Has a listener be called in the context that is current.
    pub(super) fn keep_context(&self, py: Python<'_>) -> PyResult<()> {
        let context = invoke::current_context(py)?;
        let _ = self.context.set(context.unbind()); // the first one counts
        Ok(())
    }

    /// Runs what may call a listener in its context.
    #[inline]
    fn within(&self, connection: &Bound<'_, AsyncConnection>, f: impl FnOnce() -> PyResult<()>) -> PyResult<()> {
        let contained = || Self::contain(connection, f);
        match self.context.get() {
            None => contained(),
            Some(context) => invoke::in_context(context.bind(connection.py()), contained),
        }
    }

    /// Runs what a callback of the loop does for a connection.
    #[inline]
    fn contain<R>(connection: &Bound<'_, AsyncConnection>, f: impl FnOnce() -> PyResult<R>) -> PyResult<R> {
        let result = AsyncConnection::contain(connection, f);
        connection.get().loop_state.get().end_turn();
        result
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
        slf.get().within(&connection, || AsyncConnection::on_readable(&connection, false))
    }

    pub(super) fn writable(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        slf.get().within(&connection, || AsyncConnection::on_writable(&connection))
    }

    pub(super) fn handle_timer(slf: &Bound<'_, Self>, now: Instant) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        slf.get().within(&connection, || AsyncConnection::on_timer(&connection, now))
    }
}

#[pymethods]
impl LoopAdapter {
    /// Somebody wants the connection to look.
    fn _readable(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        Self::contain(&connection, || AsyncConnection::on_readable(&connection, true))
    }

    /// The loop does not watch the descriptor any more, and nobody has asked it to stop.
    fn _dropped(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        Self::contain(&connection, || AsyncConnection::on_dropped(&connection))
    }

    /// The descriptor is writable.
    fn _writable(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::writable(slf)
    }

    /// A future of the connection has its result, or was given up.
    fn _future_done(slf: &Bound<'_, Self>, future: &Bound<'_, PyAny>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        Self::contain(&connection, || AsyncConnection::on_future_done(&connection, future))
    }

    // ---- asyncio.Protocol ----

    fn connection_made(slf: &Bound<'_, Self>, transport: &Bound<'_, PyAny>) -> PyResult<()> {
        match slf.get().connection(slf.py())? {
            Some(connection) => Self::contain(&connection, || AsyncConnection::on_transport(&connection, transport)),
            None => transport.call_method0("abort").map(drop),
        }
    }

    fn data_received(slf: &Bound<'_, Self>, data: &Bound<'_, PyBytes>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        // A transport takes an exception out of here for its end: what is not ours, that of a signal handler,
        // is no reason for one.
        Self::contain(&connection, || AsyncConnection::on_bytes(&connection, data.as_bytes()))
            .or_else(|error| invoke::report(connection.get().event_loop.bind(slf.py()), error))
    }

    /// False: the transport closes itself; by then everything was said. One that cannot be open in one
    /// direction only does so in any case, and those of asyncio warn of the other answer.
    fn eof_received(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let py = slf.py();
        let Some(connection) = slf.get().connection(py)? else { return Ok(false) };
        Self::contain(&connection, || AsyncConnection::on_end(&connection, None))
            .or_else(|error| invoke::report(connection.get().event_loop.bind(py), error))?;
        match connection.get().transport(py) {
            Some(transport) => invoke::method(transport.bind(py), intern!(py, "can_write_eof"), [])?.is_truthy(),
            None => Ok(true),
        }
    }

    #[pyo3(signature = (exc))]
    fn connection_lost(slf: &Bound<'_, Self>, exc: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        Self::contain(&connection, || AsyncConnection::on_lost(&connection, exc))
    }

    fn pause_writing(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        connection.get().on_pause_writing(slf.py())
    }

    fn resume_writing(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        Self::contain(&connection, || AsyncConnection::on_resume_writing(&connection))
            .or_else(|error| invoke::report(connection.get().event_loop.bind(slf.py()), error))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.weak)?;
        self.context.get().map_or(Ok(()), |context| visit.call(context))?;
        self.strong.try_lock_for_gc().map_or(Ok(()), |strong| visit.call(&*strong))
    }

    fn __clear__(&self) {
        let taken = self.strong.try_lock_for_gc().and_then(|mut strong| strong.take());
        drop(taken);
    }
}

/// What `add_reader` calls: nobody but the loop holds it. A loop that drops its callback unasked has met an
/// error of the socket (uvloop: it calls once more, which may read what came before the error, and then
/// forgets the descriptor).
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Reader {
    port: Py<LoopAdapter>,
    /// Of the registration, see [`AsyncConnection::reader`].
    number: u32,
}

impl Reader {
    pub(super) fn new(port: Py<LoopAdapter>, number: u32) -> Self {
        Self { port, number }
    }
}

#[pymethods]
impl Reader {
    /// The descriptor is readable.
    fn readable(&self, py: Python<'_>) -> PyResult<()> {
        LoopAdapter::readable(self.port.bind(py))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.port)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Never while the interpreter ends.
        let _ = Python::try_attach(|py| {
            // Whatever exception is on its way goes on afterwards.
            let pending = PyErr::take(py);
            let _ = self.tell(py); // a loop that is closed drops everything, and takes no more
            if let Some(pending) = pending {
                pending.restore(py);
            }
        });
    }
}

impl Reader {
    fn tell(&self, py: Python<'_>) -> PyResult<()> {
        match self.port.get().connection(py)? {
            Some(connection) if connection.get().reader.load(Ordering::Relaxed) == self.number => {
                let dropped = self.port.bind(py).getattr(intern!(py, "_dropped"))?;
                invoke::call_soon(connection.get().event_loop.bind(py), &dropped)
            }
            _ => Ok(()),
        }
    }
}
