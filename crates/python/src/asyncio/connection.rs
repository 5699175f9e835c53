//! The asyncio connection: base of what `wirespeed.connect` returns. Rarely used methods are in Python.
//!
//! Order of calls: the constructor takes the [`Opened`] parts. `_attach` registers the descriptor with the
//! loop, or the loop calls `connection_made` of `_loop_adapter` first. On a server, `_send_answer` sends the
//! answer to the handshake. Then `recv`, `send` and their variants work in any order. `_begin_close`, `_leave`
//! or `abort` end the connection, and `_closed_future` waits for its end.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Instant;

use pyo3::exceptions::{PyBlockingIOError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use wirespeed_driver::ConnectionDriver;
use wirespeed_driver::connection::End;
use wirespeed_driver::protocol::CloseCode;

use super::gil_mutex::GilMutex;
use super::invoke;
use super::listener::Listener;
use super::loop_adapter::LoopAdapter;
use super::loop_state::LoopState;
use super::operation::{Operation, OperationKind};
use super::owner_mutex::OwnerCheckedMutex;
use super::raw::{adopt, is_initialized};
use super::state::State;
use crate::addresses::Addresses;
use crate::errors::CloseErrorCache;
use crate::handshake::{Answer, Handshake, REFUSED_BYTES};
use crate::opening::Opened;
use crate::options::{AsyncOptions, duration};
use crate::{errors, source, ssl_layer, view};

/// The source of I/O events.
pub(super) enum Backend {
    /// Not attached yet, or detached.
    None,
    /// The loop's `add_reader` and `add_writer`.
    Descriptor(c_int),
    /// An epoll of this library.
    #[cfg(target_os = "linux")]
    EpollRegistry(Py<super::epoll_registry::EpollRegistry>, c_int),
    /// An asyncio transport.
    Transport(Py<PyAny>),
}

/// A WebSocket connection on an event loop. Base of `wirespeed.ClientConnection`.
#[pyclass(frozen, subclass, weakref, dict, module = "wirespeed._native")]
pub(crate) struct AsyncConnection {
    pub(super) state: OwnerCheckedMutex<State>,
    /// The replacement for `state` in a child process, if a thread of the parent had locked it at the fork.
    pub(super) replacement: OnceLock<Box<OwnerCheckedMutex<State>>>,
    pub(super) backend: GilMutex<Backend>,
    pub(super) event_loop: Py<PyAny>,
    pub(super) loop_state: Py<LoopState>,
    pub(super) adapter: OnceLock<Py<LoopAdapter>>,
    /// The number of the loop's callback for a readable descriptor; 0 if none is wanted.
    pub(super) reader: AtomicU32,
    /// Whether the loop has a callback for a writable descriptor.
    pub(super) writer: AtomicBool,
    pub(super) listener: Option<Listener>,
    /// The loop is in debug mode. It resumes tasks itself then, so that it can measure how long their steps
    /// take.
    pub(super) debug: bool,
    handshake: Py<Handshake>,
    pub(super) metadata: Metadata,
}

/// Properties that the connection only stores.
pub(super) struct Metadata {
    logger: Py<PyAny>,
    addresses: Addresses,
    pub(super) close_errors: CloseErrorCache,
    /// Created on access.
    id: OnceLock<Py<PyAny>>,
    /// The server that accepted the connection.
    server: Option<Py<PyAny>>,
}

#[pymethods]
impl AsyncConnection {
    #[new]
    #[pyo3(signature = (opened, *, r#loop, logger, local_address = None, remote_address = None, listener = None, server = None, **_kwargs))]
    #[allow(clippy::too_many_arguments)] // keyword-only, from one caller
    fn new(
        py: Python<'_>,
        opened: &Opened,
        r#loop: &Bound<'_, PyAny>,
        logger: Bound<'_, PyAny>,
        local_address: Option<Bound<'_, PyAny>>,
        remote_address: Option<Bound<'_, PyAny>>,
        listener: Option<Bound<'_, PyAny>>,
        server: Option<Bound<'_, PyAny>>,
        _kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let parts = opened.take()?;
        let options = parts.options.event_loop;
        let AsyncOptions { limits, zero_copy } =
            options.ok_or_else(|| PyTypeError::new_err("opened must be from options for an event loop"))?;
        let conn = ConnectionDriver::new(parts.endpoint, parts.socket, parts.options.settings.close_timeout);
        super::raw::asyncio(py)?; // imported now rather than when a task is woken
        let listener = listener.map(|listener| Listener::new(&listener, zero_copy)).transpose()?;
        let mut state = State::new(conn, limits, listener.as_ref().is_some_and(Listener::takes_messages));
        state.wants_controls = listener.as_ref().is_some_and(Listener::takes_controls);
        if parts.handshake.is_pending() {
            state.wait_state.send_queue_mut().lock_for_opening(); // nothing is sent before the answer
        }
        Ok(Self {
            state: OwnerCheckedMutex::new(state),
            replacement: OnceLock::new(),
            backend: GilMutex::new(Backend::None),
            event_loop: r#loop.clone().unbind(),
            loop_state: LoopState::of(r#loop)?.unbind(),
            adapter: OnceLock::new(),
            reader: AtomicU32::new(0),
            writer: AtomicBool::new(false),
            listener,
            debug: r#loop.call_method0("get_debug")?.is_truthy()?,
            handshake: Py::new(py, parts.handshake)?,
            metadata: Metadata {
                close_errors: CloseErrorCache::default(),
                logger: logger.unbind(),
                addresses: parts.addresses.with_overrides(local_address, remote_address),
                id: OnceLock::new(),
                server: server.map(Bound::unbind),
            },
        })
    }

    /// The object that the loop calls: the protocol of a transport.
    #[getter]
    fn _loop_adapter(slf: &Bound<'_, Self>) -> PyResult<Py<LoopAdapter>> {
        Ok(Self::make_adapter(slf)?.clone_ref(slf.py()))
    }

    /// Registers the descriptor with the loop and starts reading.
    fn _attach(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::contain(slf, || Self::attach(slf))
    }

    /// Receives a message that has already arrived.
    #[pyo3(signature = (decode = None))]
    fn recv_nowait(slf: &Bound<'_, Self>, decode: Option<bool>) -> PyResult<Py<PyAny>> {
        match Self::contain(slf, || Self::receive_nowait(slf, decode))? {
            Some(message) => Ok(message),
            None => Err(PyBlockingIOError::new_err("no message is ready")),
        }
    }

    /// Receives all messages that have arrived. Waits for the first.
    #[pyo3(signature = (limit = 1024, decode = None))]
    fn recv_many<'py>(slf: &Bound<'py, Self>, limit: isize, decode: Option<bool>) -> PyResult<Bound<'py, PyAny>> {
        match usize::try_from(limit) {
            Ok(limit) if limit > 0 => adopt(slf.py(), Operation::create_many(slf, decode, limit)),
            _ => Err(PyValueError::new_err("limit must be at least 1")),
        }
    }

    /// Returns the next fragment, whether it is text, and whether it is the last, for `recv_streaming`.
    fn _recv_fragment<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        // Bytes, because a text fragment may end inside a character.
        adopt(slf.py(), Operation::create(slf, OperationKind::Fragment, Some(false)))
    }

    /// Drops the rest of a message whose fragments are being received, if there is one.
    fn _discard_message(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::contain(slf, || {
            slf.get().lock(slf.py())?.wait_state.inbox_mut().discard_message();
            Self::serve_receivers(slf)
        })
    }

    fn __aiter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        adopt(slf.py(), Operation::create(slf, OperationKind::Next, None))
    }

    /// Sends a message without waiting.
    #[pyo3(signature = (message, *, text = None, compress = None))]
    fn send_nowait(
        slf: &Bound<'_, Self>,
        message: &Bound<'_, PyAny>,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> PyResult<()> {
        Self::contain(slf, || Self::send_at_once(slf, message, text, compress))
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

    /// Starts a fragmented message. Raises an exception if one is being sent.
    fn _begin_fragments(slf: &Bound<'_, Self>) -> PyResult<()> {
        let task = super::raw::current_task(slf.get().event_loop.bind(slf.py()))?;
        let mut state = slf.get().lock(slf.py())?;
        if state.wait_state.send_queue_mut().begin_fragments(task) {
            return Ok(());
        }
        Err(PyRuntimeError::new_err("a message of fragments is being sent"))
    }

    /// Ends a fragmented message, whether it succeeded or not.
    fn _end_fragments(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::contain(slf, || {
            slf.get().lock(slf.py())?.wait_state.send_queue_mut().end_fragments();
            Self::run_actions(slf)
        })
    }

    /// Sends one fragment of the current message. The first fragment determines the type of the message.
    #[pyo3(signature = (fragment, first, fin, text, compress))]
    fn _send_fragment<'py>(
        slf: &Bound<'py, Self>,
        fragment: &Bound<'py, PyAny>,
        first: bool,
        fin: bool,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> PyResult<(bool, Bound<'py, PyAny>)> {
        Self::contain(slf, || Self::send_fragment(slf, fragment, first, fin, text, compress))
    }

    /// Waits until the caller may queue a message. The caller must then queue it immediately.
    fn _room<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        adopt(slf.py(), Operation::create(slf, OperationKind::SendTurn, None))
    }

    /// Waits until the send queue is not above its high watermark.
    fn _drained<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let full = slf.get().lock(slf.py())?.wait_state.is_above_high();
        adopt(slf.py(), if full { Operation::create(slf, OperationKind::Drain, None) } else { Operation::done() })
    }

    /// Whether a frame is partly sent, so that no control frame can follow yet.
    #[getter]
    fn _is_mid_frame(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.lock(py)?.wait_state.send_queue().is_sending_large())
    }

    /// Waits until the kernel has accepted all bytes queued before the call.
    fn flush<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        adopt(slf.py(), Operation::create(slf, OperationKind::Flush, None))
    }

    /// Sends a ping. Returns a future of its latency.
    #[pyo3(signature = (data = None))]
    fn _ping(slf: &Bound<'_, Self>, data: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let this = slf.get();
        this.check_loop(py, "ping()")?;
        let payload = match data {
            Some(data) => source::control(data)?,
            None => this.lock(py)?.driver().send_half().draw_ping().to_vec(),
        };
        if this.lock(py)?.driver().send_half().keepalive().is_outstanding(&payload) {
            return Err(errors::ping_outstanding(py));
        }
        let future = Self::create_future(slf)?;
        Self::contain(slf, || {
            {
                let mut state = this.lock(py)?;
                if state.driver().is_closing() {
                    drop(state);
                    return Err(this.closed(py));
                }
                let sent = state.wait_state.send_ping(&payload, future.clone_ref(py), Instant::now());
                sent.map_err(|error| errors::refused(py, error))?;
            }
            this.hold(slf);
            Self::write_out(slf)
        })?;
        Ok(future)
    }

    /// Sends an unsolicited pong.
    fn _pong(slf: &Bound<'_, Self>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let payload = source::control(data)?;
        let py = slf.py();
        slf.get().check_loop(py, "pong()")?;
        Self::contain(slf, || {
            {
                let mut state = slf.get().lock(py)?;
                if state.driver().is_closing() {
                    drop(state);
                    return Err(slf.get().closed(py));
                }
                state.driver_mut().send_half_mut().send_pong(&payload).map_err(|error| errors::refused(py, error))?;
            }
            Self::write_out(slf)
        })
    }

    /// Starts the closing handshake. With `keep`, the application goes on receiving, so no message is dropped.
    #[pyo3(signature = (code, reason, *, keep = false))]
    fn _begin_close(slf: &Bound<'_, Self>, code: i64, reason: &str, keep: bool) -> PyResult<()> {
        // Codes that do not fit are invalid like 0. RFC 6455 7.4.1: 1005 stands for a close frame without a
        // code.
        let code = u16::try_from(code).unwrap_or(0);
        let code = if code == 1005 { None } else { Some(CloseCode(code)) };
        slf.get().check_loop(slf.py(), "close()")?;
        Self::contain(slf, || Self::begin_close(slf, code, reason, keep))
    }

    /// Returns a future for the end of the connection, or `None` if it is closed. Only an `awaited` future
    /// keeps the connection alive.
    #[pyo3(signature = (*, awaited = true))]
    fn _closed_future(slf: &Bound<'_, Self>, awaited: bool) -> PyResult<Option<Py<PyAny>>> {
        let py = slf.py();
        let this = slf.get();
        Self::run_actions(slf)?; // it may be closed without a notification yet
        let end = this.lock(py)?.wait_state.end();
        let over = match end {
            End::NotYet => false,
            // A closed loop never closes the socket of its transport.
            End::Lingering => invoke::method(this.event_loop.bind(py), intern!(py, "is_closed"), [])?.is_truthy()?,
            End::Complete => true,
        };
        if over {
            return Ok(None);
        }
        let future = Self::create_future(slf)?;
        {
            let mut state = this.lock(py)?;
            if state.wait_state.end() == End::Complete {
                return Ok(None); // it was closed meanwhile
            }
            let wait_state = &mut state.wait_state;
            let future = future.clone_ref(py);
            if awaited { wait_state.add_closer(future) } else { wait_state.add_observer(future) }
        }
        if awaited {
            this.hold(slf);
        }
        Ok(Some(future))
    }

    /// The first exception that a listener raised.
    #[getter]
    fn _listener_error(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        Ok(self.lock(py)?.listener_error.as_ref().map(|error| error.clone_ref(py).into_any()))
    }

    /// Closes the connection immediately.
    fn abort(slf: &Bound<'_, Self>) -> PyResult<()> {
        let abort = slf.getattr(intern!(slf.py(), "abort"))?;
        Self::in_loop(slf, [&abort], || Self::abort_here(slf))
    }

    /// Starts closing for a caller that cannot wait: a finalizer, or a coroutine that is being closed.
    fn _leave(slf: &Bound<'_, Self>, code: u16) -> PyResult<()> {
        let leave = slf.getattr(intern!(slf.py(), "_leave"))?;
        let argument = code.into_pyobject(slf.py())?.into_any();
        Self::in_loop(slf, [&leave, &argument], || Self::contain(slf, || Self::close_unattended(slf, CloseCode(code))))
    }

    /// The event loop.
    #[getter]
    fn _loop(&self, py: Python<'_>) -> Py<PyAny> {
        self.event_loop.clone_ref(py)
    }

    /// Changes the timeout of closing handshakes that begin from now on.
    fn _set_close_timeout(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<()> {
        let timeout = duration("close_timeout", seconds)?;
        self.lock(py)?.driver_mut().set_close_timeout(timeout);
        Ok(())
    }

    /// 0 connecting, 1 open, 2 closing, 3 closed: the values of `wirespeed.State`.
    #[getter]
    fn _state(&self, py: Python<'_>) -> PyResult<u8> {
        let state = self.lock(py)?;
        if state.wait_state.is_connecting() && !state.driver().is_over() {
            return Ok(0);
        }
        // After a failure nothing can be sent, even if the protocol is still in an open state.
        Ok(view::state(state.driver().send_half().state(), state.driver().is_over())
            .max(1 + u8::from(state.wait_state.is_closing())))
    }

    /// Code and reason of the received close frame, or 1006 if there was none. `None` while the connection is
    /// open.
    #[getter]
    fn _close(&self, py: Python<'_>) -> PyResult<Option<(u16, String)>> {
        let state = self.lock(py)?;
        Ok(view::close(state.driver().send_half(), state.driver().is_over()))
    }

    /// The opening handshake.
    #[getter]
    fn _handshake(&self, py: Python<'_>) -> Py<Handshake> {
        self.handshake.clone_ref(py)
    }

    /// Queues the server's answer to the opening handshake. Returns the client's error if the answer refuses
    /// it.
    fn _send_answer(&self, py: Python<'_>, answer: &Answer) -> PyResult<Option<Py<PyAny>>> {
        let mut state = self.lock(py)?;
        state.wait_state.send_queue_mut().unlock_after_opening();
        answer.queue(state.driver_mut().endpoint_mut());
        if !answer.accepts() {
            state.driver_mut().limit_reading(REFUSED_BYTES);
        }
        drop(state);
        Ok(answer.error(py))
    }

    /// Returns the exception that calls raise after the connection is closed.
    fn _closed_error(&self, py: Python<'_>) -> Py<PyAny> {
        self.closed(py).into_value(py).into_any()
    }

    /// The value of `_origin` of this connection's exceptions.
    #[getter]
    fn _origin(&self) -> usize {
        errors::origin(self)
    }

    /// A UUID, for logs.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if let Some(id) = self.metadata.id.get() {
            return Ok(id.clone_ref(py));
        }
        let id = py.import("uuid")?.call_method0("uuid4")?.unbind();
        Ok(self.metadata.id.get_or_init(|| id).clone_ref(py))
    }

    /// The server that has accepted the connection.
    #[getter]
    fn _server(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.metadata.server.as_ref().map(|server| server.clone_ref(py))
    }

    /// The logger passed to `connect`.
    #[getter]
    fn logger(&self, py: Python<'_>) -> Py<PyAny> {
        self.metadata.logger.clone_ref(py)
    }

    /// Address of this end when the connection was opened.
    #[getter]
    fn local_address(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.metadata.addresses.local.to_python(py)
    }

    /// Address of the other end.
    #[getter]
    fn remote_address(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.metadata.addresses.remote.to_python(py)
    }

    /// Whether this is a copy in a child process. The connection belongs to the parent then.
    #[getter]
    fn _is_forked(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.lock(py)?.driver().send_half().is_forked())
    }

    /// Whether TCP is closed, and nothing remains to be done with it.
    #[getter]
    fn _is_over(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.lock(py)?.driver().is_over())
    }

    /// Whether `recv_streaming` is running.
    #[getter]
    fn _streaming_receiver(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.lock(py)?.streaming_receiver)
    }

    #[setter(_streaming_receiver)]
    fn set_streaming_receiver(&self, py: Python<'_>, value: bool) -> PyResult<()> {
        self.lock(py)?.streaming_receiver = value;
        Ok(())
    }

    /// Seconds between the last ping and its pong; 0 before the first.
    #[getter]
    fn latency(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.lock(py)?.driver().send_half().latency().map_or(0.0, |latency| latency.as_secs_f64()))
    }

    /// The I/O backend: "fd" or "transport".
    #[getter(io_backend)]
    fn io_backend_name(&self, py: Python<'_>) -> &'static str {
        match &*self.backend.lock(py) {
            Backend::Transport(_) => "transport",
            _ => "fd",
        }
    }

    /// The transport, if the I/O backend is a transport.
    #[getter]
    fn _transport(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        match &*self.backend.lock(py) {
            Backend::Transport(transport) => Some(transport.clone_ref(py)),
            _ => None,
        }
    }

    /// Returns the number of the socket's descriptor, or -1 if it is closed or belongs to a transport.
    fn _fileno(&self, py: Python<'_>) -> PyResult<c_int> {
        Ok(self.lock(py)?.driver().socket().map_or(-1, wirespeed_driver::socket::Socket::raw))
    }

    /// Properties of the TLS connection, if TLS is used.
    #[getter]
    fn _tls(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        view::tls(py, self.lock(py)?.driver().send_half())
    }

    /// Returns counters of the connection.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, messages, bytes, unsent) = {
            let state = self.lock(py)?;
            let send_half = state.driver().send_half();
            (
                send_half.stats(),
                state.wait_state.inbox().len(),
                state.wait_state.inbox().payload_bytes(),
                send_half.queued(),
            )
        };
        view::stats(py, stats, messages, bytes, unsent + self.buffered_by_transport(py)?)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if !is_initialized(&raw const self.event_loop) {
            return Ok(());
        }
        visit.call(&self.event_loop)?;
        visit.call(&self.loop_state)?;
        visit.call(&self.handshake)?;
        visit.call(&self.metadata.logger)?;
        visit.call(&self.metadata.server)?;
        self.metadata.addresses.traverse(&visit)?;
        if let Some(adapter) = self.adapter.get() {
            visit.call(adapter)?;
        }
        if let Some(listener) = &self.listener {
            listener.traverse(&visit)?;
        }
        if let Some(backend) = self.backend.try_lock_for_gc() {
            match &*backend {
                Backend::Transport(transport) => visit.call(transport)?,
                #[cfg(target_os = "linux")]
                Backend::EpollRegistry(registry, _) => visit.call(registry)?,
                _ => {}
            }
        }
        // If it is locked, the objects are not visited: the collector then takes them for referenced and keeps
        // them.
        let Some(state) = self.state.try_lock_for_gc() else { return Ok(()) };
        ssl_layer::traverse(state.driver().send_half().layer(), &visit)?;
        state.traverse(&visit)
    }

    fn __clear__(&self) {
        // This breaks every cycle: cycles through the loop's own objects are cleared there.
        let taken = self.state.try_lock_for_gc().map(|mut state| state.take_references());
        drop(taken);
    }
}
