//! The PROXY protocol, by which a proxy names the client at the beginning of a connection.

use std::net::SocketAddr;

use proxy_header::{ParseConfig, ProxyHeader};

/// The maximum length of a PROXY header in bytes. The standard defines it for version 1. For version 2 it leaves the
/// limit to the implementation; proxies send far less.
const V1_MAX: usize = 107;
const V2_MAX: usize = 4096;

const V1: &[u8] = b"PROXY ";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

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
}
