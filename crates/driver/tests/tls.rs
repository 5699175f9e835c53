//! TLS layers: every partial record, key updates, the end, refusals, TLS in TLS.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // tests fail by panicking

mod support;

use support::{End, certificate, layers, shake_hands};
use wirespeed_driver::tls::client::Version;
use wirespeed_driver::tls::{Error, RustlsLayer, Stacked, client, server};

const BOTH: [&[Version]; 2] = [&[Version::Tls12], &[Version::Tls13]];

fn connected(versions: &[Version], step: usize) -> (End, End) {
    let (client, server) = layers(versions);
    let (mut client, mut server) = (End::new(client), End::new(server));
    shake_hands(&mut client, &mut server, step);
    (client, server)
}

#[test]
fn handshake_and_data_byte_by_byte() {
    for versions in BOTH {
        let (mut client, mut server) = connected(versions, 1);
        let message: Vec<u8> = (0..40_000u32).map(|i| i as u8).collect();
        let mut wire = Vec::new();
        client.layer.send(&mut [], &message, &mut wire).unwrap();
        assert!(wire.len() > message.len(), "three records at least");
        server.receive(&wire, 1);
        assert_eq!(server.plain, message);
        assert!(server.incoming.is_empty());
        let mut wire = Vec::new();
        server.layer.send(&mut [], b"answer", &mut wire).unwrap();
        client.receive(&wire, 1);
        assert_eq!(client.plain, b"answer");
    }
}

#[test]
fn versions_and_alpn_are_told() {
    for (versions, name) in BOTH.into_iter().zip(["TLSv1.2", "TLSv1.3"]) {
        let (client, server) = connected(versions, 1000);
        assert_eq!((client.layer.version().as_deref(), server.layer.version().as_deref()), (Some(name), Some(name)));
        assert_eq!(client.layer.alpn(), None);
    }
}

#[test]
fn records_at_every_split() {
    let (mut client, mut server) = connected(&[], 1000);
    for split in 0..60 {
        let mut wire = Vec::new();
        client.layer.send(&mut [], b"a short message", &mut wire).unwrap();
        let split = split.min(wire.len());
        server.plain.clear();
        for part in [&wire[..split], &wire[split..]] {
            if !part.is_empty() {
                server.receive(part, part.len());
            }
        }
        assert_eq!(server.plain, b"a short message");
    }
}

#[test]
fn many_records_in_one_input() {
    let (mut client, mut server) = connected(&[], 1000);
    let mut wire = Vec::new();
    for i in 0..100u8 {
        client.layer.send(&mut [], &[i; 3], &mut wire).unwrap();
    }
    server.receive(&wire, wire.len());
    assert_eq!(server.plain.len(), 300);
    assert_eq!(server.plain[297..], [99; 3]);
}

#[test]
fn the_end_is_told_from_a_truncation() {
    for versions in BOTH {
        let (mut client, mut server) = connected(versions, 1000);
        let mut wire = Vec::new();
        client.layer.send(&mut [], b"last words", &mut wire).unwrap();
        client.layer.close(&mut [], &mut wire);
        server.receive(&wire[..wire.len() - 1], 7);
        assert!(!server.layer.is_peer_closed());
        server.receive(&wire[wire.len() - 1..], 1);
        assert!(server.layer.is_peer_closed());
        assert_eq!(server.plain, b"last words");
        // RFC 8446 6.1: the other direction is still open.
        let mut wire = Vec::new();
        server.layer.send(&mut [], b"reply", &mut wire).unwrap();
        client.receive(&wire, 3);
        assert_eq!(client.plain, b"reply");
    }
}

#[test]
fn a_forged_record_is_refused_and_the_peer_is_told() {
    let (mut client, mut server) = connected(&[], 1000);
    let mut wire = Vec::new();
    client.layer.send(&mut [], b"message", &mut wire).unwrap();
    *wire.last_mut().unwrap() ^= 1;
    let mut outgoing = Vec::new();
    let result = server.layer.receive(&mut wire, &mut server.plain, &mut outgoing);
    assert!(matches!(result, Err(Error::Protocol(_))), "{result:?}");
    assert!(server.plain.is_empty());
    assert!(!outgoing.is_empty(), "an alert is due");
}

