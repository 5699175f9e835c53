//! Writing what is queued: at once, at the end of an iteration, or when there is room; large messages piece
//! by piece; `flush`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use wirespeed_driver::blocking::Source;
use wirespeed_driver::buffer_pool;
use wirespeed_driver::connection::{self, Large, Watermarks, WritableNotice};
use wirespeed_driver::endpoint::Failure;
use wirespeed_driver::protocol::MessageKind;
use wirespeed_driver::thread::BULK_IO_BYTES;
use wirespeed_driver::write_queue::Flushed;

use super::connection::{AsyncConnection, Backend};
use super::driving::limit_transport;
use super::invoke::{self, FirstError};
use super::operation::{Kind, Operation, Step, none};
use super::waiter::{Stage, WaiterRef};
use crate::{errors, gil_yield, source};

/// The next piece of a large message is queued when less than this is: it fits the buffer with it.
const LARGE_FOLLOWS: usize = 4096;

impl AsyncConnection {
    /// Queues the header of a large message; its payload follows as far as there is room.
    pub(super) fn begin_large(
        this: &Bound<'_, Self>,
        message: &Bound<'_, PyAny>,
        kind: MessageKind,
        bytes: &source::Message<'_>,
    ) -> PyResult<()> {
        let py = this.py();
        // What may change while it waits is copied.
        let fixed = message.is_exact_instance_of::<PyBytes>() || message.is_instance_of::<PyString>();
        let source = if fixed { message.clone() } else { PyBytes::new(py, bytes.piece(0..bytes.len())).into_any() };
        let mut state = this.get().lock(py)?;
        let send = state.driver.send_half_mut().begin_large(kind, bytes.len());
        let send = send.map_err(|error| errors::refused(py, error))?;
        state.send_queue.large = Some(Box::new(Large { send, source: source.unbind(), offset: 0 }));
        Ok(())
    }

    /// Goes on with the large message that is on its way, if there is one: writes from where it lies, or
    /// queues the next piece. True: there is no more room.
    fn append_large(&self, py: Python<'_>) -> PyResult<bool> {
        let mut state = self.lock(py)?;
        let Some(mut large) = state.send_queue.large.take() else { return Ok(false) };
        if state.driver.is_over() || state.driver.send_half().failure().is_some() {
            state.driver.send_half_mut().abandon_large();
            drop(state);
            drop(large);
            return Ok(false);
        }
        let source = large.source.bind(py);
        let bytes = match source.cast::<PyBytes>() {
            Ok(bytes) => bytes.as_bytes(),
            Err(_) => source.cast::<PyString>()?.to_str()?.as_bytes(),
        };
        let (driver, send) = (&mut state.driver, &mut large.send);
        let rest = bytes.get(large.offset..).unwrap_or_default(); // there is that much, by how it came to be
        // It cannot change while others run: see `begin_large`.
        let written = gil_yield::run_transfer(py, rest.len() >= MUCH, || driver.write_large(send, rest));
        large.offset += written.unwrap_or_else(|| {
            let piece = rest.get(..buffer_pool::WRITE_SIZE).unwrap_or(rest);
            driver.send_half_mut().append_large(send, piece);
            piece.len()
        });
        if driver.send_half().is_mid_frame() {
            let blocked = written.is_some() && driver.send_half().failure().is_none();
            state.send_queue.large = Some(large);
            return Ok(blocked);
        }
        let pending = state.send_queue.pending_close.take();
        let connection::WaitState { driver, send_queue, .. } = &mut **state;
        send_queue.record_large_queued(driver);
        drop(state);
        drop(large);
        if let Some((code, reason)) = pending.map(|pending| *pending) {
            let mut state = self.lock(py)?;
            let _ = state.driver.begin_close(code, &reason, std::time::Instant::now()); // it was checked
        }
        Ok(false)
    }

    /// Writes what is queued, as far as there is room, sees to it that the rest follows, and tells everybody
    /// whom this concerns: whoever writes, and for whatever reason, those who wait for room or for a flush
    /// learn of it.
    pub(super) fn write_out(this: &Bound<'_, Self>) -> PyResult<()> {
        let mut steps = FirstError::new();
        steps.note(Self::write_queue(this));
        steps.note(Self::run_actions(this));
        steps.end()
    }

    /// The writing itself. For [`Self::run_actions`], which tells; everybody else calls [`Self::write_out`].
    pub(super) fn write_queue(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        loop {
            // A header goes out with the beginning of its payload: alone, it would wake the peer for nothing.
            if conn.lock(py)?.driver.send_half().queued() < LARGE_FOLLOWS && conn.append_large(py)? {
                return conn.set_blocked(py, true);
            }
            if Self::flush_once(this)? || conn.lock(py)?.is_written() {
                return Ok(());
            }
        }
    }

