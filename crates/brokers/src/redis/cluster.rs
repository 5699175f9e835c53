//! A Redis cluster with sharded channels (Redis 7.0, `SPUBLISH` and `SSUBSCRIBE`): a message goes only to the nodes of
//! its channel's slot.
//!
//! Sharded channels have no patterns. A session that subscribes with wildcards gets only messages of its own engine,
//! and the application is notified. The library keeps track of the nodes. When one of its connections breaks, or a node
//! ends a subscription because its slot moved, the client connects and subscribes anew.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::{IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisError, TlsMode, Value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use wirespeed_engine::topics::Pattern;

use super::receiving::{Change, denial};
use super::{
    Answer, BATCH_BYTES, ConnectionError, PING, REPLY_TIMEOUT, addresses, certificates, check, publish_result,
    settings, with_timeout,
};
use crate::backoff;
use crate::batch::{self, Batch};
use crate::client::{Shared, ended};
use crate::queue::{Destination, Item};
use crate::stall_clock::StallClock;
use crate::tracker::{ALL, DeliveryTracker};

/// The maximum number of concurrent commands.
const MAX_CONCURRENT: usize = 64;

/// No limit: the library cannot exclude the time in which this thread was blocked. `with_timeout` limits the time instead.
const NO_LIMIT: Duration = Duration::from_secs(1 << 20);

/// Channels that we are unsubscribing, with the number of confirmations that are still to arrive.
type PendingUnsubscribes = RefCell<HashMap<String, u32>>;

pub(super) async fn serve(shared: &Shared) {
    let tracker = Rc::new(RefCell::new(shared.tracker()));
    let mut attempt = 0;
    loop {
        let reason = match connect(shared).await {
            Err(failure) => failure,
            Ok((connection, pushes)) => {
                let failure = run(shared, connection, pushes, &tracker).await;
                if shared.is_connected() {
                    attempt = 0;
                }
                failure
            }
        };
        shared.set_disconnected(&reason.to_string());
        shared.lose_subscriptions(&mut tracker.borrow_mut());
        tokio::time::sleep(backoff::delay(attempt)).await;
        attempt += 1;
    }
}

async fn connect(shared: &Shared) -> Result<(ClusterConnection, UnboundedReceiver<PushInfo>), ConnectionError> {
    let address = &shared.address;
    let settings = settings(address)?;
    let nodes = addresses(address)
        .map(|node| Ok(node.into_connection_info()?.set_redis_settings(settings.clone())))
        .collect::<Result<Vec<_>, ConnectionError>>()?;
    // Bounded by what this thread reads in one turn; see the documentation of the crate.
    let (sender, pushes) = unbounded_channel();
    let mut builder = ClusterClientBuilder::new(nodes)
        .use_protocol(ProtocolVersion::RESP3)
        .connection_timeout(REPLY_TIMEOUT)
        .response_timeout(NO_LIMIT)
        .overall_response_timeout(None)
        .retries(3)
        .push_sender(sender);
    if address.tls {
        builder = builder.tls(TlsMode::Secure);
        if let Some(certificates) = certificates(address)? {
            builder = builder.certs(certificates);
        }
    }
    let client = builder.build()?;
    let connection = with_timeout(client.get_async_connection()).await?;
    Ok((connection, pushes))
}

async fn run(
    shared: &Shared,
    connection: ClusterConnection,
    pushes: UnboundedReceiver<PushInfo>,
    tracker: &RefCell<DeliveryTracker>,
) -> ConnectionError {
    let result = |result: Result<ConnectionError, ConnectionError>| match result {
        Ok(failure) | Err(failure) => failure,
    };
    let unsubscribing = PendingUnsubscribes::default();
    let subscribe =
        std::pin::pin!(async { result(subscribe(shared, connection.clone(), tracker, &unsubscribing).await) });
    let publish = std::pin::pin!(async { result(publish(shared, connection.clone()).await) });
    let read = std::pin::pin!(read(shared, pushes, tracker, &unsubscribing));
    let moves = future::select(publish, read);
    match future::select(subscribe, moves).await {
        future::Either::Left((failure, _)) => failure,
        future::Either::Right((future::Either::Left((failure, _)) | future::Either::Right((failure, _)), _)) => failure,
    }
}

