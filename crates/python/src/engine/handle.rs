//! The engine: configuration, batches of events, broadcasts and publishing. Base of `wirespeed.engine.Engine`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::{CloseCode, Limits};
use wirespeed_engine::auth::acl::AclOptions;
use wirespeed_engine::broker::EnqueueResult;
use wirespeed_engine::events::Batch;
use wirespeed_engine::{Config, Engine, Listen, Place, Role, Route, Routes, Session};

use super::arguments::{self, deadline, seconds, with_message};
use super::auth::PyJwt;
use super::batch::{BatchPart, Codec, Codecs, PyBatch};
use super::broker;
use super::capacity::{self, SIGNAL_INTERVAL};
use super::limits::PyLimits;
use super::logs::NativeLogs;
use super::many;
use super::operations::{self, NativeDraining, NativeHandoff};
use super::refusals::{forked, refused_by_engine};
use super::routes;
use super::session::PySession;
use super::wakers::{CapacityWaker, EventsWaker};
use crate::errors;
use crate::tls::ServerTLS;

/// Host, port, path of a Unix socket, and TLS settings.
type ListenAddress<'py> = (Option<String>, u16, Option<PathBuf>, Option<PyRef<'py, ServerTLS>>);

/// The decoders of text and of binary messages, and whether an invalid message closes the session.
type Decoders = (Option<Py<PyAny>>, Option<Py<PyAny>>, bool);

/// The native engine.
///
/// 1. `_configure`, `_operate`, `_renew`, `_set_broker`, `_route` and `_set_codecs` set it up.
/// 2. `_start` starts the workers, once.
/// 3. While it runs, `_take` returns batches; `publish`, `broadcast` and the getters may be called from any thread.
/// 4. `_drain`, `_begin_drain` and `_leave` close sessions, and `stop` ends the workers.
#[pyclass(frozen, subclass, module = "wirespeed._native")]
pub(crate) struct NativeEngine {
    config: Mutex<Config>,
    paths: Mutex<Paths>,
    engine: OnceLock<Arc<Engine>>,
    /// Held during the start, which may take long. Lock it only while detached from the interpreter.
    starting: Mutex<()>,
    sessions: Mutex<HashMap<u64, Py<PySession>>>,
    /// The codecs, by the tags of routes.
    codecs: Mutex<Option<Py<Codecs>>>,
}

/// The routes that were added.
#[derive(Default)]
struct Paths {
    routes: Routes,
    /// A route for sessions was added, so paths without a route are refused.
    named: bool,
}

