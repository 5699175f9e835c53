//! NATS: topics are subjects, and wildcards have the same meaning.
//!
//! The client library fills one channel for each subscription. One turn of this thread takes everything out of all
//! channels, so the numbers of the publishers restore the order of arrival. To find out whether the server has received
//! our messages and subscriptions, the client publishes a request to a subject of its own. The server delivers it after
//! everything sent before, and after its errors about that. Therefore the client does not use the `no echo` option; its
//! other messages are recognized by their publisher.

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

/// The number of commands that the library may buffer before it has written them.
const CLIENT_CAPACITY: usize = 64;

/// The capacity of a subscription's channel, in messages. It is never reached, as the thread empties it after each turn
/// of the library.
const SUBSCRIPTION_CAPACITY: usize = 1 << 22;

/// The number of bytes that are taken out of the queue at once.
const BATCH_BYTES: usize = 256 * 1024;

/// The number of unconfirmed messages after which the client requests a confirmation.
const MAX_UNCONFIRMED: u64 = 64 * 1024;

/// The longest time after a message until the client requests a confirmation.
const CONFIRM: Duration = Duration::from_millis(500);

/// The number of events that the library buffers; it drops further ones.
const EVENT_CAPACITY: usize = 128;

/// The maximum number of servers that are tried: those of the URL, and those that the cluster announces.
const MAX_SERVERS: usize = 64;

/// The reason if the library gives none.
const CONNECTION_BROKE: &str = "the connection to the server broke";

type Answer = Result<(), ()>;

/// Connects again after each failure. A client of the library serves one connection only: when the library reconnects,
/// it reports neither why an attempt failed nor which subscriptions the server refused.
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
        if servers.len() < MAX_SERVERS && !servers.contains(&server) {
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
        confirmation_subject: format!("{}_wirespeed.confirm.{id}", shared.prefix),
        last_requested: Cell::new(0),
        last_confirmed: watch::Sender::new(0),
        denials,
        resubscribe: Notify::new(),
    };
    let subscribe = async {
        if shared.receives() {
            nats.subscribe().await;
        }
    };
    let all = std::pin::pin!(future::join4(nats.receive_confirmations(), nats.publish(), subscribe, nats.receive()));
    let broke = std::pin::pin!(shared.wait_disconnected());
    let hung = std::pin::pin!(nats.detect_hang());
    let ends = future::select(broke, hung);
    match future::select(all, ends).await {
        future::Either::Right((future::Either::Right(_), _)) => "the server does not answer",
        _ => CONNECTION_BROKE,
    }
}

fn servers(address: &Address) -> Vec<ServerAddr> {
    let scheme = if address.tls { "tls" } else { "nats" };
    let urls = address.servers.iter().map(|server| format!("{scheme}://{server}"));
    urls.filter_map(|url| url.parse().ok()).collect()
}

fn options(shared: &Arc<Shared>, servers: usize, denials: &Arc<Denials>, in_use: &Arc<AtomicBool>) -> ConnectOptions {
    let address = &shared.address;
    let (event_shared, denials, in_use) = (Arc::clone(shared), Arc::clone(denials), Arc::clone(in_use));
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
            let (event_shared, denials, in_use) =
                (Arc::clone(&event_shared), Arc::clone(&denials), Arc::clone(&in_use));
            async move {
                if !in_use.load(Ordering::Acquire) {
                    return;
                }
                if catch_unwind(AssertUnwindSafe(|| on_event(&event_shared, &denials, &event))).is_err() {
                    event_shared.defect.notify_one();
                }
            }
        })
        .name("wirespeed")
        // One attempt for each server; `serve` pauses and tries again.
        .max_reconnects(servers)
        .reconnect_delay_callback(|_| Duration::ZERO)
        .connection_timeout(address.timeout)
        // The library gives up after three unanswered pings. `Nats::detect_hang` is faster, and allows for pauses of this thread.
        .ping_interval(address.timeout)
        .client_capacity(CLIENT_CAPACITY)
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
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

fn on_event(shared: &Shared, denials: &Denials, event: &Event) {
    denials.count();
    match event {
        Event::Disconnected | Event::Closed => shared.set_disconnected(CONNECTION_BROKE),
        Event::ServerError(error) => {
            let denied = match error {
                ServerError::Other(error_text) => denials.record(error_text).map(|denied| (denied, error_text)),
                _ => None,
            };
            match denied {
                Some((Denied::Subscribing(subject), error_text)) => {
                    on_subscription_denied(shared, &subject, error_text)
                }
                Some((Denied::TooMany, _)) => {} // `subscribe_to` finds the denied subscriptions
                Some((Denied::Publishing, _)) | None => shared.set_reason(&error.to_string()),
            }
        }
        Event::ClientError(error) => shared.set_reason(&shared.address.reason(error)),
        Event::Connected | Event::LameDuckMode | Event::Draining | Event::SlowConsumer(_) => {}
    }
}

