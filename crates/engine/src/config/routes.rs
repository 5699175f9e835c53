//! Routes: the paths of an engine, and the settings that all sessions of a path share.

use std::fmt;
use std::sync::Arc;

use matchit::Router;
use wirespeed_driver::protocol::Limits;
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::handshake::{HeaderList, Request};

use super::limits::{Inbound, Policy};
use super::origins::Origins;
use super::role::{Relay, Role};
use crate::auth::Jwt;
use crate::broker;
use crate::topics::Topic;

/// The name of the path parameter that contains the topic of a relay.
const TOPIC: &str = "topic";

/// A path pattern.
#[derive(Clone, Default)]
pub struct PathPattern {
    text: Box<str>,
    /// Matches this pattern alone.
    matcher: Router<()>,
}

/// The settings that all sessions of a path share. [`Config::route_settings`](super::Config::route_settings) returns
/// those of the engine.
#[derive(Clone)]
pub struct RouteSettings {
    /// Verifies the clients' tokens. `None`: clients need no token.
    pub auth: Option<Arc<Jwt>>,
    /// The origins of pages that may connect.
    pub origins: Origins,
    /// The subprotocols in order of preference: the first one that the client offers is chosen.
    pub subprotocols: Vec<String>,
    /// The settings of permessage-deflate; `None`: it is not accepted.
    pub compression: Option<negotiate::Config>,
    /// Limits on the messages of clients.
    pub limits: Limits,
    /// Limits on the rate of messages.
    pub inbound: Inbound,
    /// The maximum number of bytes in the outbox of a session.
    pub outbox_limit: usize,
    /// The policy for messages that exceed the limits of an outbox.
    pub policy: Policy,
}

/// A path with its settings.
#[derive(Clone)]
pub struct Route {
    /// The pattern of the path, set by [`Routes::add`].
    pub pattern: PathPattern,
    /// The handling of the messages.
    pub role: Role,
    /// A number for the application; 0: none.
    pub tag: u32,
    /// All other settings.
    pub settings: RouteSettings,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route").field("pattern", &self.pattern.text).field("role", &self.role).finish_non_exhaustive()
    }
}

impl Route {
    /// Creates a route without a path.
    #[must_use]
    pub fn new(role: Role, settings: RouteSettings) -> Self {
        Self { pattern: PathPattern::default(), role, tag: 0, settings }
    }

    /// Returns the pattern as it was [added](Routes::add); `None` for the fallback.
    #[must_use]
    pub fn pattern(&self) -> Option<&str> {
        (!self.pattern.text.is_empty()).then_some(&*self.pattern.text)
    }

    /// Returns the parameters of a path that matches the pattern, percent-encoded.
    pub fn params<'a>(&'a self, path: &'a str) -> Vec<(&'a str, &'a str)> {
        self.pattern.matcher.at(path).map(|found| found.params.iter().collect()).unwrap_or_default()
    }

    /// Returns the topic of a relay that a request names; `None` if it is invalid or reserved.
    pub(crate) fn relay_topic(&self, relay: &Relay, request: &Request) -> Option<Topic> {
        let path = self::path(request);
        let (_, raw) = self.params(path).into_iter().find(|(name, _)| *name == TOPIC)?;
        // Slashes are replaced before decoding, so an encoded slash does not separate segments.
        let dotted = raw.replace('/', ".");
        let name = percent_encoding::percent_decode_str(&dotted).decode_utf8().ok()?;
        let topic = match &relay.prefix {
            Some(prefix) => Topic::new(&format!("{prefix}.{name}")),
            None => Topic::new(&name),
        };
        topic.ok().filter(|topic| !broker::is_reserved(topic))
    }

    /// Returns the first subprotocol of the route that the client offers.
    pub(crate) fn subprotocol(&self, headers: &HeaderList) -> Option<&str> {
        // RFC 6455 4.1: the comparison is case-sensitive.
        let offered = |name: &&String| headers.tokens("Sec-WebSocket-Protocol").any(|token| token == name.as_bytes());
        self.settings.subprotocols.iter().find(offered).map(String::as_str)
    }
}

/// The routes of an engine. Call [`Self::add`] for each path and optionally [`Self::set_fallback`] at setup.
#[derive(Clone, Default)]
pub struct Routes {
    router: Router<Arc<Route>>,
    /// All routes, in the order in which they were added.
    all: Vec<Arc<Route>>,
    /// Whether a pattern mixes text and a parameter in one segment. The router does not backtrack from such a segment,
    /// so after a failed match all routes are tried one by one.
    has_mixed_segments: bool,
    /// The route of all other paths.
    fallback: Option<Arc<Route>>,
    min_outbox_limit: Option<usize>,
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes").finish_non_exhaustive()
    }
}

