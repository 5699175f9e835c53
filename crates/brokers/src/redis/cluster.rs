//! A cluster of Redis, with sharded channels (Redis 7.0, `SPUBLISH` and `SSUBSCRIBE`): a message goes to the nodes of
//! its channel's slot, and not to all.
//!
//! Sharded channels have no patterns: a session that subscribes with wildcards gets what is published on its own
//! engine, which is told. The library knows which node has what; when a connection of it breaks, or a node ends a
//! subscription as the slot is another node's now, all is made again.

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
use super::{Answer, BATCH, Broken, PATIENCE, PING, addresses, certificates, check, fate, patiently, settings};
use crate::backoff;
use crate::batch::{self, Batch};
use crate::client::{Shared, ended};
use crate::queue::{Item, To};
use crate::stall_clock::StallClock;
use crate::tracker::{ALL, DeliveryTracker};

/// Commands that are under way at once.
const AT_ONCE: usize = 64;

/// For ever: the library does not know that this thread was held up. Who waits for an answer is patient instead.
const NO_LIMIT: Duration = Duration::from_secs(1 << 20);

/// Subscriptions that we are ending, by their channels: how often that was not yet heard of.
type Ending = RefCell<HashMap<String, u32>>;

pub(super) async fn serve(shared: &Shared) {
    let tracker = Rc::new(RefCell::new(shared.tracker()));
    let mut attempt = 0;
    loop {
        let reason = match connect(shared).await {
            Err(broken) => broken,
            Ok((connection, pushes)) => {
                let broken = run(shared, connection, pushes, &tracker).await;
                if shared.is_connected() {
                    attempt = 0;
                }
                broken
            }
        };
        shared.set_disconnected(&reason.to_string());
        shared.lose_subscriptions(&mut tracker.borrow_mut());
        tokio::time::sleep(backoff::delay(attempt)).await;
        attempt += 1;
    }
}

async fn connect(shared: &Shared) -> Result<(ClusterConnection, UnboundedReceiver<PushInfo>), Broken> {
    let address = &shared.address;
    let settings = settings(address)?;
    let nodes = addresses(address)
        .map(|node| Ok(node.into_connection_info()?.set_redis_settings(settings.clone())))
        .collect::<Result<Vec<_>, Broken>>()?;
    // Bounded by what this thread reads in one turn: see the crate.
    let (sender, pushes) = unbounded_channel();
    let mut builder = ClusterClientBuilder::new(nodes)
        .use_protocol(ProtocolVersion::RESP3)
        .connection_timeout(PATIENCE)
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
    let connection = patiently(client.get_async_connection()).await?;
    Ok((connection, pushes))
}

async fn run(
    shared: &Shared,
    connection: ClusterConnection,
    pushes: UnboundedReceiver<PushInfo>,
    tracker: &RefCell<DeliveryTracker>,
) -> Broken {
    let result = |result: Result<Broken, Broken>| match result {
        Ok(broken) | Err(broken) => broken,
    };
    let ending = Ending::default();
    let subscribe = std::pin::pin!(async { result(subscribe(shared, connection.clone(), tracker, &ending).await) });
    let publish = std::pin::pin!(async { result(publish(shared, connection.clone()).await) });
    let read = std::pin::pin!(read(shared, pushes, tracker, &ending));
    let moves = future::select(publish, read);
    match future::select(subscribe, moves).await {
        future::Either::Left((broken, _)) => broken,
        future::Either::Right((future::Either::Left((broken, _)) | future::Either::Right((broken, _)), _)) => broken,
    }
}

async fn publish(shared: &Shared, connection: ClusterConnection) -> Result<Broken, Broken> {
    let mut in_flight = shared.in_flight();
    loop {
        shared.wait_connected().await;
        let items = in_flight.take(BATCH);
        if items.is_empty() {
            let notified = std::pin::pin!(shared.outgoing.notified());
            if tokio::time::timeout(PING, notified).await.is_err() {
                let mut connection = connection.clone();
                check(redis::cmd("PING").query_async::<Value>(&mut connection)).await?;
            }
            continue;
        }
        let (mut published, mut refused, mut broken) = (0, 0, None);
        for chunk in by_channel(shared, items).chunks(AT_ONCE) {
            let sent = chunk.iter().map(|(channel, parcels)| spublish(connection.clone(), channel, parcels));
            for (parcel, answer) in future::join_all(sent).await.into_iter().flatten() {
                match fate(answer) {
                    Ok(None) => published += parcel.count,
                    Ok(Some(refusal)) => {
                        refused += parcel.count;
                        shared.set_reason(&refusal);
                    }
                    Err(error) => broken = Some(error),
                }
            }
            if broken.is_some() {
                break;
            }
        }
        // They were not sent in the order in which they were taken: of whoever waits for some of them it is not known
        // which are his. So it is said first what is missing.
        in_flight.refuse(refused);
        if let Some(broken) = broken {
            in_flight.mark_unconfirmed(in_flight.count() - published);
            in_flight.settle(published);
            return Err(broken);
        }
        in_flight.settle(published);
    }
}

