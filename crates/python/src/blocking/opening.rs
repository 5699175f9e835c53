//! From a connected socket to a WebSocket: tunnels, TLS, the opening handshake.

#![allow(unsafe_code)] // taking over a file descriptor

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use wirespeed_driver::Keepalive;
use wirespeed_driver::opening::{Error, Pipe};
use wirespeed_driver::protocol::handshake::{HandshakeError, Progress};
use wirespeed_driver::protocol::{Config, Connection, Side};
use wirespeed_driver::socket::Socket;

use super::deadline;
use super::host::PythonHost;
use crate::errors;
use crate::handshake::Handshake;
use crate::opening::{Opened, Parts, Plan, client_layer, tunnel};

/// A connected socket on its way to a WebSocket.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Transport {
    pipe: Mutex<Option<Pipe>>,
}

impl Transport {
    /// Runs `f` with the pipe, which is gone afterwards if it fails: the socket is closed.
    fn with_pipe<R>(&self, f: impl FnOnce(&mut Pipe) -> PyResult<R>) -> PyResult<R> {
        let taken = self.pipe.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut pipe = taken.ok_or_else(|| PyRuntimeError::new_err("this transport is closed or in use"))?;
        let result = f(&mut pipe)?;
        *self.pipe.lock().unwrap_or_else(PoisonError::into_inner) = Some(pipe);
        Ok(result)
    }
}

/// Feeds a handshake from the pipe until it is done.
fn converse<T>(
    py: Python<'_>,
    pipe: &mut Pipe,
    deadline: Option<Instant>,
    map: fn(Python<'_>, &HandshakeError) -> PyErr,
    mut receive: impl FnMut(&[u8]) -> Result<Progress<T>, HandshakeError>,
    eof: impl FnOnce() -> HandshakeError,
) -> PyResult<Result<T, HandshakeErrorAtEof>> {
    let host = PythonHost { py, decode: None };
    let mut eof = Some(eof);
    loop {
        let (taken, output) = {
            let mut end = || eof.take().map_or(HandshakeError::ConnectionClosed { received: 0 }, |eof| eof());
            let input = match pipe.fill(&host, deadline) {
                Ok([]) => return Ok(Err(HandshakeErrorAtEof(end()))),
                Ok(input) => input,
                Err(Error::Interrupted(error)) => return Err(error),
                // A refusal whose body does not end, or ends in a reset, is a refusal all the same.
                Err(error) => {
                    return match end() {
                        refused @ HandshakeError::Rejected(_) => Ok(Err(HandshakeErrorAtEof(refused))),
                        _ => Err(errors::opening(py, error)),
                    };
                }
            };
            match receive(input).map_err(|error| map(py, &error))? {
                Progress::Incomplete => (input.len(), None),
                Progress::Complete { consumed, output } => (consumed, Some(output)),
            }
        };
        pipe.consume(taken);
        if let Some(output) = output {
            return Ok(Ok(output));
        }
    }
}

/// The stream ended before the handshake did.
struct HandshakeErrorAtEof(HandshakeError);

#[pymethods]
impl Transport {
    /// Takes the connected, blocking stream socket `fd` over: it is closed with this object.
    #[new]
    fn new(fd: RawFd) -> Self {
        // SAFETY: the caller detached the descriptor from its socket object, so nobody else closes it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
        Self { pipe: Mutex::new(Some(Pipe::new(Socket::new(descriptor)))) }
    }

    /// Makes a TLS handshake: under a `ClientTLS`, or under an `ssl.SSLContext`.
    #[pyo3(signature = (config, server_hostname, timeout))]
    fn start_tls(
        &self,
        py: Python<'_>,
        config: &Bound<'_, PyAny>,
        server_hostname: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let deadline = deadline(timeout)?;
        self.with_pipe(|pipe| {
            let layer = client_layer(py, config, server_hostname)?;
            let host = PythonHost { py, decode: None };
            pipe.start_layer(layer, &host, deadline).map_err(|error| match error {
                Error::TimedOut => pyo3::exceptions::PyTimeoutError::new_err(
                    "timed out during the TLS handshake; raise open_timeout to wait longer",
                ),
                error => errors::opening(py, error),
            })
        })
    }

    /// Asks an HTTP proxy for a tunnel to `authority` (host:port).
    #[pyo3(signature = (authority, headers, authorization, timeout))]
    fn connect_tunnel(
        &self,
        py: Python<'_>,
        authority: &str,
        headers: Vec<(String, String)>,
        authorization: Option<String>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let deadline = deadline(timeout)?;
        let handshake = tunnel(py, authority, headers, authorization)?;
        self.with_pipe(|pipe| {
            let host = PythonHost { py, decode: None };
            pipe.write_all(&handshake.request_bytes(), &host, deadline).map_err(|error| errors::opening(py, error))?;
            let cell = std::cell::RefCell::new(handshake);
            let result = converse(
                py,
                pipe,
                deadline,
                errors::tunnel,
                |input| cell.borrow_mut().receive(input),
                || cell.borrow_mut().receive_eof(),
            )?;
            result.map(drop).map_err(|HandshakeErrorAtEof(error)| errors::tunnel(py, &error))
        })
    }

    /// Makes the opening handshake of a client.
    #[pyo3(signature = (options, timeout))]
    fn open(&self, py: Python<'_>, options: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Opened> {
        let deadline = deadline(timeout)?;
        let (handshake, plan) = Plan::new(py, options)?;
        let sent = handshake.request().clone();
        let accepted = self.with_pipe(|pipe| {
            let host = PythonHost { py, decode: None };
            pipe.write_all(&handshake.request_bytes(), &host, deadline).map_err(|error| errors::opening(py, error))?;
            let cell = std::cell::RefCell::new(handshake);
            let result = converse(
                py,
                pipe,
                deadline,
                errors::handshake,
                |input| cell.borrow_mut().receive(input),
                || cell.borrow_mut().receive_eof(),
            )?;
            result.map_err(|HandshakeErrorAtEof(error)| errors::handshake(py, &error))
        })?;
        let pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner).take();
        let pipe = pipe.ok_or_else(|| PyRuntimeError::new_err("this transport is closed"))?;
        let deflate = accepted.deflate;
        let connection = Connection::new(Config { side: Side::Client, limits: plan.limits, deflate });
        let keepalive = Keepalive::new(plan.ping_interval, plan.ping_timeout, Instant::now());
        let (socket, peer) = pipe.into_peer(connection, keepalive);
        Ok(Opened::new(Parts {
            peer,
            socket: Some(socket),
            settings: plan.settings,
            handshake: Handshake::client(&sent, accepted),
        }))
    }

    /// Closes the socket, if it is still here.
    fn close(&self) {
        drop(self.pipe.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
