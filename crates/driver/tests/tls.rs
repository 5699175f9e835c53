//! TLS layers: partial records, key updates, the end, rejected certificates, TLS in TLS.

#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation)] // tests fail by panicking

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
fn version_and_alpn_are_reported() {
    for (versions, name) in BOTH.into_iter().zip(["TLSv1.2", "TLSv1.3"]) {
        let (client, server) = connected(versions, 1000);
        assert_eq!((client.layer.version().as_deref(), server.layer.version().as_deref()), (Some(name), Some(name)));
        assert_eq!(client.layer.alpn(), None);
    }
}

#[test]
fn records_may_be_split_anywhere() {
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
fn input_may_have_many_records() {
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
fn end_and_truncation_are_distinguished() {
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
fn forged_record_is_rejected_with_an_alert() {
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
fn wrong_name_and_unknown_authority_are_rejected() {
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
        assert!(matches!(&error, Error::Certificate { reason, .. } if reason.contains(words)), "{error}");
        assert!(!outgoing.is_empty(), "an alert is due");
    }
}

/// Returns a self-signed certificate as made by `openssl req -x509`, and its key. It is valid for `name`, from the first
/// to the second year, and is an authority if `is_ca`.
fn self_signed_certificate(name: &str, years: (i32, i32), is_ca: bool) -> (Vec<u8>, Vec<u8>) {
    let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    if is_ca {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    }
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    params.distinguished_name.push(rcgen::DnType::CommonName, format!("server {number}"));
    params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
    params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem().into_bytes(), key.serialize_pem().into_bytes())
}

#[test]
fn trusted_self_signed_certificate_is_accepted_for_its_name_and_dates() {
    for is_ca in [true, false] {
        let (chain, key) = self_signed_certificate("localhost", (2020, 2100), is_ca);
        let (expired, expired_key) = self_signed_certificate("localhost", (2010, 2011), is_ca);
        let (early, early_key) = self_signed_certificate("localhost", (2099, 2100), is_ca);
        let (stranger, _) = self_signed_certificate("localhost", (2020, 2100), is_ca);
        for (chain, key, ca, name, outcome) in [
            (&chain, &key, &chain, "localhost", None),
            (&chain, &key, &chain, "example.com", Some((62, "host name"))),
            (&chain, &key, &stranger, "localhost", Some((if is_ca { 18 } else { 20 }, "unknown issuer"))),
            (&expired, &expired_key, &expired, "localhost", Some((10, "expired"))),
            (&early, &early_key, &early, "localhost", Some((9, "not yet valid"))),
        ] {
            let options = client::Options { ca: vec![ca.clone()], ..Default::default() };
            let client = RustlsLayer::client(options.build().unwrap(), client::server_name(name).unwrap()).unwrap();
            let options = server::Options { certificate: chain.clone(), key: key.clone(), ..Default::default() };
            let server = RustlsLayer::server(options.build().unwrap()).unwrap();
            let (mut client, mut server) = (End::new(Box::new(client)), End::new(Box::new(server)));
            let hello = client.receive(&[], 1000);
            let mut answer = server.receive(&hello, 1000);
            let mut outgoing = Vec::new();
            let result = client.layer.receive(&mut answer, &mut Vec::new(), &mut outgoing);
            match (outcome, result) {
                (None, Ok(_)) => {
                    let session = client.layer.session().unwrap();
                    assert!(session.cipher.starts_with("TLS_"), "{}", session.cipher);
                    assert!(session.secret_bits == 128 || session.secret_bits == 256);
                    assert_eq!((session.peer_certificates.len(), session.verified), (1, true));
                }
                (Some((code, words)), Err(Error::Certificate { code: found, reason })) => {
                    assert_eq!((code, reason.contains(words)), (found, true), "{name} {is_ca}: {reason}");
                }
                (outcome, result) => panic!("{name} {is_ca}: {outcome:?}, {result:?}"),
            }
        }
    }
}

#[test]
fn certificate_of_an_unknown_authority_can_be_trusted_itself() {
    let (chain, key, _) = certificate("localhost");
    let options = client::Options { ca: vec![chain.clone()], ..Default::default() };
    let client = RustlsLayer::client(options.build().unwrap(), client::server_name("localhost").unwrap()).unwrap();
    let options = server::Options { certificate: chain, key, ..Default::default() };
    let server = RustlsLayer::server(options.build().unwrap()).unwrap();
    let (mut client, mut server) = (End::new(Box::new(client)), End::new(Box::new(server)));
    shake_hands(&mut client, &mut server, 1000);
    assert!(client.layer.session().unwrap().verified);
}

/// A server that has another server's certificate, but not its key, is rejected even without verification.
#[test]
fn handshake_signature_is_checked_without_verification() {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let (chain, key, _) = certificate("localhost");
    let (_, stranger, _) = certificate("localhost");
    for versions in BOTH {
        for (key, is_accepted) in [(&key, true), (&stranger, false)] {
            let options = client::Options { insecure: true, versions: versions.to_vec(), ..Default::default() };
            let name = client::server_name("elsewhere.example").unwrap();
            let client = RustlsLayer::client(options.build().unwrap(), name).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key).unwrap();
            let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
            let chain = vec![CertificateDer::from_pem_slice(&chain).unwrap()];
            let certified = rustls::sign::CertifiedKey::new(chain, key);
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let config = rustls::ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)));
            let server = RustlsLayer::server(Arc::new(config)).unwrap();
            let (mut client, mut server) = (End::new(Box::new(client)), End::new(Box::new(server)));
            let hello = client.receive(&[], 1000);
            let mut answer = server.receive(&hello, 1000);
            let result = client.layer.receive(&mut answer, &mut Vec::new(), &mut Vec::new());
            match result {
                Ok(_) => assert!(is_accepted),
                Err(error) => assert!(!is_accepted && error.to_string().contains("signature"), "{error}"),
            }
        }
    }
}

