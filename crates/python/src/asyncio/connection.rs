//! The connection of event loops: what `wirespeed.connect` returns, but for the methods off the hot path.

#![allow(unsafe_code)] // recv and send as raw methods: the trampoline would cost as much as they do

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;
use std::time::Instant;

use pyo3::exceptions::{PyBlockingIOError, PyException, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use wirespeed_driver::Evented;
use wirespeed_driver::blocking::{Closing, Item};
use wirespeed_driver::entropy;
use wirespeed_driver::peer::Failure;
use wirespeed_driver::protocol::{CloseCode, MessageKind};

use super::guarded::{Guard, Guarded};
use super::listener::Listener;
use super::loop_state::LoopState;
use super::operation::{Kind, Operation};
use super::port::Port;
use super::raw::{adopt, c};
use super::state::{Limits, Marks, State};
use crate::opening::Opened;
use crate::{errors, headers, source, view};

/// Where events come from.
pub(super) enum Backend {
    /// Nowhere yet, or no longer.
    None,
    /// The loop's `add_reader` and `add_writer`.
    Descriptor(c_int),
    /// Our own selector.
    #[cfg(target_os = "linux")]
    Selector(Py<super::selector::NativeSelector>, c_int),
    /// An asyncio transport.
    Transport(Py<PyAny>),
}

/// A WebSocket connection on an event loop. Base of `wirespeed.ClientConnection`.
#[pyclass(frozen, subclass, weakref, dict, module = "wirespeed._native")]
pub(crate) struct AsyncConnection {
    pub(super) state: Guarded<State>,
    pub(super) backend: Guarded<Backend>,
    pub(super) event_loop: Py<PyAny>,
    pub(super) loop_state: Py<LoopState>,
    pub(super) port: OnceLock<Py<Port>>,
    pub(super) listener: Option<Listener>,
    /// The loop is in debug mode: tasks are resumed by itself, so that it sees how long their steps take.
    debug: bool,
    subprotocol: Option<String>,
    request: Py<PyAny>,
    response: Py<PyAny>,
}

impl AsyncConnection {
    #[inline]
    pub(super) fn lock(&self, py: Python<'_>) -> Guard<'_, State> {
        self.state.lock(py)
    }

    /// Whether tasks may be resumed from where we are, a callback of the loop.
    #[inline]
    pub(super) fn may_wake(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(!self.debug && !super::raw::is_inside_task(self.event_loop.bind(py))?)
    }

    /// The exception of a connection that is closed.
    pub(super) fn closed(&self, py: Python<'_>) -> PyErr {
        let (failure, closing) = {
            let state = self.lock(py);
            let link = &state.conn.peer.link;
            let closing = Closing {
                received: link.close_received().cloned(),
                sent: link.close_sent().cloned(),
                received_then_sent: link.received_then_sent(),
            };
            (link.failure().cloned(), closing)
        };
        let cause = failure.and_then(|failure| errors::failure(py, &failure));
        // What a signal handler raised inside an ssl.SSLContext is no cause but goes on by itself.
        if let Some(cause) = cause.as_ref().filter(|cause| !cause.is_instance_of::<PyException>(py)) {
            return cause.clone_ref(py);
        }
        errors::connection_closed(py, &closing, cause)
    }

    /// Keeps the connection alive while somebody waits on it.
    #[inline]
    pub(super) fn hold(&self, this: &Bound<'_, Self>) {
        if let Some(port) = self.port.get() {
            port.get().hold(this);
        }
    }

    /// Stops doing so, once nobody does.
    pub(super) fn release(&self, py: Python<'_>) {
        let awaited = {
            let state = self.lock(py);
            state.is_awaited() || self.listener.is_some() && !state.finished
        };
        if !awaited && let Some(port) = self.port.get() {
            port.get().release(py);
        }
    }
}

/// `max_queue` and `write_limit` as the Python side has checked them.
fn marks(pair: (usize, usize)) -> Marks {
    Marks { high: pair.0, low: pair.1.min(pair.0) }
}

#[pymethods]
impl AsyncConnection {
    #[new]
    #[pyo3(signature = (opened, *, r#loop, queue, write_limit, yield_after, listener = None, zero_copy = false, **_kwargs))]
    #[allow(clippy::too_many_arguments)] // keyword-only, from one caller
    fn new(
        py: Python<'_>,
        opened: &Opened,
        r#loop: &Bound<'_, PyAny>,
        queue: ((usize, usize), (usize, usize)),
        write_limit: (usize, usize),
        yield_after: usize,
        listener: Option<Bound<'_, PyAny>>,
        zero_copy: bool,
        _kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let parts = opened.take()?;
        let limits = Limits {
            messages: marks(queue.0),
            bytes: marks(queue.1),
            write: marks(write_limit),
            yield_after: yield_after.max(1),
        };
        let conn = Evented::new(parts.peer, parts.socket, parts.settings.close_timeout);
        super::raw::asyncio(py)?; // now, and not when a task is to be woken
        let listener = listener.map(|listener| Listener::new(&listener, zero_copy)).transpose()?;
        let mut state = State::new(conn, limits);
        state.tell_controls = listener.as_ref().is_some_and(Listener::takes_controls);
        Ok(Self {
            state: Guarded::new(state),
            backend: Guarded::new(Backend::None),
            event_loop: r#loop.clone().unbind(),
            loop_state: LoopState::of(r#loop)?.unbind(),
            port: OnceLock::new(),
            listener,
            debug: r#loop.call_method0("get_debug")?.is_truthy()?,
            subprotocol: parts.accepted.subprotocol,
            request: headers::request(py, &parts.request)?.unbind(),
            response: headers::response(py, &parts.accepted.response)?.unbind(),
        })
    }

    /// The object that the loop calls: the protocol of a transport.
    #[getter]
    fn _port(slf: &Bound<'_, Self>) -> PyResult<Py<Port>> {
        Ok(Self::make_port(slf)?.clone_ref(slf.py()))
    }

    /// Registers the descriptor with the loop, and begins.
    fn _attach(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::attach(slf)
    }

    /// Receives a message that is there already.
    #[pyo3(signature = (decode = None))]
    fn recv_nowait(slf: &Bound<'_, Self>, decode: Option<bool>) -> PyResult<Py<PyAny>> {
        match Self::receive_nowait(slf, decode)? {
            Some(message) => Ok(message),
            None => Err(PyBlockingIOError::new_err("no message is ready")),
        }
    }

    /// Receives all messages that are there, waiting for the first.
    #[pyo3(signature = (limit = 1024, decode = None))]
    fn recv_many<'py>(slf: &Bound<'py, Self>, limit: isize, decode: Option<bool>) -> PyResult<Bound<'py, PyAny>> {
        match usize::try_from(limit) {
            Ok(limit) if limit > 0 => adopt(slf.py(), Operation::create_many(slf, decode, limit)),
            _ => Err(PyValueError::new_err("limit must be at least 1")),
        }
    }

    /// The next fragment and whether it is the last: for `recv_streaming`.
    fn _recv_fragment<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        // As bytes: a fragment of text may end inside a character.
        adopt(slf.py(), Operation::create(slf, Kind::Fragment, Some(false)))
    }

    /// Drops the rest of a message whose fragments were being received.
    fn _discard_message(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.get().lock(slf.py()).discard_message();
        Self::serve(slf)
    }

    fn __aiter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        adopt(slf.py(), Operation::create(slf, Kind::Next, None))
    }

    /// Sends a message without waiting.
    #[pyo3(signature = (message, *, text = None, compress = None))]
    fn send_nowait(
        slf: &Bound<'_, Self>,
        message: &Bound<'_, PyAny>,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> PyResult<()> {
        Self::send_at_once(slf, message, text, compress)
    }

    /// Sends many messages with few system calls.
    #[pyo3(signature = (messages, *, text = None, compress = None))]
    fn send_many<'py>(
        slf: &Bound<'py, Self>,
        messages: &Bound<'py, PyAny>,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if source::message(messages, None)?.is_some() {
            return Err(PyTypeError::new_err(format!(
                "messages must be an iterable of messages, not {}: use send() for one message",
                source::type_name(messages)
            )));
        }
        if messages.hasattr("__aiter__")? {
            return slf.call_method1("_send_many_async", (messages, text, compress));
        }
        let iterator = messages.try_iter()?.into_any();
        adopt(slf.py(), Operation::create_send_many(slf, &iterator, text, compress))
    }

    /// Begins a message of fragments; raises if there is another.
    fn _begin_fragments(slf: &Bound<'_, Self>) -> PyResult<()> {
        let mut state = slf.get().lock(slf.py());
        if state.fragmenting {
            return Err(PyRuntimeError::new_err("a message of fragments is being sent"));
        }
        state.fragmenting = true;
        Ok(())
    }

    /// Ends it, whatever came of it.
    fn _end_fragments(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.get().lock(slf.py()).fragmenting = false;
        Self::wake_senders(slf)
    }

    /// Sends one fragment of the message that was begun; the first says what kind of message it is.
    #[pyo3(signature = (fragment, first, fin, text, compress))]
    fn _send_fragment<'py>(
        slf: &Bound<'py, Self>,
        fragment: &Bound<'py, PyAny>,
        first: bool,
        fin: bool,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> PyResult<(bool, Bound<'py, PyAny>)> {
        Self::send_fragment(slf, fragment, first, fin, text, compress)
    }

    /// Waits for the turn of the caller to queue something, which it does then and there.
    fn _room<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        adopt(slf.py(), Operation::create(slf, Kind::Room, None))
    }

    /// Whether the middle of a frame is being sent: no control frame can come in between.
    #[getter]
    fn _is_mid_frame(&self, py: Python<'_>) -> bool {
        self.lock(py).large.is_some()
    }

    /// Hands the kernel what is queued; something to await for the rest, or to give the loop its turn; `None` if neither.
    fn _flush(slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
        Self::begin_flush(slf)
    }

    /// Sends a ping; the future of its latency.
    #[pyo3(signature = (data = None))]
    fn _ping(slf: &Bound<'_, Self>, data: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let payload = match data {
            Some(data) => source::control(data)?,
            None => entropy::draw_key().to_vec(),
        };
        let this = slf.get();
        if this.lock(py).conn.peer.link.keepalive.is_outstanding(&payload) {
            return Err(errors::ping_outstanding(py));
        }
        let future = this.event_loop.call_method0(py, "create_future")?;
        {
            let mut state = this.lock(py);
            if state.conn.is_closing() {
                drop(state);
                return Err(this.closed(py));
            }
            let link = &mut state.conn.peer.link;
            link.send_ping(&payload).map_err(|error| errors::refused(py, error))?;
            let id = link.keepalive.handle_ping_sent(&payload, false, Instant::now());
            state.pings.push((id, future.clone_ref(py)));
        }
        this.hold(slf);
        Self::write_out(slf)?;
        Ok(future)
    }

    /// Sends a pong that nobody asked for.
    fn _pong(slf: &Bound<'_, Self>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let payload = source::control(data)?;
        let py = slf.py();
        {
            let mut state = slf.get().lock(py);
            if state.conn.is_closing() {
                drop(state);
                return Err(slf.get().closed(py));
            }
            state.conn.peer.link.send_pong(&payload).map_err(|error| errors::refused(py, error))?;
        }
        Self::write_out(slf)
    }

    /// Begins the closing handshake. `keep`: the application goes on receiving, so nothing that arrives is dropped.
    #[pyo3(signature = (code, reason, *, keep = false))]
    fn _begin_close(slf: &Bound<'_, Self>, code: i64, reason: &str, keep: bool) -> PyResult<()> {
        // 0 is no more of a close code than what does not fit. RFC 6455 7.4.1: 1005 stands for a close frame without a code.
        let code = u16::try_from(code).unwrap_or(0);
        Self::begin_close(slf, if code == 1005 { None } else { Some(CloseCode(code)) }, reason, keep)
    }

    /// A future for the end of the connection; `None` if it is over.
    fn _closed_future(slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
        let py = slf.py();
        let this = slf.get();
        if this.lock(py).finished {
            return Ok(None);
        }
        let future = this.event_loop.call_method0(py, "create_future")?;
        {
            let mut state = this.lock(py);
            state.closers.retain(|future| !is_done(py, future));
            state.closers.push(future.clone_ref(py));
        }
        this.hold(slf);
        Ok(Some(future))
    }

    /// What a listener raised.
    #[getter]
    fn _listener_error(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let error = self.lock(py).listener_error.as_ref().map(|error| error.clone_ref(py));
        error.map(|error| error.into_value(py).into_any())
    }

    /// Ends the connection at once.
    fn abort(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.get().lock(slf.py()).conn.end(Failure::Aborted);
        Self::settle(slf)
    }

    /// 0 connecting, 1 open, 2 closing, 3 closed: the values of `wirespeed.State`.
    #[getter]
    fn _state(&self, py: Python<'_>) -> u8 {
        let state = self.lock(py);
        view::state(state.conn.peer.link.state(), state.conn.is_over())
    }

    /// Code, reason: of the close frame that arrived, else 1006; none while the connection is open.
    #[getter]
    fn _close(&self, py: Python<'_>) -> Option<(u16, String)> {
        let state = self.lock(py);
        view::close(&state.conn.peer.link, state.conn.is_over())
    }

    /// The exception that a call raises now that the connection is closed.
    fn _closed_error(&self, py: Python<'_>) -> Py<PyAny> {
        self.closed(py).into_value(py).into_any()
    }

    /// The subprotocol in use.
    #[getter]
    fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }

    /// The opening request.
    #[getter]
    fn request(&self, py: Python<'_>) -> Py<PyAny> {
        self.request.clone_ref(py)
    }

    /// Its response.
    #[getter]
    fn response(&self, py: Python<'_>) -> Py<PyAny> {
        self.response.clone_ref(py)
    }

    /// Seconds that the last ping and pong took; 0 before the first.
    #[getter]
    fn latency(&self, py: Python<'_>) -> f64 {
        self.lock(py).conn.peer.link.latency().map_or(0.0, |latency| latency.as_secs_f64())
    }

    /// "fd" or "transport".
    #[getter(port)]
    fn port_name(&self, py: Python<'_>) -> &'static str {
        match &*self.backend.lock(py) {
            Backend::Transport(_) => "transport",
            _ => "fd",
        }
    }

    /// The transport, if this is the port.
    #[getter]
    fn _transport(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        match &*self.backend.lock(py) {
            Backend::Transport(transport) => Some(transport.clone_ref(py)),
            _ => None,
        }
    }

    /// The number of the socket's descriptor, -1 once it is closed or if a transport has it.
    fn _fileno(&self, py: Python<'_>) -> c_int {
        self.lock(py).conn.socket().map_or(-1, wirespeed_driver::socket::Socket::raw)
    }

    /// The version of TLS and the protocol agreed on by ALPN, if there is TLS.
    #[getter]
    fn _tls(&self, py: Python<'_>) -> Option<(Option<String>, Option<String>)> {
        view::tls(&self.lock(py).conn.peer.link)
    }

    /// Counters.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, messages, bytes, unsent) = {
            let state = self.lock(py);
            let link = &state.conn.peer.link;
            (link.stats(), state.queue.len(), state.queued_payload(), link.queued())
        };
        view::stats(py, stats, messages, bytes, unsent)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.event_loop)?;
        visit.call(&self.loop_state)?;
        visit.call(&self.request)?;
        visit.call(&self.response)?;
        if let Some(port) = self.port.get() {
            visit.call(port)?;
        }
        if let Some(listener) = &self.listener {
            listener.traverse(&visit)?;
        }
        if let Some(backend) = self.backend.try_lock_for_gc() {
            match &*backend {
                Backend::Transport(transport) => visit.call(transport)?,
                #[cfg(target_os = "linux")]
                Backend::Selector(selector, _) => visit.call(selector)?,
                _ => {}
            }
        }
        // Locked: what is not visited is taken for referenced from elsewhere, and lives on.
        self.state.try_lock_for_gc().map_or(Ok(()), |state| state.traverse(&visit))
    }

    fn __clear__(&self) {
        // Enough to break every cycle: those through the loop's own objects are cleared there.
        let taken = self.state.try_lock_for_gc().map(|mut state| state.take_references());
        drop(taken);
    }
}

