//! The blocking connection: base of what `wirespeed.sync.connect` returns. Rarely used methods are in Python.
//!
//! Order of calls: a client's connection is open from the start. On a server, `_send_answer` first sends an
//! answer of [`Handshake`]; until then, calls that send or receive raise an exception. `close`, `_leave` or
//! `abort` end the connection, and `_wait_closed` waits for its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyBlockingIOError, PyException, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList, PyTuple};
use wirespeed_driver::blocking::{Blocking, Error, Item, PingTicket, Timeout};
use wirespeed_driver::entropy;
use wirespeed_driver::protocol::{CloseCode, Delivery, MessageKind};
use wirespeed_driver::source::Source;

use super::deadline;
use super::host::{PythonHost, detect_green_threads};
use super::ping::{Ping, PongData};
use crate::addresses::Addresses;
use crate::asyncio::is_initialized;
use crate::errors::CloseErrorCache;
use crate::handshake::{Answer, Handshake, REFUSED_BYTES};
use crate::opening::Opened;
use crate::options::duration;
use crate::payload::PyPayload;
use crate::{errors, source, ssl_layer, view};

/// How long a client may take to read a refusal, as `LINGER_TIMEOUT` in `_server/negotiate.py`.
const REFUSED_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A WebSocket connection for blocking threads. Base of `wirespeed.sync.ClientConnection`.
#[pyclass(frozen, subclass, weakref, dict, module = "wirespeed._native")]
pub(crate) struct BlockingConnection {
    inner: Blocking<PyPayload, Py<PyAny>>,
    handshake: Py<Handshake>,
    /// Whether a server has yet to answer the handshake.
    connecting: AtomicBool,
    addresses: Addresses,
    /// Whether the exception that ended the connection from inside an `ssl.SSLContext` was raised already.
    interrupt_raised: AtomicBool,
    /// Not visited by the garbage collector: it refers to no object that could be part of a cycle.
    close_errors: CloseErrorCache,
}

type Result<T> = std::result::Result<T, Error<PyErr>>;

impl BlockingConnection {
    /// Returns the driver's view of this thread. Raises an exception if this thread is already using the
    /// connection.
    #[inline]
    fn host<'py>(&self, py: Python<'py>, decode: Option<bool>) -> PyResult<PythonHost<'py>> {
        if self.inner.is_reentrant() {
            return Err(PyRuntimeError::new_err(
                "a signal handler, called while an ssl.SSLContext was at work, cannot use the connection at work",
            ));
        }
        Ok(PythonHost { py, decode })
    }

    /// Like [`Self::host`], for calls that send or receive. They raise an exception before the opening
    /// handshake is answered.
    #[inline]
    fn open_host<'py>(&self, py: Python<'py>, decode: Option<bool>) -> PyResult<PythonHost<'py>> {
        if self.connecting.load(Ordering::Relaxed) {
            return Err(PyRuntimeError::new_err(
                "the opening handshake is not complete: nothing can be sent or received yet",
            ));
        }
        self.host(py, decode)
    }

    fn closed(&self, py: Python<'_>) -> PyErr {
        let host = PythonHost { py, decode: None };
        // Exceptions are created outside the connection's lock: their constructors are Python code.
        let (failure, closing) = self.inner.with_endpoint(&host, |endpoint| {
            (
                endpoint.send_half().failure().cloned(),
                self.close_errors.closing_if_empty(|| endpoint.send_half().closing()),
            )
        });
        let cause = failure.and_then(|failure| errors::failure(py, &failure));
        // A signal handler that raised inside an ssl.SSLContext has ended the connection. Its exception is
        // raised once, by itself.
        if let Some(cause) = cause.as_ref().filter(|cause| !cause.is_instance_of::<PyException>(py))
            && !self.interrupt_raised.swap(true, Ordering::Relaxed)
        {
            return cause.clone_ref(py);
        }
        self.close_errors.exception(py, closing, cause, errors::origin(self))
    }

    fn map<T>(&self, py: Python<'_>, result: Result<T>) -> PyResult<T> {
        result.map_err(|error| errors::blocking(py, error, || self.closed(py)))
    }

    #[inline]
    fn receive(
        &self,
        py: Python<'_>,
        timeout: Timeout,
        decode: Option<bool>,
        delivery: Delivery,
    ) -> Result<Item<Py<PyAny>>> {
        let host = self.open_host(py, decode).map_err(Error::Interrupted)?;
        let mut item = self.inner.receive(&host, timeout, delivery)?;
        if let Some(text) = decode {
            // A message that was queued meanwhile has the type of its frame.
            item.message = view::convert(item.message.bind(py), text).map_err(Error::Interrupted)?;
        }
        Ok(item)
    }

    pub(super) fn wait_for_pong(
        &self,
        py: Python<'_>,
        ticket: &PingTicket,
        deadline: Option<Instant>,
    ) -> PyResult<f64> {
        let result = self.inner.wait_for_pong(&self.open_host(py, None)?, ticket, deadline);
        self.map(py, result).map(|latency| latency.as_secs_f64())
    }
}

