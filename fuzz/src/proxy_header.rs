//! PROXY headers of both versions. Headers encoded after the specification are decoded correctly, in any pieces and with
//! any bytes after them. For any other bytes, the result is that of a simple decoder.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wirespeed_engine::fuzzing::{Announced, proxy_header};

use crate::input::{Input, pieces};
use crate::support::Rng;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Maximum size in bytes of a header of version 1, by the specification, and of version 2, by our choice.
const MAX_SIZE: [usize; 2] = [107, 4095];

/// The first byte selects the comparison, the second the pieces. The others are the header or its parts.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let mut rng = Rng::new(u64::from(input.byte()));
    if choice & 1 == 0 {
        let bytes = match choice & 6 {
            0 => input.rest().to_vec(),
            2 => [b"PROXY ", input.rest()].concat(),
            4 => [SIGNATURE, input.rest()].concat(),
            _ => [SIGNATURE, b"\x21", input.rest()].concat(),
        };
        let expected = match naive(&bytes) {
            Naive::Header(client, len) => Ok(Some((client, bytes[len..].to_vec()))),
            Naive::More => Ok(None),
            Naive::Other => Err(()),
        };
        assert_eq!(every_way(&bytes, &mut rng), expected);
        return;
    }
    let (header, client) = if choice & 2 == 0 { version_1(&mut input) } else { version_2(&mut input) };
    let rest = input.rest();
    let outcome = every_way(&[&header[..], rest].concat(), &mut rng);
    assert_eq!(outcome, Ok(Some((client, rest.to_vec()))), "{}", header.escape_ascii());
}

fn every_way(bytes: &[u8], rng: &mut Rng) -> Result<Option<Announced>, ()> {
    let whole = proxy_header([bytes]);
    assert_eq!(proxy_header(pieces(bytes, rng)), whole, "in pieces");
    assert_eq!(proxy_header(bytes.chunks(1)), whole, "byte by byte");
    whole
}

fn address(input: &mut Input<'_>, six: bool) -> IpAddr {
    let mut octets = [0; 16];
    let bytes = input.take(if six { 16 } else { 4 });
    octets[..bytes.len()].copy_from_slice(bytes);
    match octets {
        [a, b, c, d, ..] if !six => Ipv4Addr::new(a, b, c, d).into(),
        octets => Ipv6Addr::from(octets).into(),
    }
}

/// Encodes a header of version 1 (section 2.1 of the specification).
fn version_1(input: &mut Input<'_>) -> (Vec<u8>, Option<SocketAddr>) {
    let kind = input.below(3);
    if kind == 2 {
        let more: String = input.take(20).iter().map(|byte| char::from(b' ' + byte % 95)).collect();
        let space = if more.is_empty() { "" } else { " " };
        return (format!("PROXY UNKNOWN{space}{more}\r\n").into_bytes(), None);
    }
    let (source, target) = (address(input, kind == 1), address(input, kind == 1));
    let (from, to) = (input.number(), input.number());
    let family = ["TCP4", "TCP6"][usize::from(kind)];
    let header = format!("PROXY {family} {source} {target} {from} {to}\r\n").into_bytes();
    assert!(header.len() <= MAX_SIZE[0]);
    (header, Some(SocketAddr::new(source.to_canonical(), from)))
}

