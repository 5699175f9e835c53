//! Python as the world that a blocking connection runs in.

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

/// As `select.poll` takes them, on every system.
const POLLIN: u32 = 1;
const POLLOUT: u32 = 4;

/// The program has replaced `select.select`, as gevent and eventlet do: its greenlets share a thread, so that one that
/// slept in a system call would keep all others from running.
static REPLACED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The exception of a wait by Python, until the call looks for interrupts: no other greenlet runs in between.
    static INTERRUPT: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Looks how this program waits; called for each connection, as a program may decide late.
pub(crate) fn learn_how_to_wait(py: Python<'_>) -> PyResult<()> {
    static ORIGINAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let select = select_module(py)?.getattr(intern!(py, "select"))?;
    let replaced = !ORIGINAL.get(py).is_some_and(|original| select.is(original)) && is_replaced(&select)?;
    if !replaced {
        let _ = ORIGINAL.set(py, select.unbind()); // the first one is it
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

/// An attached thread, and how it wants its messages.
pub(crate) struct PythonHost<'py> {
    pub(crate) py: Python<'py>,
    /// As in `recv(decode=...)`.
    pub(crate) decode: Option<bool>,
}

impl PythonHost<'_> {
    /// Waits by what the program has put in place of Python's functions.
    #[cold]
    fn wait_by_python(&self, socket: Option<(&Socket, Readiness)>, until: Option<Instant>) -> PyResult<Readiness> {
        let py = self.py;
        let seconds = until.map(|until| until.saturating_duration_since(Instant::now()).as_secs_f64());
        let Some((socket, interest)) = socket else {
            py.import(intern!(py, "time"))?.call_method1(intern!(py, "sleep"), (seconds,))?;
            return Ok(Readiness::default());
        };
        let (fd, select) = (socket.raw(), select_module(py)?);
        // gevent has this one, too, which takes all descriptors: those of select are below 1024.
        let ready = match select.getattr(intern!(py, "poll")) {
            // There is none on Windows.
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
        // What it is ready for exactly is found out by reading and writing.
        Ok(if ready { interest } else { Readiness::default() })
    }
}

impl Host for PythonHost<'_> {
    type Buffer = PyPayload;
    type Message = Py<PyAny>;
    type Interrupt = PyErr;

    #[inline]
    fn message(&self, kind: MessageKind, payload: Payload<'_, PyPayload>, whole: bool) -> PyResult<Py<PyAny>> {
        // Makes str and bytes only, which the garbage collector does not track: no collection starts here, so
        // no finalizer can call back into the connection, whose lock is held.
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
        Some(self.wait_by_python(socket, until).map_err(|error| {
            INTERRUPT.set(Some(error));
            io::ErrorKind::Interrupted.into()
        }))
    }

    #[inline]
    fn run_bulk_io<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        gil_yield::moving(self.py, true, f)
    }

    fn before_bulk_io(&self) {
        gil_yield::before_bulk_io(self.py);
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
