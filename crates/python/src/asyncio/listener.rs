//! Callbacks: calls the methods of a `wirespeed.Listener`.

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
    /// A view that can be reused for the next message.
    view: GilMutex<Option<Py<BufferView>>>,
}

impl Listener {
    pub(super) fn new(listener: &Bound<'_, PyAny>, zero_copy: bool) -> PyResult<Self> {
        let base = listener.py().import("wirespeed.asyncio")?.getattr("Listener")?;
        let method = |name: &str| -> PyResult<Option<Py<PyAny>>> {
            // Methods that were not overridden do nothing, and are not called.
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
            view: GilMutex::new(None),
        })
    }

    /// Returns whether messages go to the listener. Otherwise they are for `recv`.
    #[inline]
    pub(super) fn takes_messages(&self) -> bool {
        self.on_message.is_some()
    }

    /// Returns whether the listener wants pings or pongs.
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

/// Bytes of a read buffer, exposed to one call of `on_message`. A view that is kept beyond the call keeps the
/// buffer.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct BufferView {
    inner: GilMutex<ViewState>,
}

struct ViewState {
    data: *const u8,
    len: usize,
    exports: usize,
    /// The buffer, once a view outlives its call.
    _owner: ReadBuffer,
}

// SAFETY: `data` points into a buffer that lives as long as a view can exist: the caller keeps it during the
// call, and `_owner` afterwards.
unsafe impl Send for ViewState {}

#[pymethods]
impl BufferView {
    /// # Safety
    ///
    /// Called by the interpreter, with valid memory for the view.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let py = slf.py();
        let (data, len) = {
            let mut state = slf.get().inner.lock(py);
            if state.data.is_null() {
                // SAFETY: the caller's memory for the view.
                unsafe { (*view).obj = ptr::null_mut() };
                return Err(PyBufferError::new_err("this view was valid inside on_message only"));
            }
            state.exports += 1;
            (state.data, state.len)
        };
        // SAFETY: `len` bytes at `data`, read-only. They outlive the export, see `ViewState`.
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
    /// Calls the listener for everything that was read.
    pub(super) fn dispatch(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        wirespeed_driver::protocol::failpoint::hit("python.dispatch");
        let Some(listener) = &conn.listener else { return Ok(()) };
        let iteration = conn.loop_state.get().iteration();
        loop {
            let arrival = {
                let mut state = conn.lock(py)?;
                if state.driver().is_over() {
                    return Ok(()); // aborted: the listener gets no more messages
                }
                if state.is_receive_turn_due(iteration) {
                    state.wait_state.inbox_mut().set_unparsed(Unparsed::Postponed);
                    drop(state);
                    return conn.schedule_process(py);
                }
                let zero_copy = listener.zero_copy && listener.on_message.is_some();
                state.next_arrival(py, zero_copy)?
            };
            let mut first_error = FirstError::new();
            first_error.record(Self::deliver_notifications(this));
            let Some(arrival) = arrival else {
                conn.lock(py)?.driver_mut().endpoint_mut().release_parsed();
                return first_error.into_result();
            };
            let failed = conn.lock(py)?.listener_error.is_some();
            let result = match arrival {
                _ if failed => Ok(()), // no calls after an exception
                Arrival::Message(message) => match &listener.on_message {
                    Some(method) if listener.zero_copy && message.bind(py).is_instance_of::<PyBytes>() => {
                        PyMemoryView::from(message.bind(py))
                            .and_then(|view| call(method, [this.as_any(), view.as_any()]))
                    }
                    Some(method) => call(method, [this.as_any(), message.bind(py)]),
                    None => Ok(()),
                },
                Arrival::View(data, len) => match &listener.on_message {
                    Some(method) => conn.call_with_view(this, listener, method, data, len),
                    None => Ok(()),
                },
                Arrival::Control(control) => Self::notify_control(this, control),
            };
            if let Err(error) = result {
                first_error.record(Self::fail_listener(this, error));
            }
            if let Err(error) = first_error.into_result() {
                // The program may continue, so the bytes after this message are processed later.
                conn.lock(py)?.wait_state.inbox_mut().set_unparsed(Unparsed::Postponed);
                conn.schedule_process(py)?;
                return Err(error);
            }
        }
    }

