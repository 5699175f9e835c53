//! What every part of a connection uses of it: its state, its loop, who keeps it alive, and the exception of
//! its end.

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

/// How long a connection without a close timeout may take to close once it was left: the default of that timeout.
const LEFT_TIMEOUT: Duration = Duration::from_secs(10);

impl AsyncConnection {
    /// The one way to what the connection knows. After a panic, and in a child process, the connection is
    /// over: seen to here.
    #[inline]
    pub(super) fn lock(&self, py: Python<'_>) -> PyResult<Guard<'_, State>> {
        let Some(mut state) = self.state.lock(py)? else { return self.lock_replacement(py) };
        if self.state.take_poison() {
            state.driver.end(Failure::Defect);
        }
        state.driver.end_after_fork();
        Ok(state)
    }

    /// What stands for the state where that cannot be looked at.
    #[cold]
    fn lock_replacement(&self, py: Python<'_>) -> PyResult<Guard<'_, State>> {
        let failure = || if gil_yield::is_shutting_down() { Failure::ShuttingDown } else { Failure::Forked };
        let replacement =
            self.replacement.get_or_init(|| Box::new(OwnerCheckedMutex::new(State::placeholder(failure()))));
        replacement.lock(py)?.ok_or_else(|| PyRuntimeError::new_err("a child of a child cannot use the connection"))
    }

    /// Whether the connection's loop runs here, or no loop does.
    #[inline]
    pub(super) fn is_in_loop(&self, py: Python<'_>) -> PyResult<bool> {
        self.loop_state.get().is_here(self.event_loop.bind(py))
    }

    /// Refuses what acts at once, and neither in another thread than the loop's nor on another loop.
    #[inline]
    pub(super) fn check_loop(&self, py: Python<'_>, method: &str) -> PyResult<()> {
        if self.is_in_loop(py)? {
            return Ok(());
        }
        self.refuse(py, &format!("{method} was called"), "loop.call_soon_threadsafe")
    }

    /// Refuses a call that was made in another thread, or on another loop, and says what to use in another thread. A
    /// connection that is over, as it is in a child process, waits for no loop: there is nothing to refuse.
    #[cold]
    pub(super) fn refuse(&self, py: Python<'_>, call: &str, remedy: &str) -> PyResult<()> {
        if self.lock(py)?.driver.is_over() {
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

    /// A future for one of the watchers. When it is given up, it is no reason any more to keep the connection.
    pub(super) fn create_future(this: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let py = this.py();
        let future = invoke::method(this.get().event_loop.bind(py), intern!(py, "create_future"), [])?;
        let done = Self::make_port(this)?.bind(py).getattr(intern!(py, "_future_done"))?;
        invoke::method(&future, intern!(py, "add_done_callback"), [&done])?;
        Ok(future.unbind())
    }

    /// A future of [`Self::create_future`] has its result, or was given up.
    pub(super) fn on_future_done(this: &Bound<'_, Self>, future: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = this.py();
        if !invoke::method(future, intern!(py, "cancelled"), [])?.is_truthy()? {
            return Ok(());
        }
        this.get().lock(py)?.watchers.remove_futures(|other| other.is(future));
        this.get().release(py)
    }

    /// Whether tasks may be resumed from where we are, a callback of the loop.
    #[inline]
    pub(super) fn may_wake(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(!self.debug && !super::raw::is_inside_task(self.event_loop.bind(py))?)
    }

    /// The exception of a connection that is closed.
    pub(super) fn closed(&self, py: Python<'_>) -> PyErr {
        // Exceptions are made outside the lock: their constructors are Python.
        let (failure, closing) = match self.lock(py) {
            Ok(state) => {
                let send_half = state.driver.send_half();
                (send_half.failure().cloned(), self.metadata.close_errors.closing_if_empty(|| send_half.closing()))
            }
            Err(error) => return error,
        };
        let cause = failure.and_then(|failure| errors::failure(py, &failure));
        // What a signal handler raised inside an ssl.SSLContext is no cause but goes on by itself.
        if let Some(cause) = cause.as_ref().filter(|cause| !cause.is_instance_of::<PyException>(py)) {
            return cause.clone_ref(py);
        }
        self.metadata.close_errors.exception(py, closing, cause, errors::origin(self))
    }

    pub(super) fn closing(&self, py: Python<'_>) -> PyResult<Closing> {
        Ok(self.lock(py)?.driver.send_half().closing())
    }

    /// Runs what is done for this connection alone: a panic, which is a defect of ours, ends it, and nobody else.
    #[inline]
    pub(super) fn contain<R>(this: &Bound<'_, Self>, f: impl FnOnce() -> PyResult<R>) -> PyResult<R> {
        match catch_unwind(AssertUnwindSafe(f)) {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(error)) => Self::leave(this, error),
            Err(_) => Err(Self::fail_after_panic(this)),
        }
    }

    /// Ends a call that raises. Whatever it has begun is brought to its end all the same: what it has queued leaves,
    /// and whoever is due is told.
    #[cold]
    pub(super) fn leave<R>(this: &Bound<'_, Self>, error: PyErr) -> PyResult<R> {
        let py = this.py();
        // In another thread than the loop's, or on another loop, a call is refused before it begins anything.
        if !this.get().is_in_loop(py).unwrap_or(false) {
            return Err(error);
        }
        if this.get().lock(py).is_ok_and(|state| state.is_finished() && !state.has_notes()) {
            return Err(error);
        }
        // What it had read, and given to nobody yet, is for those who wait.
        match Self::serve(this) {
            // What ends programs is more than what the call has to say.
            Err(other) if !other.is_instance_of::<PyException>(py) => Err(other),
            _ => Err(error),
        }
    }

    /// A panic has left the connection, perhaps half changed: whoever waits is told that it is over. What whoever has
    /// called raises.
    #[cold]
    pub(super) fn fail_after_panic(this: &Bound<'_, Self>) -> PyErr {
        // Twice: what one panic has left may be the reason for another, and the end is wanted above all.
        for _ in 0..2 {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                this.get().lock(this.py())?.driver.end(Failure::Defect);
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
        this.get().lock(this.py())?.driver.end(Failure::Aborted);
        Self::run_actions(this)
    }

    /// Closes for a caller that does not wait: what is queued is sent, then a close frame, and the loop keeps the
    /// connection until it is over.
    pub(super) fn leave_here(this: &Bound<'_, Self>, code: CloseCode) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        {
            let mut state = conn.lock(py)?;
            state.left = true;
            // No call can stop waiting for it, so it needs a limit.
            if state.driver.close_timeout().is_none() {
                state.driver.set_close_timeout(Some(LEFT_TIMEOUT));
                state.driver.limit_close_deadline(Instant::now().checked_add(LEFT_TIMEOUT));
            }
        }
        let begun = Self::begin_close(this, Some(code), "", false);
        let event_loop = conn.event_loop.bind(py);
        if invoke::method(event_loop, intern!(py, "is_closed"), [])?.is_truthy()? {
            // It takes no callbacks, which is what `begun` says: the kernel has got what it had room for.
            return Self::abort_here(this);
        }
        if begun.is_err() {
            return begun.and(Self::abort_here(this));
        }
        if !conn.lock(py)?.is_finished() {
            conn.hold(this);
        }
        Ok(())
    }

    /// Calls `here` if the loop runs in this thread, or does not run; else has the loop call a function with
    /// arguments.
    pub(super) fn in_loop<const N: usize>(
        this: &Bound<'_, Self>,
        call: [&Bound<'_, PyAny>; N],
        here: impl FnOnce() -> PyResult<()>,
    ) -> PyResult<()> {
        let py = this.py();
        let conn = this.get();
        let event_loop = conn.event_loop.bind(py);
        // Perhaps the collector calls, which runs in any thread, and on any loop.
        let is_here = running_loop(py)?.is(event_loop) || !is_running(event_loop)?;
        if is_here || conn.lock(py)?.is_finished() {
            return here();
        }
        match invoke::method(event_loop, intern!(py, "call_soon_threadsafe"), call) {
            Err(_) if invoke::method(event_loop, intern!(py, "is_closed"), [])?.is_truthy()? => here(),
            result => result.map(drop),
        }
    }

    /// Keeps the connection alive while somebody waits on it.
    #[inline]
    pub(super) fn hold(&self, this: &Bound<'_, Self>) {
        if let Some(port) = self.port.get() {
            port.get().hold(this);
        }
    }

    /// Stops doing so, once nobody does.
    pub(super) fn release(&self, py: Python<'_>) -> PyResult<()> {
        let awaited = {
            let state = self.lock(py)?;
            state.is_awaited() || (self.listener.is_some() || state.left) && !state.is_finished()
        };
        if !awaited && let Some(port) = self.port.get() {
            port.get().release(py);
        }
        Ok(())
    }
}

pub(super) fn is_done(future: &Bound<'_, PyAny>) -> bool {
    let done = invoke::method(future, intern!(future.py(), "done"), []);
    done.and_then(|done| done.is_truthy()).unwrap_or(true)
}

/// Tells a future its result, unless nobody waits for it any more.
pub(super) fn set_result(future: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    settle_future(future, intern!(future.py(), "set_result"), value)
}

/// The same, or an exception, by the method of this name.
pub(super) fn settle_future(
    future: &Bound<'_, PyAny>,
    method: &Bound<'_, PyString>,
    value: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let told = invoke::retry_interrupted(|| {
        if is_done(future) {
            return Ok(());
        }
        // A future of asyncio's own forgets who waits for it when a signal handler raises while it asks the loop to
        // tell them: those of signals that have come run before.
        future.py().check_signals()?;
        invoke::method(future, method, [value]).map(drop)
    });
    told.or_else(|error| unless_closed(future, error))
}

/// A future has its outcome, but its loop could not be asked to tell those who wait.
pub(super) fn unless_closed(future: &Bound<'_, PyAny>, error: PyErr) -> PyResult<()> {
    match invoke::method(future, intern!(future.py(), "get_loop"), []) {
        Ok(event_loop) => invoke::unless_closed(&event_loop, error),
        Err(_) => Err(error),
    }
}
