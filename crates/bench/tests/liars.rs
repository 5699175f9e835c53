//! What the load generator has to notice: servers that lose, repeat, reorder, change or refuse. And what it
//! does with a server that does none of this, but speaks WSE.

mod support;

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use serde_json::json;
use wirespeed_protocol::MessageKind;
use wirespeed_protocol::handshake::Request;

use support::room::{Behaviour, Room, serve};
use support::{load, number};

fn broadcast(room: &Room, kind: MessageKind, payload: &[u8]) {
    for to in 0..room.len() {
        room.send(to, kind, payload);
    }
}

/// The number of a binary message.
fn number_of(payload: &[u8]) -> u64 {
    u64::from_le_bytes(payload[..8].try_into().expect("8 bytes"))
}

#[test]
fn fan_out_and_publish_count_every_delivery() {
    for (arguments, offered) in [
        ("--workload fan-out", None),
        ("--workload fan-out --window 5 --content json", None),
        ("--workload fan-out --window 5 --threads 3 --content text", None),
        ("--workload publish --rate 200 --seconds 0.1", Some(2000.0)),
        ("--workload publish --share 0.2", Some(0.0)),
    ] {
        // Everybody who ever came is in a room.
        let url = serve(|room: &Room, _, kind, payload: &[u8]| broadcast(room, kind, payload));
        let found = load(&format!("{arguments} --connections 10"), &url).expect(arguments);
        assert!(number(&found, "count") > 0.0 && number(&found, "p99") >= number(&found, "p50"), "{found}");
        match offered {
            None => assert!(found.get("offered").is_none()),
            Some(0.0) => assert!(number(&found, "offered") > 0.0),
            Some(offered) => {
                assert_eq!(number(&found, "offered"), offered);
                assert_eq!(found["count"], 200, "20 messages to 10 connections");
            }
        }
    }
}

#[test]
fn deliveries_that_are_missing_are_counted() {
    for workload in ["fan-out --window 4", "publish --rate 400"] {
        let url = serve(|room: &Room, _, kind, payload: &[u8]| {
            for to in 0..room.len() {
                // Two of the ten miss number 2, which is noticed with number 3.
                if !(to < 2 && number_of(payload) == 2) {
                    room.send(to, kind, payload);
                }
            }
        });
        let error = load(&format!("--workload {workload} --connections 10"), &url).expect_err("some are missing");
        assert!(error.starts_with("2 of ") && error.ends_with("0 deliveries are missing"), "{workload}: {error}");
    }
}

#[test]
fn deliveries_that_other_threads_miss_are_noticed() {
    for lost in 0..4 {
        let url = serve(move |room: &Room, _, kind, payload: &[u8]| {
            for to in (0..room.len()).filter(|to| *to != lost || number_of(payload) != 2) {
                room.send(to, kind, payload);
            }
        });
        let error =
            load("--workload fan-out --window 4 --connections 4 --threads 4", &url).expect_err("one is missing");
        assert!(error.contains("1 of ") && error.ends_with("deliveries are missing"), "{lost}: {error}");
    }
}

#[test]
fn what_several_servers_deliver_is_counted_for_each() {
    // As if it were two that pass on to each other what is published; what comes first half of the sessions miss.
    let together = || {
        serve(|room: &Room, _, kind, payload: &[u8]| {
            for to in (0..room.len()).filter(|to| to % 2 == 0 || number_of(payload) > 1) {
                room.send(to, kind, payload);
            }
        })
    };
    let alone = || serve(|room: &Room, _, kind, payload: &[u8]| broadcast(room, kind, payload));
    for workload in ["fan-out --window 5", "publish --rate 200 --seconds 0.1"] {
        let one = together();
        let (first, second) = (alone(), alone());
        for (urls, apart) in [([&one, &one], ""), ([&first, &second], "--apart")] {
            let arguments = format!("--workload {workload} {apart} --connections 5 {}", urls[0]);
            let found = load(&arguments, urls[1]).expect(&arguments);
            let parts: Vec<f64> = (0..2).map(|server| number(&found["servers"][server], "count")).collect();
            assert!(parts.iter().all(|part| *part > 0.0), "{found}");
            assert_eq!(parts.iter().sum::<f64>(), number(&found, "count"), "{found}");
            assert!(number(&found["servers"][1], "p99") > 0.0, "{found}");
            if workload.starts_with("publish") {
                assert_eq!(parts, [100.0, 100.0], "20 messages to 5 connections of each");
            }
        }
    }
}

