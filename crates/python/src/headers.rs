//! Header fields and HTTP messages, to and from Python.

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

/// A `wirespeed.datastructures.Request`.
pub(crate) fn request<'py>(py: Python<'py>, request: &Request) -> PyResult<Bound<'py, PyAny>> {
    let module = py.import("wirespeed.datastructures")?;
    let headers = module.getattr("Headers")?.call_method1("from_raw", (to_python(&request.headers),))?;
    module.getattr("Request")?.call1((request.target.as_str(), headers))
}

/// A `wirespeed.datastructures.Response`.
pub(crate) fn response<'py>(py: Python<'py>, response: &Response) -> PyResult<Bound<'py, PyAny>> {
    let module = py.import("wirespeed.datastructures")?;
    let headers = module.getattr("Headers")?.call_method1("from_raw", (to_python(&response.headers),))?;
    let body = PyBytes::new(py, &response.body);
    module.getattr("Response")?.call1((response.status, response.reason.as_str(), headers, body))
}
