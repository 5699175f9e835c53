//! Receiving: the steps of `recv()` and its variants, and the delivery of read messages to waiting tasks.

use pyo3::exceptions::{PyRuntimeError, PyStopAsyncIteration};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;
use wirespeed_driver::connection::Item;
use wirespeed_driver::protocol::{Delivery, MessageKind};

use super::access::set_result;
use super::connection::AsyncConnection;
use super::invoke::{self, FirstError};
use super::operation::{Operation, OperationKind, Step, delivery};
use super::state::PendingNotifications;
use super::waiter::{AssignedMessage, Stage, WaiterRef};
use crate::{errors, view};

impl AsyncConnection {
    /// Runs the next step of an operation.
    #[inline]
    pub(super) fn step(&self, this: &Bound<'_, Self>, operation: &Operation) -> PyResult<Step> {
        // An operation that has started continues on the loop that runs it.
        if operation.is_fresh() && !self.may_start(this.py(), operation.kind())? {
            self.refuse_foreign_loop(this.py(), "awaited", "asyncio.run_coroutine_threadsafe")?;
        }
        let step = match operation.kind() {
            OperationKind::Receive | OperationKind::Next | OperationKind::ReceiveMany | OperationKind::Fragment => {
                self.receive_step(this, operation)
            }
            OperationKind::Flush => self.flush_step(this, operation),
            _ => self.send_step(this, operation),
        };
        step.or_else(|error| Self::finish_failed_call(this, error))
    }

    /// Returns whether an operation may start in this thread.
    #[inline]
    fn may_start(&self, py: Python<'_>, kind: OperationKind) -> PyResult<bool> {
        if kind.receives() {
            self.loop_state.get().probably_runs_here(self.event_loop.bind(py))
        } else {
            self.is_in_loop(py)
        }
    }

    #[inline]
    fn receive_step(&self, this: &Bound<'_, Self>, operation: &Operation) -> PyResult<Step> {
        let py = this.py();
        if let Some(waiter) = operation.take_waiter() {
            if waiter.stage(py) == Stage::Waiting {
                return Ok(Step::Wait(waiter));
            }
            if let Some(AssignedMessage { item, continues, later }) = waiter.take(py) {
                if later && let Err(error) = self.release_assigned(this) {
                    self.lock(py)?.wait_state.inbox_mut().put_back_fragment(item, continues);
                    return Err(error);
                }
                return self.finish_receive(this, operation, item);
            }
            if let Some(error) = waiter.take_error(py) {
                return Err(error);
            }
        }
        let delivery = delivery(operation.kind());
        let mut state = self.lock(py)?;
        if self.listens() {
            return Err(PyRuntimeError::new_err("messages go to the listener: recv cannot be used"));
        }
        if state.wait_state.inbox().is_streaming() && delivery == Delivery::Messages {
            return Err(errors::streaming(py));
        }
        if std::mem::take(&mut state.turn_pending) {
            drop(state);
            self.release(py)?;
            state = self.lock(py)?;
        }
        // The next fragment of a message belongs to the task that receives this message, even if other tasks
        // wait for the next message.
        let continues = state.wait_state.inbox().is_streaming() && delivery == Delivery::Fragments;
        let taken = if !continues && state.wait_state.has_receivers(py) {
            None
        } else if state.is_receive_turn_due(self.loop_state.get().iteration()) {
            state.turn_pending = true;
            drop(state);
            self.hold(this);
            return Ok(Step::Yield);
        } else {
            state.take(py, operation.option, delivery)?
        };
        match taken {
            Some(item) => {
                state.driver_mut().endpoint_mut().release_parsed();
                // The application may be busy after this call, so a pong is written first.
                let due =
                    state.wait_state.is_resumable() || state.wait_state.is_write_due() || state.has_notifications();
                // Serve the tasks that wait for the message after this one.
                let serve = delivery == Delivery::Fragments && item.fin && state.wait_state.has_receivers(py);
                drop(state);
                let mut first_error = FirstError::new();
                if due {
                    first_error.record(Self::run_actions(this));
                }
                if serve {
                    first_error.record(self.schedule_process(py));
                }
                if let Err(error) = first_error.into_result() {
                    // A signal handler has raised: the message stays in the queue.
                    let mut state = self.lock(py)?;
                    state.wait_state.inbox_mut().put_back_fragment(item, continues);
                    return Err(error);
                }
                self.finish_receive(this, operation, item)
            }
            None => {
                let send_half = state.driver().send_half();
                // The end of the stream may have been read behind the messages taken so far.
                let due = send_half.is_eof() || send_half.queued() > 0;
                let due =
                    due || state.driver().is_closing() || state.wait_state.is_paused() || state.has_notifications();
                drop(state);
                if due {
                    Self::run_actions(this)?;
                }
                self.wait_for_message(this, operation, delivery)
            }
        }
    }