#[test]
fn deliveries_that_another_server_misses_are_noticed() {
    // Number 0 may be missing there, until the sessions of one are known to the other; later ones not.
    let url = serve(|room: &Room, _, kind, payload: &[u8]| {
        for to in (0..room.len()).filter(|to| *to != 3 || ![0, 6].contains(&number_of(payload))) {
            room.send(to, kind, payload);
        }
    });
    let error =
        load(&format!("--workload fan-out --window 4 --connections 2 {url}"), &url).expect_err("one is missing");
    assert!(error.starts_with("1 of ") && error.ends_with("deliveries are missing"), "{error}");
}

#[test]
fn a_delivery_that_comes_twice_is_an_error() {
    let url = serve(|room: &Room, _, kind, payload: &[u8]| {
        broadcast(room, kind, payload);
        if number_of(payload) == 3 {
            room.send(1, kind, payload);
        }
    });
    let error = load("--workload fan-out --connections 3", &url).expect_err("one came twice");
    assert!(error.contains("message 3 came where 4 was due"), "{error}");
}

#[test]
fn an_echo_that_is_changed_or_out_of_order_is_an_error() {
    let changed = serve(|room: &Room, from, kind, payload: &[u8]| {
        let mut payload = payload.to_vec();
        payload[20] ^= u8::from(number_of(&payload) == 5);
        room.send(from, kind, &payload);
    });
    for workload in ["echo", "burst"] {
        let error = load(&format!("--workload {workload}"), &changed).expect_err("a byte was changed");
        assert!(error.contains("message 5 was changed"), "{error}");
    }
    let held: Mutex<Vec<u8>> = Mutex::default();
    let swapped = serve(move |room: &Room, from, kind, payload: &[u8]| {
        let mut held = held.lock().expect("nobody panicked");
        match number_of(payload) {
            3 => payload.clone_into(&mut held),
            4 => {
                room.send(from, kind, payload);
                room.send(from, kind, &held);
            }
            _ => room.send(from, kind, payload),
        }
    });
    let error = load("--window 4", &swapped).expect_err("two were swapped");
    assert!(error.contains("message 4 came where 3 was due"), "{error}");
}

#[test]
fn a_sink_that_counts_less_is_an_error() {
    let count: Mutex<u64> = Mutex::default();
    let url = serve(move |room: &Room, from, kind, payload: &[u8]| {
        let mut count = count.lock().expect("nobody panicked");
        if kind == MessageKind::Text {
            let report = format!("{{\"messages\":{},\"bytes\":{}}}", *count - 1, (*count - 1) * 128);
            room.send(from, MessageKind::Text, report.as_bytes());
        } else {
            assert_eq!(payload.len(), 128);
            *count += 1;
        }
    });
    let error = load("--workload sink", &url).expect_err("one is missing");
    assert!(error.starts_with("the server received ") && error.ends_with(" messages"), "{error}");
}

