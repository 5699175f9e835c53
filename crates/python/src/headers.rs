//! Header fields and HTTP messages, to and from Python.

use std::sync::OnceLock;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
pub(crate) use wirespeed_driver::protocol::handshake::HeaderList;
use wirespeed_driver::protocol::handshake::{Request, Response};

use crate::errors;

/// Fields as (name, value) pairs; values in Latin-1, which any byte survives.
pub(crate) fn to_python(headers: &HeaderList) -> Vec<(String, String)> {
    headers.iter().map(|header| (header.name().to_owned(), latin1(header.value()))).collect()
}

/// The reverse of [`to_python`]; raises for what cannot stand in a head.
pub(crate) fn from_python(py: Python<'_>, pairs: Vec<(String, String)>) -> PyResult<HeaderList> {
    let mut headers = HeaderList::default();
    for (name, value) in pairs {
        // Latin-1 where it goes, as HTTP had it; UTF-8 beyond, as HTTP leaves to the peers.
        let bytes = if value.chars().all(|c| u32::from(c) < 256) {
            value.chars().map(|c| c as u8).collect()
        } else {
            value.into_bytes()
        };
        headers.push(&name, bytes).map_err(|error| errors::header_argument(py, &error))?;
    }
    Ok(headers)
}

fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char::from(byte)).collect()
}

/// The heads of an opening handshake.
pub(crate) struct Heads {
    request: Head,
    /// A server has yet to make it.
    response: OnceLock<(u16, Head)>,
}

/// A head, kept as text until somebody asks for it: an idle connection holds no objects for what is seldom read.
struct Head {
    /// What stands in the first line, and the fields; each ends with LF, which none can contain.
    text: Box<[u8]>,
    object: OnceLock<Py<PyAny>>,
}

impl Head {
    fn new(first: &str, headers: &HeaderList) -> Self {
        let mut text = Vec::with_capacity(512);
        text.extend_from_slice(first.as_bytes());
        text.push(b'\n');
        for header in headers.iter() {
            text.extend_from_slice(header.name().as_bytes());
            text.push(b':');
            text.extend_from_slice(header.value());
            text.push(b'\n');
        }
        Self { text: text.into_boxed_slice(), object: OnceLock::new() }
    }

    /// The first line and the fields.
    fn read(&self) -> (String, Vec<(String, String)>) {
        let mut lines = self.text.split(|&byte| byte == b'\n');
        let first = lines.next().map(|line| String::from_utf8_lossy(line).into_owned()).unwrap_or_default();
        let fields = lines
            .filter_map(|line| {
                let colon = line.iter().position(|&byte| byte == b':')?;
                Some((latin1(&line[..colon]), latin1(&line[colon + 1..])))
            })
            .collect();
        (first, fields)
    }

    fn object(
        &self,
        py: Python<'_>,
        make: impl FnOnce(String, Vec<(String, String)>) -> PyResult<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        if let Some(object) = self.object.get() {
            return Ok(object.clone_ref(py));
        }
        let (first, fields) = self.read();
        let object = make(first, fields)?;
        // If another thread was faster, its object is the one.
        Ok(self.object.get_or_init(|| object).clone_ref(py))
    }
}

impl Heads {
    /// Without a response.
    pub(crate) fn new(request: &Request) -> Self {
        Self { request: Head::new(&request.target, &request.headers), response: OnceLock::new() }
    }

    /// The response that was received, or is sent; it accepts, so it has no body.
    pub(crate) fn set_response(&self, response: &Response) {
        let _ = self.response.set((response.status, Head::new(&response.reason, &response.headers))); // once
    }

    /// The same, as the application made it.
    pub(crate) fn set_response_object(&self, response: Py<PyAny>) {
        let head = Head { text: Box::default(), object: OnceLock::from(response) };
        let _ = self.response.set((0, head)); // once
    }

    /// The `wirespeed.datastructures.Request`.
    pub(crate) fn request(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.request.object(py, |target, fields| {
            let module = py.import("wirespeed.datastructures")?;
            let headers = module.getattr("Headers")?.call_method1("from_raw", (fields,))?;
            Ok(module.getattr("Request")?.call1((target, headers))?.unbind())
        })
    }

    /// The `wirespeed.datastructures.Response`, if there is one yet.
    pub(crate) fn response(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let Some((status, head)) = self.response.get() else { return Ok(None) };
        let make = |reason: String, fields| Ok(make_response(py, *status, &reason, fields, &[])?.unbind());
        head.object(py, make).map(Some)
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.request.object.get())?;
        visit.call(self.response.get().and_then(|(_, head)| head.object.get()))
    }
}

/// The reverse of [`response`]: status, reason, fields and body of a `wirespeed.datastructures.Response`.
pub(crate) fn response_from_python(response: &Bound<'_, PyAny>) -> PyResult<Response> {
    let py = response.py();
    let fields = response.getattr("headers")?.call_method0("raw_items")?.try_iter()?;
    let fields = fields.map(|pair| pair?.extract()).collect::<PyResult<Vec<(String, String)>>>()?;
    let mut made = Response::new(response.getattr("status_code")?.extract()?, from_python(py, fields)?);
    made.reason = response.getattr("reason_phrase")?.extract()?;
    made.body = response.getattr("body")?.extract::<Option<Vec<u8>>>()?.unwrap_or_default();
    Ok(made)
}

/// A `wirespeed.datastructures.Response`.
pub(crate) fn response<'py>(py: Python<'py>, response: &Response) -> PyResult<Bound<'py, PyAny>> {
    make_response(py, response.status, response.reason.as_str(), to_python(&response.headers), &response.body)
}

fn make_response<'py>(
    py: Python<'py>,
    status: u16,
    reason: &str,
    fields: Vec<(String, String)>,
    body: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    let module = py.import("wirespeed.datastructures")?;
    let headers = module.getattr("Headers")?.call_method1("from_raw", (fields,))?;
    module.getattr("Response")?.call1((status, reason, headers, PyBytes::new(py, body)))
}