pub(super) fn is_done(py: Python<'_>, future: &Py<PyAny>) -> bool {
    future.call_method0(py, "done").and_then(|done| done.is_truthy(py)).unwrap_or(true)
}

// ---- recv and send, as CPython calls them ----

/// Runs a raw method: a panic becomes an exception.
///
/// # Safety
///
/// `object` is a live connection, and the thread is attached.
#[inline]
unsafe fn enter(
    object: *mut ffi::PyObject,
    body: impl FnOnce(&Bound<'_, AsyncConnection>) -> PyResult<*mut ffi::PyObject>,
) -> *mut ffi::PyObject {
    // SAFETY: the descriptor has checked the type of its object, and the interpreter calls attached.
    unsafe {
        let py = Python::assume_attached();
        let this = Bound::from_borrowed_ptr(py, object).cast_into_unchecked::<AsyncConnection>();
        let result = catch_unwind(AssertUnwindSafe(|| body(&this)))
            .unwrap_or_else(|_| Err(PyRuntimeError::new_err("internal error: a panic, see standard error")));
        result.unwrap_or_else(|error| {
            error.restore(py);
            ptr::null_mut()
        })
    }
}

/// Positional and keyword arguments of a raw method, by their names.
struct Arguments<'a> {
    method: &'static str,
    values: &'a [*mut ffi::PyObject],
    positional: usize,
    names: *mut ffi::PyObject,
}

