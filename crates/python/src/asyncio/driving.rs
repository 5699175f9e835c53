//! Between the connection and its loop: registering, time, pausing, and the end.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use wirespeed_driver::evented::Progress;
use wirespeed_driver::peer::Failure;

use super::connection::{AsyncConnection, Backend, is_done};
use super::loop_state::LoopState;
use super::port::{Port, Reader};
use super::state::{End, Marks, Unparsed};

/// What the state of a connection asks of its loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Same,
    Pause,
    Resume,
}

/// The numbers of callbacks, see [`Reader`].
static READERS: AtomicU32 = AtomicU32::new(1);

impl AsyncConnection {
    pub(super) fn make_port<'a>(this: &'a Bound<'_, Self>) -> PyResult<&'a Py<Port>> {
        let conn = this.get();
        if let Some(port) = conn.port.get() {
            return Ok(port);
        }
        let port = Py::new(this.py(), Port::new(this)?)?;
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
        let Some(fd) = conn.lock(py).conn.socket().map(wirespeed_driver::socket::Socket::raw) else { return Ok(()) };
        #[cfg(target_os = "linux")]
        if let Ok(selector) = conn.event_loop.bind(py).getattr("_wirespeed_selector")
            && let Ok(selector) = selector.cast_into::<super::selector::NativeSelector>()
        {
            *conn.backend.lock(py) = Backend::Selector(selector.unbind(), fd);
            return Self::begin(this);
        }
        *conn.backend.lock(py) = Backend::Descriptor(fd);
        Self::begin(this)
    }

    /// An asyncio transport is ours from now on. Nothing is done before [`Self::attach`]: uvloop closes the descriptor of a transport
    /// that is aborted before `create_connection` returns, and the socket object closes the same number again.
    pub(super) fn on_transport(this: &Bound<'_, Self>, transport: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        Self::make_port(this)?;
        *conn.backend.lock(py) = Backend::Transport(transport.clone().unbind());
        let write = conn.lock(py).limits.write;
        limit_transport(transport, write)?;
        transport.call_method0("pause_reading").map(drop)
    }

    fn begin(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        conn.lock(py).begun = true;
        conn.watch_readable(py, true)?;
        if conn.listener.is_some() {
            conn.hold(this);
        }
        let refused = conn.lock(py).conn.peer.link.failure().is_some();
        let opened = if refused { Ok(()) } else { Self::tell_open(this) };
        conn.schedule(this)?;
        // What came with the response of the opening handshake is there already.
        opened.and(Self::process(this))
    }

    // ---- what the loop calls ----

    /// The socket is readable; `asked`: or we have asked for a look, because of what was read before.
    #[inline]
    pub(super) fn on_readable(this: &Bound<'_, Self>, asked: bool) -> PyResult<()> {
        let conn = this.get();
        conn.loop_state.get().begin_iteration();
        {
            let mut state = conn.lock(this.py());
            let postponed = state.unparsed == Unparsed::Postponed;
            if postponed && !asked {
                return Ok(()); // in its turn: both would ask for another, and so have ever more in each iteration
            }
            if postponed {
                state.unparsed = Unparsed::Due;
            }
            let left = state.conn.peer.has_input();
            if left && state.turn_pending {
                return Ok(()); // the task that comes back takes it
            }
            // What was read before is parsed before anything else is read.
            if !postponed && (!left || !state.conn.peer.link.state().can_receive()) {
                state.unparsed = Unparsed::New;
                let wanted = conn.listens() || !state.receivers.is_empty();
                if !state.conn.read(wanted) && state.queue.is_empty() {
                    return Ok(());
                }
            }
        }
        Self::process(this)
    }

