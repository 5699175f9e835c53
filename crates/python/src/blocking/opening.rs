//! From a connected socket to a WebSocket: tunnels, TLS, the opening handshake.

#![allow(unsafe_code)] // taking over a file descriptor

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use wirespeed_driver::blocking::Settings;
use wirespeed_driver::opening::{Error, Pipe};
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::handshake::client::{ClientHandshake, ClientRequest};
use wirespeed_driver::protocol::handshake::connect::{ConnectHandshake, ConnectRequest};
use wirespeed_driver::protocol::handshake::{self, Accepted, HandshakeError, Progress, Request};
use wirespeed_driver::protocol::{Config, Connection, Limits, Side};
use wirespeed_driver::socket::Socket;
use wirespeed_driver::tls::{Layer, RustlsLayer, client};
use wirespeed_driver::{Keepalive, Peer, entropy};

use super::host::PythonHost;
use super::{deadline, duration};
use crate::payload::PyPayload;
use crate::ssl_layer::SslLayer;
use crate::tls::ClientTLS;
use crate::{errors, headers};

/// A connected socket on its way to a WebSocket.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Transport {
    pipe: Mutex<Option<Pipe>>,
}

/// A WebSocket after its opening handshake: the argument of a connection's constructor.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Opened {
    parts: Mutex<Option<Parts>>,
}

pub(super) struct Parts {
    pub(super) peer: Peer<PyPayload>,
    pub(super) socket: Socket,
    pub(super) settings: Settings,
    pub(super) request: Request,
    pub(super) accepted: Accepted,
}

impl Opened {
    pub(super) fn take(&self) -> PyResult<Parts> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.take().ok_or_else(|| PyRuntimeError::new_err("this connection was taken already"))
    }
}

/// What to ask for, and how the connection is to behave: the keyword arguments of `connect`, checked by Python.
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

/// Raises what `Transport.open` would raise for options that are wrong in themselves, before anything is dialled.
#[pyfunction]
pub(crate) fn check_request(py: Python<'_>, options: &Bound<'_, PyAny>) -> PyResult<()> {
    let mut options: Options = options.extract()?;
    let deflate = options.deflate.take().map(negotiate::Config::from);
    let request = options.request(py, deflate)?;
    let handshake = ClientHandshake::new(&request, [0; 16], handshake::Limits::default());
    handshake.map(drop).map_err(|error| errors::handshake(py, &error))
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
            let layer: Box<dyn Layer> = if let Ok(native) = config.cast::<ClientTLS>() {
                let name = server_hostname.ok_or_else(|| PyTypeError::new_err("TLS needs a server_hostname"))?;
                let name = client::server_name(name).map_err(|error| errors::tls_error(py, error))?;
                let layer = RustlsLayer::client(native.get().config.clone(), name);
                Box::new(layer.map_err(|error| errors::tls_error(py, error))?)
            } else {
                Box::new(SslLayer::client(config, server_hostname)?)
            };
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
        let mut request = ConnectRequest::new(authority);
        request.authorization = authorization;
        request.headers = headers::from_python(py, headers)?;
        let handshake = ConnectHandshake::new(&request, handshake::Limits::default());
        let handshake = handshake.map_err(|error| errors::tunnel(py, &error))?;
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
        let mut options: Options = options.extract()?;
        let deflate = options.deflate.take().map(negotiate::Config::from);
        let limits = Limits {
            message_size: options.max_size,
            fragment_size: options.max_fragment_size,
            fragments: options.max_fragments,
        };
        let settings = Settings {
            close_timeout: duration("close_timeout", options.close_timeout)?,
            queue_messages: options.queue_messages,
            queue_bytes: options.queue_bytes,
        };
        let interval = duration("ping_interval", options.ping_interval)?;
        let pong_timeout = duration("ping_timeout", options.ping_timeout)?;
        let request = options.request(py, deflate)?;
        let handshake = ClientHandshake::new(&request, entropy::draw_nonce(), handshake::Limits::default());
        let handshake = handshake.map_err(|error| errors::handshake(py, &error))?;
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
        let connection = Connection::new(Config { side: Side::Client, limits, deflate: accepted.deflate });
        let keepalive = Keepalive::new(interval, pong_timeout, Instant::now());
        let (socket, peer) = pipe.into_peer(connection, keepalive);
        Ok(Opened { parts: Mutex::new(Some(Parts { peer, socket, settings, request: sent, accepted })) })
    }

    /// The addresses of both ends, as the methods of `socket.socket` return them.
    fn addresses<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        self.with_pipe(|pipe| {
            let raw = pipe.socket().raw();
            // A socket object that borrows the descriptor for two calls.
            let socket = py.import("socket")?.getattr("socket")?;
            let kwargs = pyo3::types::PyDict::new(py);
            kwargs.set_item("fileno", raw)?;
            let socket = socket.call((), Some(&kwargs))?;
            let local = socket.call_method0("getsockname");
            // The peer may be gone already: the opening handshake will tell.
            let remote = socket.call_method0("getpeername").unwrap_or_else(|_| py.None().into_bound(py));
            socket.call_method0("detach")?;
            Ok((local?, remote))
        })
    }

    /// Closes the socket, if it is still here.
    fn close(&self) {
        drop(self.pipe.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
