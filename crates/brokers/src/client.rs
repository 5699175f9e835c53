//! One end of a broker: what every kind of it has, and its thread.
//!
//! Whoever publishes puts into the queue under its lock, and wakes the thread if it found nothing there; sessions that
//! subscribe change what is wanted in the same way. The thread makes the broker agree with both, and gives what comes
//! to the engine. Nobody waits for the thread but who asks it to flush, or closes it.

mod denied;
mod in_flight;
mod status;
mod store;
mod thread;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use wirespeed_engine::broker::{
    Broker, Connect, EnqueueResult, Message, Notice, RESERVED, Sink, State, Status, is_reserved,
};
use wirespeed_engine::capacity::CapacityNotifier;
use wirespeed_engine::lock as locked;
use wirespeed_engine::logs::{INTERVAL, Logs};
use wirespeed_engine::topics::{Pattern, Topic};

pub(crate) use self::in_flight::InFlight;
use self::store::Store;
use crate::address::{Address, Kind};
use crate::batch;
use crate::envelope::NodeId;
use crate::queue::{Policy, Queue, To};
use crate::stall_clock;
use crate::subscriptions::SubscriptionSet;
use crate::tracker::{ALL, Arrival, DeliveryTracker, For};

/// How long what was taken may take to be sent when all ends.
const LINGER: Duration = Duration::from_secs(1);

/// How long the thread waits for room before it looks whether it is to end.
const SLICE: Duration = Duration::from_millis(50);

/// The default prefix of topics at a broker.
pub const PREFIX: &str = "wirespeed";

/// Which broker, and how it is used: for an engine, as [`wirespeed_engine::Config::broker`].
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// Where it is.
    pub address: Address,
    /// Precedes the name of each topic, with a `.` between them, so that subjects of other programs are out of reach.
    prefix: String,
    /// Bytes that may wait to be sent.
    pub limit: usize,
    /// What becomes of what is more.
    pub policy: Policy,
}

impl BrokerConfig {
    /// One with 16 MiB that may wait, and [`PREFIX`].
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self { address, prefix: PREFIX.to_owned(), limit: 16 << 20, policy: Policy::default() }
    }

    /// Sets the prefix.
    ///
    /// # Errors
    /// The prefix is not a valid name, or is reserved by a broker; the text says which.
    pub fn set_prefix(&mut self, prefix: &str) -> Result<(), String> {
        if prefix.is_empty() {
            return Err(format!(
                "it must not be empty: clients could read what other programs have at the broker; {PREFIX:?} \
                                is the default"
            ));
        }
        let topic = Topic::new(prefix).map_err(|error| error.to_string())?;
        // NATS: $SYS, $JS, $KV, _INBOX; Redis: __keyspace@0__, __keyevent@0__, __sentinel__; and ours.
        if is_reserved(&topic) || prefix.starts_with(['$', '_']) {
            return Err(format!("names that begin with $ or _, and {RESERVED:?}, are the brokers' own"));
        }
        self.prefix = prefix.to_owned();
        Ok(())
    }
}

impl Connect for BrokerConfig {
    fn connect(&self, sink: Arc<dyn Sink>) -> io::Result<Arc<dyn Broker>> {
        Ok(Arc::new(BrokerClient::start(self, Some(sink))?))
    }
}

/// See the module. Dropped, it is closed.
pub struct BrokerClient {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The thread is of this process.
    process: u32,
}

/// What has happened and was not asked for yet.
#[derive(Default)]
struct Notices {
    waiting: VecDeque<Notice>,
    state: State,
    /// Why there is no connection.
    reason: Option<String>,
    /// The last message that was refused by this connection, or by the one that is being made: why, and when.
    refusal: Option<(String, Instant)>,
    /// Why a subscription was denied last. It holds while one is.
    denial: Option<String>,
    /// When the current outage was logged.
    away: Option<Instant>,
    connected_before: bool,
    reconnects: u64,
}

impl Notices {
    /// Why there is no connection, or what this one was refused. `denied`: the broker denies a subscription.
    fn why(&self, denied: bool) -> Option<&String> {
        let denial = self.denial.as_ref().filter(|_| denied);
        self.reason.as_ref().or(self.refusal.as_ref().map(|(why, _)| why)).or(denial)
    }
}

