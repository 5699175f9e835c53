//! The broker of an engine as configured from Python, and `wirespeed.engine.Publisher`.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyUnicodeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use wirespeed_brokers::{Address, BrokerConfig, Policy, Publisher, Refusal};
use wirespeed_engine::broker::{Message, Notice, State, Status};

use super::arguments::{topic, with_message};
use super::capacity::SIGNAL_INTERVAL;
use super::logs::NativeLogs;
use super::refusals::refused;
use super::wakers::CapacityWaker;
use crate::errors;

/// For counts below this, result objects are cached.
const CACHED_COUNTS: usize = 1024;

/// Returns the configuration for the broker arguments of an engine.
pub(super) fn broker_config(url: &str, prefix: &str, limit: usize, policy: &str) -> PyResult<BrokerConfig> {
    let mut broker_config =
        BrokerConfig::new(Address::parse(url).map_err(|error| PyValueError::new_err(format!("broker: {error}")))?);
    broker_config
        .set_prefix(prefix)
        .map_err(|error| PyValueError::new_err(format!("broker_prefix {prefix:?}: {error}")))?;
    broker_config.limit = limit;
    broker_config.policy = match policy {
        "drop_newest" => Policy::DropNewest,
        "drop_oldest" => Policy::DropOldest,
        "raise" => Policy::Raise,
        other => {
            return Err(PyValueError::new_err(format!(
                "broker_policy must be \"drop_newest\", \"drop_oldest\" or \"raise\", not {other:?}"
            )));
        }
    };
    Ok(broker_config)
}

/// Returns a status by the field names of `wirespeed.engine.BrokerStatus`.
pub(super) fn status<'py>(py: Python<'py>, status: &Status) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("state", status.state.name())?;
    dict.set_item("server", &status.server)?;
    dict.set_item("reason", &status.reason)?;
    for (name, value) in numbers(status) {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}

/// Adds the status of the broker to the statistics of an engine.
pub(super) fn count(stats: &Bound<'_, PyDict>, status: &Status) -> PyResult<()> {
    stats.set_item("broker_connected", u64::from(status.state == State::Connected))?;
    for (name, value) in numbers(status) {
        stats.set_item(format!("broker_{name}"), value)?;
    }
    Ok(())
}

fn numbers(status: &Status) -> impl Iterator<Item = (&'static str, u64)> {
    status.gauges().into_iter().chain(status.counters()).map(|(name, _, value)| (name, value))
}

/// A notice as a tuple: its name, its number of messages, and its text.
pub(super) type NoticeTuple = (&'static str, u64, String);

pub(super) fn notice_tuple(notice: &Notice) -> NoticeTuple {
    match notice {
        Notice::Connected => ("connected", 0, String::new()),
        Notice::Disconnected { reason } => ("disconnected", 0, reason.clone()),
        Notice::Lost(count) => ("lost", *count, String::new()),
        Notice::Refused(count) => ("refused", *count, String::new()),
        Notice::Dropped(count) => ("dropped", *count, String::new()),
        Notice::Unconfirmed(count) => ("unconfirmed", *count, String::new()),
        Notice::Unsupported(pattern) => ("unsupported", 0, pattern.to_string()),
        Notice::Denied { pattern, reason } => ("denied", 0, format!("{pattern}: {reason}")),
        _ => ("unknown", 0, String::new()),
    }
}

/// Returns the result of a publish call: the number of sessions, and whether other engines get the message. Small
/// counts are cached.
pub(super) fn published(py: Python<'_>, count: usize, forwarded: bool) -> PyResult<Py<PyAny>> {
    static LOCAL: PyOnceLock<(Py<PyAny>, Vec<Py<PyAny>>)> = PyOnceLock::new();
    static FORWARDED: PyOnceLock<(Py<PyAny>, Vec<Py<PyAny>>)> = PyOnceLock::new();
    let (cell, name) = if forwarded { (&FORWARDED, "Forwarded") } else { (&LOCAL, "Published") };
    let (class, known) = cell.get_or_try_init(py, || {
        let class = py.import("wirespeed.engine._broker")?.getattr(name)?;
        let known =
            (0..CACHED_COUNTS).map(|count| class.call1((count,)).map(Bound::unbind)).collect::<PyResult<_>>()?;
        Ok::<_, PyErr>((class.unbind(), known))
    })?;
    match known.get(count) {
        Some(object) => Ok(object.clone_ref(py)),
        None => class.call1(py, (count,)),
    }
}

/// Base of `wirespeed.engine.Publisher`. Only `_wait_for_room`, `_flush` and `_close` wait.
#[pyclass(frozen, subclass, module = "wirespeed._native")]
pub(crate) struct NativePublisher {
    publisher: Mutex<Option<std::sync::Arc<Publisher>>>,
    /// The process in which the publisher's thread runs.
    process: u32,
}

impl NativePublisher {
    fn publisher(&self) -> PyResult<std::sync::Arc<Publisher>> {
        if self.process != std::process::id() {
            return Err(PyRuntimeError::new_err(
                "this is a copy in a child process: the publisher's thread is in the process that has made it",
            ));
        }
        let publisher = self.publisher.lock().unwrap_or_else(PoisonError::into_inner).clone();
        publisher.ok_or_else(|| PyRuntimeError::new_err("Publisher.__init__ was not called"))
    }
}

fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(seconds) = timeout else { return Ok(None) };
    let timeout = Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err("timeout must be a number of seconds from 0 up"))?;
    Ok(Instant::now().checked_add(timeout))
}

