//! The connection and its event loop: registration, timers, pausing, the actions after each event, and the end.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use wirespeed_driver::buffer_pool::LARGE_READ_SIZE;
use wirespeed_driver::connection::{Action, ActionCursor, Unparsed, Watermarks};
use wirespeed_driver::endpoint::Failure;
use wirespeed_driver::protocol::failpoint;
use wirespeed_driver::socket::{Mode, unacknowledged};

use super::access::{complete_future, is_done, set_result};
use super::connection::{AsyncConnection, Backend};
use super::invoke::{self, FirstError};
use super::loop_adapter::{LoopAdapter, Reader};
use super::loop_state::LoopState;
use crate::gil_yield;

/// The number of the next callback, see [`Reader`].
static NEXT_READER: AtomicU32 = AtomicU32::new(1);

/// Bytes after which a connection with more to read lets the loop run other callbacks.
const TURN_BYTES: usize = 3 * LARGE_READ_SIZE;

impl AsyncConnection {
    pub(super) fn make_adapter<'a>(this: &'a Bound<'_, Self>) -> PyResult<&'a Py<LoopAdapter>> {
        let conn = this.get();
        if let Some(adapter) = conn.adapter.get() {
            return Ok(adapter);
        }
        let adapter = Py::new(this.py(), LoopAdapter::new(this)?)?;
        Ok(conn.adapter.get_or_init(|| adapter))
    }

    /// Attaches the connection: the loop has a transport already, or registers the descriptor now.
    pub(super) fn attach(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        Self::make_adapter(this)?;
        if matches!(&*conn.backend.lock(py), Backend::Transport(_)) {
            return Self::start(this);
        }
        let Some(fd) = conn.lock(py)?.driver().socket().map(wirespeed_driver::socket::Socket::raw) else {
            return Ok(());
        };
        #[cfg(target_os = "linux")]
        if let Some(registry) = LoopState::registry(conn.loop_state.bind(py)) {
            *conn.backend.lock(py) = Backend::EpollRegistry(registry, fd);
            return Self::start(this);
        }
        *conn.backend.lock(py) = Backend::Descriptor(fd);
        Self::start(this)
    }

    /// Takes over an asyncio transport. No other work is done before [`Self::attach`]: uvloop closes the
    /// descriptor of a transport that is aborted before `create_connection` returns, and then the socket object
    /// closes the same number again.
    pub(super) fn on_transport(this: &Bound<'_, Self>, transport: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        Self::make_adapter(this)?;
        *conn.backend.lock(py) = Backend::Transport(transport.clone().unbind());
        let write = conn.lock(py)?.wait_state.send_queue().marks();
        limit_transport(transport, write)?;
        transport.call_method0("pause_reading").map(drop)
    }

    fn start(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        conn.lock(py)?.attached = true;
        conn.watch_readable(py, true)?;
        if conn.listener.is_some() {
            conn.hold(this);
            Self::make_adapter(this)?.get().set_context(py)?;
        }
        let refused = conn.lock(py)?.driver().send_half().failure().is_some();
        let opened = if refused { Ok(()) } else { Self::notify_open(this) };
        conn.schedule(this)?;
        // Bytes after the response of the opening handshake were received already.
        opened.and(Self::process(this))
    }

    // ---- called by the loop ----

    /// Handles a readable socket. With `requested`, a call scheduled by the connection, to process bytes that
    /// were read before.
    #[inline]
    pub(super) fn on_readable(this: &Bound<'_, Self>, requested: bool) -> PyResult<()> {
        this.get().loop_state.get().begin_turn(this.py());
        match Self::read_once(this, requested)? {
            0 => Ok(()),
            read => Self::read_more(this, read),
        }
    }

    /// Reads again while a large message fills the buffer that it has for itself, up to [`TURN_BYTES`].
    /// Returning to the loop between reads costs as much as the copy that such a buffer saves.
    fn read_more(this: &Bound<'_, Self>, mut read: usize) -> PyResult<()> {
        while read < TURN_BYTES {
            {
                let state = this.get().lock(this.py())?;
                // A task that has yielded processes the bytes when it is resumed.
                if state.wait_state.is_paused() || state.turn_pending {
                    break;
                }
            }
            match Self::read_once(this, false)? {
                0 => break,
                more => read += more,
            }
        }
        Ok(())
    }

