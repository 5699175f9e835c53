//! Conversion of header fields and HTTP messages to and from Python objects.

use std::sync::OnceLock;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use wirespeed_driver::protocol::handshake::{HeaderList, Request, Response, Version};

use crate::errors;

/// Returns the fields as (name, value) pairs. Values are decoded as Latin-1, which preserves every byte.
pub(crate) fn to_python(headers: &HeaderList) -> Vec<(String, String)> {
    headers.iter().map(|header| (header.name().to_owned(), latin1(header.value()))).collect()
}

/// The reverse of [`to_python`]. Raises an exception for fields that an HTTP head cannot contain.
pub(crate) fn from_python(py: Python<'_>, pairs: Vec<(String, String)>) -> PyResult<HeaderList> {
    let mut headers = HeaderList::default();
    for (name, value) in pairs {
        // HTTP text is Latin-1. Other characters are sent as UTF-8, whose meaning HTTP leaves to the peers.
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

/// The heads of an opening handshake, kept as text. Python objects are created on access, so an idle connection
/// holds none.
pub(crate) struct Heads {
    request: Box<[u8]>,
    /// Status, and reason with fields. Empty until a server has answered.
    response: OnceLock<(u16, Box<[u8]>)>,
}

/// Serializes the first line and the fields. Each ends with LF, which none of them can contain.
fn write(first: &str, headers: &HeaderList) -> Box<[u8]> {
    let mut text = Vec::with_capacity(512);
    text.extend_from_slice(first.as_bytes());
    text.push(b'\n');
    for header in headers.iter() {
        text.extend_from_slice(header.name().as_bytes());
        text.push(b':');
        text.extend_from_slice(header.value());
        text.push(b'\n');
    }
    text.into_boxed_slice()
}

/// Parses the output of [`write`]: the first line, and the fields.
fn read(text: &[u8]) -> (String, Vec<(String, String)>) {
    let mut lines = text.split(|&byte| byte == b'\n');
    let first = lines.next().map(|line| String::from_utf8_lossy(line).into_owned()).unwrap_or_default();
    let fields = lines
        .filter_map(|line| {
            let mut parts = line.splitn(2, |&byte| byte == b':');
            Some((latin1(parts.next()?), latin1(parts.next()?)))
        })
        .collect();
    (first, fields)
}

impl Heads {
    /// Keeps the request. The response is set later.
    pub(crate) fn new(request: &Request) -> Self {
        let Request { method, target, version, headers } = request;
        // The usual method and version are left out. None of the three parts contains a space.
        let is_usual = method == "GET" && *version == Version::Http11;
        let first = if is_usual { target } else { &format!("{target} {method} {}", version.as_str()) };
        Self { request: write(first, headers), response: OnceLock::new() }
    }

    /// Keeps the response that was received or is sent, without its body: a response that accepts has none.
    pub(crate) fn set_response(&self, response: &Response) {
        let _ = self.response.set((response.status, write(&response.reason, &response.headers))); // set once
    }

    /// Returns a new `wirespeed.datastructures.Request`.
    pub(crate) fn request(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (first, fields) = read(&self.request);
        let mut parts = first.splitn(3, ' ');
        let target = parts.next().unwrap_or_default();
        let (method, version) = (parts.next().unwrap_or("GET"), parts.next().unwrap_or("HTTP/1.1"));
        static REQUEST: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let request = REQUEST.import(py, "wirespeed.datastructures", "Request")?;
        Ok(request.call1((target, make_headers(py, fields)?, method, version))?.unbind())
    }

    /// Returns a new `wirespeed.datastructures.Response`, or `None` before the response is set.
    pub(crate) fn response(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let Some((status, text)) = self.response.get() else { return Ok(None) };
        let (reason, fields) = read(text);
        Ok(Some(make_response(py, *status, &reason, fields, &[])?.unbind()))
    }
}

/// The reverse of [`response`]: reads status, reason, fields and body of a `wirespeed.datastructures.Response`.
pub(crate) fn response_from_python(response: &Bound<'_, PyAny>) -> PyResult<Response> {
    let py = response.py();
    let fields = response.getattr("headers")?.call_method0("raw_items")?.try_iter()?;
    let fields = fields.map(|pair| pair?.extract()).collect::<PyResult<Vec<(String, String)>>>()?;
    let mut converted = Response::new(response.getattr("status_code")?.extract()?, from_python(py, fields)?);
    converted.reason = response.getattr("reason_phrase")?.extract()?;
    converted.body = response.getattr("body")?.extract::<Option<Vec<u8>>>()?.unwrap_or_default();
    Ok(converted)
}

/// Returns a `wirespeed.datastructures.Response`.
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
    static RESPONSE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let response = RESPONSE.import(py, "wirespeed.datastructures", "Response")?;
    response.call1((status, reason, make_headers(py, fields)?, PyBytes::new(py, body)))
}

/// Returns a `wirespeed.datastructures.Headers` of fields that a peer has sent. They are not validated again.
pub(crate) fn make_headers(py: Python<'_>, fields: Vec<(String, String)>) -> PyResult<Bound<'_, PyAny>> {
    static HEADERS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    HEADERS.import(py, "wirespeed.datastructures", "Headers")?.call_method1("from_raw", (fields,))
}
