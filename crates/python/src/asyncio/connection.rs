//! The connection of event loops: what `wirespeed.connect` returns, but for the methods off the hot path.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Instant;

use pyo3::exceptions::{PyBlockingIOError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use wirespeed_driver::Drive;
use wirespeed_driver::drive::{End, Hold, Limits, Marks};
use wirespeed_driver::protocol::CloseCode;

use super::exclusive::Exclusive;
use super::guarded::Guarded;
use super::invoke;
use super::listener::Listener;
use super::loop_state::LoopState;
use super::operation::{Kind, Operation};
use super::port::Port;
use super::raw::{adopt, is_filled};
use super::state::State;
use crate::ends::Ends;
use crate::errors::Ending;
use crate::handshake::{Answer, Handshake, REFUSED_BYTES};
use crate::opening::{Opened, duration};
use crate::{errors, source, ssl_layer, view};

/// Where events come from.
pub(super) enum Backend {
    /// Nowhere yet, or no longer.
    None,
    /// The loop's `add_reader` and `add_writer`.
    Descriptor(c_int),
    /// An epoll of ours.
    #[cfg(target_os = "linux")]
    Ports(Py<super::ports::Ports>, c_int),
    /// An asyncio transport.
    Transport(Py<PyAny>),
}

/// A WebSocket connection on an event loop. Base of `wirespeed.ClientConnection`.
#[pyclass(frozen, subclass, weakref, dict, module = "wirespeed._native")]
pub(crate) struct AsyncConnection {
    pub(super) state: Exclusive<State>,
    /// In a child process, if a thread of the parent was at work with the state at the fork.
    pub(super) disowned: OnceLock<Box<Exclusive<State>>>,
    pub(super) backend: Guarded<Backend>,
    pub(super) event_loop: Py<PyAny>,
    pub(super) loop_state: Py<LoopState>,
    pub(super) port: OnceLock<Py<Port>>,
    /// The number of the callback that the loop has for a descriptor that is readable; 0 if it should have
    /// none.
    pub(super) reader: AtomicU32,
    /// Whether the loop has a callback for a descriptor that is writable.
    pub(super) writer: AtomicBool,
    pub(super) listener: Option<Listener>,
    /// The loop is in debug mode: tasks are resumed by itself, so that it sees how long their steps take.
    pub(super) debug: bool,
    handshake: Py<Handshake>,
    pub(super) about: About,
}

/// What the connection only carries along.
pub(super) struct About {
    logger: Py<PyAny>,
    ends: Ends,
    pub(super) ending: Ending,
    /// Made when it is asked for.
    id: OnceLock<Py<PyAny>>,
    /// Of a server's connection.
    server: Option<Py<PyAny>>,
}

/// `max_queue` and `write_limit` as the Python side has checked them.
fn marks(pair: (usize, usize)) -> Marks {
    Marks::new(pair.0, pair.1)
}

#[pymethods]
impl AsyncConnection {
    #[new]
    #[pyo3(signature = (opened, *, r#loop, logger, queue, write_limit, yield_after, local_address = None, remote_address = None, coalesce = true, listener = None, zero_copy = false, server = None, **_kwargs))]
    #[allow(clippy::too_many_arguments)] // keyword-only, from one caller
    fn new(
        py: Python<'_>,
        opened: &Opened,
        r#loop: &Bound<'_, PyAny>,
        logger: Bound<'_, PyAny>,
        queue: ((usize, usize), (usize, usize)),
        write_limit: (usize, usize),
        yield_after: usize,
        local_address: Option<Bound<'_, PyAny>>,
        remote_address: Option<Bound<'_, PyAny>>,
        coalesce: bool,
        listener: Option<Bound<'_, PyAny>>,
        zero_copy: bool,
        server: Option<Bound<'_, PyAny>>,
        _kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let parts = opened.take()?;
        let limits = Limits {
            messages: marks(queue.0),
            bytes: marks(queue.1),
            write: marks(write_limit),
            coalesce,
            yield_after: yield_after.max(1),
        };
        let conn = Drive::new(parts.peer, parts.socket, parts.settings.close_timeout);
        super::raw::asyncio(py)?; // now, and not when a task is to be woken
        let listener = listener.map(|listener| Listener::new(&listener, zero_copy)).transpose()?;
        let mut state = State::new(conn, limits, listener.as_ref().is_some_and(Listener::takes_messages));
        state.tell_controls = listener.as_ref().is_some_and(Listener::takes_controls);
        if parts.handshake.is_pending() {
            state.outbox.hold = Hold::Opening; // nothing is sent before the answer
        }
        Ok(Self {
            state: Exclusive::new(state),
            disowned: OnceLock::new(),
            backend: Guarded::new(Backend::None),
            event_loop: r#loop.clone().unbind(),
            loop_state: LoopState::of(r#loop)?.unbind(),
            port: OnceLock::new(),
            reader: AtomicU32::new(0),
            writer: AtomicBool::new(false),
            listener,
            debug: r#loop.call_method0("get_debug")?.is_truthy()?,
            handshake: Py::new(py, parts.handshake)?,
            about: About {
                ending: Ending::default(),
                logger: logger.unbind(),
                ends: parts.ends.given(local_address, remote_address),
                id: OnceLock::new(),
                server: server.map(Bound::unbind),
            },
        })
    }

    /// The object that the loop calls: the protocol of a transport.
    #[getter]
    fn _port(slf: &Bound<'_, Self>) -> PyResult<Py<Port>> {
        Ok(Self::make_port(slf)?.clone_ref(slf.py()))
    }

    /// Registers the descriptor with the loop, and begins.
    fn _attach(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::contain(slf, || Self::attach(slf))
    }

    /// Receives a message that is there already.
    #[pyo3(signature = (decode = None))]
    fn recv_nowait(slf: &Bound<'_, Self>, decode: Option<bool>) -> PyResult<Py<PyAny>> {
        match Self::contain(slf, || Self::receive_nowait(slf, decode))? {
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

    /// Drops the rest of a message whose fragments were being received, if one was.
    fn _discard_message(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::contain(slf, || {
            slf.get().lock(slf.py())?.inbox.discard_message();
            Self::serve(slf)
        })
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

    /// Begins a message of fragments; raises if there is another.
    fn _begin_fragments(slf: &Bound<'_, Self>) -> PyResult<()> {
        let task = super::raw::current_task(slf.get().event_loop.bind(slf.py()))?;
        let mut state = slf.get().lock(slf.py())?;
        if state.outbox.hold != Hold::Free {
            return Err(PyRuntimeError::new_err("a message of fragments is being sent"));
        }
        state.outbox.hold = Hold::Fragments(task);
        Ok(())
    }

    /// Ends it, whatever came of it.
    fn _end_fragments(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::contain(slf, || {
            slf.get().lock(slf.py())?.outbox.hold = Hold::Free;
            Self::settle(slf)
        })
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
        Self::contain(slf, || Self::send_fragment(slf, fragment, first, fin, text, compress))
    }

    /// Waits for the turn of the caller to queue something, which it does then and there.
    fn _room<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        adopt(slf.py(), Operation::create(slf, Kind::Room, None))
    }

    /// Return when no more waits to be sent than may.
    fn _drained<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let full = slf.get().lock(slf.py())?.is_above_high();
        adopt(slf.py(), if full { Operation::create(slf, Kind::Drain, None) } else { Operation::done() })
    }

    /// Whether the middle of a frame is being sent: no control frame can come in between.
    #[getter]
    fn _is_mid_frame(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.lock(py)?.outbox.large.is_some())
    }

    /// Return when every byte that was sent before has been handed to the kernel.
    fn flush<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        adopt(slf.py(), Operation::create(slf, Kind::Flush, None))
    }

    /// Sends a ping; the future of its latency.
    #[pyo3(signature = (data = None))]
    fn _ping(slf: &Bound<'_, Self>, data: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let this = slf.get();
        this.check_loop(py, "ping()")?;
        let payload = match data {
            Some(data) => source::control(data)?,
            None => this.lock(py)?.drive.link().draw_ping().to_vec(),
        };
        if this.lock(py)?.drive.link().keepalive.is_outstanding(&payload) {
            return Err(errors::ping_outstanding(py));
        }
        let future = Self::create_future(slf)?;
        Self::contain(slf, || {
            {
                let mut state = this.lock(py)?;
                if state.drive.is_closing() {
                    drop(state);
                    return Err(this.closed(py));
                }
                let link = state.drive.link_mut();
                link.send_ping(&payload).map_err(|error| errors::refused(py, error))?;
                let id = link.keepalive.handle_ping_sent(&payload, Instant::now());
                state.watchers.make().pings.push((id, future.clone_ref(py)));
            }
            this.hold(slf);
            Self::write_out(slf)
        })?;
        Ok(future)
    }

    /// Sends a pong that nobody asked for.
    fn _pong(slf: &Bound<'_, Self>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let payload = source::control(data)?;
        let py = slf.py();
        slf.get().check_loop(py, "pong()")?;
        Self::contain(slf, || {
            {
                let mut state = slf.get().lock(py)?;
                if state.drive.is_closing() {
                    drop(state);
                    return Err(slf.get().closed(py));
                }
                state.drive.link_mut().send_pong(&payload).map_err(|error| errors::refused(py, error))?;
            }
            Self::write_out(slf)
        })
    }

    /// Begins the closing handshake. `keep`: the application goes on receiving, so nothing that arrives is
    /// dropped.
    #[pyo3(signature = (code, reason, *, keep = false))]
    fn _begin_close(slf: &Bound<'_, Self>, code: i64, reason: &str, keep: bool) -> PyResult<()> {
        // 0 is no more of a close code than what does not fit. RFC 6455 7.4.1: 1005 stands for a close frame
        // without a code.
        let code = u16::try_from(code).unwrap_or(0);
        let code = if code == 1005 { None } else { Some(CloseCode(code)) };
        slf.get().check_loop(slf.py(), "close()")?;
        Self::contain(slf, || Self::begin_close(slf, code, reason, keep))
    }

    /// A future for the end of the connection; `None` if it is over. Unless it is `awaited`, the connection may be
    /// forgotten meanwhile.
    #[pyo3(signature = (*, awaited = true))]
    fn _closed_future(slf: &Bound<'_, Self>, awaited: bool) -> PyResult<Option<Py<PyAny>>> {
        let py = slf.py();
        let this = slf.get();
        Self::settle(slf)?; // it may be over, and nobody has been told yet
        let end = this.lock(py)?.end;
        let over = match end {
            End::NotYet => false,
            // A loop that is closed will not close the socket of its transport either.
            End::Lingering => invoke::method(this.event_loop.bind(py), intern!(py, "is_closed"), [])?.is_truthy()?,
            End::Complete => true,
        };
        if over {
            return Ok(None);
        }
        let future = Self::create_future(slf)?;
        {
            let mut state = this.lock(py)?;
            if state.end == End::Complete {
                return Ok(None); // meanwhile
            }
            let watchers = state.watchers.make();
            let futures = if awaited { &mut watchers.closers } else { &mut watchers.observers };
            futures.push(future.clone_ref(py));
        }
        if awaited {
            this.hold(slf);
        }
        Ok(Some(future))
    }

    /// What a listener raised.
    #[getter]
    fn _listener_error(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        Ok(self.lock(py)?.listener_error.as_ref().map(|error| error.clone_ref(py).into_any()))
    }

    /// Ends the connection at once.
    fn abort(slf: &Bound<'_, Self>) -> PyResult<()> {
        let abort = slf.getattr(intern!(slf.py(), "abort"))?;
        Self::in_loop(slf, [&abort], || Self::abort_here(slf))
    }

    /// Begins to close for a caller that cannot wait: a finalizer, or a coroutine that is being closed.
    fn _leave(slf: &Bound<'_, Self>, code: u16) -> PyResult<()> {
        let leave = slf.getattr(intern!(slf.py(), "_leave"))?;
        let argument = code.into_pyobject(slf.py())?.into_any();
        Self::in_loop(slf, [&leave, &argument], || Self::contain(slf, || Self::leave_here(slf, CloseCode(code))))
    }

    /// The event loop.
    #[getter]
    fn _loop(&self, py: Python<'_>) -> Py<PyAny> {
        self.event_loop.clone_ref(py)
    }

    /// Changes how long a closing may take that begins from now on.
    fn _set_close_timeout(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<()> {
        let timeout = duration("close_timeout", seconds)?;
        self.lock(py)?.drive.set_close_timeout(timeout);
        Ok(())
    }

    /// 0 connecting, 1 open, 2 closing, 3 closed: the values of `wirespeed.State`.
    #[getter]
    fn _state(&self, py: Python<'_>) -> PyResult<u8> {
        let state = self.lock(py)?;
        if state.is_connecting() && !state.drive.is_over() {
            return Ok(0);
        }
        // After a failure nothing can be sent any more, whatever the protocol knows of it.
        Ok(view::state(state.drive.link().state(), state.drive.is_over()).max(1 + u8::from(state.is_closing())))
    }

    /// Code, reason: of the close frame that arrived, else 1006; none while the connection is open.
    #[getter]
    fn _close(&self, py: Python<'_>) -> PyResult<Option<(u16, String)>> {
        let state = self.lock(py)?;
        Ok(view::close(state.drive.link(), state.drive.is_over()))
    }

    /// The opening handshake.
    #[getter]
    fn _handshake(&self, py: Python<'_>) -> Py<Handshake> {
        self.handshake.clone_ref(py)
    }

    /// Queues the answer of a server to it; why it refuses, if it does.
    fn _give(&self, py: Python<'_>, answer: &Answer) -> PyResult<Option<Py<PyAny>>> {
        let mut state = self.lock(py)?;
        state.outbox.hold = Hold::Free;
        answer.queue(&mut state.drive.peer);
        if !answer.opens() {
            state.drive.limit_reading(REFUSED_BYTES);
        }
        drop(state);
        Ok(answer.error(py))
    }

    /// The exception that a call raises now that the connection is closed.
    fn _closed_error(&self, py: Python<'_>) -> Py<PyAny> {
        self.closed(py).into_value(py).into_any()
    }

    /// What its exceptions have as `_origin`.
    #[getter]
    fn _origin(&self) -> usize {
        errors::origin(self)
    }

    /// A UUID, for logs.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if let Some(id) = self.about.id.get() {
            return Ok(id.clone_ref(py));
        }
        let id = py.import("uuid")?.call_method0("uuid4")?.unbind();
        Ok(self.about.id.get_or_init(|| id).clone_ref(py))
    }

    /// The server that has accepted it.
    #[getter]
    fn _server(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.about.server.as_ref().map(|server| server.clone_ref(py))
    }

    /// The logger given to `connect`.
    #[getter]
    fn logger(&self, py: Python<'_>) -> Py<PyAny> {
        self.about.logger.clone_ref(py)
    }

    /// Address of this end, as it was when the connection was opened.
    #[getter]
    fn local_address(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.about.ends.local.to_python(py)
    }

    /// Address of the other end.
    #[getter]
    fn remote_address(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.about.ends.remote.to_python(py)
    }

    /// Whether this is a copy in a child process: the connection is the parent's.
    #[getter]
    fn _is_forked(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.lock(py)?.drive.link().is_forked())
    }

    /// Whether TCP is over: nothing is left to be done with it.
    #[getter]
    fn _is_over(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.lock(py)?.drive.is_over())
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

    /// Seconds that the last ping and pong took; 0 before the first.
    #[getter]
    fn latency(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.lock(py)?.drive.link().latency().map_or(0.0, |latency| latency.as_secs_f64()))
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
    fn _fileno(&self, py: Python<'_>) -> PyResult<c_int> {
        Ok(self.lock(py)?.drive.socket().map_or(-1, wirespeed_driver::socket::Socket::raw))
    }

    /// What was negotiated by TLS, if there is TLS.
    #[getter]
    fn _tls(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        view::tls(py, self.lock(py)?.drive.link())
    }

    /// Counters.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, messages, bytes, unsent) = {
            let state = self.lock(py)?;
            let link = state.drive.link();
            (link.stats(), state.inbox.len(), state.inbox.payload_bytes(), link.queued())
        };
        view::stats(py, stats, messages, bytes, unsent + self.kept_by_transport(py)?)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if !is_filled(&raw const self.event_loop) {
            return Ok(());
        }
        visit.call(&self.event_loop)?;
        visit.call(&self.loop_state)?;
        visit.call(&self.handshake)?;
        visit.call(&self.about.logger)?;
        visit.call(&self.about.server)?;
        self.about.ends.traverse(&visit)?;
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
                Backend::Ports(ports, _) => visit.call(ports)?,
                _ => {}
            }
        }
        // Locked: what is not visited is taken for referenced from elsewhere, and lives on.
        let Some(state) = self.state.try_lock_for_gc() else { return Ok(()) };
        ssl_layer::traverse(state.drive.link().layer(), &visit)?;
        state.traverse(&visit)
    }

    fn __clear__(&self) {
        // Enough to break every cycle: those through the loop's own objects are cleared there.
        let taken = self.state.try_lock_for_gc().map(|mut state| state.take_references());
        drop(taken);
    }
}
