//! The program `wirespeed-sans-io`: each line of input is answered by a line of output.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// The program under test.
fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_wirespeed-sans-io"))
}

/// Passes all cases to one process, in order, and returns the answers.
fn ask(cases: &[Value]) -> Vec<Value> {
    let mut child = command().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let answers = cases.iter().map(|case| {
        writeln!(stdin, "{case}").expect("it reads");
        serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON")
    });
    let answers = answers.collect();
    drop(stdin);
    assert!(child.wait().expect("it ends").success());
    answers
}

fn connection(side: &str, steps: &Value) -> Value {
    json!({
        "do": "connection", "side": side, "delivery": "messages", "message_size": null, "fragment_size": null,
        "fragments": null, "deflate": null, "steps": steps,
    })
}

#[test]
fn connection_reports_events_and_replies() {
    let steps = json!([
        ["receive", "8100"],
        ["receive", "8902"],
        ["receive", "6869880203e8"],
        ["message", "text", "6c617465", null]
    ]);
    let [answer] = &ask(&[connection("client", &steps)])[..] else { panic!("one answer") };
    assert_eq!(answer["steps"][0]["events"], json!([["text", "", true]]));
    assert_eq!(answer["steps"][1], json!({ "events": [], "sent": "", "refused": null }));
    assert_eq!(answer["steps"][2]["events"], json!([["ping", "6869"], ["closing"]]));
    let sent = answer["steps"][2]["sent"].as_str().expect("bytes");
    assert_eq!(sent.len(), 2 * (2 + 4 + 2 + 2 + 4 + 2), "a pong and a close frame, masked: {sent}");
    assert_eq!(answer["steps"][3]["refused"], "the connection is not open");
    assert_eq!((&answer["received"], &answer["sent"]), (&json!([1000, ""]), &json!([1000, ""])));
    assert_eq!((&answer["first"], &answer["fault"]), (&json!("received"), &Value::Null));
}

#[test]
fn fault_has_its_close_code() {
    let answers = ask(&[connection("server", &json!([["receive", "8100"]])), connection("server", &json!([["eof"]]))]);
    assert_eq!((&answers[0]["fault"], &answers[0]["sent"][0]), (&json!(1002), &json!(1002)));
    assert_eq!((&answers[1]["fault"], &answers[1]["failure"].is_string()), (&Value::Null, &true));
}

#[test]
fn heads_are_accepted_or_refused() {
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let request = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let case = |pieces: Value| json!({ "do": "request", "pieces": pieces, "subprotocols": [], "deflate": null });
    let (begin, end) = request.split_at(20);
    let answers =
        ask(&[case(json!([hex(begin), hex(end)])), case(json!([hex(begin)])), case(json!([hex("SSH 1\r\n")]))]);
    assert_eq!((&answers[0]["verdict"], &answers[0]["consumed"]), (&json!("accepted"), &json!(request.len())));
    assert_eq!(answers[1], json!({ "verdict": "incomplete" }));
    assert_eq!((&answers[2]["verdict"], &answers[2]["status"]), (&json!("refused"), &json!(400)));
}

#[test]
fn help_and_version_are_printed() {
    for arguments in ["--help", "--version"] {
        let output = command().arg(arguments).output().expect("it runs");
        assert!(output.status.success() && !output.stdout.is_empty() && output.stderr.is_empty(), "{arguments}");
    }
}