    /// No message has arrived: the task waits, or gets the exception of a closed connection.
    #[inline]
    fn wait_for_message(&self, this: &Bound<'_, Self>, operation: &Operation, delivery: Delivery) -> PyResult<Step> {
        let py = this.py();
        let waiter = WaiterRef::new(self.event_loop.bind(py), operation.option, delivery)?;
        let paused = {
            let mut state = self.lock(py)?;
            if state.wait_state.is_finished() {
                // Repeated calls must not keep the loop from running other callbacks.
                let turn_due = operation.is_fresh()
                    && state.wait_state.send_queue_mut().is_yield_due(0, self.loop_state.get().iteration());
                drop(state);
                if turn_due {
                    self.loop_state.get().begin_iteration();
                    return Ok(Step::Yield);
                }
                return Err(self.closed_error(py, operation.kind()));
            }
            if state.wait_state.is_connecting() {
                return Err(super::sending::connecting());
            }
            state.wait_state.add_receiver(waiter.clone());
            state.wait_state.is_paused()
        };
        self.hold(this);
        self.loop_state.get().begin_iteration();
        // Resume reading, because a task now waits for a message.
        if paused && let Err(error) = Self::run_actions(this) {
            self.abandon(this, &waiter, operation.kind());
            return Err(error);
        }
        Ok(Step::Wait(waiter))
    }

    /// Returns the exception that a receiver on a closed connection gets.
    fn closed_error(&self, py: Python<'_>, kind: OperationKind) -> PyErr {
        // A clean close ends the iteration; it is not an error.
        match self.closing(py) {
            Ok(closing) if kind == OperationKind::Next && closing.is_clean() => PyStopAsyncIteration::new_err(()),
            Ok(_) => self.closed(py),
            Err(error) => error,
        }
    }

    /// Converts a received message to the value of its operation.
    #[inline]
    fn finish_receive(&self, this: &Bound<'_, Self>, operation: &Operation, item: Item<Py<PyAny>>) -> PyResult<Step> {
        let py = this.py();
        let value = match operation.kind() {
            OperationKind::Receive | OperationKind::Next => finish_item(py, item, operation.option)?,
            OperationKind::Fragment => fragment(py, item)?,
            _ => self.receive_more(this, operation, item)?,
        };
        Ok(Step::Ready(value.into_ptr()))
    }

    /// Collects the messages that have arrived after the first.
    fn receive_more(
        &self,
        this: &Bound<'_, Self>,
        operation: &Operation,
        first: Item<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let py = this.py();
        let mut items = vec![first];
        {
            let mut state = self.lock(py)?;
            // Tasks that wait already come first.
            while items.len() < operation.limit
                && !state.wait_state.inbox().is_streaming()
                && !state.wait_state.has_receivers(py)
            {
                match state.take(py, operation.option, Delivery::Messages) {
                    Ok(Some(item)) => items.push(item),
                    Ok(None) => break,
                    // If one message cannot be converted, later messages must not appear to follow the earlier
                    // ones.
                    Err(error) => {
                        state.wait_state.inbox_mut().put_back(items.into_iter());
                        return Err(error);
                    }
                }
            }
            state.driver_mut().endpoint_mut().release_parsed();
        }
        if let Err(error) = Self::run_actions(this) {
            // A signal handler has raised: the messages stay in the queue.
            self.lock(py)?.wait_state.inbox_mut().put_back(items.into_iter());
            return Err(error);
        }
        // The list is created outside the connection's lock: this may start a garbage collection.
        let list = PyList::empty(py);
        let mut items = items.into_iter();
        while let Some(item) = items.next() {
            let message = match operation.option {
                None => by_frame_type(py, item.kind, item.message.clone_ref(py)),
                Some(text) => crate::view::convert(item.message.bind(py), text),
            };
            match message {
                Ok(message) => list.append(message)?,
                // A message that cannot be decoded is raised by a call of its own, after the messages before
                // it.
                Err(error) if list.is_empty() => {
                    self.lock(py)?.wait_state.inbox_mut().put_back(items);
                    return Err(error);
                }
                Err(_) => {
                    self.lock(py)?.wait_state.inbox_mut().put_back(std::iter::once(item).chain(items));
                    break;
                }
            }
        }
        Ok(list.into_any().unbind())
    }