impl<'a> Arguments<'a> {
    /// # Safety
    ///
    /// `values` are `count` positional values, then one for each of the names, as CPython passes them.
    unsafe fn new(
        method: &'static str,
        values: *const *mut ffi::PyObject,
        count: ffi::Py_ssize_t,
        names: *mut ffi::PyObject,
    ) -> Self {
        // SAFETY: the calling convention: `count` positional values, then one for each of the names.
        unsafe {
            let named = if names.is_null() { 0 } else { ffi::PyTuple_GET_SIZE(names) };
            let total = (count + named) as usize;
            let values = if total == 0 { &[] } else { std::slice::from_raw_parts(values, total) };
            Self { method, values, positional: count as usize, names }
        }
    }

    /// Fills `places` with borrowed references, in the order of `names`, of which `positional` may be given without a name.
    fn bind(
        &self,
        py: Python<'_>,
        names: &[&str],
        positional: usize,
        places: &mut [*mut ffi::PyObject],
    ) -> PyResult<()> {
        let method = self.method;
        if self.positional > positional {
            return Err(PyTypeError::new_err(format!(
                "{method}() takes {positional} positional arguments at most, {} were given",
                self.positional
            )));
        }
        places[..self.positional].copy_from_slice(&self.values[..self.positional]);
        if self.names.is_null() {
            return Ok(());
        }
        // SAFETY: the tuple of names that the interpreter passes.
        let given = unsafe { Bound::from_borrowed_ptr(py, self.names).cast_into_unchecked::<PyTuple>() };
        for (name, &value) in given.iter().zip(&self.values[self.positional..]) {
            let name: String = name.extract()?;
            let Some(index) = names.iter().position(|known| *known == name) else {
                return Err(PyTypeError::new_err(format!("{method}() got an unexpected keyword argument '{name}'")));
            };
            if !places[index].is_null() {
                return Err(PyTypeError::new_err(format!("{method}() got multiple values for argument '{name}'")));
            }
            places[index] = value;
        }
        Ok(())
    }
}

