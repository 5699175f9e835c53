//! The engine itself: its configuration, its events in batches, and what is told to all.

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

use super::arguments::{deadline, seconds};
use super::auth::PyJwt;
use super::batch::{Codec, Codecs, Part, PyBatch};
use super::broker;
use super::capacity;
use super::limits::PyLimits;
use super::many;
use super::operations::{self, NativeDraining, NativeHandoff, NativeLogs};
use super::routes;
use super::session::{PySession, forked, refused_by_engine, with_message};
use super::wakers::{EventsBell, RoomBell};
use crate::errors;
use crate::tls::ServerTLS;

/// How long a signal may wait for its handler while a thread waits.
pub(super) const SIGNALS: Duration = Duration::from_millis(50);

/// Host and port, or a path, and TLS.
type At<'py> = (Option<String>, u16, Option<PathBuf>, Option<PyRef<'py, ServerTLS>>);

/// Of text and of binary messages, and whether a session is closed whose message is not valid.
type Decoders = (Option<Py<PyAny>>, Option<Py<PyAny>>, bool);

/// See the module.
#[pyclass(frozen, subclass, module = "wirespeed._native")]
pub(crate) struct NativeEngine {
    config: Mutex<Config>,
    paths: Mutex<Paths>,
    engine: OnceLock<Arc<Engine>>,
    /// Held while it starts, which may last: wanted only without the interpreter.
    starting: Mutex<()>,
    sessions: Mutex<HashMap<u64, Py<PySession>>>,
    /// By the tags of routes.
    codecs: Mutex<Option<Py<Codecs>>>,
}

/// What was said of paths.
#[derive(Default)]
struct Paths {
    routes: Routes,
    /// Some are for sessions: then no others are.
    named: bool,
}

impl Paths {
    fn with_the_rest(&self, tag: u32, config: &Config) -> Routes {
        let mut routes = self.routes.clone();
        if !self.named {
            routes.set_fallback(Route { tag, ..Route::new(Role::Events, config) });
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

    /// What the constructor of the class above was given.
    #[pyo3(signature = (listen, *, auth, workers, origins, subprotocols, compression, max_size, max_fragments, open_timeout, ping_interval, ping_timeout, close_timeout, outbox_limit, total_outbox_limit, reuse_port, policy, mailbox_limit, max_subscriptions, busy_poll, max_events, max_event_bytes, limits))]
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
        let least =
            [("mailbox_limit", mailbox_limit), ("max_events", max_events), ("max_event_bytes", max_event_bytes)];
        if let Some((name, _)) = least.iter().find(|(_, limit)| *limit == 0) {
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
            acl: AclOptions { unsaid: limits.unsaid, ..AclOptions::default() },
            ..Config::default()
        };
        *locked(&self.config) = config;
        *locked(&self.paths) = Paths::default();
        Ok(())
    }

    /// Sets what connects it with other engines, after [`Self::_configure`].
    fn _set_broker(&self, url: &str, prefix: &str, limit: usize, policy: &str) -> PyResult<()> {
        locked(&self.config).broker = Some(Arc::new(broker::hub(url, prefix, limit, policy)?));
        Ok(())
    }

    /// How it stands with the broker, by names; `None`: there is none.
    fn _broker_status<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let engine = self.running()?;
        engine.broker().map(|other| broker::status(py, &other.status())).transpose()
    }

    /// What has happened to the broker since the last call.
    fn _broker_notices(&self) -> PyResult<Vec<broker::Told>> {
        Ok(self
            .running()?
            .broker()
            .map(|other| other.take_notices())
            .unwrap_or_default()
            .iter()
            .map(broker::told)
            .collect())
    }

    /// Adds a path: `role` is `"events"`, `"echo"` or `"relay"`, with the settings that are not the engine's.
    fn _route(&self, path: &str, role: &str, settings: &Bound<'_, PyDict>, tag: u32) -> PyResult<()> {
        let config = locked(&self.config).clone();
        let route = routes::route(routes::role(role, settings)?, tag, &config, settings)?;
        // Not waited for: while it starts, it is as if it had.
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

    /// Sets what the messages of routes are decoded by, by their tags from 1 on: of text, of binary messages, and whether
    /// a session is closed whose message is not valid.
    fn _set_codecs(&self, py: Python<'_>, codecs: Vec<Decoders>) -> PyResult<()> {
        let of = |(text, binary, closes)| Some(Codec { decoders: [text, binary], closes });
        let codecs = Codecs(std::iter::once(None).chain(codecs.into_iter().map(of)).collect());
        let codecs = Py::new(py, codecs)?;
        let before = locked(&self.codecs).replace(codecs);
        drop(before); // not under the lock
        Ok(())
    }

    /// For the collector: a codec may refer to the engine.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.codecs.try_lock().map_or(Ok(()), |codecs| visit.call(&*codecs))
    }

