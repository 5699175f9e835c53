//! Which requests become sessions, and what is done with their messages: by Origin, path and subprotocol.

use std::net::SocketAddr;

use matchit::Router;
use wirespeed_driver::protocol::handshake::{HeaderList, Request};

use crate::config::{Admission, Role};

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

/// See the module.
#[derive(Clone, Default)]
pub struct Routes {
    /// Whose pages may connect.
    pub origins: Origins,
    /// Subprotocols, the preferred one first: the first that the client offers is chosen.
    pub subprotocols: Vec<String>,
    router: Router<Role>,
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routes")
            .field("origins", &self.origins)
            .field("subprotocols", &self.subprotocols)
            .finish_non_exhaustive()
    }
}

impl Routes {
    /// Without paths.
    #[must_use]
    pub fn new(origins: Origins, subprotocols: Vec<String>) -> Self {
        Self { origins, subprotocols, router: Router::new() }
    }

    /// Adds a path: `/feed`, or with names for a segment, `/feed/{symbol}`, or for all that follow,
    /// `/files/{*rest}`.
    ///
    /// # Errors
    /// The path is none, or another one stands in its way: in words.
    pub fn add(&mut self, path: &str, role: Role) -> Result<(), String> {
        if !path.starts_with('/') {
            return Err(format!("{path:?} does not begin with a slash"));
        }
        self.router.insert(path, role).map_err(|error| format!("{path:?}: {error}"))
    }

    /// Decides about a request.
    #[must_use]
    pub fn admit(&self, request: &Request, _remote: Option<SocketAddr>) -> Admission {
        let path = request.target.split(['?', '#']).next().unwrap_or_default();
        let Ok(found) = self.router.at(path) else {
            return refuse(404, "There is no WebSocket at this path.\n");
        };
        if !self.origins.admit(&request.headers) {
            return refuse(403, "Pages of this origin may not connect.\n");
        }
        // RFC 6455 4.1: values are compared as they are, not without case.
        let offered =
            |name: &&String| request.headers.tokens("Sec-WebSocket-Protocol").any(|token| token == name.as_bytes());
        Admission::Accept {
            role: found.value.clone(),
            subprotocol: self.subprotocols.iter().find(offered).cloned(),
            headers: HeaderList::new(),
        }
    }
}

fn refuse(status: u16, text: &str) -> Admission {
    let mut headers = HeaderList::new();
    let _ = headers.push("Content-Type", "text/plain; charset=utf-8"); // valid
    Admission::Refuse { status, headers, body: text.as_bytes().to_vec() }
}
