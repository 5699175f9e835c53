//! Every workload of the load generator, for a moment, against the echo server.

mod support;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::json;

use support::{Echo, answer, command, load, number};

/// The latencies are there, and in order.
fn assert_latencies(found: &serde_json::Value) {
    let all: Vec<f64> = ["p50", "p90", "p99", "p999", "max"].iter().map(|name| number(found, name)).collect();
    assert!(all.is_sorted() && all[0] > 0.0, "{found}");
    assert!(number(found, "mean") > 0.0);
}

#[test]
fn echo() {
    let echo = Echo::start();
    for arguments in ["", "--connections 20", "--connections 3 --window 10", "--size 200000"] {
        let found = load(arguments, &format!("{}/", echo.url)).expect(arguments);
        assert!(number(&found, "count") > 0.0 && number(&found, "seconds") >= 0.05, "{found}");
        assert!((0.0..=1.0).contains(&number(&found, "limited")));
        assert_latencies(&found);
        for absent in ["deviation", "offered", "pings", "stopped", "deflate"] {
            assert!(found.get(absent).is_none(), "{found}");
        }
    }
}

#[test]
fn every_form_of_content_plain_and_compressed() {
    let echo = Echo::start();
    for form in ["binary", "json", "msgpack"] {
        for (deflate, agreed) in [("", None), ("--deflate", Some(true))] {
            let arguments = format!("--content {form} {deflate} --size 1000 --connections 3");
            let found = load(&arguments, &format!("{}/", echo.url)).expect(&arguments);
            assert!(number(&found, "count") > 0.0);
            assert_eq!(found.get("deflate").and_then(serde_json::Value::as_bool), agreed);
        }
    }
}

#[test]
fn at_a_rate_exactly_what_is_due_is_sent_and_counted() {
    let echo = Echo::start();
    let found = load("--rate 2000 --connections 7 --seconds 0.1", &format!("{}/", echo.url)).expect("an answer");
    assert_eq!((&found["count"], &found["offered"]), (&json!(200), &json!(2000.0)));
    assert!(number(&found, "seconds") >= 0.1);
    assert_latencies(&found);
}

#[test]
fn burst_counts_whole_bursts() {
    let echo = Echo::start();
    let found = load("--workload burst --connections 30", &format!("{}/", echo.url)).expect("an answer");
    assert!(found["count"].as_u64().is_some_and(|count| count > 0 && count % 30 == 0), "{found}");
    assert_latencies(&found);
}

#[test]
fn sink_counts_what_was_confirmed() {
    let echo = Echo::start();
    for arguments in ["", "--connections 30", "--size 1000000", "--deflate --size 500", "--content msgpack"] {
        let found = load(&format!("--workload sink {arguments}"), &format!("{}/sink", echo.url)).expect(arguments);
        assert!(number(&found, "count") > 0.0 && found.get("p50").is_none(), "{found}");
    }
}

#[test]
fn two_seconds_have_a_deviation() {
    let echo = Echo::start();
    for (workload, path) in [("echo", "/"), ("sink", "/sink")] {
        let arguments = format!("--workload {workload} --seconds 2");
        let found = load(&arguments, &format!("{}{path}", echo.url)).expect("an answer");
        assert!((0.0..1.0).contains(&number(&found, "deviation")), "{found}");
    }
}

#[test]
fn open_storm_and_hold() {
    let echo = Echo::start();
    let url = format!("{}/", echo.url);
    let found = load("--workload open --connections 10", &url).expect("an answer");
    assert!(number(&found, "count") > 0.0);
    assert_latencies(&found);
    let found = load("--workload storm --connections 300", &url).expect("an answer");
    assert!(found["count"].as_u64().is_some_and(|count| count > 0 && count % 300 == 0), "{found}");
    assert_latencies(&found);
    let found = load("--workload hold --connections 50 --rate 200", &url).expect("an answer");
    assert_eq!((&found["count"], &found["pings"]), (&json!(50), &json!(0)));
    assert_latencies(&found);
}

