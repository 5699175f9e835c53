//! One head of an opening handshake, from either side.

use std::error::Error;

use serde_json::{Value, json};
use wirespeed_driver::protocol::handshake::{
    Accepted, ClientHandshake, ClientRequest, HandshakeError, HeaderList, Limits, Progress, ServerConfig,
    ServerHandshake,
};

use super::{bytes, describe, flag, hex, list, offer, text};

/// A request: what a server answers that chooses the first of its subprotocols that is offered.
pub(super) fn request(case: &Value) -> Result<Value, Box<dyn Error>> {
    let config = ServerConfig { deflate: offer(&case["deflate"])?, subprotocols: subprotocols(case)? };
    let mut server = ServerHandshake::new(config, Limits::default());
    let mut taken = 0;
    for piece in list(&case["pieces"])? {
        let piece = bytes(piece)?;
        match server.receive(&piece) {
            Ok(Progress::Incomplete) => taken += piece.len(),
            Ok(Progress::Complete { consumed, .. }) => {
                let answer = server.accept(server.select_subprotocol(), &HeaderList::new());
                return Ok(verdict(answer, taken + consumed));
            }
            Err(error) => return Ok(verdict(Err(error), 0)),
        }
    }
    Ok(json!({ "verdict": "incomplete" }))
}

/// A response: what a client makes of it whose request offers these subprotocols and this compression.
pub(super) fn response(case: &Value) -> Result<Value, Box<dyn Error>> {
    let mut request = ClientRequest::new("localhost", "/");
    request.subprotocols = subprotocols(case)?;
    request.deflate = offer(&case["deflate"])?;
    let nonce = bytes(&case["nonce"])?.try_into().map_err(|_| "a nonce has 16 bytes")?;
    let mut client = ClientHandshake::new(&request, nonce, Limits::default())?;
    let mut taken = 0;
    for piece in list(&case["pieces"])? {
        let piece = bytes(piece)?;
        match client.receive(&piece) {
            Ok(Progress::Incomplete) => taken += piece.len(),
            Ok(Progress::Complete { consumed, output }) => return Ok(verdict(Ok(output), taken + consumed)),
            Err(error) => return Ok(verdict(Err(error), 0)),
        }
    }
    if flag(&case["eof"])? {
        return Ok(verdict(Err(client.receive_eof()), 0));
    }
    Ok(json!({ "verdict": "incomplete" }))
}

fn subprotocols(case: &Value) -> Result<Vec<String>, String> {
    list(&case["subprotocols"])?.iter().map(|name| text(name).map(ToOwned::to_owned)).collect()
}

fn verdict(answer: Result<Accepted, HandshakeError>, consumed: usize) -> Value {
    match answer {
        Ok(accepted) => json!({
            "verdict": "accepted",
            "consumed": consumed,
            "subprotocol": accepted.subprotocol,
            "deflate": accepted.deflate.as_ref().map(describe),
            "response": hex(&accepted.response.to_bytes()),
        }),
        Err(HandshakeError::Rejected(response)) => json!({
            "verdict": "rejected", "status": response.status, "body": hex(&response.body),
        }),
        Err(error) => json!({ "verdict": "refused", "status": error.status(), "error": error.to_string() }),
    }
}