#[test]
fn a_sink_that_has_not_decoded_is_an_error() {
    for (wrong, expected) in [(0, None), (1, Some("add up to"))] {
        let taken: Mutex<(u64, u64)> = Mutex::default();
        let url = serve(move |room: &Room, from, kind, payload: &[u8]| {
            let mut taken = taken.lock().expect("nobody panicked");
            if kind == MessageKind::Text {
                let sum = (taken.1 + wrong) % (1 << 32);
                let report = format!("{{\"messages\":{},\"sum\":{sum}}}", taken.0);
                room.send(from, MessageKind::Text, report.as_bytes());
            } else {
                let document: serde_json::Value = serde_json::from_slice(payload).expect("JSON");
                taken.0 += 1;
                taken.1 += document["number"].as_u64().expect("a number") % (1 << 32);
            }
        });
        let found = load("--workload sink --content json-bytes --size 175", &url);
        match expected {
            None => assert!(number(&found.expect("an answer"), "count") > 0.0),
            Some(words) => assert!(found.expect_err("one is wrong").contains(words)),
        }
    }
}

#[test]
fn pings_without_pongs_are_an_error() {
    let url = serve(|_: &Room, _, _, _: &[u8]| {});
    let error = load("--workload pings --connections 5 --rate 200", &url).expect_err("nobody answers");
    assert_eq!(error, "10 of 10 pings were not answered");
}

#[test]
fn a_connection_that_is_lost_among_pings_is_an_error() {
    struct Leaving;
    impl Behaviour for Leaving {
        fn open(&self, room: &Room, from: usize, _: &Request) {
            if from == 3 {
                thread::sleep(Duration::from_millis(30));
                room.close(from);
            }
        }
        fn message(&self, _: &Room, _: usize, _: MessageKind, _: &[u8]) {}
    }
    let error = load("--workload pings --connections 5", &serve(Leaving)).expect_err("one is lost");
    assert!(error.contains("the server has left"), "{error}");
}

#[test]
fn a_token_goes_along_without_a_greeting() {
    struct Guarded;
    impl Behaviour for Guarded {
        fn refuse(&self, _: usize, request: &Request) -> Option<u16> {
            (request.headers.value_str("Cookie") != Some("access_token=a.b.c")).then_some(401)
        }
        fn message(&self, room: &Room, from: usize, kind: MessageKind, payload: &[u8]) {
            room.send(from, kind, payload);
        }
    }
    let url = serve(Guarded);
    assert!(number(&load("--token a.b.c", &url).expect("an answer"), "count") > 0.0);
    assert!(number(&load("--workload touch --token a.b.c", &url).expect("an answer"), "p50") > 0.0);
    for workload in ["echo", "touch"] {
        assert!(load(&format!("--workload {workload}"), &url).expect_err("no token").contains("401"));
    }
}

#[test]
fn a_rate_that_the_server_cannot_answer_is_an_error() {
    let url = serve(|room: &Room, from, kind, payload: &[u8]| {
        thread::sleep(Duration::from_millis(20));
        room.send(from, kind, payload);
    });
    let error = load("--rate 1000 --seconds 20", &url).expect_err("fifty are possible");
    assert_eq!(error, "the server cannot answer 1000 messages a second");
}

/// What stops for a while is in the latencies of everything that was due meanwhile, not of one message only.
#[test]
fn a_pause_of_the_server_is_in_every_latency_that_it_touches() {
    let url = serve(|room: &Room, from, kind, payload: &[u8]| {
        if number_of(payload) == 50 {
            thread::sleep(Duration::from_millis(300));
        }
        room.send(from, kind, payload);
    });
    let found = load("--rate 1000 --seconds 0.4 --warmup 0", &url).expect("an answer");
    assert_eq!(found["count"], 400);
    // Of 400 messages 300 were due in the pause, which on average had half of it before them.
    assert!(number(&found, "p50") > 50_000.0 && number(&found, "max") > 290_000.0, "{found}");
}

/// Refuses from the eleventh connection on.
struct Small;

impl Behaviour for Small {
    fn refuse(&self, number: usize, _: &Request) -> Option<u16> {
        (number >= 10).then_some(503)
    }

    fn message(&self, room: &Room, from: usize, kind: MessageKind, payload: &[u8]) {
        room.send(from, kind, payload);
    }
}

