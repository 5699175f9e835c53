//! The address of a client behind proxies: trusted networks, the PROXY protocol and forwarded headers.
//!
//! A header counts only if it comes from a configured address, because clients can forge all others.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use proxy_header::{ParseConfig, ProxyHeader};
use wirespeed_driver::protocol::handshake::HeaderList;

/// The maximum length of a PROXY header in bytes. The standard defines it for version 1. For version 2 it leaves the
/// limit to the implementation; proxies send far less.
const V1_MAX: usize = 107;
const V2_MAX: usize = 4096;

const V1: &[u8] = b"PROXY ";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

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

    /// Returns the client that sent a request which came from `peer`: the last address in the chain that is not
    /// trusted. Each address in the chain was named by the next one.
    pub(crate) fn client(&self, peer: Option<SocketAddr>, headers: &HeaderList) -> Option<SocketAddr> {
        let name = match self.header {
            ForwardedHeader::XForwardedFor => "X-Forwarded-For",
            ForwardedHeader::Forwarded => "Forwarded",
        };
        let values: Vec<&[u8]> = headers.all(name).collect();
        let mut named = values.into_iter().rev().flat_map(|value| match self.header {
            ForwardedHeader::XForwardedFor => ReverseElements::unquoted(value),
            ForwardedHeader::Forwarded => ReverseElements::quoted(value, b','),
        });
        let mut client = peer;
        // An element that is missing, `unknown` or malformed ends the chain: the proxy itself is the last known
        // address.
        while self.trusts(client)
            && let Some(next) = named.next().and_then(|element| match self.header {
                ForwardedHeader::XForwardedFor => address(element),
                ForwardedHeader::Forwarded => forwarded_for(element),
            })
        {
            client = Some(next);
        }
        client
    }
}

/// The elements of a list without the empty ones (RFC 9110 5.6.1), the last one first. The list is read from its end,
/// where proxies append: so an unterminated quotation of the client before them cannot hide their elements.
struct ReverseElements<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
    /// Whether separators in quotes are ignored.
    quotes: bool,
}

impl<'a> ReverseElements<'a> {
    /// Splits at commas only: no standard gives quotes a meaning in `X-Forwarded-For`.
    fn unquoted(list: &'a [u8]) -> Self {
        Self { rest: Some(list), separator: b',', quotes: false }
    }

    fn quoted(list: &'a [u8], separator: u8) -> Self {
        Self { rest: Some(list), separator, quotes: true }
    }

    /// Returns the index at which the last element begins.
    fn last_start(&self, list: &[u8]) -> usize {
        let mut quoted = false;
        for (at, byte) in list.iter().enumerate().rev() {
            match byte {
                b'"' if self.quotes => {
                    // RFC 9110 5.6.4: a quote behind a backslash is part of the quoted text.
                    let escapes =
                        list.get(..at).unwrap_or_default().iter().rev().take_while(|byte| **byte == b'\\').count();
                    quoted ^= escapes % 2 == 0;
                }
                byte if *byte == self.separator && !quoted => return at + 1,
                _ => {}
            }
        }
        0
    }
}

impl<'a> Iterator for ReverseElements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let list = self.rest?;
            let start = self.last_start(list);
            let element = list.get(start..).unwrap_or_default().trim_ascii();
            self.rest = start.checked_sub(1).and_then(|end| list.get(..end));
            if !element.is_empty() {
                return Some(element);
            }
        }
    }
}

fn split_at_equals(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = pair.splitn(2, |byte| *byte == b'=');
    Some((parts.next()?, parts.next()?))
}

/// Parses an element such as `for=192.0.2.43;proto=http`, in any order (RFC 7239 4), and returns the address of `for`.
fn forwarded_for(element: &[u8]) -> Option<SocketAddr> {
    let mut found = None;
    for pair in ReverseElements::quoted(element, b';') {
        let (name, value) = split_at_equals(pair)?;
        let (name, value) = (name.trim_ascii(), value.trim_ascii());
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return None; // a parameter must not occur twice
        }
    }
    address(found?)
}

/// Parses an address with an optional port, whose default is 0. IPv6 addresses with a port are in brackets.
fn address(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        (host, rest.strip_prefix(':'))
    } else if text.bytes().filter(|byte| *byte == b':').count() == 1 {
        let (host, port) = text.split_once(':')?;
        (host, Some(port))
    } else {
        (text, None)
    };
    let ip: IpAddr = host.parse().ok()?;
    // RFC 7239 6.3: the port may be an obfuscated name.
    Some(SocketAddr::new(ip.to_canonical(), port.and_then(|port| port.parse().ok()).unwrap_or(0)))
}

/// The connection does not begin with a PROXY header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotProxyHeader;

/// The client's address, if the header contains one, and the bytes after the header.
type ProxiedClient = (Option<SocketAddr>, Vec<u8>);

/// The first bytes of a connection, until its PROXY header is complete.
#[derive(Default)]
pub(crate) struct ProxyHead(Vec<u8>);

