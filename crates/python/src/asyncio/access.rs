//! What all parts of a connection use: its state, its loop, what keeps it alive, and the exception after its
//! end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;
use wirespeed_driver::endpoint::Closing;
use wirespeed_driver::endpoint::Failure;
use wirespeed_driver::protocol::CloseCode;

use super::connection::AsyncConnection;
use super::invoke;
use super::loop_state::{is_running, running_loop};
use super::owner_mutex::{Guard, OwnerCheckedMutex};
use super::state::State;
use crate::{errors, gil_yield};

/// How long the close of a connection without a close timeout may take if the application does not wait for it:
/// the default of that timeout.
const UNATTENDED_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

impl AsyncConnection {
    /// Locks the state. All access goes through here. After a panic, and in a child process, this first marks
    /// the connection as closed.
    #[inline]
    pub(super) fn lock(&self, py: Python<'_>) -> PyResult<Guard<'_, State>> {
        let Some(mut state) = self.state.lock(py)? else { return self.lock_replacement(py) };
        if self.state.take_poison() {
            state.driver_mut().end(Failure::Defect);
        }
        state.driver_mut().end_after_fork();
        Ok(state)
    }

    /// Locks a replacement for a state that must not be accessed.
    #[cold]
    fn lock_replacement(&self, py: Python<'_>) -> PyResult<Guard<'_, State>> {
        let failure = || if gil_yield::is_shutting_down() { Failure::ShuttingDown } else { Failure::Forked };
        let replacement =
            self.replacement.get_or_init(|| Box::new(OwnerCheckedMutex::new(State::placeholder(failure()))));
        replacement.lock(py)?.ok_or_else(|| PyRuntimeError::new_err("a child of a child cannot use the connection"))
    }

    /// Returns whether the connection's loop runs in this thread, or no loop does.
    #[inline]
    pub(super) fn is_in_loop(&self, py: Python<'_>) -> PyResult<bool> {
        self.loop_state.get().runs_here(self.event_loop.bind(py))
    }

    /// Raises an exception if this thread does not run the connection's loop, for calls that act immediately.
    #[inline]
    pub(super) fn check_loop(&self, py: Python<'_>, method: &str) -> PyResult<()> {
        if self.is_in_loop(py)? {
            return Ok(());
        }
        self.refuse_foreign_loop(py, &format!("{method} was called"), "loop.call_soon_threadsafe")
    }

    /// Raises an exception for a call made in another thread or on another loop, and names what to use in
    /// another thread. Returns normally if the connection is closed, as it is in a child process: then the call
    /// waits for no loop.
    #[cold]
    pub(super) fn refuse_foreign_loop(&self, py: Python<'_>, call: &str, remedy: &str) -> PyResult<()> {
        if self.lock(py)?.driver().is_over() {
            return Ok(());
        }
        let event_loop = self.event_loop.bind(py);
        let running = if is_running(event_loop)? { None } else { Some(running_loop(py)?) };
        Err(PyRuntimeError::new_err(match running {
            None => format!("{call} in another thread than that of the connection's event loop: use {remedy}"),
            Some(running) => format!(
                "{call} on the event loop {running:?}, but the connection belongs to {event_loop:?}, which does not run: use \
                 a connection on the event loop that has opened it, or open another"
            ),
        }))
    }

    /// Creates a future for one of the watchers. If it is cancelled, it no longer keeps the connection alive.
    pub(super) fn create_future(this: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let py = this.py();
        let future = invoke::method(this.get().event_loop.bind(py), intern!(py, "create_future"), [])?;
        let done = Self::make_adapter(this)?.bind(py).getattr(intern!(py, "_future_done"))?;
        invoke::method(&future, intern!(py, "add_done_callback"), [&done])?;
        Ok(future.unbind())
    }

    /// A future of [`Self::create_future`] is done or cancelled.
    pub(super) fn on_future_done(this: &Bound<'_, Self>, future: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = this.py();
        if !invoke::method(future, intern!(py, "cancelled"), [])?.is_truthy()? {
            return Ok(());
        }
        this.get().lock(py)?.wait_state.remove_futures(|other| other.is(future));
        this.get().release(py)
    }

    /// Returns whether tasks may be resumed directly, from the current callback of the loop.
    #[inline]
    pub(super) fn may_wake(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(!self.debug && !super::raw::is_inside_task(self.event_loop.bind(py))?)
    }

    /// Returns the exception of a closed connection.
    pub(super) fn closed(&self, py: Python<'_>) -> PyErr {
        // Exceptions are created outside the lock: their constructors are Python code.
        let (failure, closing) = match self.lock(py) {
            Ok(state) => {
                let send_half = state.driver().send_half();
                (send_half.failure().cloned(), self.metadata.close_errors.closing_if_empty(|| send_half.closing()))
            }
            Err(error) => return error,
        };
        let cause = failure.and_then(|failure| errors::failure(py, &failure));
        // An exception raised by a signal handler inside an ssl.SSLContext is not a cause, but is raised by
        // itself.
        if let Some(cause) = cause.as_ref().filter(|cause| !cause.is_instance_of::<PyException>(py)) {
            return cause.clone_ref(py);
        }
        self.metadata.close_errors.exception(py, closing, cause, errors::origin(self))
    }

    pub(super) fn closing(&self, py: Python<'_>) -> PyResult<Closing> {
        Ok(self.lock(py)?.driver().send_half().closing())
    }

    /// Runs `f`, which works for this connection alone. A panic is a bug; it closes this connection only.
    #[inline]
    pub(super) fn contain<R>(this: &Bound<'_, Self>, f: impl FnOnce() -> PyResult<R>) -> PyResult<R> {
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) => Self::finish_failed_call(this, error),
            Err(_) => Err(Self::fail_after_panic(this)),
        }
    }

