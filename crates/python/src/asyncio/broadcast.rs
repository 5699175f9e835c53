//! One message to many connections: encoded once, compressed at most once for each way of compressing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use wirespeed_driver::blocking::Source;
use wirespeed_driver::connection::Hold;
use wirespeed_driver::encoded::Encoded;
use wirespeed_driver::endpoint::Failure;
use wirespeed_driver::protocol::{CloseCode, SendError};

use super::connection::AsyncConnection;
use crate::{errors, source};

/// What is done with a connection whose peer does not read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slow {
    /// It does not get the message.
    Skip,
    /// It is ended at once.
    Drop,
    /// It is closed with code 1013.
    Close,
    /// It gets the message all the same.
    Buffer,
}

/// Why a connection did not get the message.
#[derive(Clone, Copy)]
enum Missed {
    /// Its peer does not read.
    Slow,
    /// A message is being sent to it in fragments.
    Fragments,
    /// It failed.
    Failed,
}

impl Missed {
    fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Fragments => "fragments",
            Self::Failed => "failed",
        }
    }
}

/// A connection that did not get the message, and why.
type Failed = (Py<AsyncConnection>, &'static str);

/// Sends a message to those of `connections` that are open. How many they are, and which of the others did
/// not get it for what reason.
#[pyfunction]
#[pyo3(signature = (connections, message, text, slow))]
pub(crate) fn broadcast(
    connections: &Bound<'_, PyAny>,
    message: &Bound<'_, PyAny>,
    text: Option<bool>,
    slow: &str,
) -> PyResult<(usize, Vec<Failed>)> {
    let slow = match slow {
        "skip" => Slow::Skip,
        "drop" => Slow::Drop,
        "close" => Slow::Close,
        _ => Slow::Buffer,
    };
    let py = connections.py();
    let Some((kind, bytes)) = source::message(message, text)? else {
        let name = source::type_name(message);
        return Err(PyTypeError::new_err(format!("message must be str or bytes-like, not {name}")));
    };
    let message = Encoded::new(kind, bytes.piece(0..bytes.len())).map_err(|error| errors::refused(py, error))?;
    let mut sent = 0;
    let mut missed = Vec::new();
    // All of them first: a listener that is told of the end of one may change what they are in.
    for connection in connections.try_iter()?.collect::<PyResult<Vec<_>>>()? {
        let Ok(connection) = connection.cast::<AsyncConnection>() else {
            let name = source::type_name(&connection);
            return Err(PyTypeError::new_err(format!("connections must be connections of an event loop, not {name}")));
        };
        let result = catch_unwind(AssertUnwindSafe(|| send(connection, &message, slow))).unwrap_or_else(|_| {
            // The others get it.
            AsyncConnection::fail_after_panic(connection).write_unraisable(py, Some(connection.as_any()));
            Ok(Some(Err(Missed::Failed)))
        });
        match result? {
            None => {}
            Some(Ok(())) => sent += 1,
            Some(Err(why)) => missed.push((connection.clone().unbind(), why.name())),
        }
    }
    Ok((sent, missed))
}

/// `None`: it is not open.
fn send(this: &Bound<'_, AsyncConnection>, message: &Encoded, slow: Slow) -> PyResult<Option<Result<(), Missed>>> {
    let py = this.py();
    let conn = this.get();
    conn.check_loop(py, "broadcast()")?;
    let iteration = conn.loop_state.get().iteration();
    let mut state = conn.lock(py)?;
    wirespeed_driver::protocol::failpoint::hit("python.broadcast");
    if state.is_connecting() || state.is_closing() {
        return Ok(None);
    }
    if state.send_queue.hold != Hold::Free || state.driver.send_half().is_sending_fragments() {
        return Ok(Some(Err(Missed::Fragments)));
    }
    // In the middle of a large message nothing can be queued at all.
    if state.send_queue.large.is_some() || slow != Slow::Buffer && state.should_wait() {
        match slow {
            Slow::Skip | Slow::Buffer => {}
            Slow::Drop => {
                state.driver.end(Failure::Aborted);
                drop(state);
                AsyncConnection::run_actions(this)?;
            }
            Slow::Close => {
                drop(state);
                let code = CloseCode(1013); // RFC 6455 11.7: try again later
                AsyncConnection::begin_close(this, Some(code), "too slow", true)?;
                let mut state = conn.lock(py)?;
                state.driver.start_close_timeout(Instant::now());
            }
        }
        return Ok(Some(Err(Missed::Slow)));
    }
    let result = message.send(state.driver.send_half_mut());
    match result {
        Ok(()) => {}
        Err(SendError::NotOpen) => return Ok(None),
        Err(error) => {
            drop(state);
            return Err(errors::refused(py, error));
        }
    }
    AsyncConnection::write_queued(this, state, message.payload().len(), iteration)?;
    let failed = conn.lock(py)?.driver.send_half().failure().is_some();
    Ok(Some(if failed { Err(Missed::Failed) } else { Ok(()) }))
}
