//! Between the connection and its loop: registering, time, pausing, and the end.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use wirespeed_driver::buffer_pool::LARGE_READ_SIZE;
use wirespeed_driver::connection::{self, Action, ActionCursor, End, Unparsed, Watermarks};
use wirespeed_driver::endpoint::Failure;
use wirespeed_driver::protocol::failpoint;
use wirespeed_driver::socket::{Mode, unacknowledged};

use super::access::{is_done, set_result, settle_future};
use super::connection::{AsyncConnection, Backend};
use super::invoke::{self, FirstError};
use super::loop_adapter::{LoopAdapter, Reader};
use super::loop_state::LoopState;
use crate::gil_yield;

/// The numbers of callbacks, see [`Reader`].
static READERS: AtomicU32 = AtomicU32::new(1);

/// Bytes after which a connection that has more to be read leaves the loop to others.
const TURN_BYTES: usize = 3 * LARGE_READ_SIZE;

impl AsyncConnection {
    pub(super) fn make_port<'a>(this: &'a Bound<'_, Self>) -> PyResult<&'a Py<LoopAdapter>> {
        let conn = this.get();
        if let Some(port) = conn.port.get() {
            return Ok(port);
        }
        let port = Py::new(this.py(), LoopAdapter::new(this)?)?;
        Ok(conn.port.get_or_init(|| port))
    }

    /// Begins: the loop has a transport, or gets the descriptor now.
    pub(super) fn attach(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        Self::make_port(this)?;
        if matches!(&*conn.backend.lock(py), Backend::Transport(_)) {
            return Self::begin(this);
        }
        let Some(fd) = conn.lock(py)?.driver.socket().map(wirespeed_driver::socket::Socket::raw) else { return Ok(()) };
        #[cfg(target_os = "linux")]
        if let Some(epolls) = LoopState::epolls(conn.loop_state.bind(py)) {
            *conn.backend.lock(py) = Backend::EpollRegistry(epolls, fd);
            return Self::begin(this);
        }
        *conn.backend.lock(py) = Backend::Descriptor(fd);
        Self::begin(this)
    }

    /// An asyncio transport is ours from now on. Nothing is done before [`Self::attach`]: uvloop closes the
    /// descriptor of a transport that is aborted before `create_connection` returns, and the socket object
    /// closes the same number again.
    pub(super) fn on_transport(this: &Bound<'_, Self>, transport: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        Self::make_port(this)?;
        *conn.backend.lock(py) = Backend::Transport(transport.clone().unbind());
        let write = conn.lock(py)?.send_queue.marks();
        limit_transport(transport, write)?;
        transport.call_method0("pause_reading").map(drop)
    }

    fn begin(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        conn.lock(py)?.begun = true;
        conn.watch_readable(py, true)?;
        if conn.listener.is_some() {
            conn.hold(this);
            Self::make_port(this)?.get().keep_context(py)?;
        }
        let refused = conn.lock(py)?.driver.send_half().failure().is_some();
        let opened = if refused { Ok(()) } else { Self::tell_open(this) };
        conn.schedule(this)?;
        // What came with the response of the opening handshake is there already.
        opened.and(Self::process(this))
    }

    // ---- what the loop calls ----

    /// The socket is readable; `asked`: or we have asked for a look, because of what was read before.
    #[inline]
    pub(super) fn on_readable(this: &Bound<'_, Self>, asked: bool) -> PyResult<()> {
        this.get().loop_state.get().begin_turn(this.py());
        match Self::read_once(this, asked)? {
            0 => Ok(()),
            read => Self::read_on(this, read),
        }
    }

