//! Connection and message limits of an engine, from Python arguments.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use wirespeed_engine::auth::acl::DefaultPolicy;
use wirespeed_engine::config::{ForwardedHeader, Inbound, Limits, Networks, Proxies, Rate, RatePolicy};

use super::arguments::seconds;

/// The limits of an engine.
#[pyclass(frozen, name = "EngineLimits", module = "wirespeed._native")]
pub(crate) struct PyLimits {
    pub(super) admission: Limits,
    pub(super) proxies: Proxies,
    pub(super) inbound: Inbound,
    pub(super) default_policy: DefaultPolicy,
}

/// Converts a limit that must be at least 1; `None` means no limit.
fn count(name: &str, value: Option<usize>) -> PyResult<usize> {
    match value {
        Some(0) => Err(PyValueError::new_err(format!("{name} must be 1 or more"))),
        value => Ok(value.unwrap_or(usize::MAX)),
    }
}

pub(super) fn rate(
    name: &str,
    per_second: Option<f64>,
    burst_name: &str,
    burst: Option<f64>,
) -> PyResult<Option<Rate>> {
    let Some(per_second) = per_second else {
        return match burst {
            None => Ok(None),
            Some(_) => Err(PyValueError::new_err(format!("{burst_name} needs {name}"))),
        };
    };
    if burst.is_some_and(|burst| burst.is_nan() || burst < 1.0) {
        return Err(PyValueError::new_err(format!("{burst_name} must be 1 or more")));
    }
    match Rate::new(per_second, burst) {
        Some(rate) => Ok(Some(rate)),
        None => Err(PyValueError::new_err(format!("{name} must be a number above 0"))),
    }
}

pub(super) fn rate_policy(name: &str) -> PyResult<RatePolicy> {
    match name {
        "delay" => Ok(RatePolicy::Delay),
        "drop" => Ok(RatePolicy::Drop),
        "disconnect" => Ok(RatePolicy::Disconnect),
        other => Err(PyValueError::new_err(format!(
            "rate_policy must be \"delay\", \"drop\" or \"disconnect\", not {other:?}"
        ))),
    }
}

#[pymethods]
impl PyLimits {
    #[new]
    #[pyo3(signature = (*, max_connections, max_pending, max_connections_per_address, connections_per_second_per_address, connection_burst_per_address, max_sessions_per_user, retry_after, proxy_protocol, trusted_proxies, forwarded_header, max_messages_per_second, message_burst, max_bytes_per_second, byte_burst, rate_policy, topics_by_default))]
    #[allow(clippy::too_many_arguments)] // keyword-only, from one caller
    fn new(
        max_connections: Option<usize>,
        max_pending: usize,
        max_connections_per_address: Option<usize>,
        connections_per_second_per_address: Option<f64>,
        connection_burst_per_address: Option<f64>,
        max_sessions_per_user: Option<usize>,
        retry_after: f64,
        proxy_protocol: Vec<String>,
        trusted_proxies: Vec<String>,
        forwarded_header: &str,
        max_messages_per_second: Option<f64>,
        message_burst: Option<f64>,
        max_bytes_per_second: Option<f64>,
        byte_burst: Option<f64>,
        rate_policy: &str,
        topics_by_default: &str,
    ) -> PyResult<Self> {
        let admission = Limits {
            max_connections: count("max_connections", max_connections)?,
            max_pending: count("max_pending", Some(max_pending))?,
            max_connections_per_address: count("max_connections_per_address", max_connections_per_address)?,
            rate_per_address: rate(
                "connections_per_second_per_address",
                connections_per_second_per_address,
                "connection_burst_per_address",
                connection_burst_per_address,
            )?,
            max_sessions_per_user: count("max_sessions_per_user", max_sessions_per_user)?,
            retry_after: seconds("retry_after", Some(retry_after))?.unwrap_or_default(),
        };
        let networks = |name: &str, texts: &[String]| {
            Networks::parse(texts).map_err(|error| PyValueError::new_err(format!("{name}: {error}")))
        };
        let proxies = Proxies {
            protocol: networks("proxy_protocol", &proxy_protocol)?,
            trusted: networks("trusted_proxies", &trusted_proxies)?,
            header: match forwarded_header {
                "x-forwarded-for" => ForwardedHeader::XForwardedFor,
                "forwarded" => ForwardedHeader::Forwarded,
                other => {
                    return Err(PyValueError::new_err(format!(
                        "forwarded_header must be \"x-forwarded-for\" or \"forwarded\", not {other:?}"
                    )));
                }
            },
        };
        let inbound = Inbound {
            messages: rate("max_messages_per_second", max_messages_per_second, "message_burst", message_burst)?,
            bytes: rate("max_bytes_per_second", max_bytes_per_second, "byte_burst", byte_burst)?,
            policy: self::rate_policy(rate_policy)?,
        };
        let default_policy = match topics_by_default {
            "all" => DefaultPolicy::All,
            "none" => DefaultPolicy::Nothing,
            other => {
                return Err(PyValueError::new_err(format!(
                    "topics_by_default must be \"all\" or \"none\", not {other:?}"
                )));
            }
        };
        Ok(Self { admission, proxies, inbound, default_policy })
    }
}
