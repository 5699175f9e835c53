//! NATS: topics are subjects, wildcards the same.
//!
//! The library has a channel for each subscription, and reads into them whatever comes. What is taken out of all of
//! them at once, in one turn of this thread, is all that had come before; so the numbers of its publishers put it into
//! the order in which it came. Whether the server has what was sent, and knows a subscription, is seen by a message to
//! ourselves, which comes after everything before it, and after what the server says of it that it does not let us do.
//! So the server is not told to keep from us what is ours: what else comes of it is known by its publisher.

mod denials;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event, PublishErrorKind, ServerAddr, ServerError, Subscriber};
use bytes::Bytes;
use futures_util::task::AtomicWaker;
use futures_util::{StreamExt, future};
use tokio::sync::watch;
use wirespeed_engine::broker::RESERVED;
use wirespeed_engine::topics::Pattern;

use self::denials::Denials;
use crate::account::{ALL, Account};
use crate::address::Address;
use crate::backoff;
use crate::envelope::NodeId;
use crate::node::{Shared, UnderWay, ended};
use crate::parcel;

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

/// How long a server may say nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// One that does not answer pings is given up after three of them.
const PING: Duration = Duration::from_secs(5);

type Answer = Result<(), ()>;

/// What came: by which subscription, under which name.
struct Came {
    via: Option<Arc<Pattern>>,
    name: async_nats::Subject,
    bytes: Bytes,
}

/// Subscriptions in whose channels is something.
#[derive(Default)]
struct Ready {
    numbers: Mutex<Vec<u64>>,
    waker: AtomicWaker,
}

/// Tells that there is something in one.
struct Bell {
    number: u64,
    /// It is in the list.
    rung: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.ready.numbers.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
            self.ready.waker.wake();
        }
    }
}

struct Subscription {
    subscriber: Subscriber,
    via: Option<Arc<Pattern>>,
    bell: Arc<Bell>,
    waker: Waker,
}

/// All subscriptions.
#[derive(Default)]
struct Subscriptions {
    by_number: HashMap<u64, Subscription>,
    numbers: HashMap<Pattern, u64>,
    last: u64,
    ready: Arc<Ready>,
}

impl Subscriptions {
    fn add(&mut self, pattern: Option<&Pattern>, subscriber: Subscriber) {
        self.last += 1;
        let ready = Arc::clone(&self.ready);
        let bell = Arc::new(Bell { number: self.last, rung: AtomicBool::new(false), ready });
        let waker = Waker::from(Arc::clone(&bell));
        let via = pattern.cloned().map(Arc::new);
        waker.wake_by_ref(); // to be looked at once
        self.by_number.insert(self.last, Subscription { subscriber, via, bell, waker });
        if let Some(pattern) = pattern {
            self.numbers.insert(pattern.clone(), self.last);
        }
    }

    fn remove(&mut self, pattern: &Pattern) -> Option<Subscriber> {
        let number = self.numbers.remove(pattern)?;
        self.by_number.remove(&number).map(|subscription| subscription.subscriber)
    }

    /// Takes out everything that came. Not in parts: see the module.
    fn poll_take(&mut self, own: &NodeId, cx: &mut Context<'_>, came: &mut Vec<Came>) -> Poll<()> {
        self.ready.waker.register(cx.waker());
        let ready = std::mem::take(&mut *self.ready.numbers.lock().unwrap_or_else(PoisonError::into_inner));
        for number in ready {
            let Some(subscription) = self.by_number.get_mut(&number) else { continue };
            subscription.bell.rung.store(false, Ordering::Release);
            let mut cx = Context::from_waker(&subscription.waker);
            while let Poll::Ready(Some(message)) = subscription.subscriber.poll_next_unpin(&mut cx) {
                if Account::is_from(&message.payload, own) {
                    continue;
                }
                let via = subscription.via.clone();
                came.push(Came { via, name: message.subject, bytes: message.payload });
            }
        }
        if came.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }
}

