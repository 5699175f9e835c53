//! Python bindings: they convert, call, map errors, and stop. Protocol and sockets are the business of the crates below.

mod blocking;
mod errors;
mod headers;
mod payload;
mod source;
mod ssl_layer;
mod tls;

use pyo3::prelude::*;

/// The native part of wirespeed. Private: use the names of the `wirespeed` package.
#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use crate::blocking::connection::BlockingConnection;
    #[pymodule_export]
    use crate::blocking::opening::{Opened, Transport, check_request};
    #[pymodule_export]
    use crate::blocking::ping::Ping;
    #[pymodule_export]
    use crate::tls::ClientTLS;

    use pyo3::prelude::*;

    /// To be called in the child after a fork, so that it draws masking keys of its own.
    #[pyfunction]
    fn after_fork() {
        wirespeed_driver::entropy::after_fork();
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