    /// Reads once, and delivers to waiting tasks. Returns the number of bytes if there are probably more to
    /// read, else 0.
    #[inline]
    fn read_once(this: &Bound<'_, Self>, requested: bool) -> PyResult<usize> {
        let py = this.py();
        let conn = this.get();
        let mut filled = 0;
        let ended = {
            let mut state = conn.lock(py)?;
            failpoint::hit("python.readable");
            let postponed = state.wait_state.inbox().unparsed() == Unparsed::Postponed;
            if postponed && !requested {
                return Ok(0); // the scheduled call does it: otherwise both would schedule another call
            }
            if postponed {
                state.wait_state.inbox_mut().set_unparsed(Unparsed::Due);
            }
            let has_input = state.driver().endpoint().has_input();
            if has_input && state.turn_pending {
                return Ok(0); // the task processes it when it is resumed
            }
            // Bytes that were read before are parsed before more are read.
            if !postponed && (!has_input || !state.driver().send_half().state().can_receive()) {
                state.wait_state.inbox_mut().set_unparsed(Unparsed::New);
                let has_receiver = conn.listens() || state.wait_state.may_have_receivers();
                let limit = state.wait_state.inbox().room();
                let received = state.driver_mut().read_by(has_receiver, limit, |operation, socket| {
                    let large = operation.is_large();
                    let result = gil_yield::run_transfer(py, large, || operation.read(socket, Mode::NonBlocking));
                    filled = operation.filled(&result);
                    result
                });
                if !received && state.wait_state.inbox().is_empty() {
                    return Ok(0);
                }
            }
            state.driver().send_half().is_eof()
        };
        let processed = Self::process(this);
        // Stop watching: the end of the stream stays readable, and writing the rest may take long.
        if ended && !conn.lock(py)?.driver().is_over() {
            return processed.and(conn.watch_readable(py, false)).map(|()| 0);
        }
        processed.map(|()| filled)
    }

    /// Handles that the loop has dropped its callback because of an error of the socket. Reading returns the
    /// error after the bytes before it.
    pub(super) fn on_dropped(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let Backend::Descriptor(fd) = *conn.backend.lock(py) else { return Ok(()) };
        // Removes the rest of the registration, also that for writing.
        let number = fd.into_pyobject(py)?.into_any();
        invoke::method(conn.event_loop.bind(py), intern!(py, "remove_reader"), [&number])?;
        conn.reader.store(0, Ordering::Relaxed);
        Self::on_readable(this, true)?;
        let (over, paused, blocked) = {
            let state = conn.lock(py)?;
            (state.driver().is_over(), state.wait_state.is_paused(), state.wait_state.send_queue().is_blocked())
        };
        if over || conn.reader.load(Ordering::Relaxed) != 0 {
            return Ok(());
        }
        if blocked {
            conn.watch_writable(py, true)?;
        }
        if paused { Ok(()) } else { conn.watch_readable(py, true) }
    }

    pub(super) fn on_bytes(this: &Bound<'_, Self>, bytes: &[u8]) -> PyResult<()> {
        let conn = this.get();
        conn.loop_state.get().begin_turn(this.py());
        {
            let mut state = conn.lock(this.py())?;
            state.wait_state.receive(bytes);
            if !state.attached {
                return Ok(());
            }
        }
        Self::process(this)?;
        // uvloop starts reading on a transport even if it was paused before.
        if conn.lock(this.py())?.wait_state.is_paused() { conn.watch_readable(this.py(), false) } else { Ok(()) }
    }

    pub(super) fn on_end(this: &Bound<'_, Self>, error: Option<io::Error>) -> PyResult<()> {
        {
            let mut state = this.get().lock(this.py())?;
            state.driver_mut().receive_end(error);
            if !state.attached {
                return Ok(());
            }
        }
        Self::process(this)
    }