    /// Receives a message that has already arrived.
    pub(super) fn receive_nowait(this: &Bound<'_, Self>, decode: Option<bool>) -> PyResult<Option<Py<PyAny>>> {
        let py = this.py();
        let conn = this.get();
        if conn.listens() {
            return Err(PyRuntimeError::new_err("messages go to the listener: recv_nowait cannot be used"));
        }
        conn.check_loop(py, "recv_nowait()")?;
        let taken = {
            let mut state = conn.lock(py)?;
            if state.wait_state.inbox().is_streaming() {
                return Err(errors::streaming(py));
            }
            let waiting = state.wait_state.has_receivers(py);
            let taken = if waiting { None } else { state.take(py, decode, Delivery::Messages)? };
            state.wait_state.inbox_mut().set_polled(taken.is_none() && !waiting);
            taken
        };
        if let Err(error) = Self::run_actions(this) {
            if let Some(item) = taken {
                conn.lock(py)?.wait_state.inbox_mut().put_back_fragment(item, false);
            }
            return Err(error);
        }
        match taken {
            Some(item) => finish_item(py, item, decode).map(Some),
            None if conn.lock(py)?.wait_state.is_finished() => Err(conn.closed(py)),
            None => Ok(None),
        }
    }

    /// Delivers read messages to waiting tasks, from a callback of the loop. Without waiting tasks they are
    /// queued.
    pub(super) fn process(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let mut first_error = FirstError::new();
        if conn.listens() {
            first_error.record(Self::dispatch(this));
        } else {
            // The check may run Python code and a signal handler. The messages are delivered in any case.
            let direct = conn.may_wake(py).unwrap_or_else(|error| {
                first_error.record(Err(error));
                false
            });
            while let Some(waiter) = conn.serve_next(this, &mut first_error, !direct)? {
                first_error.record(waiter.wake(py, direct));
                if waiter.defer_if_assigned(py) {
                    conn.lock(py)?.wait_state.assign(waiter);
                }
                // A task that the loop resumes later has not taken its message yet.
                if !direct && conn.lock(py)?.postpone() {
                    first_error.record(conn.schedule_process(py));
                    break;
                }
            }
        }
        first_error.record(Self::run_actions(this));
        first_error.into_result()
    }

    /// Delivers read messages from inside a task. The loop resumes the waiting tasks.
    pub(super) fn serve_receivers(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let mut first_error = FirstError::new();
        // A listener is called only from callbacks of the loop.
        while !conn.listens()
            && let Some(waiter) = conn.serve_next(this, &mut first_error, true)?
        {
            first_error.record(waiter.wake(py, false));
        }
        first_error.record(Self::run_actions(this));
        first_error.into_result()
    }

    /// Assigns the next message to the next receiver, and returns it. Fills the queue if no task waits. `later`
    /// is whether the loop resumes the task.
    #[inline]
    fn serve_next(
        &self,
        this: &Bound<'_, Self>,
        first_error: &mut FirstError,
        later: bool,
    ) -> PyResult<Option<WaiterRef>> {
        let py = this.py();
        let mut postponed = false;
        let (served, notifications) = {
            let mut state = self.lock(py)?;
            let continues = state.wait_state.inbox().is_streaming();
            let next = state.wait_state.next_receiver(py);
            let next = next.and_then(|index| Some((index, state.wait_state.receiver(index)?.receive_options())));
            let served = match next {
                None => {
                    match state.fill_queue(py) {
                        Ok(more) => postponed = more,
                        Err(error) => first_error.record(Err(error)),
                    }
                    None
                }
                Some((index, (decode, delivery))) => match state.take(py, decode, delivery) {
                    Ok(None) => {
                        state.driver_mut().endpoint_mut().release_parsed();
                        None
                    }
                    Ok(Some(item)) => {
                        let waiter = state.wait_state.take_receiver(index);
                        if let Some(waiter) = &waiter {
                            waiter.assign(py, AssignedMessage { item, continues, later });
                            if later {
                                state.wait_state.assign(waiter.clone());
                            }
                        }
                        waiter
                    }
                    Err(error) => {
                        let waiter = state.wait_state.take_receiver(index);
                        if let Some(waiter) = &waiter {
                            waiter.fail(py, error);
                        }
                        waiter
                    }
                },
            };
            (served, state.has_notifications())
        };
        // Errors are collected: the served task must be woken.
        if postponed {
            first_error.record(self.schedule_process(py));
        }
        if notifications {
            first_error.record(Self::deliver_notifications(this));
        }
        Ok(served)
    }

