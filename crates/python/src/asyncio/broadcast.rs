//! One message to many connections: encoded once, compressed at most once for each way of compressing.

use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use wirespeed_driver::blocking::Source;
use wirespeed_driver::drive::Hold;
use wirespeed_driver::entropy;
use wirespeed_driver::peer::Failure;
use wirespeed_driver::protocol::deflate::Params;
use wirespeed_driver::protocol::{CloseCode, Config, Connection, MessageKind, SendError, Side};

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

/// The frames of a message, made when they are first needed.
struct Frames<'a> {
    kind: MessageKind,
    payload: &'a [u8],
    plain: Arc<[u8]>,
    compressed: Vec<(Params, Arc<[u8]>)>,
}

impl Frames<'_> {
    /// For connections with these parameters; whether they are compressed.
    fn of(&mut self, deflate: Option<&Params>) -> Result<(&Arc<[u8]>, bool), SendError> {
        let params = deflate.filter(|params| self.payload.len() >= params.threshold);
        let Some(params) = params else {
            if self.plain.is_empty() {
                self.plain = encode(self.kind, self.payload, None)?;
            }
            return Ok((&self.plain, false));
        };
        // What the peer may send, and whether our window goes on, do not show in one message.
        let key = Params {
            local_no_context_takeover: true,
            remote_no_context_takeover: true,
            remote_window_bits: 15,
            ..*params
        };
        let index = match self.compressed.iter().position(|(other, _)| *other == key) {
            Some(index) => index,
            None => {
                self.compressed.push((key, encode(self.kind, self.payload, Some(key))?));
                self.compressed.len() - 1
            }
        };
        Ok((&self.compressed[index].1, true))
    }
}

fn encode(kind: MessageKind, payload: &[u8], deflate: Option<Params>) -> Result<Arc<[u8]>, SendError> {
    let mut connection: Connection<Vec<u8>> = Connection::new(Config { deflate, ..Config::new(Side::Server) });
    let mut out = Vec::with_capacity(payload.len() + 16);
    connection.send_message(kind, payload, None, entropy::draw_key, &mut out)?;
    Ok(out.into())
}

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
    let Some((kind, bytes)) = source::message(message, text)? else {
        let name = source::type_name(message);
        return Err(PyTypeError::new_err(format!("message must be str or bytes-like, not {name}")));
    };
    let mut frames =
        Frames { kind, payload: bytes.piece(0..bytes.len()), plain: Arc::default(), compressed: Vec::new() };
    let mut sent = 0;
    let mut missed = Vec::new();
    for connection in connections.try_iter()? {
        let connection = connection?;
        let Ok(connection) = connection.cast::<AsyncConnection>() else {
            let name = source::type_name(&connection);
            return Err(PyTypeError::new_err(format!("connections must be connections of an event loop, not {name}")));
        };
        match send(connection, &mut frames, slow)? {
            None => {}
            Some(Ok(())) => sent += 1,
            Some(Err(why)) => missed.push((connection.clone().unbind(), why.name())),
        }
    }
    Ok((sent, missed))
}

/// `None`: it is not open.
fn send(
    this: &Bound<'_, AsyncConnection>,
    frames: &mut Frames<'_>,
    slow: Slow,
) -> PyResult<Option<Result<(), Missed>>> {
    let py = this.py();
    let conn = this.get();
    conn.check_thread(py, "broadcast()")?;
    let iteration = conn.loop_state.get().iteration();
    let mut state = conn.lock(py)?;
    if state.is_connecting() || state.is_closing() {
        return Ok(None);
    }
    if state.outbox.hold != Hold::Free || state.drive.link().is_sending_fragments() {
        return Ok(Some(Err(Missed::Fragments)));
    }
    // In the middle of a large message nothing can be queued at all.
    if state.outbox.large.is_some() || slow != Slow::Buffer && state.is_crowded() {
        match slow {
            Slow::Skip | Slow::Buffer => {}
            Slow::Drop => {
                state.drive.end(Failure::Aborted);
                drop(state);
                AsyncConnection::settle(this)?;
            }
            Slow::Close => {
                drop(state);
                let code = CloseCode(1013); // RFC 6455 11.7: try again later
                AsyncConnection::begin_close(this, Some(code), "too slow", true)?;
                let mut state = conn.lock(py)?;
                state.drive.limit_closing(Instant::now());
            }
        }
        return Ok(Some(Err(Missed::Slow)));
    }
    let link = state.drive.link_mut();
    let len = frames.payload.len();
    let result = if link.side() == Side::Server {
        let params = link.deflate().copied();
        frames.of(params.as_ref()).and_then(|(frames, compressed)| link.send_shared(frames, len as u64, compressed))
    } else {
        link.send_message(frames.kind, frames.payload, None) // each has a mask of its own
    };
    match result {
        Ok(()) => {}
        Err(SendError::NotOpen) => return Ok(None),
        Err(error) => {
            drop(state);
            return Err(errors::refused(py, error));
        }
    }
    AsyncConnection::write_queued(this, state, len, iteration)?;
    let failed = conn.lock(py)?.drive.link().failure().is_some();
    Ok(Some(if failed { Err(Missed::Failed) } else { Ok(()) }))
}