    /// Whether the socket has no room: then the loop says when it has.
    fn set_blocked(&self, py: Python<'_>, blocked: bool) -> PyResult<()> {
        let before = std::mem::replace(&mut self.lock(py)?.send_queue.blocked, blocked);
        if blocked == before { Ok(()) } else { self.watch_writable(py, blocked) }
    }

    /// Writes once; true: there is no more room.
    fn flush_once(this: &Bound<'_, Self>) -> PyResult<bool> {
        let py = this.py();
        let conn = this.get();
        let output = {
            let mut state = conn.lock(py)?;
            if state.driver.socket().is_some() {
                let blocked = state.flush(py) == Flushed::Blocked;
                drop(state);
                conn.set_blocked(py, blocked)?;
                return Ok(blocked);
            }
            if state.driver.is_over() {
                return Ok(true);
            }
            // A signal handler or finalizer that runs while a transport is given what was queued before must not
            // overtake it: whoever gives it to the transport goes on until all is written.
            if state.send_queue.blocked || state.send_queue.passing_output {
                return Ok(true);
            }
            let output = state.driver.take_output();
            state.send_queue.passing_output = !output.is_empty();
            output
        };
        if output.is_empty() {
            return Ok(false);
        }
        let written = conn.transport(py).map(|transport| {
            let output = PyBytes::new(py, &output);
            write_to(transport.bind(py), &output)
        });
        conn.lock(py)?.send_queue.passing_output = false;
        let Some(written) = written else { return Ok(true) };
        match written {
            Ok(written) => {
                let mut state = conn.lock(py)?;
                state.send_queue.blocked |= !written;
                Ok(state.send_queue.blocked)
            }
            Err(error) => {
                // A signal handler has raised, perhaps: how much of it has left nobody knows, so nothing may
                // follow.
                conn.lock(py)?.driver.end(Failure::Aborted);
                Err(error)
            }
        }
    }

    /// What was corked leaves: the end of an iteration of the loop.
    pub(super) fn uncork(this: &Bound<'_, Self>) -> PyResult<()> {
        wirespeed_driver::protocol::failpoint::hit("python.uncork");
        let py = this.py();
        let due = {
            let mut state = this.get().lock(py)?;
            state.send_queue.corked = false;
            state.is_write_due()
        };
        if due { Self::write_from_loop(this) } else { Ok(()) }
    }

    /// There is room again.
    pub(super) fn on_writable(this: &Bound<'_, Self>) -> PyResult<()> {
        let conn = this.get();
        conn.loop_state.get().begin_iteration();
        Self::write_from_loop(this)
    }

    /// A transport has room again.
    pub(super) fn on_resume_writing(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let drained = {
            let mut state = conn.lock(py)?;
            state.send_queue.blocked = false;
            state.resuming = true;
            std::mem::take(&mut state.send_queue.draining).then_some(state.send_queue.marks())
        };
        let mut steps = FirstError::new();
        if let (Some(marks), Some(transport)) = (drained, conn.transport(py)) {
            steps.note(invoke::retry_interrupted(|| limit_transport(transport.bind(py), marks)));
            // Those who wait for this need not wait for what is sent from now on.
            steps.note(conn.tell_flushed(py));
        }
        steps.note(Self::on_writable(this));
        conn.lock(py)?.resuming = false;
        steps.end()
    }

    /// The transport, if this is the port.
    pub(super) fn transport(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        match &*self.backend.lock(py) {
            Backend::Transport(transport) => Some(transport.clone_ref(py)),
            _ => None,
        }
    }

    /// In an ending, what the transport has taken counts as unwritten until the kernel has it: it is asked to
    /// say when.
    pub(super) fn set_transport_buffered(&self, py: Python<'_>) -> PyResult<()> {
        let kept = self.kept_by_transport(py).map(|kept| kept > 0);
        // Where it cannot be asked, because a signal handler has raised, nothing is given up that it may have.
        self.lock(py)?.driver.set_transport_buffered(*kept.as_ref().unwrap_or(&true));
        if kept? { self.ask_when_empty(py) } else { Ok(()) }
    }

    /// A transport tells when it has room, not when it is empty, unless it is full as soon as it keeps
    /// anything.
    fn ask_when_empty(&self, py: Python<'_>) -> PyResult<()> {
        if std::mem::replace(&mut self.lock(py)?.send_queue.draining, true) {
            return Ok(());
        }
        let Some(transport) = self.transport(py) else { return Ok(()) };
        let (done, result) = invoke::retry_interrupted_known(|| limit_transport(transport.bind(py), Watermarks::at(0)));
        if !done {
            self.lock(py)?.send_queue.draining = false; // whoever asks next asks again
        }
        result
    }

