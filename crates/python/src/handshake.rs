//! The opening handshake of a connection, client or server. For a server also its pending answer: a connection
//! creates a [`Handshake`], then calls `draft` any number of times, and `answer` or `respond` once.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use wirespeed_driver::Endpoint;
use wirespeed_driver::protocol::handshake::{
    self, Accepted, HandshakeError, HeaderList, Request, Response, ServerHandshake, extension,
};

use crate::errors;
use crate::headers::{self, Heads};
use crate::payload::PyPayload;

/// Bytes that a refused client may still send: the same limit as in the engine.
pub(crate) const REFUSED_BYTES: u64 = 256 * 1024;

/// Returns the value of Sec-WebSocket-Accept for a Sec-WebSocket-Key, or `None` if the key is invalid.
#[pyfunction]
pub(crate) fn accept_key(key: &str) -> Option<String> {
    handshake::accept_key::is_key(key.as_bytes()).then(|| handshake::accept_key(key))
}

/// The opening handshake of one connection.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Handshake {
    heads: Heads,
    subprotocol: OnceLock<Box<str>>,
    /// A server's handshake that is not answered yet.
    pending: Mutex<Option<Box<Pending>>>,
}

/// The state of a server's handshake before it answers.
struct Pending {
    handshake: ServerHandshake,
    /// The application gets the same object on each access, and may change it.
    request: Option<Py<PyAny>>,
}

/// The answer of a server, which its connection sends.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct Answer {
    head: Vec<u8>,
    /// Whether it accepts.
    accepts: bool,
    /// Whether it grants compression, if compression was negotiated.
    grants_compression: bool,
    /// The error of the client that caused the refusal, if there is one.
    error: Option<Py<PyAny>>,
}

impl Answer {
    pub(crate) const fn accepts(&self) -> bool {
        self.accepts
    }

    pub(crate) fn error(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.error.as_ref().map(|error| error.clone_ref(py))
    }

    /// Queues the answer, and applies it to the endpoint.
    pub(crate) fn queue(&self, endpoint: &mut Endpoint<PyPayload>) {
        endpoint.send_half_mut().send_head(&self.head);
        if !self.accepts {
            endpoint.refuse();
        } else if !self.grants_compression {
            endpoint.disable_deflate();
        }
    }
}

impl Handshake {
    /// Creates the handshake of a client, which the server has accepted.
    pub(crate) fn client(request: &Request, accepted: Accepted) -> Self {
        let heads = Heads::new(request);
        heads.set_response(&accepted.response);
        let subprotocol = accepted.subprotocol.map_or_else(OnceLock::new, |name| OnceLock::from(name.into_boxed_str()));
        Self { heads, subprotocol, pending: Mutex::new(None) }
    }

    /// Creates the handshake of a server. `None` if the request is not complete.
    pub(crate) fn server(handshake: ServerHandshake) -> Option<Self> {
        let heads = Heads::new(handshake.request()?);
        let pending = Mutex::new(Some(Box::new(Pending { handshake, request: None })));
        Some(Self { heads, subprotocol: OnceLock::new(), pending })
    }

    /// Visits the objects of this handshake, for itself and for objects that own one.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // If it is locked, the objects are not visited: the collector then takes them for referenced and keeps
        // them.
        let Ok(pending) = self.pending.try_lock() else { return Ok(()) };
        pending.as_ref().map_or(Ok(()), |pending| visit.call(&pending.request))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<Pending>>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a server has yet to answer.
    pub(crate) fn is_pending(&self) -> bool {
        self.lock().is_some()
    }
}

#[pymethods]
impl Handshake {
    /// The opening request.
    #[getter]
    fn request(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if let Some(request) = self.lock().as_ref().and_then(|pending| pending.request.as_ref()) {
            return Ok(request.clone_ref(py));
        }
        let request = self.heads.request(py)?;
        if let Some(pending) = &mut *self.lock() {
            pending.request = Some(request.clone_ref(py));
        }
        Ok(request)
    }

    /// The response, or `None` before there is one.
    #[getter]
    fn response(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.heads.response(py)
    }