#[test]
fn the_wrong_name_and_an_unknown_authority_are_refused() {
    let (chain, key, authority) = certificate("localhost");
    let (_, _, stranger) = certificate("localhost");
    for (ca, name, words) in [(authority, "example.com", "host name"), (stranger, "localhost", "unknown issuer")] {
        let options = client::Options { ca: vec![ca], ..Default::default() };
        let client = RustlsLayer::client(options.build().unwrap(), client::server_name(name).unwrap()).unwrap();
        let options = server::Options { certificate: chain.clone(), key: key.clone(), ..Default::default() };
        let server = RustlsLayer::server(options.build().unwrap()).unwrap();
        let (mut client, mut server) = (End::new(Box::new(client)), End::new(Box::new(server)));
        let hello = client.receive(&[], 1000);
        let mut answer = server.receive(&hello, 1000);
        let mut outgoing = Vec::new();
        let error = client.layer.receive(&mut answer, &mut Vec::new(), &mut outgoing).unwrap_err();
        assert!(matches!(&error, Error::Certificate(text) if text.contains(words)), "{error}");
        assert!(!outgoing.is_empty(), "an alert is due");
    }
}

#[test]
fn a_peer_without_tls_is_named_as_such() {
    let (client, _) = layers(&[]);
    let mut client = End::new(client);
    client.receive(&[], 1000);
    let mut wire = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
    let error = client.layer.receive(&mut wire, &mut Vec::new(), &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
}

#[test]
fn configurations_that_cannot_work_name_the_argument() {
    let (chain, key, _) = certificate("localhost");
    let broken = [
        (client::Options { ca: vec![b"nothing".to_vec()], ..Default::default() }, "ca"),
        (client::Options { key: Some(key.clone()), ..Default::default() }, "key"),
        (client::Options { certificate: Some(chain.clone()), key: Some(chain.clone()), ..Default::default() }, "key"),
        (client::Options { certificate: Some(chain), key: Some(certificate("x").1), ..Default::default() }, "cert"),
    ];
    for (options, name) in broken {
        let error = options.build().unwrap_err();
        assert!(matches!(error, Error::Configuration { argument, .. } if argument == name), "{name}: {error}");
    }
}

#[test]
fn tls_inside_tls() {
    let (outer_client, outer_server) = connected(&[], 1000);
    let (inner_client, inner_server) = layers(&[]);
    let mut client = End::new(Box::new(Stacked::new(outer_client.layer, inner_client)));
    let mut server = End::new(Box::new(Stacked::new(outer_server.layer, inner_server)));
    shake_hands(&mut client, &mut server, 13);
    let message = vec![7; 50_000];
    let mut wire = Vec::new();
    client.layer.send(&mut [], &message, &mut wire).unwrap();
    server.receive(&wire, 13);
    assert_eq!(server.plain, message);
    let mut wire = Vec::new();
    server.layer.close(&mut [], &mut wire);
    client.receive(&wire, 1);
    assert!(client.layer.is_peer_closed());
}

/// A server by rustls' other API, which can ask for new keys.
#[test]
fn key_updates_are_followed_and_answered() {
    let (chain, key, authority) = certificate("localhost");
    let options = client::Options { ca: vec![authority], versions: vec![Version::Tls13], ..Default::default() };
    let client = RustlsLayer::client(options.build().unwrap(), client::server_name("localhost").unwrap()).unwrap();
    let options = server::Options { certificate: chain, key, ..Default::default() };
    let mut server = rustls::ServerConnection::new(options.build().unwrap()).unwrap();
    let mut client = End::new(Box::new(client));

    let mut to_server = client.receive(&[], 1000);
    while client.layer.is_handshaking() || server.is_handshaking() {
        server.read_tls(&mut to_server.as_slice()).unwrap();
        server.process_new_packets().unwrap();
        let mut to_client = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut to_client).unwrap();
        }
        to_server = client.receive(&to_client, 1000);
    }
    for round in 0..3u8 {
        server.refresh_traffic_keys().unwrap();
        std::io::Write::write_all(&mut server.writer(), &[round; 100]).unwrap();
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        client.plain.clear();
        // RFC 8446 4.6.3: the answer to a key update precedes what is sent with the new keys.
        let mut answer = client.receive(&wire, 1);
        assert_eq!(client.plain, [round; 100]);
        client.layer.send(&mut [], b"under new keys", &mut answer).unwrap();
        let mut input = answer.as_slice();
        while !input.is_empty() {
            server.read_tls(&mut input).unwrap();
            server.process_new_packets().unwrap();
        }
        let mut plain = [0; 14];
        std::io::Read::read_exact(&mut server.reader(), &mut plain).unwrap();
        assert_eq!(&plain, b"under new keys");
    }
}
