//! The settings of one route, from Python arguments. Omitted settings default to the engine's.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_engine::auth::Jwt;
use wirespeed_engine::config::{Origins, Policy};
use wirespeed_engine::{Config, Relay, Role, Route};

use super::arguments::topic;
use super::auth::PyJwt;
use super::limits::{rate, rate_policy};

/// Converts the allowed origins.
pub(super) fn origins(listed: Option<Vec<String>>) -> PyResult<Origins> {
    let Some(listed) = listed else { return Ok(Origins::Same) };
    Origins::listed(listed).map_err(|error| PyValueError::new_err(format!("origins: {error}")))
}

/// Converts the policy for clients that read too slowly.
pub(super) fn policy(name: &str) -> PyResult<Policy> {
    match name {
        "disconnect" => Ok(Policy::Disconnect),
        "drop_oldest" => Ok(Policy::DropOldest),
        "drop_newest" => Ok(Policy::DropNewest),
        "conflate" => Ok(Policy::Conflate),
        other => Err(PyValueError::new_err(format!(
            "policy must be \"disconnect\", \"drop_oldest\", \"drop_newest\" or \"conflate\", not {other:?}"
        ))),
    }
}

/// Refuses subprotocols with which browsers could not connect.
pub(super) fn check_subprotocols(offered: &[String], auth: Option<&Jwt>) -> PyResult<()> {
    let Some(auth) = auth.filter(|auth| auth.looks_at_subprotocols()) else { return Ok(()) };
    if let Some(name) = offered.iter().find(|name| auth.carries_token(name)) {
        return Err(PyValueError::new_err(format!(
            "subprotocols: {name:?} would be taken for a token, as it begins like one"
        )));
    }
    if offered.is_empty() {
        // RFC 6455 4.1 lets a client continue without a subprotocol; the WebSockets standard of browsers does not.
        return Err(PyValueError::new_err(
            "subprotocols: browsers that send a token as a subprotocol fail the connection if none is chosen; \
             offer one beside it",
        ));
    }
    Ok(())
}

/// Converts the role of a route.
pub(super) fn role(name: &str, settings: &Bound<'_, PyDict>) -> PyResult<Role> {
    Ok(match name {
        "echo" => Role::Echo,
        "relay" => {
            let mut relay = Relay::default();
            for (name, wanted) in
                [("send", &mut relay.send), ("receive", &mut relay.receive), ("echo", &mut relay.echo)]
            {
                if let Some(given) = setting(settings, name)? {
                    *wanted = given;
                }
            }
            let prefix: Option<String> = setting(settings, "prefix")?.flatten();
            relay.prefix = prefix.filter(|prefix| !prefix.is_empty()).map(|prefix| topic(&prefix)).transpose()?;
            Role::Relay(relay)
        }
        _ => Role::Events,
    })
}

/// Returns a setting, if it is given. A wrong type raises `TypeError` with its name.
fn setting<'py, T: FromPyObjectOwned<'py>>(settings: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<T>> {
    let Some(given) = settings.get_item(name)? else { return Ok(None) };
    match given.extract::<T>() {
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            let error: PyErr = error.into();
            Err(PyTypeError::new_err(format!("{name}: {}", error.value(settings.py()))))
        }
    }
}

/// Returns a route with these settings.
pub(super) fn route(role: Role, tag: u32, config: &Config, settings: &Bound<'_, PyDict>) -> PyResult<Route> {
    let mut route = Route { tag, ..Route::new(role, config.route_settings()) };
    if let Some(given) = settings.get_item("auth")? {
        route.settings.auth = if given.is_none() {
            None
        } else {
            let jwt = given.cast::<PyJwt>().map_err(|_| PyTypeError::new_err("auth must be a JWT or None"))?;
            Some(jwt.get().jwt.clone())
        };
    }
    if let Some(listed) = setting(settings, "origins")? {
        route.settings.origins = origins(listed)?;
    }
    if let Some(offered) = setting(settings, "subprotocols")? {
        route.settings.subprotocols = offered;
    }
    check_subprotocols(&route.settings.subprotocols, route.settings.auth.as_deref())?;
    if let Some(compresses) = setting::<bool>(settings, "compression")? {
        route.settings.compression = compresses.then(negotiate::Config::server);
    }
    if let Some(size) = setting(settings, "max_size")? {
        route.settings.limits.message_size = size;
    }
    if let Some(fragments) = setting(settings, "max_fragments")? {
        route.settings.limits.fragments = fragments;
    }
    for (name, burst_name, limit) in [
        ("max_messages_per_second", "message_burst", &mut route.settings.inbound.messages),
        ("max_bytes_per_second", "byte_burst", &mut route.settings.inbound.bytes),
    ] {
        let (per_second, burst) = (setting::<Option<f64>>(settings, name)?, setting(settings, burst_name)?.flatten());
        if per_second.is_some() || burst.is_some() {
            *limit = rate(name, per_second.flatten(), burst_name, burst)?;
        }
    }
    if let Some(name) = setting::<String>(settings, "rate_policy")? {
        route.settings.inbound.policy = rate_policy(&name)?;
    }
    if let Some(limit) = setting(settings, "outbox_limit")? {
        route.settings.outbox_limit = limit;
    }
    if let Some(name) = setting::<String>(settings, "policy")? {
        route.settings.policy = policy(&name)?;
    }
    Ok(route)
}
