//! Errors that the load generator must notice: servers that lose, repeat, reorder, change or refuse messages. And its
//! behaviour with correct servers, including WSE.

mod support;

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use wirespeed_protocol::MessageKind;

use support::room::{Open, Refuse, Room, WELCOME, echo, serve, serve_with};
use support::{load, number};

/// The reaction of a server to a message.
type Answer = fn(&Room, usize, MessageKind, &[u8]);

/// Returns the number of a binary message.
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
        let url = serve(|room, _, kind, payload| room.broadcast(kind, payload, |_| false));
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

/// Each kind of wrong server, and the error that reports it.
#[test]
fn lost_repeated_reordered_and_changed_messages_are_noticed() {
    // Two connections miss number 2, which is noticed with number 3.
    let two_miss: Answer =
        |room, _, kind, payload| room.broadcast(kind, payload, |to| to < 2 && number_of(payload) == 2);
    // Number 0 may be missing until subscriptions have reached the other server; later messages may not.
    let misses_later: Answer =
        |room, _, kind, payload| room.broadcast(kind, payload, |to| to == 3 && [0, 6].contains(&number_of(payload)));
    let twice: Answer = |room, _, kind, payload| {
        room.broadcast(kind, payload, |_| false);
        room.broadcast(kind, payload, |to| to != 1 || number_of(payload) != 3);
    };
    let changed: Answer = |room, from, kind, payload| {
        let mut payload = payload.to_vec();
        payload[20] ^= u8::from(number_of(&payload) == 5);
        room.send(from, kind, &payload);
    };
    // Number 3 arrives after number 4.
    let swapped: Answer = |room, from, kind, payload| {
        let number = number_of(payload);
        if number != 3 {
            room.send(from, kind, payload);
        }
        if number == 4 {
            room.send(from, kind, &[&3_u64.to_le_bytes(), &payload[8..]].concat());
        }
    };
    let unasked: Answer = |room, from, kind, payload| {
        for _ in 0..3 {
            room.send(from, kind, payload);
        }
    };
    let ahead: Answer = |room, _, kind, payload| {
        room.broadcast(kind, &[&(number_of(payload) + 5).to_le_bytes(), &payload[8..]].concat(), |_| false);
    };
    let silent: Answer = |_, _, _, _| {};
    let late: Answer = |room, from, kind, payload| {
        thread::sleep(Duration::from_millis(20));
        room.send(from, kind, payload);
    };
    for (arguments, answer, words) in [
        ("--workload fan-out --window 4 --connections 10", two_miss, ["2 of ", "0 deliveries are missing"]),
        ("--workload publish --rate 400 --connections 10", two_miss, ["2 of ", "0 deliveries are missing"]),
        ("--workload fan-out --window 4 --connections 2 URL", misses_later, ["1 of ", " deliveries are missing"]),
        ("--workload fan-out --connections 3", twice, ["message 3 came where 4 was due", ""]),
        ("--workload fan-out --connections 3", ahead, ["message 5 came, which was not sent", ""]),
        ("--workload echo", changed, ["message 5 was changed", ""]),
        ("--workload burst", changed, ["message 5 was changed", ""]),
        ("--workload pings --busy --seconds 1", changed, ["message 5 was changed", ""]),
        ("--window 4", swapped, ["message 4 came where 3 was due", ""]),
        // Depending on timing, the message is unexpected or out of order.
        ("--workload hold --connections 2", unasked, ["message ", " came "]),
        ("--workload pings --connections 5 --rate 200", silent, ["10 of 10 pings were not answered", ""]),
        ("--workload pings --connections 5 --rate 200 --busy", echo, ["10 of 10 pings were not answered", ""]),
        ("--rate 1000 --seconds 20", late, ["the server cannot answer 1000 messages a second", ""]),
    ] {
        let url = serve(answer);
        let error = load(&arguments.replace("URL", &url), &url).expect_err(arguments);
        assert!(words.iter().all(|word| error.contains(word)), "{arguments}: {error}");
    }
}

#[test]
fn missing_deliveries_of_other_threads_are_noticed() {
    for lost in 0..4 {
        let url = serve(move |room, _, kind, payload| {
            room.broadcast(kind, payload, |to| to == lost && number_of(payload) == 2);
        });
        let error =
            load("--workload fan-out --window 4 --connections 4 --threads 4", &url).expect_err("one is missing");
        assert!(error.contains("1 of ") && error.contains("deliveries are missing"), "{lost}: {error}");
    }
}

