//! Sends one message to many connections. The message is encoded once, and compressed at most once for each
//! compression setting.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use wirespeed_driver::encoded::Encoded;
use wirespeed_driver::endpoint::Failure;
use wirespeed_driver::protocol::{CloseCode, SendError};
use wirespeed_driver::source::Source;

use super::connection::AsyncConnection;
use crate::{errors, source};

/// The policy for a connection whose peer does not read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SlowPolicy {
    /// Does not send the message.
    Skip,
    /// Aborts the connection.
    Drop,
    /// Closes the connection with code 1013.
    Close,
    /// Sends the message nevertheless.
    Buffer,
}

/// The reason for which a connection did not get the message.
#[derive(Clone, Copy)]
enum SkipReason {
    /// The peer does not read.
    Slow,
    /// A fragmented message is being sent.
    Fragments,
    /// The connection failed.
    Failed,
}

impl SkipReason {
    fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Fragments => "fragments",
            Self::Failed => "failed",
        }
    }
}

/// A connection that did not get the message, and the reason.
type Skipped = (Py<AsyncConnection>, &'static str);

/// Sends a message to all open `connections`. Returns how many got it, and which others did not, with the
/// reason.
#[pyfunction]
#[pyo3(signature = (connections, message, text, slow))]
pub(crate) fn broadcast(
    connections: &Bound<'_, PyAny>,
    message: &Bound<'_, PyAny>,
    text: Option<bool>,
    slow: &str,
) -> PyResult<(usize, Vec<Skipped>)> {
    let slow = match slow {
        "skip" => SlowPolicy::Skip,
        "drop" => SlowPolicy::Drop,
        "close" => SlowPolicy::Close,
        _ => SlowPolicy::Buffer,
    };
    let py = connections.py();
    let Some((kind, bytes)) = source::message(message, text)? else {
        let name = source::type_name(message);
        return Err(PyTypeError::new_err(format!("message must be str or bytes-like, not {name}")));
    };
    let message = Encoded::new(kind, bytes.piece(0..bytes.len())).map_err(|error| errors::refused(py, error))?;
    let mut sent = 0;
    let mut skipped = Vec::new();
    // Collected first: a listener that is notified of the end of one connection may change the collection.
    for connection in connections.try_iter()?.collect::<PyResult<Vec<_>>>()? {
        let Ok(connection) = connection.cast::<AsyncConnection>() else {
            let name = source::type_name(&connection);
            return Err(PyTypeError::new_err(format!("connections must be connections of an event loop, not {name}")));
        };
        let result = catch_unwind(AssertUnwindSafe(|| send(connection, &message, slow))).unwrap_or_else(|_| {
            // The other connections get the message.
            AsyncConnection::fail_after_panic(connection).write_unraisable(py, Some(connection.as_any()));
            Ok(Some(Err(SkipReason::Failed)))
        });
        match result? {
            None => {}
            Some(Ok(())) => sent += 1,
            Some(Err(reason)) => skipped.push((connection.clone().unbind(), reason.name())),
        }
    }
    Ok((sent, skipped))
}

/// Sends to one connection. `None` if it is not open.
fn send(
    this: &Bound<'_, AsyncConnection>,
    message: &Encoded,
    slow: SlowPolicy,
) -> PyResult<Option<Result<(), SkipReason>>> {
    let py = this.py();
    let conn = this.get();
    conn.check_loop(py, "broadcast()")?;
    let iteration = conn.loop_state.get().iteration();
    let mut state = conn.lock(py)?;
    wirespeed_driver::protocol::failpoint::hit("python.broadcast");
    if state.wait_state.is_connecting() || state.wait_state.is_closing() {
        return Ok(None);
    }
    if state.wait_state.send_queue().is_locked() || state.driver().send_half().is_sending_fragments() {
        return Ok(Some(Err(SkipReason::Fragments)));
    }
    // Nothing can be queued inside a large message.
    if state.wait_state.send_queue().is_sending_large() || slow != SlowPolicy::Buffer && state.wait_state.should_wait()
    {
        match slow {
            SlowPolicy::Skip | SlowPolicy::Buffer => {}
            SlowPolicy::Drop => {
                state.driver_mut().end(Failure::Aborted);
                drop(state);
                AsyncConnection::run_actions(this)?;
            }
            SlowPolicy::Close => {
                drop(state);
                let code = CloseCode(1013); // RFC 6455 11.7: try again later
                AsyncConnection::begin_close(this, Some(code), "too slow", true)?;
                let mut state = conn.lock(py)?;
                state.driver_mut().start_close_timeout(Instant::now());
            }
        }
        return Ok(Some(Err(SkipReason::Slow)));
    }
    let result = message.send(state.driver_mut().send_half_mut());
    match result {
        Ok(()) => {}
        Err(SendError::NotOpen) => return Ok(None),
        Err(error) => {
            drop(state);
            return Err(errors::refused(py, error));
        }
    }
    AsyncConnection::write_queued(this, state, message.payload().len(), iteration)?;
    let failed = conn.lock(py)?.driver().send_half().failure().is_some();
    Ok(Some(if failed { Err(SkipReason::Failed) } else { Ok(()) }))
}
