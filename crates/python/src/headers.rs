//! Header fields and HTTP messages, to and from Python.

use std::sync::OnceLock;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use wirespeed_driver::protocol::handshake::{HeaderList, Request, Response};

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

/// The heads of an opening handshake, kept as text until somebody asks for them: an idle connection holds no objects for what is seldom read.
pub(crate) struct Heads {
    /// Target and fields of the request, an empty line, reason and fields of the response; each ends with LF, which none can contain.
    text: Box<[u8]>,
    status: u16,
    request: OnceLock<Py<PyAny>>,
    response: OnceLock<Py<PyAny>>,
}

impl Heads {
    /// Of a response without a body: it accepts.
    pub(crate) fn new(request: &Request, response: &Response) -> Self {
        let mut text = Vec::with_capacity(1024);
        for (first, headers) in [(&request.target, &request.headers), (&response.reason, &response.headers)] {
            text.extend_from_slice(first.as_bytes());
            text.push(b'\n');
            for header in headers.iter() {
                text.extend_from_slice(header.name().as_bytes());
                text.push(b':');
                text.extend_from_slice(header.value());
                text.push(b'\n');
            }
            text.push(b'\n');
        }
        Self {
            text: text.into_boxed_slice(),
            status: response.status,
            request: OnceLock::new(),
            response: OnceLock::new(),
        }
    }

    /// The first line and the fields of the head that begins at `start`, and where it ends.
    fn read(&self, start: usize) -> (String, Vec<(String, String)>, usize) {
        let mut end = start;
        let mut lines = self.text[start..].split(|&byte| byte == b'\n').inspect(|line| end += line.len() + 1);
        let first = lines.next().map(|line| String::from_utf8_lossy(line).into_owned()).unwrap_or_default();
        let fields = lines
            .by_ref()
            .take_while(|line| !line.is_empty())
            .filter_map(|line| {
                let colon = line.iter().position(|&byte| byte == b':')?;
                Some((latin1(&line[..colon]), latin1(&line[colon + 1..])))
            })
            .collect();
        drop(lines);
        (first, fields, end)
    }

    /// The `wirespeed.datastructures.Request`.
    pub(crate) fn request(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if let Some(request) = self.request.get() {
            return Ok(request.clone_ref(py));
        }
        let (target, fields, _) = self.read(0);
        let module = py.import("wirespeed.datastructures")?;
        let headers = module.getattr("Headers")?.call_method1("from_raw", (fields,))?;
        let request = module.getattr("Request")?.call1((target, headers))?.unbind();
        // If another thread was faster, its object is the one.
        Ok(self.request.get_or_init(|| request).clone_ref(py))
    }

    /// The `wirespeed.datastructures.Response`.
    pub(crate) fn response(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if let Some(response) = self.response.get() {
            return Ok(response.clone_ref(py));
        }
        let (_, _, start) = self.read(0);
        let (reason, fields, _) = self.read(start);
        let response = make_response(py, self.status, &reason, fields, &[])?.unbind();
        Ok(self.response.get_or_init(|| response).clone_ref(py))
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.request.get())?;
        visit.call(self.response.get())
    }
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
