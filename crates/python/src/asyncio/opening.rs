//! From a connected stream to a WebSocket without I/O of its own: bytes in, bytes out.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use wirespeed_driver::opening::Early;
use wirespeed_driver::protocol::handshake::client::ClientHandshake;
use wirespeed_driver::protocol::handshake::connect::ConnectHandshake;
use wirespeed_driver::protocol::handshake::{Accepted, HandshakeError, Progress, Request};
use wirespeed_driver::protocol::{Config, Connection, Side};
use wirespeed_driver::{Keepalive, tls};

use crate::errors;
use crate::handshake::Handshake;
use crate::opening::{Opened, Parts, Plan, client_layer, tunnel};

/// The step that is under way.
enum Step {
    None,
    Tls,
    Tunnel(Box<ConnectHandshake>),
    Open(Box<(ClientHandshake, Request, Plan)>),
    Opened(Box<(Accepted, Request, Plan)>),
}

/// See the module.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Opening {
    inner: Mutex<Inner>,
}

struct Inner {
    early: Early,
    step: Step,
}

impl Opening {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tls_error(py: Python<'_>, error: tls::Error) -> PyErr {
    errors::tls_error(py, error)
}

impl Inner {
    /// Goes as far as the bytes that are there allow. `eof`: nothing more will come.
    fn advance(&mut self, py: Python<'_>, eof: bool) -> PyResult<()> {
        match &mut self.step {
            Step::None | Step::Opened(_) => Ok(()),
            Step::Tls => {
                if !self.early.is_handshaking().map_err(|error| tls_error(py, error))? {
                    self.step = Step::None;
                }
                Ok(())
            }
            Step::Tunnel(handshake) => {
                let done = feed(py, &mut self.early, eof, errors::tunnel, |input| match input {
                    Some(input) => handshake.receive(input),
                    None => Err(handshake.receive_eof()),
                })?;
                if done.is_some() {
                    self.step = Step::None;
                }
                Ok(())
            }
            Step::Open(open) => {
                let handshake = &mut open.0;
                let done = feed(py, &mut self.early, eof, errors::handshake, |input| match input {
                    Some(input) => handshake.receive(input),
                    None => Err(handshake.receive_eof()),
                })?;
                if let Some(accepted) = done
                    && let Step::Open(open) = std::mem::replace(&mut self.step, Step::None)
                {
                    self.step = Step::Opened(Box::new((accepted, open.1, open.2)));
                }
                Ok(())
            }
        }
    }
}

/// Feeds a handshake what is there.
pub(crate) fn feed<T>(
    py: Python<'_>,
    early: &mut Early,
    eof: bool,
    map: fn(Python<'_>, &HandshakeError) -> PyErr,
    mut handshake: impl FnMut(Option<&[u8]>) -> Result<Progress<T>, HandshakeError>,
) -> PyResult<Option<T>> {
    let (taken, output) = match early.plain() {
        Ok(Some([])) if !eof => return Ok(None),
        Ok(Some(input @ [_, ..])) => match handshake(Some(input)).map_err(|error| map(py, &error))? {
            Progress::Incomplete => (input.len(), None),
            Progress::Complete { consumed, output } => (consumed, Some(output)),
        },
        Ok(_) => {
            return match handshake(None) {
                Err(error) => Err(map(py, &error)),
                Ok(_) => Ok(None),
            };
        }
        Err(error) => {
            // A refusal whose body ends in an error of TLS is a refusal all the same.
            return match handshake(None) {
                Err(refused @ HandshakeError::Rejected(_)) => Err(map(py, &refused)),
                _ => Err(tls_error(py, error)),
            };
        }
    };
    early.consume(taken);
    if output.is_none() && (eof || early.plain().is_ok_and(|plain| plain.is_none())) {
        return match handshake(None) {
            Err(error) => Err(map(py, &error)),
            Ok(_) => Ok(None),
        };
    }
    Ok(output)
}

#[pymethods]
impl Opening {
    #[new]
    fn new() -> Self {
        Self { inner: Mutex::new(Inner { early: Early::default(), step: Step::None }) }
    }

    /// Begins a TLS handshake: under a `ClientTLS`, or under an `ssl.SSLContext`.
    #[pyo3(signature = (config, server_hostname))]
    fn start_tls(&self, py: Python<'_>, config: &Bound<'_, PyAny>, server_hostname: Option<&str>) -> PyResult<()> {
        let layer = client_layer(py, config, server_hostname)?;
        let mut inner = self.lock();
        inner.early.start_layer(layer).map_err(|error| tls_error(py, error))?;
        inner.step = Step::Tls;
        inner.advance(py, false)
    }

    /// Begins to ask an HTTP proxy for a tunnel to `authority` (host:port).
    #[pyo3(signature = (authority, headers, authorization))]
    fn connect_tunnel(
        &self,
        py: Python<'_>,
        authority: &str,
        headers: Vec<(String, String)>,
        authorization: Option<String>,
    ) -> PyResult<()> {
        let handshake = tunnel(py, authority, headers, authorization)?;
        let mut inner = self.lock();
        inner.early.send(&handshake.request_bytes()).map_err(|error| tls_error(py, error))?;
        inner.step = Step::Tunnel(Box::new(handshake));
        inner.advance(py, false)
    }

    /// Begins the opening handshake of a client.
    fn open(&self, py: Python<'_>, options: &Bound<'_, PyAny>) -> PyResult<()> {
        let (handshake, plan) = Plan::new(py, options)?;
        let request = handshake.request().clone();
        let mut inner = self.lock();
        inner.early.send(&handshake.request_bytes()).map_err(|error| tls_error(py, error))?;
        inner.step = Step::Open(Box::new((handshake, request, plan)));
        inner.advance(py, false)
    }

    /// Whether the step that was begun last is complete.
    #[getter]
    fn done(&self) -> bool {
        matches!(self.lock().step, Step::None | Step::Opened(_))
    }

    /// Takes bytes that were received.
    fn feed(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        let mut inner = self.lock();
        let received = inner.early.receive(data);
        match (received, inner.advance(py, false)) {
            // What the peer said before an error explains it.
            (_, Err(error)) => Err(error),
            (Err(error), Ok(())) => Err(tls_error(py, error)),
            (Ok(()), Ok(())) => Ok(()),
        }
    }

    /// The stream has ended.
    fn feed_eof(&self, py: Python<'_>) -> PyResult<()> {
        let mut inner = self.lock();
        inner.early.receive_eof();
        inner.advance(py, true)
    }

    /// The socket has failed: raises what the peer said before, if that explains it, else `error`.
    fn feed_error(&self, py: Python<'_>, error: Bound<'_, PyAny>) -> PyResult<()> {
        let mut inner = self.lock();
        let refusal = match &mut inner.step {
            Step::Tunnel(handshake) => Some((errors::tunnel as fn(_, &_) -> _, handshake.receive_eof())),
            Step::Open(open) => Some((errors::handshake as fn(_, &_) -> _, open.0.receive_eof())),
            _ => None,
        };
        match refusal {
            Some((map, refused @ HandshakeError::Rejected(_))) => Err(map(py, &refused)),
            _ => Err(PyErr::from_value(error)),
        }
    }

    /// Bytes to send now.
    fn take_output<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.lock().early.output().take())
    }

    /// The WebSocket that was opened.
    fn finish(&self) -> PyResult<Opened> {
        let mut inner = self.lock();
        let Step::Opened(opened) = std::mem::replace(&mut inner.step, Step::None) else {
            return Err(PyRuntimeError::new_err("the opening handshake is not complete"));
        };
        let (accepted, request, plan) = *opened;
        let early = std::mem::take(&mut inner.early);
        let connection = Connection::new(Config { side: Side::Client, limits: plan.limits, deflate: accepted.deflate });
        let keepalive = Keepalive::new(plan.ping_interval, plan.ping_timeout, Instant::now());
        let peer = early.into_peer(connection, keepalive);
        Ok(Opened::new(Parts {
            peer,
            socket: None,
            settings: plan.settings,
            handshake: Handshake::client(&request, accepted),
        }))
    }
}
