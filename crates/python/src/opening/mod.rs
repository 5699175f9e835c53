//! From a connected socket to a WebSocket: options and settings of Python's in, exceptions and connections
//! out. The work is `driver::opening`.

#![allow(unsafe_code)] // taking over a file descriptor

pub(crate) mod client;
pub(crate) mod connected;
pub(crate) mod handshake_limiter;
pub(crate) mod server;

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use wirespeed_driver::Endpoint;
use wirespeed_driver::blocking::Settings;
use wirespeed_driver::protocol::Limits;
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::handshake;
use wirespeed_driver::protocol::handshake::client::{ClientHandshake, ClientRequest};
use wirespeed_driver::protocol::handshake::connect::{ConnectHandshake, ConnectRequest};
use wirespeed_driver::socket::Socket;
use wirespeed_driver::tls::client::server_name;
use wirespeed_driver::tls::{Layer, RustlsLayer};

use crate::addresses::Addresses;
use crate::handshake::Handshake;
use crate::payload::PyPayload;
use crate::ssl_layer::SslLayer;
use crate::tls::ClientTLS;
use crate::{errors, headers, ssl_layer};

/// Runs `f` with an opening, if it goes on, else raises `over`. A panic, which is a defect of ours, ends it: what whoever
/// accepts or dials gets is an exception that says so, of this one.
fn contain<T, R>(
    opening: &mut Option<T>,
    over: impl FnOnce() -> PyErr,
    f: impl FnOnce(&mut T) -> PyResult<R>,
) -> PyResult<R> {
    let Some(going) = opening else { return Err(over()) };
    catch_unwind(AssertUnwindSafe(|| f(going))).unwrap_or_else(|_| {
        *opening = None;
        Err(errors::panicked())
    })
}

/// A WebSocket after its opening handshake: the argument of a connection's constructor.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Opened {
    parts: Mutex<Option<Parts>>,
}

pub(crate) struct Parts {
    pub(crate) endpoint: Endpoint<PyPayload>,
    /// None if it came without I/O.
    pub(crate) socket: Option<Socket>,
    pub(crate) ends: Addresses,
    pub(crate) settings: Settings,
    pub(crate) handshake: Handshake,
}

#[pymethods]
impl Opened {
    /// Takes the descriptor of the connected socket over: it is closed with the connection, or with this
    /// object if there will be none.
    fn _adopt(&self, fd: RawFd) -> PyResult<()> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = parts.as_mut().ok_or_else(|| PyRuntimeError::new_err("this connection was taken already"))?;
        // SAFETY: the caller detached the descriptor, so nobody else closes it.
        let socket = Socket::new(unsafe { OwnedFd::from_raw_fd(fd) });
        socket.limit_unsent();
        parts.ends.local = Addresses::local_of(&socket);
        parts.socket = Some(socket);
        Ok(())
    }

    /// Closes what no connection was made of.
    fn _discard(&self) {
        drop(self.parts.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(parts) = self.parts.try_lock() else { return Ok(()) };
        let Some(parts) = &*parts else { return Ok(()) };
        parts.ends.traverse(&visit)?;
        parts.handshake.traverse(&visit)?;
        ssl_layer::traverse(parts.endpoint.send_half.layer(), &visit)
    }

    fn __clear__(&self) {
        let parts = self.parts.try_lock().ok().and_then(|mut parts| parts.take());
        drop(parts); // not under the lock
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

/// What to ask for, and how the connection is to behave: the keyword arguments of `connect`, checked by
/// Python.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Options {
    host: String,
    target: String,
    origin: Option<String>,
    subprotocols: Vec<String>,
    /// `None`: no compression; else the keyword arguments of `wirespeed.Deflate`.
    deflate: Option<DeflateOptions>,
    user_agent: Option<String>,
    authorization: Option<String>,
    headers: Vec<(String, String)>,
    max_size: Option<usize>,
    max_fragment_size: Option<usize>,
    max_fragments: Option<u32>,
    queue_messages: usize,
    queue_bytes: usize,
    ping_interval: Option<f64>,
    ping_timeout: Option<f64>,
    close_timeout: Option<f64>,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct DeflateOptions {
    level: u8,
    memory_level: u8,
    threshold: usize,
    server_no_context_takeover: bool,
    client_no_context_takeover: bool,
    server_max_window_bits: Option<u8>,
    client_max_window_bits: Option<u8>,
}

impl From<DeflateOptions> for negotiate::Config {
    fn from(options: DeflateOptions) -> Self {
        Self {
            level: options.level,
            memory_level: options.memory_level,
            threshold: options.threshold,
            server_no_context_takeover: options.server_no_context_takeover,
            client_no_context_takeover: options.client_no_context_takeover,
            server_max_window_bits: options.server_max_window_bits,
            client_max_window_bits: options.client_max_window_bits,
        }
    }
}

impl Options {
    fn request(&self, py: Python<'_>, deflate: Option<negotiate::Config>) -> PyResult<ClientRequest> {
        let mut request = ClientRequest::new(&self.host, &self.target);
        request.origin.clone_from(&self.origin);
        request.subprotocols.clone_from(&self.subprotocols);
        request.deflate = deflate;
        request.user_agent.clone_from(&self.user_agent);
        request.authorization.clone_from(&self.authorization);
        request.headers = headers::from_python(py, self.headers.clone())?;
        Ok(request)
    }
}

/// How the connection is to behave, while the opening handshake is made.
#[derive(Clone, Copy)]
struct Plan {
    limits: Limits,
    settings: Settings,
    ping_interval: Option<Duration>,
    ping_timeout: Option<Duration>,
}

/// What a client asks a server for, and how the connection is to behave: checked once, for any number of
/// openings.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct ClientPlan {
    request: ClientRequest,
    plan: Plan,
}

#[pymethods]
impl ClientPlan {
    /// Raises what is wrong with the options in themselves.
    #[new]
    fn new(py: Python<'_>, options: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut options: Options = options.extract()?;
        let deflate = options.deflate.take().map(negotiate::Config::from);
        let plan = Plan {
            limits: Limits {
                message_size: options.max_size,
                fragment_size: options.max_fragment_size,
                fragments: options.max_fragments,
            },
            settings: Settings {
                close_timeout: duration("close_timeout", options.close_timeout)?,
                queue_messages: options.queue_messages,
                queue_bytes: options.queue_bytes,
            },
            ping_interval: duration("ping_interval", options.ping_interval)?,
            ping_timeout: duration("ping_timeout", options.ping_timeout)?,
        };
        let made = Self { request: options.request(py, deflate)?, plan };
        made.handshake(py, [0; 16])?;
        Ok(made)
    }
}

impl ClientPlan {
    fn handshake(&self, py: Python<'_>, nonce: [u8; 16]) -> PyResult<ClientHandshake> {
        let handshake = ClientHandshake::new(&self.request, nonce, handshake::Limits::default());
        handshake.map_err(|error| errors::handshake(py, &error))
    }
}

/// A duration that an option gives in seconds; none switches it off.
pub(crate) fn duration(name: &str, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    match seconds {
        None => Ok(None),
        Some(seconds) if seconds.is_nan() || seconds < 0.0 => {
            Err(PyValueError::new_err(format!("{name} must not be negative: use None to switch it off")))
        }
        Some(seconds) => Ok(Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))),
    }
}

/// The client's end of TLS under a `ClientTLS` or an `ssl.SSLContext`.
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

/// The words for an HTTP proxy that is to make a tunnel to `authority` (host:port).
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
