//! Maps errors of the crates below to Python exceptions. No other module does.

use std::io;
use std::sync::OnceLock;

use pyo3::exceptions::{
    PyBaseException, PyEOFError, PyMemoryError, PyOSError, PyRuntimeError, PyTimeoutError, PyTypeError,
    PyUnicodeDecodeError, PyValueError,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyTuple};
use wirespeed_driver::blocking;
use wirespeed_driver::endpoint::{Closing, Failure};
use wirespeed_driver::opening;
use wirespeed_driver::protocol::handshake::{HandshakeError, HeaderError};
use wirespeed_driver::protocol::{CloseFrame, Fault, SendError};
use wirespeed_driver::tls;

use crate::headers;

/// Returns a class of `wirespeed.exceptions`.
fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || Ok::<_, PyErr>(py.import("wirespeed.exceptions")?.unbind()))?;
    module.bind(py).getattr(name)
}

/// Creates an exception of the class `name`.
fn exception<'py>(py: Python<'py>, name: &str, arguments: impl pyo3::call::PyCallArgs<'py>) -> PyErr {
    match class(py, name).and_then(|class| class.call1(arguments)) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

fn close<'py>(py: Python<'py>, frame: Option<&CloseFrame>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(frame) = frame else { return Ok(None) };
    // RFC 6455 7.1.5: "If this Close control frame contains no status code, _The WebSocket Connection Close
    // Code_ is considered to be 1005."
    let code = frame.code.map_or(1005, |code| code.0);
    static CLOSE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLOSE.import(py, "wirespeed.close_codes", "Close")?.call1((code, frame.reason.as_str())).map(Some)
}

/// Identifies a connection while it lives: the address of its state.
pub(crate) fn origin<T>(connection: &T) -> usize {
    std::ptr::from_ref(connection).addr()
}

/// The class and arguments of the exceptions of one closed connection, created once they cannot change: callers
/// may run into the exception many times. Refers to no object that could be part of a cycle.
#[derive(Default)]
pub(crate) struct CloseErrorCache(OnceLock<Py<PyTuple>>);

impl CloseErrorCache {
    /// Returns the argument `closing` of [`Self::exception`], or `None` if the cache has its arguments already.
    pub(crate) fn closing_if_empty(&self, closing: impl FnOnce() -> Closing) -> Option<Closing> {
        self.0.get().is_none().then(closing)
    }

    /// Creates `ConnectionClosedOK` or `ConnectionClosedError`, with its cause and the `origin` of its
    /// connection.
    pub(crate) fn exception(
        &self,
        py: Python<'_>,
        closing: Option<Closing>,
        cause: Option<PyErr>,
        origin: usize,
    ) -> PyErr {
        let make = || {
            let arguments = self.arguments(py, closing)?;
            // Does the same as the constructor of the class, which takes three calls in Python for it.
            static NEW: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
            let new = NEW.get_or_try_init(py, || {
                PyResult::Ok(py.get_type::<PyBaseException>().getattr(intern!(py, "__new__"))?.unbind())
            })?;
            let exception = new.bind(py).call1(arguments)?;
            exception.setattr(intern!(py, "_origin"), origin)?;
            let error = PyErr::from_value(exception);
            error.set_cause(py, cause);
            PyResult::Ok(error)
        };
        make().unwrap_or_else(|failed| failed)
    }

    /// Returns the arguments of `BaseException.__new__`: the class, and the arguments of its constructor.
    fn arguments<'py>(&self, py: Python<'py>, closing: Option<Closing>) -> PyResult<Bound<'py, PyTuple>> {
        if let Some(arguments) = self.0.get() {
            return Ok(arguments.bind(py).clone());
        }
        // `closing` is missing only if the cache was filled, and it stays filled.
        let closing = closing.unwrap_or_default();
        let Closing { received, sent, received_then_sent } = &closing;
        let name = if closing.is_clean() { "ConnectionClosedOK" } else { "ConnectionClosedError" };
        let arguments =
            (class(py, name)?, close(py, received.as_ref())?, close(py, sent.as_ref())?, *received_then_sent)
                .into_pyobject(py)?;
        if received.is_some() && sent.is_some() {
            let _ = self.0.set(arguments.clone().unbind()); // another thread may have set it
        }
        Ok(arguments)
    }
}