    /// Serves the next tasks after a task has taken its assigned message.
    fn release_assigned(&self, this: &Bound<'_, Self>) -> PyResult<()> {
        let has_waiting = self.lock(this.py())?.wait_state.release_assigned(this.py());
        if has_waiting { Self::serve_receivers(this) } else { Ok(()) }
    }

    /// Schedules [`Self::process`] for the loop's next iteration.
    pub(super) fn schedule_process(&self, py: Python<'_>) -> PyResult<()> {
        let Some(adapter) = self.adapter.get() else { return Ok(()) };
        invoke::call_soon(self.event_loop.bind(py), adapter.bind(py).getattr(intern!(py, "_readable"))?.as_any())
    }

    /// Handles that a task which has yielded to the loop is not resumed.
    pub(super) fn abandon_turn(&self, this: &Bound<'_, Self>) {
        let py = this.py();
        let serve = || {
            let pending = std::mem::take(&mut self.lock(py)?.turn_pending);
            if pending { self.schedule_process(py) } else { Ok(()) }
        };
        if let Err(error) = serve().and_then(|()| self.release(py)) {
            error.write_unraisable(py, Some(this.as_any()));
        }
    }

    /// Handles that a task stopped waiting: its message goes to other tasks.
    pub(super) fn abandon(&self, this: &Bound<'_, Self>, waiter: &WaiterRef, kind: OperationKind) {
        let py = this.py();
        waiter.abandon(py);
        let result =
            if kind.receives() { self.abandon_receive(this, waiter, kind) } else { self.abandon_send(this, waiter) };
        if let Err(error) = result.and_then(|()| self.release(py)) {
            error.write_unraisable(py, Some(this.as_any()));
        }
    }

    fn abandon_receive(&self, this: &Bound<'_, Self>, waiter: &WaiterRef, kind: OperationKind) -> PyResult<()> {
        let py = this.py();
        let assigned = waiter.take(py);
        let was_assigned = assigned.is_some();
        {
            let mut state = self.lock(py)?;
            state.wait_state.remove_receiver(waiter);
            if let Some(AssignedMessage { item, continues, later }) = assigned {
                if later {
                    state.wait_state.release_assigned(py);
                }
                state.wait_state.inbox_mut().put_back_fragment(item, continues);
            }
        }
        match (was_assigned, kind) {
            (false, _) => Ok(()),
            // The generator may first have to drop the rest of the message.
            (true, OperationKind::Fragment) => self.schedule_process(py),
            (true, _) => Self::serve_receivers(this),
        }
    }

    /// Delivers pending notifications: latencies to futures of pings, and control frames to a listener that
    /// leaves messages to `recv`.
    #[inline]
    pub(super) fn deliver_notifications(this: &Bound<'_, Self>) -> PyResult<()> {
        let notifications = this.get().lock(this.py())?.take_notifications();
        notifications.map_or(Ok(()), |notifications| Self::deliver_all(this, *notifications))
    }

    fn deliver_all(this: &Bound<'_, Self>, notifications: PendingNotifications) -> PyResult<()> {
        let py = this.py();
        let mut first_error = FirstError::new();
        for (future, latency) in notifications.pongs {
            first_error.record(set_result(future.bind(py), latency.into_pyobject(py)?.as_any()));
        }
        for control in notifications.controls {
            first_error.record(Self::notify_control(this, control));
        }
        first_error.into_result()
    }
}

/// Converts a message as its operation requested.
fn finish_item(py: Python<'_>, item: Item<Py<PyAny>>, decode: Option<bool>) -> PyResult<Py<PyAny>> {
    match decode {
        None => by_frame_type(py, item.kind, item.message),
        // A message that was queued meanwhile has the type of its frame.
        Some(text) => view::convert(item.message.bind(py), text),
    }
}

/// Converts a message to the type of its frame: a task that requested bytes may have given it up.
fn by_frame_type(py: Python<'_>, kind: MessageKind, message: Py<PyAny>) -> PyResult<Py<PyAny>> {
    if kind == MessageKind::Text { view::convert(message.bind(py), true) } else { Ok(message) }
}

/// Returns the value of a fragment.
fn fragment(py: Python<'_>, item: Item<Py<PyAny>>) -> PyResult<Py<PyAny>> {
    let is_text = item.kind == MessageKind::Text;
    let fin = item.fin;
    let bytes = view::convert(item.message.bind(py), false)?;
    Ok((bytes, is_text, fin).into_pyobject(py)?.into_any().unbind())
}
