//! Callbacks: what a `wirespeed.Listener` is told, and when.

#![allow(unsafe_code)] // the buffer protocol, for views of the read buffer

use std::ffi::c_int;
use std::ptr;

use pyo3::exceptions::{PyBufferError, PyException, PyKeyboardInterrupt, PyRuntimeError, PySystemExit};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use wirespeed_driver::buffer_pool::ReadBuffer;
use wirespeed_driver::connection::Unparsed;
use wirespeed_driver::protocol::CloseCode;

use super::connection::AsyncConnection;
use super::gil_mutex::GilMutex;
use super::invoke;
use super::invoke::FirstError;
use super::state::{Arrival, Control};

/// The methods of a listener, looked up once.
pub(super) struct Listener {
    on_open: Option<Py<PyAny>>,
    on_message: Option<Py<PyAny>>,
    on_ping: Option<Py<PyAny>>,
    on_pong: Option<Py<PyAny>>,
    on_close: Option<Py<PyAny>>,
    on_writable: Option<Py<PyAny>>,
    zero_copy: bool,
    /// The view that is lent out now, or was last.
    loan: GilMutex<Option<Py<Loan>>>,
}

impl Listener {
    pub(super) fn new(listener: &Bound<'_, PyAny>, zero_copy: bool) -> PyResult<Self> {
        let base = listener.py().import("wirespeed.asyncio")?.getattr("Listener")?;
        let method = |name: &str| -> PyResult<Option<Py<PyAny>>> {
            // What was not overridden does nothing: it is not called.
            if listener.get_type().getattr(name)?.is(&base.getattr(name)?) {
                return Ok(None);
            }
            Ok(Some(listener.getattr(name)?.unbind()))
        };
        Ok(Self {
            on_open: method("on_open")?,
            on_message: method("on_message")?,
            on_ping: method("on_ping")?,
            on_pong: method("on_pong")?,
            on_close: method("on_close")?,
            on_writable: method("on_writable")?,
            zero_copy,
            loan: GilMutex::new(None),
        })
    }

    /// Whether messages go to it; otherwise they are for `recv`.
    #[inline]
    pub(super) fn takes_messages(&self) -> bool {
        self.on_message.is_some()
    }

    /// Whether it wants to know of pings or pongs.
    pub(super) fn takes_controls(&self) -> bool {
        self.on_ping.is_some() || self.on_pong.is_some()
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for method in [&self.on_open, &self.on_message, &self.on_ping, &self.on_pong, &self.on_close, &self.on_writable]
        {
            visit.call(method)?;
        }
        Ok(())
    }
}

/// Bytes of a read buffer, lent to one call of `on_message`. What is kept beyond the call keeps the buffer.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Loan {
    inner: GilMutex<Lent>,
}

struct Lent {
    data: *const u8,
    len: usize,
    exports: usize,
    /// The buffer, once somebody has kept a view of it.
    _owner: ReadBuffer,
}

// SAFETY: `data` points into a buffer that lives as long as anybody can look: during the call by the caller,
// afterwards by `_owner`.
unsafe impl Send for Lent {}

#[pymethods]
impl Loan {
    /// # Safety
    ///
    /// Called by the interpreter, with a place for the view.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let py = slf.py();
        let (data, len) = {
            let mut checked_out = slf.get().inner.lock(py);
            if checked_out.data.is_null() {
                // SAFETY: the place of the caller.
                unsafe { (*view).obj = ptr::null_mut() };
                return Err(PyBufferError::new_err("this view was valid inside on_message only"));
            }
            checked_out.exports += 1;
            (checked_out.data, checked_out.len)
        };
        // SAFETY: `len` bytes at `data`, read-only; they outlive the export, see `Lent`.
        let result = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data.cast_mut().cast(), len as ffi::Py_ssize_t, 1, flags)
        };
        if result != 0 {
            slf.get().inner.lock(py).exports -= 1;
            return Err(PyErr::fetch(py));
        }
        Ok(())
    }

    /// # Safety
    ///
    /// Called by the interpreter, with a view that `__getbuffer__` has filled.
    unsafe fn __releasebuffer__(slf: Bound<'_, Self>, _view: *mut ffi::Py_buffer) {
        slf.get().inner.lock(slf.py()).exports -= 1;
    }
}

