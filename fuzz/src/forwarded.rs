//! Forwarded headers: the client's address is the one that the first trusted proxy has seen, independent of the headers
//! in the client's request.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wirespeed_engine::config::{ForwardedHeader, Networks, Proxies};
use wirespeed_engine::fuzzing;
use wirespeed_protocol::handshake::HeaderList;

use crate::input::Input;

const WORDS: [&str; 24] = [
    "\"",
    "\\",
    ",",
    ";",
    "=",
    " ",
    "for",
    "For=",
    "for=",
    "by=10.0.0.1",
    "proto=https",
    "host=\"a,b\"",
    "unknown",
    "_x",
    "6.6.6.6",
    "10.0.0.9",
    "[2001:db8::6]",
    ":80",
    "\"[2001:db8::6]:1\"",
    "::ffff:10.0.0.1",
    "é",
    "\t",
    "(",
    "127.0.0.1",
];

/// The first byte selects the header; the next ones are the client's values, then the elements added by proxies.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let header = if choice & 1 == 0 { ForwardedHeader::XForwardedFor } else { ForwardedHeader::Forwarded };
    let name = if choice & 1 == 0 { "X-Forwarded-For" } else { "Forwarded" };
    let trusted = Networks::parse(&["10.0.0.0/8", "fd00::/8", "unix"]).unwrap();
    let proxies = Proxies { protocol: Networks::default(), trusted, header };
    let mut lines: Vec<Vec<u8>> = Vec::new();
    for _ in 0..input.below(3) {
        let line = match choice & 2 {
            0 => input.words(12, &WORDS).into_bytes(),
            _ => {
                let len = input.byte();
                input.take(usize::from(len)).to_vec()
            }
        };
        // Proxies do not forward invalid values.
        if HeaderList::new().push(name, &line).is_ok() {
            lines.push(line);
        }
    }
    let client = Some(address(&mut input, false));
    let mut peer = client;
    // Each proxy adds the address of its peer, and is the peer of the next one.
    for _ in 0..input.below(4) {
        let said = element(&mut input, header, peer);
        if input.byte() & 1 == 0 || lines.is_empty() {
            lines.push(said.into_bytes());
        } else if let Some(last) = lines.last_mut() {
            last.extend(format!(", {said}").into_bytes());
        }
        peer = Some(address(&mut input, true));
    }
    if choice & 4 != 0 && peer != client {
        peer = None; // over a Unix socket
    }
    let mut headers = HeaderList::new();
    for line in &lines {
        headers.push(name, line).expect("it is valid");
    }
    let other = if choice & 1 == 0 { "Forwarded" } else { "X-Forwarded-For" };
    headers.push(other, "for=6.6.6.6").expect("valid");
    let found = fuzzing::client(&proxies, peer, &headers);
    let same =
        |one: Option<SocketAddr>, other: Option<SocketAddr>| one.map(|one| one.ip()) == other.map(|other| other.ip());
    let shown: Vec<_> = lines.iter().map(|line| line.escape_ascii().to_string()).collect();
    assert!(same(found, client), "{found:?} instead of {client:?}, by {shown:?}");
}

/// Returns the address of a trusted proxy, or another address.
fn address(input: &mut Input<'_>, trusted: bool) -> SocketAddr {
    let bytes = input.take(3);
    let [a, b, c] = [0, 1, 2].map(|at| bytes.get(at).copied().unwrap_or(7));
    let ip: IpAddr = match (trusted, a & 1) {
        (true, 0) => Ipv4Addr::new(10, a, b, c).into(),
        (true, _) => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, u16::from(b), u16::from(c)).into(),
        (false, 0) => Ipv4Addr::new(a | 1, b, c, 1).into(),
        (false, _) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, u16::from(b), u16::from(c)).into(),
    };
    SocketAddr::new(ip, input.number())
}

/// Returns the element that a proxy adds for the peer that it has seen.
fn element(input: &mut Input<'_>, header: ForwardedHeader, seen: Option<SocketAddr>) -> String {
    let Some(seen) = seen else { return String::new() };
    let (ip, style) = (seen.ip(), input.byte());
    if header == ForwardedHeader::XForwardedFor {
        return match style & 1 {
            0 => ip.to_string(),
            _ => seen.to_string(),
        };
    }
    let node = match (ip, style & 3) {
        (IpAddr::V4(ip), 0) => format!("for={ip}"),
        (IpAddr::V4(ip), 1) => format!("For=\"{ip}\""),
        (IpAddr::V4(ip), 2) => format!("for=\"{ip}:{}\"", seen.port()),
        (IpAddr::V4(ip), _) => format!("for=\"{ip}:_hidden\""),
        (IpAddr::V6(ip), 0 | 1) => format!("for=\"[{ip}]\""),
        (IpAddr::V6(ip), _) => format!("for=\"[{ip}]:{}\"", seen.port()),
    };
    match style >> 2 & 3 {
        0 => node,
        1 => format!("{node};proto=https"),
        2 => format!("by=\"[fd00::1]\";{node}"),
        _ => format!("{node};host=\"a\\\"b,c;d\";proto=http"),
    }
}
