//! Negotiation of permessage-deflate on both sides.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use proptest::prelude::*;
use support::cases;
use wirespeed_protocol::deflate::negotiate::{Config, Params};
use wirespeed_protocol::handshake::extension::{HEADER, parse_extensions};
use wirespeed_protocol::handshake::{HandshakeError, HeaderList};

fn header(value: &str) -> HeaderList {
    headers(&[value])
}

fn headers(values: &[&str]) -> HeaderList {
    let mut headers = HeaderList::new();
    for value in values {
        headers.push(HEADER, value).unwrap();
    }
    headers
}

/// Returns a configuration. `flags`: no context takeover of server and client; `bits`: their window bits.
fn config(flags: (bool, bool), bits: (Option<u8>, Option<u8>)) -> Config {
    Config {
        server_no_context_takeover: flags.0,
        client_no_context_takeover: flags.1,
        server_max_window_bits: bits.0,
        client_max_window_bits: bits.1,
        ..Config::client()
    }
}

/// Returns parameters. `flags`: local and remote no context takeover; `bits`: local and remote window bits.
fn params(flags: (bool, bool), bits: (u8, u8)) -> Params {
    Params {
        local_no_context_takeover: flags.0,
        remote_no_context_takeover: flags.1,
        local_window_bits: bits.0,
        remote_window_bits: bits.1,
        level: 6,
        memory_level: 5,
        threshold: 32,
    }
}

const PLAIN: fn() -> Config = Config::client;

#[test]
fn configurations_make_offers() {
    for (config, offer) in [
        (Config::client(), "permessage-deflate; client_max_window_bits"),
        (config((true, false), (None, None)), "permessage-deflate; server_no_context_takeover; client_max_window_bits"),
        (
            config((false, true), (None, Some(8))),
            "permessage-deflate; client_no_context_takeover; client_max_window_bits=8",
        ),
        (
            config((true, true), (Some(10), Some(15))),
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover; \
             server_max_window_bits=10; client_max_window_bits=15",
        ),
    ] {
        assert_eq!(config.offer(), offer);
    }
}

#[test]
fn server_answers_offers() {
    let server = Config::server();
    let small = config((true, true), (Some(9), Some(10)));
    for (config, offer, answer, agreed) in [
        // A server that requires nothing.
        (PLAIN(), "permessage-deflate", "permessage-deflate", params((false, false), (15, 15))),
        (PLAIN(), "permessage-deflate; client_max_window_bits", "permessage-deflate", params((false, false), (15, 15))),
        (
            PLAIN(),
            "permessage-deflate; client_max_window_bits=9; server_max_window_bits=10",
            "permessage-deflate; server_max_window_bits=10; client_max_window_bits=9",
            params((false, false), (10, 9)),
        ),
        (
            PLAIN(),
            "permessage-deflate; server_no_context_takeover",
            "permessage-deflate; server_no_context_takeover",
            params((true, false), (15, 15)),
        ),
        (
            PLAIN(),
            "permessage-deflate; client_no_context_takeover",
            "permessage-deflate; client_no_context_takeover",
            params((false, true), (15, 15)),
        ),
        // A server with the default configuration.
        (
            server,
            "permessage-deflate",
            "permessage-deflate; server_max_window_bits=12",
            params((false, false), (12, 15)),
        ),
        (
            server,
            "permessage-deflate; client_max_window_bits",
            "permessage-deflate; server_max_window_bits=12; client_max_window_bits=12",
            params((false, false), (12, 12)),
        ),
        (
            server,
            "permessage-deflate; client_max_window_bits=15; server_max_window_bits=15",
            "permessage-deflate; server_max_window_bits=12; client_max_window_bits=12",
            params((false, false), (12, 12)),
        ),
        (
            server,
            "permessage-deflate; client_max_window_bits=8; server_max_window_bits=8",
            "permessage-deflate; server_max_window_bits=8; client_max_window_bits=8",
            params((false, false), (8, 8)),
        ),
        // A server that requires every parameter.
        (
            small,
            "permessage-deflate",
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover; server_max_window_bits=9",
            params((true, true), (9, 15)),
        ),
        (
            small,
            "permessage-deflate; client_max_window_bits",
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover; server_max_window_bits=9; \
             client_max_window_bits=10",
            params((true, true), (9, 10)),
        ),
    ] {
        let accepted = config.accept_offers(&header(offer)).unwrap();
        assert_eq!(accepted, Some((agreed, answer.to_owned())), "{offer}");
    }
}