pub(crate) async fn serve(shared: &Arc<Shared>) {
    let denials = Arc::new(Denials::default());
    let Some(client) = connect(shared, &denials).await else { return future::pending().await };
    let subscriptions = RefCell::new(Subscriptions::default());
    let account = RefCell::new(shared.account());
    let id: String = shared.id.iter().map(|byte| format!("{byte:02x}")).collect();
    let nats = Nats {
        shared,
        client,
        subscriptions: &subscriptions,
        account: &account,
        ourselves: format!("{}_wirespeed.confirm.{id}", shared.prefix),
        asked: Cell::new(0),
        answered: watch::Sender::new(0),
        denials: &denials,
    };
    let subscribe = async {
        if shared.receives() {
            nats.subscribe().await;
        }
    };
    future::join4(nats.hear_ourselves(), nats.publish(), subscribe, nats.receive()).await;
}

async fn connect(shared: &Arc<Shared>, denials: &Arc<Denials>) -> Option<Client> {
    let address = &shared.address;
    let mut attempt = 0;
    loop {
        let (told, denials) = (Arc::clone(shared), Arc::clone(denials));
        let options = options(address).event_callback(move |event| {
            let (told, denials) = (Arc::clone(&told), Arc::clone(&denials));
            async move {
                if catch_unwind(AssertUnwindSafe(|| hear(&told, &denials, &event))).is_err() {
                    told.defect.notify_one();
                }
            }
        });
        match options.connect(servers(address)).await {
            Ok(client) => return Some(client),
            // What the servers say is tried again by the library; this is of certificates, and the like.
            Err(error) => shared.set_disconnected(&address.reason(&error)),
        }
        tokio::time::sleep(backoff::delay(attempt)).await;
        attempt += 1;
    }
}

fn servers(address: &Address) -> Vec<ServerAddr> {
    let scheme = if address.tls { "tls" } else { "nats" };
    let urls = address.servers.iter().map(|server| format!("{scheme}://{server}"));
    urls.filter_map(|url| url.parse().ok()).collect()
}

fn options(address: &Address) -> ConnectOptions {
    let mut options = ConnectOptions::new()
        .name("wirespeed")
        .retry_on_initial_connect()
        .max_reconnects(None)
        .reconnect_delay_callback(|attempt| backoff::delay(u32::try_from(attempt).unwrap_or(u32::MAX)))
        .connection_timeout(PATIENCE)
        .ping_interval(PING)
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
        Event::Connected => {
            denials.take(); // of what the library subscribes to again the server says so again
            shared.set_connected();
            shared.ask_denied_again();
        }
        Event::Disconnected => shared.set_disconnected("the connection to the server broke"),
        Event::Closed => shared.set_disconnected("the client has ended"),
        Event::ServerError(error) => {
            shared.set_reason(&error.to_string());
            if let ServerError::Other(said) = error
                && let Some(subject) = denials.hear(said)
            {
                hear_denied(shared, &subject, said);
            }
        }
        Event::ClientError(error) => shared.set_reason(&shared.address.reason(error)),
        Event::LameDuckMode | Event::Draining | Event::SlowConsumer(_) => {}
    }
}

/// A subscription is denied.
fn hear_denied(shared: &Shared, subject: &str, said: &str) {
    let name = subject.strip_prefix(shared.prefix.as_str()).unwrap_or(subject);
    match Pattern::new(name) {
        // It stays: the library asks for it again by another connection.
        Ok(pattern) if pattern.segments().any(|segment| segment == RESERVED) => shared.tell_denied(&pattern, said),
        _ => shared.wanted.notify_one(),
    }
}

struct Nats<'a> {
    shared: &'a Shared,
    client: Client,
    subscriptions: &'a RefCell<Subscriptions>,
    account: &'a RefCell<Account>,
    /// The subject that is ours alone.
    ourselves: String,
    /// Messages to ourselves: the last that left, and the last that came.
    asked: Cell<u64>,
    answered: watch::Sender<u64>,
    denials: &'a Denials,
}

