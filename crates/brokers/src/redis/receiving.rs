//! Subscriptions at one Redis server, and the messages that they deliver.

use std::cell::RefCell;
use std::collections::HashMap;

use futures_util::{StreamExt, future};
use redis::aio::{PubSub, PubSubSink};
use redis::{Msg, Value};
use wirespeed_engine::topics::Pattern;

use super::glob::glob;
use super::{CHANNELS_PER_COMMAND, ConnectionError, Connections, PING, RECEIVES, Target, check, with_timeout};
use crate::client::{Shared, ended};
use crate::stall_clock::StallClock;
use crate::tracker::{ALL, DeliveryTracker};

/// The state of the subscriptions at the server.
#[derive(Default)]
struct KnownSubscriptions {
    /// Several patterns may share one glob.
    globs: HashMap<String, Vec<Pattern>>,
    /// Confirmed by the server, but earlier messages may still be buffered in the library.
    confirmed: Vec<Pattern>,
    /// Confirmed, and all earlier messages were taken out of the library.
    drained: Vec<Pattern>,
}

pub(super) async fn receive(
    connections: &Connections<'_>,
    target: &mut Target,
    tracker: &RefCell<DeliveryTracker>,
) -> ConnectionError {
    let connected = async {
        let client = target.client().await?;
        with_timeout(client.get_async_pubsub()).await
    };
    let pubsub: PubSub = match connected.await {
        Ok(pubsub) => pubsub,
        Err(failure) => return failure,
    };
    let (mut sink, mut stream) = pubsub.split();
    let known = RefCell::new(KnownSubscriptions::default());
    let subscribe = std::pin::pin!(async {
        match subscribe(connections, &mut sink, tracker, &known).await {
            Ok(never) => never,
            Err(failure) => failure,
        }
    });
    let read = std::pin::pin!(async {
        let mut received = Vec::new();
        loop {
            // Take all buffered messages before the confirmations that arrived meanwhile take effect.
            let taken = future::poll_fn(|cx| {
                while let std::task::Poll::Ready(next) = stream.poll_next_unpin(cx) {
                    received.push(next);
                    if received.last().is_some_and(Option::is_none) {
                        break;
                    }
                }
                let waits = received.is_empty() && known.borrow().confirmed.is_empty();
                if waits { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
            });
            tokio::task::unconstrained(taken).await;
            {
                // They stay in `known` during the yields below, so that a pattern which is ended meanwhile is not
                // confirmed.
                let KnownSubscriptions { confirmed, drained, .. } = &mut *known.borrow_mut();
                drained.append(confirmed);
            }
            let mut stall_clock = StallClock::new();
            for message in received.drain(..) {
                let Some(message) = message else { return ConnectionError::Closed };
                arrive(connections.shared, &mut tracker.borrow_mut(), &known.borrow(), &message);
                stall_clock.yield_if_stalled().await;
            }
            let mut tracker = tracker.borrow_mut();
            known.borrow_mut().drained.drain(..).for_each(|pattern| tracker.confirm(&pattern));
        }
    });
    let demoted = std::pin::pin!(connections.demoted.notified());
    // `subscribe` is polled first, so that `read` sees its confirmations.
    match future::select(future::select(subscribe, read), demoted).await {
        future::Either::Left((future::Either::Left((failure, _)) | future::Either::Right((failure, _)), _)) => failure,
        future::Either::Right(_) => ConnectionError::Replica,
    }
}

fn arrive(shared: &Shared, tracker: &mut DeliveryTracker, known: &KnownSubscriptions, message: &Msg) {
    let via = match message.from_pattern() {
        false => None,
        true => message.get_pattern::<String>().ok().and_then(|glob| known.globs.get(&glob)).map(Vec::as_slice),
    };
    if via.is_none() && message.from_pattern() {
        return; // this glob is being unsubscribed
    }
    let name = message.get_channel_name();
    let exact = match via {
        // The message came by the subscription to the channel itself.
        None => name.strip_prefix(shared.prefix.as_str()).and_then(|name| Pattern::new(name).ok()),
        Some(_) => None,
    };
    let via = via.or(exact.as_ref().filter(|exact| exact.as_str() != ALL).map(std::slice::from_ref));
    shared.arrive(tracker, name, via, message.get_payload_bytes());
}

async fn subscribe(
    connections: &Connections<'_>,
    sink: &mut PubSubSink,
    tracker: &RefCell<DeliveryTracker>,
    known: &RefCell<KnownSubscriptions>,
) -> Result<ConnectionError, ConnectionError> {
    let shared = connections.shared;
    shared.forget_reserved();
    subscribe_to_broadcasts(shared, sink).await?;
    let changes = shared.take_changes(&mut tracker.borrow_mut());
    change(shared, sink, tracker, known, changes).await?;
    // All patterns wanted at the start are subscribed now. Waiting for later ones might never end.
    connections.mark_up(RECEIVES);
    loop {
        if !shared.take_reserved().is_empty() {
            subscribe_to_broadcasts(shared, sink).await?;
        }
        let changes = shared.take_changes(&mut tracker.borrow_mut());
        if changes.is_empty() {
            let notified = std::pin::pin!(shared.subscriptions_changed.notified());
            if tokio::time::timeout(PING, notified).await.is_err() {
                check(sink.ping::<Value>()).await?;
            }
            continue;
        }
        change(shared, sink, tracker, known, changes).await?;
    }
}

/// Subscribes and unsubscribes the changed patterns at the server.
async fn change(
    shared: &Shared,
    sink: &mut PubSubSink,
    tracker: &RefCell<DeliveryTracker>,
    known: &RefCell<KnownSubscriptions>,
    changes: Vec<Change>,
) -> Result<(), ConnectionError> {
    tracker.borrow_mut().end(ended(&changes));
    let (wanted, ended): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(_, wanted)| *wanted);
    for chunk in ended.chunks(CHANNELS_PER_COMMAND) {
        unsubscribe_chunk(shared, sink, known, chunk).await?;
    }
    for chunk in wanted.chunks(CHANNELS_PER_COMMAND) {
        subscribe_chunk(shared, sink, tracker, known, chunk).await?;
    }
    Ok(())
}