impl Paths {
    fn with_fallback(&self, tag: u32, config: &Config) -> Routes {
        let mut routes = self.routes.clone();
        if !self.named {
            routes.set_fallback(Route { tag, ..Route::new(Role::Events, config.route_settings()) });
        }
        routes
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl NativeEngine {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self {
            config: Mutex::default(),
            paths: Mutex::default(),
            engine: OnceLock::new(),
            starting: Mutex::default(),
            sessions: Mutex::new(HashMap::new()),
            codecs: Mutex::default(),
        }
    }

    /// Sets the arguments of the constructor of `Engine`.
    #[pyo3(signature = (listen, *, auth, workers, origins, subprotocols, compression, max_size, max_fragments, open_timeout, ping_interval, ping_timeout, close_timeout, outbox_limit, total_outbox_limit, reuse_port, policy, mailbox_limit, max_subscriptions, busy_poll, max_events, max_event_bytes, limits))]
    #[allow(clippy::too_many_arguments)] // keyword-only, from one caller
    fn _configure(
        &self,
        listen: Vec<ListenAddress<'_>>,
        auth: Option<PyRef<'_, PyJwt>>,
        workers: usize,
        origins: Option<Vec<String>>,
        subprotocols: Vec<String>,
        compression: bool,
        max_size: Option<usize>,
        max_fragments: Option<u32>,
        open_timeout: f64,
        ping_interval: Option<f64>,
        ping_timeout: Option<f64>,
        close_timeout: f64,
        outbox_limit: usize,
        total_outbox_limit: usize,
        reuse_port: bool,
        policy: &str,
        mailbox_limit: usize,
        max_subscriptions: usize,
        busy_poll: f64,
        max_events: usize,
        max_event_bytes: usize,
        limits: PyRef<'_, PyLimits>,
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
        let minimum =
            [("mailbox_limit", mailbox_limit), ("max_events", max_events), ("max_event_bytes", max_event_bytes)];
        if let Some((name, _)) = minimum.iter().find(|(_, limit)| *limit == 0) {
            return Err(PyValueError::new_err(format!("{name} must be 1 or more: nothing would ever have room")));
        }
        let policy = routes::policy(policy)?;
        routes::check_subprotocols(&subprotocols, auth.as_ref().map(|auth| &*auth.jwt))?;
        let config = Config {
            listen,
            auth: auth.map(|auth| Arc::clone(&auth.jwt)),
            workers,
            limits: Limits { message_size: max_size, fragments: max_fragments, ..Limits::default() },
            origins: routes::origins(origins)?,
            subprotocols,
            compression: compression.then(negotiate::Config::server),
            open_timeout: seconds("open_timeout", Some(open_timeout))?.unwrap_or_default(),
            ping_interval: seconds("ping_interval", ping_interval)?,
            ping_timeout: seconds("ping_timeout", ping_timeout)?,
            close_timeout: seconds("close_timeout", Some(close_timeout))?.unwrap_or_default(),
            outbox_limit,
            total_outbox_limit,
            reuse_port,
            policy,
            mailbox_limit,
            max_subscriptions,
            busy_poll: seconds("busy_poll", Some(busy_poll))?.unwrap_or_default(),
            max_events,
            max_event_bytes,
            admission: limits.admission.clone(),
            proxies: limits.proxies.clone(),
            inbound: limits.inbound,
            acl: AclOptions { default_policy: limits.default_policy, ..AclOptions::default() },
            ..Config::default()
        };
        *locked(&self.config) = config;
        *locked(&self.paths) = Paths::default();
        Ok(())
    }

    /// Sets the broker, after [`Self::_configure`].
    fn _set_broker(&self, url: &str, prefix: &str, limit: usize, policy: &str) -> PyResult<()> {
        locked(&self.config).broker = Some(Arc::new(broker::broker_config(url, prefix, limit, policy)?));
        Ok(())
    }

    /// Returns the status of the broker, by names; `None` without a broker.
    fn _broker_status<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let engine = self.running()?;
        engine.broker().map(|other| broker::status(py, &other.status())).transpose()
    }

    /// Returns the notices of the broker since the last call.
    fn _broker_notices(&self) -> PyResult<Vec<broker::NoticeTuple>> {
        Ok(self
            .running()?
            .broker()
            .map(|other| other.take_notices())
            .unwrap_or_default()
            .iter()
            .map(broker::notice_tuple)
            .collect())
    }

    /// Adds a route. `role` is `"events"`, `"echo"` or `"relay"`; `settings` override those of the engine.
    fn _route(&self, path: &str, role: &str, settings: &Bound<'_, PyDict>, tag: u32) -> PyResult<()> {
        let config = locked(&self.config).clone();
        let route = routes::route(routes::role(role, settings)?, tag, &config, settings)?;
        // A start in progress counts as started, so the lock is not waited for.
        let starting = self.starting.try_lock();
        if starting.is_err() || self.engine.get().is_some() {
            return Err(PyRuntimeError::new_err("the engine has started: add its paths before"));
        }
        let mut paths = locked(&self.paths);
        let named = route.role != Role::Echo;
        let added = paths.routes.add(path, route);
        paths.named |= named && added.is_ok();
        added.map_err(PyValueError::new_err)
    }

    /// Sets the codecs of routes, by their tags from 1 on: the decoders of text and of binary messages, and whether an
    /// invalid message closes the session.
    fn _set_codecs(&self, py: Python<'_>, codecs: Vec<Decoders>) -> PyResult<()> {
        let of = |(text, binary, closes)| Some(Codec { decoders: [text, binary], closes });
        let codecs = Codecs(std::iter::once(None).chain(codecs.into_iter().map(of)).collect());
        let codecs = Py::new(py, codecs)?;
        let before = locked(&self.codecs).replace(codecs);
        drop(before); // may run Python code, so not under the lock
        Ok(())
    }

