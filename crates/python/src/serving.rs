//! From an accepted stream to a request for a WebSocket, without I/O of its own: bytes in, bytes out. The connection made of it answers.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use wirespeed_driver::blocking::Settings;
use wirespeed_driver::opening::Early;
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::handshake::{self, HandshakeError, Progress, ServerConfig, ServerHandshake};
use wirespeed_driver::protocol::{Config, Connection, Limits, Side};
use wirespeed_driver::tls::{Layer, RustlsLayer};
use wirespeed_driver::{Keepalive, tls};

use crate::handshake::{Handshake, reject};
use crate::opening::{DeflateOptions, Opened, Parts, duration};
use crate::ssl_layer::SslLayer;
use crate::tls::ServerTLS;
use crate::{errors, headers};

/// What all connections of a server share: the keyword arguments of `serve`, checked by Python.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct ServerSettings {
    config: ServerConfig,
    limits: Limits,
    settings: Settings,
    ping_interval: Option<Duration>,
    ping_timeout: Option<Duration>,
}

#[pymethods]
impl ServerSettings {
    #[new]
    #[pyo3(signature = (*, subprotocols, deflate, max_size, max_fragment_size, max_fragments, queue_messages, queue_bytes, ping_interval, ping_timeout, close_timeout))]
    #[allow(clippy::too_many_arguments)] // keyword-only, from one caller
    fn new(
        subprotocols: Vec<String>,
        deflate: Option<DeflateOptions>,
        max_size: Option<usize>,
        max_fragment_size: Option<usize>,
        max_fragments: Option<u32>,
        queue_messages: usize,
        queue_bytes: usize,
        ping_interval: Option<f64>,
        ping_timeout: Option<f64>,
        close_timeout: Option<f64>,
    ) -> PyResult<Self> {
        Ok(Self {
            config: ServerConfig { deflate: deflate.map(negotiate::Config::from), subprotocols },
            limits: Limits { message_size: max_size, fragment_size: max_fragment_size, fragments: max_fragments },
            settings: Settings {
                close_timeout: duration("close_timeout", close_timeout)?,
                queue_messages,
                queue_bytes,
            },
            ping_interval: duration("ping_interval", ping_interval)?,
            ping_timeout: duration("ping_timeout", ping_timeout)?,
        })
    }
}

/// The step that is under way.
enum Step {
    Tls,
    Head(Box<ServerHandshake>),
    Request(Box<ServerHandshake>),
    /// What came is no request: the client can be told.
    Failed(Box<ServerHandshake>, HandshakeError),
    Over,
}

/// See the module.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct ServerOpening {
    settings: Py<ServerSettings>,
    inner: Mutex<Inner>,
}

struct Inner {
    early: Early,
    step: Step,
}

impl ServerOpening {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self, py: Python<'_>, inner: &mut Inner) -> PyResult<()> {
        if let Step::Tls = inner.step {
            if inner.early.is_handshaking().map_err(|error| errors::tls_error(py, error))? {
                return Ok(());
            }
            inner.step = Step::Head(Box::new(self.handshake()));
        }
        let Inner { early, step } = inner;
        let Step::Head(handshake) = step else { return Ok(()) };
        let (taken, error) = match early.plain().map_err(|error| errors::tls_error(py, error))? {
            None => (0, Some(handshake.receive_eof())),
            Some([]) => return Ok(()),
            Some(input) => match handshake.receive(input) {
                Ok(Progress::Incomplete) => (input.len(), None),
                Ok(Progress::Complete { consumed, .. }) => {
                    early.consume(consumed);
                    if let Step::Head(handshake) = std::mem::replace(step, Step::Over) {
                        *step = Step::Request(handshake);
                    }
                    return Ok(());
                }
                Err(error) => (input.len(), Some(error)),
            },
        };
        early.consume(taken);
        let Some(error) = error else {
            // All of it was taken: the stream may have ended behind it.
            return match early.plain().map_err(|error| errors::tls_error(py, error))? {
                None => Err(errors::server_handshake(py, &handshake.receive_eof())),
                Some(_) => Ok(()),
            };
        };
        let raised = errors::server_handshake(py, &error);
        if let Step::Head(handshake) = std::mem::replace(step, Step::Over)
            && !matches!(error, HandshakeError::ConnectionClosed { .. })
        {
            *step = Step::Failed(handshake, error);
        }
        Err(raised)
    }

    fn handshake(&self) -> ServerHandshake {
        ServerHandshake::new(self.settings.get().config.clone(), handshake::Limits::default())
    }
}