impl AsyncConnection {
    /// Tells the listener everything that was read.
    pub(super) fn dispatch(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        wirespeed_driver::protocol::failpoint::hit("python.dispatch");
        let Some(listener) = &conn.listener else { return Ok(()) };
        let iteration = conn.loop_state.get().iteration();
        loop {
            let arrival = {
                let mut state = conn.lock(py)?;
                if state.driver.is_over() {
                    return Ok(()); // it was aborted: nothing more is for the listener
                }
                if state.is_receive_turn_due(iteration) {
                    state.inbox.set_unparsed(Unparsed::Postponed);
                    drop(state);
                    return conn.serve_soon(py);
                }
                let zero_copy = listener.zero_copy && listener.on_message.is_some();
                state.next_arrival(py, zero_copy)?
            };
            let mut steps = FirstError::new();
            steps.note(Self::tell_notes(this));
            let Some(arrival) = arrival else {
                conn.lock(py)?.driver.endpoint.release_parsed();
                return steps.end();
            };
            let failed = conn.lock(py)?.listener_error.is_some();
            let result = match arrival {
                _ if failed => Ok(()), // it was told enough
                Arrival::Message(message) => match &listener.on_message {
                    Some(method) if listener.zero_copy && message.bind(py).is_instance_of::<PyBytes>() => {
                        PyMemoryView::from(message.bind(py))
                            .and_then(|view| call(method, [this.as_any(), view.as_any()]))
                    }
                    Some(method) => call(method, [this.as_any(), message.bind(py)]),
                    None => Ok(()),
                },
                Arrival::View(data, len) => match &listener.on_message {
                    Some(method) => conn.lend(this, listener, method, data, len),
                    None => Ok(()),
                },
                Arrival::Control(control) => Self::tell_control(this, control),
            };
            if let Err(error) = result {
                steps.note(Self::fail_listener(this, error));
            }
            if let Err(error) = steps.end() {
                // The program goes on, perhaps: so does what was read behind this.
                conn.lock(py)?.inbox.set_unparsed(Unparsed::Postponed);
                conn.serve_soon(py)?;
                return Err(error);
            }
        }
    }

    /// Calls `on_message` with a view of the read buffer.
    fn lend(
        &self,
        this: &Bound<'_, Self>,
        listener: &Listener,
        method: &Py<PyAny>,
        data: *const u8,
        len: usize,
    ) -> PyResult<()> {
        let py = this.py();
        // The buffer is out of the connection while the view is out: nothing that the listener calls can move
        // or reuse it.
        let (input, start) = self.lock(py)?.driver.endpoint.take_input();
        let checked_out = listener.loan.lock(py).take();
        let loan = match checked_out {
            Some(loan) => loan,
            None => {
                let checked_out = Lent { data: ptr::null(), len: 0, exports: 0, _owner: ReadBuffer::default() };
                Py::new(py, Loan { inner: GilMutex::new(checked_out) })?
            }
        };
        {
            let mut checked_out = loan.get().inner.lock(py);
            checked_out.data = if len == 0 { ptr::NonNull::<u8>::dangling().as_ptr() } else { data };
            checked_out.len = len;
        }
        let result = PyMemoryView::from(loan.bind(py)).and_then(|view| call(method, [this.as_any(), view.as_any()]));
        let kept = {
            let mut checked_out = loan.get().inner.lock(py);
            if checked_out.exports == 0 {
                checked_out.data = ptr::null();
            }
            checked_out.exports > 0
        };
        if kept {
            // Somebody keeps a view: the buffer is theirs, we go on with a copy of the rest.
            let rest = ReadBuffer::exact(input.get(start..).unwrap_or_default());
            loan.get().inner.lock(py)._owner = input;
            self.lock(py)?.driver.endpoint.put_input((rest, 0));
        } else {
            self.lock(py)?.driver.endpoint.put_input((input, start));
            *listener.loan.lock(py) = Some(loan);
        }
        result
    }

