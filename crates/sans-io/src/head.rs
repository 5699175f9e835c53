//! Passes a head of an opening handshake to a server or a client and reports the result.

use std::error::Error;

use serde_json::{Value, json};
use wirespeed_driver::protocol::handshake::{
    Accepted, ClientHandshake, ClientRequest, HandshakeError, HeaderList, Limits, Progress, ServerConfig,
    ServerHandshake,
};

use super::{bytes, describe, get, hex, offer};

/// The number of bytes consumed for a head, and the result.
type Received<T> = (usize, Result<T, HandshakeError>);

/// Passes a request to a server, which selects the first of its subprotocols that the request offers.
pub(super) fn request(case: &Value) -> Result<Value, Box<dyn Error>> {
    let config = ServerConfig { deflate: offer(&case["deflate"])?, subprotocols: get(&case["subprotocols"])? };
    let mut server = ServerHandshake::new(config, Limits::default());
    let received = receive(case, |piece| server.receive(piece))?;
    let answer = || server.accept(server.select_subprotocol(), &HeaderList::new());
    Ok(verdict(received.map(|(taken, received)| (taken, received.and_then(|()| answer())))))
}

/// Passes a response to a client whose request offers the subprotocols and the compression of the case.
pub(super) fn response(case: &Value) -> Result<Value, Box<dyn Error>> {
    let mut request = ClientRequest::new("localhost", "/");
    request.subprotocols = get(&case["subprotocols"])?;
    request.deflate = offer(&case["deflate"])?;
    let nonce = bytes(&case["nonce"])?.try_into().map_err(|_| "a nonce has 16 bytes")?;
    let mut client = ClientHandshake::new(&request, nonce, Limits::default())?;
    let mut received = receive(case, |piece| client.receive(piece))?;
    if received.is_none() && get(&case["eof"])? {
        received = Some((0, Err(client.receive_eof())));
    }
    Ok(verdict(received))
}

/// Passes on the pieces of a head until it is complete. Returns `None` if it is incomplete.
fn receive<T>(
    case: &Value,
    mut receive: impl FnMut(&[u8]) -> Result<Progress<T>, HandshakeError>,
) -> Result<Option<Received<T>>, String> {
    let mut taken = 0;
    for piece in get::<Vec<Value>>(&case["pieces"])? {
        let piece = bytes(&piece)?;
        match receive(&piece) {
            Ok(Progress::Incomplete) => taken += piece.len(),
            Ok(Progress::Complete { consumed, output }) => return Ok(Some((taken + consumed, Ok(output)))),
            Err(error) => return Ok(Some((0, Err(error)))),
        }
    }
    Ok(None)
}

fn verdict(received: Option<Received<Accepted>>) -> Value {
    match received {
        None => json!({ "verdict": "incomplete" }),
        Some((consumed, Ok(accepted))) => json!({
            "verdict": "accepted",
            "consumed": consumed,
            "subprotocol": accepted.subprotocol,
            "deflate": accepted.deflate.as_ref().map(describe),
            "response": hex(&accepted.response.to_bytes()),
        }),
        Some((_, Err(HandshakeError::Rejected(response)))) => json!({
            "verdict": "rejected", "status": response.status, "body": hex(&response.body),
        }),
        Some((_, Err(error))) => {
            json!({ "verdict": "refused", "status": error.status(), "error": error.to_string() })
        }
    }
}
