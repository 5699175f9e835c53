//! The options of clients and servers: Python passes an object that has them as attributes. Each is read and checked
//! once, and an error names it. `python/wirespeed/_options/table.py` lists them.

use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyFloat, PyInt, PySequence, PyString, PyTuple, PyType};
use wirespeed_driver::blocking::Settings;
use wirespeed_driver::connection::{self, Watermarks};
use wirespeed_driver::protocol::Limits;
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::handshake;
use wirespeed_driver::protocol::handshake::client::{ClientHandshake, ClientRequest};

use crate::errors;

/// Three weeks. A longer timeout means none: system calls accept at most 2^31 ms, and clocks no infinite time.
pub(crate) const LONGEST_TIMEOUT: f64 = 21.0 * 86400.0;

/// Bytes of received messages that a blocking connection keeps: the socket buffers of a connection on common systems.
const QUEUE_BYTES: usize = 4 << 20;

/// Stands for no limit.
const UNLIMITED: usize = 1 << 62;

/// The name of an option, interned.
type Name<'a, 'py> = &'a Bound<'py, PyString>;

/// Reads options from the attributes of a Python object.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a, 'py>(pub(crate) &'a Bound<'py, PyAny>);

fn wrong_type(name: Name<'_, '_>, expected: &str, value: &Bound<'_, PyAny>) -> PyErr {
    match value.get_type().name() {
        Ok(found) => PyTypeError::new_err(format!("{name} must be {expected}, not {found}")),
        Err(error) => error,
    }
}

fn wrong_value(name: Name<'_, '_>, rule: &str) -> PyErr {
    PyValueError::new_err(format!("{name} must {rule}"))
}

