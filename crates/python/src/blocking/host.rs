//! The driver's [`Host`] for Python threads: creates messages, releases the GIL while waiting, and checks for
//! signals.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use pyo3::exceptions::PyAttributeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use wirespeed_driver::blocking::Host;
use wirespeed_driver::protocol::{MessageKind, Payload};
use wirespeed_driver::socket::{Readiness, Socket};

use crate::gil_yield;
use crate::payload::{self, PyPayload};

/// The masks of `select.poll`, the same on every system.
const POLLIN: u32 = 1;
const POLLOUT: u32 = 4;

/// Whether the program has replaced `select.select`, as gevent and eventlet do. Their greenlets share a thread,
/// so a greenlet that sleeps in a system call would block all others.
static REPLACED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The exception raised by a wait in Python code, until the call checks for interrupts. No other greenlet
    /// runs in between.
    static INTERRUPT: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Checks whether the program uses green threads. Called for each connection, as a program may patch `select`
/// late.
pub(crate) fn detect_green_threads(py: Python<'_>) -> PyResult<()> {
    static ORIGINAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let select = select_module(py)?.getattr(intern!(py, "select"))?;
    let replaced = !ORIGINAL.get(py).is_some_and(|original| select.is(original)) && is_replaced(&select)?;
    if !replaced {
        let _ = ORIGINAL.set(py, select.unbind()); // only the first call sets it
    }
    REPLACED.store(replaced, Ordering::Relaxed);
    Ok(())
}

fn select_module(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    MODULE.get_or_try_init(py, || Ok(py.import("select")?.unbind())).map(|module| module.bind(py))
}

fn is_replaced(function: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = function.py();
    Ok(!function.getattr(intern!(py, "__module__"))?.eq(intern!(py, "select"))?)
}

/// A thread attached to the interpreter, and the requested type of its messages.
pub(crate) struct PythonHost<'py> {
    pub(crate) py: Python<'py>,
    /// The argument of `recv(decode=...)`.
    pub(crate) decode: Option<bool>,
}

impl PythonHost<'_> {
    /// Waits with the functions that the program has put in place of Python's.
    #[cold]
    fn wait_in_python(&self, socket: Option<(&Socket, Readiness)>, until: Option<Instant>) -> PyResult<Readiness> {
        let py = self.py;
        let seconds = until.map(|until| until.saturating_duration_since(Instant::now()).as_secs_f64());
        let Some((socket, interest)) = socket else {
            py.import(intern!(py, "time"))?.call_method1(intern!(py, "sleep"), (seconds,))?;
            return Ok(Readiness::default());
        };
        let (fd, select) = (socket.raw(), select_module(py)?);
        // gevent replaces `poll`, too. It accepts all descriptors, while `select` accepts only those below
        // 1024.
        let ready = match select.getattr(intern!(py, "poll")) {
            // Windows has no `poll`.
            Err(error) if !error.is_instance_of::<PyAttributeError>(py) => return Err(error),
            Ok(poll) if is_replaced(&poll)? => {
                let mask = if interest.readable { POLLIN } else { 0 } | if interest.writable { POLLOUT } else { 0 };
                let poll = poll.call0()?;
                poll.call_method1(intern!(py, "register"), (fd, mask))?;
                let milliseconds = seconds.map(|seconds| seconds * 1000.0);
                poll.call_method1(intern!(py, "poll"), (milliseconds,))?.len()? > 0
            }
            _ => {
                let watched = |wanted: bool| wanted.then_some(fd).into_iter().collect::<Vec<_>>();
                let lists = (watched(interest.readable), watched(interest.writable), watched(false), seconds);
                let ready = select.call_method1(intern!(py, "select"), lists)?;
                ready.get_item(0)?.len()? + ready.get_item(1)?.len()? > 0
            }
        };
        // Reading and writing show which of the two the socket is ready for.
        Ok(if ready { interest } else { Readiness::default() })
    }
}

impl Host for PythonHost<'_> {
    type Buffer = PyPayload;
    type Message = Py<PyAny>;
    type Interrupt = PyErr;

    #[inline]
    fn message(&self, kind: MessageKind, payload: Payload<'_, PyPayload>, whole: bool) -> PyResult<Py<PyAny>> {
        // Creates only str and bytes objects, which the garbage collector does not track. No collection starts
        // here, so no finalizer can call the connection while its lock is held.
        payload::message(self.py, kind, payload, if whole { self.decode } else { Some(false) })
    }

    fn join(&self, kind: MessageKind, fragments: Vec<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        payload::join(self.py, kind, &fragments)
    }

    #[inline]
    fn wait<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        gil_yield::detached(self.py, f)
    }

    #[inline]
    fn wait_cooperatively(
        &self,
        socket: Option<(&Socket, Readiness)>,
        until: Option<Instant>,
    ) -> Option<io::Result<Readiness>> {
        if !REPLACED.load(Ordering::Relaxed) {
            return None;
        }
        Some(self.wait_in_python(socket, until).map_err(|error| {
            INTERRUPT.set(Some(error));
            io::ErrorKind::Interrupted.into()
        }))
    }

    #[inline]
    fn run_bulk_io<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        gil_yield::run_transfer(self.py, true, f)
    }

    fn before_bulk_io(&self) {
        gil_yield::before_transfer(self.py);
    }

    fn is_shutting_down(&self) -> bool {
        gil_yield::is_shutting_down()
    }

    fn check_interrupt(&self) -> PyResult<()> {
        if REPLACED.load(Ordering::Relaxed)
            && let Some(error) = INTERRUPT.take()
        {
            return Err(error);
        }
        self.py.check_signals()
    }
}