    fn __clear__(&self) {
        let before = self.codecs.try_lock().ok().and_then(|mut codecs| codecs.take());
        drop(before); // not under the lock
    }

    /// Begins to serve. Where no path is for sessions by name, all others are, with this tag.
    fn _start(&self, py: Python<'_>, rest: u32) -> PyResult<()> {
        let raised = Mutex::new(None);
        // Ctrl-C ends the wait for another engine that is starting.
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
            // Under the lock: whatever was added is there.
            config.routes = Some(Arc::new(locked(&self.paths).with_the_rest(rest, &config)));
            let _ = self.engine.set(Arc::new(Engine::start_checking(config, check)?)); // nobody else does
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
    fn _take(&self, py: Python<'_>, max_events: usize, timeout: Option<f64>) -> PyResult<Option<PyBatch>> {
        let engine = self.running()?;
        let deadline = deadline(timeout)?;
        loop {
            let now = Instant::now();
            let slice = deadline.map_or(now + SIGNALS, |deadline| deadline.min(now + SIGNALS));
            let Ok(batches) = py.detach(|| engine.events().take(max_events, Some(slice))) else { return Ok(None) };
            let told = engine.broker().is_some_and(|broker| broker.has_notices());
            if !batches.is_empty() || told || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return self.batch(py, engine, batches).map(Some);
            }
            py.check_signals()?;
        }
    }

    /// For one who takes events on an event loop.
    fn _events_bell(&self) -> PyResult<EventsBell> {
        EventsBell::new(self.running()?.events())
    }

    /// Has one of those who take events look whether anything has happened to the broker.
    fn _ring(&self) -> PyResult<()> {
        self.running()?.events().ring();
        Ok(())
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
            .map_err(|refusal| refused_by_engine(message.py(), refusal))
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
    ) -> PyResult<Py<PyAny>> {
        let engine = self.running()?;
        let topic = super::session::topic(topic)?;
        let except = exclude.as_ref().map(|session| &session.session);
        let published = with_message(message, text, |kind, bytes| {
            engine.publish_everywhere(&topic, kind, bytes, except, key.map(Arc::from))
        })?
        .map_err(|refusal| refused_by_engine(message.py(), refusal))?;
        broker::published(message.py(), published.count, published.took == EnqueueResult::Yes)
    }

    /// Publishes what an iterable yields.
    #[pyo3(signature = (items, *, text = None))]
    fn publish_many(&self, items: &Bound<'_, PyAny>, text: Option<bool>) -> PyResult<Py<PyAny>> {
        many::publish(&*self.running()?, items, text)
    }

    /// The sessions that are open.
    #[getter]
    fn sessions(&self, py: Python<'_>) -> PyResult<Vec<Py<PySession>>> {
        let engine = self.running()?;
        let sessions = py.detach(|| engine.sessions());
        sessions.iter().map(|session| self.known(py, &engine, session)).collect()
    }

    /// The one with this number; `None`: it is not open.
    fn session(&self, py: Python<'_>, number: u64) -> PyResult<Option<Py<PySession>>> {
        let engine = self.running()?;
        engine.session(number).map(|session| self.known(py, &engine, &session)).transpose()
    }

    /// How many sessions subscribe to a topic.
    fn subscribers(&self, topic: &str) -> PyResult<usize> {
        Ok(self.running()?.subscribers(&super::session::topic(topic)?))
    }

    /// Whether there is room for more: of everybody, or of who subscribes to a topic.
    #[pyo3(signature = (topic = None))]
    fn has_capacity(&self, py: Python<'_>, topic: Option<&str>) -> PyResult<bool> {
        let topic = topic.map(super::session::topic).transpose()?;
        self.running()?.has_capacity(topic.as_ref()).map_err(|refused| refused_by_engine(py, refused.into()))
    }

    /// Waits until there is; false: not in time.
    #[pyo3(signature = (topic = None, timeout = None))]
    fn wait_for_capacity(&self, py: Python<'_>, topic: Option<&str>, timeout: Option<f64>) -> PyResult<bool> {
        let engine = self.running()?;
        let topic = topic.map(super::session::topic).transpose()?;
        capacity::wait(py, timeout, refused_by_engine, |deadline| {
            engine.wait_for_capacity(topic.as_ref(), Some(deadline))
        })
    }

    /// Rings whenever there may be room again, until it is dropped.
    fn _room_bell(&self) -> PyResult<RoomBell> {
        let engine = self.running()?;
        RoomBell::new(|wake| engine.watch_room(wake))
    }

    /// The same for all whom the same bell tells.
    fn _room_key(&self) -> PyResult<usize> {
        Ok(self.running()?.room_key())
    }