    /// Visits the codecs, which may refer to the engine.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.codecs.try_lock().map_or(Ok(()), |codecs| visit.call(&*codecs))
    }

    fn __clear__(&self) {
        let before = self.codecs.try_lock().ok().and_then(|mut codecs| codecs.take());
        drop(before); // may run Python code, so not under the lock
    }

    /// Starts the engine. Without any route for sessions, all paths accept sessions, with the tag `rest`.
    fn _start(&self, py: Python<'_>, rest: u32) -> PyResult<()> {
        let raised = Mutex::new(None);
        // Ctrl-C interrupts the wait for another engine that is starting.
        let check = || {
            Python::attach(|py| py.check_signals()).map_err(|error| {
                *locked(&raised) = Some(error);
                std::io::ErrorKind::Interrupted.into()
            })
        };
        let started = py.detach(|| {
            let _starting = locked(&self.starting);
            if self.engine.get().is_some() {
                return Ok(false);
            }
            let mut config = locked(&self.config).clone();
            // Under the lock, so that no route is added later.
            config.routes = Some(Arc::new(locked(&self.paths).with_fallback(rest, &config)));
            let _ = self.engine.set(Arc::new(Engine::start_checking(config, check)?)); // set only here, under `starting`
            Ok(true)
        });
        if let Some(error) = locked(&raised).take() {
            return Err(error);
        }
        if started.map_err(|error| errors::io_error(&error))? {
            return Ok(());
        }
        Err(PyRuntimeError::new_err("the engine has started before"))
    }

    /// Returns the addresses of the listeners: (host, port), or a path.
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

    /// Returns the number of worker threads.
    #[getter]
    fn workers(&self) -> PyResult<usize> {
        Ok(self.running()?.workers())
    }

    /// Returns up to `max_events` events, after waiting at most `timeout` seconds for the first. `None`: the engine has
    /// ended, and all events were taken.
    fn _take(&self, py: Python<'_>, max_events: usize, timeout: Option<f64>) -> PyResult<Option<PyBatch>> {
        let engine = self.running()?;
        let deadline = deadline(timeout)?;
        loop {
            let now = Instant::now();
            let slice = deadline.map_or(now + SIGNAL_INTERVAL, |deadline| deadline.min(now + SIGNAL_INTERVAL));
            let Ok(batches) = py.detach(|| engine.events().take(max_events, Some(slice))) else { return Ok(None) };
            let has_notices = engine.broker().is_some_and(|broker| broker.has_notices());
            if !batches.is_empty() || has_notices || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return self.batch(py, engine, batches).map(Some);
            }
            py.check_signals()?;
        }
    }

    /// Returns a waker for taking events on an event loop.
    fn _events_waker(&self) -> PyResult<EventsWaker> {
        EventsWaker::new(self.running()?.events())
    }

    /// Wakes one of the waiting takers, to handle notices of the broker.
    fn _wake_taker(&self) -> PyResult<()> {
        self.running()?.events().ring();
        Ok(())
    }

    /// Sends a message to all sessions except `exclude`. Returns whether there is capacity for more.
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
            .map_err(|refusal| refused_by_engine(message.py(), refusal))
    }

    /// Sends a message to all subscribers of the topic except `exclude`. Returns their number.
    #[pyo3(signature = (topic, message, *, text = None, exclude = None, key = None))]
    fn publish(
        &self,
        topic: &str,
        message: &Bound<'_, PyAny>,
        text: Option<bool>,
        exclude: Option<PyRef<'_, PySession>>,
        key: Option<&str>,
    ) -> PyResult<Py<PyAny>> {
        let engine = self.running()?;
        let topic = arguments::topic(topic)?;
        let except = exclude.as_ref().map(|session| &session.session);
        let published = with_message(message, text, |kind, bytes| {
            engine.publish_everywhere(&topic, kind, bytes, except, key.map(Arc::from))
        })?
        .map_err(|refusal| refused_by_engine(message.py(), refusal))?;
        broker::published(message.py(), published.count, published.broker == EnqueueResult::Yes)
    }

    /// Publishes the items of an iterable.
    #[pyo3(signature = (items, *, text = None))]
    fn publish_many(&self, items: &Bound<'_, PyAny>, text: Option<bool>) -> PyResult<Py<PyAny>> {
        many::publish(&*self.running()?, items, text)
    }

    /// Returns the open sessions.
    #[getter]
    fn sessions(&self, py: Python<'_>) -> PyResult<Vec<Py<PySession>>> {
        let engine = self.running()?;
        let sessions = py.detach(|| engine.sessions());
        sessions.iter().map(|session| self.session_object(py, &engine, session)).collect()
    }

    /// Returns the open session with this number, or `None`.
    fn session(&self, py: Python<'_>, number: u64) -> PyResult<Option<Py<PySession>>> {
        let engine = self.running()?;
        engine.session(number).map(|session| self.session_object(py, &engine, &session)).transpose()
    }

    /// Returns the number of subscribers of a topic.
    fn subscribers(&self, topic: &str) -> PyResult<usize> {
        Ok(self.running()?.subscribers(&arguments::topic(topic)?))
    }

    /// Returns whether there is capacity for more messages: to all sessions, or to the subscribers of a topic.
    #[pyo3(signature = (topic = None))]
    fn has_room(&self, py: Python<'_>, topic: Option<&str>) -> PyResult<bool> {
        let topic = topic.map(arguments::topic).transpose()?;
        self.running()?.has_capacity(topic.as_ref()).map_err(|refused| refused_by_engine(py, refused.into()))
    }

    /// Waits until there is capacity; false: not in time.
    #[pyo3(signature = (topic = None, timeout = None))]
    fn wait_for_room(&self, py: Python<'_>, topic: Option<&str>, timeout: Option<f64>) -> PyResult<bool> {
        let engine = self.running()?;
        let topic = topic.map(arguments::topic).transpose()?;
        capacity::wait(py, timeout, refused_by_engine, |deadline| {
            engine.wait_for_capacity(topic.as_ref(), Some(deadline))
        })
    }

    /// Returns a waker that fires whenever there may be capacity again, until it is closed.
    fn _capacity_waker(&self) -> PyResult<CapacityWaker> {
        let engine = self.running()?;
        CapacityWaker::new(|wake| engine.watch_capacity(wake))
    }

    /// Returns a key that is the same for all objects which share a waker.
    fn _capacity_key(&self) -> PyResult<usize> {
        Ok(self.running()?.capacity_key())
    }

    /// Stops accepting clients, and closes all sessions with this code.
    #[pyo3(signature = (code = 1001, reason = ""))]
    fn _drain(&self, py: Python<'_>, code: i64, reason: &str) -> PyResult<()> {
        // Codes out of range become 0, which is invalid as well.
        let code = u16::try_from(code).unwrap_or(0);
        if !CloseCode(code).is_sendable() {
            let error = wirespeed_driver::protocol::SendError::InvalidCloseCode(code);
            return Err(errors::refused(py, error));
        }
        self.running()?.drain(CloseCode(code), reason);
        Ok(())
    }

    /// Stops accepting clients, closes all sessions with this code, and waits at most `seconds` until all have ended.
    fn _leave(&self, py: Python<'_>, code: u16, seconds: f64) -> PyResult<()> {
        let Some(engine) = self.engine.get().filter(|engine| !engine.is_forked()) else { return Ok(()) };
        engine.drain(CloseCode(code), "");
        let deadline = Instant::now() + Duration::from_secs_f64(seconds);
        // The wait is as short as some round trips, in which clients answer.
        while !engine.is_over() && Instant::now() < deadline {
            py.detach(|| std::thread::sleep(Duration::from_millis(1)));
            py.check_signals()?;
        }
        Ok(())
    }

    /// Stops the engine at once. Does nothing before the start, and when called again.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let stopped = py.detach(|| {
            if self.engine.get().is_none() {
                drop(locked(&self.starting)); // waits for a start in progress
            }
            self.engine.get().map_or(Ok(()), |engine| engine.stop())
        });
        stopped.map_err(|error| errors::io_error(&error))
    }

    /// Sets health checks, metrics, the live page, draining and handoff, after [`Self::_configure`].
    fn _operate(&self, settings: operations::Settings) -> PyResult<()> {
        settings.apply(&mut locked(&self.config))
    }

    /// Sets the files from which the TLS configuration is reloaded.
    fn _renew(
        &self,
        cert: operations::Source,
        key: operations::Source,
        client_ca: Vec<operations::Source>,
        alpn: Vec<Vec<u8>>,
        min_version: Option<&str>,
        max_version: Option<&str>,
    ) -> PyResult<()> {
        let renewal = operations::renewal(cert, key, client_ca, alpn, min_version, max_version)?;
        locked(&self.config).renewal = Some(renewal);
        Ok(())
    }

    /// Replaces the TLS configuration and its files.
    #[allow(clippy::too_many_arguments, reason = "Python makes one tuple of them")]
    fn _set_tls(
        &self,
        py: Python<'_>,
        tls: PyRef<'_, ServerTLS>,
        cert: operations::Source,
        key: operations::Source,
        client_ca: Vec<operations::Source>,
        alpn: Vec<Vec<u8>>,
        min_version: Option<&str>,
        max_version: Option<&str>,
    ) -> PyResult<()> {
        let renewal = operations::renewal(cert, key, client_ca, alpn, min_version, max_version)?;
        let (engine, config) = (self.running()?, &tls.config);
        py.detach(|| engine.set_tls(config, Some(&renewal))); // reads the files
        Ok(())
    }

    /// Returns the address of the metrics listener.
    #[getter]
    fn metrics_address(&self) -> PyResult<Option<(String, u16)>> {
        Ok(match self.running()?.http_place() {
            Some(Place::Tcp(address)) => Some((address.ip().to_string(), address.port())),
            _ => None,
        })
    }

    fn _begin_drain(
        &self,
        py: Python<'_>,
        timeout: f64,
        batch: usize,
        notice: f64,
        code: i64,
        reason: &str,
    ) -> PyResult<NativeDraining> {
        let code = u16::try_from(code).unwrap_or(0); // codes out of range become 0, which is invalid as well
        NativeDraining::begin(&*self.running()?, timeout, batch, notice, code, reason, py)
    }

    /// Returns the signal for a handoff to another engine, or `None` without `handoff`.
    fn _handoff_signal(&self) -> PyResult<Option<NativeHandoff>> {
        Ok(self.running()?.handed_over().map(|given| NativeHandoff(Mutex::new(given))))
    }

    fn _logs(&self) -> PyResult<NativeLogs> {
        Ok(NativeLogs(self.running()?.shared_logs()))
    }

    /// Returns the metrics as text, for Prometheus.
    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        Ok(operations::metrics(py, &*self.running()?))
    }

    /// Returns the statistics by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        operations::stats(py, &*self.running()?)
    }
}

