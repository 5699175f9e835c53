//! Receiving: the steps of `recv()` and its kin, and what a readable descriptor makes of them.

use pyo3::exceptions::{PyRuntimeError, PyStopAsyncIteration};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;
use wirespeed_driver::connection::Item;
use wirespeed_driver::protocol::{Delivery, MessageKind};

use super::access::set_result;
use super::connection::AsyncConnection;
use super::invoke::{self, FirstError};
use super::operation::{Kind, Operation, Step, delivery};
use super::state::PendingNotifications;
use super::waiter::{AssignedMessage, Stage, WaiterRef};
use crate::{errors, view};

impl AsyncConnection {
    /// The next step of an operation.
    #[inline]
    pub(super) fn step(&self, this: &Bound<'_, Self>, operation: &Operation) -> PyResult<Step> {
        // One that has begun is the loop's, wherever that is run by now.
        if operation.is_fresh() && !self.may_begin(this.py(), operation.kind())? {
            self.refuse(this.py(), "awaited", "asyncio.run_coroutine_threadsafe")?;
        }
        let step = match operation.kind() {
            Kind::Receive | Kind::Next | Kind::ReceiveMany | Kind::Fragment => self.receive_step(this, operation),
            Kind::Flush => self.flush_step(this, operation),
            _ => self.send_step(this, operation),
        };
        step.or_else(|error| Self::leave(this, error))
    }

