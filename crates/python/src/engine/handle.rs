//! The engine itself: its configuration, its events in batches, and what is told to all.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::{CloseCode, Limits, MessageKind, Payload};
use wirespeed_engine::events::{Batch, Event};
use wirespeed_engine::outbox::Policy;
use wirespeed_engine::{Config, Engine, Listen, Origins, Place, Role, Routes, Session};

use super::auth::PyJwt;
use super::event::{Connected, Disconnected, Message};
use super::session::{PySession, refused, with_message};
use crate::errors;
use crate::payload::{self, PyPayload};
use crate::tls::ServerTLS;

/// How long a signal may wait for its handler while a thread waits for events.
const SIGNALS: Duration = Duration::from_millis(50);

/// Host and port, or a path, and TLS.
type At<'py> = (Option<String>, u16, Option<PathBuf>, Option<PyRef<'py, ServerTLS>>);

/// See the module.
#[pyclass(frozen, subclass, module = "wirespeed._native")]
pub(crate) struct NativeEngine {
    config: Mutex<Config>,
    routes: Mutex<Routes>,
    engine: Mutex<Option<Arc<Engine>>>,
    sessions: Mutex<HashMap<u64, Py<PySession>>>,
    /// For an event loop: one end is readable when there is something; the other is written by workers.
    bell: Mutex<Option<UnixStream>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn seconds(name: &str, value: Option<f64>) -> PyResult<Option<Duration>> {
    value
        .map(|seconds| {
            Duration::try_from_secs_f64(seconds)
                .map_err(|_| PyValueError::new_err(format!("{name} must be a number of seconds from 0 up")))
        })
        .transpose()
}

#[pymethods]
impl NativeEngine {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self {
            config: Mutex::default(),
            routes: Mutex::default(),
            engine: Mutex::new(None),
            sessions: Mutex::new(HashMap::new()),
            bell: Mutex::new(None),
        }
    }

    /// What the constructor of the class above was given.
    #[pyo3(signature = (listen, *, auth, workers, origins, subprotocols, compression, max_size, open_timeout, ping_interval, ping_timeout, close_timeout, outbox_limit, policy, mailbox_limit, max_subscriptions, max_events, max_event_bytes, max_connections))]
    #[allow(clippy::too_many_arguments)] // keyword-only, from one caller
    fn _configure(
        &self,
        listen: Vec<At<'_>>,
        auth: Option<PyRef<'_, PyJwt>>,
        workers: usize,
        origins: Option<Vec<String>>,
        subprotocols: Vec<String>,
        compression: bool,
        max_size: Option<usize>,
        open_timeout: f64,
        ping_interval: Option<f64>,
        ping_timeout: Option<f64>,
        close_timeout: f64,
        outbox_limit: usize,
        policy: &str,
        mailbox_limit: usize,
        max_subscriptions: usize,
        max_events: usize,
        max_event_bytes: usize,
        max_connections: Option<usize>,
    ) -> PyResult<()> {
        let listen = listen
            .into_iter()
            .map(|(host, port, path, tls)| {
                let at = match (host, path) {
                    (_, Some(path)) => Place::Unix(path),
                    (Some(host), None) => {
                        let ip =
                            host.parse().map_err(|_| PyValueError::new_err(format!("host {host:?} is no address")))?;
                        Place::Tcp(SocketAddr::new(ip, port))
                    }
                    (None, None) => return Err(PyValueError::new_err("neither a host nor a path to listen at")),
                };
                Ok(Listen { at, tls: tls.map(|tls| Arc::clone(&tls.config)) })
            })
            .collect::<PyResult<Vec<_>>>()?;
        let policy = match policy {
            "disconnect" => Policy::Disconnect,
            "drop_oldest" => Policy::DropOldest,
            "drop_newest" => Policy::DropNewest,
            "conflate" => Policy::Conflate,
            other => {
                return Err(PyValueError::new_err(format!(
                    "policy must be \"disconnect\", \"drop_oldest\", \"drop_newest\" or \"conflate\", not {other:?}"
                )));
            }
        };
        let config = Config {
            listen,
            auth: auth.map(|auth| Arc::clone(&auth.jwt)),
            workers,
            limits: Limits { message_size: max_size, ..Limits::default() },
            compression: compression.then(negotiate::Config::server),
            open_timeout: seconds("open_timeout", Some(open_timeout))?.unwrap_or_default(),
            ping_interval: seconds("ping_interval", ping_interval)?,
            ping_timeout: seconds("ping_timeout", ping_timeout)?,
            close_timeout: seconds("close_timeout", Some(close_timeout))?.unwrap_or_default(),
            outbox_limit,
            policy,
            mailbox_limit,
            max_subscriptions,
            max_events,
            max_event_bytes,
            max_connections: max_connections.unwrap_or(usize::MAX),
            ..Config::default()
        };
        let origins = match origins {
            None => Origins::Same,
            Some(listed) if listed.iter().any(|origin| origin == "*") => Origins::Any,
            Some(listed) => Origins::Listed(listed),
        };
        *locked(&self.config) = config;
        *locked(&self.routes) = Routes::new(origins, subprotocols);
        Ok(())
    }