    /// What has filled its room, where a large message has that for itself, goes on at once, for its share of a turn:
    /// to ask the loop between each two costs as much as the copy that such room saves.
    fn read_on(this: &Bound<'_, Self>, mut read: usize) -> PyResult<()> {
        while read < TURN_BYTES {
            {
                let state = this.get().lock(this.py())?;
                // A task that has had its share of a turn takes what comes when it is back.
                if state.paused || state.turn_pending {
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

    /// Reads once, and gives what came to whoever waits for it. Bytes, if there are likely more to be read, or 0.
    #[inline]
    fn read_once(this: &Bound<'_, Self>, asked: bool) -> PyResult<usize> {
        let py = this.py();
        let conn = this.get();
        let mut filled = 0;
        let ended = {
            let mut state = conn.lock(py)?;
            failpoint::hit("python.readable");
            let postponed = state.inbox.unparsed() == Unparsed::Postponed;
            if postponed && !asked {
                return Ok(0); // in its turn: both would ask for another, and so have ever more in each iteration
            }
            if postponed {
                state.inbox.set_unparsed(Unparsed::Due);
            }
            let left = state.driver.endpoint.has_input();
            if left && state.turn_pending {
                return Ok(0); // the task that comes back takes it
            }
            // What was read before is parsed before anything else is read.
            if !postponed && (!left || !state.driver.send_half().state().can_receive()) {
                state.inbox.set_unparsed(Unparsed::New);
                let wanted = conn.listens() || !state.receivers.is_empty();
                let most = state.inbox.room();
                let came = state.driver.read_by(wanted, most, |operation, socket| {
                    let much = operation.is_large();
                    let result = gil_yield::run_transfer(py, much, || operation.read(socket, Mode::NonBlocking));
                    filled = operation.filled(&result);
                    result
                });
                if !came && state.inbox.is_empty() {
                    return Ok(0);
                }
            }
            state.driver.send_half().is_eof()
        };
        let processed = Self::process(this);
        // The end of the stream stays readable, and what is left to be written may take long.
        if ended && !conn.lock(py)?.driver.is_over() {
            return processed.and(conn.watch_readable(py, false)).map(|()| 0);
        }
        processed.map(|()| filled)
    }

    /// The loop has dropped its callback, because of an error of the socket: reading finds it, behind what
    /// came before.
    pub(super) fn on_dropped(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let Backend::Descriptor(fd) = *conn.backend.lock(py) else { return Ok(()) };
        // What is left of the registration; also of that for writing.
        let number = fd.into_pyobject(py)?.into_any();
        invoke::method(conn.event_loop.bind(py), intern!(py, "remove_reader"), [&number])?;
        conn.reader.store(0, Ordering::Relaxed);
        Self::on_readable(this, true)?;
        let (over, paused, blocked) = {
            let state = conn.lock(py)?;
            (state.driver.is_over(), state.paused, state.send_queue.blocked)
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
            state.driver.receive(bytes);
            state.inbox.set_unparsed(Unparsed::New);
            if !state.begun {
                return Ok(());
            }
        }
        Self::process(this)?;
        // A transport that was paused before it began to read has begun all the same (uvloop).
        if conn.lock(this.py())?.paused { conn.watch_readable(this.py(), false) } else { Ok(()) }
    }

    pub(super) fn on_end(this: &Bound<'_, Self>, error: Option<io::Error>) -> PyResult<()> {
        {
            let mut state = this.get().lock(this.py())?;
            state.driver.receive_end(error);
            if !state.begun {
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
            state.lost = true;
            if !state.driver.is_over() {
                state.driver.receive_end(error);
            }
            if !state.begun {
                return Ok(());
            }
        }
        let mut steps = FirstError::new();
        steps.note(Self::process(this));
        {
            let mut state = conn.lock(py)?;
            if !state.driver.is_over() {
                state.driver.end(Failure::Aborted);
            }
        }
        steps.note(Self::run_actions(this));
        // The transport closes its socket when this returns, before anybody who is told can run.
        let (closers, give_up) = {
            let mut state = conn.lock(py)?;
            if state.is_finished() {
                state.end = End::Complete;
            }
            (state.watchers.take_closers(), state.give_up.take())
        };
        if let Some(give_up) = give_up {
            steps.note(invoke::method(give_up.bind(py), intern!(py, "cancel"), []).map(drop));
        }
        steps.note(tell_closers(py, closers));
        steps.note(conn.release(py));
        steps.end()
    }

    pub(super) fn on_pause_writing(&self, py: Python<'_>) -> PyResult<()> {
        self.lock(py)?.send_queue.blocked = true;
        Ok(())
    }

    /// The time has come that [`Self::schedule`] asked for.
    pub(super) fn on_timer(this: &Bound<'_, Self>, now: Instant) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let backlog = conn.transport_backlog(py);
        let retry = {
            let mut state = conn.lock(py)?;
            failpoint::hit("python.timer");
            state.timer = None;
            let reading = if state.paused { connection::Reading::Paused } else { connection::Reading::Going };
            state.driver.handle_deadline(now, reading, backlog)
        };
        let mut steps = FirstError::new();
        steps.note(Self::write_out(this));
        steps.note(conn.schedule_at(this, retry));
        steps.end()
    }

    /// Bytes that a transport has taken and its peer has not acknowledged: in its buffer, and in the kernel's. 0 where
    /// there is no transport, or where it does not tell.
    fn transport_backlog(&self, py: Python<'_>) -> u64 {
        let Some(transport) = self.transport(py) else { return 0 };
        let transport = transport.bind(py);
        let buffered = transport.call_method0(intern!(py, "get_write_buffer_size"));
        let buffered = buffered.and_then(|size| size.extract::<u64>()).unwrap_or(0);
        let socket = transport.call_method1(intern!(py, "get_extra_info"), (intern!(py, "socket"),));
        let number = socket.and_then(|socket| socket.call_method0(intern!(py, "fileno"))?.extract::<i32>());
        buffered + number.map_or(0, unacknowledged)
    }

    // ---- what we ask of it ----

    fn schedule(&self, this: &Bound<'_, Self>) -> PyResult<()> {
        self.schedule_at(this, None)
    }

    /// Sets the timer to when the connection needs one, but not before `least`.
    fn schedule_at(&self, this: &Bound<'_, Self>, least: Option<Instant>) -> PyResult<()> {
        let py = this.py();
        let (old, deadline) = {
            let state = self.lock(py)?;
            // After a fork the timer of the loop is the parent's too.
            if state.driver.send_half().is_forked() {
                return Ok(());
            }
            let deadline = state.driver.deadline(Instant::now());
            (state.timer, deadline.map(|deadline| least.map_or(deadline, |least| deadline.max(least))))
        };
        let key = LoopState::schedule(self.loop_state.bind(py), Self::make_port(this)?, old, deadline)?;
        self.lock(py)?.timer = key;
        Ok(())
    }

    pub(super) fn watch_readable(&self, py: Python<'_>, on: bool) -> PyResult<()> {
        let Some(port) = self.port.get() else { return Ok(()) };
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
            Backend::EpollRegistry(epolls, fd) => Call::EpollRegistry(epolls.clone_ref(py), *fd),
        };
        // What is watched may be said twice: see `retry_interrupted`.
        invoke::retry_interrupted(|| match &call {
            Call::Nothing => Ok(()),
            Call::Descriptor(fd) if on => {
                let number = READERS.fetch_add(1, Ordering::Relaxed).max(1);
                self.reader.store(number, Ordering::Relaxed);
                let reader = Bound::new(py, Reader::new(port.clone_ref(py), number))?;
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
                // A transport reads from its beginning.
                let reading = invoke::method(transport, intern!(py, "is_reading"), [])?.is_truthy()?;
                if closing || reading == on {
                    return Ok(());
                }
                let name = if on { intern!(py, "resume_reading") } else { intern!(py, "pause_reading") };
                invoke::method(transport, name, []).map(drop)
            }
            #[cfg(target_os = "linux")]
            Call::EpollRegistry(epolls, fd) => epolls.get().watch(*fd, port.bind(py), Some(on), None),
        })
    }

    pub(super) fn watch_writable(&self, py: Python<'_>, on: bool) -> PyResult<()> {
        let Some(port) = self.port.get() else { return Ok(()) };
        let event_loop = self.event_loop.bind(py);
        #[cfg(target_os = "linux")]
        {
            let epolls = match &*self.backend.lock(py) {
                Backend::EpollRegistry(epolls, fd) => Some((epolls.clone_ref(py), *fd)),
                _ => None,
            };
            if let Some((epolls, fd)) = epolls {
                return epolls.get().watch(fd, port.bind(py), None, Some(on));
            }
        }
        let Backend::Descriptor(fd) = *self.backend.lock(py) else { return Ok(()) };
        self.writer.store(on, Ordering::Relaxed);
        let fd = fd.into_pyobject(py)?;
        invoke::retry_interrupted(|| {
            if on {
                let writable = port.bind(py).getattr(intern!(py, "_writable"))?;
                invoke::method(event_loop, intern!(py, "add_writer"), [fd.as_any(), &writable]).map(drop)
            } else {
                invoke::method(event_loop, intern!(py, "remove_writer"), [fd.as_any()]).map(drop)
            }
        })
    }

    // ---- after anything has happened ----

    /// Does what is to be done after anything has happened, wherever that was: the driver decides what, and
    /// who is woken.
    ///
    /// What one step raises does not keep the others from being made.
    #[inline]
    pub(super) fn run_actions(this: &Bound<'_, Self>) -> PyResult<()> {
        let settled = this.get().lock(this.py())?.is_quiescent(Instant::now);
        if settled { Ok(()) } else { Self::settle_slowly(this) }
    }

    fn settle_slowly(this: &Bound<'_, Self>) -> PyResult<()> {
        failpoint::hit("python.settle");
        let py = this.py();
        let conn = this.get();
        let (mut steps, mut cursor) = (FirstError::new(), ActionCursor::default());
        loop {
            steps.note(Self::tell_notes(this));
            let step = conn.lock(py)?.poll_action(&mut cursor, py, Instant::now);
            match step {
                Action::CheckTransportBuffer => steps.note(conn.set_transport_buffered(py)),
                Action::ShutdownWrite => conn.end_writing(py, &mut steps),
                Action::Write => {
                    let result = Self::write_queue(this);
                    if result.is_err() {
                        cursor.fail_write();
                    }
                    steps.note(result);
                }
                Action::NotifyFlushed => steps.note(conn.tell_flushed(py)),
                Action::Wake(waiter) => steps.note(waiter.wake(py, false)),
                Action::WritableNotice => steps.note(conn.tell_writable_soon(py)),
                Action::Pause => steps.note(conn.watch_readable(py, false)),
                Action::Fill => steps.note(Self::fill(this)),
                Action::Resume => steps.note(conn.watch_readable(py, true)),
                Action::Schedule => steps.note(conn.schedule(this)),
                Action::Finish => {
                    steps.note(Self::finish(this));
                    return steps.end();
                }
                Action::Idle => break,
            }
        }
        steps.note(conn.release(py));
        steps.end()
    }

    /// Parses what was read and left, for the queue.
    fn fill(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        // What else was found is told by whoever settles.
        if this.get().lock(py)?.fill_queue(py)? { this.get().serve_soon(py) } else { Ok(()) }
    }

    /// TCP is over: tells everybody, once.
    fn finish(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let mut steps = FirstError::new();
        // The socket of a transport is closed by the loop, in its next iteration, if it has one.
        let on_transport = matches!(&*conn.backend.lock(py), Backend::Transport(_))
            && !invoke::asks(conn.event_loop.bind(py), intern!(py, "is_closed"), &mut steps);
        let (socket, farewell) = {
            let mut state = conn.lock(py)?;
            let lingers = on_transport && !state.lost;
            let Some(farewell) = state.finish(lingers) else { return steps.end() };
            (state.driver.take_ended(), farewell)
        };
        drop(farewell.large);
        // The loop forgets the number before the system may give it to somebody else.
        steps.note(conn.unwatch(py));
        drop(socket);
        steps.note(conn.schedule(this));
        for waiter in farewell.waiters {
            steps.note(waiter.wake(py, false));
        }
        for waiter in farewell.flushes {
            waiter.fail(py, conn.closed(py));
            steps.note(waiter.wake(py, false));
        }
        for future in farewell.pings {
            steps.note(conn.fail_future(py, future.bind(py)));
        }
        steps.note(tell_closers(py, farewell.closers));
        steps.note(Self::tell_close(this));
        steps.note(conn.release(py));
        steps.end()
    }

    /// A ping of a connection that is closed.
    fn fail_future(&self, py: Python<'_>, future: &Bound<'_, PyAny>) -> PyResult<()> {
        if is_done(future) {
            return Ok(());
        }
        let error = self.closed(py).into_value(py).into_bound(py);
        let told = settle_future(future, intern!(py, "set_exception"), error.as_any());
        // It counts as retrieved: nobody need look at it.
        let retrieved = invoke::method(future, intern!(py, "exception"), []).map(drop);
        told.and(retrieved)
    }

    /// The transport ends our direction of TCP; one that cannot do this alone ends both, when everything is
    /// written.
    fn end_writing(&self, py: Python<'_>, steps: &mut FirstError) {
        let Some(transport) = self.transport(py) else { return };
        let transport = transport.bind(py);
        let half = invoke::asks(transport, intern!(py, "can_write_eof"), steps);
        let name = if half { intern!(py, "write_eof") } else { intern!(py, "close") };
        steps.note(invoke::retry_interrupted(|| match invoke::method(transport, name, []) {
            // The peer has reset the connection, and the transport, which has yet to notice, will tell.
            Err(error) if error.is_instance_of::<PyOSError>(py) => Ok(()),
            result => result.map(drop),
        }));
    }

    /// Has the loop end a transport that is being closed when the time is over that closing may take.
    fn give_up_later(&self, transport: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = transport.py();
        let now = Instant::now();
        let Some(by) = self.lock(py)?.driver.start_close_timeout(now) else { return Ok(()) };
        let delay = by.saturating_duration_since(now).as_secs_f64().into_pyobject(py)?;
        let abort = transport.getattr(intern!(py, "abort"))?;
        // Two that end it do no harm; none would.
        let (timer, result) = invoke::retry_interrupted_value(|| {
            invoke::method(self.event_loop.bind(py), intern!(py, "call_later"), [delay.as_any(), &abort])
        });
        self.lock(py)?.give_up = timer.map(Bound::unbind);
        result
    }

    fn unwatch(&self, py: Python<'_>) -> PyResult<()> {
        let backend = std::mem::replace(&mut *self.backend.lock(py), Backend::None);
        // After a fork, what the loop watches is shared with the parent, whose connection goes on.
        if self.lock(py)?.driver.send_half().is_forked() {
            return Ok(());
        }
        let event_loop = self.event_loop.bind(py);
        match backend {
            Backend::None => Ok(()),
            Backend::Descriptor(fd) => {
                // A loop that is closed has forgotten everything.
                if invoke::method(event_loop, intern!(py, "is_closed"), [])?.is_truthy()? {
                    return Ok(());
                }
                self.reader.store(0, Ordering::Relaxed);
                let fd = fd.into_pyobject(py)?.into_any();
                let mut steps = FirstError::new();
                let forget = |name| invoke::retry_interrupted(|| invoke::method(event_loop, name, [&fd]).map(drop));
                steps.note(forget(intern!(py, "remove_reader")));
                if self.writer.swap(false, Ordering::Relaxed) {
                    steps.note(forget(intern!(py, "remove_writer")));
                }
                steps.end()
            }
            #[cfg(target_os = "linux")]
            Backend::EpollRegistry(epolls, fd) => {
                epolls.get().forget(py, fd);
                Ok(())
            }
            Backend::Transport(transport) => {
                // Kept for `get_extra_info`. What it has not written by now, the peer has not read in all the
                // time that it had.
                let bound = transport.bind(py).clone();
                *self.backend.lock(py) = Backend::Transport(transport);
                let mut steps = FirstError::new();
                if invoke::asks(event_loop, intern!(py, "is_closed"), &mut steps) {
                    return steps.end();
                }
                // A transport of TLS does not tell what the one below it has yet to write: where nothing has failed it
                // writes that to its end, as long as the closing may take.
                let failed = self.lock(py)?.driver.send_half().failure().is_some();
                let at_once = failed || invoke::asks(&bound, intern!(py, "can_write_eof"), &mut steps);
                if !at_once {
                    steps.note(self.give_up_later(&bound));
                }
                let name = if at_once { intern!(py, "abort") } else { intern!(py, "close") };
                // Inside its resume_writing, asyncio's would end twice.
                if self.lock(py)?.resuming {
                    steps.note(invoke::call_soon(event_loop, &bound.getattr(name)?));
                } else {
                    steps.note(invoke::retry_interrupted(|| invoke::method(&bound, name, []).map(drop)));
                }
                steps.end()
            }
        }
    }
}

/// How much a transport may keep before it says so.
pub(super) fn limit_transport(transport: &Bound<'_, PyAny>, marks: Watermarks) -> PyResult<()> {
    let kwargs = PyDict::new(transport.py());
    kwargs.set_item("high", marks.high)?;
    kwargs.set_item("low", marks.low)?;
    transport.call_method("set_write_buffer_limits", (), Some(&kwargs)).map(drop)
}

pub(super) fn tell_closers(py: Python<'_>, closers: Vec<Py<PyAny>>) -> PyResult<()> {
    let mut steps = FirstError::new();
    for future in closers {
        steps.note(set_result(future.bind(py), py.None().bind(py)));
    }
    steps.end()
}
