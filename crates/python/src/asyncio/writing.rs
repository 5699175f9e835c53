//! Writing queued bytes: immediately, at the end of an iteration, or when there is room. Large messages are
//! written piece by piece. Also `flush`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use wirespeed_driver::buffer_pool;
use wirespeed_driver::connection::{self, Large, Watermarks, WritableNotice};
use wirespeed_driver::endpoint::Failure;
use wirespeed_driver::protocol::MessageKind;
use wirespeed_driver::source::Source;
use wirespeed_driver::thread::BULK_IO_BYTES;
use wirespeed_driver::write_queue::Flushed;

use super::connection::{AsyncConnection, Backend};
use super::driving::limit_transport;
use super::invoke::{self, FirstError};
use super::operation::{Operation, OperationKind, Step, none};
use super::waiter::{Stage, WaiterRef};
use crate::{errors, gil_yield, source};

/// The next piece of a large message is queued when fewer bytes than this are queued, so that the buffer has
/// room for it.
const LARGE_PIECE_THRESHOLD: usize = 4096;

impl AsyncConnection {
    /// Queues the header of a large message. Its payload follows as far as there is room.
    pub(super) fn begin_large(
        this: &Bound<'_, Self>,
        message: &Bound<'_, PyAny>,
        kind: MessageKind,
        bytes: &source::Message<'_>,
    ) -> PyResult<()> {
        let py = this.py();
        // A payload that may change during the wait is copied.
        let immutable = message.is_exact_instance_of::<PyBytes>() || message.is_instance_of::<PyString>();
        let source = if immutable { message.clone() } else { PyBytes::new(py, bytes.piece(0..bytes.len())).into_any() };
        let mut state = this.get().lock(py)?;
        let send = state.driver.send_half_mut().begin_large(kind, bytes.len());
        let send = send.map_err(|error| errors::refused(py, error))?;
        state.send_queue.large = Some(Box::new(Large { send, source: source.unbind(), offset: 0 }));
        Ok(())
    }