impl NativeEngine {
    fn running(&self) -> PyResult<Arc<Engine>> {
        let engine = self.engine.get().cloned().ok_or_else(|| {
            PyRuntimeError::new_err("the engine has not started: use `with engine:` or call engine.start()")
        })?;
        if engine.is_forked() {
            return Err(forked());
        }
        Ok(engine)
    }

    /// Makes a batch. Objects of ended sessions are released here, because their last event may never be accessed.
    fn batch(&self, py: Python<'_>, engine: Arc<Engine>, batches: Vec<Batch>) -> PyResult<PyBatch> {
        let mut parts = Vec::with_capacity(batches.len());
        for batch in batches {
            let sessions = batch.sessions().iter().map(|session| self.cached_object(py, &engine, session));
            let sessions = sessions.collect::<PyResult<Vec<_>>>()?;
            for over in batch.ended() {
                let Some(session) = batch.sessions().get(over) else { continue };
                // First mark the end, so that `cached_object` does not insert the session again after it was removed.
                let _ = session.attachment().set(Box::new(EndReported)); // set once
                let kept = locked(&self.sessions).remove(&session.id());
                drop(kept);
            }
            parts.push(BatchPart { batch, sessions, refused: Mutex::default() });
        }
        let codecs = locked(&self.codecs).as_ref().map(|codecs| codecs.clone_ref(py));
        Ok(PyBatch::new(parts, codecs, engine))
    }

