//! The native TLS configurations of servers and clients, and the errors of building them.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use wirespeed_driver::tls::client::{ClientConfig, Options, Version};
use wirespeed_driver::tls::server;

use crate::errors;

/// Returns a number that changes when the files of the system's certificate authorities change.
#[pyfunction]
pub(crate) fn system_authorities(py: Python<'_>) -> u64 {
    py.detach(wirespeed_driver::tls::authorities)
}

/// A TLS configuration for servers. Private: `wirespeed.TLS` reads the files and creates it.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct ServerTLS {
    pub(crate) config: Arc<server::ServerConfig>,
}

#[pymethods]
impl ServerTLS {
    #[new]
    #[pyo3(signature = (*, client_ca, cert_pem, key_pem, alpn, min_version, max_version))]
    fn new(
        py: Python<'_>,
        client_ca: Vec<Vec<u8>>,
        cert_pem: Vec<u8>,
        key_pem: Vec<u8>,
        alpn: Vec<Vec<u8>>,
        min_version: Option<&str>,
        max_version: Option<&str>,
    ) -> PyResult<Self> {
        let versions = versions(min_version, max_version)?;
        let options = server::Options { certificate: cert_pem, key: key_pem, client_ca, alpn, versions };
        let config = py.detach(|| options.build()).map_err(|error| errors::tls_error(py, error))?;
        Ok(Self { config })
    }
}

pub(crate) fn versions(min_version: Option<&str>, max_version: Option<&str>) -> PyResult<Vec<Version>> {
    match (min_version, max_version) {
        (None | Some("1.2"), None | Some("1.3")) => Ok(vec![Version::Tls12, Version::Tls13]),
        (None | Some("1.2"), Some("1.2")) => Ok(vec![Version::Tls12]),
        (Some("1.3"), None | Some("1.3")) => Ok(vec![Version::Tls13]),
        (min, max) => Err(PyValueError::new_err(format!(
            "minimum_version={min:?}, maximum_version={max:?}: the versions are \"1.2\" and \"1.3\""
        ))),
    }
}

/// A TLS configuration for clients. Private: `wirespeed.TLS` reads the files and creates it.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct ClientTLS {
    pub(crate) config: Arc<ClientConfig>,
    /// Whether any certificate is accepted.
    pub(crate) insecure: bool,
}

#[pymethods]
impl ClientTLS {
    #[new]
    #[pyo3(signature = (*, ca_pem, system_roots, cert_pem, key_pem, verify, alpn, min_version, max_version, key_log))]
    #[allow(clippy::too_many_arguments)] // keyword-only, from one caller
    fn new(
        py: Python<'_>,
        ca_pem: Vec<Vec<u8>>,
        system_roots: bool,
        cert_pem: Option<Vec<u8>>,
        key_pem: Option<Vec<u8>>,
        verify: bool,
        alpn: Vec<Vec<u8>>,
        min_version: Option<&str>,
        max_version: Option<&str>,
        key_log: bool,
    ) -> PyResult<Self> {
        let versions = versions(min_version, max_version)?;
        let options = Options {
            ca: ca_pem,
            system_roots,
            certificate: cert_pem,
            key: key_pem,
            insecure: !verify,
            alpn,
            versions,
            key_log,
        };
        // The first call reads the system's certificates, which takes milliseconds.
        let config = py.detach(|| options.build()).map_err(|error| errors::tls_error(py, error))?;
        Ok(Self { config, insecure: !verify })
    }
}