    /// Calls `on_message` with a view of the read buffer.
    fn call_with_view(
        &self,
        this: &Bound<'_, Self>,
        listener: &Listener,
        method: &Py<PyAny>,
        data: *const u8,
        len: usize,
    ) -> PyResult<()> {
        let py = this.py();
        // The buffer is moved out of the connection during the call, so no call by the listener can move or
        // reuse it.
        let (input, start) = self.lock(py)?.driver_mut().endpoint_mut().take_input();
        let cached = listener.view.lock(py).take();
        let view = match cached {
            Some(view) => view,
            None => {
                let state = ViewState { data: ptr::null(), len: 0, exports: 0, _owner: ReadBuffer::default() };
                Py::new(py, BufferView { inner: GilMutex::new(state) })?
            }
        };
        {
            let mut state = view.get().inner.lock(py);
            state.data = if len == 0 { ptr::NonNull::<u8>::dangling().as_ptr() } else { data };
            state.len = len;
        }
        let result = PyMemoryView::from(view.bind(py)).and_then(|view| call(method, [this.as_any(), view.as_any()]));
        let kept = {
            let mut state = view.get().inner.lock(py);
            if state.exports == 0 {
                state.data = ptr::null();
            }
            state.exports > 0
        };
        if kept {
            // A view is kept, so it keeps the buffer. The connection continues with a copy of the rest.
            let rest = ReadBuffer::exact(input.get(start..).unwrap_or_default());
            view.get().inner.lock(py)._owner = input;
            self.lock(py)?.driver_mut().endpoint_mut().put_input((rest, 0));
        } else {
            self.lock(py)?.driver_mut().endpoint_mut().put_input((input, start));
            *listener.view.lock(py) = Some(view);
        }
        result
    }

    /// Calls the listener for a ping or pong.
    pub(super) fn notify_control(this: &Bound<'_, Self>, control: Control) -> PyResult<()> {
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

    /// Returns whether messages go to a listener.
    #[inline]
    pub(super) fn listens(&self) -> bool {
        self.listener.as_ref().is_some_and(Listener::takes_messages)
    }

    pub(super) fn notify_open(this: &Bound<'_, Self>) -> PyResult<()> {
        let Some(listener) = &this.get().listener else { return Ok(()) };
        let Some(method) = &listener.on_open else { return Ok(()) };
        Self::guard(this, call(method, [this.as_any()]))
    }

    pub(super) fn notify_writable(this: &Bound<'_, Self>) -> PyResult<()> {
        let Some(listener) = &this.get().listener else { return Ok(()) };
        let Some(method) = &listener.on_writable else { return Ok(()) };
        Self::guard(this, call(method, [this.as_any()]))
    }

    pub(super) fn notify_close(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let Some(method) = this.get().listener.as_ref().and_then(|listener| listener.on_close.as_ref()) else {
            return Ok(());
        };
        let (code, reason) = {
            let state = this.get().lock(py)?;
            crate::view::close(state.driver().send_half(), true).unwrap_or((1006, String::new()))
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

    /// Handles an exception of a callback: closes the connection with 1011, and `wait_closed` raises it.
    /// KeyboardInterrupt and SystemExit go to the loop.
    fn fail_listener(this: &Bound<'_, Self>, error: PyErr) -> PyResult<()> {
        let py = this.py();
        if error.is_instance_of::<PyKeyboardInterrupt>(py) || error.is_instance_of::<PySystemExit>(py) {
            return Err(error);
        }
        let error = if error.is_instance_of::<PyException>(py) {
            error
        } else {
            // A task in `wait_closed` must not mistake it for its own cancellation.
            let wrapped =
                PyRuntimeError::new_err(format!("a method of the listener has raised {}", error.get_type(py).name()?));
            wrapped.set_cause(py, Some(error));
            wrapped
        };
        {
            let mut state = this.get().lock(py)?;
            if state.listener_error.is_some() {
                drop(state);
                error.write_unraisable(py, Some(this.as_any())); // only the first can be raised
                return Ok(());
            }
            state.listener_error = Some(error.clone_ref(py).into_value(py));
        }
        // Reported now, because closing takes time and may be interrupted.
        if let Err(failed) = this.call_method1(intern!(py, "_tell_listener_error"), (error.value(py),)) {
            failed.write_unraisable(py, Some(this.as_any()));
        }
        Self::begin_close(this, Some(CloseCode::INTERNAL_ERROR), "", false)
    }
}

fn call<'py, const N: usize>(method: &Py<PyAny>, arguments: [&Bound<'py, PyAny>; N]) -> PyResult<()> {
    invoke::call(method.bind(arguments[0].py()), arguments).map(drop)
}