/// Encodes a header of version 2 (section 2.2).
fn version_2(input: &mut Input<'_>) -> (Vec<u8>, Option<SocketAddr>) {
    let kind = input.below(6);
    let (command, family) =
        [(0x20, 0), (0x21, 0), (0x21, 0x11), (0x21, 0x12), (0x21, 0x21), (0x21, 0x31)][usize::from(kind)];
    let mut body = Vec::new();
    let mut client = None;
    match family {
        0x11 | 0x12 | 0x21 => {
            let six = family == 0x21;
            let (source, target) = (address(input, six), address(input, six));
            let (from, to) = (input.number(), input.number());
            for address in [source, target] {
                match address {
                    IpAddr::V4(address) => body.extend(address.octets()),
                    IpAddr::V6(address) => body.extend(address.octets()),
                }
            }
            body.extend(from.to_be_bytes());
            body.extend(to.to_be_bytes());
            client = Some(SocketAddr::new(source.to_canonical(), from));
        }
        0x31 => body.resize(216, b'/'),
        _ => {}
    }
    for _ in 0..input.below(4) {
        let (kind, value) = (input.byte(), input.payload());
        let value = &value[..value.len().min(900)];
        body.push(kind);
        body.extend((value.len() as u16).to_be_bytes());
        body.extend(value);
    }
    let header = [SIGNATURE, &[command, family], &(body.len() as u16).to_be_bytes(), &body].concat();
    assert!(header.len() <= MAX_SIZE[1]);
    (header, client)
}

enum Naive {
    /// The client's address and the size of the header.
    Header(Option<SocketAddr>, usize),
    More,
    Other,
}

fn naive(bytes: &[u8]) -> Naive {
    let begins = |with: &[u8]| bytes.iter().zip(with).all(|(one, other)| one == other);
    if begins(b"PROXY ") {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n");
        return match end {
            Some(end) if end + 2 <= MAX_SIZE[0] => {
                naive_1(&bytes[..end]).map_or(Naive::Other, |client| Naive::Header(client, end + 2))
            }
            None if bytes.len() < MAX_SIZE[0] => Naive::More,
            _ => Naive::Other,
        };
    }
    if !begins(SIGNATURE) {
        return Naive::Other;
    }
    if bytes.len() < 16 {
        return Naive::More;
    }
    let len = 16 + 256 * usize::from(bytes[14]) + usize::from(bytes[15]);
    if len > MAX_SIZE[1] {
        return Naive::Other;
    }
    if bytes.len() < len {
        return Naive::More;
    }
    let body = &bytes[16..len];
    // Reads an address of `size` bytes and its port.
    let client = |size: usize| -> Option<Option<SocketAddr>> {
        let ip: IpAddr = match size {
            4 => <[u8; 4]>::try_from(body.get(..4)?).ok()?.into(),
            _ => <[u8; 16]>::try_from(body.get(..16)?).ok()?.into(),
        };
        let ports = body.get(2 * size..2 * size + 4)?;
        Some(Some(SocketAddr::new(ip.to_canonical(), 256 * u16::from(ports[0]) + u16::from(ports[1]))))
    };
    let said = match (bytes[12], bytes[13]) {
        (0x20, _) | (0x21, 0) => Some(None),
        (0x21, 0x11 | 0x12) => client(4),
        (0x21, 0x21 | 0x22) => client(16),
        (0x21, 0x31 | 0x32) => (body.len() >= 216).then_some(None),
        _ => None,
    };
    said.map_or(Naive::Other, |client| Naive::Header(client, len))
}

/// Decodes a line of version 1 without its line ending.
fn naive_1(line: &[u8]) -> Option<Option<SocketAddr>> {
    let rest = line.strip_prefix(b"PROXY ")?;
    if rest.starts_with(b"UNKNOWN") {
        // The specification ignores the rest of the line. Our choice: it must not have a CR.
        return (!rest.contains(&b'\r')).then_some(None);
    }
    let text = std::str::from_utf8(rest).ok()?;
    let [family, source, target, from, to] = text.split(' ').collect::<Vec<_>>()[..] else { return None };
    let address = |text: &str| -> Option<IpAddr> {
        match family {
            "TCP4" => text.parse::<Ipv4Addr>().ok().map(Into::into),
            "TCP6" => text.parse::<Ipv6Addr>().ok().map(Into::into),
            _ => None,
        }
    };
    address(target)?;
    // This accepts more than the specification, which allows no leading zeros and no sign.
    let port = |text: &str| -> Option<u16> { text.parse().ok() };
    port(to)?;
    Some(Some(SocketAddr::new(address(source)?.to_canonical(), port(from)?)))
}
