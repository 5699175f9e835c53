//! Operation of an engine from Python: statistics, draining, handoff and TLS renewal.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use wirespeed_driver::protocol::CloseCode;
use wirespeed_driver::tls::{self, server};
use wirespeed_engine::config::Renewal;
use wirespeed_engine::metrics::{BOUNDS, Distribution, WorkerFigures, to_text};
use wirespeed_engine::{Config, Drain, Draining, Engine, Http, Place};

use super::arguments::seconds;
use crate::errors;
use crate::tls::versions;

/// A host and a port.
pub(crate) type Address = (String, u16);

/// HTTP endpoints, draining and handoff, as a dict from Python.
#[derive(FromPyObject)]
pub(crate) struct Settings {
    #[pyo3(item)]
    health: Option<String>,
    #[pyo3(item)]
    ready: Option<String>,
    #[pyo3(item)]
    metrics: Option<Address>,
    #[pyo3(item)]
    metrics_path: Option<String>,
    #[pyo3(item)]
    metrics_token: Option<String>,
    #[pyo3(item)]
    page: Option<String>,
    #[pyo3(item)]
    ready_without_broker: bool,
    #[pyo3(item)]
    stuck_after: f64,
    #[pyo3(item)]
    handoff: Option<PathBuf>,
    #[pyo3(item)]
    drain_timeout: f64,
    #[pyo3(item)]
    drain_batch: usize,
}

impl Settings {
    pub(crate) fn apply(self, config: &mut Config) -> PyResult<()> {
        let at = self
            .metrics
            .map(|(host, port)| {
                let ip = host.parse().map_err(|_| PyValueError::new_err(format!("metrics: {host:?} is no address")))?;
                Ok::<_, PyErr>(Place::Tcp(SocketAddr::new(ip, port)))
            })
            .transpose()?;
        for (name, path) in [("health", &self.health), ("health", &self.ready), ("metrics_path", &self.metrics_path)] {
            if path.as_ref().is_some_and(|path| !path.starts_with('/')) {
                return Err(PyValueError::new_err(format!("{name}: {path:?} does not begin with a slash")));
            }
        }
        config.http = Http {
            health: self.health,
            ready: self.ready,
            metrics: self.metrics_path,
            metrics_token: self.metrics_token.map(Arc::from),
            at,
            page: self.page.map(Arc::from),
            ready_without_broker: self.ready_without_broker,
            stuck_after: seconds("stuck_after", Some(self.stuck_after))?.unwrap_or_default(),
        };
        config.handoff = self.handoff;
        config.drain = Drain {
            timeout: seconds("drain_timeout", Some(self.drain_timeout))?.unwrap_or_default(),
            batch: self.drain_batch,
            ..Drain::default()
        };
        Ok(())
    }
}

/// One part of a TLS configuration: the path of its file, if any, and its initial content.
pub(crate) type Source = (Option<PathBuf>, Vec<u8>);

fn read((path, pem): &Source) -> Result<Vec<u8>, String> {
    match path {
        None => Ok(pem.clone()),
        Some(path) => std::fs::read(path).map_err(|error| format!("{}: {error}", path.display())),
    }
}

/// Returns how to reload a TLS configuration from its files.
pub(crate) fn renewal(
    certificate: Source,
    key: Source,
    client_ca: Vec<Source>,
    alpn: Vec<Vec<u8>>,
    minimum: Option<&str>,
    maximum: Option<&str>,
) -> PyResult<Renewal> {
    let versions = versions(minimum, maximum)?;
    let files = [&certificate, &key].into_iter().chain(&client_ca).filter_map(|(path, _)| path.clone()).collect();
    let load = move || {
        let options = server::Options {
            certificate: read(&certificate)?,
            key: read(&key)?,
            client_ca: client_ca.iter().map(read).collect::<Result<_, _>>()?,
            alpn: alpn.clone(),
            versions: versions.clone(),
        };
        options.build().map_err(|error| {
            let at_fault = match &error {
                tls::Error::Configuration { argument: "cert", .. } => &certificate.0,
                tls::Error::Configuration { argument: "key", .. } => &key.0,
                _ => &None,
            };
            at_fault.as_ref().map_or_else(|| error.to_string(), |path| format!("{}: {error}", path.display()))
        })
    };
    Ok(Renewal { files, load: Arc::new(load) })
}

// ---- statistics ----

fn durations<'py>(py: Python<'py>, of: &Distribution) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("count", of.count())?;
    dict.set_item("seconds", of.seconds)?;
    let longest = BOUNDS.last().map_or(0.0, |bound| *bound as f64 / 1e6);
    for (name, share) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
        let bound = of.quantile(share);
        dict.set_item(name, if bound == Duration::MAX { longest } else { bound.as_secs_f64() })?;
    }
    let bounds = BOUNDS.iter().map(|bound| Some(*bound as f64 / 1e6)).chain([None]);
    dict.set_item("buckets", bounds.zip(of.counts).collect::<Vec<_>>())?;
    Ok(dict)
}