    /// Returns the object of a session that was looked up by number or listed.
    fn session_object(&self, py: Python<'_>, engine: &Arc<Engine>, session: &Session) -> PyResult<Py<PySession>> {
        if session.route().role == Role::Events {
            return self.cached_object(py, engine, session);
        }
        // This session emits no event at its end, so its object is not cached.
        Py::new(py, PySession { session: session.clone(), engine: Arc::downgrade(engine) })
    }

    /// Returns the object of a session, the same one as long as the session is open.
    ///
    /// Objects are not made under the lock: an allocation may run the garbage collector, which runs arbitrary code,
    /// here or in threads that then need the lock.
    fn cached_object(&self, py: Python<'_>, engine: &Arc<Engine>, session: &Session) -> PyResult<Py<PySession>> {
        if let Some(object) = locked(&self.sessions).get(&session.id()) {
            return Ok(object.clone_ref(py));
        }
        let object = Py::new(py, PySession { session: session.clone(), engine: Arc::downgrade(engine) })?;
        let mut sessions = locked(&self.sessions);
        // Another thread may have taken the end of this session before this thread takes its earlier events.
        if session.attachment().get().is_some() {
            return Ok(object);
        }
        Ok(sessions.entry(session.id()).or_insert(object).clone_ref(py))
    }
}

/// Marks a session whose end was reported.
struct EndReported;
