//! Subscriptions at one server, and the messages that they deliver.

use std::cell::RefCell;
use std::collections::HashMap;

use futures_util::{StreamExt, future};
use redis::aio::{PubSub, PubSubSink};
use redis::{Msg, Value};
use wirespeed_engine::topics::Pattern;

use super::glob::glob;
use super::{Broken, CHANNELS, Link, PING, RECEIVES, Target, check, patiently};
use crate::client::{Shared, ended};
use crate::stall_clock::StallClock;
use crate::tracker::{ALL, DeliveryTracker};

/// Subscriptions, as the server knows them.
#[derive(Default)]
struct Known {
    /// Several of our patterns may be one of its.
    globs: HashMap<String, Vec<Pattern>>,
    /// Confirmed, and not yet taken for it: what came before is to be looked at first.
    confirmed: Vec<Pattern>,
    /// Those of which all that came before was taken from the library.
    preceded: Vec<Pattern>,
}

pub(super) async fn receive(link: &Link<'_>, target: &mut Target, tracker: &RefCell<DeliveryTracker>) -> Broken {
    let connected = async {
        let client = target.client().await?;
        patiently(client.get_async_pubsub()).await
    };
    let pubsub: PubSub = match connected.await {
        Ok(pubsub) => pubsub,
        Err(broken) => return broken,
    };
    let (mut sink, mut stream) = pubsub.split();
    let known = RefCell::new(Known::default());
    let subscribe = std::pin::pin!(async {
        match subscribe(link, &mut sink, tracker, &known).await {
            Ok(never) => never,
            Err(broken) => broken,
        }
    });
    let read = std::pin::pin!(async {
        let mut came = Vec::new();
        loop {
            // All that is there, before what was confirmed meanwhile is taken for it.
            let taken = future::poll_fn(|cx| {
                while let std::task::Poll::Ready(next) = stream.poll_next_unpin(cx) {
                    came.push(next);
                    if came.last().is_some_and(Option::is_none) {
                        break;
                    }
                }
                let waits = came.is_empty() && known.borrow().confirmed.is_empty();
                if waits { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
            });
            tokio::task::unconstrained(taken).await;
            {
                // Not taken out: what is ended while this lets others go on is not confirmed.
                let Known { confirmed, preceded, .. } = &mut *known.borrow_mut();
                preceded.append(confirmed);
            }
            let mut breaths = StallClock::new();
            for message in came.drain(..) {
                let Some(message) = message else { return Broken::Closed };
                arrive(link.shared, &mut tracker.borrow_mut(), &known.borrow(), &message);
                breaths.take().await;
            }
            let mut tracker = tracker.borrow_mut();
            known.borrow_mut().preceded.drain(..).for_each(|pattern| tracker.confirm(&pattern));
        }
    });
    let demoted = std::pin::pin!(link.demoted.notified());
    // `subscribe` is polled first, so that `read` sees its confirmations.
    match future::select(future::select(subscribe, read), demoted).await {
        future::Either::Left((future::Either::Left((broken, _)) | future::Either::Right((broken, _)), _)) => broken,
        future::Either::Right(_) => Broken::Replica,
    }
}

fn arrive(shared: &Shared, tracker: &mut DeliveryTracker, known: &Known, message: &Msg) {
    let via = match message.from_pattern() {
        false => None,
        true => message.get_pattern::<String>().ok().and_then(|glob| known.globs.get(&glob)).map(Vec::as_slice),
    };
    if via.is_none() && message.from_pattern() {
        return; // it is being ended
    }
    let name = message.get_channel_name();
    let exact = match via {
        // A channel's own subscription.
        None => name.strip_prefix(shared.prefix.as_str()).and_then(|name| Pattern::new(name).ok()),
        Some(_) => None,
    };
    let via = via.or(exact.as_ref().filter(|exact| exact.as_str() != ALL).map(std::slice::from_ref));
    shared.arrive(tracker, name, via, message.get_payload_bytes());
}

async fn subscribe(
    link: &Link<'_>,
    sink: &mut PubSubSink,
    tracker: &RefCell<DeliveryTracker>,
    known: &RefCell<Known>,
) -> Result<Broken, Broken> {
    let shared = link.shared;
    shared.forget_reserved();
    subscribe_to_all(shared, sink).await?;
    let changes = shared.take_interests(&mut tracker.borrow_mut());
    change(shared, sink, tracker, known, changes).await?;
    // All that was wanted by then is there. What has been wanted since may never end.
    link.set_up(RECEIVES);
    loop {
        if !shared.take_reserved().is_empty() {
            subscribe_to_all(shared, sink).await?;
        }
        let changes = shared.take_interests(&mut tracker.borrow_mut());
        if changes.is_empty() {
            let notified = std::pin::pin!(shared.wanted.notified());
            if tokio::time::timeout(PING, notified).await.is_err() {
                check(sink.ping::<Value>()).await?;
            }
            continue;
        }
        change(shared, sink, tracker, known, changes).await?;
    }
}

/// Has the server know what is wanted, and what is not any more.
async fn change(
    shared: &Shared,
    sink: &mut PubSubSink,
    tracker: &RefCell<DeliveryTracker>,
    known: &RefCell<Known>,
    changes: Vec<Change>,
) -> Result<(), Broken> {
    tracker.borrow_mut().end(ended(&changes));
    let (wanted, ended): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(_, wanted)| *wanted);
    for chunk in ended.chunks(CHANNELS) {
        end(shared, sink, known, chunk).await?;
    }
    for chunk in wanted.chunks(CHANNELS) {
        begin(shared, sink, tracker, known, chunk).await?;
    }
    Ok(())
}

