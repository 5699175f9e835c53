//! The program under test, run for a moment.

#![allow(dead_code)] // no test uses all of it

pub(crate) mod client;
pub(crate) mod room;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// The echo server, until this is dropped.
pub(crate) struct Echo {
    child: Child,
    /// `ws://127.0.0.1:PORT`
    pub(crate) url: String,
    /// `wss://127.0.0.1:PORT`, if it serves TLS too.
    pub(crate) secure_url: Option<String>,
    /// The PEM file with the authority that its clients have to trust.
    pub(crate) authority: Option<String>,
}

impl Echo {
    pub(crate) fn start() -> Self {
        let mut lines = Vec::new();
        let child = spawn(&["echo", "--port", "0"], 1, &mut lines);
        Self { child, url: lines.remove(0), secure_url: None, authority: None }
    }

    /// With a port for TLS.
    pub(crate) fn start_secure() -> Self {
        let mut lines = Vec::new();
        let child = spawn(&["echo", "--port", "0", "--tls-port", "0"], 2, &mut lines);
        let (secure, authority) = lines[1].split_once(" ca=").expect("its authority");
        let (secure_url, authority) = (Some(secure.to_owned()), Some(authority.to_owned()));
        Self { child, url: lines.remove(0), secure_url, authority }
    }
}

/// Starts it; where it listens, in so many lines.
fn spawn(arguments: &[&str], count: usize, lines: &mut Vec<String>) -> Child {
    let mut child = command().args(arguments).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    for _ in 0..count {
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a line");
        lines.push(line.trim().strip_prefix("listening ").expect("where it listens").to_owned());
    }
    child
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program.
pub(crate) fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_wirespeed-bench"))
}

/// Runs a load: its answer, or the line that says why there is none.
pub(crate) fn load(arguments: &str, url: &str) -> Result<Value, String> {
    let run = |seconds| {
        let short = ["--seconds", seconds, "--warmup", "0.02"];
        let mut command = command();
        command.arg("load").args(short).args(arguments.split_whitespace()).arg(url).stdin(Stdio::null());
        answer(command)
    };
    // A machine that does other work may do nothing of ours for so short a time.
    let found = run("0.05")?;
    if found["count"] == 0 { run("2") } else { Ok(found) }
}

/// Runs a program that prints `begin` or `ready`, then its answer.
pub(crate) fn answer(mut command: Command) -> Result<Value, String> {
    let output = command.output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    if !output.status.success() {
        assert_eq!(stderr.lines().count(), 1, "one line says why: {stderr}");
        return Err(stderr.trim().strip_prefix("wirespeed-bench: ").expect("its name").to_owned());
    }
    let lines: Vec<_> = stdout.lines().collect();
    assert!(matches!(lines[..], ["begin" | "ready", _]), "{stdout}");
    let answer: Value = serde_json::from_str(lines[1]).expect("JSON");
    assert_eq!(answer["checked"], true);
    Ok(answer)
}

/// A member that is a number.
pub(crate) fn number(answer: &Value, name: &str) -> f64 {
    answer[name].as_f64().unwrap_or_else(|| panic!("no {name} in {answer}"))
}