fn parse_timeout(timeout: Option<f64>, busy_poll: f64) -> PyResult<Timeout> {
    let deadline = deadline(timeout)?;
    if busy_poll == 0.0 {
        return Ok(Timeout::Until(deadline));
    }
    match Duration::try_from_secs_f64(busy_poll) {
        Ok(spin) => {
            let until = Instant::now() + spin.min(Duration::from_secs(3600));
            Ok(Timeout::Spin(deadline.map_or(until, |deadline| deadline.min(until)), deadline))
        }
        Err(_) => Err(PyValueError::new_err("busy_poll must be a number of seconds, not negative")),
    }
}

#[pymethods]
impl BlockingConnection {
    #[new]
    #[pyo3(signature = (opened, *_args, local_address = None, remote_address = None, **_kwargs))]
    fn new(
        py: Python<'_>,
        opened: &Opened,
        _args: &Bound<'_, PyTuple>,
        local_address: Option<Bound<'_, PyAny>>,
        remote_address: Option<Bound<'_, PyAny>>,
        _kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let parts = opened.take()?;
        let socket = parts.socket.ok_or_else(|| PyTypeError::new_err("opened has no socket of its own"))?;
        if parts.handshake.is_pending() {
            detect_green_threads(py)?; // the opening of a client has done this
        }
        Ok(Self {
            inner: Blocking::new(parts.endpoint, socket, parts.options.settings),
            connecting: AtomicBool::new(parts.handshake.is_pending()),
            handshake: Py::new(py, parts.handshake)?,
            addresses: parts.addresses.with_overrides(local_address, remote_address),
            interrupt_raised: AtomicBool::new(false),
            close_errors: CloseErrorCache::default(),
        })
    }

    /// Address of this end, as returned by `socket.getsockname()` when the connection was opened.
    #[getter]
    fn local_address(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.addresses.local.to_python(py)
    }

    /// Address of the other end: that of the proxy, if there is one.
    #[getter]
    fn remote_address(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.addresses.remote.to_python(py)
    }

