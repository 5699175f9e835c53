//! The exceptions for calls that the engine refuses.

use pyo3::exceptions::{PyBlockingIOError, PyPermissionError, PyRuntimeError};
use pyo3::prelude::*;
use wirespeed_engine::Refusal;

use crate::errors;

/// `EAGAIN` ("resource temporarily unavailable") of Linux and macOS.
pub(super) const EAGAIN: i32 = if cfg!(target_os = "macos") { 35 } else { 11 };

/// Returns the error for using a copy in a child process.
pub(super) fn forked() -> PyErr {
    PyRuntimeError::new_err(
        "this is a copy in a child process: the engine's threads are in the process that has started it",
    )
}

/// Returns the exception for a refused call on a session.
pub(super) fn refused(py: Python<'_>, refusal: Refusal) -> PyErr {
    match refusal {
        Refusal::Invalid(error) => errors::refused(py, error),
        Refusal::Closed => errors::session_closed(py),
        Refusal::Full => PyBlockingIOError::new_err((
            EAGAIN,
            "more waits for a thread of the engine than may: wait with engine.wait_for_room() when send, publish or \
             broadcast say so; of subscriptions, until the thread has done those that wait",
        )),
        Refusal::Denied => PyPermissionError::new_err(
            "the session may not: no token of its own, topics_by_default nor session.allow() allows this, or \
             session.deny() forbids it",
        ),
        Refusal::BrokerFull => PyBlockingIOError::new_err((
            EAGAIN,
            "more waits for the broker than broker_limit: it is down, or slower than what is published",
        )),
        Refusal::TooManySubscriptions(limit) => {
            PyRuntimeError::new_err(format!("the session subscribes to {limit} topics, as many as it may"))
        }
    }
}

/// Returns the exception for a refused call on an engine: `Closed` means that the engine has stopped.
pub(super) fn refused_by_engine(py: Python<'_>, refusal: Refusal) -> PyErr {
    match refusal {
        Refusal::Closed => errors::engine_stopped(py),
        other => refused(py, other),
    }
}
