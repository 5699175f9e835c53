//! TLS by the standard library's `ssl`, for applications that pass an `ssl.SSLContext`. All settings of the
//! context apply, at the cost of Python calls. Both sides are memory BIOs, so this library keeps the sockets.
//!
//! The code calls the object under `ssl.SSLObject`, not that class, so no Python code runs in between. That
//! object still checks for signals while it works, creates objects, and releases the GIL, all while the
//! connection is locked. Signal handlers and finalizers that run then cannot use the connection, and other
//! threads wait. The connection's locks know their owner for this reason.

use std::any::Any;

use pyo3::exceptions::PyOSError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use wirespeed_driver::tls::{Error, Layer};

/// Plain bytes that one read takes from OpenSSL: four records.
const READ_SIZE: usize = 64 * 1024;

pub(crate) struct SslLayer {
    /// The `ssl.SSLObject`, which applications ask for the negotiated parameters.
    ssl_object: Py<PyAny>,
    object: Py<PyAny>,
    incoming: Py<PyAny>,
    outgoing: Py<PyAny>,
    want_read: Py<PyAny>,
    zero_return: Py<PyAny>,
    ssl_error: Py<PyAny>,
    handshaking: bool,
    peer_closed: bool,
}

/// Visits the objects of a layer for the garbage collector: attributes of an `ssl.SSLContext` may refer to any
/// object.
pub(crate) fn traverse(layer: Option<&dyn Layer>, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
    let mut result = Ok(());
    if let Some(layer) = layer {
        layer.visit(&mut |layer| {
            if let Some(SslLayer { ssl_object, object, .. }) = layer.downcast_ref::<SslLayer>()
                && result.is_ok()
            {
                result = visit.call(ssl_object).and_then(|()| visit.call(object));
            }
        });
    }
    result
}

impl SslLayer {
    /// Creates the client side of TLS with `context`.
    pub(crate) fn client(context: &Bound<'_, PyAny>, server_hostname: Option<&str>) -> PyResult<Self> {
        Self::new(context, false, server_hostname)
    }

    /// Creates the server side of TLS with `context`.
    pub(crate) fn server(context: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::new(context, true, None)
    }

    fn new(context: &Bound<'_, PyAny>, server: bool, server_hostname: Option<&str>) -> PyResult<Self> {
        let py = context.py();
        let ssl = py.import("ssl")?;
        let bio = ssl.getattr("MemoryBIO")?;
        let (incoming, outgoing) = (bio.call0()?, bio.call0()?);
        let object = context.call_method1("wrap_bio", (&incoming, &outgoing, server, server_hostname))?;
        // A subclass of SSLContext may create other objects, which have no `_sslobj`.
        let ssl_object = object.clone().unbind();
        let object = object.getattr("_sslobj").unwrap_or(object);
        Ok(Self {
            ssl_object,
            object: object.unbind(),
            incoming: incoming.unbind(),
            outgoing: outgoing.unbind(),
            want_read: ssl.getattr("SSLWantReadError")?.unbind(),
            zero_return: ssl.getattr("SSLZeroReturnError")?.unbind(),
            ssl_error: ssl.getattr("SSLError")?.unbind(),
            handshaking: true,
            peer_closed: false,
        })
    }

    pub(crate) fn ssl_object(&self) -> &Py<PyAny> {
        &self.ssl_object
    }

    fn receive_python(&mut self, py: Python<'_>, incoming: &[u8], plain: &mut Vec<u8>) -> PyResult<()> {
        if !incoming.is_empty() {
            self.incoming.call_method1(py, "write", (PyBytes::new(py, incoming),))?;
        }
        if self.handshaking {
            match self.object.call_method0(py, "do_handshake") {
                Ok(_) => self.handshaking = false,
                Err(error) if error.matches(py, self.want_read.bind(py))? => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        while !self.peer_closed {
            match self.object.bind(py).call_method1("read", (READ_SIZE,)) {
                Ok(bytes) => {
                    let bytes = bytes.cast::<PyBytes>()?.as_bytes();
                    // An SSLObject reports the peer's close_notify as an empty read if suppress_ragged_eofs
                    // applies.
                    self.peer_closed = bytes.is_empty();
                    plain.extend_from_slice(bytes);
                }
                Err(error) if error.matches(py, self.want_read.bind(py))? => break,
                Err(error) if error.matches(py, self.zero_return.bind(py))? => self.peer_closed = true,
                Err(error) if self.belongs_to_other_connection(py, &error)? => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns whether `error` belongs to another connection of this thread, and this read only needs more
    /// bytes.
    ///
    /// OpenSSL keeps an error queue for each thread and reports the first entry when a call fails. Since 3.6
    /// the queue also holds errors of system calls. `ssl` raises them without removing them, so every later
    /// read in that thread fails with the same error: <https://github.com/python/cpython/issues/148594>. Memory
    /// BIOs make no system calls. Exceptions from signal handlers and from subclasses in Python have a
    /// traceback, so they are not mistaken for such errors.
    fn belongs_to_other_connection(&self, py: Python<'_>, error: &PyErr) -> PyResult<bool> {
        let system = error.is_instance_of::<PyOSError>(py) && !error.matches(py, self.ssl_error.bind(py))?;
        Ok(system && error.traceback(py).is_none())
    }

    /// Moves the bytes that OpenSSL wants to send to `outgoing`.
    fn drain(&self, py: Python<'_>, outgoing: &mut Vec<u8>) -> PyResult<()> {
        let bytes = self.outgoing.bind(py).call_method0("read")?;
        outgoing.extend_from_slice(bytes.cast::<PyBytes>()?.as_bytes());
        Ok(())
    }
}

fn other(error: PyErr) -> Error {
    Error::Other(Box::new(error))
}

impl Layer for SslLayer {
    fn receive(&mut self, incoming: &mut [u8], plain: &mut Vec<u8>, outgoing: &mut Vec<u8>) -> Result<usize, Error> {
        Python::attach(|py| {
            let received = self.receive_python(py, incoming, plain);
            // Also after an error: the output then holds the alert for the peer.
            self.drain(py, outgoing).map_err(other)?;
            received.map(|()| incoming.len()).map_err(other)
        })
    }

    fn send(&mut self, _pending: &mut [u8], plain: &[u8], outgoing: &mut Vec<u8>) -> Result<(), Error> {
        Python::attach(|py| {
            // A memory BIO accepts all bytes, so one write is enough.
            self.object.call_method1(py, "write", (PyBytes::new(py, plain),)).map_err(other)?;
            self.drain(py, outgoing).map_err(other)
        })
    }

    fn close(&mut self, _pending: &mut [u8], outgoing: &mut Vec<u8>) {
        Python::attach(|py| {
            // This sends our close_notify and then wants the peer's, which may never come. The code does not
            // wait for it.
            let _ = self.object.call_method0(py, "shutdown");
            let _ = self.drain(py, outgoing);
        });
    }

    fn is_handshaking(&self) -> bool {
        self.handshaking
    }

    fn is_peer_closed(&self) -> bool {
        self.peer_closed
    }

    fn alpn(&self) -> Option<Vec<u8>> {
        Python::attach(|py| {
            let protocol: Option<String> =
                self.object.call_method0(py, "selected_alpn_protocol").ok()?.extract(py).ok()?;
            protocol.map(String::into_bytes)
        })
    }

    fn version(&self) -> Option<String> {
        Python::attach(|py| self.object.call_method0(py, "version").ok()?.extract(py).ok()?)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