/// The offers and answers in the examples of RFC 7692 7.1.3.
#[test]
fn examples_of_the_rfc_are_accepted() {
    let plain = Config::client();
    // The simplest offer, and its simplest answer.
    assert_eq!(plain.accept_offers(&header("permessage-deflate")).unwrap().unwrap().1, "permessage-deflate");
    // The offer has both windows; the answer may have the server's only.
    let offer = header("permessage-deflate; client_max_window_bits; server_max_window_bits=10");
    assert_eq!(plain.accept_offers(&offer).unwrap().unwrap().1, "permessage-deflate; server_max_window_bits=10");
    let client = config((false, false), (Some(10), None));
    let answer = header("permessage-deflate; server_max_window_bits=10");
    assert_eq!(client.accept_response(&answer).unwrap(), Some(params((false, false), (15, 10))));
    // An offer with a fallback: a server that can limit its window accepts the first.
    let offers = header(
        "permessage-deflate; client_max_window_bits; server_max_window_bits=10, permessage-deflate; client_max_window_bits",
    );
    assert_eq!(plain.accept_offers(&offers).unwrap().unwrap().1, "permessage-deflate; server_max_window_bits=10");
    // An offer with an unknown parameter MUST be declined; the fallback may be accepted.
    let offers = header("permessage-deflate; use_y=\"1\", permessage-deflate");
    assert_eq!(plain.accept_offers(&offers).unwrap().unwrap().1, "permessage-deflate");
}

#[test]
fn server_declines_invalid_offers() {
    for offer in [
        "x-webkit-deflate-frame",
        "Permessage-Deflate",
        "permessage-deflate; unknown",
        "permessage-deflate; server_no_context_takeover=1",
        "permessage-deflate; client_no_context_takeover=true",
        "permessage-deflate; server_no_context_takeover; server_no_context_takeover",
        "permessage-deflate; client_no_context_takeover; client_no_context_takeover",
        "permessage-deflate; server_max_window_bits",
        "permessage-deflate; server_max_window_bits=7",
        "permessage-deflate; server_max_window_bits=16",
        "permessage-deflate; server_max_window_bits=09",
        "permessage-deflate; server_max_window_bits=+9",
        "permessage-deflate; server_max_window_bits=9.0",
        "permessage-deflate; server_max_window_bits=0x9",
        "permessage-deflate; server_max_window_bits=264",
        "permessage-deflate; server_max_window_bits=9; server_max_window_bits=9",
        "permessage-deflate; client_max_window_bits=7",
        "permessage-deflate; client_max_window_bits=16",
        "permessage-deflate; client_max_window_bits=010",
        "permessage-deflate; client_max_window_bits; client_max_window_bits",
        "permessage-deflate; client_max_window_bits; client_max_window_bits=9",
        "permessage-deflate; client_max_window_bits=9; client_max_window_bits",
    ] {
        assert_eq!(Config::server().accept_offers(&header(offer)), Ok(None), "{offer}");
        // Another offer in the same field, before or after it, or in the next field is still considered.
        for both in [headers(&[offer, "permessage-deflate"]), header(&format!("{offer}, permessage-deflate"))] {
            let (agreed, _) = Config::server().accept_offers(&both).unwrap().unwrap();
            assert_eq!(agreed, params((false, false), (12, 15)));
        }
    }
    assert_eq!(Config::server().accept_offers(&HeaderList::new()), Ok(None));
}

#[test]
fn client_accepts_valid_answers() {
    let all = config((true, true), (Some(10), Some(11)));
    for (config, answer, agreed) in [
        (PLAIN(), "permessage-deflate", params((false, false), (15, 15))),
        (PLAIN(), "permessage-deflate; server_no_context_takeover", params((false, true), (15, 15))),
        (PLAIN(), "permessage-deflate; client_no_context_takeover", params((true, false), (15, 15))),
        (PLAIN(), "permessage-deflate; server_max_window_bits=8", params((false, false), (15, 8))),
        (PLAIN(), "permessage-deflate; client_max_window_bits=8", params((false, false), (8, 15))),
        (PLAIN(), "permessage-deflate; client_max_window_bits=\"1\\0\"", params((false, false), (10, 15))),
        (
            all,
            "permessage-deflate; server_no_context_takeover; server_max_window_bits=10",
            params((true, true), (11, 10)),
        ),
        (
            all,
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover; server_max_window_bits=9; \
             client_max_window_bits=9",
            params((true, true), (9, 9)),
        ),
    ] {
        assert_eq!(config.accept_response(&header(answer)), Ok(Some(agreed)), "{answer}");
    }
    assert_eq!(PLAIN().accept_response(&HeaderList::new()), Ok(None));
}

