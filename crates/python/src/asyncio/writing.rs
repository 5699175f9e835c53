//! Writing queued bytes: immediately, at the end of an iteration, or when there is room. Large messages are
//! written piece by piece. Also `flush`.

use std::time::Instant;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use wirespeed_driver::connection::{ConnectionDriver, Watermarks};
use wirespeed_driver::endpoint::{Failure, LargeSend};
use wirespeed_driver::protocol::MessageKind;
use wirespeed_driver::source::Source;
use wirespeed_driver::thread::BULK_IO_BYTES;
use wirespeed_driver::write_queue::Flushed;

use super::connection::{AsyncConnection, Backend};
use super::driving::limit_transport;
use super::invoke::{self, FirstError};
use super::operation::{Operation, OperationKind, Step, none};
use super::waiter::{Stage, WaiterRef};
use crate::payload::PyPayload;
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
        let begun = state.wait_state.begin_large(kind, bytes.len(), source.clone().unbind());
        begun.map_err(|error| errors::refused(py, error))
    }

    /// Continues with the current large message, if there is one: writes directly from the message, or queues
    /// the next piece. Returns whether there is no more room.
    fn append_large(&self, py: Python<'_>) -> PyResult<bool> {
        // A reference of its own: at the end of the message, the state drops another one inside the lock.
        let Some(source) = self.lock(py)?.wait_state.send_queue().large_source().map(|source| source.clone_ref(py))
        else {
            return Ok(false);
        };
        let source = source.bind(py);
        let bytes = match source.cast::<PyBytes>() {
            Ok(bytes) => bytes.as_bytes(),
            Err(_) => source.cast::<PyString>()?.to_str()?.as_bytes(),
        };
        // The payload cannot change while other threads run, see `begin_large`.
        let write = |driver: &mut ConnectionDriver<PyPayload>, send: &mut LargeSend, rest: &[u8]| {
            gil_yield::run_transfer(py, rest.len() >= BULK_IO_BYTES, || driver.write_large(send, rest))
        };
        Ok(self.lock(py)?.wait_state.append_large(bytes, write, Instant::now))
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
            if conn.lock(py)?.driver().send_half().queued() < LARGE_PIECE_THRESHOLD && conn.append_large(py)? {
                return conn.set_blocked(py, true);
            }
            if Self::flush_once(this)? || conn.lock(py)?.wait_state.is_written() {
                return Ok(());
            }
        }
    }

    /// Sets whether the socket has no room. If so, the loop calls back when it has.
    fn set_blocked(&self, py: Python<'_>, blocked: bool) -> PyResult<()> {
        let before = self.lock(py)?.wait_state.send_queue_mut().set_blocked(blocked);
        if blocked == before { Ok(()) } else { self.watch_writable(py, blocked) }
    }

    /// Writes once. Returns whether there is no more room.
    fn flush_once(this: &Bound<'_, Self>) -> PyResult<bool> {
        let py = this.py();
        let conn = this.get();
        let output = {
            let mut state = conn.lock(py)?;
            if state.driver().socket().is_some() {
                let blocked = state.write_to_socket(py) == Flushed::Blocked;
                drop(state);
                conn.set_blocked(py, blocked)?;
                return Ok(blocked);
            }
            if state.driver().is_over() {
                return Ok(true);
            }
            // A signal handler or finalizer may run while queued bytes are passed to a transport, and must not
            // overtake them. The caller that passes them continues until all is written.
            if !state.wait_state.send_queue().accepts_output() {
                return Ok(true);
            }
            state.wait_state.begin_transport_write()
        };
        if output.is_empty() {
            return Ok(false);
        }
        let written = conn.transport(py).map(|transport| {
            let output = PyBytes::new(py, &output);
            write_to(transport.bind(py), &output)
        });
        conn.lock(py)?.wait_state.send_queue_mut().end_transport_write();
        let Some(written) = written else { return Ok(true) };
        match written {
            Ok(written) => {
                let mut state = conn.lock(py)?;
                let send_queue = state.wait_state.send_queue_mut();
                if !written {
                    send_queue.set_blocked(true);
                }
                Ok(send_queue.is_blocked())
            }
            Err(error) => {
                // A signal handler may have raised: it is unknown how many bytes were written, so no more may
                // follow.
                conn.lock(py)?.driver_mut().end(Failure::Aborted);
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
            state.wait_state.send_queue_mut().uncork();
            state.wait_state.is_write_due()
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
            state.resuming = true;
            let send_queue = state.wait_state.send_queue_mut();
            send_queue.set_blocked(false);
            send_queue.stop_draining().then_some(send_queue.marks())
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
        self.lock(py)?.driver_mut().set_transport_buffered(*buffered.as_ref().unwrap_or(&true));
        if buffered? { self.watch_buffer_empty(py) } else { Ok(()) }
    }

    /// Arranges to be called when the transport's buffer is empty. A transport reports only that it has room
    /// again, so its high watermark is set to 0.
    fn watch_buffer_empty(&self, py: Python<'_>) -> PyResult<()> {
        if !self.lock(py)?.wait_state.send_queue_mut().start_draining() {
            return Ok(());
        }
        let Some(transport) = self.transport(py) else { return Ok(()) };
        let (done, result) =
            invoke::retry_interrupted_succeeded(|| limit_transport(transport.bind(py), Watermarks::at(0)));
        if !done {
            self.lock(py)?.wait_state.send_queue_mut().stop_draining(); // the next call tries again
        }
        result
    }

    /// Returns the bytes that the transport has accepted and the kernel has not.
    pub(super) fn buffered_by_transport(&self, py: Python<'_>) -> PyResult<usize> {
        if self.lock(py)?.driver().is_over() {
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
        let notify = this.get().lock(this.py())?.wait_state.take_writable_notice();
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
            if state.driver().send_half().failure().is_some() || state.driver().is_over() {
                drop(state);
                return Err(self.closed(py));
            }
            if state.wait_state.is_written() && buffered == 0 {
                // Repeated calls that need not wait must give other tasks a turn.
                let turn_due = state.wait_state.send_queue_mut().is_yield_due(0, self.loop_state.get().iteration());
                if !state.wait_state.send_queue_mut().take_owed_yield() && !turn_due {
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
            if state.wait_state.is_finished() {
                drop(state);
                return Err(self.closed(py));
            }
            state.wait_state.add_flush(waiter.clone());
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
        if !self.lock(py)?.wait_state.send_queue().has_flushes() {
            return Ok(());
        }
        if self.buffered_by_transport(py)? > 0 {
            return self.watch_buffer_empty(py);
        }
        let flushed = self.lock(py)?.wait_state.take_flushed();
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
