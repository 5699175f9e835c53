//! Every workload of the load generator, for a short time, against the echo server.

mod support;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;

use serde_json::{Value, json};

use support::{Echo, answer, command, load, number};

/// Asserts that the latencies exist and are in order.
fn assert_latencies(found: &Value) {
    let names = ["p50", "p90", "p95", "p99", "p999", "max"];
    assert!(names.map(|name| number(found, name)).is_sorted() && number(found, "p50") > 0.0, "{found}");
    assert!(number(found, "mean") > 0.0);
}

#[test]
fn every_workload_counts() {
    let echo = Echo::start();
    for arguments in [
        "",
        "--connections 20",
        "--connections 3 --window 10",
        "--size 200000",
        "--connections 7 --threads 3",
        "--content text --size 1000 --connections 3",
        "--content json --size 1000 --connections 3 --deflate",
        "--content msgpack --size 1000 --connections 3 --deflate",
        "--workload burst --connections 30",
        "--workload sink",
        "--workload sink --connections 30",
        "--workload sink --connections 7 --threads 3",
        "--workload sink --size 1000000",
        "--workload sink --deflate --size 500",
        "--workload sink --content msgpack",
        "--workload open --connections 10",
        "--workload open --connections 7 --threads 3",
        "--workload storm --connections 300",
        "--workload touch",
    ] {
        let sinks = arguments.contains("sink");
        let url = format!("{}{}", echo.url, if sinks { "/sink" } else { "/" });
        let found = load(arguments, &url).expect(arguments);
        assert!(number(&found, "count") > 0.0 && (0.0..=1.0).contains(&number(&found, "limited")), "{found}");
        if sinks {
            assert!(found.get("p50").is_none(), "{found}");
        } else {
            assert_latencies(&found);
        }
        let together = [("burst", 30), ("storm", 300)].iter().find(|(name, _)| arguments.contains(name));
        assert_eq!(found["count"].as_u64().expect("a number") % together.map_or(1, |(_, connections)| *connections), 0);
        let deflate = found.get("deflate").and_then(Value::as_bool);
        assert_eq!(deflate, arguments.contains("--deflate").then_some(true), "{arguments}");
        for absent in ["second_1", "offered", "pings", "servers"] {
            assert!(found.get(absent).is_none(), "{found}");
        }
    }
}

#[test]
fn rate_sends_and_counts_exactly_the_scheduled_messages() {
    let echo = Echo::start();
    for (arguments, count, offered) in [
        ("--rate 2000 --connections 7 --seconds 0.1", json!(200), json!(2000.0)),
        ("--workload pings --connections 200 --rate 4000", json!(200), json!(4000.0)),
        ("--workload pings --connections 20 --seconds 0.2", json!(4), json!(20.0)),
        ("--workload pings --connections 5 --rate 1000 --seconds 0.2 --busy", json!(200), json!(1000.0)),
        ("--workload pings --connections 5 --rate 1000 --seconds 0.2 --busy --content json", json!(200), json!(1000.0)),
        ("--workload hold --connections 50 --rate 200", json!(50), Value::Null),
    ] {
        let found = load(arguments, &format!("{}/", echo.url)).expect(arguments);
        assert_eq!((&found["count"], &found["offered"]), (&count, &offered), "{arguments}");
        assert!(number(&found, "seconds") >= 0.05);
        assert_latencies(&found);
        assert_eq!(found.get("pings"), arguments.contains("hold").then_some(&json!(0)));
    }
}

#[test]
fn round_of_messages_is_confirmed_as_a_whole() {
    let echo = Echo::start();
    for arguments in
        ["--messages 100 --size 9000", "--messages 1000", "--messages 7 --content msgpack", "--messages 10 --threads 2"]
    {
        let found = load(&format!("--workload sink --connections 3 {arguments}"), &format!("{}/sink", echo.url));
        let (found, each) = (found.expect(arguments), arguments.split(' ').nth(1).expect("a number"));
        let turn = 3 * each.parse::<u64>().expect("a number");
        let count = found["count"].as_u64().expect("a number");
        assert!(count > 0 && (arguments.contains("threads") || count.is_multiple_of(turn)), "{arguments}: {found}");
        assert_latencies(&found);
    }
}