#[test]
fn every_ping_has_its_pong() {
    let echo = Echo::start();
    let found = load("--workload pings --connections 200 --rate 4000", &format!("{}/", echo.url)).expect("an answer");
    assert_eq!((&found["count"], &found["offered"]), (&json!(200), &json!(4000.0)));
    assert_latencies(&found);
}

#[test]
fn touch_is_a_round_trip_without_a_websocket() {
    let echo = Echo::start();
    let found = load("--workload touch", &format!("{}/", echo.url)).expect("an answer");
    assert!(number(&found, "count") > 0.0);
    assert_latencies(&found);
}

#[test]
fn threads_share_the_connections() {
    let echo = Echo::start();
    for (workload, path) in [("echo", "/"), ("sink", "/sink"), ("open", "/")] {
        let arguments = format!("--workload {workload} --connections 7 --threads 3");
        let found = load(&arguments, &format!("{}{path}", echo.url)).expect("an answer");
        assert!(number(&found, "count") > 0.0 && (0.0..=1.0).contains(&number(&found, "limited")), "{found}");
    }
    let error = load("--connections 4 --threads 2", "ws://127.0.0.1:1/").expect_err("nobody listens");
    assert!(error.contains("nobody listens"), "{error}");
}

#[test]
fn tls_with_a_certificate_that_was_made() {
    let folder = std::env::temp_dir().join(format!("wirespeed-bench-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    assert!(command().arg("certificate").arg(&folder).status().expect("it starts").success());
    let server = std::fs::read_to_string(folder.join("server.pem")).expect("a file");
    assert!(server.contains("BEGIN CERTIFICATE") && server.contains("PRIVATE KEY"), "{server}");
    let stranger = folder.join("authority.pem").display().to_string();
    let echo = Echo::start_secure();
    let (url, authority) = (echo.secure_url.clone().expect("a port"), echo.authority.clone().expect("a file"));
    for arguments in ["--connections 3", "--workload open --connections 2", "--workload sink"] {
        let path = if arguments.contains("sink") { "/sink" } else { "/" };
        let found = load(&format!("{arguments} --ca {authority}"), &format!("{url}{path}")).expect(arguments);
        assert!(number(&found, "count") > 0.0, "{found}");
    }
    let error = load(&format!("--ca {stranger}"), &format!("{url}/")).expect_err("another authority");
    assert!(error.contains("certificate"), "{error}");
    let error = load("", &format!("{url}/")).expect_err("no authority");
    assert!(error.contains("--ca"), "{error}");
    std::fs::remove_dir_all(&folder).expect("it is there");
}

#[test]
fn most_says_why_there_are_no_more() {
    let echo = Echo::start();
    let found = load("--workload most --connections 200", &format!("{}/", echo.url)).expect("an answer");
    assert_eq!(found["count"], 200);
    assert!(found["stopped"].as_str().is_some_and(|reason| reason.contains("--connections")), "{found}");
}

#[test]
fn idle_ends_with_standard_input() {
    let echo = Echo::start();
    let mut child = command()
        .args(["load", "--workload", "idle", "--connections", "20", &format!("{}/", echo.url)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    assert_eq!(child.try_wait().expect("a child"), None);
    drop(child.stdin.take());
    let line = lines.next().expect("a line").expect("text");
    assert!(line.starts_with("{\"count\": 20, "), "{line}");
    assert!(child.wait().expect("a child").success());
    let found = load("--workload idle --connections 2", &format!("{}/", echo.url)).expect("a file has an end");
    assert_eq!(found["count"], 2);
}

#[test]
fn too_few_descriptors_is_one_clear_line() {
    let echo = Echo::start();
    let limited = |arguments: &str| {
        let program = env!("CARGO_BIN_EXE_wirespeed-bench");
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(format!("ulimit -n 80; exec {program} load {arguments} {}/", echo.url));
        answer(shell)
    };
    let error = limited("--connections 100").expect_err("too many");
    assert!(error.contains("allows 48") && error.contains("ulimit -n 132"), "{error}");
    let found = limited("--workload most --connections 100").expect("an answer");
    assert_eq!(found["count"], 48);
    assert!(found["stopped"].as_str().is_some_and(|reason| reason.contains("descriptors")), "{found}");
}