    /// Completes a call that raises: messages that it has queued are sent, and due notifications are delivered.
    #[cold]
    pub(super) fn finish_failed_call<R>(this: &Bound<'_, Self>, error: PyErr) -> PyResult<R> {
        let py = this.py();
        // A call in another thread or on another loop is refused before it starts anything.
        if !this.get().is_in_loop(py).unwrap_or(false) {
            return Err(error);
        }
        if this.get().lock(py).is_ok_and(|state| state.wait_state.is_finished() && !state.has_notifications()) {
            return Err(error);
        }
        // Messages that the call had read and not delivered go to waiting tasks.
        match Self::serve_receivers(this) {
            // Exceptions that end the program take precedence over the error of the call.
            Err(other) if !other.is_instance_of::<PyException>(py) => Err(other),
            _ => Err(error),
        }
    }

    /// Closes the connection after a panic, which may have left it half changed. Waiting tasks get its
    /// exception. Returns the exception for the current caller.
    #[cold]
    pub(super) fn fail_after_panic(this: &Bound<'_, Self>) -> PyErr {
        // Twice: the state that one panic has left may cause another, and the connection must be closed.
        for _ in 0..2 {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                this.get().lock(this.py())?.driver_mut().end(Failure::Defect);
                Self::run_actions(this)
            }));
            match ended {
                Ok(Ok(())) => break,
                Ok(Err(error)) => {
                    error.write_unraisable(this.py(), Some(this.as_any()));
                    break;
                }
                Err(_) => {}
            }
        }
        errors::panicked()
    }

    pub(super) fn abort_here(this: &Bound<'_, Self>) -> PyResult<()> {
        this.get().lock(this.py())?.driver_mut().end(Failure::Aborted);
        Self::run_actions(this)
    }

    /// Closes the connection for a caller that does not wait. Queued messages are sent, then a close frame, and
    /// the loop keeps the connection alive until it is closed.
    pub(super) fn close_unattended(this: &Bound<'_, Self>, code: CloseCode) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        {
            let mut state = conn.lock(py)?;
            state.closing_unattended = true;
            // No call can stop the wait, so it needs a limit.
            if state.driver().close_timeout().is_none() {
                state.driver_mut().set_close_timeout(Some(UNATTENDED_CLOSE_TIMEOUT));
                state.driver_mut().limit_close_deadline(Instant::now().checked_add(UNATTENDED_CLOSE_TIMEOUT));
            }
        }
        let closing = Self::begin_close(this, Some(code), "", false);
        let event_loop = conn.event_loop.bind(py);
        if invoke::method(event_loop, intern!(py, "is_closed"), [])?.is_truthy()? {
            // A closed loop accepts no callbacks, which is what `closing` reports. The kernel has accepted what
            // it had room for.
            return Self::abort_here(this);
        }
        if closing.is_err() {
            return closing.and(Self::abort_here(this));
        }
        if !conn.lock(py)?.wait_state.is_finished() {
            conn.hold(this);
        }
        Ok(())
    }

    /// Calls `here` if the loop runs in this thread or does not run. Otherwise schedules `call`, a function
    /// with its arguments, on the loop.
    pub(super) fn in_loop<const N: usize>(
        this: &Bound<'_, Self>,
        call: [&Bound<'_, PyAny>; N],
        here: impl FnOnce() -> PyResult<()>,
    ) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let event_loop = conn.event_loop.bind(py);
        // The garbage collector may call this, in any thread and on any loop.
        let runs_here = running_loop(py)?.is(event_loop) || !is_running(event_loop)?;
        if runs_here || conn.lock(py)?.wait_state.is_finished() {
            return here();
        }
        match invoke::method(event_loop, intern!(py, "call_soon_threadsafe"), call) {
            Err(_) if invoke::method(event_loop, intern!(py, "is_closed"), [])?.is_truthy()? => here(),
            result => result.map(drop),
        }
    }

    /// Keeps the connection alive while a task waits on it.
    #[inline]
    pub(super) fn hold(&self, this: &Bound<'_, Self>) {
        if let Some(adapter) = self.adapter.get() {
            adapter.get().hold(this);
        }
    }

    /// Stops keeping the connection alive, once no task waits on it.
    pub(super) fn release(&self, py: Python<'_>) -> PyResult<()> {
        let awaited = {
            let state = self.lock(py)?;
            state.has_waiters()
                || (self.listener.is_some() || state.closing_unattended) && !state.wait_state.is_finished()
        };
        if !awaited && let Some(adapter) = self.adapter.get() {
            adapter.get().release(py);
        }
        Ok(())
    }
}

