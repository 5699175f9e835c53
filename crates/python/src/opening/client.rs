//! The opening of a client: TLS, a proxy's tunnel and the opening handshake, until it has a connection.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use wirespeed_driver::opening::{self, Carrier, Client, Moved, Opening, Stage, Stop};
use wirespeed_driver::socket::Socket;
use wirespeed_driver::{Keepalive, entropy};

use super::connected::ConnectedSocket;
use super::{ClientPlan, Opened, Parts, client_layer, tunnel};
use crate::addresses::Addresses;
use crate::blocking::deadline;
use crate::blocking::host::{PythonHost, detect_green_threads};
use crate::handshake::Handshake;
use crate::options::ConnectionOptions;
use crate::{errors, ssl_layer};

/// TLS configuration, and the name that the certificate must have.
type Tls<'py> = (Bound<'py, PyAny>, Option<String>);

/// Authority, headers, and Proxy-Authorization.
type Tunnel = (String, Vec<(String, String)>, Option<String>);

/// The opening of one client. Either call `run`, which blocks; or `proceed` for a socket, or `feed` and
/// `take_output` for a transport, until `done`, and then `finish`.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct ClientOpening {
    options: ConnectionOptions,
    inner: Mutex<Option<Inner>>,
}

struct Inner {
    client: Client,
    carrier: Carrier,
}

impl ClientOpening {
    fn lock(&self) -> MutexGuard<'_, Option<Inner>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, f: impl FnOnce(&mut Inner) -> PyResult<R>) -> PyResult<R> {
        super::contain(&mut self.lock(), || PyRuntimeError::new_err("this opening is over"), f)
    }

    fn opened(&self, client: &mut Client, socket: Option<Socket>) -> PyResult<Opened> {
        let keepalive = Keepalive::new(self.options.ping_interval, self.options.ping_timeout, Instant::now());
        let (endpoint, handshake, accepted) = client
            .finish(self.options.limits, keepalive)
            .ok_or_else(|| PyRuntimeError::new_err("the opening handshake is not complete"))?;
        let handshake = Handshake::client(handshake.request(), accepted);
        let addresses = socket.as_ref().map(Addresses::of).unwrap_or_default();
        Ok(Opened::new(Parts { endpoint, socket, addresses, options: self.options, handshake }))
    }
}

#[pymethods]
impl ClientOpening {
    /// Starts the opening, in this order: TLS with a proxy, the request for a tunnel, TLS with the server, the
    /// opening handshake.
    #[new]
    #[pyo3(signature = (plan, *, proxy_tls = None, tunnel = None, tls = None))]
    fn new(
        py: Python<'_>,
        plan: &ClientPlan,
        proxy_tls: Option<Tls<'_>>,
        tunnel: Option<Tunnel>,
        tls: Option<Tls<'_>>,
    ) -> PyResult<Self> {
        let handshake = plan.handshake(py, entropy::draw_nonce())?;
        let layer =
            |tls: Option<Tls<'_>>| tls.map(|(config, name)| client_layer(py, &config, name.as_deref())).transpose();
        let plan_of_bytes = opening::Plan {
            proxy_tls: layer(proxy_tls)?,
            tunnel: tunnel
                .map(|(authority, headers, authorization)| self::tunnel(py, &authority, headers, authorization))
                .transpose()?,
            tls: layer(tls)?,
            handshake,
        };
        let client = Client::new(plan_of_bytes).map_err(|error| errors::opening(py, error))?;
        Ok(Self { options: plan.options, inner: Mutex::new(Some(Inner { client, carrier: Carrier::default() })) })
    }

    /// Whether the server has accepted the WebSocket.
    #[getter]
    fn done(&self) -> bool {
        self.lock().as_ref().is_some_and(|inner| inner.client.stage() == Stage::Done)
    }

    /// Whether a TLS handshake is in progress.
    #[getter]
    fn is_tls_handshaking(&self) -> bool {
        self.lock().as_ref().is_some_and(|inner| is_tls(inner.client.stage()))
    }