#[test]
fn other_certificate_errors_keep_their_text() {
    let other = rustls::OtherError(Arc::new(std::io::Error::other("its colour")));
    let error = rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other));
    let Error::Certificate { code, reason } = Error::from(error) else { panic!() };
    assert!(code == 1 && reason.contains("its colour"), "{code}: {reason}");
    let Error::Certificate { reason, .. } = Error::from(rustls::Error::NoCertificatesPresented) else { panic!() };
    assert!(reason.contains("no certificate"), "{reason}");
}

#[test]
fn nothing_is_sent_before_the_handshake_or_after_the_end() {
    let mut wire = Vec::new();
    let (client, _) = layers(&[]);
    let mut client = End::new(client);
    let _hello = client.receive(&[], 1000);
    let error = client.layer.send(&mut [], b"early", &mut wire).unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    for versions in BOTH {
        let (mut client, mut server) = connected(versions, 1000);
        let mut wire = Vec::new();
        client.layer.close(&mut [], &mut wire);
        server.receive(&wire, 1000);
        wire.clear();
        server.layer.close(&mut [], &mut wire);
        client.receive(&wire, 1000);
        for end in [&mut client, &mut server] {
            wire.clear();
            let error = end.layer.send(&mut [], b"late", &mut wire).unwrap_err();
            assert!(error.to_string().contains("closed") && wire.is_empty(), "{error}");
        }
    }
}

#[test]
fn error_names_a_peer_without_tls() {
    let (client, _) = layers(&[]);
    let mut client = End::new(client);
    client.receive(&[], 1000);
    let mut wire = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
    let error = client.layer.receive(&mut wire, &mut Vec::new(), &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
}

#[test]
fn configuration_error_names_the_argument() {
    let (chain, key, authority) = certificate("localhost");
    let stranger = Some(certificate("x").1);
    let ca = vec![authority];
    let broken = [
        (client::Options::default(), "ca"),
        (client::Options { ca: vec![b"nothing".to_vec()], ..Default::default() }, "ca"),
        (client::Options { key: Some(key.clone()), ..Default::default() }, "key"),
        (client::Options { certificate: Some(chain.clone()), key: Some(chain.clone()), ..Default::default() }, "key"),
        (client::Options { ca, certificate: Some(chain), key: stranger, ..Default::default() }, "cert"),
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
    let mut client = End::new(Box::new(Stacked::new(outer_client.layer, inner_client, Vec::new())));
    let mut server = End::new(Box::new(Stacked::new(outer_server.layer, inner_server, Vec::new())));
    shake_hands(&mut client, &mut server, 13);
    let message = vec![7; 50_000];
    let mut wire = Vec::new();
    client.layer.send(&mut [], &message, &mut wire).unwrap();
    server.receive(&wire, 13);
    assert_eq!(server.plain, message);
    assert_eq!(client.layer.session().unwrap().peer_certificates.len(), 1);
    let mut wire = Vec::new();
    server.layer.close(&mut [], &mut wire);
    client.receive(&wire, 1);
    assert!(client.layer.is_peer_closed());
}

/// If the outer layer fails, the inner one first processes the bytes decrypted before.
#[test]
fn bytes_before_a_failure_of_the_outer_layer_are_delivered() {
    let (outer_client, outer_server) = connected(&[], 1000);
    let (inner_client, inner_server) = layers(&[]);
    let mut client = End::new(Box::new(Stacked::new(outer_client.layer, inner_client, Vec::new())));
    let mut server = End::new(Box::new(Stacked::new(outer_server.layer, inner_server, Vec::new())));
    shake_hands(&mut client, &mut server, 1000);
    let mut wire = Vec::new();
    client.layer.send(&mut [], b"last words", &mut wire).unwrap();
    wire.extend_from_slice(b"\x17\x03\x03\x00\x20 this is no record of anybody's  ");
    let mut plain = Vec::new();
    assert!(server.layer.receive(&mut wire, &mut plain, &mut Vec::new()).is_err());
    assert_eq!(plain, b"last words");
}

/// The server uses rustls' buffered API, which can request key updates.
#[test]
fn key_updates_are_applied_and_answered() {
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
