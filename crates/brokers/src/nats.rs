//! NATS: topics are subjects, wildcards the same.
//!
//! The library has a channel for each subscription, and reads into them whatever comes. What is taken out of all of
//! them at once, in one turn of this thread, is all that had come before; so the numbers of its publishers put it into
//! the order in which it came. Whether the server has what was sent, and knows a subscription, is seen by a message to
//! ourselves, which comes after everything before it, and after what the server says of it that it does not let us do.
//! So the server is not told to keep from us what is ours: what else comes of it is known by its publisher.

mod credentials;
mod denials;
mod subscriptions;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::connection::State as ConnectionState;
use async_nats::{AuthError, Client, ConnectOptions, Event, PublishErrorKind, ServerAddr, ServerError};
use bytes::Bytes;
use futures_util::{StreamExt, future};
use tokio::sync::{Notify, watch};
use wirespeed_engine::broker::RESERVED;
use wirespeed_engine::topics::Pattern;

use self::denials::{Denials, Denied, TOO_MANY};
use self::subscriptions::Subscriptions;
use crate::address::Address;
use crate::backoff;
use crate::batch;
use crate::client::{InFlight, Shared, ended};
use crate::stall_clock::stalled;
use crate::tracker::{ALL, DeliveryTracker};

/// Messages that the library may have been given and not yet written.
const UNDER_WAY: usize = 64;

/// Messages that wait in a subscription: never so many, as the thread takes them all after each turn of the library.
const WAITING: usize = 1 << 22;

/// Bytes that are taken out of the queue at once.
const BATCH: usize = 256 * 1024;

/// Messages whose arrival at the server is not known: then it is asked.
const UNCONFIRMED: u64 = 64 * 1024;

/// How long after a message at the latest the server is asked whether it has it.
const CONFIRM: Duration = Duration::from_millis(500);

/// What the library says and keeps for us, if it comes at once: of what is more we do not hear.
const EVENTS: usize = 128;

/// The most servers that are tried: those of the URL, and those that the cluster announces.
const DISCOVERED: usize = 64;

/// The reason when the library gives none.
const BROKE: &str = "the connection to the server broke";

type Answer = Result<(), ()>;

/// Connects again after each failure. A client of the library serves one connection only: when the library reconnects, it
/// reports neither why an attempt failed nor which subscriptions the server refused.
pub(crate) async fn serve(shared: &Arc<Shared>) {
    let tracker = RefCell::new(shared.tracker());
    let mut attempt = 0;
    let mut servers = servers(&shared.address);
    loop {
        let denials = Arc::new(Denials::default());
        let in_use = InUse(Arc::new(AtomicBool::new(true)));
        match options(shared, servers.len(), &denials, &in_use.0).connect(servers.clone()).await {
            Err(error) => shared.set_disconnected(&shared.address.reason(&error)),
            Ok(client) => {
                attempt = 0;
                shared.forget_reserved();
                shared.set_connected();
                let reason = serve_connection(shared, &tracker, client.clone(), &denials).await;
                discover(&client, &mut servers);
                shared.set_disconnected(reason);
                shared.lose_subscriptions(&mut tracker.borrow_mut());
            }
        }
        drop(in_use);
        tokio::time::sleep(backoff::delay(attempt)).await;
        attempt += 1;
    }
}

/// Adds the servers that the cluster announces.
fn discover(client: &Client, servers: &mut Vec<ServerAddr>) {
    for server in client.server_info().connect_urls.iter().filter_map(|url| url.parse().ok()) {
        if servers.len() < DISCOVERED && !servers.contains(&server) {
            servers.push(server);
        }
    }
}

/// Whether a client is still in use: events of an old client must not change the state of the new connection.
struct InUse(Arc<AtomicBool>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Serves until the connection ends; returns the reason.
async fn serve_connection(
    shared: &Shared,
    tracker: &RefCell<DeliveryTracker>,
    client: Client,
    denials: &Denials,
) -> &'static str {
    let subscriptions = RefCell::new(Subscriptions::default());
    let id: String = shared.id.iter().map(|byte| format!("{byte:02x}")).collect();
    let nats = Nats {
        shared,
        client,
        subscriptions: &subscriptions,
        tracker,
        ourselves: format!("{}_wirespeed.confirm.{id}", shared.prefix),
        asked: Cell::new(0),
        answered: watch::Sender::new(0),
        denials,
        again: Notify::new(),
    };
    let subscribe = async {
        if shared.receives() {
            nats.subscribe().await;
        }
    };
    let all = std::pin::pin!(future::join4(nats.hear_ourselves(), nats.publish(), subscribe, nats.receive()));
    let broke = std::pin::pin!(shared.wait_disconnected());
    let hangs = std::pin::pin!(nats.hang());
    let ends = future::select(broke, hangs);
    match future::select(all, ends).await {
        future::Either::Right((future::Either::Right(_), _)) => "the server does not answer",
        _ => BROKE,
    }
}

