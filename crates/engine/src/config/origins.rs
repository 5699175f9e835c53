//! Decides by `Origin` which pages may connect (RFC 6455 10.2, RFC 6454). Knows no sockets.

use wirespeed_driver::protocol::handshake::Request;

/// The allowed origins. A client without `Origin` is not a browser and is always allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origins {
    /// Pages of the host that the request names.
    #[default]
    Same,
    /// Pages of all origins.
    Any,
    /// These origins, as browsers send them: `https://example.com`, with a port if it is not the default.
    Listed(Vec<String>),
}

/// The parts of an origin. Two origins are equal if they differ only in case or in an explicit default port.
struct Parts<'a> {
    scheme: &'a str,
    host: &'a str,
    port: Option<u16>,
}

impl<'a> Parts<'a> {
    fn of(origin: &'a str) -> Option<Self> {
        let (scheme, rest) = origin.split_once("://")?;
        let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        if !is_scheme {
            return None;
        }
        if rest.is_empty() && scheme.eq_ignore_ascii_case("file") {
            return Some(Self { scheme, host: rest, port: None });
        }
        let (host, port) = host_and_port(rest)?;
        Some(Self { scheme, host, port: port.or_else(|| default_port(scheme)) })
    }

    fn is(&self, other: &Self) -> bool {
        self.scheme.eq_ignore_ascii_case(other.scheme)
            && self.host.eq_ignore_ascii_case(other.host)
            && self.port == other.port
    }
}

/// Splits a non-empty host and its optional port; `None` if the text has another form.
fn host_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    if text.bytes().any(|byte| !byte.is_ascii_graphic() || b"/?#@\\*\"<>".contains(&byte)) {
        return None;
    }
    let end = match text.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => text.find(':').unwrap_or(text.len()),
    };
    let (host, rest) = text.split_at_checked(end)?;
    let port = match rest.strip_prefix(':') {
        None if rest.is_empty() => None,
        None => return None,
        // RFC 3986 3.2.3: the port may be empty.
        Some("") => None,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => Some(port.parse().ok()?),
        Some(_) => return None,
    };
    (!host.is_empty()).then_some((host, port))
}

fn default_port(scheme: &str) -> Option<u16> {
    let is = |names: [&str; 2]| names.iter().any(|name| scheme.eq_ignore_ascii_case(name));
    if is(["http", "ws"]) {
        Some(80)
    } else if is(["https", "wss"]) {
        Some(443)
    } else {
        None
    }
}

/// Returns why browsers never send this origin; `None` if they may.
fn problem(origin: &str) -> Option<&'static str> {
    if origin == "null" || Parts::of(origin).is_some() {
        return None;
    }
    let rest = origin.split_once("://").map(|(_, rest)| rest);
    Some(match rest {
        _ if origin.contains('*') => "there are no wildcards: list each origin, or \"*\" alone for all",
        None => "it needs a scheme: https://example.com",
        Some(rest) if rest.find('/').is_some_and(|at| at + 1 == rest.len()) => "it must not end with a slash",
        Some(rest) if rest.contains(['/', '?', '#']) => "it must not have a path or a query",
        Some(rest) if rest.contains('@') => "it must not have a user name",
        Some(rest) if !rest.is_ascii() => "browsers send such a name in its ASCII form, xn--...",
        Some(_) => "it must be scheme://host or scheme://host:port",
    })
}

/// Returns why a browser never sends exactly this text as `Origin`, or `None` if one may. For callers that compare
/// whole texts; [`Origins`] ignores case and default ports.
#[must_use]
pub fn exact_origin_problem(origin: &str) -> Option<String> {
    if let Some(problem) = problem(origin) {
        return Some(problem.to_owned());
    }
    let Parts { scheme, host, port } = Parts::of(origin)?;
    let mut serialized = format!("{scheme}://{host}").to_ascii_lowercase();
    if let Some(port) = port.filter(|_| port != default_port(scheme)) {
        serialized.push_str(&format!(":{port}"));
    }
    (serialized != origin).then(|| format!("browsers send it as {serialized}"))
}

impl Origins {
    /// Returns the origins of a list; `"*"` in it allows all.
    ///
    /// # Errors
    /// An origin can never match, because no browser sends it. The message explains why.
    pub fn listed(origins: Vec<String>) -> Result<Self, String> {
        if origins.iter().any(|origin| origin == "*") {
            return Ok(Self::Any);
        }
        match origins.iter().find_map(|origin| Some((origin, problem(origin)?))) {
            Some((origin, why)) => Err(format!("{origin:?} can never match: {why}")),
            None => Ok(Self::Listed(origins)),
        }
    }

    /// Whether the request is allowed.
    #[must_use]
    pub fn admit(&self, request: &Request) -> bool {
        let mut origins = request.headers.all("Origin");
        let Some(origin) = origins.next() else { return true };
        if origins.next().is_some() {
            return false; // RFC 6454 7.3: at most one
        }
        if *self == Self::Any {
            return true;
        }
        let Ok(origin) = std::str::from_utf8(origin) else { return false };
        let parts = Parts::of(origin);
        match self {
            Self::Any => true,
            Self::Listed(listed) => listed.iter().any(|known| match (&parts, Parts::of(known)) {
                (Some(parts), Some(known)) => parts.is(&known),
                _ => known == origin,
            }),
            Self::Same => parts.is_some_and(|parts| is_same(&parts, host(request))),
        }
    }
}