    /// Tells of a ping or pong.
    pub(super) fn tell_control(this: &Bound<'_, Self>, control: Control) -> PyResult<()> {
        let Some(listener) = &this.get().listener else { return Ok(()) };
        if this.get().lock(this.py())?.listener_error.is_some() {
            return Ok(());
        }
        let (method, data) = match control {
            Control::Ping(data) => (&listener.on_ping, data),
            Control::Pong(data) => (&listener.on_pong, data),
        };
        let Some(method) = method else { return Ok(()) };
        let data = PyBytes::new(this.py(), &data);
        Self::guard(this, call(method, [this.as_any(), data.as_any()]))
    }

    /// Whether messages go to a listener.
    #[inline]
    pub(super) fn listens(&self) -> bool {
        self.listener.as_ref().is_some_and(Listener::takes_messages)
    }

    pub(super) fn tell_open(this: &Bound<'_, Self>) -> PyResult<()> {
        let Some(listener) = &this.get().listener else { return Ok(()) };
        let Some(method) = &listener.on_open else { return Ok(()) };
        Self::guard(this, call(method, [this.as_any()]))
    }

    pub(super) fn writable_notice(this: &Bound<'_, Self>) -> PyResult<()> {
        let Some(listener) = &this.get().listener else { return Ok(()) };
        let Some(method) = &listener.on_writable else { return Ok(()) };
        Self::guard(this, call(method, [this.as_any()]))
    }

    pub(super) fn tell_close(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let Some(method) = this.get().listener.as_ref().and_then(|listener| listener.on_close.as_ref()) else {
            return Ok(());
        };
        let (code, reason) = {
            let state = this.get().lock(py)?;
            crate::view::close(state.driver.send_half(), true).unwrap_or((1006, String::new()))
        };
        let (code, reason) = (code.into_pyobject(py)?, reason.into_pyobject(py)?);
        Self::guard(this, call(method, [this.as_any(), code.as_any(), reason.as_any()]))
    }

    fn guard(this: &Bound<'_, Self>, result: PyResult<()>) -> PyResult<()> {
        match result {
            Ok(()) => Ok(()),
            Err(error) => Self::fail_listener(this, error),
        }
    }

    /// A callback has raised: the connection is closed with 1011, and `wait_closed` raises it. Of
    /// KeyboardInterrupt and SystemExit, the loop hears.
    fn fail_listener(this: &Bound<'_, Self>, error: PyErr) -> PyResult<()> {
        let py = this.py();
        if error.is_instance_of::<PyKeyboardInterrupt>(py) || error.is_instance_of::<PySystemExit>(py) {
            return Err(error);
        }
        let error = if error.is_instance_of::<PyException>(py) {
            error
        } else {
            // Whoever waits for the end is not to take it for its own cancellation.
            let told =
                PyRuntimeError::new_err(format!("a method of the listener has raised {}", error.get_type(py).name()?));
            told.set_cause(py, Some(error));
            told
        };
        {
            let mut state = this.get().lock(py)?;
            if state.listener_error.is_some() {
                drop(state);
                error.write_unraisable(py, Some(this.as_any())); // one can be raised
                return Ok(());
            }
            state.listener_error = Some(error.clone_ref(py).into_value(py));
        }
        // Now: closing takes its time, and may be cut short.
        if let Err(failed) = this.call_method1(intern!(py, "_tell_listener_error"), (error.value(py),)) {
            failed.write_unraisable(py, Some(this.as_any()));
        }
        Self::begin_close(this, Some(CloseCode::INTERNAL_ERROR), "", false)
    }
}

fn call<'py, const N: usize>(method: &Py<PyAny>, arguments: [&Bound<'py, PyAny>; N]) -> PyResult<()> {
    invoke::call(method.bind(arguments[0].py()), arguments).map(drop)
}