    /// The subprotocol in use.
    #[getter]
    fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.get().map(|name| &**name)
    }

    /// The subprotocols that the client offers. Empty once the handshake is answered.
    fn offered_subprotocols(&self) -> Vec<String> {
        let pending = self.lock();
        pending
            .as_ref()
            .map_or_else(Vec::new, |pending| pending.handshake.offered_subprotocols().map(str::to_owned).collect())
    }

    /// Returns the automatic answer to the request, for the application to inspect: a `Response`, and the error
    /// if it refuses. `choose`: the configuration selects the subprotocol. Otherwise `subprotocol` is used.
    #[pyo3(signature = (choose, subprotocol, fields))]
    fn draft(
        &self,
        py: Python<'_>,
        choose: bool,
        subprotocol: Option<&str>,
        fields: Vec<(String, String)>,
    ) -> PyResult<(Py<PyAny>, Option<Py<PyAny>>)> {
        let additional = headers::from_python(py, fields)?;
        let pending = self.lock();
        let handshake = &pending.as_ref().ok_or_else(answered)?.handshake;
        let subprotocol = if choose { handshake.select_subprotocol() } else { subprotocol };
        let (response, error) = match handshake.accept(subprotocol, &additional) {
            Ok(accepted) => (accepted.response, None),
            Err(error) => (reject(handshake, &error, &additional), Some(exception(py, &error))),
        };
        drop(pending);
        Ok((headers::response(py, &response)?.unbind(), error))
    }

    /// Creates the automatic answer to the request, with additional header fields.
    fn answer(&self, py: Python<'_>, fields: Vec<(String, String)>) -> PyResult<Answer> {
        let additional = headers::from_python(py, fields)?;
        let handshake = self.lock().take().ok_or_else(answered)?.handshake;
        match handshake.accept(handshake.select_subprotocol(), &additional) {
            Ok(accepted) => {
                let head = accepted.response.to_bytes();
                self.heads.set_response(&accepted.response);
                if let Some(name) = accepted.subprotocol {
                    let _ = self.subprotocol.set(name.into_boxed_str()); // set once
                }
                Ok(Answer { head, accepts: true, grants_compression: true, error: None })
            }
            Err(error) => {
                let response = reject(&handshake, &error, &additional);
                self.heads.set_response(&response);
                Ok(Answer {
                    head: response.to_bytes(),
                    accepts: false,
                    grants_compression: false,
                    error: Some(exception(py, &error)),
                })
            }
        }
    }

    /// Creates the answer from a `Response` of the application.
    fn respond(&self, py: Python<'_>, response: &Bound<'_, PyAny>) -> PyResult<Answer> {
        let mut response = headers::response_from_python(response)?;
        if !(100..=999).contains(&response.status) {
            return Err(PyValueError::new_err(format!("status_code must be from 100 to 999, not {}", response.status)));
        }
        let mut pending = self.lock();
        let handshake = &pending.as_ref().ok_or_else(answered)?.handshake;
        let accepts = response.status == 101;
        if accepts {
            // RFC 6455 4.2.2: only a request for a WebSocket may be answered with 101.
            handshake.check().map_err(|error| errors::server_handshake(py, &error))?;
            response.body.clear();
            if let Some(name) = response.headers.value_str("Sec-WebSocket-Protocol") {
                let _ = self.subprotocol.set(name.into()); // set once
            }
        } else {
            let headers = &mut response.headers;
            let bodiless = response.status == 204 || response.status == 304;
            if !bodiless && !headers.contains("Content-Length") && !headers.contains("Transfer-Encoding") {
                let _ = headers.push("Content-Length", response.body.len().to_string()); // digits are always valid
            }
            if !headers.contains("Connection") {
                let _ = headers.push("Connection", "close");
            }
            // RFC 9110 9.3.2: the response to HEAD has no content.
            if bodiless || handshake.request().is_some_and(|request| request.method == "HEAD") {
                response.body.clear();
            }
        }
        *pending = None;
        drop(pending);
        self.heads.set_response(&response);
        let grants_compression = response.headers.contains(extension::HEADER);
        Ok(Answer { head: response.to_bytes(), accepts, grants_compression, error: None })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.traverse(&visit)
    }

    fn __clear__(&self) {
        let request = self.pending.try_lock().ok().and_then(|mut pending| pending.as_mut()?.request.take());
        drop(request); // dropped outside the lock
    }
}

#[pymethods]
impl Answer {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.error)
    }
}

/// Returns the response to a handshake error, with additional header fields.
pub(crate) fn reject(handshake: &ServerHandshake, error: &HandshakeError, additional: &HeaderList) -> Response {
    let mut response = handshake.reject_error(error);
    response.headers.extend(additional);
    response
}

fn exception(py: Python<'_>, error: &HandshakeError) -> Py<PyAny> {
    errors::server_handshake(py, error).into_value(py).into_any()
}

fn answered() -> PyErr {
    PyRuntimeError::new_err("the opening handshake was answered already")
}
