//! Where sessions begin, by the paths of requests, and what holds for each path. Known once for all sessions of it.

use std::fmt;
use std::sync::Arc;

use matchit::Router;
use wirespeed_driver::protocol::Limits;
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::handshake::{HeaderList, Request};

use crate::auth::Jwt;
use crate::config::{Config, Role};
use crate::inbound::Inbound;
use crate::outbox::Policy;

/// Whose pages may connect, by the Origin that browsers send (RFC 6455 10.2). Whoever sends none is no browser,
/// and may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origins {
    /// Those of the host that the request names.
    #[default]
    Same,
    /// All.
    Any,
    /// These, as browsers write them: `https://example.com`, with a port if it is not the scheme's.
    Listed(Vec<String>),
}

impl Origins {
    /// Whether the request may become a session.
    #[must_use]
    pub fn admit(&self, headers: &HeaderList) -> bool {
        let mut origins = headers.all("Origin");
        let Some(origin) = origins.next() else { return true };
        if origins.next().is_some() {
            return false; // RFC 6454 7.3: one at most
        }
        match self {
            Self::Any => true,
            Self::Listed(listed) => listed.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(origin)),
            Self::Same => {
                let host = headers.value_str("Host").unwrap_or_default();
                let of = |scheme: &str| {
                    let rest = std::str::from_utf8(origin).ok()?.strip_prefix(scheme)?;
                    Some(rest.eq_ignore_ascii_case(host))
                };
                of("http://").or_else(|| of("https://")).unwrap_or(false)
            }
        }
    }
}

/// A path as it was added, and what it names.
#[derive(Clone, Default)]
pub struct PathPattern {
    text: Box<str>,
    /// The same alone.
    matcher: Router<()>,
}

/// What is done with the clients of a path. [`Route::new`] has the settings of the engine.
#[derive(Clone)]
pub struct Route {
    /// The path: [`Routes::add`] sets it.
    pub pattern: PathPattern,
    /// What is done with their messages.
    pub role: Role,
    /// Whatever the application says it is; 0: nothing.
    pub tag: u32,
    /// Who they are, by their tokens. `None`: nobody is asked.
    pub auth: Option<Arc<Jwt>>,
    /// Whose pages may connect.
    pub origins: Origins,
    /// Subprotocols, the preferred one first: the first that the client offers is chosen.
    pub subprotocols: Vec<String>,
    /// How permessage-deflate is accepted; `None`: it is not.
    pub compression: Option<negotiate::Config>,
    /// Of what they send.
    pub limits: Limits,
    /// How much of it.
    pub inbound: Inbound,
    /// Bytes that may wait for one of them.
    pub outbox_limit: usize,
    /// What becomes of what is more.
    pub policy: Policy,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route").field("pattern", &self.pattern.text).field("role", &self.role).finish_non_exhaustive()
    }
}

impl Route {
    /// With the settings of the engine.
    #[must_use]
    pub fn new(role: Role, config: &Config) -> Self {
        Self {
            pattern: PathPattern::default(),
            role,
            tag: 0,
            auth: config.auth.clone(),
            origins: config.origins.clone(),
            subprotocols: config.subprotocols.clone(),
            compression: config.compression,
            limits: config.limits,
            inbound: config.inbound,
            outbox_limit: config.outbox_limit,
            policy: config.policy,
        }
    }

    /// The path, as it was [added](Routes::add); `None`: it has none of its own.
    #[must_use]
    pub fn pattern(&self) -> Option<&str> {
        (!self.pattern.text.is_empty()).then_some(&*self.pattern.text)
    }

    /// The segments that the pattern names, as they stand in a path that it matches: percent-encoded.
    pub fn params<'a>(&'a self, path: &'a str) -> Vec<(&'a str, &'a str)> {
        self.pattern.matcher.at(path).map(|found| found.params.iter().collect()).unwrap_or_default()
    }

    /// The first of the subprotocols that the client offers.
    pub(crate) fn subprotocol(&self, headers: &HeaderList) -> Option<&str> {
        // RFC 6455 4.1: values are compared as they are, not without case.
        let offered = |name: &&String| headers.tokens("Sec-WebSocket-Protocol").any(|token| token == name.as_bytes());
        self.subprotocols.iter().find(offered).map(String::as_str)
    }
}

/// The paths of an engine.
#[derive(Clone, Default)]
pub struct Routes {
    router: Router<Arc<Route>>,
    least_outbox: Option<usize>,
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes").finish_non_exhaustive()
    }
}

impl Routes {
    /// Without paths.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a path: `/feed`, or with names for a segment, `/feed/{symbol}`, or for all that follow,
    /// `/files/{*rest}`.
    ///
    /// # Errors
    /// The path is none, or another one stands in its way; or it is a relay's and names no `topic`: in words.
    pub fn add(&mut self, path: &str, mut route: Route) -> Result<(), String> {
        let refused = |error: matchit::InsertError| format!("{path:?}: {error}");
        let mut matcher = Router::new();
        matcher.insert(path, ()).map_err(refused)?;
        route.pattern = PathPattern { text: path.into(), matcher };
        if matches!(route.role, Role::Relay(_)) && !["{topic}", "{*topic}"].iter().any(|name| path.contains(name)) {
            return Err(format!("{path:?}: a relay needs {{topic}} or {{*topic}} in its path"));
        }
        self.add_unnamed(path, route)
    }

    /// The same, of a route that its sessions do not know by a path.
    ///
    /// # Errors
    /// As for [`Self::add`].
    pub fn add_unnamed(&mut self, path: &str, route: Route) -> Result<(), String> {
        if !path.starts_with('/') {
            return Err(format!("{path:?} does not begin with a slash"));
        }
        let outbox = route.outbox_limit;
        self.router.insert(path, Arc::new(route)).map_err(|error| format!("{path:?}: {error}"))?;
        self.least_outbox = Some(self.least_outbox.map_or(outbox, |least| least.min(outbox)));
        Ok(())
    }

    /// Where a request goes.
    pub(crate) fn find(&self, request: &Request) -> Option<Arc<Route>> {
        self.router.at(path(request)).ok().map(|found| Arc::clone(found.value))
    }

    /// The least of the limits of all outboxes.
    pub(crate) fn least_outbox(&self) -> Option<usize> {
        self.least_outbox
    }
}

/// The path of a request's target, not decoded.
pub(crate) fn path(request: &Request) -> &str {
    request.target.split(['?', '#']).next().unwrap_or_default()
}
