//! One open connection: steps in, and what each of them leads to.

use std::error::Error;
use std::time::Instant;

use serde_json::{Value, json};
use wirespeed_driver::Keepalive;
use wirespeed_driver::peer::{Failure, Link, Peer, PeerEvent};
use wirespeed_driver::protocol::{
    CloseCode, CloseFrame, Config, Connection, Delivery, Limits, MessageKind, SendError, Side,
};

use super::{bytes, get, hex, params};

/// What a peer takes at once.
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
    let mut peer: Peer = Peer::new(Connection::new(config), None, &[], Vec::new(), keepalive);
    if case["delivery"] == "fragments" {
        peer.set_delivery(Delivery::Fragments);
    }
    let steps: Vec<Value> = get(&case["steps"])?;
    let steps = steps.iter().map(|step| take(&mut peer, step)).collect::<Result<Vec<_>, _>>()?;
    let closing = peer.link.closing();
    let fault = match peer.link.failure() {
        Some(Failure::Fault(fault)) => Some(fault.close_code().0),
        _ => None,
    };
    Ok(json!({
        "steps": steps,
        "received": closing.received.as_ref().map(close),
        "sent": closing.sent.as_ref().map(close),
        "first": closing.received_then_sent.map(|received| if received { "received" } else { "sent" }),
        "failure": peer.link.failure().map(ToString::to_string),
        "fault": fault,
        "state": format!("{:?}", peer.link.state()),
    }))
}

/// Does one thing, and collects what comes of it.
fn take(peer: &mut Peer, step: &Value) -> Result<Value, Box<dyn Error>> {
    let (mut events, mut sent) = (Vec::new(), Vec::new());
    let mut refused = None;
    match step[0].as_str().unwrap_or_default() {
        "receive" => {
            for piece in bytes(&step[1])?.chunks(PIECE) {
                peer.receive_slice(piece);
                poll(peer, &mut events, &mut sent);
            }
        }
        "eof" => {
            peer.receive_eof();
            poll(peer, &mut events, &mut sent);
            peer.poll_eof();
        }
        "idle" => peer.link.release_idle(),
        action => refused = send(&mut peer.link, action, step)?.err(),
    }
    sent.extend(peer.link.take_output());
    Ok(json!({ "events": events, "sent": hex(&sent), "refused": refused.map(|error| error.to_string()) }))
}

/// Takes all events; what they are answered with leaves at once.
fn poll(peer: &mut Peer, events: &mut Vec<Value>, sent: &mut Vec<u8>) {
    loop {
        match peer.poll_event() {
            Some(PeerEvent::Message { kind, payload }) => {
                events.push(json!([format!("{kind:?}").to_lowercase(), hex(payload.as_slice()), true]))
            }
            Some(PeerEvent::Fragment { kind, payload, fin }) => {
                events.push(json!([format!("{kind:?}").to_lowercase(), hex(payload.as_slice()), fin]));
            }
            Some(PeerEvent::Ping(payload)) => events.push(json!(["ping", hex(payload.as_slice())])),
            Some(PeerEvent::Pong { payload, .. }) => events.push(json!(["pong", hex(payload.as_slice())])),
            Some(PeerEvent::Closing) => events.push(json!(["closing"])),
            None => return,
        }
        sent.extend(peer.link.take_output());
    }
}

fn send(link: &mut Link, action: &str, step: &Value) -> Result<Result<(), SendError>, Box<dyn Error>> {
    Ok(match action {
        "message" => link.send_message(kind(&step[1])?, &bytes(&step[2])?, get(&step[3])?),
        "first" => link.send_first_fragment(kind(&step[1])?, &bytes(&step[2])?, get(&step[3])?),
        "next" => link.send_fragment(&bytes(&step[1])?, get(&step[2])?),
        "ping" => link.send_ping(&bytes(&step[1])?),
        "pong" => link.send_pong(&bytes(&step[1])?),
        "close" => link.send_close(get::<Option<_>>(&step[1])?.map(CloseCode), &get::<String>(&step[2])?),
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