impl<'py> Reader<'_, 'py> {
    fn get(self, name: Name<'_, 'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.0.getattr(name)?;
        Ok((!value.is_none()).then_some(value))
    }

    /// Reads a number of seconds; `None` and times of three weeks or more mean no limit.
    pub(crate) fn seconds(self, name: Name<'_, 'py>, zero: bool) -> PyResult<Option<Duration>> {
        let Some(value) = self.get(name)? else { return Ok(None) };
        let seconds = number(&value).ok_or_else(|| wrong_type(name, "a number of seconds or None", &value))??;
        if seconds == 0.0 && !zero {
            return Err(wrong_value(name, "not be 0; use None to switch it off"));
        }
        duration(name.to_str()?, Some(seconds))
    }

    /// Reads a limit from `least` to 2^`bits` - 1, or `None`.
    pub(crate) fn count(self, name: Name<'_, 'py>, least: usize, bits: u32) -> PyResult<Option<usize>> {
        self.get(name)?.map(|value| limit(name, &value, least, bits)).transpose()
    }

    /// Reads a limit that must not be `None`.
    fn required_count(self, name: Name<'_, 'py>, least: usize, bits: u32) -> PyResult<usize> {
        let read = self.count(name, least, bits)?;
        read.ok_or_else(|| PyTypeError::new_err(format!("{name} must be an int, not None")))
    }

    /// Reads a limit, or a pair of limits; the second one of a single limit is `None`.
    fn pair(self, name: Name<'_, 'py>) -> PyResult<(Option<usize>, Option<usize>)> {
        let Some(value) = self.get(name)? else { return Ok((None, None)) };
        let one = |value: Bound<'py, PyAny>| -> PyResult<Option<usize>> {
            (!value.is_none()).then(|| limit(name, &value, 0, 62)).transpose()
        };
        match value.cast::<PyTuple>() {
            Ok(pair) if pair.len() == 2 => Ok((one(pair.get_item(0)?)?, one(pair.get_item(1)?)?)),
            _ => Ok((one(value)?, None)),
        }
    }

    /// Reads a high and a low mark; the low mark is a quarter of the high one by default.
    fn marks(self, name: Name<'_, 'py>) -> PyResult<Option<Watermarks>> {
        let (high, low) = self.pair(name)?;
        match (high, low) {
            (Some(high), Some(low)) if low > high => {
                Err(wrong_value(name, &format!("be a pair of high and low marks; {low} is above {high}")))
            }
            (Some(high), low) => Ok(Some(Watermarks::new(high, low.unwrap_or(high / 4)))),
            (None, _) => Ok(None),
        }
    }

    pub(crate) fn text(self, name: Name<'_, 'py>) -> PyResult<Option<String>> {
        let Some(value) = self.get(name)? else { return Ok(None) };
        match value.cast::<PyString>() {
            Ok(text) => Ok(Some(text.to_str()?.to_owned())),
            Err(_) => Err(wrong_type(name, "a str or None", &value)),
        }
    }

    fn check_text(self, name: Name<'_, 'py>) -> PyResult<()> {
        match self.get(name)? {
            Some(value) if !value.is_instance_of::<PyString>() => Err(wrong_type(name, "a str or None", &value)),
            _ => Ok(()),
        }
    }

    pub(crate) fn flag(self, name: Name<'_, 'py>) -> PyResult<bool> {
        let value = self.0.getattr(name)?;
        let flag = value.cast::<PyBool>().map_err(|_| wrong_type(name, "a bool", &value))?;
        Ok(flag.is_true())
    }

    /// Reads a list of subprotocols. RFC 6455, section 4.1: they are tokens of RFC 9110.
    pub(crate) fn subprotocols(self) -> PyResult<Vec<String>> {
        let name = intern!(self.0.py(), "subprotocols");
        let Some(value) = self.get(name)? else { return Ok(Vec::new()) };
        let listed = !value.is_instance_of::<PyString>() && !value.is_instance_of::<pyo3::types::PyBytes>();
        let listed = listed.then(|| value.cast::<PySequence>().ok()).flatten();
        let mut subprotocols = Vec::new();
        for item in listed.ok_or_else(|| wrong_type(name, "a list of str", &value))?.try_iter()? {
            let item = item?;
            let Ok(text) = item.cast::<PyString>() else {
                let found = item.get_type().name()?;
                return Err(PyTypeError::new_err(format!("{name} must be a list of str, it contains a {found}")));
            };
            let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+.^_`|~-".contains(&byte);
            match text.to_str() {
                Ok(text) if !text.is_empty() && text.bytes().all(is_token) => subprotocols.push(text.to_owned()),
                _ => {
                    let shown = item.repr()?;
                    return Err(wrong_value(name, &format!("be tokens, without spaces or commas; {shown} is not")));
                }
            }
        }
        Ok(subprotocols)
    }

    /// Reads the settings of permessage-deflate; `"deflate"` stands for `default`.
    fn compression(self, default: negotiate::Config) -> PyResult<Option<negotiate::Config>> {
        static DEFLATE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let py = self.0.py();
        let name = intern!(py, "compression");
        let expected = "\"deflate\", a Deflate or None";
        let Some(value) = self.get(name)? else { return Ok(None) };
        if let Ok(text) = value.cast::<PyString>() {
            if text == "deflate" {
                return Ok(Some(default));
            }
            return Err(wrong_value(name, &format!("be {expected}, not {}", value.repr()?)));
        }
        if !value.is_instance(DEFLATE.import(py, "wirespeed._options.compression", "Deflate")?)? {
            return Err(wrong_type(name, expected, &value));
        }
        Ok(Some(value.extract::<DeflateOptions>()?.into()))
    }
}

/// Converts a number of seconds; `None` means no limit.
pub(crate) fn duration(name: &str, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    match seconds {
        Some(seconds) if seconds.is_nan() || seconds < 0.0 => {
            Err(PyValueError::new_err(format!("{name} must not be negative; use None to switch it off")))
        }
        seconds => Ok(seconds.filter(|seconds| *seconds < LONGEST_TIMEOUT).map(Duration::from_secs_f64)),
    }
}

/// Returns an int or a float, but not a bool, as a float; `None` for other types.
fn number(value: &Bound<'_, PyAny>) -> Option<PyResult<f64>> {
    if value.is_instance_of::<PyBool>() || !(value.is_instance_of::<PyFloat>() || value.is_instance_of::<PyInt>()) {
        return None;
    }
    // An int may be larger than every float.
    Some(value.extract::<f64>().or_else(|error| {
        if !error.is_instance_of::<PyOverflowError>(value.py()) {
            return Err(error);
        }
        Ok(if value.lt(0)? { -1.0 } else { f64::INFINITY })
    }))
}

fn limit(name: Name<'_, '_>, value: &Bound<'_, PyAny>, least: usize, bits: u32) -> PyResult<usize> {
    if !value.is_instance_of::<PyInt>() || value.is_instance_of::<PyBool>() {
        return Err(wrong_type(name, "an int or None", value));
    }
    match value.extract::<usize>() {
        Ok(limit) if limit >= least && limit >> bits == 0 => Ok(limit),
        _ => Err(wrong_value(name, &format!("be at least {least} and less than 2**{bits}; None is no limit"))),
    }
}

fn truth(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value.is_truthy()
}

/// A `wirespeed.Deflate`, which has checked its values.
#[derive(FromPyObject)]
struct DeflateOptions {
    level: u8,
    memory_level: u8,
    threshold: usize,
    #[pyo3(from_py_with = truth)]
    server_no_context_takeover: bool,
    #[pyo3(from_py_with = truth)]
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

/// The options of a connection on an event loop that blocking connections do not have.
#[derive(Clone, Copy)]
pub(crate) struct AsyncOptions {
    pub(crate) limits: connection::Limits,
    pub(crate) zero_copy: bool,
}

impl AsyncOptions {
    fn read(options: Reader<'_, '_>) -> PyResult<Self> {
        let py = options.0.py();
        let messages = options.marks(intern!(py, "max_queue"))?;
        let bytes = options.count(intern!(py, "max_queue_bytes"), 0, 62)?;
        // Reading stops above both high marks, so an unused limit has marks at 0.
        let (messages, bytes) = match (messages, bytes) {
            (None, None) => (Watermarks::at(UNLIMITED), Watermarks::at(UNLIMITED)),
            (messages, bytes) => (
                messages.unwrap_or(Watermarks::at(0)),
                bytes.map_or(Watermarks::at(0), |bytes| Watermarks::new(bytes, bytes / 4)),
            ),
        };
        let write = options.marks(intern!(py, "write_limit"))?;
        let zero_copy = options.flag(intern!(py, "zero_copy"))?;
        if zero_copy && options.0.getattr(intern!(py, "listener"))?.is_none() {
            return Err(PyValueError::new_err("zero_copy needs a listener: what recv() returns must stay valid"));
        }
        Ok(Self {
            limits: connection::Limits {
                messages,
                bytes,
                write: write.ok_or_else(|| PyTypeError::new_err("write_limit must be an int, not None"))?,
                coalesce: options.flag(intern!(py, "coalesce"))?,
                yield_after: options.required_count(intern!(py, "yield_after"), 1, 32)?,
            },
            zero_copy,
        })
    }
}

/// The options of both ends that the connection keeps.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionOptions {
    pub(crate) limits: Limits,
    pub(crate) settings: Settings,
    pub(crate) ping_interval: Option<Duration>,
    pub(crate) ping_timeout: Option<Duration>,
    /// `None` for a blocking connection.
    pub(crate) event_loop: Option<AsyncOptions>,
}

impl ConnectionOptions {
    fn read(options: Reader<'_, '_>, event_loop: bool) -> PyResult<Self> {
        let py = options.0.py();
        let (message_size, fragment_size) = options.pair(intern!(py, "max_size"))?;
        let fragments = options.count(intern!(py, "max_fragments"), 1, 32)?;
        let (queue, _) = options.pair(intern!(py, "max_queue"))?;
        Ok(Self {
            limits: Limits {
                message_size,
                fragment_size,
                fragments: fragments.and_then(|fragments| u32::try_from(fragments).ok()),
            },
            ping_interval: options.seconds(intern!(py, "ping_interval"), false)?,
            ping_timeout: options.seconds(intern!(py, "ping_timeout"), false)?,
            settings: Settings {
                close_timeout: options.seconds(intern!(py, "close_timeout"), true)?,
                queue_messages: queue.unwrap_or(UNLIMITED),
                queue_bytes: queue.map_or(UNLIMITED, |_| QUEUE_BYTES),
            },
            event_loop: event_loop.then(|| AsyncOptions::read(options)).transpose()?,
        })
    }
}

/// Raises an exception if a request is invalid.
pub(crate) fn check_request(py: Python<'_>, request: &ClientRequest) -> PyResult<()> {
    let made = ClientHandshake::new(request, [0; 16], handshake::Limits::default());
    made.map(drop).map_err(|error| errors::handshake(py, &error))
}

/// The options of a client that do not depend on the URI.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct NativeClientOptions {
    pub(crate) connection: ConnectionOptions,
    /// The request, for a host and a target that are still to be set.
    pub(crate) request: ClientRequest,
    open_timeout: Option<Duration>,
    happy_eyeballs_delay: Option<Duration>,
}

#[pymethods]
impl NativeClientOptions {
    #[getter]
    fn open_timeout(&self) -> Option<f64> {
        self.open_timeout.as_ref().map(Duration::as_secs_f64)
    }

    #[getter]
    fn happy_eyeballs_delay(&self) -> Option<f64> {
        self.happy_eyeballs_delay.as_ref().map(Duration::as_secs_f64)
    }

    #[new]
    #[pyo3(signature = (options, event_loop))]
    fn new(options: &Bound<'_, PyAny>, event_loop: bool) -> PyResult<Self> {
        let (py, options) = (options.py(), Reader(options));
        options.check_text(intern!(py, "server_hostname"))?;
        options.check_text(intern!(py, "host"))?;
        options.count(intern!(py, "port"), 0, 16)?;
        options.count(intern!(py, "family"), 0, 31)?;
        options.check_text(intern!(py, "proxy_server_hostname"))?;
        let request = ClientRequest {
            origin: options.text(intern!(py, "origin"))?,
            subprotocols: options.subprotocols()?,
            deflate: options.compression(negotiate::Config::client())?,
            user_agent: options.text(intern!(py, "user_agent_header"))?,
            ..ClientRequest::new("localhost", "/")
        };
        check_request(py, &request)?;
        Ok(Self {
            request,
            happy_eyeballs_delay: options.seconds(intern!(py, "happy_eyeballs_delay"), true)?,
            open_timeout: options.seconds(intern!(py, "open_timeout"), true)?,
            connection: ConnectionOptions::read(options, event_loop)?,
        })
    }
}

/// The options that all connections of a server share.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct NativeServerOptions {
    pub(crate) connection: ConnectionOptions,
    pub(crate) subprotocols: Vec<String>,
    pub(crate) deflate: Option<negotiate::Config>,
    open_timeout: Option<Duration>,
}

#[pymethods]
impl NativeServerOptions {
    #[getter]
    fn open_timeout(&self) -> Option<f64> {
        self.open_timeout.as_ref().map(Duration::as_secs_f64)
    }

    #[new]
    #[pyo3(signature = (options, event_loop))]
    fn new(options: &Bound<'_, PyAny>, event_loop: bool) -> PyResult<Self> {
        let (py, options) = (options.py(), Reader(options));
        options.check_text(intern!(py, "server_header"))?;
        options.required_count(intern!(py, "backlog"), 0, 31)?;
        options.required_count(intern!(py, "max_pending"), 1, 62)?;
        Ok(Self {
            subprotocols: options.subprotocols()?,
            deflate: options.compression(negotiate::Config::server())?,
            open_timeout: options.seconds(intern!(py, "open_timeout"), true)?,
            connection: ConnectionOptions::read(options, event_loop)?,
        })
    }
}
