//! Exposes private functions that parse untrusted input, for the fuzz targets. Behind a feature.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use wirespeed_driver::protocol::handshake::{HeaderList, Request, Response, ServerHandshake};

use crate::admission::{NotProxyHeader, ProxyHead};
use crate::auth::{self, Algorithm};
use crate::config::{Proxies, Relay, Route, Routes, routes};
use crate::topics::Topic;
use crate::{Engine, http};

/// The client's address, if the PROXY header contains one, and the bytes after the header.
pub type Announced = (Option<SocketAddr>, Vec<u8>);

/// Parses the beginning of a connection that arrives in pieces. `Ok(None)`: more is needed; an error: it is not a PROXY
/// header.
#[allow(clippy::result_unit_err)] // there are no details to return
pub fn proxy_header<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Option<Announced>, ()> {
    let mut head = ProxyHead::default();
    let mut pieces = pieces.into_iter();
    while let Some(piece) = pieces.next() {
        if let Some((client, mut rest)) = head.receive(piece).map_err(|NotProxyHeader| ())? {
            pieces.for_each(|piece| rest.extend_from_slice(piece));
            return Ok(Some((client, rest)));
        }
    }
    Ok(None)
}

/// Returns the client that sent a request.
#[must_use]
pub fn client(proxies: &Proxies, peer: Option<SocketAddr>, headers: &HeaderList) -> Option<SocketAddr> {
    proxies.client(peer, headers)
}

/// Returns the number of usable keys in a JWK set.
///
/// # Errors
/// The text is not a JWK set, or no key in it is usable.
pub fn jwk_set(bytes: &[u8], algorithms: &[Algorithm]) -> Result<usize, String> {
    auth::jwk_set(bytes, algorithms)
}

/// Returns the route of a request.
#[must_use]
pub fn find(routes: &Routes, request: &Request) -> Option<Arc<Route>> {
    routes.find(request)
}

/// Returns the path and the query of a request.
#[must_use]
pub fn path_and_query(request: &Request) -> (&str, &str) {
    (routes::path(request), routes::query(request))
}

/// Returns the subprotocol that a route chooses.
#[must_use]
pub fn subprotocol<'a>(route: &'a Route, headers: &HeaderList) -> Option<&'a str> {
    route.subprotocol(headers)
}

/// Returns the topic that a request to a relay names.
#[must_use]
pub fn topic(relay: &Relay, route: &Route, request: &Request) -> Option<Topic> {
    route.relay_topic(relay, request)
}

/// Answers a request over HTTP; `internal`: at the engine's own address for operators.
#[must_use]
pub fn answer(engine: &Engine, handshake: &ServerHandshake, internal: bool) -> Option<Response> {
    // A new client address for each call, because addresses with too many wrong tokens are refused.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let remote = SocketAddr::from((NUMBER.fetch_add(1, Ordering::Relaxed).to_be_bytes(), 1));
    http::answer(handshake, Some(remote), internal, engine.shared())
}
