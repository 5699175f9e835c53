//! The address of a broker: parsing of its URL, and display without credentials.
//! Knows no connection; [`crate::client`] and the modules of each broker read the fields.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use wirespeed_engine::driver::tls::{self, client::Options};

/// Replaces credentials in displayed text.
const MASK: &str = "***";

/// The address of a broker. Its `Display` and `Debug` show no credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    pub(crate) kind: Kind,
    pub(crate) servers: Vec<Server>,
    pub(crate) tls: bool,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// The path of the URL: the database of Redis, the master's name for Sentinel, or the name of an in-process broker.
    pub(crate) path: String,
    /// A file with CA certificates (PEM) that replaces the system's trust store.
    pub(crate) ca: Option<PathBuf>,
    /// The files of a client certificate and its key (PEM).
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    /// Credentials of the Sentinels, if they differ from those of the servers.
    pub(crate) sentinel_user: Option<String>,
    pub(crate) sentinel_password: Option<String>,
    /// A file with a JWT or seed for NATS, instead of a password.
    pub(crate) credentials: Option<Credentials>,
    /// How long a NATS server may be silent before the connection is closed.
    pub(crate) timeout: Duration,
}

/// The default of [`Address::timeout`]: longer than the pauses of a busy server, and short enough to lose little.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The range of `timeout` in a URL, in seconds.
const TIMEOUTS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

/// A file with credentials of NATS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// A JWT and a seed, as `nsc` writes them.
    Creds(PathBuf),
    /// A seed only.
    Nkey(PathBuf),
}

/// The kind of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Connects engines of this process.
    Memory,
    Nats,
    /// A single server.
    Redis,
    /// The master that the Sentinels name.
    Sentinel,
    /// A cluster with sharded channels.
    Cluster,
}

/// The contents of the TLS files, as PEM.
pub(crate) struct Files {
    pub(crate) ca: Option<Vec<u8>>,
    /// A certificate and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// A host and its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// An IPv6 address has no brackets here.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Why a URL is not a valid broker address. The text shows only the scheme and the names of options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidAddress(String);

impl fmt::Display for InvalidAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for InvalidAddress {}

fn invalid<T>(text: impl Into<String>) -> Result<T, InvalidAddress> {
    Err(InvalidAddress(text.into()))
}

const SCHEMES: [(&str, Kind, bool, u16); 10] = [
    ("memory", Kind::Memory, false, 0),
    ("nats", Kind::Nats, false, 4222),
    ("nats+tls", Kind::Nats, true, 4222),
    ("tls", Kind::Nats, true, 4222),
    ("redis", Kind::Redis, false, 6379),
    ("rediss", Kind::Redis, true, 6379),
    ("redis+sentinel", Kind::Sentinel, false, 26379),
    ("rediss+sentinel", Kind::Sentinel, true, 26379),
    ("redis+cluster", Kind::Cluster, false, 6379),
    ("rediss+cluster", Kind::Cluster, true, 6379),
];

impl Address {
    /// Parses `scheme://user:password@host:port,host:port/path?tls_ca=file`. User and password are percent-encoded.
    /// Brokers with several servers accept a list.
    ///
    /// The schemes are `nats` (`tls`), `redis` (`rediss`), `valkey` (`valkeys`), `redis+sentinel` (`rediss+sentinel`),
    /// `redis+cluster` (`rediss+cluster`) and `memory`. The path of `redis+sentinel` is the name of the master, and
    /// `memory` is followed by a name within this process.
    /// # Errors
    /// The text is not a valid broker address.
    pub fn parse(text: &str) -> Result<Self, InvalidAddress> {
        let Some((written, rest)) = text.split_once("://") else {
            return invalid("a broker is a URL, such as nats://127.0.0.1:4222 or redis://127.0.0.1:6379");
        };
        let scheme = written.to_ascii_lowercase().replace("valkeys", "rediss").replace("valkey", "redis");
        let Some((_, kind, tls, default_port)) = SCHEMES.iter().find(|(name, ..)| *name == scheme).copied() else {
            let names: Vec<_> = SCHEMES.iter().map(|(name, ..)| *name).collect();
            return invalid(format!("the scheme of a broker must be one of {}, not {scheme:?}", names.join(", ")));
        };
        // Lists are often written as several URLs.
        let rest = &rest.replace(&format!(",{written}://"), ",");
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut address = Self {
            kind,
            servers: Vec::new(),
            tls,
            user: None,
            password: None,
            path: String::new(),
            ca: None,
            certificate: None,
            sentinel_user: None,
            sentinel_password: None,
            credentials: None,
            timeout: TIMEOUT,
        };
        address.read_query(query)?;
        if kind == Kind::Memory {
            address.path = rest.to_owned();
            return if rest.is_empty() { invalid("memory:// needs a name") } else { Ok(address) };
        }
        // A password may contain an `@` that is not percent-encoded, so the last one ends the credentials.
        let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
        let (servers, path) = rest.split_once('/').unwrap_or((rest, ""));
        address.path = decode(path)?;
        if let Some(user) = user {
            let (user, password) = user.split_once(':').map_or((user, None), |(user, rest)| (user, Some(rest)));
            address.user = Some(decode(user)?).filter(|user| !user.is_empty());
            address.password = password.map(decode).transpose()?;
        }
        for server in servers.split(',') {
            address.servers.push(read_server(server, default_port)?);
        }
        address.check()?;
        Ok(address)
    }