    /// Receives the next message.
    #[pyo3(signature = (timeout = None, decode = None, *, busy_poll = 0.0))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>, decode: Option<bool>, busy_poll: f64) -> PyResult<Py<PyAny>> {
        let result = self.receive(py, parse_timeout(timeout, busy_poll)?, decode, Delivery::Messages);
        self.map(py, result).map(|item| item.message)
    }

    /// Receives a message that has already arrived.
    #[pyo3(signature = (decode = None))]
    fn recv_nowait(&self, py: Python<'_>, decode: Option<bool>) -> PyResult<Py<PyAny>> {
        match self.receive(py, Timeout::Until(Some(Instant::now())), decode, Delivery::Messages) {
            Err(Error::TimedOut) => Err(PyBlockingIOError::new_err("no message is ready")),
            result => self.map(py, result).map(|item| item.message),
        }
    }

    /// Receives all messages that have arrived. Waits for the first.
    #[pyo3(signature = (limit = 1024, timeout = None, decode = None))]
    fn recv_many<'py>(
        &self,
        py: Python<'py>,
        limit: isize,
        timeout: Option<f64>,
        decode: Option<bool>,
    ) -> PyResult<Bound<'py, PyList>> {
        let limit = match usize::try_from(limit) {
            Ok(limit) if limit > 0 => limit,
            _ => return Err(PyValueError::new_err("limit must be at least 1")),
        };
        let host = self.open_host(py, None)?;
        let result = self.inner.receive_many(&host, Timeout::Until(deadline(timeout)?), limit);
        let mut items = self.map(py, result)?.into_iter();
        // The list is created outside the connection's lock: this may start a garbage collection.
        let list = PyList::empty(py);
        while let Some(item) = items.next() {
            let message = match decode {
                None => Ok(item.message.clone_ref(py)),
                Some(text) => view::convert(item.message.bind(py), text),
            };
            match message {
                Ok(message) => list.append(message)?,
                // A message that cannot be decoded is raised by a call of its own, after the messages before
                // it.
                Err(error) if list.is_empty() => {
                    self.inner.put_back(&host, items);
                    return Err(error);
                }
                Err(_) => {
                    self.inner.put_back(&host, std::iter::once(item).chain(items));
                    break;
                }
            }
        }
        Ok(list)
    }

    /// Returns the next fragment, whether it is text, and whether it is the last, for `recv_streaming`.
    #[pyo3(signature = (timeout = None))]
    fn _recv_fragment(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<(Py<PyAny>, bool, bool)> {
        // Bytes, because a text fragment may end inside a character.
        let result = self.receive(py, Timeout::Until(deadline(timeout)?), Some(false), Delivery::Fragments);
        self.map(py, result).map(|item| (item.message, item.kind == MessageKind::Text, item.fin))
    }

    /// Drops the rest of a message whose fragments are being received.
    fn _discard_message(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.discard_message(&self.open_host(py, None)?);
        Ok(())
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self.receive(py, Timeout::Until(None), None, Delivery::Messages) {
            Ok(item) => Ok(Some(item.message)),
            Err(error) => {
                // A clean close addresses the iteration; it is not an error.
                let closed = matches!(error, Error::Closed);
                if closed && self.inner.closing(&self.host(py, None)?).is_clean() {
                    return Ok(None);
                }
                Err(errors::blocking(py, error, || self.closed(py)))
            }
        }
    }

    /// Sends a message, or the items of an iterable as its fragments.
    #[pyo3(signature = (message, *, text = None, compress = None))]
    fn send(
        &self,
        py: Python<'_>,
        message: &Bound<'_, PyAny>,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> PyResult<()> {
        let Some((kind, bytes)) = source::message(message, text)? else {
            return self.send_fragments(py, message, text, compress);
        };
        let result = self.inner.send(&self.open_host(py, None)?, kind, &bytes, compress);
        self.map(py, result)
    }

    /// Sends many messages with few system calls.
    #[pyo3(signature = (messages, *, text = None, compress = None))]
    fn send_many(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> PyResult<()> {
        if source::message(messages, None)?.is_some() {
            return Err(PyTypeError::new_err(format!(
                "messages must be an iterable of messages, not {}: use send() for one message",
                source::type_name(messages)
            )));
        }
        let mut messages = messages.try_iter()?;
        loop {
            self.map(py, self.inner.wait_for_writer(&self.open_host(py, None)?))?;
            let Some(message) = messages.next() else { break };
            let queued = message.and_then(|message| self.queue(py, &message, text, compress));
            match queued {
                Ok(result) => self.map(py, result)?,
                Err(error) => {
                    // The messages before an invalid one were accepted, so they are sent.
                    self.flush(py)?;
                    return Err(error);
                }
            }
        }
        self.flush(py)
    }

    /// Returns when the kernel has accepted all queued bytes.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.map(py, self.inner.flush(&self.open_host(py, None)?))
    }

    /// Sends a ping. The pong can be awaited with the returned object.
    #[pyo3(signature = (data = None))]
    fn ping(slf: &Bound<'_, Self>, data: Option<&Bound<'_, PyAny>>) -> PyResult<Ping> {
        let py = slf.py();
        let given = data.map(source::control).transpose()?;
        let this = slf.get();
        let host = this.open_host(py, None)?;
        let sent = loop {
            let drawn = entropy::draw_key();
            match this.inner.ping(&host, given.as_deref().unwrap_or(&drawn)) {
                Err(Error::PingOutstanding) if given.is_none() => {} // the random payload is in use: once in 2^32
                sent => break sent,
            }
        };
        let ticket = this.map(py, sent)?;
        Ok(Ping { ticket, connection: slf.clone().unbind() })
    }

    /// Sends an unsolicited pong.
    #[pyo3(signature = (data = PongData::Empty), text_signature = "($self, data=b'')")]
    fn pong(&self, py: Python<'_>, data: PongData<'_>) -> PyResult<()> {
        let payload = match data {
            PongData::Empty => Vec::new(),
            PongData::Value(data) => source::control(&data)?,
        };
        self.map(py, self.inner.pong(&self.open_host(py, None)?, &payload))
    }

    /// Performs the closing handshake.
    #[pyo3(signature = (code = 1000, reason = ""))]
    fn close(&self, py: Python<'_>, code: i64, reason: &str) -> PyResult<()> {
        // Codes that do not fit are invalid like 0.
        let code = u16::try_from(code).unwrap_or(0);
        // RFC 6455 7.4.1: 1005 stands for a close frame without a code.
        let code = if code == 1005 { None } else { Some(CloseCode(code)) };
        if self.connecting.load(Ordering::Relaxed) {
            return self.abort(py); // the peer does not know of a connection yet
        }
        let result = self.inner.close(&self.host(py, None)?, code, reason);
        self.map(py, result)
    }

    /// Waits until the connection is closed. Returns whether it is.
    #[pyo3(signature = (timeout = None))]
    fn _wait_closed(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let deadline = deadline(timeout)?;
        let result = self.inner.wait_closed(&self.open_host(py, None)?, deadline);
        self.map(py, result)
    }

    /// Closes the connection immediately.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.abort(&self.host(py, None)?);
        Ok(())
    }

    /// Sends a close frame without waiting, and closes the connection immediately.
    fn _leave(&self, py: Python<'_>, code: u16) -> PyResult<()> {
        let host = self.host(py, None)?;
        if self.connecting.load(Ordering::Relaxed) {
            self.inner.abort(&host); // the peer does not know of a connection
        } else {
            self.inner.close_now(&host, CloseCode(code));
        }
        Ok(())
    }

    /// Changes the timeout of closing handshakes that begin from now on.
    fn _set_close_timeout(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<()> {
        let timeout = duration("close_timeout", seconds)?;
        self.inner.set_close_timeout(&self.host(py, None)?, timeout);
        Ok(())
    }

    /// 0 connecting, 1 open, 2 closing, 3 closed: the values of `wirespeed.State`.
    #[getter]
    fn _state(&self, py: Python<'_>) -> PyResult<u8> {
        let (state, over) = self.inner.state(&self.host(py, None)?);
        if !over && self.connecting.load(Ordering::Relaxed) {
            return Ok(0);
        }
        Ok(view::state(state, over))
    }

    /// Code and reason of the received close frame, or 1006 if there was none. `None` while the connection is
    /// open.
    #[getter]
    fn _close(&self, py: Python<'_>) -> PyResult<Option<(u16, String)>> {
        let host = self.host(py, None)?;
        let (_, over) = self.inner.state(&host);
        Ok(self.inner.with_endpoint(&host, |endpoint| view::close(endpoint.send_half(), over)))
    }

    /// The opening handshake.
    #[getter]
    fn _handshake(&self, py: Python<'_>) -> Py<Handshake> {
        self.handshake.clone_ref(py)
    }

    /// Sends the server's answer to the opening handshake. Returns the client's error if the answer refuses it.
    fn _send_answer(&self, py: Python<'_>, answer: &Answer) -> PyResult<Option<Py<PyAny>>> {
        let host = self.host(py, None)?;
        self.connecting.store(false, Ordering::Relaxed);
        self.inner.with_endpoint(&host, |endpoint| answer.queue(endpoint));
        // A refusal is written by the closing of the connection.
        if answer.accepts() {
            let result = self.inner.flush(&host);
            self.map(py, result)?;
        } else {
            self.inner.limit_closing(&host, REFUSED_CLOSE_TIMEOUT, REFUSED_BYTES);
        }
        Ok(answer.error(py))
    }

    /// Returns the exception that calls raise after the connection is closed.
    fn _closed_error(&self, py: Python<'_>) -> Py<PyAny> {
        self.closed(py).into_value(py).into_any()
    }

    /// The value of `_origin` of this connection's exceptions.
    #[getter]
    fn _origin(&self) -> usize {
        errors::origin(self)
    }

    /// Seconds between the last ping and its pong; 0 before the first.
    #[getter]
    fn latency(&self, py: Python<'_>) -> PyResult<f64> {
        let latency = self.inner.with_endpoint(&self.host(py, None)?, |endpoint| endpoint.send_half().latency());
        Ok(latency.map_or(0.0, |latency| latency.as_secs_f64()))
    }

    /// Returns the number of the socket's descriptor, or -1 once it is closed.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.inner.socket(&self.host(py, None)?).map_or(-1, |socket| socket.raw()))
    }

    /// Properties of the TLS connection, if TLS is used.
    #[getter]
    fn _tls(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.inner.with_endpoint(&self.host(py, None)?, |endpoint| view::tls(py, endpoint.send_half()))
    }

    /// Returns counters of the connection.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, messages, bytes, unsent) = self.inner.stats(&self.host(py, None)?);
        view::stats(py, stats, messages, bytes, unsent)
    }

    // The fields never change, so there is no `__clear__`: a cycle is broken at an attribute, which PyO3
    // clears, or at another object.
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        if !is_initialized(&raw const self.handshake) {
            return Ok(());
        }
        visit.call(&self.handshake)?;
        self.addresses.traverse(&visit)?;
        self.inner.peek(|endpoint| ssl_layer::traverse(endpoint.send_half().layer(), &visit)).unwrap_or(Ok(()))
    }
}

