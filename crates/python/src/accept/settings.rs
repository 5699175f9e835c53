//! The settings of a server that its connections need.

use std::time::Duration;

use pyo3::prelude::*;
use wirespeed_driver::blocking::Settings;
use wirespeed_driver::protocol::Limits;
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::handshake::ServerConfig;

use crate::opening::{DeflateOptions, duration};

/// The settings that all connections of a server share: keyword arguments of `serve`, checked by Python code.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct ServerSettings {
    pub(super) config: ServerConfig,
    pub(super) limits: Limits,
    pub(super) settings: Settings,
    pub(super) ping_interval: Option<Duration>,
    pub(super) ping_timeout: Option<Duration>,
}

#[pymethods]
impl ServerSettings {
    #[new]
    #[pyo3(signature = (*, subprotocols, deflate, max_size, max_fragment_size, max_fragments, queue_messages, queue_bytes, ping_interval, ping_timeout, close_timeout))]
    #[allow(clippy::too_many_arguments)] // keyword-only, from one caller
    fn new(
        subprotocols: Vec<String>,
        deflate: Option<DeflateOptions>,
        max_size: Option<usize>,
        max_fragment_size: Option<usize>,
        max_fragments: Option<u32>,
        queue_messages: usize,
        queue_bytes: usize,
        ping_interval: Option<f64>,
        ping_timeout: Option<f64>,
        close_timeout: Option<f64>,
    ) -> PyResult<Self> {
        Ok(Self {
            config: ServerConfig { deflate: deflate.map(negotiate::Config::from), subprotocols },
            limits: Limits { message_size: max_size, fragment_size: max_fragment_size, fragments: max_fragments },
            settings: Settings {
                close_timeout: duration("close_timeout", close_timeout)?,
                queue_messages,
                queue_bytes,
            },
            ping_interval: duration("ping_interval", ping_interval)?,
            ping_timeout: duration("ping_timeout", ping_timeout)?,
        })
    }
}
