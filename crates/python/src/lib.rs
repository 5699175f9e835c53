//! Python bindings: conversion of arguments and results, calls into the crates below, and mapping of errors.
//! The protocol, the sockets and the engine live in those crates.

// No input of a peer may cause a panic.
#![deny(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unreachable,
    clippy::unwrap_used
)]

mod accept;
mod addresses;
mod asyncio;
mod blocking;
mod engine;
mod errors;
#[cfg(feature = "fault-injection")]
mod failpoint;
mod gil_yield;
mod handshake;
mod headers;
mod leaked;
mod opening;
mod options;
mod payload;
mod source;
mod ssl_layer;

#[cfg(threads_are_unwound)]
mod thread_exit;
mod tls;
mod view;

use pyo3::prelude::*;

/// The native part of wirespeed. Private: import from the `wirespeed` package instead.
// The module needs the GIL until the test suites have run on a free-threaded interpreter.
#[pymodule(gil_used = true)]
mod _native {
    #[pymodule_export]
    use crate::accept::limiter::{HandshakeLimiter, origin_of};
    #[pymodule_export]
    use crate::accept::pending::PendingHandshake;
    #[pymodule_export]
    use crate::asyncio::broadcast::broadcast;
    #[pymodule_export]
    use crate::asyncio::connection::AsyncConnection;
    #[pymodule_export]
    use crate::asyncio::loop_state::LoopState;
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use crate::asyncio::selector::NativeSelector;
    #[pymodule_export]
    use crate::blocking::connection::BlockingConnection;
    #[pymodule_export]
    use crate::blocking::ping::Ping;
    #[pymodule_export]
    use crate::engine::auth::PyJwt;
    #[pymodule_export]
    use crate::engine::batch::{BatchIterator, PyBatch, Undecoded};
    #[pymodule_export]
    use crate::engine::broker::NativePublisher;
    #[pymodule_export]
    use crate::engine::event::{Connected, Disconnected, Invalid};
    #[pymodule_export]
    use crate::engine::handle::NativeEngine;
    #[pymodule_export]
    use crate::engine::limits::PyLimits;
    #[pymodule_export]
    use crate::engine::logs::NativeLogs;
    #[pymodule_export]
    use crate::engine::operations::{NativeDraining, NativeHandoff};
    #[pymodule_export]
    use crate::engine::session::{PySession, Sent};
    #[pymodule_export]
    use crate::engine::wakers::{CapacityWaker, EventsWaker};
    #[pymodule_export]
    use crate::handshake::{Answer, Handshake, accept_key};
    #[pymodule_export]
    use crate::opening::client::ClientOpening;
    #[pymodule_export]
    use crate::opening::connected::{ConnectedSocket, accept};
    #[pymodule_export]
    use crate::opening::{ClientPlan, Opened};
    #[pymodule_export]
    use crate::options::{NativeClientOptions, NativeServerOptions};
    #[pymodule_export]
    use crate::tls::{ClientTLS, ServerTLS, system_authorities};

    use pyo3::prelude::*;

    /// Must be called in the child process after a fork, so that it draws its own masking keys.
    #[pyfunction]
    fn after_fork() {
        wirespeed_driver::after_fork();
    }

    /// Sets how many bytes all connections together may keep for compression. Returns the previous limit.
    #[pyfunction]
    #[pyo3(signature = (limit = None))]
    fn compression_memory(limit: Option<usize>) -> usize {
        let before = wirespeed_driver::compression_pool::budget();
        if let Some(limit) = limit {
            wirespeed_driver::compression_pool::set_budget(limit);
        }
        before
    }

    /// Returns why no browser sends exactly this `Origin` header, or `None` if a browser may send it.
    #[pyfunction]
    fn origin_problem(origin: &str) -> Option<String> {
        wirespeed_engine::config::exact_origin_problem(origin)
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::asyncio::init(module.py())?;
        crate::engine::message::init(module)?;
        #[cfg(feature = "fault-injection")]
        crate::failpoint::init(module)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
