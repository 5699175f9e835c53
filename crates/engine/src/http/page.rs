//! The live page at `/_wirespeed/`: metrics, topics and sessions, and a button to disconnect one.
//!
//! The HTML itself is public. The data behind it requires the page's token, in a header. The page neither shows nor
//! logs the token, or queries, header fields and messages of clients. [`crate::http`] calls it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wirespeed_driver::protocol::CloseCode;
use wirespeed_driver::protocol::handshake::Request;

use super::answer::{Answer, check_token};
use crate::admission::operator_tokens::Area;
use crate::broker::Status;
use crate::config::routes;
use crate::metrics::{BOUNDS, Distribution, Figures, State, WorkerFigures};
use crate::session::Session;
use crate::shared::EngineShared;
use crate::util::locks::lock;

/// The path of the page.
const ROOT: &str = "/_wirespeed/";

const PAGE: &str = include_str!("page.html");

/// The maximum number of topics in an answer: those with the most subscribers.
const MAX_TOPICS: usize = 100;

/// The maximum number of sessions in an answer.
const MAX_SESSIONS: usize = 100;

/// How long a list of topics is cached: computing it visits all topics.
const TOPICS_TTL: Duration = Duration::from_secs(2);

/// Answers a request below [`ROOT`]; `None` for other paths, or if the page is disabled.
pub(crate) fn answer(
    request: &Request,
    path: &str,
    remote: Option<SocketAddr>,
    shared: &EngineShared,
) -> Option<Answer> {
    let token = shared.config.http.page.as_deref()?;
    let below = path.strip_prefix(ROOT)?;
    let (method, reads) = (request.method.as_str(), matches!(request.method.as_str(), "GET" | "HEAD"));
    if below.is_empty() {
        return Some(if reads { page() } else { not_allowed("GET, HEAD") });
    }
    if let Err(refused) = check_token(request, token, Area::Page, remote, shared) {
        return Some(refused);
    }
    let mut parts = below.split('/');
    let parts = (parts.next(), parts.next(), parts.next(), parts.next());
    let answer = match parts {
        (Some("figures"), None, ..) if reads => to_json(&figures(shared)),
        (Some("sessions"), None, ..) if reads => to_json(&sessions(request, shared)),
        (Some("sessions"), Some(id), None, _) if reads => {
            with_session(id, shared, |session| to_json(&details(session)))
        }
        (Some("sessions"), Some(id), Some("disconnect"), None) if method == "POST" => {
            with_session(id, shared, |session| {
                // RFC 6455 7.4.1, 1008: for a violation of policy, or "when there is no other more suitable status code".
                let _ = session.close(CloseCode::POLICY_VIOLATION, "disconnected by the operator"); // a valid code
                to_json(&json!({"id": session.id()}))
            })
        }
        (Some("sessions"), Some(_), Some("disconnect"), None) => not_allowed("POST"),
        (Some("figures" | "sessions"), ..) if !reads => not_allowed("GET, HEAD"),
        _ => Answer::text(404, "There is nothing at this path.\n"),
    };
    Some(answer)
}