    fn read_query(&mut self, query: &str) -> Result<(), InvalidAddress> {
        let (mut certificate, mut key) = (None, None);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let path = || decode(value).map(PathBuf::from);
            match name {
                "tls_ca" => self.ca = Some(path()?),
                "tls_cert" => certificate = Some(path()?),
                "tls_key" => key = Some(path()?),
                "sentinel_user" if self.kind == Kind::Sentinel => self.sentinel_user = Some(decode(value)?),
                "sentinel_password" if self.kind == Kind::Sentinel => self.sentinel_password = Some(decode(value)?),
                "sentinel_user" | "sentinel_password" => {
                    return invalid(format!(
                        "{name} of a broker's URL is for redis+sentinel:// and rediss+sentinel://"
                    ));
                }
                "creds" if self.kind == Kind::Nats => self.credentials = Some(Credentials::Creds(path()?)),
                "nkey" if self.kind == Kind::Nats => self.credentials = Some(Credentials::Nkey(path()?)),
                "creds" | "nkey" => return invalid(format!("{name} of a broker's URL is for nats:// and tls://")),
                "timeout" if self.kind == Kind::Nats => self.timeout = read_timeout(value)?,
                "timeout" => return invalid("timeout of a broker's URL is for nats:// and tls://"),
                // The rest may belong to a password that contains an unencoded question mark.
                _ if query.contains('@') => {
                    return invalid("a \"?\" in the user or password of a broker's URL is written %3F");
                }
                _ => {
                    return invalid(format!(
                        "a broker's URL has no option {name:?}: tls_ca, tls_cert, tls_key, timeout, creds, nkey, sentinel_user, \
                         sentinel_password"
                    ));
                }
            }
        }
        self.certificate = match (certificate, key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => return invalid("tls_cert and tls_key of a broker's URL go together"),
        };
        if self.sentinel_user.is_some() && self.sentinel_password.is_none() {
            return invalid("sentinel_user of a broker's URL needs sentinel_password");
        }
        if (self.ca.is_some() || self.certificate.is_some()) && !self.tls {
            return invalid(
                "tls_ca, tls_cert and tls_key need a scheme with TLS: tls://, rediss://, rediss+cluster://",
            );
        }
        Ok(())
    }

    fn check(&self) -> Result<(), InvalidAddress> {
        match self.kind {
            Kind::Memory => {}
            Kind::Nats if !self.path.is_empty() => return invalid("nats:// has no path"),
            Kind::Nats if self.credentials.is_some() && (self.user.is_some() || self.password.is_some()) => {
                return invalid("creds and nkey of a broker's URL replace the user and the password");
            }
            Kind::Cluster if !self.path.is_empty() => {
                return invalid("a cluster has no databases: leave the path away");
            }
            Kind::Nats | Kind::Cluster => {}
            Kind::Redis if self.servers.len() > 1 => {
                return invalid("redis:// is one server; several are redis+sentinel:// or redis+cluster://");
            }
            Kind::Redis => {
                self.database()?;
            }
            Kind::Sentinel if self.path.is_empty() => {
                return invalid("redis+sentinel:// needs the name of the master: redis+sentinel://host:26379/mymaster");
            }
            Kind::Sentinel => {}
        }
        Ok(())
    }

    /// Returns the database number of Redis. Pub/sub ignores databases, but servers may check the number.
    pub(crate) fn database(&self) -> Result<i64, InvalidAddress> {
        if self.path.is_empty() || self.kind != Kind::Redis {
            return Ok(0);
        }
        self.path.parse().or_else(|_| invalid("the path of redis:// is the number of a database"))
    }

