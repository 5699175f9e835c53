//! The opening of a server up to a complete request. The connection that it creates sends the answer.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use wirespeed_driver::Keepalive;
use wirespeed_driver::opening::{Opening, Server, Stage};
use wirespeed_driver::protocol::handshake::{self, ServerConfig};
use wirespeed_driver::tls::{Layer, RustlsLayer};

use super::{Opened, Parts};
use crate::addresses::Addresses;
use crate::handshake::{Handshake, reject};
use crate::options::NativeServerOptions;
use crate::ssl_layer::SslLayer;
use crate::tls::ServerTLS;
use crate::{errors, headers, ssl_layer};

/// The opening of one server connection. Call `feed` and send `take_output()` until `done`, then `finish`.
/// After an error, call `reject` and send the output.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct ServerOpening {
    options: Py<NativeServerOptions>,
    inner: Mutex<Option<Server>>,
}

impl ServerOpening {
    fn lock(&self) -> MutexGuard<'_, Option<Server>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, f: impl FnOnce(&mut Server) -> PyResult<R>) -> PyResult<R> {
        super::contain(&mut self.lock(), incomplete, f)
    }
}

#[pymethods]
impl ServerOpening {
    /// Starts the opening, with a TLS handshake if `tls` is a `ServerTLS` or an `ssl.SSLContext`.
    #[new]
    #[pyo3(signature = (options, tls = None))]
    fn new(py: Python<'_>, options: Py<NativeServerOptions>, tls: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let layer = |config: &Bound<'_, PyAny>| -> PyResult<Box<dyn Layer>> {
            let Ok(native) = config.cast::<ServerTLS>() else { return Ok(Box::new(SslLayer::server(config)?)) };
            let layer = RustlsLayer::server(native.get().config.clone());
            Ok(Box::new(layer.map_err(|error| errors::tls_error(py, error))?))
        };
        let layer = tls.map(layer).transpose()?;
        let config = options.get();
        let config = ServerConfig { deflate: config.deflate, subprotocols: config.subprotocols.clone() };
        let server = Server::new(config, handshake::Limits::default(), layer);
        let server = server.map_err(|error| errors::server_opening(py, error))?;
        Ok(Self { options, inner: Mutex::new(Some(server)) })
    }

    /// Whether the TLS handshake is in progress.
    #[getter]
    fn is_tls_handshaking(&self) -> bool {
        self.lock().as_ref().is_some_and(|server| server.stage() == Stage::Tls)
    }

    /// Whether the request is complete.
    #[getter]
    fn done(&self) -> bool {
        self.lock().as_ref().is_some_and(|server| server.stage() == Stage::Done)
    }

    /// Processes received bytes. After an error, the output may already contain an answer to the client;
    /// `reject` creates the other answers.
    fn feed(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        self.with(|server| server.receive(data).map_err(|error| errors::server_opening(py, error)))
    }

    /// Queues the response to an invalid request, with additional fields. Does nothing if no response can be
    /// sent.
    fn reject(&self, py: Python<'_>, fields: Vec<(String, String)>) -> PyResult<()> {
        let additional = headers::from_python(py, fields)?;
        self.with(|server| {
            let response = server.fault().map(|fault| reject(server.handshake(), fault, &additional));
            if let Some(response) = response {
                server.refuse(&response);
            }
            Ok(())
        })
    }

    /// Processes the end of the stream: raises the error that follows from it.
    fn feed_eof(&self, py: Python<'_>) -> PyResult<()> {
        self.with(|server| Err(errors::server_opening(py, server.receive_end(None))))
    }

    /// Returns the bytes to send now.
    fn take_output<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.with(|server| Ok(PyBytes::new(py, &server.output().take())))
    }

    /// Returns the parts of a connection, which then answers the request.
    fn finish(&self) -> PyResult<Opened> {
        if !self.done() {
            return Err(incomplete());
        }
        let server = self.lock().take().ok_or_else(incomplete)?;
        let options = self.options.get().connection;
        let keepalive = Keepalive::new(options.ping_interval, options.ping_timeout, Instant::now());
        let (endpoint, handshake) = server.finish(options.limits, keepalive).ok_or_else(incomplete)?;
        let handshake = Handshake::server(handshake).ok_or_else(incomplete)?;
        Ok(Opened::new(Parts { endpoint, socket: None, addresses: Addresses::default(), options, handshake }))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(inner) = self.inner.try_lock() else { return Ok(()) };
        ssl_layer::traverse(inner.as_ref().and_then(Server::layer), &visit)
    }

    fn __clear__(&self) {
        let inner = self.inner.try_lock().ok().and_then(|mut inner| inner.take());
        drop(inner); // dropped outside the lock
    }
}

fn incomplete() -> PyErr {
    PyRuntimeError::new_err("the request is not complete")
}