/// What the thread shares with others.
pub(crate) struct Shared {
    pub(crate) address: Address,
    /// With its separator.
    pub(crate) prefix: String,
    pub(crate) id: NodeId,
    /// The log of the engine or publisher.
    logs: Arc<Logs>,
    /// Until the end, as the engine has this and this the engine. `None`: nothing is to come.
    sink: Mutex<Option<Arc<dyn Sink>>>,
    receives: bool,
    queue: Store,
    /// Somebody wants to know when everything is settled.
    flushes: AtomicBool,
    subscriptions: Mutex<SubscriptionSet>,
    notices: Mutex<Notices>,
    /// There is something in the queue, or to be flushed.
    pub(crate) outgoing: Notify,
    /// What is wanted has changed.
    pub(crate) wanted: Notify,
    /// A message was refused or dropped.
    refusing: Notify,
    /// The broker denied a subscription, which is to be asked for again.
    denied: Notify,
    /// Internal subjects that were denied, and whether they still are.
    reserved: Mutex<HashMap<Pattern, bool>>,
    /// The denied ones are to be asked for again.
    reserved_again: AtomicBool,
    /// A task of a client's library has panicked in code of ours, which only that library hears of.
    pub(crate) defect: Notify,
    connected: watch::Sender<bool>,
    /// Set when the node is to end: the deadline for messages that still wait.
    closing: watch::Sender<Option<Instant>>,
    published: AtomicU64,
    received: AtomicU64,
    lost: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
    unconfirmed: AtomicU64,
    invalid: AtomicU64,
}

impl BrokerClient {
    /// Begins to connect. `sink`: where what comes goes; `None`: nothing is wanted.
    ///
    /// # Errors
    /// A thread cannot begin, or there is no randomness.
    pub fn start(hub: &BrokerConfig, sink: Option<Arc<dyn Sink>>) -> io::Result<Self> {
        let mut id = NodeId::default();
        getrandom::fill(&mut id).map_err(io::Error::other)?;
        let shared = Arc::new(Shared::new(hub, sink, id));
        let theirs = Arc::clone(&shared);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build()?;
        let thread = std::thread::Builder::new().name("wirespeed-broker".into()).spawn(move || {
            theirs.run(&runtime);
            runtime.shutdown_background(); // a name that is being looked up is not waited for
        })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)), process: std::process::id() })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Begins the end without waiting for it; messages that wait are sent for `linger` at most. Later calls do nothing.
    pub(crate) fn end(&self, linger: Duration) {
        let until = Instant::now() + linger;
        self.shared.closing.send_if_modified(|closing| {
            let begins = closing.is_none();
            closing.get_or_insert(until);
            begins
        });
    }
}

impl Broker for BrokerClient {
    fn interest(&self, pattern: &Pattern, wanted: bool) {
        if pattern.segments().any(|segment| segment == RESERVED) {
            return;
        }
        if locked(&self.shared.subscriptions).want(pattern, wanted) {
            self.shared.wanted.notify_one();
        }
    }

    fn publish(&self, topic: &Topic, message: Message<'_>) -> EnqueueResult {
        self.shared.push(To::Topic(topic.clone()), message)
    }

    fn broadcast(&self, message: Message<'_>) -> EnqueueResult {
        self.shared.push(To::All, message)
    }

    fn admits(&self, bytes: usize) -> bool {
        let raises = self.shared.queue.look(|queue| queue.raises(bytes));
        if raises {
            self.shared.count_refused(1);
        }
        !raises
    }

    fn has_capacity(&self) -> bool {
        self.shared.lets_relays_go_on()
    }

    fn status(&self) -> Status {
        let shared = &self.shared;
        let (queued, queued_bytes) = shared.queue.look(|queue| (queue.len(), queue.bytes()));
        let (subscriptions, denied) = {
            let subscriptions = locked(&shared.subscriptions);
            (subscriptions.len(), subscriptions.has_denied())
        };
        let denied = denied || !locked(&shared.reserved).is_empty();
        let notices = locked(&shared.notices);
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Status {
            state: notices.state,
            server: shared.address.to_string(),
            reason: notices.why(denied).cloned(),
            queued,
            queued_bytes,
            subscriptions,
            published: count(&shared.published),
            received: count(&shared.received),
            lost: count(&shared.lost),
            refused: count(&shared.refused),
            dropped: count(&shared.dropped),
            unconfirmed: count(&shared.unconfirmed),
            invalid: count(&shared.invalid),
            reconnects: notices.reconnects,
        }
    }

    fn has_notices(&self) -> bool {
        !locked(&self.shared.notices).waiting.is_empty()
    }

    fn take_notices(&self) -> Vec<Notice> {
        std::mem::take(&mut locked(&self.shared.notices).waiting).into()
    }

    fn flush(&self, deadline: Option<Instant>) -> Option<u64> {
        self.shared.flush(self.shared.accepted(), deadline)
    }

    fn close(&self) {
        if !self.is_of_this_process() {
            return; // a copy in a child process
        }
        self.end(LINGER);
        let thread = locked(&self.thread).take();
        if let Some(thread) = thread {
            let _ = thread.join(); // it has caught what it raised
            let sink = locked(&self.shared.sink).take();
            drop(sink);
        }
    }
}