fn page() -> Answer {
    Answer::new(200, "text/html; charset=utf-8", PAGE.as_bytes().to_vec())
        .with_header(
            "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'unsafe-inline'; connect-src 'self'; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        )
        .with_header("Referrer-Policy", "no-referrer")
        .with_header("X-Content-Type-Options", "nosniff")
}

fn not_allowed(allowed: &'static str) -> Answer {
    Answer::text(405, "Another method is needed.\n").with_header("Allow", allowed)
}

fn to_json(value: &Value) -> Answer {
    Answer::new(200, "application/json", value.to_string().into_bytes())
        .with_header("X-Content-Type-Options", "nosniff")
}

fn durations(of: &Distribution) -> Value {
    let milliseconds = |share| {
        let bound = of.quantile(share);
        if bound == Duration::MAX { Value::Null } else { json!(bound.as_secs_f64() * 1000.0) }
    };
    json!({"count": of.count(), "seconds": of.seconds, "p99": milliseconds(0.99), "counts": of.counts})
}

fn worker(of: &WorkerFigures) -> Value {
    json!({
        "connections": of.connections,
        "sessions": of.sessions,
        "sessions_opened": of.sessions_opened,
        "messages_received": of.messages_received,
        "bytes_received": of.bytes_received,
        "messages_sent": of.messages_sent,
        "bytes_sent": of.bytes_sent,
        "outbox_bytes": of.outbox_bytes,
        "mailbox_bytes": of.mailbox_bytes,
        "events": of.events,
        "panics": of.panics,
        "messages_dropped": of.dropped.iter().sum::<u64>(),
        "handshakes_failed": of.failures.iter().sum::<u64>(),
        "loop_lag": durations(&of.lag),
        "publish_latency": durations(&of.latency),
    })
}

#[allow(clippy::indexing_slicing, reason = "members of an object, which are made")]
fn figures(shared: &EngineShared) -> Value {
    wirespeed_driver::protocol::failpoint::hit("engine.page");
    let now = Instant::now();
    let figures: Figures = shared.figures();
    let total = figures.total();
    let state = |metrics: &crate::metrics::WorkerMetrics| match metrics.state(now) {
        State::Waits => json!("waits"),
        State::Busy(_) => json!("busy"),
        State::Ended => json!("ended"),
    };
    let workers: Vec<Value> = figures
        .workers
        .iter()
        .zip(&shared.metrics)
        .map(|(of, metrics)| {
            let mut value = worker(of);
            value["state"] = state(metrics);
            value
        })
        .collect();
    let named =
        |pairs: Vec<(&'static str, u64)>| pairs.into_iter().map(|(name, count)| (name.to_owned(), json!(count)));
    json!({
        "total": worker(&total),
        "workers": workers,
        "dropped": Value::Object(named(total.dropped_by_policy().collect()).collect()),
        "failed": Value::Object(named(total.failures_by_reason().map(|(of, count)| (of.name(), count)).collect()).collect()),
        "events_waiting": figures.events_waiting,
        "event_bytes_waiting": figures.event_bytes_waiting,
        "oldest_event": figures.oldest_event.as_secs_f64(),
        "draining": shared.leaving.load(std::sync::atomic::Ordering::Relaxed),
        "uptime": shared.start.elapsed().as_secs_f64(),
        "topics": topics(shared, now),
        "broker": figures.broker.as_ref().map(broker),
        // Upper bounds of the histogram buckets in milliseconds; the last bucket has none.
        "bounds": BOUNDS.map(|microseconds| microseconds as f64 / 1000.0),
    })
}

fn broker(of: &Status) -> Value {
    let counted = of.counters().into_iter().chain(of.gauges()).map(|(name, _, value)| (name.to_owned(), json!(value)));
    let state = [("state", json!(of.state.name())), ("server", json!(of.server)), ("reason", json!(of.reason))];
    Value::Object(state.map(|(name, value)| (name.to_owned(), value)).into_iter().chain(counted).collect())
}

fn topics(shared: &EngineShared, now: Instant) -> Value {
    let mut cache = lock(&shared.page_topics);
    if let Some((at, value)) = &*cache
        && now.saturating_duration_since(*at) < TOPICS_TTL
    {
        return value.clone();
    }
    let registry = shared.handles.get().and_then(|homes| homes.first()).map(|worker| &worker.registry);
    let most = registry.map(|registry| registry.most(MAX_TOPICS)).unwrap_or_default();
    let value: Value =
        most.iter().map(|(topic, count)| json!({"topic": topic.as_str(), "subscribers": count})).collect();
    *cache = Some((now, value.clone()));
    value
}

fn user(session: &Session) -> Option<String> {
    session.identity().map(|identity| identity.user.clone())
}

fn summary(session: &Session) -> Value {
    json!({
        "id": session.id(),
        "remote": session.remote_address().map(|remote| remote.to_string()),
        "path": session.path(),
        "user": user(session),
        "queued": session.queued(),
    })
}

/// Returns the newest sessions that match a search: a part of the address, path or user, or the number.
fn sessions(request: &Request, shared: &EngineShared) -> Value {
    let search = routes::query(request).split('&').find_map(|pair| pair.strip_prefix("find=")).unwrap_or_default();
    let search = percent_encoding::percent_decode_str(search).decode_utf8_lossy();
    let fits = |session: &Session| {
        search.is_empty()
            || session.id().to_string() == search
            || session.path().contains(&*search)
            || user(session).is_some_and(|user| user.contains(&*search))
            || session.remote_address().is_some_and(|remote| remote.to_string().contains(&*search))
    };
    shared.sessions.find(MAX_SESSIONS, fits).iter().map(summary).collect()
}

fn with_session(id: &str, shared: &EngineShared, then: impl FnOnce(&Session) -> Answer) -> Answer {
    let session = id.parse().ok().and_then(|id| shared.sessions.session(id));
    session.as_ref().map_or_else(|| Answer::text(404, "There is no such session.\n"), then)
}

#[allow(clippy::indexing_slicing, reason = "members of an object, which are made")]
fn details(session: &Session) -> Value {
    let mut value = summary(session);
    value["subprotocol"] = json!(session.subprotocol());
    value["open"] = json!(session.is_open());
    value["topics"] = session.topics().iter().take(MAX_TOPICS).map(|topic| json!(topic.as_str())).collect();
    value["topic_count"] = json!(session.topics().len());
    value
}
