//! Runs the program under test for a short time.

#![allow(dead_code)] // each test file uses a part of it

pub(crate) mod peer;
pub(crate) mod room;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// An echo server, which is killed when this is dropped.
pub(crate) struct Echo {
    child: Child,
    /// `ws://127.0.0.1:PORT`
    pub(crate) url: String,
    /// `wss://127.0.0.1:PORT`, and the PEM file with the authority that its clients have to trust.
    pub(crate) secure: (String, String),
}

impl Echo {
    pub(crate) fn start() -> Self {
        let mut command = command();
        command.args(["echo", "--tls-port", "0"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut listening = || {
            let line = lines.next().expect("a line").expect("text");
            line.strip_prefix("listening ").expect("where it listens").to_owned()
        };
        let (url, secure) = (listening(), listening());
        let (secure, authority) = secure.split_once(" ca=").expect("its authority");
        Self { child, url, secure: (secure.to_owned(), authority.to_owned()) }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.secure.1); // the killed process cannot remove it
    }
}

/// Returns a command that runs the program.
pub(crate) fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_wirespeed-bench"))
}

/// Runs a load. Returns its result, or the line with its error.
pub(crate) fn load(arguments: &str, url: &str) -> Result<Value, String> {
    let run = |seconds| {
        let short = ["--seconds", seconds, "--warmup", "0.02"];
        let mut command = command();
        command.arg("load").args(short).args(arguments.split_whitespace()).arg(url).stdin(Stdio::null());
        answer(command)
    };
    // A loaded machine may complete nothing in such a short time.
    let found = run("0.05")?;
    if found["count"] == 0 { run("2") } else { Ok(found) }
}

/// Runs a program that prints `begin` or `ready`, and then its result.
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

/// Returns a member that is a number.
pub(crate) fn number(answer: &Value, name: &str) -> f64 {
    answer[name].as_f64().unwrap_or_else(|| panic!("no {name} in {answer}"))
}