impl BlockingConnection {
    /// Queues one of many messages. The outer error concerns the message, the inner one the connection.
    #[inline]
    fn queue(
        &self,
        py: Python<'_>,
        message: &Bound<'_, PyAny>,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> PyResult<Result<()>> {
        match source::message(message, text)? {
            Some((kind, bytes)) => Ok(self.inner.queue(&self.open_host(py, None)?, kind, &bytes, compress)),
            None => Err(PyTypeError::new_err(format!(
                "messages must be str or bytes-like, not {}",
                source::type_name(message)
            ))),
        }
    }

    /// Sends the items of an iterable as the fragments of one message.
    fn send_fragments(
        &self,
        py: Python<'_>,
        fragments: &Bound<'_, PyAny>,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> PyResult<()> {
        if fragments.cast::<PyDict>().is_ok() || fragments.hasattr("keys")? {
            return Err(PyTypeError::new_err("message must be str, bytes-like or an iterable of these, not a mapping"));
        }
        let Ok(iterator) = PyIterator::from_object(fragments) else {
            return Err(PyTypeError::new_err(format!(
                "message must be str, bytes-like or an iterable of these, not {}",
                source::type_name(fragments)
            )));
        };
        let host = self.open_host(py, None)?;
        let mut kind = None;
        for fragment in iterator {
            match self.send_next_fragment(py, &fragment, &mut kind, text, compress) {
                Ok(()) => {}
                Err(error) => return Err(self.abandon_fragments(py, kind, error)),
            }
        }
        if kind.is_none() {
            return Ok(()); // no fragments: no message is sent
        }
        let end: &[u8] = &[];
        let mut ended = false;
        match self.inner.send_fragment(&host, end, true, &mut ended) {
            Err(Error::Refused(error)) => {
                Err(self.abandon_fragments(py, kind, errors::refused_fragment(py, error, end)))
            }
            Err(error) if !ended => {
                Err(self.abandon_fragments(py, kind, errors::blocking(py, error, || self.closed(py))))
            }
            sent => self.map(py, sent),
        }
    }