#[test]
fn connections_that_are_refused() {
    let found = load("--workload most --connections 1000", &serve(Small)).expect("an answer");
    assert_eq!(found["count"], 10);
    assert!(found["stopped"].as_str().is_some_and(|reason| reason.contains("503")), "{found}");
    // One of the ten is opened beforehand.
    let error = load("--workload storm --connections 30", &serve(Small)).expect_err("21 are refused");
    assert!(error.starts_with("21 of 30 connections could not be opened: ") && error.contains("503"), "{error}");
    let error = load("--connections 30", &serve(Small)).expect_err("some are refused");
    assert!(error.contains("503"), "{error}");
}

#[test]
fn connections_that_do_not_stay() {
    struct Leaving;
    impl Behaviour for Leaving {
        fn message(&self, room: &Room, from: usize, kind: MessageKind, payload: &[u8]) {
            if number_of(payload) == 0 || from > 1 {
                room.send(from, kind, payload);
            } else {
                room.close(from);
            }
        }
    }
    let error = load("--workload hold --connections 5", &serve(Leaving)).expect_err("two are lost");
    assert!(error.starts_with("2 of 5 connections were lost: the server has left"), "{error}");
}

/// Pings, and answers with an echo.
struct Pinging;

impl Behaviour for Pinging {
    fn open(&self, room: &Room, from: usize, _: &Request) {
        room.ping(from);
    }

    fn message(&self, room: &Room, from: usize, kind: MessageKind, payload: &[u8]) {
        room.send(from, kind, payload);
        room.ping(from);
    }
}

#[test]
fn pings_are_answered_and_counted() {
    let found = load("--workload hold --connections 4 --rate 0.1", &serve(Pinging)).expect("an answer");
    // One when it was opened, one after each of the echoes at the beginning and the end; the first is due for
    // a message too. The last pings may not have come when it ends.
    assert!(found["pings"].as_u64().is_some_and(|pings| (9..=13).contains(&pings)), "{found}");
}

/// WSE: greets who has a token, and has pings of its own.
struct Wse;

impl Behaviour for Wse {
    fn open(&self, room: &Room, from: usize, request: &Request) {
        let cookie = request.headers.value_str("Cookie").unwrap_or_default();
        let token = cookie.strip_prefix("access_token=").unwrap_or_default();
        if token.split('.').count() != 3 {
            let error = r#"{"c":"WSE","p":{"code":"AUTH_REQUIRED"},"t":"error","v":1}"#;
            return room.send(from, MessageKind::Text, error.as_bytes());
        }
        thread::sleep(Duration::from_millis(20));
        let ready = r#"{"c":"WSE","id":"1","p":{"message":"hello"},"seq":1,"t":"server_ready","v":1}"#;
        room.send(from, MessageKind::Text, ready.as_bytes());
    }

    fn message(&self, room: &Room, from: usize, kind: MessageKind, payload: &[u8]) {
        if kind == MessageKind::Text {
            assert_eq!(payload, br#"{"t":"pong"}"#);
            return;
        }
        let ping = r#"{"c":"WSE","t":"ping","p":{"server_time":"2026-11-21T18:03:22.174Z"}}"#;
        room.send(from, MessageKind::Text, ping.as_bytes());
        room.send(from, kind, payload);
    }
}

#[test]
fn the_handshake_of_wse() {
    let token = "--wse-token head.claims.signature";
    for workload in ["echo", "burst", "open", "storm"] {
        let arguments = format!("{token} --workload {workload} --connections 3");
        let found = load(&arguments, &serve(Wse)).expect(workload);
        assert!(number(&found, "count") > 0.0);
        if workload == "open" || workload == "storm" {
            assert!(number(&found, "p50") > 20_000.0, "not ready before it was greeted: {found}");
        }
    }
    let found = load(&format!("{token} --workload hold --connections 3 --rate 0.1"), &serve(Wse)).expect("hold");
    assert_eq!(found["pings"], json!(7), "three each at the beginning and at the end, one between");
    let error = load("", &serve(Wse)).expect_err("no token");
    assert!(error.contains("AUTH_REQUIRED"), "{error}");
}