impl Drop for BrokerClient {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn new(hub: &BrokerConfig, sink: Option<Arc<dyn Sink>>, id: NodeId) -> Self {
        Self {
            address: hub.address.clone(),
            prefix: format!("{}.", hub.prefix),
            id,
            logs: sink.as_ref().map_or_else(|| Arc::new(Logs::new(Instant::now(), INTERVAL)), |sink| sink.logs()),
            receives: sink.is_some(),
            sink: Mutex::new(sink),
            queue: Store::new(Queue::new(id, hub.limit, hub.policy)),
            flushes: AtomicBool::new(false),
            subscriptions: Mutex::default(),
            notices: Mutex::default(),
            outgoing: Notify::new(),
            wanted: Notify::new(),
            refusing: Notify::new(),
            denied: Notify::new(),
            reserved: Mutex::default(),
            reserved_again: AtomicBool::new(false),
            defect: Notify::new(),
            connected: watch::Sender::new(false),
            closing: watch::Sender::new(None),
            published: AtomicU64::new(0),
            received: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            unconfirmed: AtomicU64::new(0),
            invalid: AtomicU64::new(0),
        }
    }

    // ---- for whoever publishes ----

    pub(crate) fn push(&self, to: To, message: Message<'_>) -> EnqueueResult {
        let (first, pushed) = self.change(|queue| {
            wirespeed_engine::driver::protocol::failpoint::hit("brokers.push");
            (queue.len() == 0, queue.push(to, message))
        });
        if first && pushed.took == EnqueueResult::Yes {
            self.outgoing.notify_one();
        }
        if pushed.dropped > 0 {
            self.dropped.fetch_add(pushed.dropped, Ordering::Relaxed);
            self.refusing.notify_one();
            self.notify(Notice::Dropped(pushed.dropped));
        }
        if pushed.took == EnqueueResult::Full {
            self.count_refused(1);
        }
        pushed.took
    }

    /// Messages that were taken, ever.
    pub(crate) fn accepted(&self) -> u64 {
        self.queue.look(Queue::accepted)
    }

    /// How many of those the broker may not have, as far as it is known.
    pub(crate) fn missing(&self) -> u64 {
        self.queue.look(Queue::missing)
    }

    /// Waits until the broker has so many of them, or the deadline: see [`Broker::flush`].
    pub(crate) fn flush(&self, accepted: u64, deadline: Option<Instant>) -> Option<u64> {
        self.queue.wait(deadline, |queue| {
            let missing = queue.flushed(accepted);
            if missing.is_none() {
                self.flushes.store(true, Ordering::Release);
                self.outgoing.notify_one();
            }
            missing
        })
    }

    /// Whether a message of so many bytes finds room, or the broker was closed.
    pub(crate) fn has_capacity(&self, bytes: usize) -> bool {
        self.queue.look(|queue| queue.has_capacity(bytes) || queue.is_closed())
    }

    /// Notified when the queue has room, when messages are settled, and at the end.
    pub(crate) fn eased(&self) -> &Arc<CapacityNotifier> {
        self.queue.eased()
    }

    /// Whether the node has ended: it sends nothing more.
    pub(crate) fn has_ended(&self) -> bool {
        self.queue.look(Queue::is_closed)
    }

    /// Waits until a message of so many bytes finds room, or the deadline; whether it does, or all has ended.
    pub(crate) fn wait_for_capacity(&self, bytes: usize, deadline: Instant) -> bool {
        self.queue
            .wait(Some(deadline), |queue| (queue.has_capacity(bytes) || queue.is_closed()).then_some(()))
            .is_some()
    }

    /// See [`Broker::has_capacity`].
    fn lets_relays_go_on(&self) -> bool {
        self.queue.look(|queue| !queue.is_filling() || !queue.is_strict() && !self.is_connected())
    }

    /// Changes the queue, and tells whom it concerns.
    fn change<T>(&self, change: impl FnOnce(&mut Queue) -> T) -> T {
        let (result, eased) = self.queue.change(change);
        if eased {
            self.notify_capacity();
        }
        result
    }

    /// Relays may go on that wait for this.
    fn notify_capacity(&self) {
        let sink = locked(&self.sink).clone();
        if let Some(sink) = sink {
            sink.resume();
        }
    }

    fn count_refused(&self, count: u64) {
        self.refused.fetch_add(count, Ordering::Relaxed);
        self.refusing.notify_one();
        self.notify(Notice::Refused(count));
    }

    // ---- for the thread: what leaves ----