    /// Accepts nobody any more, and closes all sessions with this code.
    #[pyo3(signature = (code = 1001, reason = ""))]
    fn _drain(&self, py: Python<'_>, code: i64, reason: &str) -> PyResult<()> {
        // 0 is no more of a close code than what does not fit.
        let code = u16::try_from(code).unwrap_or(0);
        if !CloseCode(code).is_sendable() {
            let error = wirespeed_driver::protocol::SendError::InvalidCloseCode(code);
            return Err(errors::refused(py, error));
        }
        self.running()?.drain(CloseCode(code), reason);
        Ok(())
    }

    /// Accepts no more clients, closes all sessions with this code, and waits until that is done, or so long.
    fn _leave(&self, py: Python<'_>, code: u16, seconds: f64) -> PyResult<()> {
        let Some(engine) = self.engine.get().filter(|engine| !engine.is_forked()) else { return Ok(()) };
        engine.drain(CloseCode(code), "");
        let deadline = Instant::now() + Duration::from_secs_f64(seconds);
        // As long as it takes clients to answer: some round trips.
        while !engine.is_over() && Instant::now() < deadline {
            py.detach(|| std::thread::sleep(Duration::from_millis(1)));
            py.check_signals()?;
        }
        Ok(())
    }

    /// Ends everything now. Again, or before the start: nothing.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let stopped = py.detach(|| {
            if self.engine.get().is_none() {
                drop(locked(&self.starting)); // while it starts, this waits
            }
            self.engine.get().map_or(Ok(()), |engine| engine.stop())
        });
        stopped.map_err(|error| errors::io_error(&error))
    }

    /// What is answered over HTTP, and who takes over; after [`Self::_configure`].
    fn _operate(&self, settings: operations::Settings) -> PyResult<()> {
        settings.apply(&mut locked(&self.config))
    }

    /// Where the TLS configuration is from.
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

    /// Replaces the TLS configuration, and where it is from.
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
        py.detach(|| engine.set_tls(config, Some(&renewal))); // the files are read
        Ok(())
    }

    /// Where the metrics are.
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
        let code = u16::try_from(code).unwrap_or(0); // as above
        NativeDraining::begin(&*self.running()?, timeout, batch, notice, code, reason, py)
    }

    /// Where it is told that another engine has taken over; `None`: none can.
    fn _handed_over(&self) -> PyResult<Option<NativeHandoff>> {
        Ok(self.running()?.handed_over().map(|given| NativeHandoff(Mutex::new(given))))
    }

    fn _logs(&self) -> PyResult<NativeLogs> {
        Ok(NativeLogs(self.running()?.shared_logs()))
    }

    /// Figures as text, for Prometheus.
    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        Ok(operations::metrics(py, &*self.running()?))
    }

    /// Figures by name.
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

    /// What is known of those who are over is forgotten here, and not when the event is reached: that may be never.
    fn batch(&self, py: Python<'_>, engine: Arc<Engine>, batches: Vec<Batch>) -> PyResult<PyBatch> {
        let mut parts = Vec::with_capacity(batches.len());
        for batch in batches {
            let sessions = batch.sessions().iter().map(|session| self.object(py, &engine, session));
            let sessions = sessions.collect::<PyResult<Vec<_>>>()?;
            for over in batch.ended() {
                let Some(session) = batch.sessions().get(over) else { continue };
                // First: who finds it not told puts the object in before it is taken out.
                let _ = session.attachment().set(Box::new(Told)); // it is told once
                let kept = locked(&self.sessions).remove(&session.id());
                drop(kept);
            }
            parts.push(Part { batch, sessions, refused: Mutex::default() });
        }
        let codecs = locked(&self.codecs).as_ref().map(|codecs| codecs.clone_ref(py));
        Ok(PyBatch::new(parts, codecs, engine))
    }

    /// The object of a session that somebody has looked for.
    fn known(&self, py: Python<'_>, engine: &Arc<Engine>, session: &Session) -> PyResult<Py<PySession>> {
        if session.route().role == Role::Events {
            return self.object(py, engine, session);
        }
        // Its end is not told: nothing is to be kept of it.
        Py::new(py, PySession { session: session.clone(), engine: Arc::downgrade(engine) })
    }

    /// The object of a session: the same for as long as the session is open.
    ///
    /// No object is made under the lock: any may have garbage collected, which runs any code, here and in threads
    /// that then want the lock.
    fn object(&self, py: Python<'_>, engine: &Arc<Engine>, session: &Session) -> PyResult<Py<PySession>> {
        if let Some(object) = locked(&self.sessions).get(&session.id()) {
            return Ok(object.clone_ref(py));
        }
        let object = Py::new(py, PySession { session: session.clone(), engine: Arc::downgrade(engine) })?;
        let mut sessions = locked(&self.sessions);
        // Of several threads, one may have been told of its end before another of the rest.
        if session.attachment().get().is_some() {
            return Ok(object);
        }
        Ok(sessions.entry(session.id()).or_insert(object).clone_ref(py))
    }
}

/// The end of the session with this attachment has been told.
struct Told;