fn set_figures(dict: &Bound<'_, PyDict>, of: &WorkerFigures) -> PyResult<()> {
    for (name, value) in [
        ("connections", of.connections),
        ("sessions", of.sessions),
        ("sessions_opened", of.sessions_opened),
        ("handshakes_failed", of.failures.iter().sum()),
        ("messages_received", of.messages_received),
        ("bytes_received", of.bytes_received),
        ("messages_sent", of.messages_sent),
        ("bytes_sent", of.bytes_sent),
        ("messages_dropped", of.dropped.iter().sum()),
        ("outbox_bytes", of.outbox_bytes),
        ("mailbox_bytes", of.mailbox_bytes),
        ("events", of.events),
        ("messages_limited", of.limited),
        ("messages_denied", of.denied),
        ("reads_delayed", of.delayed),
        ("panics", of.panics),
    ] {
        dict.set_item(name, value)?;
    }
    dict.set_item("loop_lag", durations(dict.py(), &of.lag)?)?;
    dict.set_item("publish_latency", durations(dict.py(), &of.latency)?)
}

/// Returns the statistics of an engine by name.
pub(crate) fn stats<'py>(py: Python<'py>, engine: &Engine) -> PyResult<Bound<'py, PyDict>> {
    let figures = py.detach(|| engine.figures());
    let total = figures.total();
    let stats = PyDict::new(py);
    set_figures(&stats, &total)?;
    stats.set_item("messages_invalid", figures.messages_invalid)?;
    let failures = PyDict::new(py);
    for (reason, count) in total.failures_by_reason() {
        failures.set_item(reason.name(), count)?;
    }
    stats.set_item("handshakes_failed_by_reason", failures)?;
    let tokens = PyDict::new(py);
    for (reason, count) in total.tokens_denied_by_reason() {
        tokens.set_item(reason, count)?;
    }
    stats.set_item("tokens_denied_by_reason", tokens)?;
    let refused = PyDict::new(py);
    for (at, count) in figures.operator_tokens_refused {
        refused.set_item(at, count)?;
    }
    stats.set_item("operator_tokens_refused", refused)?;
    let dropped = PyDict::new(py);
    for (policy, count) in total.dropped_by_policy() {
        dropped.set_item(policy, count)?;
    }
    stats.set_item("messages_dropped_by_policy", dropped)?;
    if let Some(broker) = engine.broker() {
        super::broker::count(&stats, &broker.status())?;
    }
    stats.set_item("events_waiting", figures.events_waiting)?;
    stats.set_item("event_bytes_waiting", figures.event_bytes_waiting)?;
    stats.set_item("oldest_event", figures.oldest_event.as_secs_f64())?;
    stats.set_item("key_files_failed", figures.key_files_failed)?;
    stats.set_item("total_outbox_bytes", figures.total_outbox_bytes)?;
    stats.set_item("locks_contended", wirespeed_engine::contended())?;
    let workers = PyList::empty(py);
    for worker in &figures.workers {
        let dict = PyDict::new(py);
        set_figures(&dict, worker)?;
        workers.append(dict)?;
    }
    stats.set_item("workers", workers)?;
    Ok(stats)
}

/// Returns the statistics as text, for Prometheus.
pub(crate) fn metrics(py: Python<'_>, engine: &Engine) -> String {
    py.detach(|| to_text(&engine.figures()))
}

// ---- draining and handoff ----

/// A drain in progress; see [`Draining`].
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct NativeDraining(Mutex<Draining>);

impl NativeDraining {
    pub(crate) fn begin(
        engine: &Engine,
        timeout: f64,
        batch: usize,
        notice: f64,
        code: u16,
        reason: &str,
        py: Python<'_>,
    ) -> PyResult<Self> {
        let refused = |error| Err(errors::refused(py, error));
        if !CloseCode(code).is_sendable() {
            return refused(wirespeed_driver::protocol::SendError::InvalidCloseCode(code));
        }
        // RFC 6455 5.5: a control frame carries at most 125 bytes, of which the code takes 2.
        if reason.len() > 123 {
            return refused(wirespeed_driver::protocol::SendError::ReasonTooLong(reason.len()));
        }
        let how = Drain {
            timeout: seconds("timeout", Some(timeout))?.unwrap_or_default(),
            batch,
            notice: seconds("notice", Some(notice))?.unwrap_or_default(),
            code: CloseCode(code),
            reason: reason.to_owned(),
        };
        Ok(Self(Mutex::new(py.detach(|| engine.begin_drain(how)))))
    }
}

#[pymethods]
impl NativeDraining {
    /// Performs the steps that are due. Returns the seconds until the next one, or `None` at the end.
    fn step(&self, py: Python<'_>) -> Option<f64> {
        py.detach(|| {
            let now = Instant::now();
            let next = self.0.lock().unwrap_or_else(PoisonError::into_inner).step(now);
            next.map(|next| next.saturating_duration_since(now).as_secs_f64())
        })
    }

    /// Returns how many sessions ended by themselves, and how many were cut off.
    #[getter]
    fn drained(&self) -> (u64, u64) {
        let drained = self.0.lock().unwrap_or_else(PoisonError::into_inner).drained();
        (drained.ended, drained.cut)
    }
}

/// Signals a handoff to another engine. A thread that waits for it does not keep the engine alive.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct NativeHandoff(pub(crate) Mutex<Receiver<Instant>>);

#[pymethods]
impl NativeHandoff {
    /// Waits for the handoff, and returns how many seconds the drain may take. `None`: the engine ended without one.
    fn wait(&self, py: Python<'_>) -> Option<f64> {
        py.detach(|| {
            let deadline = self.0.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()?;
            Some(deadline.saturating_duration_since(Instant::now()).as_secs_f64())
        })
    }
}
