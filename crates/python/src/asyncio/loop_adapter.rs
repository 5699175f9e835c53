//! The callbacks that the event loop holds for a connection: for a descriptor, or as the protocol of a
//! transport.
//!
//! The loop keeps its callbacks alive, so this object refers to the connection weakly. If the application drops
//! a connection, its finalizer runs and the socket is closed. While a task waits on the connection, or a
//! listener is attached, the reference is strong: the loop then keeps both alive, as with any other transport.

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

/// The object that an event loop holds for a connection.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct LoopAdapter {
    weak: Py<PyWeakrefReference>,
    strong: GilMutex<Option<Py<AsyncConnection>>>,
    /// The context in which a listener is called: the context that opened the connection, as for any callback.
    context: OnceLock<Py<PyAny>>,
}

impl LoopAdapter {
    pub(super) fn new(connection: &Bound<'_, AsyncConnection>) -> PyResult<Self> {
        let weak = PyWeakrefReference::new(connection)?.unbind();
        Ok(Self { weak, strong: GilMutex::new(None), context: OnceLock::new() })
    }

    /// Makes the current context the one in which a listener is called.
    pub(super) fn set_context(&self, py: Python<'_>) -> PyResult<()> {
        let context = invoke::current_context(py)?;
        let _ = self.context.set(context.unbind()); // only the first call sets it
        Ok(())
    }

    /// Runs `f`, which may call a listener, in the listener's context.
    #[inline]
    fn in_context(&self, connection: &Bound<'_, AsyncConnection>, f: impl FnOnce() -> PyResult<()>) -> PyResult<()> {
        let contained = || Self::contain(connection, f);
        match self.context.get() {
            None => contained(),
            Some(context) => invoke::in_context(context.bind(connection.py()), contained),
        }
    }

    /// Runs the work of a loop callback for a connection.
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

    /// Stops keeping the connection alive.
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
        slf.get().in_context(&connection, || AsyncConnection::on_readable(&connection, false))
    }

    pub(super) fn writable(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        slf.get().in_context(&connection, || AsyncConnection::on_writable(&connection))
    }

    pub(super) fn handle_timer(slf: &Bound<'_, Self>, now: Instant) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        slf.get().in_context(&connection, || AsyncConnection::on_timer(&connection, now))
    }
}

#[pymethods]
impl LoopAdapter {
    /// Processes read bytes in the loop's next iteration, as requested by the connection.
    fn _readable(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        Self::contain(&connection, || AsyncConnection::on_readable(&connection, true))
    }

    /// Handles that the loop stopped watching the descriptor without a request.
    fn _dropped(slf: &Bound<'_, Self>) -> PyResult<()> {
        let Some(connection) = slf.get().connection(slf.py())? else { return Ok(()) };
        Self::contain(&connection, || AsyncConnection::on_dropped(&connection))
    }

    /// Handles that the descriptor is writable.
    fn _writable(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::writable(slf)
    }

    /// Handles that a future of the connection is done or cancelled.
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
        // A transport closes itself when this raises. An exception of another origin, such as a signal handler,
        // must not cause that.
        Self::contain(&connection, || AsyncConnection::on_bytes(&connection, data.as_bytes()))
            .or_else(|error| invoke::report(connection.get().event_loop.bind(slf.py()), error))
    }

    /// Returns false if the transport must close itself; all replies are written by then. A transport that
    /// cannot be half-closed does so in any case, and asyncio's log a warning for the result true.
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

/// The callback of `add_reader`, to which only the loop refers. A loop that drops it without a request has met
/// an error of the socket. (uvloop calls it once more, which may read the bytes before the error, and then
/// forgets the descriptor.)
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Reader {
    adapter: Py<LoopAdapter>,
    /// The number of the registration, see [`AsyncConnection::reader`].
    number: u32,
}

impl Reader {
    pub(super) fn new(adapter: Py<LoopAdapter>, number: u32) -> Self {
        Self { adapter, number }
    }
}

#[pymethods]
impl Reader {
    /// The descriptor is readable.
    fn readable(&self, py: Python<'_>) -> PyResult<()> {
        LoopAdapter::readable(self.adapter.bind(py))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.adapter)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Not while the interpreter is finalizing.
        let _ = Python::try_attach(|py| {
            // A pending exception is preserved.
            let pending = PyErr::take(py);
            let _ = self.notify_dropped(py); // a closed loop drops all callbacks and accepts none
            if let Some(pending) = pending {
                pending.restore(py);
            }
        });
    }
}

impl Reader {
    fn notify_dropped(&self, py: Python<'_>) -> PyResult<()> {
        match self.adapter.get().connection(py)? {
            Some(connection) if connection.get().reader.load(Ordering::Relaxed) == self.number => {
                let dropped = self.adapter.bind(py).getattr(intern!(py, "_dropped"))?;
                invoke::call_soon(connection.get().event_loop.bind(py), &dropped)
            }
            _ => Ok(()),
        }
    }
}
