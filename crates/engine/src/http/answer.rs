//! HTTP answers, and the answers to operators without a valid token.

use std::net::SocketAddr;

use wirespeed_driver::protocol::handshake::{HeaderList, Request, Response, ServerHandshake};

use crate::admission::operator_tokens::{Area, TokenRefusal};
use crate::shared::EngineShared;

/// The `Retry-After` for an address with too many wrong tokens: it is blocked for a minute.
const RETRY_AFTER: &str = "60";

/// An HTTP answer.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) content_type: &'static str,
    pub(super) body: Vec<u8>,
    pub(super) fields: Vec<(&'static str, &'static str)>,
}

impl Answer {
    pub(super) fn text(status: u16, text: impl Into<String>) -> Self {
        Self::new(status, "text/plain; charset=utf-8", text.into().into_bytes())
    }

    pub(super) fn new(status: u16, content_type: &'static str, body: Vec<u8>) -> Self {
        Self { status, content_type, body, fields: vec![("Cache-Control", "no-store")] }
    }

    pub(super) fn with_header(mut self, name: &'static str, value: &'static str) -> Self {
        self.fields.push((name, value));
        self
    }

    pub(super) fn respond(self, handshake: &ServerHandshake) -> Response {
        let mut headers = HeaderList::new();
        for (name, value) in [("Content-Type", self.content_type)].into_iter().chain(self.fields) {
            let _ = headers.push(name, value); // constants, and valid
        }
        handshake.reject(self.status, &headers, &self.body).unwrap_or_else(|error| handshake.reject_error(&error))
    }
}

/// Checks the token of a request from an operator.
///
/// # Errors
/// The answer, if the token is missing or wrong, or the address has sent too many wrong ones.
pub(super) fn check_token(
    request: &Request,
    token: &str,
    area: Area,
    remote: Option<SocketAddr>,
    shared: &EngineShared,
) -> Result<(), Answer> {
    let proxies = &shared.config.proxies;
    let remote = if proxies.trusts(remote) { proxies.client(remote, &request.headers) } else { remote };
    shared.operator_tokens.check(request, token, area, remote, &shared.logs).map_err(|refusal| match refusal {
        TokenRefusal::Missing => Answer::text(401, "A token is needed.\n").with_header("WWW-Authenticate", "Bearer"),
        TokenRefusal::Blocked => {
            let text = "There were too many wrong tokens from this address.\n";
            Answer::text(429, text).with_header("Retry-After", RETRY_AFTER)
        }
        // RFC 6750 3.1: `invalid_token`.
        TokenRefusal::Wrong => {
            Answer::text(401, "The token is wrong.\n").with_header("WWW-Authenticate", "Bearer error=\"invalid_token\"")
        }
    })
}