    /// Continues with the current large message, if there is one: writes directly from the message, or queues
    /// the next piece. Returns whether there is no more room.
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
        let rest = bytes.get(large.offset..).unwrap_or_default(); // the offset is within the message
        // The payload cannot change while other threads run, see `begin_large`.
        let written = gil_yield::run_transfer(py, rest.len() >= BULK_IO_BYTES, || driver.write_large(send, rest));
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
            let _ = state.driver.begin_close(code, &reason, std::time::Instant::now()); // checked before
        }
        Ok(false)
    }

    /// Writes queued bytes as far as there is room, schedules the rest, and runs all actions. Every caller that
    /// writes uses this, so that tasks waiting for room or for a flush are woken.
    pub(super) fn write_out(this: &Bound<'_, Self>) -> PyResult<()> {
        let mut first_error = FirstError::new();
        first_error.record(Self::write_queue(this));
        first_error.record(Self::run_actions(this));
        first_error.into_result()
    }

    /// Writes queued bytes only. For [`Self::run_actions`], which runs the other actions. All other callers use
    /// [`Self::write_out`].
    pub(super) fn write_queue(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        loop {
            // A header is written together with the beginning of its payload. Alone, it would wake the peer for
            // nothing.
            if conn.lock(py)?.driver.send_half().queued() < LARGE_PIECE_THRESHOLD && conn.append_large(py)? {
                return conn.set_blocked(py, true);
            }
            if Self::flush_once(this)? || conn.lock(py)?.is_written() {
                return Ok(());
            }
        }
    }

    /// Sets whether the socket has no room. If so, the loop calls back when it has.
    fn set_blocked(&self, py: Python<'_>, blocked: bool) -> PyResult<()> {
        let before = std::mem::replace(&mut self.lock(py)?.send_queue.blocked, blocked);
        if blocked == before { Ok(()) } else { self.watch_writable(py, blocked) }
    }

    /// Writes once. Returns whether there is no more room.
    fn flush_once(this: &Bound<'_, Self>) -> PyResult<bool> {
        let py = this.py();
        let conn = this.get();
        let output = {
            let mut state = conn.lock(py)?;
            if state.driver.socket().is_some() {
                let blocked = state.write_to_socket(py) == Flushed::Blocked;
                drop(state);
                conn.set_blocked(py, blocked)?;
                return Ok(blocked);
            }
            if state.driver.is_over() {
                return Ok(true);
            }
            // A signal handler or finalizer may run while queued bytes are passed to a transport, and must not
            // overtake them. The caller that passes them continues until all is written.
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
                // A signal handler may have raised: it is unknown how many bytes were written, so no more may
                // follow.
                conn.lock(py)?.driver.end(Failure::Aborted);
                Err(error)
            }
        }
    }

    /// Writes corked messages, at the end of an iteration of the loop.
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

    /// Handles that the socket has room again.
    pub(super) fn on_writable(this: &Bound<'_, Self>) -> PyResult<()> {
        let conn = this.get();
        conn.loop_state.get().begin_iteration();
        Self::write_from_loop(this)
    }

    /// Handles that the transport has room again.
    pub(super) fn on_resume_writing(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let drained = {
            let mut state = conn.lock(py)?;
            state.send_queue.blocked = false;
            state.resuming = true;
            std::mem::take(&mut state.send_queue.draining).then_some(state.send_queue.marks())
        };
        let mut first_error = FirstError::new();
        if let (Some(marks), Some(transport)) = (drained, conn.transport(py)) {
            first_error.record(invoke::retry_interrupted(|| limit_transport(transport.bind(py), marks)));
            // Tasks that wait for a flush need not wait for messages sent from now on.
            first_error.record(conn.notify_flushed(py));
        }
        first_error.record(Self::on_writable(this));
        conn.lock(py)?.resuming = false;
        first_error.into_result()
    }

    /// Returns the transport, if the I/O backend is a transport.
    pub(super) fn transport(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        match &*self.backend.lock(py) {
            Backend::Transport(transport) => Some(transport.clone_ref(py)),
            _ => None,
        }
    }

    /// While closing, bytes in the transport's buffer count as unwritten until the kernel has them. Arranges to
    /// be called when the buffer is empty.
    pub(super) fn set_transport_buffered(&self, py: Python<'_>) -> PyResult<()> {
        let buffered = self.buffered_by_transport(py).map(|buffered| buffered > 0);
        // If a signal handler has raised, the buffer counts as not empty, so no bytes are lost.
        self.lock(py)?.driver.set_transport_buffered(*buffered.as_ref().unwrap_or(&true));
        if buffered? { self.watch_buffer_empty(py) } else { Ok(()) }
    }

    /// Arranges to be called when the transport's buffer is empty. A transport reports only that it has room
    /// again, so its high watermark is set to 0.
    fn watch_buffer_empty(&self, py: Python<'_>) -> PyResult<()> {
        if std::mem::replace(&mut self.lock(py)?.send_queue.draining, true) {
            return Ok(());
        }
        let Some(transport) = self.transport(py) else { return Ok(()) };
        let (done, result) =
            invoke::retry_interrupted_succeeded(|| limit_transport(transport.bind(py), Watermarks::at(0)));
        if !done {
            self.lock(py)?.send_queue.draining = false; // the next call tries again
        }
        result
    }

    /// Returns the bytes that the transport has accepted and the kernel has not.
    pub(super) fn buffered_by_transport(&self, py: Python<'_>) -> PyResult<usize> {
        if self.lock(py)?.driver.is_over() {
            return Ok(0);
        }
        match self.transport(py) {
            Some(transport) => invoke::method(transport.bind(py), intern!(py, "get_write_buffer_size"), [])?.extract(),
            None => Ok(0),
        }
    }

    /// Writes from a callback of the loop, in which a listener may be notified directly that there is room.
    fn write_from_loop(this: &Bound<'_, Self>) -> PyResult<()> {
        let mut first_error = FirstError::new();
        first_error.record(Self::write_queue(this));
        let notify = {
            let mut state = this.get().lock(this.py())?;
            let notify =
                state.send_queue.writable_notice != WritableNotice::No && state.send_queue.is_writable(&state.driver);
            state.send_queue.writable_notice = match state.send_queue.writable_notice {
                WritableNotice::Soon if !notify => WritableNotice::Wanted,
                _ if notify => WritableNotice::No,
                same => same,
            };
            notify
        };
        first_error.record(Self::run_actions(this));
        if notify {
            first_error.record(Self::notify_writable(this));
            first_error.record(Self::run_actions(this));
        }
        first_error.into_result()
    }

    /// Schedules a callback for the loop's next iteration, which notifies the listener that there is room.
    pub(super) fn notify_writable_soon(&self, py: Python<'_>) -> PyResult<()> {
        let Some(adapter) = self.adapter.get() else { return Ok(()) };
        let writable = adapter.bind(py).getattr(intern!(py, "_writable"))?;
        invoke::call_soon(self.event_loop.bind(py), &writable)
    }

    /// Runs the next step of `flush()`.
    pub(super) fn flush_step(&self, this: &Bound<'_, Self>, operation: &Operation) -> PyResult<Step> {
        let py = this.py();
        if let Some(waiter) = operation.take_waiter() {
            if waiter.stage(py) == Stage::Waiting {
                return Ok(Step::Wait(waiter));
            }
            return waiter.take_error(py).map_or_else(|| Ok(Step::Ready(none())), Err);
        }
        Self::write_out(this)?;
        let buffered = self.buffered_by_transport(py)?;
        {
            let mut state = self.lock(py)?;
            if state.driver.send_half().failure().is_some() || state.driver.is_over() {
                drop(state);
                return Err(self.closed(py));
            }
            if state.is_written() && buffered == 0 {
                // Repeated calls that need not wait must give other tasks a turn.
                let turn_due = state.send_queue.is_yield_due(0, self.loop_state.get().iteration());
                if !std::mem::take(&mut state.send_queue.yield_owed) && !turn_due {
                    return Ok(Step::Ready(none()));
                }
                drop(state);
                operation.set_kind(OperationKind::Yield);
                self.loop_state.get().begin_iteration();
                return Ok(Step::Yield);
            }
        }
        let waiter = WaiterRef::for_sender(self.event_loop.bind(py), 0)?;
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
        if buffered > 0 {
            self.notify_flushed(py)?;
            Self::run_actions(this)?; // the watermark 0 alone does not make a transport count as full
        }
        Ok(Step::Wait(waiter))
    }

    /// Wakes the tasks whose flush is complete.
    pub(super) fn notify_flushed(&self, py: Python<'_>) -> PyResult<()> {
        if !self.lock(py)?.send_queue.has_flushes() {
            return Ok(());
        }
        if self.buffered_by_transport(py)? > 0 {
            return self.watch_buffer_empty(py);
        }
        let flushed = {
            let mut state = self.lock(py)?;
            let connection::WaitState { driver, send_queue, .. } = &mut **state;
            send_queue.take_flushed(driver)
        };
        let mut first_error = FirstError::new();
        for waiter in flushed {
            first_error.record(waiter.wake(py, false));
        }
        first_error.into_result()
    }
}

/// Writes to a transport, unless it has failed: it reports that in the next iteration, and logs a warning for
/// every write until then. Returns whether it was written.
fn write_to(transport: &Bound<'_, PyAny>, bytes: &Bound<'_, PyBytes>) -> PyResult<bool> {
    let py = transport.py();
    if invoke::method(transport, intern!(py, "is_closing"), [])?.is_truthy()? {
        return Ok(false);
    }
    invoke::method(transport, intern!(py, "write"), [bytes.as_any()])?;
    Ok(true)
}
