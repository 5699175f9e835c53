//! Sending: the fast path of `send`, and the steps of operations that must wait.

use pyo3::exceptions::{PyBlockingIOError, PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use wirespeed_driver::buffer_pool;
use wirespeed_driver::connection::Output;
use wirespeed_driver::protocol::{CloseCode, MessageKind, SendError};
use wirespeed_driver::source::Source;
use wirespeed_driver::write_queue::Flushed;

use super::connection::AsyncConnection;
use super::loop_state::LoopState;
use super::operation::{Operation, OperationKind, Step, none};
use super::owner_mutex::Guard;
use super::state::State;
use super::waiter::{Stage, WaiterRef};
use crate::{errors, source};

/// The outcome of an attempt to send a message.
pub(super) enum SendOutcome {
    /// The message is queued or written.
    Done,
    /// The message is queued or written, and the loop is due a turn.
    Turn,
    /// The message is queued or written, and the sender should wait for room.
    Full,
    /// The message is not queued: the sender must wait.
    Wait,
    /// The connection is closed or closing.
    Closed,
}

impl AsyncConnection {
    /// `send()`: returns a new reference to the awaitable.
    #[inline]
    pub(super) fn send(
        this: &Bound<'_, Self>,
        message: &Bound<'_, PyAny>,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> PyResult<*mut ffi::PyObject> {
        let Some((kind, bytes)) = source::message(message, text)? else {
            return this.call_method1("_send_fragments", (message, text, compress)).map(Bound::into_ptr);
        };
        // In another thread, the message is sent when the operation is awaited on the connection's loop:
        // `run_coroutine_threadsafe(ws.send(...), loop)`. On another loop, awaiting it raises an exception.
        if !this.get().is_in_loop(this.py())? {
            return Ok(Operation::create_send(this, message, text, compress));
        }
        Ok(match Self::try_send(this, message, kind, &bytes, compress, false)? {
            SendOutcome::Done => Operation::done(),
            SendOutcome::Turn => Operation::create(this, OperationKind::Yield, None),
            SendOutcome::Full => Operation::create(this, OperationKind::Drain, None),
            SendOutcome::Wait => Operation::create_send(this, message, text, compress),
            SendOutcome::Closed => Operation::create(this, OperationKind::Closed, None),
        })
    }

    /// `send_nowait()`.
    pub(super) fn send_at_once(
        this: &Bound<'_, Self>,
        message: &Bound<'_, PyAny>,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> PyResult<()> {
        let Some((kind, bytes)) = source::message(message, text)? else {
            return Err(wrong_type(message, "message"));
        };
        this.get().check_loop(this.py(), "send_nowait()")?;
        match Self::try_send(this, message, kind, &bytes, compress, false)? {
            SendOutcome::Done => Ok(()),
            SendOutcome::Turn => {
                this.get().lock(this.py())?.wait_state.send_queue_mut().owe_yield();
                Ok(())
            }
            SendOutcome::Full => {
                this.get().lock(this.py())?.wait_state.send_queue_mut().request_writable_notice();
                Ok(())
            }
            SendOutcome::Wait => {
                this.get().lock(this.py())?.wait_state.send_queue_mut().request_writable_notice();
                Err(PyBlockingIOError::new_err("too much is waiting to be sent: see write_limit"))
            }
            SendOutcome::Closed => Err(this.get().closed(this.py())),
        }
    }

    /// Queues a message if this is possible now, and writes if that is due. `has_turn` is whether the sender is
    /// first in the send queue.
    #[inline]
    fn try_send(
        this: &Bound<'_, Self>,
        message: &Bound<'_, PyAny>,
        kind: MessageKind,
        bytes: &source::Message<'_>,
        compress: Option<bool>,
        has_turn: bool,
    ) -> PyResult<SendOutcome> {
        let py = this.py();
        let conn = this.get();
        let len = bytes.len();
        let iteration = conn.loop_state.get().iteration();
        let mut state = conn.lock(py)?;
        if state.wait_state.is_closing() {
            return Ok(SendOutcome::Closed);
        }
        if state.wait_state.must_wait(has_turn) {
            return if state.wait_state.is_connecting() { Err(connecting()) } else { Ok(SendOutcome::Wait) };
        }
        let result = if state.driver().send_half().is_large(len, compress) {
            drop(state);
            Self::begin_large(this, message, kind, bytes)?;
            state = conn.lock(py)?;
            Ok(())
        } else {
            state.driver_mut().send_half_mut().send_message(kind, bytes.piece(0..len), compress)
        };
        match result {
            Ok(()) => {}
            Err(SendError::NotOpen) => return Ok(SendOutcome::Closed),
            Err(error) => {
                drop(state);
                return Err(errors::refused(py, error));
            }
        }
        Self::write_queued(this, state, len, iteration)
    }

    /// Writes the message that was just queued, if that is due.
    #[inline]
    pub(super) fn write_queued(
        this: &Bound<'_, Self>,
        mut state: Guard<'_, State>,
        len: usize,
        iteration: u64,
    ) -> PyResult<SendOutcome> {
        let py = this.py();
        let conn = this.get();
        let output = state.wait_state.output(iteration);
        let turn_due = state.wait_state.send_queue_mut().is_yield_due(len, iteration);
        if output == Output::Write
            && !state.wait_state.send_queue().is_sending_large()
            && state.driver().socket().is_some()
        {
            // The fast path: one system call, and no other work.
            if state.write_to_socket(py) == Flushed::All
                && !state.driver().is_closing()
                && !state.wait_state.is_room_due()
                && !state.wait_state.send_queue().has_flushes()
            {
                return Ok(if turn_due { SendOutcome::Turn } else { SendOutcome::Done });
            }
        }
        let large = state.wait_state.send_queue().is_sending_large();
        let corked = output == Output::Cork && state.wait_state.send_queue_mut().cork();
        // The other fast path: the message is written with those queued before it.
        if corked && !large && state.driver().send_half().failure().is_none() {
            return Ok(if turn_due { SendOutcome::Turn } else { SendOutcome::Done });
        }
        drop(state);
        match output {
            Output::Cork if !corked => LoopState::cork(conn.loop_state.bind(py), this)?,
            Output::Write => Self::write_out(this)?,
            Output::Wait if large => Self::write_out(this)?,
            Output::Cork | Output::Wait => {}
        }
        let state = conn.lock(py)?;
        if state.driver().send_half().failure().is_some() {
            drop(state);
            Self::run_actions(this)?; // starts closing
            return Ok(SendOutcome::Closed);
        }
        Ok(match () {
            () if state.wait_state.should_wait() => SendOutcome::Full,
            () if turn_due => SendOutcome::Turn,
            () => SendOutcome::Done,
        })
    }

    /// Runs the next step of an operation that waits to send.
    pub(super) fn send_step(&self, this: &Bound<'_, Self>, operation: &Operation) -> PyResult<Step> {
        let py = this.py();
        let Some(waiter) = operation.take_waiter() else { return self.send_now(this, operation, false) };
        if waiter.stage(py) == Stage::Waiting {
            return Ok(Step::Wait(waiter));
        }
        let (has_turn, first) = {
            let mut state = self.lock(py)?;
            (
                state.wait_state.send_queue_mut().take_turn(waiter.ticket()),
                state.wait_state.send_queue().is_first(waiter.ticket()),
            )
        };
        if has_turn && !first && !self.lock(py)?.wait_state.is_finished() {
            return self.wait_for_room(this, Some(operation));
        }
        if operation.kind() == OperationKind::Drain {
            return if self.lock(py)?.wait_state.is_finished() {
                Err(self.closed(py))
            } else {
                Ok(Step::Ready(none()))
            };
        }
        self.send_now(this, operation, has_turn)
    }

    fn send_now(&self, this: &Bound<'_, Self>, operation: &Operation, has_turn: bool) -> PyResult<Step> {
        let py = this.py();
        let outcome = match operation.kind() {
            OperationKind::Yield => {
                self.loop_state.get().begin_iteration();
                return Ok(Step::Yield);
            }
            OperationKind::Closed => SendOutcome::Closed,
            OperationKind::Drain => {
                let state = self.lock(py)?;
                match () {
                    () if state.driver().is_over() || state.driver().send_half().failure().is_some() => {
                        SendOutcome::Closed
                    }
                    () if state.wait_state.should_wait() => SendOutcome::Full,
                    () => SendOutcome::Done,
                }
            }
            OperationKind::SendTurn => {
                let state = self.lock(py)?;
                match () {
                    () if state.wait_state.is_closing() => SendOutcome::Closed,
                    () if state.wait_state.is_connecting() => return Err(connecting()),
                    () if state.wait_state.must_wait(has_turn) => SendOutcome::Wait,
                    () => SendOutcome::Done,
                }
            }
            OperationKind::SendMany => match self.send_from_iterator(this, operation, has_turn)? {
                Some(outcome) => outcome,
                None => {
                    self.loop_state.get().begin_iteration();
                    return Ok(Step::Yield);
                }
            },
            _ => {
                let Some(message) = operation.message(py) else {
                    return Err(PyRuntimeError::new_err("this was awaited already"));
                };
                let Some((kind, bytes)) = source::message(&message, operation.option)? else {
                    return Err(wrong_type(&message, "message"));
                };
                Self::try_send(this, &message, kind, &bytes, operation.compress, has_turn)?
            }
        };
        match outcome {
            SendOutcome::Done => Ok(Step::Ready(none())),
            SendOutcome::Turn => {
                operation.set_kind(OperationKind::Yield);
                self.loop_state.get().begin_iteration();
                Ok(Step::Yield)
            }
            SendOutcome::Full => {
                operation.set_kind(OperationKind::Drain);
                self.wait_for_room(this, None)
            }
            SendOutcome::Wait => self.wait_for_room(this, Some(operation)),
            SendOutcome::Closed => {
                operation.set_kind(OperationKind::Closed);
                self.wait_for_end(this)
            }
        }
    }

    /// Sends the messages of an iterator until it is exhausted or there is no room. `None` if the loop is due a
    /// turn, after which sending continues.
    fn send_from_iterator(
        &self,
        this: &Bound<'_, Self>,
        operation: &Operation,
        mut has_turn: bool,
    ) -> PyResult<Option<SendOutcome>> {
        let py = this.py();
        let Some(iterator) = operation.message(py) else {
            return Err(PyRuntimeError::new_err("this was awaited already"));
        };
        let (text, compress) = (operation.option, operation.compress);
        let iteration = self.loop_state.get().iteration();
        let mut turn_due = false;
        loop {
            {
                let state = self.lock(py)?;
                if state.wait_state.is_closing() {
                    return Ok(Some(SendOutcome::Closed));
                }
                // Checked before the next message is taken out of the iterator, because it could not be put
                // back.
                if state.wait_state.is_connecting() {
                    return Err(connecting());
                }
                if state.wait_state.must_wait(has_turn) {
                    return Ok(Some(SendOutcome::Wait));
                }
            }
            if turn_due {
                Self::write_out(this)?;
                return Ok(None);
            }
            has_turn = true;
            operation.drop_ticket();
            // Messages of other tasks may be sent in between, as with single sends.
            let message = match next_item(&iterator) {
                Ok(Some(message)) => message,
                Ok(None) => {
                    Self::write_out(this)?;
                    let mut state = self.lock(py)?;
                    // The call itself counts, even if the iterator is empty.
                    turn_due |= state.wait_state.send_queue_mut().is_yield_due(0, iteration);
                    return Ok(Some(match () {
                        () if state.wait_state.should_wait() => SendOutcome::Full,
                        () if turn_due => SendOutcome::Turn,
                        () => SendOutcome::Done,
                    }));
                }
                // The messages before are accepted: `finish_failed_call` writes them.
                Err(error) => return Err(error),
            };
            let outcome = match source::message(&message, text)? {
                Some((kind, bytes)) => {
                    turn_due |= self.lock(py)?.wait_state.send_queue_mut().is_yield_due(bytes.len(), iteration);
                    self.queue(this, &message, kind, &bytes, compress)?
                }
                None => return Err(wrong_type(&message, "messages")),
            };
            if outcome.is_some() {
                return Ok(outcome);
            }
        }
    }

    /// Queues one of many messages. Writes if the buffer is half full.
    #[inline]
    fn queue(
        &self,
        this: &Bound<'_, Self>,
        message: &Bound<'_, PyAny>,
        kind: MessageKind,
        bytes: &source::Message<'_>,
        compress: Option<bool>,
    ) -> PyResult<Option<SendOutcome>> {
        let py = this.py();
        let len = bytes.len();
        let mut state = self.lock(py)?;
        if state.driver().send_half().is_large(len, compress) {
            drop(state);
            Self::begin_large(this, message, kind, bytes)?;
            Self::write_out(this)?;
            return Ok(None);
        }
        match state.driver_mut().send_half_mut().send_message(kind, bytes.piece(0..len), compress) {
            Ok(()) => {}
            Err(SendError::NotOpen) => return Ok(Some(SendOutcome::Closed)),
            Err(error) => {
                drop(state);
                return Err(errors::refused(py, error));
            }
        }
        if state.driver().send_half().queued() >= buffer_pool::WRITE_SIZE / 2
            && state.wait_state.send_queue().accepts_output()
        {
            drop(state);
            Self::write_out(this)?;
        }
        Ok(None)
    }

    /// Waits for room in the send queue. `parked` is the operation whose message is not queued yet.
    fn wait_for_room(&self, this: &Bound<'_, Self>, parked: Option<&Operation>) -> PyResult<Step> {
        let py = this.py();
        if parked.is_some() {
            // The iterable of the fragments runs inside the sending task, which would wait for itself.
            let sender = self.lock(py)?.wait_state.send_queue().fragment_sender();
            if let Some(task) = sender
                && task != 0
                && task == super::raw::current_task(self.event_loop.bind(py))?
            {
                return Err(errors::sending_fragments(py));
            }
        }
        // Write corked messages now: only this sender waits for them.
        Self::write_out(this)?;
        let ticket = match parked {
            Some(operation) => {
                let mut state = self.lock(py)?;
                operation.keep_ticket(|| state.wait_state.send_queue_mut().next_ticket())
            }
            None => 0,
        };
        let waiter = WaiterRef::for_sender(self.event_loop.bind(py), ticket)?;
        {
            let mut state = self.lock(py)?;
            if state.wait_state.is_finished() {
                drop(state);
                return Err(self.closed(py));
            }
            match parked {
                Some(_) => state.wait_state.send_queue_mut().add_sender(ticket, waiter.clone()),
                None => state.wait_state.send_queue_mut().add_drainer(waiter.clone()),
            }
        }
        self.hold(this);
        self.loop_state.get().begin_iteration();
        // There may be room by now.
        if let Err(error) = Self::run_actions(this) {
            self.abandon(this, &waiter, OperationKind::Drain);
            return Err(error);
        }
        Ok(Step::Wait(waiter))
    }

    fn wait_for_end(&self, this: &Bound<'_, Self>) -> PyResult<Step> {
        let py = this.py();
        Self::run_actions(this)?; // it may be closed without a notification yet
        let waiter = WaiterRef::new(self.event_loop.bind(py), None, Default::default())?;
        {
            let mut state = self.lock(py)?;
            if state.wait_state.is_finished() {
                drop(state);
                return Err(self.closed(py));
            }
            state.wait_state.add_end_waiter(waiter.clone());
        }
        self.hold(this);
        self.loop_state.get().begin_iteration();
        Ok(Step::Wait(waiter))
    }

    /// Handles that a task stopped waiting to send.
    pub(super) fn abandon_send(&self, this: &Bound<'_, Self>, waiter: &WaiterRef) -> PyResult<()> {
        {
            self.lock(this.py())?.wait_state.remove_sender(waiter.ticket(), waiter);
        }
        // The send queue may have waited only for this task.
        Self::run_actions(this)
    }

    /// Sends one fragment. Returns whether it is text, and the awaitable.
    pub(super) fn send_fragment<'py>(
        this: &Bound<'py, Self>,
        fragment: &Bound<'py, PyAny>,
        first: bool,
        fin: bool,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> PyResult<(bool, Bound<'py, PyAny>)> {
        let py = this.py();
        let conn = this.get();
        let Some((kind, bytes)) = source::fragment(fragment, text)? else {
            return Err(wrong_type(fragment, "fragments"));
        };
        let iteration = conn.loop_state.get().iteration();
        let result = {
            let mut state = conn.lock(py)?;
            if state.driver().is_closing() {
                Err(SendError::NotOpen)
            } else {
                let send_half = state.driver_mut().send_half_mut();
                let payload = bytes.piece(0..bytes.len());
                let result = if first {
                    send_half.send_first_fragment(kind, payload, compress)
                } else {
                    send_half.send_fragment(payload, fin)
                };
                result.map(|()| {
                    let output = state.wait_state.output(iteration);
                    (output, output == Output::Cork && state.wait_state.send_queue_mut().cork())
                })
            }
        };
        let awaited = match result {
            Err(SendError::NotOpen) => Operation::create(this, OperationKind::Closed, None),
            Err(error) => return Err(errors::refused_fragment(py, error, bytes.piece(0..bytes.len()))),
            Ok((output, corked)) => {
                match output {
                    Output::Cork if !corked => LoopState::cork(conn.loop_state.bind(py), this)?,
                    Output::Write => Self::write_out(this)?,
                    Output::Cork | Output::Wait => {}
                }
                let full = conn.lock(py)?.wait_state.is_above_high();
                if full { Operation::create(this, OperationKind::Drain, None) } else { Operation::done() }
            }
        };
        let awaited = super::raw::adopt(py, awaited)?;
        Ok((kind == MessageKind::Text, awaited))
    }

    /// Starts the closing handshake, after a large message that is being written.
    pub(super) fn begin_close(
        this: &Bound<'_, Self>,
        code: Option<CloseCode>,
        reason: &str,
        keep: bool,
    ) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let result = {
            let mut state = conn.lock(py)?;
            if state.driver().is_over() {
                drop(state);
                return Self::run_actions(this);
            }
            state.wait_state.begin_close(code, reason, keep, std::time::Instant::now())
        };
        result.map_err(|error| errors::refused(py, error))?;
        Self::write_out(this)?;
        Self::serve_receivers(this)
    }
}

/// Returns the next item of an iterator.
fn next_item<'py>(iterator: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    iterator.cast::<pyo3::types::PyIterator>()?.clone().next().transpose()
}

/// The exception for sending or receiving before the opening handshake is answered: waiting would block the
/// handshake.
pub(super) fn connecting() -> PyErr {
    PyRuntimeError::new_err("the opening handshake is not complete: nothing can be sent or received yet")
}

fn wrong_type(object: &Bound<'_, PyAny>, what: &str) -> PyErr {
    PyTypeError::new_err(format!("{what} must be str or bytes-like, not {}", source::type_name(object)))
}
