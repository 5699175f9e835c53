//! Python as the world that a blocking connection runs in.

use pyo3::prelude::*;
use wirespeed_driver::blocking::Host;
use wirespeed_driver::protocol::{MessageKind, Payload};

use crate::handover;
use crate::payload::{self, PyPayload};

/// An attached thread, and how it wants its messages.
pub(crate) struct PythonHost<'py> {
    pub(crate) py: Python<'py>,
    /// As in `recv(decode=...)`.
    pub(crate) decode: Option<bool>,
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
        handover::detached(self.py, f)
    }

    #[inline]
    fn moving_much<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        handover::moving(self.py, true, f)
    }

    fn before_much(&self) {
        handover::before_much(self.py);
    }

    fn is_ending(&self) -> bool {
        handover::is_ending()
    }

    fn check_interrupt(&self) -> PyResult<()> {
        self.py.check_signals()
    }
}