/// Handles the denial of a subscription.
fn on_subscription_denied(shared: &Shared, subject: &str, error_text: &str) {
    let name = subject.strip_prefix(shared.prefix.as_str()).unwrap_or(subject);
    match Pattern::new(name) {
        // The subscription object stays; `retry_reserved` retries it.
        Ok(pattern) if pattern.segments().any(|segment| segment == RESERVED) => {
            shared.deny_reserved(pattern, error_text)
        }
        _ => shared.subscriptions_changed.notify_one(),
    }
}

struct Nats<'a> {
    shared: &'a Shared,
    client: Client,
    subscriptions: &'a RefCell<Subscriptions>,
    tracker: &'a RefCell<DeliveryTracker>,
    /// The subject to which the client sends itself confirmation requests.
    confirmation_subject: String,
    /// The number of the last confirmation request. `last_confirmed` is the number of the last one that came back.
    last_requested: Cell<u64>,
    last_confirmed: watch::Sender<u64>,
    denials: &'a Denials,
    /// The client's own subject must be subscribed again.
    resubscribe: Notify,
}

impl Nats<'_> {
    /// Waits until the server has processed everything that was sent before.
    async fn confirm(&self) -> Answer {
        let number = self.last_requested.get() + 1;
        self.last_requested.set(number);
        let confirmed = async {
            let payload = Bytes::copy_from_slice(&number.to_be_bytes());
            if self.client.publish(self.confirmation_subject.clone(), payload).await.is_err() {
                return future::pending().await; // the client has ended: no answer will come
            }
            let mut confirmed = self.last_confirmed.subscribe();
            confirmed.wait_for(|confirmed| *confirmed >= number).await.map(drop).map_err(drop)?;
            // The library reports the server's errors in another task, which runs before this one continues.
            tokio::task::yield_now().await;
            Ok(())
        };
        self.with_timeout(confirmed).await
    }

    /// Waits for a reply until nothing has arrived for most of the timeout. While this thread waits for the engine,
    /// nothing reads from the socket, so that time does not count.
    async fn with_timeout(&self, answer: impl Future<Output = Answer>) -> Answer {
        let mut answer = std::pin::pin!(answer);
        let signs = || (stalled(), self.subscriptions.borrow().received_count);
        loop {
            let before = signs();
            match tokio::time::timeout(self.shared.address.timeout * 4 / 5, &mut answer).await {
                Ok(answer) => return answer,
                Err(_) if signs() != before => {}
                Err(_) => return Err(()),
            }
        }
    }

    /// Returns when the server hangs: it has answered before, and does not answer now. The library's own pings take
    /// longer, and do not allow for pauses of this thread.
    async fn detect_hang(&self) {
        loop {
            tokio::time::sleep(self.shared.address.timeout / 5).await;
            let has_answered = *self.last_confirmed.borrow() > 0;
            let has_ended = self.client.connection_state() != ConnectionState::Connected;
            if self.confirm().await.is_err() && (has_answered || has_ended) {
                return;
            }
        }
    }

    async fn receive_confirmations(&self) {
        loop {
            let mut subscriber = match self.client.subscribe(self.confirmation_subject.clone()).await {
                Ok(subscriber) => subscriber,
                Err(error) => {
                    self.shared.set_reason(&error.to_string());
                    tokio::time::sleep(CONFIRM).await;
                    continue;
                }
            };
            let read_confirmations = async {
                while let Some(message) = subscriber.next().await {
                    if let Ok(number) = <[u8; 8]>::try_from(&message.payload[..]) {
                        let number = u64::from_be_bytes(number);
                        self.last_confirmed
                            .send_if_modified(|last| number > std::mem::replace(last, number.max(*last)));
                    }
                }
            };
            future::select(std::pin::pin!(read_confirmations), std::pin::pin!(self.resubscribe.notified())).await;
            let _ = subscriber.unsubscribe().await; // fails only if the client has ended
        }
    }

    /// Returns the largest batch, in bytes: at most the payload limit of the server, if known.
    fn max_batch(&self) -> usize {
        match self.client.server_info().max_payload {
            0 => batch::MAX_BATCH_BYTES,
            limit => limit.min(batch::MAX_BATCH_BYTES),
        }
    }

    /// Sends messages until it is dropped; unconfirmed messages are counted as such then.
    async fn publish(&self) {
        let shared = self.shared;
        let mut sent = shared.in_flight();
        let mut denied = self.denials.publishing();
        loop {
            let items = sent.take(BATCH_BYTES);
            let idle = items.is_empty();
            for batch in batch::pack(items, self.max_batch()) {
                if let Err(error) = self.client.publish(shared.name(&batch.to), batch.bytes).await
                    && error.kind() != PublishErrorKind::Send
                {
                    sent.refuse(batch.count);
                }
            }
            let waited = shared.take_flush_request();
            if sent.count() > 0 && (waited || sent.count() >= MAX_UNCONFIRMED) {
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

    /// Settles all sent messages after a confirmation. If the server denied any meanwhile, all are unconfirmed, as it
    /// does not name the denied ones. `denied`: the number of denials before.
    fn settle(&self, sent: &mut InFlight<'_>, denied: &mut u64) {
        let before = std::mem::replace(denied, self.denials.publishing());
        match before == *denied {
            true => sent.settle(sent.count()),
            false => sent.mark_unconfirmed(sent.count()),
        }
    }

    async fn subscribe(&self) {
        let shared = self.shared;
        self.subscribe_to_broadcasts().await;
        loop {
            self.retry_reserved().await;
            self.take_denials().await;
            let changes = shared.take_changes(&mut self.tracker.borrow_mut());
            if changes.is_empty() {
                shared.subscriptions_changed.notified().await;
                continue;
            }
            self.tracker.borrow_mut().end(ended(&changes));
            for pattern in ended(&changes) {
                self.remove(Some(pattern)).await;
            }
            let wanted: Vec<&Pattern> =
                changes.iter().filter(|(_, wanted)| *wanted).map(|(pattern, _)| pattern).collect();
            let denied = self.subscribe_to(&wanted).await;
            for (pattern, wanted) in changes.iter().filter(|(pattern, _)| !denied.contains(pattern)) {
                if *wanted {
                    self.tracker.borrow_mut().confirm(pattern);
                }
                shared.mark_applied(pattern, *wanted);
            }
        }
    }

    /// Subscribes again to denied internal subjects.
    async fn retry_reserved(&self) {
        let reserved = self.shared.take_reserved();
        if reserved.is_empty() {
            return;
        }
        for pattern in reserved {
            if pattern.as_str() != ALL {
                self.resubscribe.notify_one();
                continue;
            }
            self.remove(None).await;
            self.subscribe_to_broadcasts().await;
        }
        tokio::task::yield_now().await; // `receive_confirmations` subscribes before the confirmation request is sent
        if self.confirm().await.is_ok() {
            self.shared.clear_allowed_reserved();
        }
    }

    /// Subscribes to broadcasts.
    async fn subscribe_to_broadcasts(&self) {
        let too_many = self.denials.too_many();
        while !self.add(None).await {}
        if self.confirm().await.is_ok() && self.denials.too_many() > too_many {
            self.shared.deny_broadcasts(TOO_MANY);
        }
    }

    /// Subscribes to these patterns, and waits until the server has processed this and earlier changes. Returns the
    /// denied ones.
    async fn subscribe_to(&self, wanted: &[&Pattern]) -> HashSet<Pattern> {
        let mut denied = HashSet::new();
        let mut left = vec![wanted];
        while let Some(some) = left.pop() {
            let (events, too_many) = (self.denials.events(), self.denials.too_many());
            for pattern in some.iter().filter(|pattern| !denied.contains(**pattern)) {
                self.remove(Some(pattern)).await;
                self.tracker.borrow_mut().request(pattern);
                while !self.add(Some(pattern)).await {}
            }
            while self.confirm().await.is_err() {}
            denied.extend(self.take_denials().await);
            if self.denials.too_many() > too_many {
                // The server accepted the first ones and does not name the denied ones: bisect.
                let middle = some.len() / 2;
                if middle > 0 {
                    for pattern in some {
                        self.remove(Some(pattern)).await;
                    }
                    left.extend(some.split_at_checked(middle).map(|(some, more)| [more, some]).into_iter().flatten());
                    continue;
                }
                // The limit is reached: this pattern and all remaining ones are denied.
                for pattern in some.iter().chain(left.drain(..).flatten()) {
                    if denied.insert((*pattern).clone()) {
                        self.remove(Some(pattern)).await;
                        self.shared.deny(&mut self.tracker.borrow_mut(), pattern, Some(TOO_MANY));
                    }
                }
                continue;
            }
            // The library may have dropped events about denials, so the patterns are requested again in smaller groups.
            if self.denials.events() - events >= EVENT_CAPACITY as u64 && some.len() > EVENT_CAPACITY / 2 {
                left.extend(some.chunks(EVENT_CAPACITY / 2));
            }
        }
        denied
    }

    /// Ends the subscriptions that the server has denied, and returns their patterns.
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

    /// Ends a subscription. Returns whether it existed.
    async fn remove(&self, pattern: Option<&Pattern>) -> bool {
        let subscriber = self.subscriptions.borrow_mut().remove(pattern);
        let Some(mut subscriber) = subscriber else { return false };
        let _ = subscriber.unsubscribe().await; // fails only if the client has ended
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
        let mut received = Vec::new();
        loop {
            let taken =
                future::poll_fn(|cx| self.subscriptions.borrow_mut().poll_take(&self.shared.id, cx, &mut received));
            // Not interrupted by tokio's task budget: messages left in one channel may be older than those taken out of
            // another.
            tokio::task::unconstrained(taken).await;
            if self.subscriptions.borrow().len() > 1 {
                received.sort_by_key(|message: &subscriptions::Received| DeliveryTracker::sort_key(&message.bytes));
            }
            let mut tracker = self.tracker.borrow_mut();
            for message in received.drain(..) {
                self.shared.arrive(
                    &mut tracker,
                    message.name.as_str(),
                    message.via.as_deref().map(std::slice::from_ref),
                    &message.bytes,
                );
            }
        }
    }
}