#[test]
fn client_rejects_invalid_answers() {
    let unknown = |name: &str| HandshakeError::UnknownParameter { parameter: name.to_owned() };
    let duplicate = |parameter| HandshakeError::DuplicateParameter { parameter };
    let missing = |parameter| HandshakeError::MissingParameter { parameter };
    let invalid = |parameter, value: Option<&str>, expected: &str| HandshakeError::InvalidParameter {
        parameter,
        value: value.map(str::to_owned),
        expected: expected.to_owned(),
    };
    let range = "an integer from 8 to 15";
    let (server_takeover, client_takeover) = ("server_no_context_takeover", "client_no_context_takeover");
    let (server_bits, client_bits) = ("server_max_window_bits", "client_max_window_bits");
    let other = |extension: &str| HandshakeError::ExtensionNotOffered { extension: extension.to_owned() };
    let bounded = config((false, false), (Some(10), Some(11)));
    for (config, answer, error) in [
        (PLAIN(), "x-mux", other("x-mux")),
        (PLAIN(), "permessage-deflate, x-mux", other("x-mux")),
        (PLAIN(), "Permessage-deflate", other("Permessage-deflate")),
        (
            PLAIN(),
            "permessage-deflate, permessage-deflate",
            HandshakeError::DuplicateExtension { extension: "permessage-deflate".to_owned() },
        ),
        (PLAIN(), "permessage-deflate; x=1", unknown("x")),
        (PLAIN(), "permessage-deflate; server_no_context_takeover=1", invalid(server_takeover, Some("1"), "no value")),
        (PLAIN(), "permessage-deflate; client_no_context_takeover=1", invalid(client_takeover, Some("1"), "no value")),
        (
            PLAIN(),
            "permessage-deflate; server_no_context_takeover; server_no_context_takeover",
            duplicate(server_takeover),
        ),
        (
            PLAIN(),
            "permessage-deflate; client_no_context_takeover; client_no_context_takeover",
            duplicate(client_takeover),
        ),
        (PLAIN(), "permessage-deflate; server_max_window_bits=9; server_max_window_bits=9", duplicate(server_bits)),
        (PLAIN(), "permessage-deflate; client_max_window_bits=9; client_max_window_bits=9", duplicate(client_bits)),
        (PLAIN(), "permessage-deflate; server_max_window_bits", invalid(server_bits, None, range)),
        (PLAIN(), "permessage-deflate; client_max_window_bits", invalid(client_bits, None, range)),
        (PLAIN(), "permessage-deflate; client_max_window_bits=08", invalid(client_bits, Some("08"), range)),
        (PLAIN(), "permessage-deflate; client_max_window_bits=7", invalid(client_bits, Some("7"), range)),
        (PLAIN(), "permessage-deflate; server_max_window_bits=16", invalid(server_bits, Some("16"), range)),
        (config((true, false), (None, None)), "permessage-deflate", missing(server_takeover)),
        (bounded, "permessage-deflate", missing(server_bits)),
        (
            bounded,
            "permessage-deflate; server_max_window_bits=11",
            invalid(server_bits, Some("11"), "an integer from 8 to 10, as offered"),
        ),
        (
            bounded,
            "permessage-deflate; server_max_window_bits=10; client_max_window_bits=12",
            invalid(client_bits, Some("12"), "an integer from 8 to 11, as offered"),
        ),
    ] {
        assert_eq!(config.accept_response(&header(answer)), Err(error), "{answer}");
    }
}