/// Subscribes to broadcasts.
async fn subscribe_to_all(shared: &Shared, sink: &mut PubSubSink) -> Result<(), Broken> {
    match denial(patiently(sink.subscribe(format!("{}{ALL}", shared.prefix))).await)? {
        Some(reason) => shared.deny_all(&reason),
        None => shared.forgive_reserved(),
    }
    Ok(())
}

pub(super) type Change = (Pattern, bool);

/// Why an ACL does not let us have what was asked for, in words; `None`: we have it. Other answers, which may be others later,
/// are for a connection that is made again.
pub(super) fn denial(answer: Result<(), Broken>) -> Result<Option<String>, Broken> {
    match answer {
        Ok(()) => Ok(None),
        Err(Broken::Redis(error)) if error.code() == Some("NOPERM") => Ok(Some(error.to_string())),
        Err(broken) => Err(broken),
    }
}

/// Subscribes to channels, or patterns of the server's, with one command. If it is denied, as it is for one of them, each
/// is asked for by itself. What is denied, and why.
async fn ask(sink: &PubSubSink, names: Vec<String>, globs: bool) -> Result<Vec<(String, String)>, Broken> {
    let subscribe = async |names: &[String]| {
        let mut sink = sink.clone();
        let answer = match globs {
            false => patiently(sink.subscribe(names)).await,
            true => patiently(sink.psubscribe(names)).await,
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

async fn begin(
    shared: &Shared,
    sink: &PubSubSink,
    tracker: &RefCell<DeliveryTracker>,
    known: &RefCell<Known>,
    chunk: &[Change],
) -> Result<(), Broken> {
    let (mut channels, mut globs) = (Vec::new(), Vec::new());
    for (pattern, _) in chunk {
        tracker.borrow_mut().ask(pattern);
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
    let mut denied: HashMap<String, String> = ask(sink, channels, false).await?.into_iter().collect();
    for (glob, reason) in ask(sink, globs, true).await? {
        known.borrow_mut().globs.remove(&glob); // all of its patterns are of this chunk
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
                shared.done(pattern, true);
            }
        }
    }
    Ok(())
}

async fn end(shared: &Shared, sink: &mut PubSubSink, known: &RefCell<Known>, chunk: &[Change]) -> Result<(), Broken> {
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
        patiently(sink.unsubscribe(channels)).await?;
    }
    if !globs.is_empty() {
        patiently(sink.punsubscribe(globs)).await?;
    }
    for (pattern, _) in chunk {
        let Known { confirmed, preceded, .. } = &mut *known.borrow_mut();
        confirmed.retain(|other| other != pattern);
        preceded.retain(|other| other != pattern);
        shared.done(pattern, false);
    }
    Ok(())
}