    /// What a connection takes out of the queue: nothing yet.
    pub(crate) fn in_flight(&self) -> InFlight<'_> {
        InFlight::new(self)
    }

    /// Whether the broker has so many of what was taken, is not known.
    fn mark_unconfirmed(&self, count: u64) {
        if count > 0 {
            // Before those who wait for it to be settled are woken; the notice, which runs code of others, behind it.
            self.unconfirmed.fetch_add(count, Ordering::Relaxed);
            self.change(|queue| queue.settle(count, true));
            self.notify(Notice::Unconfirmed(count));
        }
    }

    /// Somebody waits until everything is settled.
    pub(crate) fn takes_flush(&self) -> bool {
        self.flushes.swap(false, Ordering::AcqRel)
    }

    /// How something is called at the broker.
    pub(crate) fn name(&self, to: &To) -> String {
        let name = match to {
            To::Topic(topic) => topic.as_str(),
            To::All => ALL,
        };
        format!("{}{name}", self.prefix)
    }

    // ---- for the thread: what is wanted, and what comes ----

    /// Whether anything is to come.
    pub(crate) fn receives(&self) -> bool {
        self.receives
    }

    /// An account of what comes; nothing is subscribed to yet.
    pub(crate) fn tracker(&self) -> DeliveryTracker {
        self.forget_interests();
        DeliveryTracker::new(self.id, &self.prefix, self.address.kind == Kind::Cluster)
    }

    /// What is to be subscribed to, and what no longer.
    pub(crate) fn take_interests(&self, tracker: &mut DeliveryTracker) -> Vec<(Pattern, bool)> {
        let (left, changes) = {
            let mut subscriptions = locked(&self.subscriptions);
            (subscriptions.take_left(), subscriptions.take())
        };
        tracker.forget_left(&left);
        changes.iter().filter(|(_, wanted)| *wanted).for_each(|(pattern, _)| tracker.follow(pattern));
        changes
    }

    /// That was done.
    pub(crate) fn done(&self, pattern: &Pattern, there: bool) {
        if locked(&self.subscriptions).done(pattern, there) {
            self.wanted.notify_one();
        }
    }

    /// The broker has no subscription of ours any more.
    pub(crate) fn lose_subscriptions(&self, tracker: &mut DeliveryTracker) {
        tracker.disconnect();
        self.forget_interests();
    }

    fn forget_interests(&self) {
        locked(&self.subscriptions).forget();
        self.wanted.notify_one();
    }

    /// Something came, one message or several. Waits while the engine has no room, and so does all that this thread does.
    pub(crate) fn arrive(&self, tracker: &mut DeliveryTracker, name: &str, via: Option<&[Pattern]>, bytes: &[u8]) {
        if DeliveryTracker::is_from(bytes, &self.id) {
            return; // so are all that are with it
        }
        let Some(sink) = locked(&self.sink).clone() else { return };
        // The thread may be waiting for an answer about what was wanted before.
        let left = locked(&self.subscriptions).take_left();
        tracker.forget_left(&left);
        for message in batch::unpack(bytes) {
            self.arrive_one(&*sink, tracker, name, via, message);
        }
    }

    fn arrive_one(
        &self,
        sink: &dyn Sink,
        tracker: &mut DeliveryTracker,
        name: &str,
        via: Option<&[Pattern]>,
        bytes: &[u8],
    ) {
        wirespeed_engine::driver::protocol::failpoint::hit("brokers.arrive");
        let put = match tracker.arrive(name, via, bytes) {
            Arrival::Ignore => return,
            Arrival::Deliver(For::Topic(topic), message) => sink.publish(&topic, message).ok(),
            Arrival::Deliver(For::All, message) => sink.broadcast(message).ok(),
            Arrival::Invalid => None,
        };
        self.count_lost(tracker.take_lost());
        let Some(room) = put else {
            self.invalid.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.received.fetch_add(1, Ordering::Relaxed);
        if !room {
            stall_clock::count_stall(|| while !sink.wait_for_capacity(Instant::now() + SLICE) && !self.is_closing() {});
        }
    }

    fn count_lost(&self, count: u64) {
        if count > 0 {
            self.lost.fetch_add(count, Ordering::Relaxed);
            self.notify(Notice::Lost(count));
        }
    }

    // ---- for the thread: how it stands ----

    pub(crate) fn is_connected(&self) -> bool {
        *self.connected.borrow()
    }

    /// Waits until there is a connection.
    pub(crate) async fn wait_connected(&self) {
        let mut connected = self.connected.subscribe();
        let _ = connected.wait_for(|connected| *connected).await; // its sender is here
    }

    /// Waits until there is none.
    pub(crate) async fn wait_disconnected(&self) {
        let mut connected = self.connected.subscribe();
        let _ = connected.wait_for(|connected| !*connected).await; // as above
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.borrow().is_some()
    }
}

/// Of what [`Shared::take_interests`] says, what is to be subscribed to no longer.
pub(crate) fn ended(changes: &[(Pattern, bool)]) -> impl Iterator<Item = &Pattern> + Clone {
    changes.iter().filter(|(_, wanted)| !wanted).map(|(pattern, _)| pattern)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