    /// Returns the paths of the TLS files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let identity = self.certificate.iter().flat_map(|(certificate, key)| [certificate, key]);
        self.ca.iter().chain(identity)
    }

    /// Reads the TLS files.
    ///
    /// # Errors
    /// A file cannot be read or has the wrong content; the text names the file and the reason.
    pub(crate) fn read_files(&self) -> Result<Files, String> {
        let read = |name, path: &PathBuf| match std::fs::read(path) {
            Ok(pem) => Ok(pem),
            Err(error) => Err(format!("{name}={}: {error}", path.display())),
        };
        let ca = self.ca.as_ref().map(|path| read("tls_ca", path)).transpose()?;
        let identity = self.certificate.as_ref();
        let identity = identity
            .map(|(certificate, key)| Ok::<_, String>((read("tls_cert", certificate)?, read("tls_key", key)?)))
            .transpose()?;
        let (certificate, key) = identity.clone().unzip();
        // Builds a TLS configuration only for its errors: the libraries of the brokers do not name the faulty file.
        let trial = Options {
            insecure: ca.is_none(),
            ca: ca.iter().cloned().collect(),
            certificate,
            key,
            ..Options::default()
        };
        if let Err(error) = trial.build() {
            let tls::Error::Configuration { argument, reason } = error else { return Err(error.to_string()) };
            let path = match (argument, &self.certificate) {
                ("cert", Some((certificate, _))) => Some(certificate),
                ("key", Some((_, key))) => Some(key),
                _ => self.ca.as_ref(),
            };
            let path = path.map(|path| path.display().to_string()).unwrap_or_default();
            return Err(format!("tls_{argument}={path}: {reason}"));
        }
        Ok(Files { ca, identity })
    }

    /// Returns why a connection failed: the fault in the TLS files, if there is one, or else the library's error.
    pub(crate) fn reason(&self, error: &dyn fmt::Display) -> String {
        match self.files().next().map(|_| self.read_files()) {
            Some(Err(fault)) => fault,
            _ => error.to_string(),
        }
    }

    /// Removes credentials from a library's text about this broker. Passwords and tokens are masked everywhere, user
    /// names only where they are whole words.
    pub(crate) fn redact(&self, text: &str) -> String {
        let passwords = [&self.password, &self.sentinel_password].into_iter().flatten();
        let is_token = self.password.as_ref().is_none_or(String::is_empty); // a NATS token is a user without a password
        let token = self.user.iter().filter(|_| is_token);
        let users = self.user.iter().filter(|_| !is_token).chain(&self.sentinel_user);
        let text = passwords
            .chain(token)
            .filter(|secret| !secret.is_empty())
            .fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), MASK));
        users.filter(|name| !name.is_empty()).fold(text, |text, name| mask_word(&text, name))
    }
}

fn read_timeout(text: &str) -> Result<Duration, InvalidAddress> {
    match text.parse() {
        Ok(seconds) if TIMEOUTS.contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => invalid("timeout of a broker's URL must be a number of seconds, from 0.1 to 3600"),
    }
}

/// Masks a name where it is a whole word. Inside other words it reveals nothing, and masking would garble them.
fn mask_word(text: &str, name: &str) -> String {
    let is_part = |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    let mut masked = String::with_capacity(text.len());
    let mut rest = 0;
    for (at, found) in text.match_indices(name) {
        let end = at + found.len();
        let (before, behind) = (text.get(..at).unwrap_or_default(), text.get(end..).unwrap_or_default());
        if !is_part(before.chars().next_back()) && !is_part(behind.chars().next()) {
            masked.push_str(text.get(rest..at).unwrap_or_default());
            masked.push_str(MASK);
            rest = end;
        }
    }
    masked.push_str(text.get(rest..).unwrap_or_default());
    masked
}

fn read_server(text: &str, default_port: u16) -> Result<Server, InvalidAddress> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let Some((host, port)) = rest.split_once(']') else { return invalid("an IPv6 address lacks its \"]\"") };
            (host, port.strip_prefix(':'))
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() || host.contains(|letter: char| letter.is_whitespace() || letter.is_control()) {
        return invalid("a broker's URL lacks a host");
    }
    let port = match port {
        None => default_port,
        Some(port) => port.parse().or_else(|_| invalid("the port of a broker must be a number up to 65535"))?,
    };
    Ok(Server { host: host.to_owned(), port })
}