    /// Adds a path: `role` is `"events"` or `"echo"`.
    fn _route(&self, path: &str, role: &str) -> PyResult<()> {
        if locked(&self.engine).is_some() {
            return Err(PyRuntimeError::new_err("the engine has started: add its paths before"));
        }
        let role = if role == "echo" { Role::Echo } else { Role::Events };
        locked(&self.routes).add(path, role).map_err(PyValueError::new_err)
    }

    /// Begins to serve.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        let mut engine = locked(&self.engine);
        if engine.is_some() {
            return Err(PyRuntimeError::new_err("the engine has started before"));
        }
        let routes = locked(&self.routes).clone();
        let mut config = locked(&self.config).clone();
        config.admit = Arc::new(move |request, remote| routes.admit(request, remote));
        let started = py.detach(|| Engine::start(config)).map_err(|error| errors::io_error(&error))?;
        *engine = Some(Arc::new(started));
        Ok(())
    }

    /// Where clients connect to: (host, port), or a path.
    #[getter]
    fn addresses(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let of = |place: &Place| match place {
            Place::Tcp(address) => {
                Ok((address.ip().to_string(), address.port()).into_pyobject(py)?.into_any().unbind())
            }
            Place::Unix(path) => Ok(path.as_os_str().into_pyobject(py)?.into_any().unbind()),
        };
        self.running()?.places().iter().map(of).collect()
    }

    /// Threads that serve.
    #[getter]
    fn workers(&self) -> PyResult<usize> {
        Ok(self.running()?.workers())
    }

    /// Up to `max_events` events, after waiting `timeout` seconds for the first; `None`: the engine has ended,
    /// and all were taken.
    fn _take(&self, py: Python<'_>, max_events: usize, timeout: Option<f64>) -> PyResult<Option<Py<PyList>>> {
        let engine = self.running()?;
        let deadline = seconds("timeout", timeout)?.map(|timeout| Instant::now() + timeout);
        loop {
            let now = Instant::now();
            let slice = deadline.map_or(now + SIGNALS, |deadline| deadline.min(now + SIGNALS));
            let Ok(batches) = py.detach(|| engine.events().take(max_events, Some(slice))) else { return Ok(None) };
            if !batches.is_empty() || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return self.objects(py, &batches).map(Some);
            }
            py.check_signals()?;
        }
    }

    /// A descriptor that is readable when there are events, until [`Self::_silence`]: for an event loop.
    fn _bell(&self) -> PyResult<i32> {
        let engine = self.running()?;
        let (ours, theirs) = UnixStream::pair().map_err(|error| errors::io_error(&error))?;
        for end in [&ours, &theirs] {
            end.set_nonblocking(true).map_err(|error| errors::io_error(&error))?;
        }
        let fd = ours.as_raw_fd();
        *locked(&self.bell) = Some(ours);
        engine.events().set_notify(Some(Arc::new(move || {
            let _ = (&theirs).write(&[0]); // full: it is readable
        })));
        Ok(fd)
    }

    fn _silence(&self) {
        if let Some(bell) = &mut *locked(&self.bell) {
            let mut bytes = [0; 64];
            while bell.read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
        }
    }

    /// Sends a message to all sessions but `exclude`. False: there is no room for more at present.
    #[pyo3(signature = (message, *, text = None, exclude = None))]
    fn broadcast(
        &self,
        message: &Bound<'_, PyAny>,
        text: Option<bool>,
        exclude: Option<PyRef<'_, PySession>>,
    ) -> PyResult<bool> {
        let engine = self.running()?;
        let except = exclude.as_ref().map(|session| &session.session);
        with_message(message, text, |kind, bytes| engine.broadcast(kind, bytes, except))?
            .map_err(|refusal| refused(message.py(), refusal))
    }

    /// Sends a message to the sessions that subscribe to the topic, but `exclude`; how many they are.
    #[pyo3(signature = (topic, message, *, text = None, exclude = None, key = None))]
    fn publish(
        &self,
        topic: &str,
        message: &Bound<'_, PyAny>,
        text: Option<bool>,
        exclude: Option<PyRef<'_, PySession>>,
        key: Option<&str>,
    ) -> PyResult<usize> {
        let engine = self.running()?;
        let topic = super::session::topic(topic)?;
        let except = exclude.as_ref().map(|session| &session.session);
        with_message(message, text, |kind, bytes| engine.publish(&topic, kind, bytes, except, key.map(Arc::from)))?
            .map(|(count, _)| count)
            .map_err(|refusal| refused(message.py(), refusal))
    }

    /// How many sessions subscribe to a topic.
    fn subscribers(&self, topic: &str) -> PyResult<usize> {
        Ok(self.running()?.subscribers(&super::session::topic(topic)?))
    }

    /// Whether there is room for more.
    #[getter]
    fn has_room(&self) -> PyResult<bool> {
        Ok(self.running()?.wait_for_room(Some(Instant::now())).is_ok())
    }

    /// Waits until there is room for more; false: not in time.
    #[pyo3(signature = (timeout = None))]
    fn wait_for_room(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let engine = self.running()?;
        let deadline = seconds("timeout", timeout)?.map(|timeout| Instant::now() + timeout);
        loop {
            let now = Instant::now();
            let slice = deadline.map_or(now + SIGNALS, |deadline| deadline.min(now + SIGNALS));
            match py.detach(|| engine.wait_for_room(Some(slice))) {
                Ok(()) => return Ok(true),
                Err(wirespeed_engine::mailbox::Refused::Closed) => return Err(errors::session_closed(py)),
                Err(_) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => return Ok(false),
                Err(_) => py.check_signals()?,
            }
        }
    }

    /// Accepts nobody any more, and closes all sessions with this code.
    #[pyo3(signature = (code = 1001, reason = ""))]
    fn _drain(&self, py: Python<'_>, code: u16, reason: &str) -> PyResult<()> {
        if !CloseCode(code).is_sendable() {
            let error = wirespeed_driver::protocol::SendError::InvalidCloseCode(code);
            return Err(errors::refused(py, error));
        }
        self.running()?.drain(CloseCode(code), reason);
        Ok(())
    }

    /// Ends everything now. Again, or before the start: nothing.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let engine = locked(&self.engine).clone();
        match engine {
            Some(engine) => py.detach(|| engine.stop()).map_err(|error| errors::io_error(&error)),
            None => Ok(()),
        }
    }

    /// Counters by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let engine = self.running()?;
        let counters = engine.counters();
        let (events, bytes) = engine.events().waiting();
        let stats = PyDict::new(py);
        stats.set_item("connections", counters.connections.load(Ordering::Relaxed))?;
        stats.set_item("sessions", counters.sessions.load(Ordering::Relaxed))?;
        stats.set_item("sessions_opened", counters.opened.load(Ordering::Relaxed))?;
        stats.set_item("handshakes_failed", counters.refused.load(Ordering::Relaxed))?;
        stats.set_item("events", counters.received.load(Ordering::Relaxed))?;
        stats.set_item("messages_dropped", counters.dropped.load(Ordering::Relaxed))?;
        stats.set_item("events_waiting", events)?;
        stats.set_item("event_bytes_waiting", bytes)?;
        stats.set_item("locks_contended", wirespeed_engine::contended())?;
        Ok(stats)
    }
}

