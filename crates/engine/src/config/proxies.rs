//! The proxies that an engine trusts, and how they name the client.
//!
//! A header counts only if it comes from a configured address, because clients can forge all others.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// A set of addresses and networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    networks: Vec<IpNet>,
    unix: bool,
}

impl Networks {
    /// Parses addresses, networks such as `10.0.0.0/8`, and `unix`, which stands for clients of Unix sockets.
    ///
    /// # Errors
    /// One of them is invalid; the message names it.
    pub fn parse<S: AsRef<str>>(texts: &[S]) -> Result<Self, String> {
        let mut all = Self::default();
        for text in texts.iter().map(AsRef::as_ref) {
            if text == "unix" {
                all.unix = true;
                continue;
            }
            let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
            all.networks.push(network.map_err(|_| format!("{text:?} is no address or network"))?);
        }
        Ok(all)
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && !self.unix
    }

    /// Whether the set contains an address; `None` stands for a client of a Unix socket.
    #[must_use]
    pub fn contains(&self, address: Option<IpAddr>) -> bool {
        match address.map(|address| address.to_canonical()) {
            None => self.unix,
            Some(address) => self.networks.iter().any(|network| network.contains(&address)),
        }
    }
}

/// The header in which proxies name the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedHeader {
    /// `X-Forwarded-For`, as most do.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
}

/// The trusted proxies, and how they name the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    /// Addresses whose connections must begin with a PROXY header, of version 1 or 2.
    pub protocol: Networks,
    /// Addresses whose forwarded header is trusted.
    pub trusted: Networks,
    /// The header that counts. The other one is ignored, as clients may send it through a proxy.
    pub header: ForwardedHeader,
}

impl Proxies {
    /// Whether a connection from this address begins with a PROXY header.
    pub(crate) fn expects_header(&self, peer: Option<SocketAddr>) -> bool {
        !self.protocol.is_empty() && self.protocol.contains(peer.map(|peer| peer.ip()))
    }

    /// Whether the forwarded header of this address is trusted.
    pub(crate) fn trusts(&self, peer: Option<SocketAddr>) -> bool {
        !self.trusted.is_empty() && self.trusted.contains(peer.map(|peer| peer.ip()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;

    #[test]
    fn networks_contain_addresses() {
        let networks = Networks::parse(&["192.0.2.0/24", "2001:db8::/32", "198.51.100.7"]).unwrap();
        let contains = |text: &str| networks.contains(Some(text.parse().unwrap()));
        assert!(contains("192.0.2.200") && contains("2001:db8:1::") && contains("::ffff:198.51.100.7"));
        assert!(!contains("192.0.3.1") && !contains("2001:db9::") && !networks.contains(None));
        for text in ["", "192.0.2.0/33", "localhost", "10.0.0.0/8 "] {
            assert!(Networks::parse(&[text]).unwrap_err().contains(text), "{text}");
        }
    }
}