/// Whether a page belongs to this host. A proxy may have terminated TLS, so if the host has no port, the page's scheme
/// determines it. Some clients other than browsers send `wss://` instead of `https://`.
fn is_same(page: &Parts<'_>, host: &str) -> bool {
    let Some(default) = default_port(page.scheme) else { return false };
    host_and_port(host)
        .is_some_and(|(host, port)| host.eq_ignore_ascii_case(page.host) && page.port == port.or(Some(default)))
}

/// Returns the host of a request. RFC 9112 3.2.2: for a target in absolute form, "an origin server MUST ignore the
/// received Host".
fn host(request: &Request) -> &str {
    match request.target.split_once("://") {
        Some((_, rest)) if !request.target.starts_with('/') => rest.split(['/', '?', '#']).next().unwrap_or_default(),
        _ => request.headers.value_str("Host").unwrap_or_default(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use wirespeed_driver::protocol::handshake::{HeaderList, Version};

    use super::*;

    fn admits(origins: &Origins, host: &str, origin: &str) -> bool {
        let mut headers = HeaderList::new();
        headers.push("Host", host).unwrap();
        headers.push("Origin", origin).unwrap();
        let (method, target) = ("GET".to_owned(), "/".to_owned());
        origins.admit(&Request { method, target, version: Version::Http11, headers })
    }

    #[test]
    fn pages_of_the_same_host_may_write_the_default_port_or_not() {
        for (host, origin, admitted) in [
            ("example.com", "https://example.com", true),
            ("example.com:443", "https://example.com", true),
            ("example.com", "https://example.com:443", true),
            ("example.com:80", "http://example.com", true),
            ("example.com:8443", "https://example.com:8443", true),
            ("Example.COM", "HTTPS://example.com", true),
            ("[::1]:8080", "http://[::1]:8080", true),
            ("[::1]", "https://[::1]:443", true),
            ("example.com:443", "wss://example.com", true),
            ("example.com", "null", false),
            ("example.com", "", false),
            ("example.com", "example.com", false),
            ("example.com", "file://", false),
            ("example.com", "app://example.com", false),
            ("example.com:80", "https://example.com", false),
            ("example.com:8443", "https://example.com", false),
            ("example.com", "https://example.com:8443", false),
            ("example.com", "https://example.com.evil", false),
            ("example.com", "https://evil@example.com", false),
            ("example.com", "https://example.com:99999", false),
            ("", "https://", false),
        ] {
            assert_eq!(admits(&Origins::Same, host, origin), admitted, "{host} {origin}");
        }
    }

    #[test]
    fn listed_origins_are_compared_without_case_and_default_port() {
        let listed =
            ["https://example.com", "http://a:8080", "app://b", "null"].map(ToOwned::to_owned).into_iter().collect();
        let listed = Origins::listed(listed).unwrap();
        for (origin, admitted) in [
            ("https://example.com:443", true),
            ("HTTPS://EXAMPLE.COM", true),
            ("http://example.com", false),
            ("wss://example.com", false),
            ("https://example.com:444", false),
            ("http://a:8080", true),
            ("http://a", false),
            ("app://b", true),
            ("null", true),
            ("", false),
        ] {
            assert_eq!(admits(&listed, "x", origin), admitted, "{origin}");
        }
    }

    #[test]
    fn exact_origins_are_written_as_browsers_send_them() {
        for origin in
            ["https://example.com", "http://a:8080", "null", "file://", "app://b", "http://[::1]:81", "ws://h"]
        {
            assert_eq!(exact_origin_problem(origin), None, "{origin}");
        }
        for (origin, why) in [
            ("https://example.com/", "slash"),
            ("example.com", "scheme"),
            ("https://Example.com", "browsers send it as https://example.com"),
            ("HTTPS://example.com", "browsers send it as https://example.com"),
            ("https://example.com:443", "browsers send it as https://example.com"),
            ("http://example.com:", "browsers send it as http://example.com"),
            ("http://a:08080", "browsers send it as http://a:8080"),
            ("NULL", "scheme"),
        ] {
            let problem = exact_origin_problem(origin).unwrap();
            assert!(problem.contains(why), "{problem}");
        }
    }

    #[test]
    fn origins_that_can_never_match_are_refused() {
        for (origin, why) in [
            ("https://*.example.com", "wildcards"),
            ("https://example.com/", "slash"),
            ("https://example.com/chat", "path"),
            ("https://example.com?a", "path"),
            ("example.com", "scheme"),
            ("//example.com", "scheme"),
            ("https://me@example.com", "user name"),
            ("https://b\u{fc}cher.example", "xn--"),
            ("https://example.com:port", "scheme://host"),
            ("https://", "scheme://host"),
            ("", "scheme"),
        ] {
            let error = Origins::listed(vec!["https://good.example".to_owned(), origin.to_owned()]).unwrap_err();
            assert!(error.contains(why) && error.contains("can never match"), "{error}");
        }
        let all = vec!["https://a".to_owned(), "*".to_owned()];
        assert_eq!(Origins::listed(all), Ok(Origins::Any));
        for origin in ["file://", "null", "https://[::1]:1", "chrome-extension://abc", "HTTP://A"] {
            assert!(Origins::listed(vec![origin.to_owned()]).is_ok(), "{origin}");
        }
    }
}