    /// Reads and writes as far as the non-blocking socket allows. Returns what the socket must become ready
    /// for: 0 nothing, it is done; 1 reading; 3 reading or writing.
    fn proceed(&self, py: Python<'_>, connected: &ConnectedSocket) -> PyResult<u8> {
        // Taken out, not borrowed: an `ssl.SSLContext` runs Python code here, which may also use the socket.
        let socket = connected.take()?;
        let moved = self.with(|Inner { client, carrier }| {
            carrier.proceed(client, &socket).map_err(|error| errors::opening(py, error))
        });
        connected.put_back(socket);
        match moved? {
            Moved::Done | Moved::Over => Ok(0),
            Moved::Waits(interest) => Ok(1 + 2 * u8::from(interest.writable)),
        }
    }

    /// Processes received bytes.
    fn feed(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        self.with(|inner| inner.client.receive(data).map_err(|error| errors::opening(py, error)))
    }

    /// Whether the server or the proxy has refused, and the body of its response is still incomplete.
    #[getter]
    fn is_refused(&self) -> bool {
        self.lock().as_ref().is_some_and(|inner| inner.client.is_refused())
    }

    /// Stops waiting for the body of a refusal. Returns the exception of the refusal, with the part of the body
    /// that has arrived.
    fn give_up(&self, py: Python<'_>) -> Option<PyErr> {
        let refusal = self.lock().as_mut().and_then(|inner| inner.client.give_up());
        refusal.map(|error| errors::opening(py, error))
    }

    /// Returns the bytes to send now.
    fn take_output<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.with(|inner| Ok(PyBytes::new(py, &inner.client.output().take())))
    }

    /// Returns the opened WebSocket: on `connected`, which is taken over, or on a transport that the caller
    /// reads and writes.
    #[pyo3(signature = (connected = None))]
    fn finish(&self, connected: Option<&ConnectedSocket>) -> PyResult<Opened> {
        let socket = connected.map(ConnectedSocket::take).transpose()?;
        self.with(|inner| self.opened(&mut inner.client, socket))
    }

    /// Opens the WebSocket over this socket, which is taken over, and blocks meanwhile. The socket is closed if
    /// this raises.
    #[pyo3(signature = (connected, timeout))]
    fn run(&self, py: Python<'_>, connected: &ConnectedSocket, timeout: Option<f64>) -> PyResult<Opened> {
        let socket = connected.take()?;
        let deadline = deadline(timeout)?;
        // Taken out of the lock, because other threads and signal handlers run meanwhile.
        let inner = self.lock().take();
        let mut client = inner.ok_or_else(|| PyRuntimeError::new_err("this opening is over"))?.client;
        detect_green_threads(py)?;
        let host = PythonHost { py, decode: None };
        match opening::complete(&mut client, &socket, &host, deadline) {
            Ok(()) => self.opened(&mut client, Some(socket)),
            Err(Stop::Interrupted(error)) => Err(error),
            Err(Stop::TimedOut(stage)) => Err(timed_out(stage)),
            Err(Stop::Failed(error)) => Err(errors::opening(py, error)),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(inner) = self.inner.try_lock() else { return Ok(()) };
        let layers = inner.iter().flat_map(|inner| inner.client.layers());
        layers.map(Some).try_for_each(|layer| ssl_layer::traverse(layer, &visit))
    }

    fn __clear__(&self) {
        let inner = self.inner.try_lock().ok().and_then(|mut inner| inner.take());
        drop(inner); // dropped outside the lock
    }
}

fn is_tls(stage: Stage) -> bool {
    matches!(stage, Stage::ProxyTls | Stage::Tls)
}

fn timed_out(stage: Stage) -> PyErr {
    let what = if is_tls(stage) { "TLS" } else { "opening" };
    PyTimeoutError::new_err(format!("timed out during the {what} handshake; raise open_timeout to wait longer"))
}