#[test]
fn two_seconds_are_counted_separately() {
    let echo = Echo::start();
    for (arguments, path) in
        [("--workload echo", "/"), ("--workload sink", "/sink"), ("--connections 2 --threads 2", "/")]
    {
        let found = load(&format!("{arguments} --seconds 2"), &format!("{}{path}", echo.url)).expect("an answer");
        let (first, second) = (number(&found, "second_1"), number(&found, "second_2"));
        assert!(first > 0.0 && second > 0.0 && first + second <= number(&found, "count"), "{found}");
        assert!(first + second > number(&found, "count") * 0.9, "{found}");
        assert!(found.get("second_3").is_none() && found.get("deviation").is_none(), "{found}");
    }
}

#[test]
fn tls_trusts_only_the_given_authority() {
    let folder = std::env::temp_dir().join(format!("wirespeed-bench-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    assert!(command().arg("certificate").arg(&folder).status().expect("it starts").success());
    let server = std::fs::read_to_string(folder.join("server.pem")).expect("a file");
    assert!(server.contains("BEGIN CERTIFICATE") && server.contains("PRIVATE KEY"), "{server}");
    let stranger = folder.join("authority.pem").display().to_string();
    let echo = Echo::start();
    let (url, authority) = &echo.secure;
    for arguments in ["--connections 3", "--workload open --connections 2", "--workload sink"] {
        let path = if arguments.contains("sink") { "/sink" } else { "/" };
        let found = load(&format!("{arguments} --ca {authority}"), &format!("{url}{path}")).expect(arguments);
        assert!(number(&found, "count") > 0.0, "{found}");
    }
    for (arguments, word) in [(format!("--ca {stranger}"), "certificate"), (String::new(), "--ca")] {
        let error = load(&arguments, &format!("{url}/")).expect_err("it is not trusted");
        assert!(error.contains(word), "{error}");
    }
    std::fs::remove_dir_all(&folder).expect("it is there");
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
    let found: Value = serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON");
    assert_eq!((&found["count"], &found["pings"]), (&json!(20), &json!(0)));
    assert!(child.wait().expect("a child").success());
    let found = load("--workload idle --connections 2", &format!("{}/", echo.url)).expect("a file has an end");
    assert_eq!(found["count"], 2);
}

#[test]
fn too_few_descriptors_are_reported_in_one_line() {
    let echo = Echo::start();
    let limited = |descriptors: &str, arguments: &str| {
        let program = env!("CARGO_BIN_EXE_wirespeed-bench");
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(format!("ulimit -n {descriptors}; exec {program} load {arguments} {}/", echo.url));
        answer(shell)
    };
    let error = limited("80", "--connections 100").expect_err("too many");
    assert!(error.contains("allows 48") && error.contains("ulimit -n 132"), "{error}");
}

#[test]
fn invalid_command_line_is_reported_in_one_line() {
    let echo = Echo::start();
    for (arguments, words) in [
        ("", "requires a subcommand"),
        ("load", "<URL>"),
        ("load --rate 0 ws://127.0.0.1:1/", "above 0"),
        ("load --nothing ws://127.0.0.1:1/", "--nothing"),
        ("load --connections 4 --threads 2 ws://127.0.0.1:1/", "nobody listens"),
        ("load ECHO/blast?size=x", "HTTP 400"),
        ("echo --threads 0", "at least 1"),
    ] {
        let arguments = arguments.replace("ECHO", &echo.url);
        let output = command().args(arguments.split_whitespace()).output().expect("it runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.lines().count() == 1 && error.contains(words), "{arguments}: {error}");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    }
    for arguments in ["--help", "--version", "load --help", "echo --help"] {
        let output = command().args(arguments.split_whitespace()).output().expect("it runs");
        assert!(output.status.success() && !output.stdout.is_empty() && output.stderr.is_empty(), "{arguments}");
    }
}

#[test]
fn invalid_target_is_refused_with_a_reason() {
    let echo = Echo::start();
    let key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    for (target, words) in [
        ("/blast?size=x", "size=x: not a number from "),
        ("/mixed?size=99999999", "size=99999999: not a number"),
        ("/file?bytes=-1", "bytes=-1: not a number"),
        ("/close?code=1005", "code=1005: not a close code"),
    ] {
        let mut stream = TcpStream::connect(echo.url.trim_start_matches("ws://")).expect("it listens");
        let head =
            format!("GET {target} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{key}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it closes");
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains(words), "{target}: {answer}");
    }
}