#[test]
fn malformed_headers_are_errors() {
    let parsed = |value: &str| -> Option<String> {
        let mut text = String::new();
        for extension in parse_extensions(&header(value)).ok()? {
            text += &format!("[{}", extension.name);
            for parameter in extension.parameters {
                text += &format!(" {}", parameter.name);
                if let Some(value) = parameter.value {
                    text += &format!("={value}");
                }
            }
            text += "]";
        }
        Some(text)
    };
    for (value, expected) in [
        ("a", "[a]"),
        ("a,b", "[a][b]"),
        (" , a ,, b\t, ", "[a][b]"),
        ("a;b;c=d", "[a b c=d]"),
        ("a ; b ; c = d , e", "[a b c=d][e]"),
        ("a; b=\"c\"", "[a b=c]"),
        ("a; b=\"c\\d\"; e", "[a b=cd e]"),
        ("foo, bar; baz=2", "[foo][bar baz=2]"),
    ] {
        assert_eq!(parsed(value).as_deref(), Some(expected), "{value}");
    }
    for value in [
        "",
        ",",
        "a b",
        "a;",
        "a; ;b",
        "a; b=",
        "a; b==c",
        "a; =c",
        "a; b=\"\"",
        "a; b=\"c d\"",
        "a; b=\"c",
        "a; b=\"c\\",
        "a; b=\"c,d\"",
        "a; b=\"c\"d",
        "a=b",
        "a/b",
        "\u{e9}",
        ";a",
        "a; b c",
    ] {
        assert_eq!(parsed(value), None, "{value}");
        // RFC 6455 9.1: a malformed field fails the connection on both sides; it is not just declined.
        let malformed = |error| matches!(error, HandshakeError::InvalidHeader { name: HEADER, .. });
        assert!(malformed(Config::server().accept_offers(&header(value)).unwrap_err()));
        assert!(malformed(Config::client().accept_response(&header(value)).unwrap_err()));
    }
    let extensions = parse_extensions(&headers(&["a", "b; c"])).unwrap();
    assert_eq!(extensions.len(), 2, "over all occurrences of the header");
}

#[test]
fn configurations_out_of_range_are_rejected() {
    for config in [
        Config { level: 10, ..PLAIN() },
        Config { memory_level: 0, ..PLAIN() },
        Config { memory_level: 10, ..PLAIN() },
        config((false, false), (Some(7), None)),
        config((false, false), (Some(16), None)),
        config((false, false), (None, Some(7))),
        config((false, false), (None, Some(16))),
    ] {
        assert!(matches!(config.validate(), Err(HandshakeError::InvalidArgument { .. })), "{config:?}");
        assert!(config.accept_offers(&header("permessage-deflate")).is_err());
    }
    Config::client().validate().unwrap();
    Config::server().validate().unwrap();
}

fn any_config() -> impl Strategy<Value = Config> {
    (
        any::<(bool, bool)>(),
        proptest::option::of(8_u8..=15),
        proptest::option::of(8_u8..=15),
        0_u8..=9,
        1_u8..=9,
        0_usize..99,
    )
        .prop_map(|(flags, server, client, level, memory_level, threshold)| Config {
            level,
            memory_level,
            threshold,
            ..config(flags, (server, client))
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(2000)))]

    /// With any two configurations both sides agree, their parameters mirror each other, and no limit is exceeded.
    #[test]
    fn both_ends_agree(client in any_config(), server in any_config()) {
        let (at_server, answer) = server.accept_offers(&header(&client.offer())).unwrap().unwrap();
        let at_client = client.accept_response(&header(&answer)).unwrap().unwrap();
        prop_assert_eq!(at_client.local_no_context_takeover, at_server.remote_no_context_takeover);
        prop_assert_eq!(at_client.remote_no_context_takeover, at_server.local_no_context_takeover);
        prop_assert_eq!(at_client.local_window_bits, at_server.remote_window_bits);
        prop_assert_eq!(at_client.remote_window_bits, at_server.local_window_bits);
        for wish in [client, server] {
            prop_assert!(at_server.local_window_bits <= wish.server_max_window_bits.unwrap_or(15));
            prop_assert!(at_client.local_window_bits <= wish.client_max_window_bits.unwrap_or(15));
            prop_assert!(at_server.local_no_context_takeover || !wish.server_no_context_takeover);
            prop_assert!(at_client.local_no_context_takeover || !wish.client_no_context_takeover);
        }
        let own = |params: Params| (params.level, params.memory_level, params.threshold);
        prop_assert_eq!(own(at_client), (client.level, client.memory_level, client.threshold));
        prop_assert_eq!(own(at_server), (server.level, server.memory_level, server.threshold));
    }

    #[test]
    fn arbitrary_extensions_never_panic(value in "(permessage-deflate|[a-z]{0,3})([;,= \"\\\\]{0,2}(client_max_window_bits|server_max_window_bits|[0-9]{1,3}|[ -~]{0,6})){0,6}") {
        let _ = Config::server().accept_offers(&header(&value));
        let _ = Config::client().accept_response(&header(&value));
    }
}