#[test]
fn deliveries_of_several_servers_are_counted_for_each() {
    // Simulates two servers that forward published messages to each other; at first, half of the sessions miss them.
    let together: Answer =
        |room, _, kind, payload| room.broadcast(kind, payload, |to| to % 2 == 1 && number_of(payload) < 2);
    let alone: Answer = |room, _, kind, payload| room.broadcast(kind, payload, |_| false);
    for workload in ["fan-out --window 5", "publish --rate 200 --seconds 0.1"] {
        let one = serve(together);
        let (first, second) = (serve(alone), serve(alone));
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

/// The messages that a connection has sent to a sink.
#[derive(Clone, Copy, Default)]
struct Taken {
    messages: u64,
    bytes: u64,
    /// The sum of the numbers in the documents.
    sum: u64,
    questions: u64,
}

/// Starts a sink that takes this long for each message, and answers a question with the result of `report`.
fn serve_sink(pause: Duration, report: impl Fn(Taken) -> Option<Value> + Send + Sync + 'static) -> String {
    let everybody: Mutex<HashMap<usize, Taken>> = Mutex::default();
    serve(move |room, from, kind, payload| {
        let mut everybody = everybody.lock().expect("nobody panicked");
        let taken = everybody.entry(from).or_default();
        if kind == MessageKind::Text {
            taken.questions += 1;
            report(*taken).iter().for_each(|report| room.send(from, kind, report.to_string().as_bytes()));
            return;
        }
        let number = serde_json::from_slice::<Value>(payload)
            .map_or(0, |document| document["number"].as_u64().expect("a number"));
        let sum = taken.sum + number % (1 << 32);
        *taken = Taken { messages: taken.messages + 1, bytes: taken.bytes + payload.len() as u64, sum, ..*taken };
        thread::sleep(pause);
    })
}

#[test]
fn wrong_report_of_a_sink_is_an_error() {
    for (wrong, expected) in [
        (json!({}), None),
        (json!({"messages": 1}), Some("the server received 1 of ")),
        (json!({"sum": 1}), Some("the numbers that the server decoded add up to 1 where ")),
        (json!({"sum": null, "bytes": 1}), Some("the server answered `report` with ")),
        (json!({"messages": -1}), Some("the server answered `report` with ")),
        (json!("nothing"), Some("the server answered `report` with ")),
    ] {
        let url = serve_sink(Duration::ZERO, move |taken| {
            let mut report = json!({"messages": taken.messages, "sum": taken.sum % (1 << 32), "of its own": 1.5});
            match &wrong {
                Value::Object(wrong) => wrong.iter().for_each(|(name, value)| report[name] = value.clone()),
                wrong => report = wrong.clone(),
            }
            Some(report)
        });
        let found = load("--workload sink --content json-bytes --size 175", &url);
        match expected {
            None => assert!(number(&found.expect("an answer"), "count") > 0.0),
            Some(words) => assert!(found.expect_err("it is wrong").starts_with(words), "{words}"),
        }
    }
    let url = serve_sink(Duration::ZERO, |_| Some(json!({"messages": 0, "bytes": 1})));
    let error = load("--workload sink --warmup 0 --connections 3", &url).expect_err("it is wrong");
    assert!(error.starts_with("the server received "), "{error}");
}

#[test]
fn missing_report_is_an_error_and_slow_sink_is_waited_for() {
    let report = |taken: Taken| json!({"messages": taken.messages, "bytes": taken.bytes});
    let url = serve_sink(Duration::ZERO, move |taken| (taken.questions > 1).then(|| report(taken)));
    let error = load("--workload sink --warmup 0", &url).expect_err("the first has no answer");
    assert!(error.starts_with("the server has not answered `report` after "), "{error}");
    // The sink would need 10 s for the full buffers of all connections.
    let url = serve_sink(Duration::from_micros(500), move |taken| Some(report(taken)));
    let found = load("--workload sink --connections 200 --size 8000", &url).expect("an answer");
    assert!(number(&found, "count") > 0.0 && number(&found, "seconds") < 5.0, "{found}");
}

#[test]
fn lost_connections_are_an_error() {
    let leaves: Open = |room, from, _| {
        if from == 3 {
            thread::sleep(Duration::from_millis(30));
            room.close(from);
        }
    };
    for arguments in ["", "--busy"] {
        let arguments = format!("--workload pings --connections 5 --seconds 0.2 {arguments}");
        let error = load(&arguments, &serve_with((WELCOME.0, leaves), echo)).expect_err("one is lost");
        assert!(error.contains("the server has left"), "{error}");
    }
    let url = serve(|room, from, kind, payload| {
        if number_of(payload) == 0 || from > 1 {
            room.send(from, kind, payload);
        } else {
            room.close(from);
        }
    });
    let error = load("--workload hold --connections 5", &url).expect_err("two are lost");
    assert!(error.starts_with("2 of 5 connections were lost: the server has left"), "{error}");
}

#[test]
fn token_is_sent_without_a_greeting() {
    let refuse: Refuse =
        |_, request| (request.headers.value_str("Cookie") != Some("access_token=a.b.c")).then_some(401);
    let url = serve_with((refuse, WELCOME.1), echo);
    for workload in ["echo", "touch"] {
        let found = load(&format!("--workload {workload} --token a.b.c"), &url).expect("an answer");
        assert!(number(&found, "count") > 0.0 && number(&found, "p50") > 0.0);
        assert!(load(&format!("--workload {workload}"), &url).expect_err("no token").contains("401"));
    }
}

/// A pause of the server is included in the latencies of all messages scheduled meanwhile, not of one only.
#[test]
fn pause_of_the_server_is_in_all_affected_latencies() {
    let url = serve(|room, from, kind, payload| {
        if number_of(payload) == 50 {
            thread::sleep(Duration::from_millis(300));
        }
        room.send(from, kind, payload);
    });
    let found = load("--rate 1000 --seconds 0.4 --warmup 0", &url).expect("an answer");
    assert_eq!(found["count"], 400);
    // Of 400 messages, 300 were scheduled during the pause, on average with half of it still to come.
    assert!(number(&found, "p50") > 50_000.0 && number(&found, "max") > 290_000.0, "{found}");
}

#[test]
fn refused_connections_are_an_error_or_counted() {
    // Refused are the eleventh connection and later ones.
    let small = || serve_with((|number, _| (number >= 10).then_some(503), WELCOME.1), echo);
    // One of the ten is opened beforehand.
    let error = load("--workload storm --connections 30", &small()).expect_err("21 are refused");
    assert!(error.starts_with("21 of 30 connections could not be opened: ") && error.contains("503"), "{error}");
    let error = load("--connections 30", &small()).expect_err("some are refused");
    assert!(error.contains("503"), "{error}");
    // One in a hundred may fail, and is counted.
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let each_hundredth = |_, _: &_| (ASKED.fetch_add(1, Relaxed) % 100 == 50).then_some(503);
    let one = || serve_with((each_hundredth, WELCOME.1), echo);
    let found = load("--workload storm --connections 100", &one()).expect("an answer");
    assert!(number(&found, "not_opened") >= 1.0);
    assert_eq!(number(&found, "count"), 99.0 * number(&found, "not_opened"), "{found}");
    // Connections to be pinged get a second attempt. This server ignores pings.
    let error = load("--workload pings --connections 100 --rate 400", &one()).expect_err("no pong");
    assert_eq!(error, "20 of 20 pings were not answered");
    let error = load("--workload storm --connections 99", &one()).expect_err("of fewer, none may be");
    assert!(error.starts_with("1 of 99 connections"), "{error}");
}

#[test]
fn pings_of_the_server_are_answered_and_counted() {
    let url = serve_with((WELCOME.0, |room, from, _| room.ping(from)), |room, from, kind, payload| {
        room.send(from, kind, payload);
        room.ping(from);
    });
    let found = load("--workload hold --connections 4 --rate 0.1", &url).expect("an answer");
    // One ping at opening, and one after each echo at the beginning and the end; the first connection also sends a
    // scheduled message. The last pings may arrive too late.
    assert!(found["pings"].as_u64().is_some_and(|pings| (9..=13).contains(&pings)), "{found}");
}

/// Starts a server with the protocol of WSE: it greets clients with a token, and sends its own pings.
fn serve_wse() -> String {
    let greet: Open = |room, from, request| {
        let cookie = request.headers.value_str("Cookie").unwrap_or_default();
        let token = cookie.strip_prefix("access_token=").unwrap_or_default();
        if token.split('.').count() != 3 {
            let error = r#"{"c":"WSE","p":{"code":"AUTH_REQUIRED"},"t":"error","v":1}"#;
            return room.send(from, MessageKind::Text, error.as_bytes());
        }
        thread::sleep(Duration::from_millis(20));
        let ready = r#"{"c":"WSE","id":"1","p":{"message":"hello"},"seq":1,"t":"server_ready","v":1}"#;
        room.send(from, MessageKind::Text, ready.as_bytes());
    };
    serve_with((WELCOME.0, greet), |room, from, kind, payload| {
        if kind == MessageKind::Text {
            assert_eq!(payload, br#"{"t":"pong"}"#);
            return;
        }
        let ping = r#"{"c":"WSE","t":"ping","p":{"server_time":"2026-11-21T18:03:22.174Z"}}"#;
        room.send(from, MessageKind::Text, ping.as_bytes());
        room.send(from, kind, payload);
    })
}

#[test]
fn wse_handshake_ends_with_the_greeting() {
    let token = "--wse-token head.claims.signature";
    for workload in ["echo", "burst", "open", "storm"] {
        let arguments = format!("{token} --workload {workload} --connections 3");
        let found = load(&arguments, &serve_wse()).expect(workload);
        assert!(number(&found, "count") > 0.0);
        if workload == "open" || workload == "storm" {
            assert!(number(&found, "p50") > 20_000.0, "ready before the greeting: {found}");
        }
    }
    let found = load(&format!("{token} --workload hold --connections 3 --rate 0.1"), &serve_wse()).expect("hold");
    assert_eq!(found["pings"], json!(7), "three each at the beginning and at the end, one between");
    let error = load("", &serve_wse()).expect_err("no token");
    assert!(error.contains("AUTH_REQUIRED"), "{error}");
}