/// Subscribes to broadcasts.
async fn subscribe_to_broadcasts(shared: &Shared, sink: &mut PubSubSink) -> Result<(), ConnectionError> {
    match denial(with_timeout(sink.subscribe(format!("{}{ALL}", shared.prefix))).await)? {
        Some(reason) => shared.deny_broadcasts(&reason),
        None => shared.clear_allowed_reserved(),
    }
    Ok(())
}

pub(super) type Change = (Pattern, bool);

/// Returns why an ACL denied a subscription, or `None` if it was accepted. Any other error fails the connection,
/// because a new one may succeed.
pub(super) fn denial(answer: Result<(), ConnectionError>) -> Result<Option<String>, ConnectionError> {
    match answer {
        Ok(()) => Ok(None),
        Err(ConnectionError::Redis(error)) if error.code() == Some("NOPERM") => Ok(Some(error.to_string())),
        Err(failure) => Err(failure),
    }
}

/// Subscribes to channels or globs with one command. If the server denies any of them, each is requested separately.
/// Returns the denied names with the reasons.
async fn request(sink: &PubSubSink, names: Vec<String>, globs: bool) -> Result<Vec<(String, String)>, ConnectionError> {
    let subscribe = async |names: &[String]| {
        let mut sink = sink.clone();
        let answer = match globs {
            false => with_timeout(sink.subscribe(names)).await,
            true => with_timeout(sink.psubscribe(names)).await,
        };
        denial(answer)
    };
    if names.is_empty() || subscribe(&names).await?.is_none() {
        return Ok(Vec::new());
    }
    let answers = future::join_all(names.iter().map(|name| subscribe(std::slice::from_ref(name)))).await;
    let mut denied = Vec::new();
    for (name, answer) in names.into_iter().zip(answers) {
        denied.extend(answer?.map(|reason| (name, reason)));
    }
    Ok(denied)
}

async fn subscribe_chunk(
    shared: &Shared,
    sink: &PubSubSink,
    tracker: &RefCell<DeliveryTracker>,
    known: &RefCell<KnownSubscriptions>,
    chunk: &[Change],
) -> Result<(), ConnectionError> {
    let (mut channels, mut globs) = (Vec::new(), Vec::new());
    for (pattern, _) in chunk {
        tracker.borrow_mut().request(pattern);
        if pattern.is_exact() {
            channels.push(format!("{}{pattern}", shared.prefix));
            continue;
        }
        let glob = glob(&shared.prefix, pattern);
        let mut known = known.borrow_mut();
        let patterns = known.globs.entry(glob.clone()).or_default();
        if patterns.is_empty() {
            globs.push(glob);
        }
        patterns.push(pattern.clone());
    }
    let mut denied: HashMap<String, String> = request(sink, channels, false).await?.into_iter().collect();
    for (glob, reason) in request(sink, globs, true).await? {
        known.borrow_mut().globs.remove(&glob); // all patterns of this glob belong to this chunk
        denied.insert(glob, reason);
    }
    for (pattern, _) in chunk {
        let name = match pattern.is_exact() {
            true => format!("{}{pattern}", shared.prefix),
            false => glob(&shared.prefix, pattern),
        };
        match denied.get(&name) {
            Some(reason) => shared.deny(&mut tracker.borrow_mut(), pattern, Some(reason)),
            None => {
                known.borrow_mut().confirmed.push(pattern.clone());
                shared.mark_applied(pattern, true);
            }
        }
    }
    Ok(())
}

async fn unsubscribe_chunk(
    shared: &Shared,
    sink: &mut PubSubSink,
    known: &RefCell<KnownSubscriptions>,
    chunk: &[Change],
) -> Result<(), ConnectionError> {
    let (mut channels, mut globs) = (Vec::new(), Vec::new());
    for (pattern, _) in chunk {
        if pattern.is_exact() {
            channels.push(format!("{}{pattern}", shared.prefix));
            continue;
        }
        let glob = glob(&shared.prefix, pattern);
        let mut known = known.borrow_mut();
        if let Some(patterns) = known.globs.get_mut(&glob) {
            patterns.retain(|other| other != pattern);
            if patterns.is_empty() {
                known.globs.remove(&glob);
                globs.push(glob);
            }
        }
    }
    if !channels.is_empty() {
        with_timeout(sink.unsubscribe(channels)).await?;
    }
    if !globs.is_empty() {
        with_timeout(sink.punsubscribe(globs)).await?;
    }
    for (pattern, _) in chunk {
        let KnownSubscriptions { confirmed, drained, .. } = &mut *known.borrow_mut();
        confirmed.retain(|other| other != pattern);
        drained.retain(|other| other != pattern);
        shared.mark_applied(pattern, false);
    }
    Ok(())
}