    fn send_next_fragment(
        &self,
        py: Python<'_>,
        fragment: &PyResult<Bound<'_, PyAny>>,
        kind: &mut Option<MessageKind>,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> PyResult<()> {
        let fragment = fragment.as_ref().map_err(|error| error.clone_ref(py))?;
        let Some((this, bytes)) = source::fragment(fragment, text)? else {
            return Err(PyTypeError::new_err(format!(
                "fragments must be str or bytes-like, not {}",
                source::type_name(fragment)
            )));
        };
        if kind.is_some_and(|kind| kind != this) {
            return Err(PyTypeError::new_err("fragments must be all str or all bytes-like"));
        }
        let host = self.open_host(py, None)?;
        let mut queued = false;
        let sent = match kind {
            None => self.inner.send_first_fragment(&host, this, &bytes, compress, &mut queued),
            Some(_) => self.inner.send_fragment(&host, &bytes, false, &mut queued),
        };
        // Also if an error followed while it waited for room.
        if queued {
            *kind = Some(this);
        }
        match sent {
            Err(Error::Refused(error)) => Err(errors::refused_fragment(py, error, bytes.piece(0..bytes.len()))),
            sent => self.map(py, sent),
        }
    }

    /// Ends a fragmented message whose iterable failed. The message cannot be completed, and no other message
    /// can be sent before it is, so the connection is closed with 1011, as in the `websockets` library. An
    /// exception that interrupts the thread or greenlet, which is not a [`PyException`], does not wait for the
    /// closing handshake.
    fn abandon_fragments(&self, py: Python<'_>, kind: Option<MessageKind>, error: PyErr) -> PyErr {
        if kind.is_some() {
            let host = PythonHost { py, decode: None };
            if !error.is_instance_of::<PyException>(py) {
                self.inner.close_now(&host, CloseCode::INTERNAL_ERROR);
            } else if self.inner.close(&host, Some(CloseCode::INTERNAL_ERROR), "error in fragmented message").is_err() {
                self.inner.abort(&host);
            }
        }
        error
    }
}