pub(super) fn is_done(future: &Bound<'_, PyAny>) -> bool {
    let done = invoke::method(future, intern!(future.py(), "done"), []);
    done.and_then(|done| done.is_truthy()).unwrap_or(true)
}

/// Sets the result of a future, unless it is done or cancelled.
pub(super) fn set_result(future: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    complete_future(future, intern!(future.py(), "set_result"), value)
}

/// Completes a future by the method `set_result` or `set_exception`, unless it is done or cancelled.
pub(super) fn complete_future(
    future: &Bound<'_, PyAny>,
    method: &Bound<'_, PyString>,
    value: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let completed = invoke::retry_interrupted(|| {
        if is_done(future) {
            return Ok(());
        }
        // An asyncio future loses its callbacks if a signal handler raises while it schedules them. Therefore
        // handlers of pending signals run first.
        future.py().check_signals()?;
        invoke::method(future, method, [value]).map(drop)
    });
    completed.or_else(|error| unless_closed(future, error))
}

/// Handles the error of scheduling the callbacks of a future: ignores it if the loop is closed.
pub(super) fn unless_closed(future: &Bound<'_, PyAny>, error: PyErr) -> PyResult<()> {
    match invoke::method(future, intern!(future.py(), "get_loop"), []) {
        Ok(event_loop) => invoke::unless_closed(&event_loop, error),
        Err(_) => Err(error),
    }
}