/// Creates the cause of a `ConnectionClosedError`: the reason for which the connection failed.
pub(crate) fn failure(py: Python<'_>, failure: &Failure) -> Option<PyErr> {
    match failure {
        Failure::Fault(fault) => Some(self::fault(py, fault)),
        Failure::Io(error) => Some(io_error(error)),
        Failure::Tls(error) => Some(tls_ref(py, error)),
        Failure::Eof => Some(PyEOFError::new_err(failure.to_string())),
        Failure::KeepaliveTimeout | Failure::CloseTimeout => Some(PyTimeoutError::new_err(failure.to_string())),
        Failure::Forked | Failure::ShuttingDown | Failure::Defect => Some(PyRuntimeError::new_err(failure.to_string())),
        Failure::Refused | Failure::Aborted => None,
    }
}

/// Creates the exception for a panic inside a call, where PyO3 does not create one.
pub(crate) fn panicked() -> PyErr {
    PyRuntimeError::new_err("internal error: a panic, see standard error")
}

fn fault(py: Python<'_>, fault: &Fault) -> PyErr {
    match fault {
        Fault::MessageTooBig { size, limit } | Fault::FragmentTooBig { size, limit } => {
            exception(py, "PayloadTooBig", (*size, *limit))
        }
        Fault::TooManyFragments { limit } => exception(py, "TooManyFragments", (*limit,)),
        Fault::OutOfMemory => PyMemoryError::new_err(fault.to_string()),
        fault => exception(py, "ProtocolError", (fault.to_string(),)),
    }
}

/// Creates an `OSError` of the right subclass.
pub(crate) fn io_error(error: &io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(code) => PyOSError::new_err((code, system_text(error))),
        None => io::Error::new(error.kind(), error.to_string()).into(),
    }
}