/// An argument that is a bool or None, or was not given.
///
/// # Safety
///
/// `place` is null or a live object.
unsafe fn option(py: Python<'_>, place: *mut ffi::PyObject) -> PyResult<Option<bool>> {
    // SAFETY: null or a borrowed reference.
    match unsafe { Bound::from_borrowed_ptr_or_opt(py, place) } {
        None => Ok(None),
        Some(object) if object.is_none() => Ok(None),
        Some(object) => object.extract::<bool>().map(Some),
    }
}

unsafe extern "C" fn recv(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the calling convention of METH_FASTCALL | METH_KEYWORDS.
    unsafe {
        if count == 0 && names.is_null() {
            let py = Python::assume_attached();
            let this = Bound::from_borrowed_ptr(py, object).cast_into_unchecked::<AsyncConnection>();
            return Operation::create(&this, Kind::Receive, None);
        }
        enter(object, |this| {
            let mut places = [ptr::null_mut(); 1];
            Arguments::new("recv", values, count, names).bind(this.py(), &["decode"], 1, &mut places)?;
            Ok(Operation::create(this, Kind::Receive, option(this.py(), places[0])?))
        })
    }
}

unsafe extern "C" fn send(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the calling convention of METH_FASTCALL | METH_KEYWORDS.
    unsafe {
        enter(object, |this| {
            let py = this.py();
            if count == 1 && names.is_null() {
                let message = Bound::from_borrowed_ptr(py, *values);
                return AsyncConnection::send(this, &message, None, None);
            }
            let mut places = [ptr::null_mut(); 3];
            let arguments = Arguments::new("send", values, count, names);
            arguments.bind(py, &["message", "text", "compress"], 1, &mut places)?;
            if places[0].is_null() {
                return Err(PyTypeError::new_err("send() is missing its argument 'message'"));
            }
            let message = Bound::from_borrowed_ptr(py, places[0]);
            AsyncConnection::send(this, &message, option(py, places[1])?, option(py, places[2])?)
        })
    }
}

