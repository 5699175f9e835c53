//! The core without I/O, for comparisons with other people's: each line of standard input is a case, in JSON, and is
//! answered by a line of standard output with what became of it. No socket, no time.

mod connection;
mod head;

use std::error::Error;
use std::io::{self, BufRead as _, Write as _};

use lexopt::{Arg, Parser};
use serde_json::{Value, json};
use wirespeed_driver::protocol::deflate::{Params, negotiate};

use crate::show;

const HELP: &str = "\
The core without sockets: reads cases from standard input, one a line, and answers each with a line. All is JSON, bytes
are hexadecimal, null is `none`, or `as configured`.

Usage: wirespeed-bench sans-io

Cases:
  {\"do\": \"connection\", \"side\": \"server\"|\"client\", \"delivery\": \"messages\"|\"fragments\",
   \"message_size\": N|null, \"fragment_size\": N|null, \"fragments\": N|null, \"deflate\": PARAMS|null, \"steps\": [STEP...]}
      A connection that is open. Answer: {\"steps\": [{\"events\": [...], \"sent\": BYTES, \"refused\": TEXT|null}...],
      \"received\": CLOSE|null, \"sent\": CLOSE|null, \"first\": \"received\"|\"sent\"|null, \"failure\": TEXT|null,
      \"fault\": CODE|null, \"state\": TEXT}
      STEP: [\"receive\", BYTES], [\"eof\"], [\"message\", KIND, BYTES, COMPRESS], [\"first\", KIND, BYTES, COMPRESS],
      [\"next\", BYTES, FIN], [\"ping\", BYTES], [\"pong\", BYTES], [\"close\", CODE|null, TEXT], [\"idle\"]
      KIND: \"text\" or \"binary\". COMPRESS: true, false or null. CLOSE: [CODE|null, TEXT]
      PARAMS: local_bits, remote_bits, local_reset, remote_reset, level, memory_level, threshold
  {\"do\": \"request\", \"pieces\": [BYTES...], \"subprotocols\": [TEXT...], \"deflate\": OFFER|null}
      What a server makes of a request
  {\"do\": \"response\", \"pieces\": [BYTES...], \"subprotocols\": [TEXT...], \"deflate\": OFFER|null, \"nonce\": BYTES,
   \"eof\": BOOL}
      What a client makes of a response to its request
      OFFER: server_reset, client_reset, server_bits, client_bits. Answers: {\"verdict\": \"incomplete\"},
      {\"verdict\": \"refused\", \"status\": N, \"error\": TEXT}, {\"verdict\": \"rejected\", \"status\": N, \"body\": BYTES} or
      {\"verdict\": \"accepted\", \"consumed\": N, \"subprotocol\": TEXT|null, \"deflate\": PARAMS|null, \"response\": BYTES}

Options:
  -h, --help        Show this text
";

pub(crate) fn run(mut arguments: Parser) -> Result<(), Box<dyn Error>> {
    match arguments.next()? {
        None => {}
        Some(Arg::Short('h') | Arg::Long("help")) => {
            show(HELP);
            return Ok(());
        }
        Some(other) => return Err(other.unexpected().into()),
    }
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        let answer = match case["do"].as_str() {
            Some("connection") => connection::run(&case)?,
            Some("request") => head::request(&case)?,
            Some("response") => head::response(&case)?,
            other => return Err(format!("unknown case: {other:?}").into()),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// The bytes of a value that is text of hexadecimal digits.
fn bytes(value: &Value) -> Result<Vec<u8>, String> {
    let text = value.as_str().ok_or_else(|| format!("no bytes: {value}"))?;
    let digits = text.as_bytes().chunks(2);
    let parse = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    digits.map(parse).collect::<Option<_>>().ok_or_else(|| format!("no bytes: {value}"))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a String takes all
        text
    })
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("no text: {value}"))
}

/// A number that may be null.
fn number<T: TryFrom<u64>>(value: &Value) -> Result<Option<T>, String> {
    if value.is_null() {
        return Ok(None);
    }
    value.as_u64().and_then(|number| T::try_from(number).ok()).map(Some).ok_or_else(|| format!("no number: {value}"))
}

fn required<T: TryFrom<u64>>(value: &Value) -> Result<T, String> {
    number(value)?.ok_or_else(|| "a number is missing".to_owned())
}

fn flag(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("neither true nor false: {value}"))
}

fn list(value: &Value) -> Result<&[Value], String> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| format!("no list: {value}"))
}

/// Parameters as they were agreed on, which may be null.
fn params(value: &Value) -> Result<Option<Params>, String> {
    if value.is_null() {
        return Ok(None);
    }
    Ok(Some(Params {
        local_no_context_takeover: flag(&value["local_reset"])?,
        remote_no_context_takeover: flag(&value["remote_reset"])?,
        local_window_bits: required(&value["local_bits"])?,
        remote_window_bits: required(&value["remote_bits"])?,
        level: required(&value["level"])?,
        memory_level: required(&value["memory_level"])?,
        threshold: required(&value["threshold"])?,
    }))
}

fn describe(params: &Params) -> Value {
    json!({
        "local_reset": params.local_no_context_takeover,
        "remote_reset": params.remote_no_context_takeover,
        "local_bits": params.local_window_bits,
        "remote_bits": params.remote_window_bits,
    })
}

/// What one side wants, which may be null: of nothing.
fn offer(value: &Value) -> Result<Option<negotiate::Config>, String> {
    if value.is_null() {
        return Ok(None);
    }
    Ok(Some(negotiate::Config {
        server_no_context_takeover: flag(&value["server_reset"])?,
        client_no_context_takeover: flag(&value["client_reset"])?,
        server_max_window_bits: number(&value["server_bits"])?,
        client_max_window_bits: number(&value["client_bits"])?,
        ..negotiate::Config::client()
    }))
}
