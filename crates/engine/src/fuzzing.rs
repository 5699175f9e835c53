//! What takes bytes that others have made, and is private: for the fuzz targets, behind a feature.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use wirespeed_driver::protocol::handshake::{HeaderList, Request, Response, ServerHandshake};

use crate::admission::{NoHeader, Proxies, ProxyHead};
use crate::auth::{self, Algorithm};
use crate::routes::{self, Route, Routes};
use crate::topics::Topic;
use crate::{Engine, Relay, http};

/// The client's address, if a PROXY header says one, and what follows the header.
pub type Announced = (Option<SocketAddr>, Vec<u8>);

/// The beginning of a connection that comes in pieces. `Ok(None)`: more is to come; an error: it is no PROXY header.
/// After either end no more is taken.
#[allow(clippy::result_unit_err)] // that it is none is all there is to say
pub fn proxy_header<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Option<Announced>, ()> {
    let mut head = ProxyHead::default();
    let mut pieces = pieces.into_iter();
    while let Some(piece) = pieces.next() {
        if let Some((client, mut rest)) = head.receive(piece).map_err(|NoHeader| ())? {
            pieces.for_each(|piece| rest.extend_from_slice(piece));
            return Ok(Some((client, rest)));
        }
    }
    Ok(None)
}

/// Who has sent a request.
#[must_use]
pub fn client(proxies: &Proxies, peer: Option<SocketAddr>, headers: &HeaderList) -> Option<SocketAddr> {
    proxies.client(peer, headers)
}

/// How many keys of a JWK set may be used.
///
/// # Errors
/// It is none, or none may: in words.
pub fn jwk_set(bytes: &[u8], algorithms: &[Algorithm]) -> Result<usize, String> {
    auth::jwk_set(bytes, algorithms)
}

/// Where a request goes.
#[must_use]
pub fn find(routes: &Routes, request: &Request) -> Option<Arc<Route>> {
    routes.find(request)
}

/// The path and the query of a request.
#[must_use]
pub fn path_and_query(request: &Request) -> (&str, &str) {
    (routes::path(request), routes::query(request))
}

/// The subprotocol that is chosen.
#[must_use]
pub fn subprotocol<'a>(route: &'a Route, headers: &HeaderList) -> Option<&'a str> {
    route.subprotocol(headers)
}

/// The topic that a request to a relay names.
#[must_use]
pub fn topic(relay: &Relay, route: &Route, request: &Request) -> Option<Topic> {
    relay.topic(route, request)
}

/// What is answered over HTTP, at the engine's own address for it if `internal`.
#[must_use]
pub fn answer(engine: &Engine, handshake: &ServerHandshake, internal: bool) -> Option<Response> {
    // Each time another client, or the addresses of wrong tokens would be refused.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let remote = SocketAddr::from((NUMBER.fetch_add(1, Ordering::Relaxed).to_be_bytes(), 1));
    http::answer(handshake, Some(remote), internal, engine.shared())
}