    /// Whether an operation may begin here.
    #[inline]
    fn may_begin(&self, py: Python<'_>, kind: Kind) -> PyResult<bool> {
        if kind.receives() {
            self.loop_state.get().is_likely_here(self.event_loop.bind(py))
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
                    self.lock(py)?.inbox.put_back_fragment(item, continues);
                    return Err(error);
                }
                return self.received(this, operation, item);
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
        if state.inbox.is_streaming() && delivery == Delivery::Messages {
            return Err(errors::streaming(py));
        }
        if std::mem::take(&mut state.turn_pending) {
            drop(state);
            self.release(py)?;
            state = self.lock(py)?;
        }
        // The next fragment of a message is for whoever receives the message, however many wait for the next
        // message.
        let continues = state.inbox.is_streaming() && delivery == Delivery::Fragments;
        let taken = if !continues && state.has_receivers(py) {
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
                state.driver.endpoint.release_parsed();
                // The application receives again; a pong goes out before it may be busy for a while.
                let due = state.is_resumable() || state.is_write_due() || state.has_notes();
                // Those who wait for the message after this one.
                let serve = delivery == Delivery::Fragments && item.fin && state.has_receivers(py);
                drop(state);
                let mut steps = FirstError::new();
                if due {
                    steps.note(Self::run_actions(this));
                }
                if serve {
                    steps.note(self.serve_soon(py));
                }
                if let Err(error) = steps.end() {
                    // A signal handler has raised: what was taken is still to be received.
                    let mut state = self.lock(py)?;
                    state.inbox.put_back_fragment(item, continues);
                    return Err(error);
                }
                self.received(this, operation, item)
            }
            None => {
                let send_half = state.driver.send_half();
                // The end of the stream was read, perhaps, behind what was there to be taken until now.
                let due = send_half.is_eof() || send_half.queued() > 0;
                let due = due || state.driver.is_closing() || state.paused || state.has_notes();
                drop(state);
                if due {
                    Self::run_actions(this)?;
                }
                self.wait_for_message(this, operation, delivery)
            }
        }
    }

    /// Nothing is there: the task waits, or learns that nothing will come.
    #[inline]
    fn wait_for_message(&self, this: &Bound<'_, Self>, operation: &Operation, delivery: Delivery) -> PyResult<Step> {
        let py = this.py();
        let waiter = WaiterRef::new(self.event_loop.bind(py), operation.option, delivery)?;
        let paused = {
            let mut state = self.lock(py)?;
            if state.is_finished() {
                // Who asks again and again must not keep the loop from its turns.
                let turn_due =
                    operation.is_fresh() && state.send_queue.is_yield_due(0, self.loop_state.get().iteration());
                drop(state);
                if turn_due {
                    self.loop_state.get().begin_iteration();
                    return Ok(Step::Yield);
                }
                return Err(self.ended(py, operation.kind()));
            }
            if state.is_connecting() {
                return Err(super::sending::connecting());
            }
            state.receivers.push_back(waiter.clone());
            state.paused
        };
        self.hold(this);
        self.loop_state.get().begin_iteration();
        // Somebody wants more.
        if paused && let Err(error) = Self::run_actions(this) {
            self.abandon(this, &waiter, operation.kind());
            return Err(error);
        }
        Ok(Step::Wait(waiter))
    }

    /// What a receiver gets of a connection that is closed.
    fn ended(&self, py: Python<'_>, kind: Kind) -> PyErr {
        // A clean close ends the iteration; it is not an error.
        match self.closing(py) {
            Ok(closing) if kind == Kind::Next && closing.is_clean() => PyStopAsyncIteration::new_err(()),
            Ok(_) => self.closed(py),
            Err(error) => error,
        }
    }

    /// Makes the value of an operation that has its message.
    #[inline]
    fn received(&self, this: &Bound<'_, Self>, operation: &Operation, item: Item<Py<PyAny>>) -> PyResult<Step> {
        let py = this.py();
        let value = match operation.kind() {
            Kind::Receive | Kind::Next => finish_item(py, item, operation.option)?,
            Kind::Fragment => fragment(py, item)?,
            _ => self.receive_more(this, operation, item)?,
        };
        Ok(Step::Ready(value.into_ptr()))
    }

    /// All messages that are there, after the first.
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
            // Those who wait already come first.
            while items.len() < operation.limit && !state.inbox.is_streaming() && !state.has_receivers(py) {
                match state.take(py, operation.option, Delivery::Messages) {
                    Ok(Some(item)) => items.push(item),
                    Ok(None) => break,
                    // One that cannot be made is missing: nobody must take what comes after it for what follows these.
                    Err(error) => {
                        state.inbox.put_back(items.into_iter());
                        return Err(error);
                    }
                }
            }
            state.driver.endpoint.release_parsed();
        }
        if let Err(error) = Self::run_actions(this) {
            // A signal handler has raised: what was taken is still to be received.
            self.lock(py)?.inbox.put_back(items.into_iter());
            return Err(error);
        }
        // The list is made outside the connection's lock: a collection may start here.
        let list = PyList::empty(py);
        let mut items = items.into_iter();
        while let Some(item) = items.next() {
            let message = match operation.option {
                None => natural(py, item.kind, item.message.clone_ref(py)),
                Some(text) => crate::view::convert(item.message.bind(py), text),
            };
            match message {
                Ok(message) => list.append(message)?,
                // What cannot be decoded is raised by a call of its own, after what came before it.
                Err(error) if list.is_empty() => {
                    self.lock(py)?.inbox.put_back(items);
                    return Err(error);
                }
                Err(_) => {
                    self.lock(py)?.inbox.put_back(std::iter::once(item).chain(items));
                    break;
                }
            }
        }
        Ok(list.into_any().unbind())
    }

    /// A message that is there already.
    pub(super) fn receive_nowait(this: &Bound<'_, Self>, decode: Option<bool>) -> PyResult<Option<Py<PyAny>>> {
        let py = this.py();
        let conn = this.get();
        if conn.listens() {
            return Err(PyRuntimeError::new_err("messages go to the listener: recv_nowait cannot be used"));
        }
        conn.check_loop(py, "recv_nowait()")?;
        let taken = {
            let mut state = conn.lock(py)?;
            if state.inbox.is_streaming() {
                return Err(errors::streaming(py));
            }
            let waiting = state.has_receivers(py);
            let taken = if waiting { None } else { state.take(py, decode, Delivery::Messages)? };
            state.inbox.set_polled(taken.is_none() && !waiting);
            taken
        };
        if let Err(error) = Self::run_actions(this) {
            if let Some(item) = taken {
                conn.lock(py)?.inbox.put_back_fragment(item, false);
            }
            return Err(error);
        }
        match taken {
            Some(item) => finish_item(py, item, decode).map(Some),
            None if conn.lock(py)?.is_finished() => Err(conn.closed(py)),
            None => Ok(None),
        }
    }

    /// Gives what was read to whoever waits, from a callback of the loop; what nobody waits for is queued.
    pub(super) fn process(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let mut steps = FirstError::new();
        if conn.listens() {
            steps.note(Self::dispatch(this));
        } else {
            // Asking may run Python, and a signal handler: what came is served all the same.
            let direct = conn.may_wake(py).unwrap_or_else(|error| {
                steps.note(Err(error));
                false
            });
            while let Some(waiter) = conn.next_served(this, &mut steps, !direct)? {
                steps.note(waiter.wake(py, direct));
                if waiter.holds_on(py) {
                    conn.lock(py)?.assign(waiter);
                }
                // A task that the loop resumes later has yet to see its message.
                if !direct && conn.lock(py)?.postpone() {
                    steps.note(conn.serve_soon(py));
                    break;
                }
            }
        }
        steps.note(Self::run_actions(this));
        steps.end()
    }

    /// The same from inside a task: those that can be served are resumed by the loop.
    pub(super) fn serve(this: &Bound<'_, Self>) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let mut steps = FirstError::new();
        // A listener is told by callbacks of the loop only.
        while !conn.listens()
            && let Some(waiter) = conn.next_served(this, &mut steps, true)?
        {
            steps.note(waiter.wake(py, false));
        }
        steps.note(Self::run_actions(this));
        steps.end()
    }

    /// The next receiver, with its message; if there is none, fills the queue. `later`: the loop resumes it.
    #[inline]
    fn next_served(&self, this: &Bound<'_, Self>, steps: &mut FirstError, later: bool) -> PyResult<Option<WaiterRef>> {
        let py = this.py();
        let mut postponed = false;
        let (served, notes) = {
            let mut state = self.lock(py)?;
            let continues = state.inbox.is_streaming();
            let next = state.next_receiver(py).and_then(|index| Some((index, state.receivers.get(index)?.wants())));
            let served = match next {
                None => {
                    match state.fill_queue(py) {
                        Ok(more) => postponed = more,
                        Err(error) => steps.note(Err(error)),
                    }
                    None
                }
                Some((index, (decode, delivery))) => match state.take(py, decode, delivery) {
                    Ok(None) => {
                        state.driver.endpoint.release_parsed();
                        None
                    }
                    Ok(Some(item)) => {
                        let waiter = state.receivers.remove(index);
                        if let Some(waiter) = &waiter {
                            waiter.assign(py, AssignedMessage { item, continues, later });
                            if later {
                                state.assign(waiter.clone());
                            }
                        }
                        waiter
                    }
                    Err(error) => {
                        let waiter = state.receivers.remove(index);
                        if let Some(waiter) = &waiter {
                            waiter.fail(py, error);
                        }
                        waiter
                    }
                },
            };
            (served, state.has_notes())
        };
        // Whatever they raise: who is served must be woken.
        if postponed {
            steps.note(self.serve_soon(py));
        }
        if notes {
            steps.note(Self::tell_notes(this));
        }
        Ok(served)
    }

    /// A task has taken what it was handed: those behind it are served.
    fn release_assigned(&self, this: &Bound<'_, Self>) -> PyResult<()> {
        let waited = self.lock(this.py())?.release_assigned(this.py());
        if waited { Self::serve(this) } else { Ok(()) }
    }

    /// As [`Self::serve`], in the loop's next turn.
    pub(super) fn serve_soon(&self, py: Python<'_>) -> PyResult<()> {
        let Some(port) = self.port.get() else { return Ok(()) };
        invoke::call_soon(self.event_loop.bind(py), port.bind(py).getattr(intern!(py, "_readable"))?.as_any())
    }

    /// A task that has given the loop a turn does not come back.
    pub(super) fn abandon_turn(&self, this: &Bound<'_, Self>) {
        let py = this.py();
        let serve = || {
            let pending = std::mem::take(&mut self.lock(py)?.turn_pending);
            if pending { self.serve_soon(py) } else { Ok(()) }
        };
        if let Err(error) = serve().and_then(|()| self.release(py)) {
            error.write_unraisable(py, Some(this.as_any()));
        }
    }

    /// A task gave up waiting: what it was given goes to others.
    pub(super) fn abandon(&self, this: &Bound<'_, Self>, waiter: &WaiterRef, kind: Kind) {
        let py = this.py();
        waiter.abandon(py);
        let result =
            if kind.receives() { self.abandon_receive(this, waiter, kind) } else { self.abandon_send(this, waiter) };
        if let Err(error) = result.and_then(|()| self.release(py)) {
            error.write_unraisable(py, Some(this.as_any()));
        }
    }

    fn abandon_receive(&self, this: &Bound<'_, Self>, waiter: &WaiterRef, kind: Kind) -> PyResult<()> {
        let py = this.py();
        let given = waiter.take(py);
        let was_given = given.is_some();
        {
            let mut state = self.lock(py)?;
            state.receivers.retain(|other| other != waiter);
            if let Some(AssignedMessage { item, continues, later }) = given {
                if later {
                    state.release_assigned(py);
                }
                state.inbox.put_back_fragment(item, continues);
            }
        }
        match (was_given, kind) {
            (false, _) => Ok(()),
            // The generator may have to drop the rest of the message first.
            (true, Kind::Fragment) => self.serve_soon(py),
            (true, _) => Self::serve(this),
        }
    }

    /// Tells those who wait for pongs, and a listener that leaves the messages to `recv`.
    #[inline]
    pub(super) fn tell_notes(this: &Bound<'_, Self>) -> PyResult<()> {
        let notes = this.get().lock(this.py())?.take_notes();
        notes.map_or(Ok(()), |notes| Self::tell_notes_slowly(this, *notes))
    }

    fn tell_notes_slowly(this: &Bound<'_, Self>, notes: PendingNotifications) -> PyResult<()> {
        let py = this.py();
        let mut steps = FirstError::new();
        for (future, latency) in notes.pongs {
            steps.note(set_result(future.bind(py), latency.into_pyobject(py)?.as_any()));
        }
        for control in notes.controls {
            steps.note(Self::tell_control(this, control));
        }
        steps.end()
    }
}

/// A message as the operation that receives it wants it.
fn finish_item(py: Python<'_>, item: Item<Py<PyAny>>, decode: Option<bool>) -> PyResult<Py<PyAny>> {
    match decode {
        None => natural(py, item.kind, item.message),
        // A message that was queued while nobody received has the form that its kind suggests.
        Some(text) => view::convert(item.message.bind(py), text),
    }
}

/// A message in the form that its kind suggests, though somebody wanted it as bytes who then gave it up.
fn natural(py: Python<'_>, kind: MessageKind, message: Py<PyAny>) -> PyResult<Py<PyAny>> {
    if kind == MessageKind::Text { view::convert(message.bind(py), true) } else { Ok(message) }
}

/// The value of a fragment.
fn fragment(py: Python<'_>, item: Item<Py<PyAny>>) -> PyResult<Py<PyAny>> {
    let is_text = item.kind == MessageKind::Text;
    let fin = item.fin;
    let bytes = view::convert(item.message.bind(py), false)?;
    Ok((bytes, is_text, fin).into_pyobject(py)?.into_any().unbind())
}