/// Publishes on a channel, in order; what has become of each.
async fn spublish<'a>(
    mut connection: ClusterConnection,
    channel: &str,
    parcels: &'a [Batch],
) -> Vec<(&'a Batch, Answer)> {
    let mut commands = redis::pipe();
    for parcel in parcels {
        commands.cmd("SPUBLISH").arg(channel).arg(&parcel.bytes[..]);
    }
    let error: RedisError = match patiently(commands.ignore_errors().query_async(&mut connection)).await {
        Ok(answers) => return parcels.iter().zip::<Vec<Answer>>(answers).collect(),
        Err(Broken::Redis(error)) => error,
        Err(silent) => io::Error::new(io::ErrorKind::TimedOut, silent.to_string()).into(),
    };
    parcels.iter().map(|parcel| (parcel, Err(error.clone()))).collect()
}

/// What is under way at once may be sent in any order: of each channel that is one pipeline.
fn by_channel(shared: &Shared, items: Vec<Item>) -> Vec<(String, Vec<Batch>)> {
    let mut groups: Vec<(String, Vec<Batch>)> = Vec::new();
    let mut places: HashMap<To, usize> = HashMap::new();
    for parcel in batch::pack(items, batch::MOST) {
        match places.get(&parcel.to).and_then(|place| groups.get_mut(*place)) {
            Some((_, payloads)) => payloads.push(parcel),
            None => {
                places.insert(parcel.to.clone(), groups.len());
                groups.push((shared.name(&parcel.to), vec![parcel]));
            }
        }
    }
    groups
}

async fn subscribe(
    shared: &Shared,
    mut connection: ClusterConnection,
    tracker: &RefCell<DeliveryTracker>,
    ending: &Ending,
) -> Result<Broken, Broken> {
    if !shared.receives() {
        shared.set_connected();
        return Ok(future::pending().await);
    }
    shared.forget_reserved();
    subscribe_to_all(shared, &mut connection).await?;
    let changes = shared.take_interests(&mut tracker.borrow_mut());
    change(shared, &connection, tracker, ending, changes).await?;
    // All that was wanted by then is there. What has been wanted since may never end.
    shared.set_connected();
    loop {
        if !shared.take_reserved().is_empty() {
            subscribe_to_all(shared, &mut connection).await?;
        }
        let changes = shared.take_interests(&mut tracker.borrow_mut());
        if changes.is_empty() {
            shared.wanted.notified().await;
            continue;
        }
        change(shared, &connection, tracker, ending, changes).await?;
    }
}

/// Subscribes to broadcasts.
async fn subscribe_to_all(shared: &Shared, connection: &mut ClusterConnection) -> Result<(), Broken> {
    match denial(patiently(connection.ssubscribe(format!("{}{ALL}", shared.prefix))).await)? {
        Some(reason) => shared.deny_all(&reason),
        None => shared.forgive_reserved(),
    }
    Ok(())
}

/// Has the cluster know what is wanted, and what is not any more.
async fn change(
    shared: &Shared,
    connection: &ClusterConnection,
    tracker: &RefCell<DeliveryTracker>,
    ending: &Ending,
    changes: Vec<Change>,
) -> Result<(), Broken> {
    tracker.borrow_mut().end(ended(&changes));
    let (exact, wild): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(pattern, _)| pattern.is_exact());
    for (pattern, _) in wild {
        shared.deny(&mut tracker.borrow_mut(), &pattern, None);
    }
    // Each by itself, as those of one command must be of one slot; several at once.
    for chunk in exact.chunks(AT_ONCE) {
        for (pattern, _) in chunk.iter().filter(|(_, wanted)| *wanted) {
            tracker.borrow_mut().ask(pattern);
        }
        let answers = future::join_all(chunk.iter().map(|(pattern, wanted)| {
            let mut connection = connection.clone();
            let channel = format!("{}{pattern}", shared.prefix);
            if !wanted {
                *ending.borrow_mut().entry(channel.clone()).or_default() += 1;
            }
            patiently(async move {
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
            shared.done(pattern, *wanted);
        }
    }
    Ok(())
}

async fn read(
    shared: &Shared,
    mut pushes: UnboundedReceiver<PushInfo>,
    tracker: &RefCell<DeliveryTracker>,
    ending: &Ending,
) -> Broken {
    let mut breaths = StallClock::new();
    while let Some(push) = pushes.recv().await {
        match (push.kind, &push.data[..]) {
            (PushKind::SMessage, [Value::BulkString(channel), Value::BulkString(payload)]) => {
                let channel = String::from_utf8_lossy(channel);
                shared.arrive(&mut tracker.borrow_mut(), &channel, None, payload);
            }
            // Not subscribed to again on this connection: the library has taken what nobody asked for as the answer to
            // whatever was under way there, and answers may be those of others since.
            (PushKind::SUnsubscribe, [Value::BulkString(channel), ..])
                if is_taken_away(shared, &tracker.borrow(), ending, &String::from_utf8_lossy(channel)) =>
            {
                return Broken::Other("a node has ended a subscription, as its slot has moved".into());
            }
            (PushKind::Disconnection, _) => return Broken::Closed,
            _ => {}
        }
        breaths.take().await;
        if pushes.is_empty() {
            breaths = StallClock::new();
        }
    }
    Broken::Closed
}

/// Whether a subscription has ended that is wanted, and that we have not ended.
fn is_taken_away(shared: &Shared, tracker: &DeliveryTracker, ending: &Ending, channel: &str) -> bool {
    let mut ending = ending.borrow_mut();
    if let Some(count) = ending.get_mut(channel) {
        *count -= 1;
        if *count == 0 {
            ending.remove(channel);
        }
        return false;
    }
    let name = channel.strip_prefix(shared.prefix.as_str()).unwrap_or(channel);
    name == ALL || Pattern::new(name).is_ok_and(|pattern| tracker.has_asked(&pattern))
}