/// Waits in slices, between which signals are handled. Returns `None` after the deadline.
fn wait<T: Send>(
    py: Python<'_>,
    deadline: Option<Instant>,
    wait: impl Fn(Instant) -> Option<T> + Send + Sync,
) -> PyResult<Option<T>> {
    loop {
        let slice = Instant::now() + SIGNAL_INTERVAL;
        let slice = deadline.map_or(slice, |deadline| deadline.min(slice));
        if let Some(done) = py.detach(|| wait(slice)) {
            return Ok(Some(done));
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Ok(None);
        }
        py.check_signals()?;
    }
}

#[pymethods]
impl NativePublisher {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self { publisher: Mutex::new(None), process: std::process::id() }
    }

    fn _open(&self, url: &str, prefix: &str, limit: usize) -> PyResult<()> {
        let publisher =
            Publisher::new(&broker_config(url, prefix, limit, "raise")?).map_err(|error| errors::io_error(&error))?;
        *self.publisher.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::sync::Arc::new(publisher));
        Ok(())
    }

    /// Queues a message for a topic, or for all sessions without one. Returns false if the queue is full.
    #[pyo3(signature = (to, message, text, key))]
    fn _publish(
        &self,
        to: Option<&str>,
        message: &Bound<'_, PyAny>,
        text: Option<bool>,
        key: Option<&str>,
    ) -> PyResult<bool> {
        let publisher = self.publisher()?;
        let to = to.map(topic).transpose()?;
        let mut result = Ok(());
        with_message(message, text, |kind, payload| {
            result = publisher.publish(to.as_ref(), Message { kind, payload, key });
            Ok(())
        })?
        .map_err(|refusal| refused(message.py(), refusal))?;
        match result {
            Ok(()) => Ok(true),
            Err(Refusal::Full) => Ok(false),
            Err(Refusal::Closed) => Err(PyRuntimeError::new_err("the publisher is closed")),
            Err(Refusal::Reserved) => {
                Err(PyValueError::new_err("topics with a segment \"_wirespeed\" are for brokers themselves"))
            }
            Err(Refusal::NotText) => Err(PyUnicodeError::new_err("a message sent as text must be UTF-8")),
        }
    }

    /// Waits until a message of this size fits; false: not in time.
    fn _wait_for_room(&self, py: Python<'_>, size: usize, timeout: Option<f64>) -> PyResult<bool> {
        let publisher = self.publisher()?;
        let deadline = deadline(timeout)?;
        Ok(wait(py, deadline, |slice| publisher.wait_for_capacity(size, slice).then_some(()))?.is_some())
    }

    /// Returns the number of messages published so far.
    fn _published(&self) -> PyResult<u64> {
        Ok(self.publisher()?.published())
    }

    /// Returns how many published messages the broker may not have.
    fn _missing(&self) -> PyResult<u64> {
        Ok(self.publisher()?.missing())
    }

    /// Waits until the first `published` messages are settled, and returns [`Self::_missing`]. `None`: not in time.
    #[pyo3(signature = (published, timeout))]
    fn _flush(&self, py: Python<'_>, published: u64, timeout: Option<f64>) -> PyResult<Option<u64>> {
        let publisher = self.publisher()?;
        wait(py, deadline(timeout)?, |slice| publisher.flush(published, Some(slice)))
    }

    /// Returns whether a message of this size fits, or the publisher has ended.
    fn _has_room(&self, size: usize) -> PyResult<bool> {
        Ok(self.publisher()?.has_capacity(size))
    }

    /// Returns a waker that fires when the queue has capacity, and when messages are settled.
    fn _capacity_waker(&self) -> PyResult<CapacityWaker> {
        let publisher = self.publisher()?;
        CapacityWaker::new(|wake| publisher.watch(wake))
    }

    /// Returns a key that identifies the publisher among all watched objects.
    fn _capacity_key(&self) -> PyResult<usize> {
        Ok(self.publisher()?.watch_key())
    }

    /// Starts to close; queued messages are not sent.
    fn _end(&self) -> PyResult<()> {
        self.publisher()?.end();
        Ok(())
    }

    /// Returns whether the publisher has ended.
    fn _has_ended(&self) -> PyResult<bool> {
        Ok(self.publisher()?.has_ended())
    }

    /// Closes the publisher; queued messages are not sent.
    fn _close(&self, py: Python<'_>) -> PyResult<()> {
        let publisher = self.publisher()?;
        py.detach(|| {
            publisher.end();
            publisher.close();
        });
        Ok(())
    }

    fn _logs(&self) -> PyResult<NativeLogs> {
        Ok(NativeLogs(std::sync::Arc::clone(self.publisher()?.logs())))
    }

    fn _status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        status(py, &self.publisher()?.status())
    }
}