fn decode(text: &str) -> Result<String, InvalidAddress> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => invalid("what is percent-encoded in a broker's URL must be UTF-8"),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = SCHEMES.iter().find(|(_, kind, tls, _)| (*kind, *tls) == (self.kind, self.tls));
        write!(f, "{}://", scheme.map_or("", |(name, ..)| name))?;
        for (index, server) in self.servers.iter().enumerate() {
            write!(f, "{}{server}", if index > 0 { "," } else { "" })?;
        }
        let slash = if self.path.is_empty() || self.servers.is_empty() { "" } else { "/" };
        write!(f, "{slash}{}", self.path)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn broker_urls_are_parsed_and_shown_without_credentials() {
        for (text, shown) in [
            ("nats://a", "nats://a:4222"),
            ("nats://user:p%40ss@a:1,b", "nats://a:1,b:4222"),
            ("nats://a:1,nats://b:2", "nats://a:1,b:2"),
            ("valkey+cluster://a,valkey+cluster://b:1", "redis+cluster://a:6379,b:1"),
            ("TLS://[::1]:5,TLS://b", "nats+tls://[::1]:5,b:4222"),
            ("redis://:secret@h/3", "redis://h:6379/3"),
            ("valkeys://h", "rediss://h:6379"),
            ("redis+sentinel://a,b:7/mymaster", "redis+sentinel://a:26379,b:7/mymaster"),
            ("rediss+cluster://a:1", "rediss+cluster://a:1"),
            ("memory://here", "memory://here"),
        ] {
            assert_eq!(Address::parse(text).unwrap().to_string(), shown, "{text}");
        }
        let address = Address::parse("nats://us%3Aer:p%40s/s@h").unwrap();
        assert_eq!((address.user.as_deref(), address.password.as_deref()), (Some("us:er"), Some("p@s/s")));
        assert_eq!(format!("{address:?}"), "Address(nats://h:4222)");
        assert_eq!(address.redact("no p@s/s for us:er"), "no *** for ***");
        let address = Address::parse("redis://a:b1@h").unwrap();
        assert_eq!(address.redact("a was a bad name, xb1x"), "*** was *** bad name, x***x");
        let address = Address::parse("redis+sentinel://h/m?sentinel_user=us&sentinel_password=p%40s").unwrap();
        assert_eq!(address.to_string(), "redis+sentinel://h:26379/m");
        assert_eq!(address.redact("no p@s for us"), "no *** for ***");
        assert_eq!(Address::parse("nats://h?timeout=1.5").unwrap().timeout, Duration::from_millis(1500));
    }

    #[test]
    fn user_name_is_masked_only_as_a_whole_word() {
        let address = Address::parse("redis://app:geheim@h").unwrap();
        let text = "user 'app' may not: mapped, app2, an_app, app, wrong xgeheimx";
        assert_eq!(address.redact(text), "user '***' may not: mapped, app2, an_app, ***, wrong x***x");
        // A user without a password is a NATS token, which is secret.
        assert_eq!(Address::parse("nats://geheim@h").unwrap().redact("xgeheimx"), "x***x");
    }

    #[test]
    fn invalid_urls_are_refused_with_a_reason() {
        for (text, part) in [
            ("127.0.0.1:4222", "is a URL"),
            ("http://a", "must be one of"),
            ("nats://", "lacks a host"),
            ("nats://a:b", "port"),
            ("nats://a/b", "no path"),
            ("redis://a,b", "one server"),
            ("redis://a/b", "number of a database"),
            ("redis+sentinel://a", "name of the master"),
            ("nats://user:pass?secret@a", "is written %3F"),
            ("redis+cluster://a/1", "no databases"),
            ("memory://", "needs a name"),
            ("nats://a?x=secret", "no option \"x\""),
            ("nats://a?timeout=0", "from 0.1 to 3600"),
            ("nats://a?timeout=x", "from 0.1 to 3600"),
            ("redis://a?timeout=1", "is for nats://"),
            ("redis://a?nkey=x", "is for nats://"),
            ("nats://secret@a?creds=x", "replace the user"),
            ("redis://a?sentinel_password=secret", "is for redis+sentinel://"),
            ("redis+sentinel://a/m?sentinel_user=u", "needs sentinel_password"),
            ("nats://a?tls_ca=x", "need a scheme with TLS"),
            ("tls://a?tls_cert=x", "go together"),
            ("nats://%ff@a", "UTF-8"),
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