impl Routes {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a path: `/feed`; with a parameter for one segment, `/feed/{symbol}`; or for all remaining segments,
    /// `/files/{*rest}`. It has at most 25 parameters. Literal text is compared with request paths as they are sent,
    /// percent-encoded; literal braces are written `%7B` and `%7D`.
    ///
    /// # Errors
    /// The path is invalid or conflicts with another one, or it is a relay's and has no parameter `topic`.
    pub fn add(&mut self, path: &str, mut route: Route) -> Result<(), String> {
        if !path.starts_with('/') {
            return Err(format!("{path:?} does not begin with a slash"));
        }
        let names = param_names(path).map_err(|why| format!("{path:?}: {why}"))?;
        let refused = |error: matchit::InsertError| match error {
            matchit::InsertError::Conflict { with } => {
                format!("{path:?} conflicts with {with:?}")
            }
            error => format!("{path:?}: {error}"),
        };
        let mut matcher = Router::new();
        matcher.insert(path, ()).map_err(refused)?;
        route.pattern = PathPattern { text: path.into(), matcher };
        if matches!(route.role, Role::Relay(_)) && !names.contains(&TOPIC) {
            return Err(format!("{path:?}: a relay needs {{topic}} or {{*topic}} in its path"));
        }
        let outbox = route.settings.outbox_limit;
        let route = Arc::new(route);
        self.router.insert(path, Arc::clone(&route)).map_err(refused)?;
        self.all.push(route);
        self.has_mixed_segments |= path.split('/').any(|segment| segment.contains('{') && !is_param(segment));
        self.min_outbox_limit = Some(self.min_outbox_limit.map_or(outbox, |least| least.min(outbox)));
        Ok(())
    }

    /// Sets the route of all paths without a route; its sessions have no pattern. Without it such paths get 404.
    pub fn set_fallback(&mut self, route: Route) {
        let outbox = route.settings.outbox_limit;
        self.fallback = Some(Arc::new(route));
        self.min_outbox_limit = Some(self.min_outbox_limit.map_or(outbox, |least| least.min(outbox)));
    }

    /// Returns the route of a request.
    pub(crate) fn find(&self, request: &Request) -> Option<Arc<Route>> {
        let path = self::path(request);
        if path.is_empty() {
            return None; // a target without a path: `*`, or of CONNECT
        }
        let found = match self.router.at(path) {
            Ok(found) => Some(found.value),
            Err(_) if self.has_mixed_segments => self.all.iter().find(|route| route.pattern.matcher.at(path).is_ok()),
            Err(_) => None,
        };
        found.or(self.fallback.as_ref()).map(Arc::clone)
    }

    /// Returns all routes except the fallback.
    pub(crate) fn all(&self) -> &[Arc<Route>] {
        &self.all
    }

    /// Returns the smallest outbox limit of all routes.
    pub(crate) fn min_outbox_limit(&self) -> Option<usize> {
        self.min_outbox_limit
    }
}

/// The maximum number of parameters in a path: with more, the router panics.
const MAX_PARAMS: usize = 25;

/// Whether a segment of a path is a parameter and nothing else.
fn is_param(segment: &str) -> bool {
    segment.strip_prefix('{').and_then(|rest| rest.split_once('}')).is_some_and(|(_, rest)| rest.is_empty())
}

/// Returns the names of the parameters: `a` and `b` in `/{a}/x/{*b}`.
fn param_names(path: &str) -> Result<Vec<&str>, String> {
    if path.contains("{{") || path.contains("}}") {
        return Err("literal braces must be written as %7B and %7D".to_owned());
    }
    let parts = path.split('{').skip(1).filter_map(|part| part.split_once('}'));
    let mut names: Vec<&str> = Vec::new();
    for name in parts.map(|(name, _)| name.strip_prefix('*').unwrap_or(name)) {
        if names.contains(&name) {
            return Err(format!("{name:?} occurs twice"));
        }
        names.push(name);
    }
    if names.len() > MAX_PARAMS {
        return Err(format!("it has more than {MAX_PARAMS} parameters"));
    }
    Ok(names)
}

/// Returns the path and query of a request's target, without scheme, host (RFC 9112 3.2.2) and fragment. Empty for
/// targets of other forms.
pub(crate) fn path_and_query(request: &Request) -> &str {
    let target = request.path_and_query().unwrap_or_default();
    target.split_once('#').map_or(target, |(target, _)| target)
}

/// Returns the path of a request's target, percent-encoded.
pub(crate) fn path(request: &Request) -> &str {
    path_and_query(request).split('?').next().unwrap_or_default()
}

/// Returns the query of a request's target, percent-encoded and without its question mark.
pub(crate) fn query(request: &Request) -> &str {
    path_and_query(request).split_once('?').map_or("", |(_, query)| query)
}
