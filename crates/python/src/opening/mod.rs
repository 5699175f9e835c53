//! The opening handshake for Python: converts requests and TLS settings, and creates exceptions and connections. The
//! protocol work is in `driver::opening`.

#![allow(unsafe_code)] // taking over a file descriptor

pub(crate) mod client;
pub(crate) mod connected;

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use wirespeed_driver::Endpoint;
use wirespeed_driver::protocol::handshake;
use wirespeed_driver::protocol::handshake::client::{ClientHandshake, ClientRequest};
use wirespeed_driver::protocol::handshake::connect::{ConnectHandshake, ConnectRequest};
use wirespeed_driver::socket::Socket;
use wirespeed_driver::tls::client::server_name;
use wirespeed_driver::tls::{Layer, RustlsLayer};

use crate::addresses::Addresses;
use crate::handshake::Handshake;
use crate::options::{ConnectionOptions, NativeClientOptions, check_request};
use crate::payload::PyPayload;
use crate::ssl_layer::SslLayer;
use crate::tls::ClientTLS;
use crate::{errors, headers, ssl_layer};

/// Runs `f` with an opening that is in progress, else raises `over()`. A panic, which is a bug, addresses this
/// opening only: the caller gets an exception.
fn contain<T, R>(
    opening: &mut Option<T>,
    over: impl FnOnce() -> PyErr,
    f: impl FnOnce(&mut T) -> PyResult<R>,
) -> PyResult<R> {
    let Some(in_progress) = opening else { return Err(over()) };
    catch_unwind(AssertUnwindSafe(|| f(in_progress))).unwrap_or_else(|_| {
        *opening = None;
        Err(errors::panicked())
    })
}

/// A WebSocket after its opening handshake, passed to the constructor of a connection.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Opened {
    parts: Mutex<Option<Parts>>,
}

pub(crate) struct Parts {
    pub(crate) endpoint: Endpoint<PyPayload>,
    /// `None` if the opening was made without a socket.
    pub(crate) socket: Option<Socket>,
    pub(crate) addresses: Addresses,
    pub(crate) options: ConnectionOptions,
    pub(crate) handshake: Handshake,
}

#[pymethods]
impl Opened {
    /// Takes over the descriptor of the connected socket. It is closed with the connection, or with this object
    /// if no connection is created.
    fn _adopt(&self, fd: RawFd) -> PyResult<()> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = parts.as_mut().ok_or_else(|| PyRuntimeError::new_err("this connection was taken already"))?;
        // SAFETY: the caller detached the descriptor, so no other code closes it.
        let socket = Socket::new(unsafe { OwnedFd::from_raw_fd(fd) });
        socket.limit_unsent();
        parts.addresses.local = Addresses::local_of(&socket);
        parts.socket = Some(socket);
        Ok(())
    }

    /// Closes the socket and discards the endpoint, if no connection was created.
    fn _discard(&self) {
        drop(self.parts.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(parts) = self.parts.try_lock() else { return Ok(()) };
        let Some(parts) = &*parts else { return Ok(()) };
        parts.addresses.traverse(&visit)?;
        parts.handshake.traverse(&visit)?;
        ssl_layer::traverse(parts.endpoint.send_half().layer(), &visit)
    }

    fn __clear__(&self) {
        let parts = self.parts.try_lock().ok().and_then(|mut parts| parts.take());
        drop(parts); // dropped outside the lock
    }
}

impl Opened {
    pub(crate) fn new(parts: Parts) -> Self {
        Self { parts: Mutex::new(Some(parts)) }
    }

    pub(crate) fn take(&self) -> PyResult<Parts> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.take().ok_or_else(|| PyRuntimeError::new_err("this connection was taken already"))
    }
}

/// The request of a client and its options, checked once for any number of openings.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct ClientPlan {
    request: ClientRequest,
    options: ConnectionOptions,
}

#[pymethods]
impl ClientPlan {
    /// Raises an exception if the request is invalid.
    #[new]
    fn new(
        py: Python<'_>,
        options: &NativeClientOptions,
        host: &str,
        target: &str,
        authorization: Option<String>,
        headers: Vec<(String, String)>,
    ) -> PyResult<Self> {
        let mut request = options.request.clone();
        host.clone_into(&mut request.host);
        target.clone_into(&mut request.target);
        request.authorization = authorization;
        request.headers = headers::from_python(py, headers)?;
        // Everything else was checked with the options, or comes from a URI that was parsed.
        if !request.headers.is_empty() {
            check_request(py, &request)?;
        }
        Ok(Self { request, options: options.connection })
    }
}

impl ClientPlan {
    fn handshake(&self, py: Python<'_>, nonce: [u8; 16]) -> PyResult<ClientHandshake> {
        let handshake = ClientHandshake::new(&self.request, nonce, handshake::Limits::default());
        handshake.map_err(|error| errors::handshake(py, &error))
    }
}

/// Creates the client side of TLS, with a `ClientTLS` or an `ssl.SSLContext`.
fn client_layer(py: Python<'_>, config: &Bound<'_, PyAny>, server_hostname: Option<&str>) -> PyResult<Box<dyn Layer>> {
    if let Ok(native) = config.cast::<ClientTLS>() {
        let name = server_hostname.ok_or_else(|| PyTypeError::new_err("TLS needs a server_hostname"))?;
        let name = server_name(name).map_err(|error| errors::tls_error(py, error))?;
        let layer = RustlsLayer::client(native.get().config.clone(), name);
        let layer = layer.map_err(|error| errors::tls_error(py, error))?;
        Ok(Box::new(if native.get().insecure { layer.unverified() } else { layer }))
    } else {
        Ok(Box::new(SslLayer::client(config, server_hostname)?))
    }
}

/// Creates the handshake that requests a tunnel to `authority` (host:port) from an HTTP proxy.
fn tunnel(
    py: Python<'_>,
    authority: &str,
    headers: Vec<(String, String)>,
    authorization: Option<String>,
) -> PyResult<ConnectHandshake> {
    let mut request = ConnectRequest::new(authority);
    request.authorization = authorization;
    request.headers = headers::from_python(py, headers)?;
    let handshake = ConnectHandshake::new(&request, handshake::Limits::default());
    handshake.map_err(|error| errors::tunnel(py, &error))
}
