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
use crate::origins::Origins;
use crate::outbox::Policy;

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
    /// The same, as they were added.
    each: Vec<Arc<Route>>,
    /// One has text beside a name in a segment. Where such a segment fits, and what follows it does not, the router does
    /// not come back to try the others.
    has_parts: bool,
    /// Of all other paths.
    fallback: Option<Arc<Route>>,
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
    /// `/files/{*rest}`; 25 names at most. What stands in it is compared with paths as they are sent, percent-encoded:
    /// braces, which name something here, are `%7B` and `%7D`.
    ///
    /// # Errors
    /// The path is none, or another one stands in its way; or it is a relay's and names no `topic`: in words.
    pub fn add(&mut self, path: &str, mut route: Route) -> Result<(), String> {
        if !path.starts_with('/') {
            return Err(format!("{path:?} does not begin with a slash"));
        }
        let names = names(path).map_err(|why| format!("{path:?}: {why}"))?;
        let refused = |error: matchit::InsertError| match error {
            matchit::InsertError::Conflict { with } => {
                format!("{path:?}: {with:?} was added before, which stands in its way")
            }
            error => format!("{path:?}: {error}"),
        };
        let mut matcher = Router::new();
        matcher.insert(path, ()).map_err(refused)?;
        route.pattern = PathPattern { text: path.into(), matcher };
        if matches!(route.role, Role::Relay(_)) && !names.contains(&"topic") {
            return Err(format!("{path:?}: a relay needs {{topic}} or {{*topic}} in its path"));
        }
        let outbox = route.outbox_limit;
        let route = Arc::new(route);
        self.router.insert(path, Arc::clone(&route)).map_err(refused)?;
        self.each.push(route);
        self.has_parts |= path.split('/').any(|segment| segment.contains('{') && !is_name(segment));
        self.least_outbox = Some(self.least_outbox.map_or(outbox, |least| least.min(outbox)));
        Ok(())
    }

    /// What holds for all paths that were not added: its sessions know no pattern. Without, nobody is there.
    pub fn set_fallback(&mut self, route: Route) {
        let outbox = route.outbox_limit;
        self.fallback = Some(Arc::new(route));
        self.least_outbox = Some(self.least_outbox.map_or(outbox, |least| least.min(outbox)));
    }

    /// Where a request goes.
    pub(crate) fn find(&self, request: &Request) -> Option<Arc<Route>> {
        let path = path(request);
        if path.is_empty() {
            return None; // a target that has none: `*`, or of CONNECT
        }
        let found = match self.router.at(path) {
            Ok(found) => Some(found.value),
            Err(_) if self.has_parts => self.each.iter().find(|route| route.pattern.matcher.at(path).is_ok()),
            Err(_) => None,
        };
        found.or(self.fallback.as_ref()).map(Arc::clone)
    }

    /// All that were added.
    pub(crate) fn each(&self) -> &[Arc<Route>] {
        &self.each
    }

    /// The least of the limits of all outboxes.
    pub(crate) fn least_outbox(&self) -> Option<usize> {
        self.least_outbox
    }
}

/// Names in one path, at most: as many as the router takes without panicking.
const NAMES: usize = 25;

/// Whether a segment of a path is a name and nothing else.
fn is_name(segment: &str) -> bool {
    segment.strip_prefix('{').and_then(|rest| rest.split_once('}')).is_some_and(|(_, behind)| behind.is_empty())
}

/// What a path names: `a` and `b` in `/{a}/x/{*b}`.
fn names(path: &str) -> Result<Vec<&str>, String> {
    if path.contains("{{") || path.contains("}}") {
        return Err("braces that name nothing are to be written %7B and %7D".to_owned());
    }
    let parts = path.split('{').skip(1).filter_map(|part| part.split_once('}'));
    let mut names: Vec<&str> = Vec::new();
    for name in parts.map(|(name, _)| name.strip_prefix('*').unwrap_or(name)) {
        if names.contains(&name) {
            return Err(format!("{name:?} stands twice"));
        }
        names.push(name);
    }
    if names.len() > NAMES {
        return Err(format!("it has more than {NAMES} names"));
    }
    Ok(names)
}

/// The target of a request without what stands before its path (RFC 9112 3.2.2) and without a fragment, which is not
/// sent: empty if it is of another form.
pub(crate) fn local(request: &Request) -> &str {
    let target = request.path_and_query().unwrap_or_default();
    target.split_once('#').map_or(target, |(target, _)| target)
}

/// The path of a request's target, not decoded.
pub(crate) fn path(request: &Request) -> &str {
    local(request).split('?').next().unwrap_or_default()
}

/// The query of a request's target, not decoded and without its question mark.
pub(crate) fn query(request: &Request) -> &str {
    local(request).split_once('?').map_or("", |(_, query)| query)
}
