//! Properties of a connection as Python objects, for blocking and asyncio connections alike.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use wirespeed_driver::endpoint::{SendHalf, Stats};
use wirespeed_driver::protocol::State;

use crate::payload::PyPayload;
use crate::ssl_layer::SslLayer;

/// Returns a value of `wirespeed.State`: 1 open, 2 closing, 3 closed. `over` is whether TCP is closed.
pub(crate) fn state(state: State, over: bool) -> u8 {
    match (state, over) {
        (_, true) => 3,
        (State::Open, _) => 1,
        _ => 2,
    }
}

/// Returns code and reason of the received close frame, or 1006 if there was none. `None` while the connection
/// is open.
pub(crate) fn close(send_half: &SendHalf<PyPayload>, over: bool) -> Option<(u16, String)> {
    if !over && send_half.state().can_receive() {
        return None;
    }
    match send_half.close_received() {
        // RFC 6455 7.1.5: 1005 is a close frame without a code.
        Some(close) => Some((close.code.map_or(1005, |code| code.0), close.reason.clone())),
        None if over => Some((1006, String::new())),
        None => None,
    }
}

/// Returns the properties of the connection's TLS, if it has TLS: the `ssl.SSLObject`, or else a tuple with the
/// arguments of the constructor of `wirespeed.TLSInfo`.
pub(crate) fn tls(py: Python<'_>, send_half: &SendHalf<PyPayload>) -> PyResult<Option<Py<PyAny>>> {
    let Some(layer) = send_half.layer() else { return Ok(None) };
    if let Some(layer) = layer.as_any().downcast_ref::<SslLayer>() {
        return Ok(Some(layer.ssl_object().clone_ref(py)));
    }
    let alpn = layer.alpn().map(|alpn| String::from_utf8_lossy(&alpn).into_owned());
    let Some(session) = layer.session() else { return Ok(None) };
    let certificates: Vec<_> = session.peer_certificates.iter().map(|der| PyBytes::new(py, der)).collect();
    let info =
        (layer.version(), session.cipher, session.secret_bits, alpn, PyTuple::new(py, certificates)?, session.verified);
    Ok(Some(info.into_pyobject(py)?.into_any().unbind()))
}

/// Returns the counters as a dict. `messages` and `bytes` are queued to be received, `unsent` bytes are queued
/// to be written.
pub(crate) fn stats(
    py: Python<'_>,
    stats: Stats,
    messages: usize,
    bytes: usize,
    unsent: usize,
) -> PyResult<Bound<'_, PyDict>> {
    let result = PyDict::new(py);
    result.set_item("messages_received", stats.messages_received)?;
    result.set_item("bytes_received", stats.bytes_received)?;
    result.set_item("messages_sent", stats.messages_sent)?;
    result.set_item("bytes_sent", stats.bytes_sent)?;
    result.set_item("receive_queue_messages", messages)?;
    result.set_item("receive_queue_bytes", bytes)?;
    result.set_item("send_queue_bytes", unsent)?;
    Ok(result)
}

/// Converts between `str` and `bytes` if the message does not have the type that `text` requests.
pub(crate) fn convert(message: &Bound<'_, PyAny>, text: bool) -> PyResult<Py<PyAny>> {
    let is_text = message.is_instance_of::<pyo3::types::PyString>();
    if is_text == text {
        return Ok(message.clone().unbind());
    }
    message.call_method1(if text { "decode" } else { "encode" }, ("utf-8",)).map(Bound::unbind)
}