    pub(super) fn on_lost(this: &Bound<'_, Self>, error: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let error = error.map(|error| match error.getattr("errno").and_then(|errno| errno.extract::<i32>()) {
            Ok(errno) => io::Error::from_raw_os_error(errno),
            Err(_) => io::Error::other(error.to_string()),
        });
        {
            let mut state = conn.lock(py)?;
            state.transport_lost = true;
            if !state.driver().is_over() {
                state.driver_mut().receive_end(error);
            }
            if !state.attached {
                return Ok(());
            }
        }
        let mut first_error = FirstError::new();
        first_error.record(Self::process(this));
        {
            let mut state = conn.lock(py)?;
            if !state.driver().is_over() {
                state.driver_mut().end(Failure::Aborted);
            }
        }
        first_error.record(Self::run_actions(this));
        // The transport closes its socket when this returns, before any notified task can run.
        let (closers, abort_timer) = {
            let mut state = conn.lock(py)?;
            (state.wait_state.record_transport_closed(), state.abort_timer.take())
        };
        if let Some(abort_timer) = abort_timer {
            first_error.record(invoke::method(abort_timer.bind(py), intern!(py, "cancel"), []).map(drop));
        }
        first_error.record(notify_closers(py, closers));
        first_error.record(conn.release(py));
        first_error.into_result()
    }

    pub(super) fn on_pause_writing(&self, py: Python<'_>) -> PyResult<()> {
        self.lock(py)?.wait_state.send_queue_mut().set_blocked(true);
        Ok(())
    }

    /// Handles that the time requested by [`Self::schedule`] has come.
    pub(super) fn on_timer(this: &Bound<'_, Self>, now: Instant) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let backlog = conn.transport_backlog(py);
        let retry = {
            let mut state = conn.lock(py)?;
            failpoint::hit("python.timer");
            state.timer = None;
            state.wait_state.handle_deadline(now, backlog)
        };
        let mut first_error = FirstError::new();
        first_error.record(Self::write_out(this));
        first_error.record(conn.schedule_at(this, retry));
        first_error.into_result()
    }

    /// Returns the bytes that a transport has accepted and its peer has not acknowledged: in its buffer and in
    /// the kernel's. 0 if there is no transport, or if it does not report them.
    fn transport_backlog(&self, py: Python<'_>) -> u64 {
        let Some(transport) = self.transport(py) else { return 0 };
        let transport = transport.bind(py);
        let buffered = transport.call_method0(intern!(py, "get_write_buffer_size"));
        let buffered = buffered.and_then(|size| size.extract::<u64>()).unwrap_or(0);
        let socket = transport.call_method1(intern!(py, "get_extra_info"), (intern!(py, "socket"),));
        let number = socket.and_then(|socket| socket.call_method0(intern!(py, "fileno"))?.extract::<i32>());
        buffered + number.map_or(0, unacknowledged)
    }

    // ---- calls of the loop ----

    fn schedule(&self, this: &Bound<'_, Self>) -> PyResult<()> {
        self.schedule_at(this, None)
    }

    /// Sets the timer to the time that the connection needs, but not before `least`.
    fn schedule_at(&self, this: &Bound<'_, Self>, least: Option<Instant>) -> PyResult<()> {
        let py = this.py();
        let (old, deadline) = {
            let state = self.lock(py)?;
            // After a fork the loop's timer also belongs to the parent.
            if state.driver().send_half().is_forked() {
                return Ok(());
            }
            let deadline = state.driver().deadline(Instant::now());
            (state.timer, deadline.map(|deadline| least.map_or(deadline, |least| deadline.max(least))))
        };
        let key = LoopState::schedule(self.loop_state.bind(py), Self::make_adapter(this)?, old, deadline)?;
        self.lock(py)?.timer = key;
        Ok(())
    }

    pub(super) fn watch_readable(&self, py: Python<'_>, on: bool) -> PyResult<()> {
        let Some(adapter) = self.adapter.get() else { return Ok(()) };
        let event_loop = self.event_loop.bind(py);
        enum Call {
            Nothing,
            Descriptor(i32),
            Transport(Py<PyAny>),
            #[cfg(target_os = "linux")]
            EpollRegistry(Py<super::epoll_registry::EpollRegistry>, i32),
        }
        let call = match &*self.backend.lock(py) {
            Backend::None => Call::Nothing,
            Backend::Descriptor(fd) => Call::Descriptor(*fd),
            Backend::Transport(transport) => Call::Transport(transport.clone_ref(py)),
            #[cfg(target_os = "linux")]
            Backend::EpollRegistry(registry, fd) => Call::EpollRegistry(registry.clone_ref(py), *fd),
        };
        // These calls are idempotent: see `retry_interrupted`.
        invoke::retry_interrupted(|| match &call {
            Call::Nothing => Ok(()),
            Call::Descriptor(fd) if on => {
                let number = NEXT_READER.fetch_add(1, Ordering::Relaxed).max(1);
                self.reader.store(number, Ordering::Relaxed);
                let reader = Bound::new(py, Reader::new(adapter.clone_ref(py), number))?;
                let (fd, readable) = (fd.into_pyobject(py)?, reader.getattr(intern!(py, "readable"))?);
                invoke::method(event_loop, intern!(py, "add_reader"), [fd.as_any(), &readable]).map(drop)
            }
            Call::Descriptor(fd) => {
                self.reader.store(0, Ordering::Relaxed);
                let fd = fd.into_pyobject(py)?;
                invoke::method(event_loop, intern!(py, "remove_reader"), [fd.as_any()]).map(drop)
            }
            Call::Transport(transport) => {
                let transport = transport.bind(py);
                let closing = invoke::method(transport, intern!(py, "is_closing"), [])?.is_truthy()?;
                // A transport starts in the reading state.
                let reading = invoke::method(transport, intern!(py, "is_reading"), [])?.is_truthy()?;
                if closing || reading == on {
                    return Ok(());
                }
                let name = if on { intern!(py, "resume_reading") } else { intern!(py, "pause_reading") };
                invoke::method(transport, name, []).map(drop)
            }
            #[cfg(target_os = "linux")]
            Call::EpollRegistry(registry, fd) => registry.get().watch(*fd, adapter.bind(py), Some(on), None),
        })
    }

    pub(super) fn watch_writable(&self, py: Python<'_>, on: bool) -> PyResult<()> {
        let Some(adapter) = self.adapter.get() else { return Ok(()) };
        let event_loop = self.event_loop.bind(py);
        #[cfg(target_os = "linux")]
        {
            let registry = match &*self.backend.lock(py) {
                Backend::EpollRegistry(registry, fd) => Some((registry.clone_ref(py), *fd)),
                _ => None,
            };
            if let Some((registry, fd)) = registry {
                return registry.get().watch(fd, adapter.bind(py), None, Some(on));
            }
        }
        let Backend::Descriptor(fd) = *self.backend.lock(py) else { return Ok(()) };
        self.writer.store(on, Ordering::Relaxed);
        let fd = fd.into_pyobject(py)?;
        invoke::retry_interrupted(|| {
            if on {
                let writable = adapter.bind(py).getattr(intern!(py, "_writable"))?;
                invoke::method(event_loop, intern!(py, "add_writer"), [fd.as_any(), &writable]).map(drop)
            } else {
                invoke::method(event_loop, intern!(py, "remove_writer"), [fd.as_any()]).map(drop)
            }
        })
    }

    // ---- after each event ----

    /// Performs the actions that follow from an event. The driver decides which actions, and which tasks are
    /// woken. An exception of one action does not prevent the others.
    #[inline]
    pub(super) fn run_actions(this: &Bound<'_, Self>) -> PyResult<()> {
        let quiescent = this.get().lock(this.py())?.is_quiescent(Instant::now);
        if quiescent { Ok(()) } else { Self::run_all_actions(this) }
    }

    fn run_all_actions(this: &Bound<'_, Self>) -> PyResult<()> {
        failpoint::hit("python.settle");
        let py = this.py();
        let conn = this.get();
        let (mut first_error, mut cursor) = (FirstError::new(), ActionCursor::default());
        loop {
            first_error.record(Self::deliver_notifications(this));
            let step = conn.lock(py)?.wait_state.poll_action(&mut cursor, py, Instant::now);
            match step {
                Action::CheckTransportBuffer => first_error.record(conn.set_transport_buffered(py)),
                Action::ShutdownWrite => conn.shut_down_writing(py, &mut first_error),
                Action::Write => {
                    let result = Self::write_queue(this);
                    if result.is_err() {
                        cursor.fail_write();
                    }
                    first_error.record(result);
                }
                Action::NotifyFlushed => first_error.record(conn.notify_flushed(py)),
                Action::Wake(waiter) => first_error.record(waiter.wake(py, false)),
                Action::WritableNotice => first_error.record(conn.notify_writable_soon(py)),
                Action::Pause => first_error.record(conn.watch_readable(py, false)),
                Action::Fill => first_error.record(Self::fill(this)),
                Action::Resume => first_error.record(conn.watch_readable(py, true)),
                Action::Schedule => first_error.record(conn.schedule(this)),
                Action::Finish => {
                    first_error.record(Self::finish(this));
                    return first_error.into_result();
                }
                Action::Idle => break,
            }
        }
        first_error.record(conn.release(py));
        first_error.into_result()
    }

    /// Parses the remaining read bytes into the queue.
    fn fill(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        // The caller, which runs actions, delivers other notifications.
        if this.get().lock(py)?.fill_queue(py)? { this.get().schedule_process(py) } else { Ok(()) }
    }

    /// Handles the end of TCP: notifies all waiting tasks, once.
    fn finish(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let mut first_error = FirstError::new();
        // The loop closes the socket of a transport in its next iteration, unless the loop is closed.
        let on_transport = matches!(&*conn.backend.lock(py), Backend::Transport(_))
            && !invoke::query_bool(conn.event_loop.bind(py), intern!(py, "is_closed"), &mut first_error);
        let (socket, teardown) = {
            let mut state = conn.lock(py)?;
            let lingers = on_transport && !state.transport_lost;
            let Some(teardown) = state.wait_state.finish(lingers) else { return first_error.into_result() };
            (state.driver_mut().take_ended(), teardown)
        };
        drop(teardown.large);
        // The loop must forget the descriptor before the system can reuse its number.
        first_error.record(conn.detach(py));
        drop(socket);
        first_error.record(conn.schedule(this));
        for waiter in teardown.waiters {
            first_error.record(waiter.wake(py, false));
        }
        for waiter in teardown.flushes {
            waiter.fail(py, conn.closed(py));
            first_error.record(waiter.wake(py, false));
        }
        for future in teardown.pings {
            first_error.record(conn.fail_future(py, future.bind(py)));
        }
        first_error.record(notify_closers(py, teardown.closers));
        first_error.record(Self::notify_close(this));
        first_error.record(conn.release(py));
        first_error.into_result()
    }

    /// Fails the future of a ping on a closed connection.
    fn fail_future(&self, py: Python<'_>, future: &Bound<'_, PyAny>) -> PyResult<()> {
        if is_done(future) {
            return Ok(());
        }
        let error = self.closed(py).into_value(py).into_bound(py);
        let completed = complete_future(future, intern!(py, "set_exception"), error.as_any());
        // Marks the exception as retrieved, so that asyncio does not log it.
        let retrieved = invoke::method(future, intern!(py, "exception"), []).map(drop);
        completed.and(retrieved)
    }

    /// Shuts down the write direction of the transport. A transport that cannot do this closes both directions
    /// after it has written everything.
    fn shut_down_writing(&self, py: Python<'_>, first_error: &mut FirstError) {
        let Some(transport) = self.transport(py) else { return };
        let transport = transport.bind(py);
        let half = invoke::query_bool(transport, intern!(py, "can_write_eof"), first_error);
        let name = if half { intern!(py, "write_eof") } else { intern!(py, "close") };
        first_error.record(invoke::retry_interrupted(|| match invoke::method(transport, name, []) {
            // The peer has reset the connection. The transport has not noticed yet, and will report it.
            Err(error) if error.is_instance_of::<PyOSError>(py) => Ok(()),
            result => result.map(drop),
        }));
    }

    /// Makes the loop abort a closing transport after the close timeout.
    fn abort_later(&self, transport: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = transport.py();
        let now = Instant::now();
        let Some(by) = self.lock(py)?.driver_mut().start_close_timeout(now) else { return Ok(()) };
        let delay = by.saturating_duration_since(now).as_secs_f64().into_pyobject(py)?;
        let abort = transport.getattr(intern!(py, "abort"))?;
        // Aborting twice does no harm. Not aborting would.
        let (timer, result) = invoke::retry_interrupted_value(|| {
            invoke::method(self.event_loop.bind(py), intern!(py, "call_later"), [delay.as_any(), &abort])
        });
        self.lock(py)?.abort_timer = timer.map(Bound::unbind);
        result
    }

    fn detach(&self, py: Python<'_>) -> PyResult<()> {
        let backend = std::mem::replace(&mut *self.backend.lock(py), Backend::None);
        // After a fork, the loop's registration is shared with the parent, whose connection stays open.
        if self.lock(py)?.driver().send_half().is_forked() {
            return Ok(());
        }
        let event_loop = self.event_loop.bind(py);
        match backend {
            Backend::None => Ok(()),
            Backend::Descriptor(fd) => {
                // A closed loop has no registrations.
                if invoke::method(event_loop, intern!(py, "is_closed"), [])?.is_truthy()? {
                    return Ok(());
                }
                self.reader.store(0, Ordering::Relaxed);
                let fd = fd.into_pyobject(py)?.into_any();
                let mut first_error = FirstError::new();
                let forget = |name| invoke::retry_interrupted(|| invoke::method(event_loop, name, [&fd]).map(drop));
                first_error.record(forget(intern!(py, "remove_reader")));
                if self.writer.swap(false, Ordering::Relaxed) {
                    first_error.record(forget(intern!(py, "remove_writer")));
                }
                first_error.into_result()
            }
            #[cfg(target_os = "linux")]
            Backend::EpollRegistry(registry, fd) => {
                registry.get().forget(py, fd);
                Ok(())
            }
            Backend::Transport(transport) => {
                // Kept for `get_extra_info`. Bytes that it has not written by now were not read by the peer
                // within the timeout.
                let bound = transport.bind(py).clone();
                *self.backend.lock(py) = Backend::Transport(transport);
                let mut first_error = FirstError::new();
                if invoke::query_bool(event_loop, intern!(py, "is_closed"), &mut first_error) {
                    return first_error.into_result();
                }
                // A TLS transport does not report what the transport below it has yet to write. Unless the
                // connection failed, it writes that within the close timeout.
                let failed = self.lock(py)?.driver().send_half().failure().is_some();
                let at_once = failed || invoke::query_bool(&bound, intern!(py, "can_write_eof"), &mut first_error);
                if !at_once {
                    first_error.record(self.abort_later(&bound));
                }
                let name = if at_once { intern!(py, "abort") } else { intern!(py, "close") };
                // An asyncio transport would close twice if it is aborted inside its resume_writing.
                if self.lock(py)?.resuming {
                    first_error.record(invoke::call_soon(event_loop, &bound.getattr(name)?));
                } else {
                    first_error.record(invoke::retry_interrupted(|| invoke::method(&bound, name, []).map(drop)));
                }
                first_error.into_result()
            }
        }
    }
}

/// Sets the watermarks at which a transport calls `pause_writing` and `resume_writing`.
pub(super) fn limit_transport(transport: &Bound<'_, PyAny>, marks: Watermarks) -> PyResult<()> {
    let kwargs = PyDict::new(transport.py());
    kwargs.set_item("high", marks.high)?;
    kwargs.set_item("low", marks.low)?;
    transport.call_method("set_write_buffer_limits", (), Some(&kwargs)).map(drop)
}

pub(super) fn notify_closers(py: Python<'_>, closers: Vec<Py<PyAny>>) -> PyResult<()> {
    let mut first_error = FirstError::new();
    for future in closers {
        first_error.record(set_result(future.bind(py), py.None().bind(py)));
    }
    first_error.into_result()
}