impl NativeEngine {
    fn running(&self) -> PyResult<Arc<Engine>> {
        let engine = locked(&self.engine).clone();
        let engine = engine.ok_or_else(|| {
            PyRuntimeError::new_err("the engine has not started: use `with engine:` or call engine.start()")
        })?;
        if engine.is_forked() {
            return Err(PyRuntimeError::new_err(
                "this is a copy in a child process: the engine's threads are in the process that has started it",
            ));
        }
        Ok(engine)
    }

    fn objects(&self, py: Python<'_>, batches: &[Batch]) -> PyResult<Py<PyList>> {
        let mut sessions = locked(&self.sessions);
        let mut last: Option<(Session, Py<PySession>)> = None;
        let list = PyList::empty(py);
        for (session, event) in batches.iter().flat_map(Batch::iter) {
            let object = match &last {
                Some((known, object)) if known == session => object.clone_ref(py),
                _ => {
                    let object = match sessions.get(&session.id()) {
                        Some(object) => object.clone_ref(py),
                        None => {
                            let object = Py::new(py, PySession { session: session.clone() })?;
                            sessions.insert(session.id(), object.clone_ref(py));
                            object
                        }
                    };
                    last = Some((session.clone(), object.clone_ref(py)));
                    object
                }
            };
            match event {
                Event::Connected => list.append(Bound::new(py, Connected { session: object })?)?,
                Event::Message { kind, data } => {
                    let data = message(py, kind, data)?;
                    list.append(Bound::new(py, Message { session: object, data })?)?;
                }
                Event::Disconnected(ended) => {
                    sessions.remove(&session.id());
                    let (code, reason, failure) = (ended.code, ended.reason.clone(), ended.failure.clone());
                    list.append(Bound::new(py, Disconnected { session: object, code, reason, failure })?)?;
                }
            }
        }
        Ok(list.unbind())
    }
}

fn message(py: Python<'_>, kind: MessageKind, data: &[u8]) -> PyResult<Py<PyAny>> {
    let payload: Payload<'_, PyPayload> = Payload::Slice(data);
    payload::message(py, kind, payload, None)
}