impl Nats<'_> {
    /// Whether the server has everything that was sent to it before.
    async fn confirm(&self) -> Answer {
        let number = self.asked.get() + 1;
        self.asked.set(number);
        let answered = async {
            let payload = Bytes::copy_from_slice(&number.to_be_bytes());
            self.client.publish(self.ourselves.clone(), payload).await.map_err(drop)?;
            let mut answered = self.answered.subscribe();
            answered.wait_for(|answered| *answered >= number).await.map(drop).map_err(drop)?;
            // What the server has said before is told by a task that has its turn before this one goes on.
            tokio::task::yield_now().await;
            Ok(())
        };
        let broke = std::pin::pin!(self.shared.wait_disconnected());
        match future::select(std::pin::pin!(tokio::time::timeout(PATIENCE, answered)), broke).await {
            future::Either::Left((Ok(answer), _)) => answer,
            _ => Err(()),
        }
    }

    async fn hear_ourselves(&self) {
        let mut subscriber = loop {
            match self.client.subscribe(self.ourselves.clone()).await {
                Ok(subscriber) => break subscriber,
                Err(error) => self.shared.set_reason(&error.to_string()),
            }
            tokio::time::sleep(CONFIRM).await;
        };
        while let Some(message) = subscriber.next().await {
            if let Ok(number) = <[u8; 8]>::try_from(&message.payload[..]) {
                let number = u64::from_be_bytes(number);
                self.answered.send_if_modified(|last| number > std::mem::replace(last, number.max(*last)));
            }
        }
    }

    async fn publish(&self) {
        let shared = self.shared;
        loop {
            shared.wait_connected().await;
            // What the server has not said by then that it has is in doubt.
            let send = std::pin::pin!(self.send());
            let broke = std::pin::pin!(shared.wait_disconnected());
            future::select(send, broke).await;
        }
    }

    /// Bytes of several messages together: what the server takes of one, if it has said so.
    fn most(&self) -> usize {
        match self.client.server_info().max_payload {
            0 => parcel::MOST,
            most => most.min(parcel::MOST),
        }
    }

    /// Sends until it is dropped.
    async fn send(&self) {
        let shared = self.shared;
        let mut sent = shared.under_way();
        let mut denied = self.denials.publishing();
        loop {
            let items = sent.take(BATCH);
            let idle = items.is_empty();
            for parcel in parcel::pack(items, self.most()) {
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
    fn settle(&self, sent: &mut UnderWay<'_>, denied: &mut u64) {
        let before = std::mem::replace(denied, self.denials.publishing());
        match before == *denied {
            true => sent.settle(sent.count()),
            false => sent.doubt(sent.count()),
        }
    }

    async fn subscribe(&self) {
        let shared = self.shared;
        shared.wait_connected().await;
        while !self.add(None).await {}
        loop {
            self.take_denials().await;
            let changes = shared.take_interests(&mut self.account.borrow_mut());
            if changes.is_empty() {
                shared.wanted.notified().await;
                continue;
            }
            self.account.borrow_mut().end(ended(&changes));
            for pattern in ended(&changes) {
                self.remove(pattern).await;
            }
            let wanted: Vec<&Pattern> =
                changes.iter().filter(|(_, wanted)| *wanted).map(|(pattern, _)| pattern).collect();
            let denied = self.begin(&wanted).await;
            for (pattern, wanted) in changes.iter().filter(|(pattern, _)| !denied.contains(pattern)) {
                if *wanted {
                    self.account.borrow_mut().confirm(pattern);
                }
                shared.done(pattern, *wanted);
            }
        }
    }

    /// Subscribes to these, and waits until the server knows that, and what has ended before; which of them it denies.
    async fn begin(&self, wanted: &[&Pattern]) -> HashSet<Pattern> {
        let mut denied = HashSet::new();
        let mut left = vec![wanted];
        while let Some(some) = left.pop() {
            let heard = self.denials.heard();
            for pattern in some.iter().filter(|pattern| !denied.contains(**pattern)) {
                self.remove(pattern).await;
                self.account.borrow_mut().ask(pattern);
                while !self.add(Some(pattern)).await {}
            }
            // After a reconnection the library subscribes again on its own, before anything else.
            while self.confirm().await.is_err() {
                self.shared.wait_connected().await;
            }
            denied.extend(self.take_denials().await);
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
            if self.remove(&pattern).await {
                self.shared.deny(&mut self.account.borrow_mut(), &pattern, Some(&reason));
                denied.push(pattern);
            }
        }
        denied
    }

    /// Ends a subscription, if there is one.
    async fn remove(&self, pattern: &Pattern) -> bool {
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
            if self.subscriptions.borrow().by_number.len() > 1 {
                came.sort_by_key(|came| Account::order(&came.bytes));
            }
            let mut account = self.account.borrow_mut();
            for came in came.drain(..) {
                self.shared.arrive(
                    &mut account,
                    came.name.as_str(),
                    came.via.as_deref().map(std::slice::from_ref),
                    &came.bytes,
                );
            }
        }
    }
}
