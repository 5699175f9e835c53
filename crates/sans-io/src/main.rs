//! `wirespeed-sans-io`: runs the core without sockets and clocks, for comparison with other implementations. Each line of
//! standard input is a case in JSON; its result is a line of standard output.

mod connection;
mod head;

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, BufRead as _, Write as _};

use clap::Parser as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use wirespeed_driver::protocol::deflate::{Params, negotiate};

/// Run the core without sockets, for comparison with other implementations: each line of standard input is a case, its
/// result is a line of standard output
///
/// All lines are JSON, bytes are hexadecimal, null stands for `none` or `as configured`. Cases:
///
///   {"do": "connection", "side": "server"|"client", "delivery": "messages"|"fragments",
///    "message_size": N|null, "fragment_size": N|null, "fragments": N|null, "deflate": PARAMS|null, "steps": [STEP...]}
///       An open connection. Answer: {"steps": [{"events": [...], "sent": BYTES, "refused": TEXT|null}...],
///       "received": CLOSE|null, "sent": CLOSE|null, "first": "received"|"sent"|null, "failure": TEXT|null,
///       "fault": CODE|null, "state": TEXT}
///       STEP: ["receive", BYTES], ["eof"], ["message", KIND, BYTES, COMPRESS], ["first", KIND, BYTES, COMPRESS],
///       ["next", BYTES, FIN], ["ping", BYTES], ["pong", BYTES], ["close", CODE|null, TEXT], ["idle"]
///       KIND: "text" or "binary". COMPRESS: true, false or null. CLOSE: [CODE|null, TEXT]
///       PARAMS: local_bits, remote_bits, local_reset, remote_reset, level, memory_level, threshold
///   {"do": "request", "pieces": [BYTES...], "subprotocols": [TEXT...], "deflate": OFFER|null}
///       The result of a request at a server
///   {"do": "response", "pieces": [BYTES...], "subprotocols": [TEXT...], "deflate": OFFER|null, "nonce": BYTES,
///    "eof": BOOL}
///       The result of a response at a client
///       OFFER: server_reset, client_reset, server_bits, client_bits. Answers: {"verdict": "incomplete"},
///       {"verdict": "refused", "status": N, "error": TEXT}, {"verdict": "rejected", "status": N, "body": BYTES} or
///       {"verdict": "accepted", "consumed": N, "subprotocol": TEXT|null, "deflate": PARAMS|null, "response": BYTES}
#[derive(clap::Parser)]
#[command(version, verbatim_doc_comment)]
struct Options {}

fn main() -> Result<(), Box<dyn Error>> {
    let Options {} = Options::parse();
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

/// Converts a value to the type `T`.
fn get<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    T::deserialize(value).map_err(|error| format!("{value}: {error}"))
}

/// Converts a value with hexadecimal digits to bytes.
fn bytes(value: &Value) -> Result<Vec<u8>, String> {
    let text: String = get(value)?;
    let digits = text.as_bytes().chunks(2);
    let parse = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    digits.map(parse).collect::<Option<_>>().ok_or_else(|| format!("no bytes: {value}"))
}

/// Returns the bytes as lower-case hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

/// Converts negotiated parameters; null means no compression.
fn params(value: &Value) -> Result<Option<Params>, String> {
    if value.is_null() {
        return Ok(None);
    }
    Ok(Some(Params {
        local_no_context_takeover: get(&value["local_reset"])?,
        remote_no_context_takeover: get(&value["remote_reset"])?,
        local_window_bits: get(&value["local_bits"])?,
        remote_window_bits: get(&value["remote_bits"])?,
        level: get(&value["level"])?,
        memory_level: get(&value["memory_level"])?,
        threshold: get(&value["threshold"])?,
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

/// Converts the configuration of a side; null means no compression.
fn offer(value: &Value) -> Result<Option<negotiate::Config>, String> {
    if value.is_null() {
        return Ok(None);
    }
    Ok(Some(negotiate::Config {
        server_no_context_takeover: get(&value["server_reset"])?,
        client_no_context_takeover: get(&value["client_reset"])?,
        server_max_window_bits: get(&value["server_bits"])?,
        client_max_window_bits: get(&value["client_bits"])?,
        ..negotiate::Config::client()
    }))
}