impl ProxyHead {
    /// Adds received bytes. Returns the content of the header once it is complete.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<Option<ProxiedClient>, NotProxyHeader> {
        self.0.extend_from_slice(bytes);
        let Some(len) = self.len()? else { return Ok(None) };
        let Some((header, rest)) = self.0.split_at_checked(len) else { return Ok(None) };
        // Version 2, LOCAL: the connection is the proxy's own, and the receiver must ignore the address.
        if header.strip_prefix(V2).and_then(<[u8]>::first) == Some(&0x20) {
            return Ok(Some((None, rest.to_vec())));
        }
        let (parsed, _) = ProxyHeader::parse(header, ParseConfig::default()).map_err(|_| NotProxyHeader)?;
        let client = parsed.proxied_address().map(|proxied| proxied.source);
        let client = client.map(|client| SocketAddr::new(client.ip().to_canonical(), client.port()));
        Ok(Some((client, rest.to_vec())))
    }

    /// Returns the length of the header once it is complete.
    fn len(&self) -> Result<Option<usize>, NotProxyHeader> {
        let bytes = self.0.as_slice();
        let start = |len: usize| bytes.get(..len).unwrap_or(bytes);
        let len = if V2.starts_with(start(V2.len())) {
            let Some(&[high, low]) = bytes.get(14..16) else { return Ok(None) };
            16 + usize::from(u16::from_be_bytes([high, low]))
        } else if V1.starts_with(start(V1.len())) {
            match start(V1_MAX).windows(2).position(|two| two == b"\r\n") {
                Some(end) => end + 2,
                None if bytes.len() < V1_MAX => return Ok(None),
                None => return Err(NotProxyHeader),
            }
        } else {
            return Err(NotProxyHeader);
        };
        match len {
            V2_MAX.. => Err(NotProxyHeader),
            len => Ok((bytes.len() >= len).then_some(len)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let mut header = V2.to_vec();
        header.extend([command, family]);
        header.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        header.extend(body);
        header
    }

    fn tcp4() -> Vec<u8> {
        v2(0x21, 0x11, &[192, 0, 2, 1, 192, 0, 2, 2, 0x30, 0x39, 1, 0xbb])
    }

    #[test]
    fn headers_may_be_split_at_every_byte() {
        let tcp6 = {
            let mut body = [0; 39];
            body[..2].copy_from_slice(&[0x20, 1]);
            body[15] = 7;
            body[32..34].copy_from_slice(&[0, 80]);
            body[36..].copy_from_slice(&[4, 0, 0]); // PP2_TYPE_NOOP
            v2(0x21, 0x21, &body)
        };
        for (header, client) in [
            (b"PROXY TCP4 192.0.2.1 192.0.2.2 12345 443\r\n".to_vec(), Some("192.0.2.1:12345")),
            (b"PROXY TCP6 2001:db8::1 ::1 1 65535\r\n".to_vec(), Some("[2001:db8::1]:1")),
            (b"PROXY TCP6 ::ffff:192.0.2.9 ::1 1 2\r\n".to_vec(), Some("192.0.2.9:1")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n".to_vec(), None),
            (tcp4(), Some("192.0.2.1:12345")),
            (tcp6, Some("[2001::7]:80")),
            (v2(0x20, 0x00, b""), None),
            (v2(0x20, 0xff, b"whatever"), None),
            (v2(0x21, 0x00, b"\x04\0\0"), None),
            (v2(0x21, 0x31, &[0; 216]), None),
        ] {
            let client = client.map(|text| text.parse().unwrap());
            let whole = [&header[..], b"GET /"].concat();
            for first in 0..=header.len() {
                for second in first..=header.len() {
                    let mut head = ProxyHead::default();
                    for part in [&whole[..first], &whole[first..second]] {
                        let taken = head.receive(part).unwrap();
                        assert!(taken.is_none() || second == header.len() || first == header.len(), "{header:?}");
                        if let Some(taken) = taken {
                            assert_eq!(taken, (client, Vec::new()));
                        }
                    }
                    if second < header.len() {
                        assert_eq!(head.receive(&whole[second..]), Ok(Some((client, b"GET /".to_vec()))));
                    }
                }
            }
        }
    }

    #[test]
    fn invalid_headers_are_rejected_at_once() {
        let long = [&b"PROXY TCP4 "[..], &[b'1'; 100]].concat();
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"P-",
            b"\r\n\r\n\0\r\nQUIX",
            b"PROXYxUNKNOWN\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
            b"PROXY TCP4 ::1 ::1 1 2\r\n",
            b"PROXY TCP5 192.0.2.1 192.0.2.2 1 2\r\n",
            b"PROXY \r\n",
            &long,
            &v2(0x31, 0x11, &[0; 12]),
            &v2(0x22, 0x11, &[0; 12]),
            &v2(0x21, 0x11, &[0; 11]),
            &v2(0x21, 0x41, &[0; 12]),
            &v2(0x21, 0x11, &[0; 5000])[..16],
        ] {
            assert_eq!(ProxyHead::default().receive(bytes), Err(NotProxyHeader), "{bytes:?}");
        }
    }

    fn proxies(header: ForwardedHeader) -> Proxies {
        let trusted = Networks::parse(&["10.0.0.0/8", "::1", "unix"]).unwrap();
        Proxies { protocol: Networks::default(), trusted, header }
    }

    #[test]
    fn client_is_the_last_untrusted_address() {
        for (peer, values, client) in [
            ("10.0.0.1:1", &["203.0.113.9"][..], "203.0.113.9:0"),
            ("10.0.0.1:1", &["6.6.6.6, 203.0.113.9"], "203.0.113.9:0"),
            ("10.0.0.1:1", &["6.6.6.6", "203.0.113.9 , 10.1.1.1"], "203.0.113.9:0"),
            ("10.0.0.1:1", &["203.0.113.9:77,"], "203.0.113.9:77"),
            ("10.0.0.1:1", &["[2001:db8::1]:77"], "[2001:db8::1]:77"),
            ("10.0.0.1:1", &["2001:db8::1"], "[2001:db8::1]:0"),
            ("10.0.0.1:1", &["::ffff:203.0.113.9"], "203.0.113.9:0"),
            ("[::1]:1", &["203.0.113.9"], "203.0.113.9:0"),
            ("[::ffff:10.0.0.1]:1", &["203.0.113.9"], "203.0.113.9:0"),
            // If all are trusted, the first one counts.
            ("10.0.0.1:1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3:0"),
            // A malformed element ends the chain.
            ("10.0.0.1:1", &["203.0.113.9, unknown"], "10.0.0.1:1"),
            ("10.0.0.1:1", &["203.0.113.9, 10.0.0.x, 10.0.0.2"], "10.0.0.2:0"),
            ("10.0.0.1:1", &[], "10.0.0.1:1"),
            // An unterminated quotation of the client does not hide what proxies append.
            ("10.0.0.1:1", &["\", 203.0.113.9"], "203.0.113.9:0"),
            ("10.0.0.1:1", &["\"6.6.6.6, \\, 203.0.113.9, 10.0.0.2"], "203.0.113.9:0"),
            // The header of an untrusted peer is ignored.
            ("203.0.113.1:1", &["6.6.6.6"], "203.0.113.1:1"),
        ] {
            let mut headers = HeaderList::new();
            for value in values {
                headers.push("X-Forwarded-For", value).unwrap();
            }
            headers.push("Forwarded", "for=7.7.7.7").unwrap();
            let found = proxies(ForwardedHeader::XForwardedFor).client(Some(peer.parse().unwrap()), &headers);
            assert_eq!(found, Some(client.parse().unwrap()), "{peer} {values:?}");
        }
        let mut headers = HeaderList::new();
        headers.push("X-Forwarded-For", "203.0.113.9").unwrap();
        let found = proxies(ForwardedHeader::XForwardedFor).client(None, &headers);
        assert_eq!(found, Some("203.0.113.9:0".parse().unwrap()));
        assert_eq!(Proxies::default().client(None, &headers), None);
    }

    #[test]
    fn forwarded_header_names_the_client() {
        for (value, client) in [
            ("for=203.0.113.9", "203.0.113.9:0"),
            ("For=\"203.0.113.9:77\";proto=https;by=203.0.113.43", "203.0.113.9:77"),
            ("proto=http; for=\"[2001:db8::1]:77\"", "[2001:db8::1]:77"),
            ("for=\"[2001:db8::1]\"", "[2001:db8::1]:0"),
            ("for=\"203.0.113.9:_port\"", "203.0.113.9:0"),
            ("for=6.6.6.6, for=203.0.113.9;host=\"a,for=8.8.8.8\\\",b\", for=10.9.9.9", "203.0.113.9:0"),
            // An unterminated quotation of the client does not hide what proxies append.
            ("for=\", for=203.0.113.9", "203.0.113.9:0"),
            ("for=\"\\, for=\"203.0.113.9:77\"", "203.0.113.9:77"),
            ("for=6.6.6.6;x=\"\\\", for=203.0.113.9;host=\"\\\\\", for=\"10.0.0.2\"", "203.0.113.9:0"),
            ("for=203.0.113.9, for=unknown", "10.0.0.1:1"),
            ("for=203.0.113.9, for=\"_gazonk\"", "10.0.0.1:1"),
            ("for=203.0.113.9;for=6.6.6.6", "10.0.0.1:1"),
            ("for=203.0.113.9, by=10.0.0.4", "10.0.0.1:1"),
            ("nonsense", "10.0.0.1:1"),
        ] {
            let mut headers = HeaderList::new();
            headers.push("Forwarded", value).unwrap();
            headers.push("X-Forwarded-For", "7.7.7.7").unwrap();
            let peer = Some("10.0.0.1:1".parse().unwrap());
            let found = proxies(ForwardedHeader::Forwarded).client(peer, &headers);
            assert_eq!(found, Some(client.parse().unwrap()), "{value}");
        }
    }

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