    /// Bytes that the transport has taken and the kernel has not.
    pub(super) fn kept_by_transport(&self, py: Python<'_>) -> PyResult<usize> {
        if self.lock(py)?.driver.is_over() {
            return Ok(0);
        }
        match self.transport(py) {
            Some(transport) => invoke::method(transport.bind(py), intern!(py, "get_write_buffer_size"), [])?.extract(),
            None => Ok(0),
        }
    }

    /// Writes from a callback of the loop, where a listener may be told at once that there is room.
    fn write_from_loop(this: &Bound<'_, Self>) -> PyResult<()> {
        let mut steps = FirstError::new();
        steps.note(Self::write_queue(this));
        let tell = {
            let mut state = this.get().lock(this.py())?;
            let tell =
                state.send_queue.writable_notice != WritableNotice::No && state.send_queue.is_writable(&state.driver);
            state.send_queue.writable_notice = match state.send_queue.writable_notice {
                WritableNotice::Soon if !tell => WritableNotice::Wanted,
                _ if tell => WritableNotice::No,
                same => same,
            };
            tell
        };
        steps.note(Self::run_actions(this));
        if tell {
            steps.note(Self::writable_notice(this));
            steps.note(Self::run_actions(this));
        }
        steps.end()
    }

    /// Has the loop call us, in its next iteration, to tell the listener that there is room.
    pub(super) fn tell_writable_soon(&self, py: Python<'_>) -> PyResult<()> {
        let Some(port) = self.port.get() else { return Ok(()) };
        let writable = port.bind(py).getattr(intern!(py, "_writable"))?;
        invoke::call_soon(self.event_loop.bind(py), &writable)
    }

    /// The next step of `flush()`.
    pub(super) fn flush_step(&self, this: &Bound<'_, Self>, operation: &Operation) -> PyResult<Step> {
        let py = this.py();
        if let Some(waiter) = operation.take_waiter() {
            if waiter.stage(py) == Stage::Waiting {
                return Ok(Step::Wait(waiter));
            }
            return waiter.take_error(py).map_or_else(|| Ok(Step::Ready(none())), Err);
        }
        Self::write_out(this)?;
        let kept = self.kept_by_transport(py)?;
        {
            let mut state = self.lock(py)?;
            if state.driver.send_half().failure().is_some() || state.driver.is_over() {
                drop(state);
                return Err(self.closed(py));
            }
            if state.is_written() && kept == 0 {
                // A loop of calls that have nothing to wait for must give others a turn too.
                let counted = state.send_queue.is_yield_due(0, self.loop_state.get().iteration());
                if !std::mem::take(&mut state.send_queue.yield_owed) && !counted {
                    return Ok(Step::Ready(none()));
                }
                drop(state);
                operation.become_kind(Kind::Yield);
                self.loop_state.get().begin_iteration();
                return Ok(Step::Yield);
            }
        }
        let waiter = WaiterRef::of_sender(self.event_loop.bind(py), 0)?;
        {
            let mut state = self.lock(py)?;
            if state.is_finished() {
                drop(state);
                return Err(self.closed(py));
            }
            let connection::WaitState { driver, send_queue, .. } = &mut **state;
            send_queue.add_flush(driver, waiter.clone());
        }
        self.hold(this);
        self.loop_state.get().begin_iteration();
        if kept > 0 {
            self.tell_flushed(py)?;
            Self::run_actions(this)?; // a transport that is asked when it is empty is not full for that
        }
        Ok(Step::Wait(waiter))
    }

    /// Tells those who wait for a flush how far it is.
    pub(super) fn tell_flushed(&self, py: Python<'_>) -> PyResult<()> {
        if !self.lock(py)?.send_queue.has_flushes() {
            return Ok(());
        }
        if self.kept_by_transport(py)? > 0 {
            return self.ask_when_empty(py);
        }
        let flushed = {
            let mut state = self.lock(py)?;
            let connection::WaitState { driver, send_queue, .. } = &mut **state;
            send_queue.take_flushed(driver)
        };
        let mut steps = FirstError::new();
        for waiter in flushed {
            steps.note(waiter.wake(py, false));
        }
        steps.end()
    }
}

/// Writes to a transport, unless it has failed: it will say so in the next iteration, and would put a warning
/// in the log for what is written until then.
fn write_to(transport: &Bound<'_, PyAny>, bytes: &Bound<'_, PyBytes>) -> PyResult<bool> {
    let py = transport.py();
    if invoke::method(transport, intern!(py, "is_closing"), [])?.is_truthy()? {
        return Ok(false);
    }
    invoke::method(transport, intern!(py, "write"), [bytes.as_any()])?;
    Ok(true)
}