    /// The loop has dropped its callback, because of an error of the socket: reading finds it, behind what came before.
    pub(super) fn on_dropped(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let Backend::Descriptor(fd) = *conn.backend.lock(py) else { return Ok(()) };
        // What is left of the registration; also of that for writing.
        conn.event_loop.call_method1(py, "remove_reader", (fd,))?;
        conn.reader.store(0, Ordering::Relaxed);
        Self::on_readable(this, true)?;
        let (over, paused, blocked) = {
            let state = conn.lock(py);
            (state.conn.is_over(), state.paused, state.blocked)
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
        conn.loop_state.get().begin_iteration();
        {
            let mut state = conn.lock(this.py());
            state.conn.receive(bytes);
            state.unparsed = Unparsed::New;
            if !state.begun {
                return Ok(());
            }
        }
        Self::process(this)?;
        // A transport that was paused before it began to read has begun all the same (uvloop).
        if conn.lock(this.py()).paused { conn.watch_readable(this.py(), false) } else { Ok(()) }
    }

    pub(super) fn on_end(this: &Bound<'_, Self>, error: Option<io::Error>) -> PyResult<()> {
        {
            let mut state = this.get().lock(this.py());
            state.conn.receive_end(error);
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
            let mut state = conn.lock(py);
            state.lost = true;
            if !state.conn.is_over() {
                state.conn.receive_end(error);
            }
            if !state.begun {
                return Ok(());
            }
        }
        let mut result = Self::process(this);
        {
            let mut state = conn.lock(py);
            if !state.conn.is_over() {
                state.conn.end(Failure::Aborted);
            }
        }
        result = result.and(Self::settle(this));
        // The transport closes its socket when this returns, before anybody who is told can run.
        let closers = {
            let mut state = conn.lock(py);
            if state.is_finished() {
                state.end = End::Complete;
            }
            std::mem::take(&mut state.closers)
        };
        result = result.and(tell_closers(py, closers));
        conn.release(py);
        result
    }

    pub(super) fn on_pause_writing(&self, py: Python<'_>) {
        self.lock(py).blocked = true;
    }

    /// The time has come that [`Self::schedule`] asked for.
    pub(super) fn on_timer(this: &Bound<'_, Self>, now: Instant) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let retry = {
            let mut state = conn.lock(py);
            state.timer = None;
            let paused = state.paused;
            state.conn.handle_deadline(now, paused)
        };
        Self::write_out(this)?;
        Self::settle(this)?;
        conn.schedule_at(this, retry)
    }

    // ---- what we ask of it ----

    fn schedule(&self, this: &Bound<'_, Self>) -> PyResult<()> {
        self.schedule_at(this, None)
    }