fn servers(address: &Address) -> Vec<ServerAddr> {
    let scheme = if address.tls { "tls" } else { "nats" };
    let urls = address.servers.iter().map(|server| format!("{scheme}://{server}"));
    urls.filter_map(|url| url.parse().ok()).collect()
}

fn options(shared: &Arc<Shared>, servers: usize, denials: &Arc<Denials>, in_use: &Arc<AtomicBool>) -> ConnectOptions {
    let address = &shared.address;
    let (told, denials, in_use) = (Arc::clone(shared), Arc::clone(denials), Arc::clone(in_use));
    let mut options = match &address.credentials {
        None => ConnectOptions::new(),
        Some(credentials) => {
            let credentials = credentials.clone();
            ConnectOptions::with_auth_callback(move |challenge| {
                future::ready(credentials::answer(&credentials, &challenge).map_err(AuthError::new))
            })
        }
    };
    options = options
        .event_callback(move |event| {
            let (told, denials, in_use) = (Arc::clone(&told), Arc::clone(&denials), Arc::clone(&in_use));
            async move {
                if !in_use.load(Ordering::Acquire) {
                    return;
                }
                if catch_unwind(AssertUnwindSafe(|| hear(&told, &denials, &event))).is_err() {
                    told.defect.notify_one();
                }
            }
        })
        .name("wirespeed")
        // One attempt for each server; `serve` pauses and tries again.
        .max_reconnects(servers)
        .reconnect_delay_callback(|_| Duration::ZERO)
        .connection_timeout(address.timeout)
        // The library gives up after three unanswered pings. `Nats::hang` is faster, and allows for pauses of this thread.
        .ping_interval(address.timeout)
        .client_capacity(UNDER_WAY)
        .subscription_capacity(WAITING)
        .read_buffer_capacity(u16::MAX)
        .require_tls(address.tls);
    // A user without a password is a token.
    options = match (&address.user, &address.password) {
        (Some(user), Some(password)) => options.user_and_password(user.clone(), password.clone()),
        (Some(token), None) | (None, Some(token)) => options.token(token.clone()),
        (None, None) => options,
    };
    if let Some(ca) = &address.ca {
        options = options.add_root_certificates(ca.clone());
    }
    if let Some((certificate, key)) = &address.certificate {
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    options
}

fn hear(shared: &Shared, denials: &Denials, event: &Event) {
    denials.count();
    match event {
        Event::Disconnected | Event::Closed => shared.set_disconnected(BROKE),
        Event::ServerError(error) => {
            let denied = match error {
                ServerError::Other(said) => denials.hear(said).map(|denied| (denied, said)),
                _ => None,
            };
            match denied {
                Some((Denied::Subscribing(subject), said)) => hear_denied(shared, &subject, said),
                Some((Denied::TooMany, _)) => {} // `begin` finds which
                Some((Denied::Publishing, _)) | None => shared.set_reason(&error.to_string()),
            }
        }
        Event::ClientError(error) => shared.set_reason(&shared.address.reason(error)),
        Event::Connected | Event::LameDuckMode | Event::Draining | Event::SlowConsumer(_) => {}
    }
}

/// A subscription is denied.
fn hear_denied(shared: &Shared, subject: &str, said: &str) {
    let name = subject.strip_prefix(shared.prefix.as_str()).unwrap_or(subject);
    match Pattern::new(name) {
        // The subscription stays: `ask_reserved_again` asks once more.
        Ok(pattern) if pattern.segments().any(|segment| segment == RESERVED) => shared.deny_reserved(pattern, said),
        _ => shared.wanted.notify_one(),
    }
}

struct Nats<'a> {
    shared: &'a Shared,
    client: Client,
    subscriptions: &'a RefCell<Subscriptions>,
    tracker: &'a RefCell<DeliveryTracker>,
    /// The subject that is ours alone.
    ourselves: String,
    /// Messages to ourselves: the last that left, and the last that came.
    asked: Cell<u64>,
    answered: watch::Sender<u64>,
    denials: &'a Denials,
    /// Our own subject is to be subscribed to again.
    again: Notify,
}

