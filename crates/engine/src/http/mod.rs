//! The HTTP endpoints: health, readiness and metrics.
//!
//! They answer only requests without a WebSocket upgrade, so an application may use the same paths. A worker answers
//! before it asks for a token; so nothing here is confidential unless it is configured to be shown. Called for each
//! request. Knows no sockets.

mod answer;
mod page;

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use wirespeed_driver::protocol::handshake::{Request, Response, ServerHandshake};

use crate::admission::operator_tokens::Area;
use crate::broker;
use crate::config::routes;
use crate::metrics::{self, State};
use crate::shared::EngineShared;

use self::answer::{Answer, check_token};

/// Answers a request, if it is for an endpoint. `internal`: it came to the address of [`crate::config::Http::at`].
pub(crate) fn answer(
    handshake: &ServerHandshake,
    remote: Option<SocketAddr>,
    internal: bool,
    shared: &EngineShared,
) -> Option<Response> {
    let request = handshake.request()?;
    if !internal && request.headers.contains_token("Upgrade", "websocket") {
        return None;
    }
    let path = routes::path(request);
    let found = find_answer(request, path, remote, internal, shared);
    let found =
        if internal { found.or_else(|| Some(Answer::text(404, "There is nothing at this path.\n"))) } else { found };
    found.map(|answer| answer.respond(handshake))
}

fn find_answer(
    request: &Request,
    path: &str,
    remote: Option<SocketAddr>,
    internal: bool,
    shared: &EngineShared,
) -> Option<Answer> {
    let http = &shared.config.http;
    let is = |known: &Option<String>| known.as_deref() == Some(path);
    let answer: fn(&Request, Option<SocketAddr>, &EngineShared) -> Answer =
        if is(&http.health) || internal && path == "/health" {
            |_, _, shared| health(shared)
        } else if is(&http.ready) || internal && path == "/ready" {
            |_, _, shared| ready(shared)
        } else if is(&http.metrics) || internal && path == "/metrics" {
            metrics
        } else {
            return if internal { None } else { page::answer(request, path, remote, shared) };
        };
    if !matches!(request.method.as_str(), "GET" | "HEAD") {
        // RFC 9110 15.5.6: the server "MUST generate an Allow header field in a 405 response".
        return Some(Answer::text(405, "GET and HEAD only.\n").with_header("Allow", "GET, HEAD"));
    }
    Some(answer(request, remote, shared))
}

fn health(shared: &EngineShared) -> Answer {
    wirespeed_driver::protocol::failpoint::hit("engine.health");
    let now = Instant::now();
    let mut problems = String::new();
    for (number, metrics) in shared.metrics.iter().enumerate() {
        match metrics.state(now) {
            State::Busy(since) if since > shared.config.http.stuck_after => {
                let _ = writeln!(problems, "worker {number} is stuck"); // cannot fail
            }
            // Workers that were asked to end do so at different times.
            State::Ended if shared.stop.load(Ordering::Acquire) => {}
            State::Ended => {
                let _ = writeln!(problems, "worker {number} has ended");
            }
            State::Busy(_) | State::Waits => {}
        }
    }
    if problems.is_empty() { Answer::text(200, "ok\n") } else { Answer::text(503, problems) }
}

fn ready(shared: &EngineShared) -> Answer {
    let full = shared.admission.would_reject(None).is_some();
    let stalled_for = shared.events.stalled_for(shared.since_start());
    let why = if shared.leaving.load(Ordering::Acquire) {
        "draining\n"
    } else if full {
        "full\n"
    } else if shared.metrics.iter().all(|metrics| metrics.closed.load(Ordering::Relaxed)) {
        "no client is accepted\n"
    } else if stalled_for > shared.config.http.stuck_after {
        shared.log_stalled_events(stalled_for);
        "events are not taken\n"
    } else if !shared.config.http.ready_without_broker && !has_broker(shared) {
        "the broker is not connected\n"
    } else {
        return Answer::text(200, "ready\n");
    };
    Answer::text(503, why)
}

/// Whether messages reach other engines. True without a broker.
fn has_broker(shared: &EngineShared) -> bool {
    shared.config.broker.is_none()
        || shared.broker.get().is_some_and(|broker| broker.status().state == broker::State::Connected)
}

fn metrics(request: &Request, remote: Option<SocketAddr>, shared: &EngineShared) -> Answer {
    wirespeed_driver::protocol::failpoint::hit("engine.metrics");
    if let Some(token) = &shared.config.http.metrics_token
        && let Err(refused) = check_token(request, token, Area::Metrics, remote, shared)
    {
        return refused;
    }
    let text = metrics::to_text(&shared.figures());
    Answer::new(200, metrics::CONTENT_TYPE, text.into_bytes())
}
