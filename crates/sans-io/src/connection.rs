//! Runs the steps of a case on an open connection and reports the result of each.

use std::error::Error;
use std::time::Instant;

use serde_json::{Value, json};
use wirespeed_driver::Keepalive;
use wirespeed_driver::endpoint::{Endpoint, Failure, SendHalf};
use wirespeed_driver::protocol::{
    CloseCode, CloseFrame, Config, Connection, Delivery, Event, Limits, MessageKind, SendError, Side,
};

use super::{bytes, get, hex, params};

/// Maximum number of bytes that are passed to the endpoint at once.
const PIECE: usize = 64 << 10;

pub(super) fn run(case: &Value) -> Result<Value, Box<dyn Error>> {
    let side = match case["side"].as_str() {
        Some("server") => Side::Server,
        Some("client") => Side::Client,
        other => return Err(format!("unknown side: {other:?}").into()),
    };
    let limits = Limits {
        message_size: get(&case["message_size"])?,
        fragment_size: get(&case["fragment_size"])?,
        fragments: get(&case["fragments"])?,
    };
    let config = Config { side, limits, deflate: params(&case["deflate"])? };
    let keepalive = Keepalive::new(None, None, Instant::now());
    let mut endpoint: Endpoint = Endpoint::new(Connection::new(config), None, &[], Vec::new(), keepalive);
    if case["delivery"] == "fragments" {
        endpoint.set_delivery(Delivery::Fragments);
    }
    let steps: Vec<Value> = get(&case["steps"])?;
    let steps = steps.iter().map(|step| run_step(&mut endpoint, step)).collect::<Result<Vec<_>, _>>()?;
    let closing = endpoint.send_half().closing();
    let fault = match endpoint.send_half().failure() {
        Some(Failure::Fault(fault)) => Some(fault.close_code().0),
        _ => None,
    };
    Ok(json!({
        "steps": steps,
        "received": closing.received.as_ref().map(close),
        "sent": closing.sent.as_ref().map(close),
        "first": closing.received_then_sent.map(|received| if received { "received" } else { "sent" }),
        "failure": endpoint.send_half().failure().map(ToString::to_string),
        "fault": fault,
        "state": format!("{:?}", endpoint.send_half().state()),
    }))
}

/// Runs one step and returns its events, sent bytes and error.
fn run_step(endpoint: &mut Endpoint, step: &Value) -> Result<Value, Box<dyn Error>> {
    let (mut events, mut sent) = (Vec::new(), Vec::new());
    let mut refused = None;
    match step[0].as_str().unwrap_or_default() {
        "receive" => {
            for piece in bytes(&step[1])?.chunks(PIECE) {
                endpoint.receive_slice(piece);
                poll(endpoint, &mut events, &mut sent);
            }
        }
        "eof" => {
            endpoint.receive_eof();
            poll(endpoint, &mut events, &mut sent);
            endpoint.poll_eof();
        }
        "idle" => endpoint.send_half_mut().release_idle(),
        action => refused = send(endpoint.send_half_mut(), action, step)?.err(),
    }
    sent.extend(endpoint.send_half_mut().take_output());
    Ok(json!({ "events": events, "sent": hex(&sent), "refused": refused.map(|error| error.to_string()) }))
}

/// Collects all events, and the bytes with which the endpoint answers each.
fn poll(endpoint: &mut Endpoint, events: &mut Vec<Value>, sent: &mut Vec<u8>) {
    let failed = endpoint.send_half().failure().is_some();
    loop {
        match endpoint.poll_event() {
            Some(Event::Message { kind, payload }) => {
                events.push(json!([format!("{kind:?}").to_lowercase(), hex(payload.as_slice()), true]))
            }
            Some(Event::Fragment { kind, payload, fin }) => {
                events.push(json!([format!("{kind:?}").to_lowercase(), hex(payload.as_slice()), fin]));
            }
            Some(Event::Ping(payload)) => events.push(json!(["ping", hex(payload.as_slice())])),
            Some(Event::Pong(payload)) => events.push(json!(["pong", hex(payload.as_slice())])),
            Some(Event::Close(_)) => events.push(json!(["closing"])),
            Some(_) => {}
            None => {
                if !failed && matches!(endpoint.send_half().failure(), Some(Failure::Fault(_))) {
                    events.push(json!(["closing"]));
                }
                return;
            }
        }
        sent.extend(endpoint.send_half_mut().take_output());
    }
}

fn send(send_half: &mut SendHalf, action: &str, step: &Value) -> Result<Result<(), SendError>, Box<dyn Error>> {
    Ok(match action {
        "message" => send_half.send_message(kind(&step[1])?, &bytes(&step[2])?, get(&step[3])?),
        "first" => send_half.send_first_fragment(kind(&step[1])?, &bytes(&step[2])?, get(&step[3])?),
        "next" => send_half.send_fragment(&bytes(&step[1])?, get(&step[2])?),
        "ping" => send_half.send_ping(&bytes(&step[1])?),
        "pong" => send_half.send_pong(&bytes(&step[1])?),
        "close" => send_half.send_close(get::<Option<_>>(&step[1])?.map(CloseCode), &get::<String>(&step[2])?),
        other => return Err(format!("unknown step: {other}").into()),
    })
}

fn kind(value: &Value) -> Result<MessageKind, String> {
    match value.as_str() {
        Some("text") => Ok(MessageKind::Text),
        Some("binary") => Ok(MessageKind::Binary),
        _ => Err(format!("unknown kind: {value}")),
    }
}

fn close(frame: &CloseFrame) -> Value {
    json!([frame.code.map(|code| code.0), frame.reason])
}