async fn publish(shared: &Shared, connection: ClusterConnection) -> Result<ConnectionError, ConnectionError> {
    let mut in_flight = shared.in_flight();
    loop {
        shared.wait_connected().await;
        let items = in_flight.take(BATCH_BYTES);
        if items.is_empty() {
            let notified = std::pin::pin!(shared.outgoing.notified());
            if tokio::time::timeout(PING, notified).await.is_err() {
                let mut connection = connection.clone();
                check(redis::cmd("PING").query_async::<Value>(&mut connection)).await?;
            }
            continue;
        }
        let (mut published, mut refused, mut failure) = (0, 0, None);
        for chunk in by_channel(shared, items).chunks(MAX_CONCURRENT) {
            let sent = chunk.iter().map(|(channel, batches)| spublish(connection.clone(), channel, batches));
            for (batch, answer) in future::join_all(sent).await.into_iter().flatten() {
                match publish_result(answer) {
                    Ok(None) => published += batch.count,
                    Ok(Some(refusal)) => {
                        refused += batch.count;
                        shared.set_reason(&refusal);
                    }
                    Err(error) => failure = Some(error),
                }
            }
            if failure.is_some() {
                break;
            }
        }
        // Channels are published concurrently, so the settled messages are not the oldest ones. Count the missing ones
        // first: a flush that returns too early then reports too many missing messages, not too few.
        in_flight.refuse(refused);
        if let Some(failure) = failure {
            in_flight.mark_unconfirmed(in_flight.count() - published);
            in_flight.settle(published);
            return Err(failure);
        }
        in_flight.settle(published);
    }
}

/// Publishes on one channel, in order. Returns the answer for each batch.
async fn spublish<'a>(
    mut connection: ClusterConnection,
    channel: &str,
    batches: &'a [Batch],
) -> Vec<(&'a Batch, Answer)> {
    let mut commands = redis::pipe();
    for batch in batches {
        commands.cmd("SPUBLISH").arg(channel).arg(&batch.bytes[..]);
    }
    let error: RedisError = match with_timeout(commands.ignore_errors().query_async(&mut connection)).await {
        Ok(answers) => return batches.iter().zip::<Vec<Answer>>(answers).collect(),
        Err(ConnectionError::Redis(error)) => error,
        Err(silent) => io::Error::new(io::ErrorKind::TimedOut, silent.to_string()).into(),
    };
    batches.iter().map(|batch| (batch, Err(error.clone()))).collect()
}

/// Groups messages by channel. Concurrent commands may be reordered, so each channel is one pipeline.
fn by_channel(shared: &Shared, items: Vec<Item>) -> Vec<(String, Vec<Batch>)> {
    let mut groups: Vec<(String, Vec<Batch>)> = Vec::new();
    let mut places: HashMap<Destination, usize> = HashMap::new();
    for batch in batch::pack(items, batch::MAX_BATCH_BYTES) {
        match places.get(&batch.to).and_then(|place| groups.get_mut(*place)) {
            Some((_, payloads)) => payloads.push(batch),
            None => {
                places.insert(batch.to.clone(), groups.len());
                groups.push((shared.name(&batch.to), vec![batch]));
            }
        }
    }
    groups
}

async fn subscribe(
    shared: &Shared,
    mut connection: ClusterConnection,
    tracker: &RefCell<DeliveryTracker>,
    unsubscribing: &PendingUnsubscribes,
) -> Result<ConnectionError, ConnectionError> {
    if !shared.receives() {
        shared.set_connected();
        return Ok(future::pending().await);
    }
    shared.forget_reserved();
    subscribe_to_broadcasts(shared, &mut connection).await?;
    let changes = shared.take_changes(&mut tracker.borrow_mut());
    change(shared, &connection, tracker, unsubscribing, changes).await?;
    // All patterns wanted at the start are subscribed now. Waiting for later ones might never end.
    shared.set_connected();
    loop {
        if !shared.take_reserved().is_empty() {
            subscribe_to_broadcasts(shared, &mut connection).await?;
        }
        let changes = shared.take_changes(&mut tracker.borrow_mut());
        if changes.is_empty() {
            shared.subscriptions_changed.notified().await;
            continue;
        }
        change(shared, &connection, tracker, unsubscribing, changes).await?;
    }
}