#[pymethods]
impl ServerOpening {
    #[new]
    fn new(settings: Py<ServerSettings>) -> Self {
        let handshake = ServerHandshake::new(settings.get().config.clone(), handshake::Limits::default());
        let step = Step::Head(Box::new(handshake));
        Self { settings, inner: Mutex::new(Inner { early: Early::default(), step }) }
    }

    /// Begins a TLS handshake, before anything else: under a `ServerTLS`, or under an `ssl.SSLContext`.
    fn start_tls(&self, py: Python<'_>, config: &Bound<'_, PyAny>) -> PyResult<()> {
        let layer: Box<dyn Layer> = if let Ok(native) = config.cast::<ServerTLS>() {
            let layer = RustlsLayer::server(native.get().config.clone());
            Box::new(layer.map_err(|error| errors::tls_error(py, error))?)
        } else {
            Box::new(SslLayer::server(config)?)
        };
        let mut inner = self.lock();
        inner.early.start_layer(layer).map_err(|error| errors::tls_error(py, error))?;
        inner.step = Step::Tls;
        Ok(())
    }

    /// Whether the TLS handshake goes on.
    #[getter]
    fn is_tls_handshaking(&self) -> bool {
        matches!(self.lock().step, Step::Tls)
    }

    /// Whether the request is complete.
    #[getter]
    fn done(&self) -> bool {
        matches!(self.lock().step, Step::Request(_))
    }

    /// Takes bytes that were received. After an error, what the client can be told is in the output, or made by `reject`.
    fn feed(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        let mut inner = self.lock();
        inner.early.receive(data).map_err(|error: tls::Error| errors::tls_error(py, error))?;
        self.advance(py, &mut inner)
    }

    /// Puts the response to what is no request into the output, with further fields; nothing if there is nobody to read it.
    fn reject(&self, py: Python<'_>, fields: Vec<(String, String)>) -> PyResult<()> {
        let additional = headers::from_python(py, fields)?;
        let mut inner = self.lock();
        let Step::Failed(handshake, error) = std::mem::replace(&mut inner.step, Step::Over) else { return Ok(()) };
        let response = reject(&handshake, &error, &additional);
        let _ = inner.early.send(&response.to_bytes()); // the fault is what is told
        Ok(())
    }

    /// The stream has ended.
    fn feed_eof(&self, py: Python<'_>) -> PyResult<()> {
        let mut inner = self.lock();
        inner.early.receive_eof();
        self.advance(py, &mut inner)
    }

    /// Bytes to send now.
    fn take_output<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.lock().early.output().take())
    }

    /// What a connection is made of, which then answers the request.
    fn finish(&self) -> PyResult<Opened> {
        let mut inner = self.lock();
        let Step::Request(handshake) = std::mem::replace(&mut inner.step, Step::Over) else {
            return Err(incomplete());
        };
        let early = std::mem::take(&mut inner.early);
        let plan = self.settings.get();
        let deflate = handshake.deflate();
        let connection = Connection::new(Config { side: Side::Server, limits: plan.limits, deflate });
        let keepalive = Keepalive::new(plan.ping_interval, plan.ping_timeout, Instant::now());
        let peer = early.into_peer(connection, keepalive);
        let handshake = Handshake::server(*handshake).ok_or_else(incomplete)?;
        Ok(Opened::new(Parts { peer, socket: None, settings: plan.settings, handshake }))
    }
}

fn incomplete() -> PyErr {
    PyRuntimeError::new_err("the request is not complete")
}