/// Puts the raw methods on the class.
pub(super) fn init(py: Python<'_>) -> PyResult<()> {
    let kind = py.get_type::<AsyncConnection>();
    let method = |name, function: ffi::PyCFunctionFastWithKeywords, doc| {
        // Leaked: the descriptor refers to it for ever.
        Box::leak(Box::new(ffi::PyMethodDef {
            ml_name: name,
            ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: function },
            ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
            ml_doc: doc,
        }))
    };
    let methods = [
        ("recv", method(c!("recv"), recv, c!("recv($self, /, decode=None)\n--\n\nReceives the next message."))),
        (
            "send",
            method(
                c!("send"),
                send,
                c!(
                    "send($self, /, message, *, text=None, compress=None)\n--\n\nSends a message, or the items of an iterable as its fragments."
                ),
            ),
        ),
    ];
    for (name, definition) in methods {
        // SAFETY: attached; the definition lives for ever. A new reference, or null with an exception set.
        let descriptor = unsafe {
            let descriptor = ffi::PyDescr_NewMethod(kind.as_type_ptr(), definition);
            Bound::from_owned_ptr_or_err(py, descriptor)?
        };
        kind.setattr(name, descriptor)?;
    }
    Ok(())
}

/// A message as the operation that receives it wants it.
pub(super) fn finish_item(py: Python<'_>, item: Item<Py<PyAny>>, decode: Option<bool>) -> PyResult<Py<PyAny>> {
    match decode {
        None => Ok(item.message),
        // A message that was queued while nobody received has the form that its kind suggests.
        Some(text) => view::convert(item.message.bind(py), text),
    }
}

/// The value of a fragment.
pub(super) fn fragment(py: Python<'_>, item: Item<Py<PyAny>>) -> PyResult<Py<PyAny>> {
    let is_text = item.kind == MessageKind::Text;
    let fin = item.fin;
    let bytes = view::convert(item.message.bind(py), false)?;
    Ok((bytes, is_text, fin).into_pyobject(py)?.into_any().unbind())
}