/// Returns the text of the operating system, without the number that Rust appends.
fn system_text(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Creates the exception for a TLS failure, of the classes that users of `ssl` catch:
/// `ssl.SSLCertVerificationError` or `ssl.SSLError`.
pub(crate) fn tls_error(py: Python<'_>, error: tls::Error) -> PyErr {
    if let tls::Error::Other(other) = error {
        return match other.downcast::<PyErr>() {
            Ok(error) => *error,
            Err(other) => PyRuntimeError::new_err(other.to_string()),
        };
    }
    tls_ref(py, &error)
}

fn tls_ref(py: Python<'_>, error: &tls::Error) -> PyErr {
    let name = match error {
        tls::Error::Configuration { .. } => return PyValueError::new_err(error.to_string()),
        tls::Error::Other(other) => {
            return match other.downcast_ref::<PyErr>() {
                Some(error) => error.clone_ref(py),
                None => PyRuntimeError::new_err(other.to_string()),
            };
        }
        tls::Error::Certificate { .. } => "SSLCertVerificationError",
        _ => "SSLError",
    };
    let make = || {
        let exception = py.import("ssl")?.getattr(name)?.call1((1, error.to_string()))?;
        if let tls::Error::Certificate { code, reason } = error {
            exception.setattr("verify_code", *code)?;
            exception.setattr("verify_message", reason)?;
        }
        Ok(exception)
    };
    make().map_or_else(|error| error, PyErr::from_value)
}

/// Creates the exception for a client whose opening failed.
pub(crate) fn opening(py: Python<'_>, error: opening::Error) -> PyErr {
    match error {
        opening::Error::Io(error) => io_error(&error),
        opening::Error::Tls(error) => tls_error(py, error),
        opening::Error::Tunnel(error) => tunnel(py, &error),
        opening::Error::Handshake(error) => handshake(py, &error),
    }
}

/// Creates the exception for a server whose opening failed.
pub(crate) fn server_opening(py: Python<'_>, error: opening::Error) -> PyErr {
    match error {
        opening::Error::Handshake(error) => server_handshake(py, &error),
        error => opening(py, error),
    }
}

/// Creates the exception for a failed opening handshake.
pub(crate) fn handshake(py: Python<'_>, error: &HandshakeError) -> PyErr {
    use HandshakeError as E;
    let text = error.to_string();
    match error {
        E::Rejected(response) => match headers::response(py, response) {
            Ok(response) => exception(py, "InvalidStatus", (response,)),
            Err(error) => error,
        },
        E::UnsupportedHttpVersion { version } => exception(py, "InvalidProtocol", (version.as_str(),)),
        E::StartLineTooLong { .. } => exception(py, "StatusLineTooLong", (text,)),
        E::HeadTooLarge { .. } => exception(py, "HeaderLineTooLong", (text,)),
        E::TooManyHeaders { .. } => exception(py, "TooManyHeaders", (text,)),
        E::TooManyInterimResponses { .. } => exception(py, "SecurityError", (text,)),
        E::ConnectionClosed { .. } => {
            let error = exception(py, "InvalidMessage", ("did not receive a valid HTTP response",));
            error.set_cause(py, Some(pyo3::exceptions::PyEOFError::new_err(text)));
            error
        }
        E::MissingHeader { name } => exception(py, "InvalidHeader", (*name,)),
        E::DuplicateHeader { name } => exception(py, "InvalidHeader", (name.as_str(), "more than one value")),
        E::InvalidHeader { name, value, .. } => exception(py, "InvalidHeaderValue", (*name, value.as_str())),
        E::InvalidUpgrade { name, value } => exception(py, "InvalidUpgrade", (*name, value.as_deref())),
        E::InvalidMethod { method } => exception(py, "InvalidMethod", (method.as_str(),)),
        E::UnsupportedWebSocketVersion { version } => {
            exception(py, "InvalidHeaderValue", ("Sec-WebSocket-Version", version.as_deref()))
        }
        E::UnknownParameter { parameter } => exception(py, "InvalidParameterName", (parameter.as_str(),)),
        E::DuplicateParameter { parameter } => exception(py, "DuplicateParameter", (*parameter,)),
        E::InvalidParameter { parameter, value, .. } => {
            exception(py, "InvalidParameterValue", (*parameter, value.as_deref()))
        }
        E::SubprotocolNotOffered { .. }
        | E::ExtensionNotOffered { .. }
        | E::DuplicateExtension { .. }
        | E::MissingParameter { .. } => exception(py, "NegotiationError", (text,)),
        E::InvalidOutgoingHeader(error) => header_argument(py, error),
        E::RefusedHeader { .. } => PyValueError::new_err(format!("additional_headers: {text}")),
        E::InvalidArgument { argument: "subprotocol", .. } => PyValueError::new_err(format!("subprotocols: {text}")),
        E::InvalidArgument { .. } => PyValueError::new_err(text),
        E::OutOfOrder { .. } => PyRuntimeError::new_err(text),
        _ => exception(py, "InvalidMessage", (text,)),
    }
}

/// Creates the exception for an opening handshake that a server refused.
pub(crate) fn server_handshake(py: Python<'_>, error: &HandshakeError) -> PyErr {
    use HandshakeError as E;
    match error {
        E::StartLineTooLong { .. } => exception(py, "RequestLineTooLong", (error.to_string(),)),
        E::ConnectionClosed { .. } => {
            let closed = exception(py, "InvalidMessage", ("did not receive a valid HTTP request",));
            closed.set_cause(py, Some(pyo3::exceptions::PyEOFError::new_err(error.to_string())));
            closed
        }
        E::RefusedHeader { .. } => PyValueError::new_err(error.to_string()),
        error => handshake(py, error),
    }
}

/// Creates the exception for a proxy that did not open a tunnel.
pub(crate) fn tunnel(py: Python<'_>, error: &HandshakeError) -> PyErr {
    match error {
        HandshakeError::Rejected(response) => match headers::response(py, response) {
            Ok(response) => exception(py, "InvalidProxyStatus", (response,)),
            Err(error) => error,
        },
        HandshakeError::InvalidOutgoingHeader(error) => header_argument(py, error),
        HandshakeError::RefusedHeader { .. } | HandshakeError::InvalidArgument { .. } => {
            PyValueError::new_err(error.to_string())
        }
        error => {
            let cause = exception(py, "InvalidMessage", (error.to_string(),));
            let error = exception(py, "InvalidProxyMessage", ("did not receive a valid HTTP response from the proxy",));
            error.set_cause(py, Some(cause));
            error
        }
    }
}

/// Creates the exception for a header that cannot be sent. It names the argument that the header came from.
pub(crate) fn header_argument(_: Python<'_>, error: &HeaderError) -> PyErr {
    let name = match error {
        HeaderError::Name { name } | HeaderError::Value { name } => name.to_ascii_lowercase(),
        _ => String::new(),
    };
    let argument = match name.as_str() {
        "origin" => "origin",
        "user-agent" => "user_agent_header",
        "sec-websocket-protocol" => "subprotocols",
        _ => "additional_headers",
    };
    PyValueError::new_err(format!("{argument}: {error}"))
}

/// Creates the exception for an invalid call.
pub(crate) fn refused(py: Python<'_>, error: SendError) -> PyErr {
    match error {
        SendError::MessageOpen | SendError::NoMessageOpen => exception(py, "ConcurrencyError", (error.to_string(),)),
        SendError::ReasonWithoutCode => PyTypeError::new_err(error.to_string()),
        _ => exception(py, "ProtocolError", (error.to_string(),)),
    }
}

/// Like [`refused`] for a fragment, which the exception contains if the text is not UTF-8.
pub(crate) fn refused_fragment(py: Python<'_>, error: SendError, fragment: &[u8]) -> PyErr {
    match error {
        SendError::InvalidUtf8 => {
            let reason = match fragment.is_empty() {
                true => "the fragments end inside a character",
                false => "the fragments up to this one are not UTF-8",
            };
            let fragment = (PyBytes::new(py, fragment).unbind(), 0, fragment.len().max(1));
            PyUnicodeDecodeError::new_err(("utf-8", fragment.0, fragment.1, fragment.2, reason))
        }
        error => refused(py, error),
    }
}

/// Creates the exception for calls after an engine has stopped.
pub(crate) fn engine_stopped(py: Python<'_>) -> PyErr {
    exception(py, "InvalidState", ("the engine has stopped",))
}

pub(crate) fn session_closed(py: Python<'_>) -> PyErr {
    exception(py, "InvalidState", ("the session is closed",))
}

/// Creates the exception for a failed blocking call. `closed` creates the exception for a closed connection.
pub(crate) fn blocking(py: Python<'_>, error: blocking::Error<PyErr>, closed: impl FnOnce() -> PyErr) -> PyErr {
    match error {
        blocking::Error::Interrupted(error) => error,
        blocking::Error::TimedOut => PyTimeoutError::new_err("timed out"),
        blocking::Error::Closed => closed(),
        blocking::Error::Refused(error) => refused(py, error),
        blocking::Error::Streaming => streaming(py),
        blocking::Error::QueueFull => exception(
            py,
            "ConcurrencyError",
            ("the messages that arrived meanwhile fill max_queue, and no thread receives them; receive them first",),
        ),
        blocking::Error::PingOutstanding => ping_outstanding(py),
    }
}

/// Creates the exception for receiving a whole message while `recv_streaming` is receiving one.
pub(crate) fn streaming(py: Python<'_>) -> PyErr {
    exception(py, "ConcurrencyError", ("a message is being received by recv_streaming; receive all of it first",))
}

/// Creates the exception for a task that sends inside its own fragmented message, and would wait for itself.
pub(crate) fn sending_fragments(py: Python<'_>) -> PyErr {
    let text = "this task is sending a message in fragments: what they come from cannot send on the same connection";
    exception(py, "ConcurrencyError", (text,))
}

/// Creates the exception for a second ping with the same payload: its pong could not be assigned to either.
pub(crate) fn ping_outstanding(py: Python<'_>) -> PyErr {
    exception(py, "ConcurrencyError", ("already waiting for a pong with the same data",))
}
