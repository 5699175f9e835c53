//! The client that a proxy names in a forwarded header.

use std::net::{IpAddr, SocketAddr};

use wirespeed_driver::protocol::handshake::HeaderList;

use crate::config::{ForwardedHeader, Proxies};

impl Proxies {
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

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;
    use crate::config::Networks;

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
}