/// Subscribes to broadcasts.
async fn subscribe_to_broadcasts(shared: &Shared, connection: &mut ClusterConnection) -> Result<(), ConnectionError> {
    match denial(with_timeout(connection.ssubscribe(format!("{}{ALL}", shared.prefix))).await)? {
        Some(reason) => shared.deny_broadcasts(&reason),
        None => shared.clear_allowed_reserved(),
    }
    Ok(())
}

/// Subscribes and unsubscribes the changed patterns at the cluster.
async fn change(
    shared: &Shared,
    connection: &ClusterConnection,
    tracker: &RefCell<DeliveryTracker>,
    unsubscribing: &PendingUnsubscribes,
    changes: Vec<Change>,
) -> Result<(), ConnectionError> {
    tracker.borrow_mut().end(ended(&changes));
    let (exact, wild): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(pattern, _)| pattern.is_exact());
    for (pattern, _) in wild {
        shared.deny(&mut tracker.borrow_mut(), &pattern, None);
    }
    // One command per channel, because the channels of one command must share a slot; several commands run
    // concurrently.
    for chunk in exact.chunks(MAX_CONCURRENT) {
        for (pattern, _) in chunk.iter().filter(|(_, wanted)| *wanted) {
            tracker.borrow_mut().request(pattern);
        }
        let answers = future::join_all(chunk.iter().map(|(pattern, wanted)| {
            let mut connection = connection.clone();
            let channel = format!("{}{pattern}", shared.prefix);
            if !wanted {
                *unsubscribing.borrow_mut().entry(channel.clone()).or_default() += 1;
            }
            with_timeout(async move {
                match wanted {
                    true => connection.ssubscribe(channel).await,
                    false => connection.sunsubscribe(channel).await,
                }
            })
        }))
        .await;
        for ((pattern, wanted), answer) in chunk.iter().zip(answers) {
            if let Some(reason) = denial(answer)? {
                shared.deny(&mut tracker.borrow_mut(), pattern, Some(&reason));
                continue;
            }
            if *wanted {
                tracker.borrow_mut().confirm(pattern);
            }
            shared.mark_applied(pattern, *wanted);
        }
    }
    Ok(())
}

async fn read(
    shared: &Shared,
    mut pushes: UnboundedReceiver<PushInfo>,
    tracker: &RefCell<DeliveryTracker>,
    unsubscribing: &PendingUnsubscribes,
) -> ConnectionError {
    let mut stall_clock = StallClock::new();
    while let Some(push) = pushes.recv().await {
        match (push.kind, &push.data[..]) {
            (PushKind::SMessage, [Value::BulkString(channel), Value::BulkString(payload)]) => {
                let channel = String::from_utf8_lossy(channel);
                shared.arrive(&mut tracker.borrow_mut(), &channel, None, payload);
            }
            // Reconnect instead of subscribing again on this connection: the library takes this unsolicited push for
            // the reply to the current command there, so later replies may be shifted.
            (PushKind::SUnsubscribe, [Value::BulkString(channel), ..])
                if is_lost_subscription(
                    shared,
                    &tracker.borrow(),
                    unsubscribing,
                    &String::from_utf8_lossy(channel),
                ) =>
            {
                return ConnectionError::Other("a node has ended a subscription, as its slot has moved".into());
            }
            (PushKind::Disconnection, _) => return ConnectionError::Closed,
            _ => {}
        }
        stall_clock.yield_if_stalled().await;
        if pushes.is_empty() {
            stall_clock = StallClock::new();
        }
    }
    ConnectionError::Closed
}

/// Returns whether a wanted subscription has ended without our request.
fn is_lost_subscription(
    shared: &Shared,
    tracker: &DeliveryTracker,
    unsubscribing: &PendingUnsubscribes,
    channel: &str,
) -> bool {
    let mut unsubscribing = unsubscribing.borrow_mut();
    if let Some(count) = unsubscribing.get_mut(channel) {
        *count -= 1;
        if *count == 0 {
            unsubscribing.remove(channel);
        }
        return false;
    }
    let name = channel.strip_prefix(shared.prefix.as_str()).unwrap_or(channel);
    name == ALL || Pattern::new(name).is_ok_and(|pattern| tracker.has_requested(&pattern))
}