    /// Sets the timer to when the connection needs one, but not before `least`.
    fn schedule_at(&self, this: &Bound<'_, Self>, least: Option<Instant>) -> PyResult<()> {
        let py = this.py();
        let (old, deadline) = {
            let state = self.lock(py);
            let deadline = state.conn.deadline(Instant::now());
            (state.timer, deadline.map(|deadline| least.map_or(deadline, |least| deadline.max(least))))
        };
        let key = LoopState::schedule(self.loop_state.bind(py), Self::make_port(this)?, old, deadline)?;
        self.lock(py).timer = key;
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
            Selector(Py<super::selector::NativeSelector>, i32),
        }
        let call = match &*self.backend.lock(py) {
            Backend::None => Call::Nothing,
            Backend::Descriptor(fd) => Call::Descriptor(*fd),
            Backend::Transport(transport) => Call::Transport(transport.clone_ref(py)),
            #[cfg(target_os = "linux")]
            Backend::Selector(selector, fd) => Call::Selector(selector.clone_ref(py), *fd),
        };
        match call {
            Call::Nothing => Ok(()),
            Call::Descriptor(fd) if on => {
                let number = READERS.fetch_add(1, Ordering::Relaxed).max(1);
                self.reader.store(number, Ordering::Relaxed);
                let reader = Bound::new(py, Reader::new(port.clone_ref(py), number))?;
                event_loop.call_method1("add_reader", (fd, reader.getattr("readable")?)).map(drop)
            }
            Call::Descriptor(fd) => {
                self.reader.store(0, Ordering::Relaxed);
                event_loop.call_method1("remove_reader", (fd,)).map(drop)
            }
            Call::Transport(transport) => {
                let closing = transport.call_method0(py, "is_closing")?.is_truthy(py)?;
                // A transport reads from its beginning.
                let reading = transport.call_method0(py, "is_reading")?.is_truthy(py)?;
                if closing || reading == on {
                    return Ok(());
                }
                transport.call_method0(py, if on { "resume_reading" } else { "pause_reading" }).map(drop)
            }
            #[cfg(target_os = "linux")]
            Call::Selector(selector, fd) => {
                super::selector::NativeSelector::watch(selector.bind(py), fd, port, Some(on), None)
            }
        }
    }

    pub(super) fn watch_writable(&self, py: Python<'_>, on: bool) -> PyResult<()> {
        let Some(port) = self.port.get() else { return Ok(()) };
        let event_loop = self.event_loop.bind(py);
        #[cfg(target_os = "linux")]
        {
            let selector = match &*self.backend.lock(py) {
                Backend::Selector(selector, fd) => Some((selector.clone_ref(py), *fd)),
                _ => None,
            };
            if let Some((selector, fd)) = selector {
                return super::selector::NativeSelector::watch(selector.bind(py), fd, port, None, Some(on));
            }
        }
        let Backend::Descriptor(fd) = *self.backend.lock(py) else { return Ok(()) };
        self.writer.store(on, Ordering::Relaxed);
        if on {
            event_loop.call_method1("add_writer", (fd, port.getattr(py, "_writable")?)).map(drop)
        } else {
            event_loop.call_method1("remove_writer", (fd,)).map(drop)
        }
    }

    // ---- after anything has happened ----

    /// Brings everything in line with the state: writes what is due, pauses or resumes reading, ends what is over.
    #[inline]
    pub(super) fn settle(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let quiet = {
            let mut state = conn.lock(py);
            let progress = state.conn.advance(Instant::now);
            progress == Progress::Open
                && (state.conn.peer.link.queued() == 0 || state.corked || state.blocked)
                && !state.paused
                && !state.is_queue_full()
                && (conn.listens() || !state.receivers.is_empty())
        };
        if quiet { Ok(()) } else { Self::settle_slowly(this) }
    }

    fn settle_slowly(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let mut progress = conn.lock(py).conn.advance(Instant::now);
        let due = {
            let state = conn.lock(py);
            let queued = state.conn.peer.link.queued() > 0 && (!state.corked || progress != Progress::Open);
            queued && !state.blocked && !state.conn.is_over()
        };
        if due {
            Self::write_out(this)?;
            progress = conn.lock(py).conn.advance(Instant::now);
        }
        if conn.lock(py).conn.take_shut() {
            conn.end_writing(py)?;
        }
        let reading = {
            let mut state = conn.lock(py);
            let may_pause = state.may_pause(progress != Progress::Open);
            if !state.paused && may_pause && state.is_queue_full() {
                state.paused = true;
                state.conn.peer.shrink_input();
                state.conn.note_paused();
                Reading::Pause
            } else if state.paused && !state.conn.is_over() && (!may_pause || state.is_queue_low()) {
                state.paused = false;
                state.conn.note_paused();
                Reading::Resume
            } else {
                Reading::Same
            }
        };
        match reading {
            Reading::Same => {}
            Reading::Pause => conn.watch_readable(py, false)?,
            Reading::Resume => {
                // What was read and left is parsed first; it may fill the queue again.
                let mut notes = super::state::Notes::default();
                let mut postponed = false;
                let again = {
                    let mut state = conn.lock(py);
                    if state.receivers.is_empty() && !conn.listens() {
                        postponed = state.fill_queue(py, &mut notes)?;
                    }
                    state.paused = state.may_pause(progress != Progress::Open) && state.is_queue_full();
                    !state.paused
                };
                if postponed {
                    conn.serve_soon(py)?;
                }
                Self::tell_notes(this, notes)?;
                if again {
                    conn.watch_readable(py, true)?;
                }
            }
        }
        match progress {
            Progress::Open => {}
            Progress::Closing => conn.schedule(this)?,
            Progress::Over => return Self::finish(this),
        }
        conn.release(py);
        Ok(())
    }

    /// TCP is over: tells everybody, once.
    fn finish(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let taken = {
            let mut state = conn.lock(py);
            if state.is_finished() {
                return Ok(());
            }
            if state.large.take().is_some() {
                state.conn.peer.link.abandon_large();
            }
            state.paused = false;
            let receivers = std::mem::take(&mut state.receivers);
            let senders = std::mem::take(&mut state.senders);
            state.sender_turns += senders.len();
            let drainers = std::mem::take(&mut state.drainers);
            let mourners = std::mem::take(&mut state.mourners);
            let failed: Vec<Py<PyAny>> = std::mem::take(&mut state.pings)
                .into_iter()
                .chain(std::mem::take(&mut state.flushes))
                .map(|(_, future)| future)
                .collect();
            // The socket of a transport is closed by the loop, in its next iteration.
            let lingering = !state.lost && matches!(&*conn.backend.lock(py), Backend::Transport(_));
            state.end = if lingering { End::Lingering } else { End::Complete };
            let closers = if lingering { Vec::new() } else { std::mem::take(&mut state.closers) };
            (
                state.conn.take_ended(),
                receivers.into_iter().chain(senders).chain(drainers).chain(mourners),
                failed,
                closers,
            )
        };
        let (socket, waiters, failed, closers) = taken;
        // The loop forgets the number before the system may give it to somebody else.
        let mut result = conn.unwatch(py);
        drop(socket);
        result = result.and(conn.schedule(this));
        for waiter in waiters {
            result = result.and(waiter.wake(py, false));
        }
        for future in failed {
            if !is_done(py, &future) {
                let error = conn.closed(py).into_value(py);
                result = result.and(future.call_method1(py, "set_exception", (error,)).map(drop));
                // It counts as retrieved: nobody need look at a ping of a connection that is closed.
                result = result.and(future.call_method0(py, "exception").map(drop));
            }
        }
        result = result.and(tell_closers(py, closers)).and(Self::tell_close(this));
        conn.release(py);
        result
    }

    /// The transport ends our direction of TCP; one that cannot do this alone ends both, when everything is written.
    fn end_writing(&self, py: Python<'_>) -> PyResult<()> {
        let Some(transport) = self.transport(py) else { return Ok(()) };
        let half = transport.call_method0(py, "can_write_eof")?.is_truthy(py)?;
        transport.call_method0(py, if half { "write_eof" } else { "close" }).map(drop)
    }

    fn unwatch(&self, py: Python<'_>) -> PyResult<()> {
        // After a fork, what the loop watches is shared with the parent, whose connection goes on.
        if self.lock(py).conn.is_forked() {
            *self.backend.lock(py) = Backend::None;
            return Ok(());
        }
        let event_loop = self.event_loop.bind(py);
        let backend = std::mem::replace(&mut *self.backend.lock(py), Backend::None);
        match backend {
            Backend::None => Ok(()),
            Backend::Descriptor(fd) => {
                // A loop that is closed has forgotten everything.
                if event_loop.call_method0("is_closed")?.is_truthy()? {
                    return Ok(());
                }
                self.reader.store(0, Ordering::Relaxed);
                event_loop.call_method1("remove_reader", (fd,))?;
                if self.writer.swap(false, Ordering::Relaxed) {
                    event_loop.call_method1("remove_writer", (fd,))?;
                }
                Ok(())
            }
            #[cfg(target_os = "linux")]
            Backend::Selector(selector, fd) => super::selector::NativeSelector::forget(selector.bind(py), fd),
            Backend::Transport(transport) => {
                // Kept for `get_extra_info`. What it has not written by now, the peer has not read in all the time that it had.
                let closed = event_loop.call_method0("is_closed")?.is_truthy()?;
                // Inside its resume_writing, asyncio's would end twice.
                let resuming = self.lock(py).resuming;
                let result = match (closed, resuming) {
                    (true, _) => Ok(py.None()),
                    (false, false) => transport.call_method0(py, "abort"),
                    (false, true) => {
                        event_loop.call_method1("call_soon", (transport.getattr(py, "abort")?,)).map(Bound::unbind)
                    }
                };
                *self.backend.lock(py) = Backend::Transport(transport);
                result.map(drop)
            }
        }
    }
}

/// How much a transport may keep before it says so.
pub(super) fn limit_transport(transport: &Bound<'_, PyAny>, marks: Marks) -> PyResult<()> {
    let kwargs = PyDict::new(transport.py());
    kwargs.set_item("high", marks.high)?;
    kwargs.set_item("low", marks.low)?;
    transport.call_method("set_write_buffer_limits", (), Some(&kwargs)).map(drop)
}

fn tell_closers(py: Python<'_>, closers: Vec<Py<PyAny>>) -> PyResult<()> {
    let mut result = Ok(());
    for future in closers {
        if !is_done(py, &future) {
            result = result.and(future.call_method1(py, "set_result", (py.None(),)).map(drop));
        }
    }
    result
}
