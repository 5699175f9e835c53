//! The opening handshake of an accepted client, up to a complete request. The connection that it creates answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use wirespeed_driver::Keepalive;
use wirespeed_driver::accept;
use wirespeed_driver::opening::Opening as _;
use wirespeed_driver::protocol::handshake::ServerConfig;
use wirespeed_driver::tls::{Layer, RustlsLayer};

use crate::addresses::Addresses;
use crate::handshake::{Handshake, reject};
use crate::opening::{Opened, Parts};
use crate::options::NativeServerOptions;
use crate::ssl_layer::SslLayer;
use crate::tls::ServerTLS;
use crate::{errors, headers, ssl_layer};

/// The bytes that an accepted client has sent, and the state of their parser: see the driver's
/// [`accept::PendingHandshake`]. After an error, call `reject` and send the output.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct PendingHandshake {
    options: Py<NativeServerOptions>,
    /// `None` after a panic, which is a bug and ends this handshake only.
    inner: Mutex<Option<accept::PendingHandshake>>,
}

impl PendingHandshake {
    fn lock(&self) -> MutexGuard<'_, Option<accept::PendingHandshake>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn config(&self) -> ServerConfig {
        let options = self.options.get();
        ServerConfig { deflate: options.deflate, subprotocols: options.subprotocols.clone() }
    }

    /// Calls `f`; returns the default value after a panic.
    fn with<R: Default>(&self, f: impl FnOnce(&mut accept::PendingHandshake) -> R) -> R {
        let mut inner = self.lock();
        let Some(handshake) = &mut *inner else { return R::default() };
        catch_unwind(AssertUnwindSafe(|| f(handshake))).unwrap_or_else(|_| {
            *inner = None;
            R::default()
        })
    }
}

#[pymethods]
impl PendingHandshake {
    /// `tls`: whether the client must begin with TLS.
    #[new]
    #[pyo3(signature = (options, tls = false))]
    fn new(options: Py<NativeServerOptions>, tls: bool) -> Self {
        Self { options, inner: Mutex::new(Some(accept::PendingHandshake::new(tls))) }
    }

    /// Whether the client has sent nothing.
    #[getter]
    fn is_silent(&self) -> bool {
        self.with(|handshake| handshake.is_silent())
    }

    /// Whether the client has ended its stream.
    #[getter]
    fn is_lost(&self) -> bool {
        self.with(|handshake| handshake.is_lost())
    }

    /// Whether the request is complete.
    #[getter]
    fn is_complete(&self) -> bool {
        self.with(|handshake| handshake.is_complete())
    }

    /// Whether the request is complete, and no bytes follow it.
    #[getter]
    fn is_request_only(&self) -> bool {
        self.with(|handshake| handshake.is_request_only())
    }

    /// The first bytes of the client, at most 4.
    #[getter]
    fn prefix<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        self.with(|handshake| Some(PyBytes::new(py, handshake.prefix()))).unwrap_or_else(|| PyBytes::new(py, b""))
    }

    /// Processes received bytes; empty bytes are the end of the stream. Keeps an error for `check`. Returns whether
    /// to wait for more bytes.
    fn receive(&self, data: &[u8]) -> bool {
        self.with(|handshake| handshake.receive(data, || self.config()))
    }

    /// Starts TLS, with a `ServerTLS` or an `ssl.SSLContext`, if the client must begin with it.
    fn start_tls(&self, py: Python<'_>, tls: &Bound<'_, PyAny>) -> PyResult<()> {
        let layer: Box<dyn Layer> = match tls.cast::<ServerTLS>() {
            Ok(native) => {
                let layer = RustlsLayer::server(native.get().config.clone());
                Box::new(layer.map_err(|error| errors::tls_error(py, error))?)
            }
            Err(_) => Box::new(SslLayer::server(tls)?),
        };
        self.with(|handshake| handshake.start_tls(self.config(), layer));
        Ok(())
    }

    /// Discards the request, because the client has disconnected.
    fn lose(&self) {
        self.with(|handshake| handshake.lose(|| self.config()));
    }

    /// Raises the error of the bytes received so far.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        match self.lock().as_mut().map(accept::PendingHandshake::take_error) {
            Some(None) => Ok(()),
            Some(Some(error)) => Err(errors::server_opening(py, error)),
            None => Err(errors::panicked()),
        }
    }

    /// Queues the response to an invalid request, with additional fields. Does nothing if no response can be sent.
    fn reject(&self, py: Python<'_>, fields: Vec<(String, String)>) -> PyResult<()> {
        let additional = headers::from_python(py, fields)?;
        self.with(|handshake| {
            let Some(server) = handshake.server() else { return };
            let response = server.fault().map(|fault| reject(server.handshake(), fault, &additional));
            if let Some(response) = response {
                server.refuse(&response);
            }
        });
        Ok(())
    }

    /// Returns the bytes to send now.
    fn take_output<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let output = self.with(|handshake| handshake.server().map(|server| server.output().take()));
        PyBytes::new(py, &output.unwrap_or_default())
    }

    /// Returns the parts of a connection, which then answers the request.
    fn finish(&self) -> PyResult<Opened> {
        let server = self.with(accept::PendingHandshake::finish).ok_or_else(incomplete)?;
        let options = self.options.get().connection;
        let keepalive = Keepalive::new(options.ping_interval, options.ping_timeout, Instant::now());
        let (endpoint, handshake) = server.finish(options.limits, keepalive).ok_or_else(incomplete)?;
        let handshake = Handshake::server(handshake).ok_or_else(incomplete)?;
        Ok(Opened::new(Parts { endpoint, socket: None, addresses: Addresses::default(), options, handshake }))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(inner) = self.inner.try_lock() else { return Ok(()) };
        ssl_layer::traverse(inner.as_ref().and_then(accept::PendingHandshake::layer), &visit)
    }

    fn __clear__(&self) {
        let inner = self.inner.try_lock().ok().and_then(|mut inner| inner.take());
        drop(inner); // dropped outside the lock
    }
}

fn incomplete() -> PyErr {
    PyRuntimeError::new_err("the request is not complete")
}