impl Nats<'_> {
    /// Whether the server has everything that was sent to it before.
    async fn confirm(&self) -> Answer {
        let number = self.asked.get() + 1;
        self.asked.set(number);
        let answered = async {
            let payload = Bytes::copy_from_slice(&number.to_be_bytes());
            if self.client.publish(self.ourselves.clone(), payload).await.is_err() {
                return future::pending().await; // the client has ended: no answer will come
            }
            let mut answered = self.answered.subscribe();
            answered.wait_for(|answered| *answered >= number).await.map(drop).map_err(drop)?;
            // What the server has said before is told by a task that has its turn before this one goes on.
            tokio::task::yield_now().await;
            Ok(())
        };
        self.patiently(answered).await
    }

    /// Waits for an answer until nothing has arrived for most of the timeout. While this thread waits for the engine, nothing
    /// reads from the socket, so that time does not count.
    async fn patiently(&self, answered: impl Future<Output = Answer>) -> Answer {
        let mut answered = std::pin::pin!(answered);
        let signs = || (stalled(), self.subscriptions.borrow().heard);
        loop {
            let before = signs();
            match tokio::time::timeout(self.shared.address.timeout * 4 / 5, &mut answered).await {
                Ok(answer) => return answer,
                Err(_) if signs() != before => {}
                Err(_) => return Err(()),
            }
        }
    }

    /// Returns when the server hangs: it has answered before, and does not answer now. The library's own pings take longer,
    /// and do not allow for pauses of this thread.
    async fn hang(&self) {
        loop {
            tokio::time::sleep(self.shared.address.timeout / 5).await;
            let has_answered = *self.answered.borrow() > 0;
            let has_ended = self.client.connection_state() != ConnectionState::Connected;
            if self.confirm().await.is_err() && (has_answered || has_ended) {
                return;
            }
        }
    }

    async fn hear_ourselves(&self) {
        loop {
            let mut subscriber = match self.client.subscribe(self.ourselves.clone()).await {
                Ok(subscriber) => subscriber,
                Err(error) => {
                    self.shared.set_reason(&error.to_string());
                    tokio::time::sleep(CONFIRM).await;
                    continue;
                }
            };
            let hear = async {
                while let Some(message) = subscriber.next().await {
                    if let Ok(number) = <[u8; 8]>::try_from(&message.payload[..]) {
                        let number = u64::from_be_bytes(number);
                        self.answered.send_if_modified(|last| number > std::mem::replace(last, number.max(*last)));
                    }
                }
            };
            future::select(std::pin::pin!(hear), std::pin::pin!(self.again.notified())).await;
            let _ = subscriber.unsubscribe().await; // it fails only if the client has ended
        }
    }

    /// Bytes of several messages together: what the server takes of one, if it has said so.
    fn most(&self) -> usize {
        match self.client.server_info().max_payload {
            0 => batch::MOST,
            most => most.min(batch::MOST),
        }
    }

    /// Sends until it is dropped; messages that the server has not confirmed by then are in doubt.
    async fn publish(&self) {
        let shared = self.shared;
        let mut sent = shared.in_flight();
        let mut denied = self.denials.publishing();
        loop {
            let items = sent.take(BATCH);
            let idle = items.is_empty();
            for parcel in batch::pack(items, self.most()) {
                if let Err(error) = self.client.publish(shared.name(&parcel.to), parcel.bytes).await
                    && error.kind() != PublishErrorKind::Send
                {
                    sent.refuse(parcel.count);
                }
            }
            let waited = shared.takes_flush();
            if sent.count() > 0 && (waited || sent.count() >= UNCONFIRMED) {
                if self.confirm().await.is_ok() {
                    self.settle(&mut sent, &mut denied);
                }
                continue;
            }
            if !idle {
                continue;
            }
            let notified = std::pin::pin!(shared.outgoing.notified());
            if sent.count() == 0 {
                notified.await;
                continue;
            }
            let pause = std::pin::pin!(tokio::time::sleep(CONFIRM));
            if let future::Either::Right(_) = future::select(notified, pause).await
                && self.confirm().await.is_ok()
            {
                self.settle(&mut sent, &mut denied);
            }
        }
    }

    /// The server has all of that, unless it has said meanwhile that it did not take something; of what, it does not say for each.
    /// `denied`: how often it had before.
    fn settle(&self, sent: &mut InFlight<'_>, denied: &mut u64) {
        let before = std::mem::replace(denied, self.denials.publishing());
        match before == *denied {
            true => sent.settle(sent.count()),
            false => sent.mark_unconfirmed(sent.count()),
        }
    }

    async fn subscribe(&self) {
        let shared = self.shared;
        self.begin_all().await;
        loop {
            self.ask_reserved_again().await;
            self.take_denials().await;
            let changes = shared.take_interests(&mut self.tracker.borrow_mut());
            if changes.is_empty() {
                shared.wanted.notified().await;
                continue;
            }
            self.tracker.borrow_mut().end(ended(&changes));
            for pattern in ended(&changes) {
                self.remove(Some(pattern)).await;
            }
            let wanted: Vec<&Pattern> =
                changes.iter().filter(|(_, wanted)| *wanted).map(|(pattern, _)| pattern).collect();
            let denied = self.begin(&wanted).await;
            for (pattern, wanted) in changes.iter().filter(|(pattern, _)| !denied.contains(pattern)) {
                if *wanted {
                    self.tracker.borrow_mut().confirm(pattern);
                }
                shared.done(pattern, *wanted);
            }
        }
    }

    /// Subscribes again to denied subjects that brokers need themselves.
    async fn ask_reserved_again(&self) {
        let reserved = self.shared.take_reserved();
        if reserved.is_empty() {
            return;
        }
        for pattern in reserved {
            if pattern.as_str() != ALL {
                self.again.notify_one();
                continue;
            }
            self.remove(None).await;
            self.begin_all().await;
        }
        tokio::task::yield_now().await; // `hear_ourselves` subscribes before the question is sent
        if self.confirm().await.is_ok() {
            self.shared.forgive_reserved();
        }
    }

    /// Subscribes to broadcasts.
    async fn begin_all(&self) {
        let too_many = self.denials.too_many();
        while !self.add(None).await {}
        if self.confirm().await.is_ok() && self.denials.too_many() > too_many {
            self.shared.deny_all(TOO_MANY);
        }
    }

    /// Subscribes to these, and waits until the server knows that, and what has ended before; which of them it denies.
    async fn begin(&self, wanted: &[&Pattern]) -> HashSet<Pattern> {
        let mut denied = HashSet::new();
        let mut left = vec![wanted];
        while let Some(some) = left.pop() {
            let (heard, too_many) = (self.denials.heard(), self.denials.too_many());
            for pattern in some.iter().filter(|pattern| !denied.contains(**pattern)) {
                self.remove(Some(pattern)).await;
                self.tracker.borrow_mut().ask(pattern);
                while !self.add(Some(pattern)).await {}
            }
            while self.confirm().await.is_err() {}
            denied.extend(self.take_denials().await);
            if self.denials.too_many() > too_many {
                // The server took the first ones and does not name the others: bisect.
                let middle = some.len() / 2;
                if middle > 0 {
                    for pattern in some {
                        self.remove(Some(pattern)).await;
                    }
                    left.extend(some.split_at_checked(middle).map(|(some, more)| [more, some]).into_iter().flatten());
                    continue;
                }
                // The limit is reached: this one and all that follow are denied.
                for pattern in some.iter().chain(left.drain(..).flatten()) {
                    if denied.insert((*pattern).clone()) {
                        self.remove(Some(pattern)).await;
                        self.shared.deny(&mut self.tracker.borrow_mut(), pattern, Some(TOO_MANY));
                    }
                }
                continue;
            }
            // If there may have been more denials than we have heard of, they are asked for again, some at a time.
            if self.denials.heard() - heard >= EVENTS as u64 && some.len() > EVENTS / 2 {
                left.extend(some.chunks(EVENTS / 2));
            }
        }
        denied
    }

    /// Ends the subscriptions that the server has denied; which those are.
    async fn take_denials(&self) -> Vec<Pattern> {
        let mut denied = Vec::new();
        for (subject, reason) in self.denials.take() {
            let name = subject.strip_prefix(self.shared.prefix.as_str());
            let Some(Ok(pattern)) = name.map(Pattern::new) else { continue };
            if self.remove(Some(&pattern)).await {
                self.shared.deny(&mut self.tracker.borrow_mut(), &pattern, Some(&reason));
                denied.push(pattern);
            }
        }
        denied
    }

    /// Ends a subscription, if there is one.
    async fn remove(&self, pattern: Option<&Pattern>) -> bool {
        let subscriber = self.subscriptions.borrow_mut().remove(pattern);
        let Some(mut subscriber) = subscriber else { return false };
        let _ = subscriber.unsubscribe().await; // it fails only if the client has ended
        true
    }

    async fn add(&self, pattern: Option<&Pattern>) -> bool {
        let name = pattern.map_or(ALL, Pattern::as_str);
        match self.client.subscribe(format!("{}{name}", self.shared.prefix)).await {
            Ok(subscriber) => {
                self.subscriptions.borrow_mut().add(pattern, subscriber);
                true
            }
            Err(error) => {
                self.shared.set_reason(&error.to_string());
                tokio::time::sleep(CONFIRM).await;
                false
            }
        }
    }

    async fn receive(&self) {
        let mut came = Vec::new();
        loop {
            let taken = future::poll_fn(|cx| self.subscriptions.borrow_mut().poll_take(&self.shared.id, cx, &mut came));
            // Not interrupted: what is left in one channel may be older than what was taken out of another.
            tokio::task::unconstrained(taken).await;
            if self.subscriptions.borrow().len() > 1 {
                came.sort_by_key(|came| DeliveryTracker::order(&came.bytes));
            }
            let mut tracker = self.tracker.borrow_mut();
            for came in came.drain(..) {
                self.shared.arrive(
                    &mut tracker,
                    came.name.as_str(),
                    came.via.as_deref().map(std::slice::from_ref),
                    &came.bytes,
                );
            }
        }
    }
}
