//! The client of a broker: the state and the thread that all kinds of brokers share.
//!
//! Publishing threads add to the queue under its lock, and wake the client's thread if the queue was empty. Sessions
//! change the wanted subscriptions in the same way. The thread sends the queue, updates the subscriptions at the
//! broker, and passes received messages to the engine. Only `flush` and `close` wait for the thread.

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
use wirespeed_engine::control::CapacityNotifier;
use wirespeed_engine::lock as locked;
use wirespeed_engine::logs::{INTERVAL, Logs};
use wirespeed_engine::topics::{Pattern, Topic};

pub(crate) use self::in_flight::InFlight;
use self::store::SharedQueue;
use crate::address::{Address, Kind};
use crate::batch;
use crate::envelope::NodeId;
use crate::queue::{Destination, Policy, Queue};
use crate::stall_clock;
use crate::subscriptions::SubscriptionSet;
use crate::tracker::{ALL, Arrival, DeliveryTracker, Recipients};

/// How long queued messages may still be sent while the client closes.
const LINGER: Duration = Duration::from_secs(1);

/// How long the thread waits for capacity of the engine before it checks whether the client closes.
const CAPACITY_POLL: Duration = Duration::from_millis(50);

/// The default prefix of topics at a broker.
pub const PREFIX: &str = "wirespeed";

/// The configuration of a broker, for [`wirespeed_engine::Config::broker`] or a [`crate::Publisher`].
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// The address of the broker.
    pub address: Address,
    /// Precedes the name of each topic, with a `.` between them, so that subjects of other programs are out of reach.
    prefix: String,
    /// The number of bytes that may be queued.
    pub limit: usize,
    /// What happens to messages when the queue is full.
    pub policy: Policy,
}

impl BrokerConfig {
    /// Returns a configuration with a queue of 16 MiB and the prefix [`PREFIX`].
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
        // Reserved are `$SYS`, `$JS`, `$KV` and `_INBOX` of NATS, `__keyspace@0__`, `__keyevent@0__` and `__sentinel__`
        // of Redis, and our own name.
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

/// A connection to a broker, with its queue and its thread. Dropping it closes it.
///
/// 1. [`Self::start`] starts the thread, which connects and reconnects by itself.
/// 2. `interest`, `publish` and `broadcast` of [`Broker`] may be called from any thread, connected or not. `admits` and
///    `has_capacity` return whether to publish now.
/// 3. `status`, `has_notices` and `take_notices` report on the connection.
/// 4. `flush` waits for queued messages, and `close` ends the thread.
pub struct BrokerClient {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The process in which the thread runs.
    process: u32,
}

/// Notices that the application has not taken yet, and the state of the connection.
#[derive(Default)]
struct Notices {
    waiting: VecDeque<Notice>,
    state: State,
    /// Why there is no connection.
    reason: Option<String>,
    /// Why and when this connection, or the one that is being made, last refused a message.
    refusal: Option<(String, Instant)>,
    /// Why a subscription was last denied. It is valid while any subscription is denied.
    denial: Option<String>,
    /// The start of the current outage, which was logged.
    outage_since: Option<Instant>,
    connected_before: bool,
    reconnects: u64,
}

impl Notices {
    /// Returns why there is no connection, or the last refusal. `denied`: the broker currently denies a subscription.
    fn why(&self, denied: bool) -> Option<&String> {
        let denial = self.denial.as_ref().filter(|_| denied);
        self.reason.as_ref().or(self.refusal.as_ref().map(|(why, _)| why)).or(denial)
    }
}

/// The state that the client's thread shares with other threads.
pub(crate) struct Shared {
    pub(crate) address: Address,
    /// The prefix of topics, with its separator.
    pub(crate) prefix: String,
    pub(crate) id: NodeId,
    /// The log of the engine or publisher.
    logs: Arc<Logs>,
    /// Receives messages and notices. It is cleared on close, as engine and client refer to each other. `None`: a
    /// publisher, which receives nothing.
    sink: Mutex<Option<Arc<dyn Sink>>>,
    receives: bool,
    queue: SharedQueue,
    /// A caller waits until all messages are settled.
    flush_requested: AtomicBool,
    subscriptions: Mutex<SubscriptionSet>,
    notices: Mutex<Notices>,
    /// The queue is not empty, or a flush was requested.
    pub(crate) outgoing: Notify,
    /// The wanted subscriptions have changed.
    pub(crate) subscriptions_changed: Notify,
    /// A message was refused or dropped.
    message_refused: Notify,
    /// The broker denied a subscription, which has to be retried.
    subscription_denied: Notify,
    /// Denied internal subjects, and whether they still are denied.
    reserved: Mutex<HashMap<Pattern, bool>>,
    /// The denied internal subjects have to be retried.
    retry_reserved: AtomicBool,
    /// Our code panicked in a task of a client library, which swallows the panic.
    pub(crate) defect: Notify,
    connected: watch::Sender<bool>,
    /// Set when the client closes: the deadline for queued messages.
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
    /// Starts to connect. `sink` receives messages; `None`: nothing is received.
    ///
    /// # Errors
    /// The thread cannot be started, or there is no randomness.
    pub fn start(config: &BrokerConfig, sink: Option<Arc<dyn Sink>>) -> io::Result<Self> {
        let mut id = NodeId::default();
        getrandom::fill(&mut id).map_err(io::Error::other)?;
        let shared = Arc::new(Shared::new(config, sink, id));
        let for_thread = Arc::clone(&shared);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build()?;
        let thread = std::thread::Builder::new().name("wirespeed-broker".into()).spawn(move || {
            for_thread.run(&runtime);
            runtime.shutdown_background(); // a name lookup in progress is not waited for
        })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)), process: std::process::id() })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Starts to close without waiting. Queued messages are sent for at most `linger`. Later calls do nothing.
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
        if locked(&self.shared.subscriptions).set_wanted(pattern, wanted) {
            self.shared.subscriptions_changed.notify_one();
        }
    }

    fn publish(&self, topic: &Topic, message: Message<'_>) -> EnqueueResult {
        self.shared.push(Destination::Topic(topic.clone()), message)
    }

    fn broadcast(&self, message: Message<'_>) -> EnqueueResult {
        self.shared.push(Destination::All, message)
    }

    fn admits(&self, bytes: usize) -> bool {
        let would_raise = self.shared.queue.inspect(|queue| queue.would_raise(bytes));
        if would_raise {
            self.shared.count_refused(1);
        }
        !would_raise
    }

    fn has_capacity(&self) -> bool {
        self.shared.relays_may_continue()
    }

    fn status(&self) -> Status {
        let shared = &self.shared;
        let (queued, queued_bytes) = shared.queue.inspect(|queue| (queue.len(), queue.bytes()));
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
            return; // a copy in a child process has no thread
        }
        self.end(LINGER);
        let thread = locked(&self.thread).take();
        if let Some(thread) = thread {
            let _ = thread.join(); // the thread catches its panics
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
    fn new(config: &BrokerConfig, sink: Option<Arc<dyn Sink>>, id: NodeId) -> Self {
        Self {
            address: config.address.clone(),
            prefix: format!("{}.", config.prefix),
            id,
            logs: sink.as_ref().map_or_else(|| Arc::new(Logs::new(Instant::now(), INTERVAL)), |sink| sink.logs()),
            receives: sink.is_some(),
            sink: Mutex::new(sink),
            queue: SharedQueue::new(Queue::new(id, config.limit, config.policy)),
            flush_requested: AtomicBool::new(false),
            subscriptions: Mutex::default(),
            notices: Mutex::default(),
            outgoing: Notify::new(),
            subscriptions_changed: Notify::new(),
            message_refused: Notify::new(),
            subscription_denied: Notify::new(),
            reserved: Mutex::default(),
            retry_reserved: AtomicBool::new(false),
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

    // ---- called by publishing threads ----

    pub(crate) fn push(&self, to: Destination, message: Message<'_>) -> EnqueueResult {
        let (first, pushed) = self.change(|queue| {
            wirespeed_engine::driver::protocol::failpoint::hit("brokers.push");
            (queue.len() == 0, queue.push(to, message))
        });
        if first && pushed.result == EnqueueResult::Yes {
            self.outgoing.notify_one();
        }
        if pushed.dropped > 0 {
            self.dropped.fetch_add(pushed.dropped, Ordering::Relaxed);
            self.message_refused.notify_one();
            self.notify(Notice::Dropped(pushed.dropped));
        }
        if pushed.result == EnqueueResult::Full {
            self.count_refused(1);
        }
        pushed.result
    }

    /// Returns the number of messages accepted so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.queue.inspect(Queue::accepted)
    }

    /// Returns how many accepted messages the broker may not have, as far as known.
    pub(crate) fn missing(&self) -> u64 {
        self.queue.inspect(Queue::missing)
    }

    /// Waits until the first `accepted` messages are settled, or the deadline; see [`Broker::flush`].
    pub(crate) fn flush(&self, accepted: u64, deadline: Option<Instant>) -> Option<u64> {
        self.queue.wait(deadline, |queue| {
            let missing = queue.flushed(accepted);
            if missing.is_none() {
                self.flush_requested.store(true, Ordering::Release);
                self.outgoing.notify_one();
            }
            missing
        })
    }

    /// Returns whether a message of this size fits into the queue, or the client is closed.
    pub(crate) fn has_capacity(&self, bytes: usize) -> bool {
        self.queue.inspect(|queue| queue.has_capacity(bytes) || queue.is_closed())
    }

    /// Returns the notifier for callers that wait: it is notified when the queue has capacity, when messages are
    /// settled, and when the client closes.
    pub(crate) fn capacity(&self) -> &Arc<CapacityNotifier> {
        self.queue.capacity()
    }

    /// Returns whether the client has ended and sends nothing more.
    pub(crate) fn has_ended(&self) -> bool {
        self.queue.inspect(Queue::is_closed)
    }

    /// Waits until a message of this size fits, or the deadline. Returns whether it fits, or the client is closed.
    pub(crate) fn wait_for_capacity(&self, bytes: usize, deadline: Instant) -> bool {
        self.queue
            .wait(Some(deadline), |queue| (queue.has_capacity(bytes) || queue.is_closed()).then_some(()))
            .is_some()
    }

    /// Implements [`Broker::has_capacity`].
    fn relays_may_continue(&self) -> bool {
        self.queue.inspect(|queue| !queue.is_filling() || !queue.raises_when_full() && !self.is_connected())
    }

    /// Changes the queue, and notifies relays if it has capacity again.
    fn change<T>(&self, change: impl FnOnce(&mut Queue) -> T) -> T {
        let (result, relieved) = self.queue.change(change);
        if relieved {
            self.notify_capacity();
        }
        result
    }

    /// Resumes relays that wait for capacity of the broker.
    fn notify_capacity(&self) {
        let sink = locked(&self.sink).clone();
        if let Some(sink) = sink {
            sink.resume();
        }
    }

    fn count_refused(&self, count: u64) {
        self.refused.fetch_add(count, Ordering::Relaxed);
        self.message_refused.notify_one();
        self.notify(Notice::Refused(count));
    }

    // ---- called by the client's thread: outgoing messages ----

    /// Returns an empty account of the messages that one connection takes out of the queue.
    pub(crate) fn in_flight(&self) -> InFlight<'_> {
        InFlight::new(self)
    }

    /// Counts messages for which the broker's confirmation is unknown.
    fn mark_unconfirmed(&self, count: u64) {
        if count > 0 {
            // Counted before the waiting callers are woken. The notice runs foreign code, so it comes last.
            self.unconfirmed.fetch_add(count, Ordering::Relaxed);
            self.change(|queue| queue.settle(count, true));
            self.notify(Notice::Unconfirmed(count));
        }
    }

    /// Returns and clears whether a caller waits for a flush.
    pub(crate) fn take_flush_request(&self) -> bool {
        self.flush_requested.swap(false, Ordering::AcqRel)
    }

    /// Returns the name of a destination at the broker.
    pub(crate) fn name(&self, to: &Destination) -> String {
        let name = match to {
            Destination::Topic(topic) => topic.as_str(),
            Destination::All => ALL,
        };
        format!("{}{name}", self.prefix)
    }

    // ---- called by the client's thread: subscriptions and received messages ----

    /// Returns whether this client receives messages.
    pub(crate) fn receives(&self) -> bool {
        self.receives
    }

    /// Returns a tracker of received messages, without any subscription.
    pub(crate) fn tracker(&self) -> DeliveryTracker {
        self.reset_subscriptions();
        DeliveryTracker::new(self.id, &self.prefix, self.address.kind == Kind::Cluster)
    }

    /// Returns the patterns to subscribe (`true`) and to unsubscribe (`false`).
    pub(crate) fn take_changes(&self, tracker: &mut DeliveryTracker) -> Vec<(Pattern, bool)> {
        let (left, changes) = {
            let mut subscriptions = locked(&self.subscriptions);
            (subscriptions.take_dropped(), subscriptions.take_changes())
        };
        tracker.forget_dropped(&left);
        changes.iter().filter(|(_, wanted)| *wanted).for_each(|(pattern, _)| tracker.follow(pattern));
        changes
    }

    /// Records that the broker has, or no longer has, a subscription.
    pub(crate) fn mark_applied(&self, pattern: &Pattern, subscribed: bool) {
        if locked(&self.subscriptions).mark_applied(pattern, subscribed) {
            self.subscriptions_changed.notify_one();
        }
    }

    /// Records that the broker has lost all subscriptions.
    pub(crate) fn lose_subscriptions(&self, tracker: &mut DeliveryTracker) {
        tracker.disconnect();
        self.reset_subscriptions();
    }

    fn reset_subscriptions(&self) {
        locked(&self.subscriptions).reset();
        self.subscriptions_changed.notify_one();
    }

    /// Handles a received message or batch. Blocks this thread while the engine has no capacity.
    pub(crate) fn arrive(&self, tracker: &mut DeliveryTracker, name: &str, via: Option<&[Pattern]>, bytes: &[u8]) {
        if DeliveryTracker::is_from(bytes, &self.id) {
            return; // the whole batch is our own
        }
        let Some(sink) = locked(&self.sink).clone() else { return };
        // The wanted patterns may have changed while the thread waited for a reply of the broker.
        let left = locked(&self.subscriptions).take_dropped();
        tracker.forget_dropped(&left);
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
            Arrival::Deliver(Recipients::Topic(topic), message) => sink.publish(&topic, message).ok(),
            Arrival::Deliver(Recipients::All, message) => sink.broadcast(message).ok(),
            Arrival::Invalid => None,
        };
        self.count_lost(tracker.take_lost());
        let Some(room) = put else {
            self.invalid.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.received.fetch_add(1, Ordering::Relaxed);
        if !room {
            stall_clock::count_stall(|| {
                while !sink.wait_for_capacity(Instant::now() + CAPACITY_POLL) && !self.is_closing() {}
            });
        }
    }

    fn count_lost(&self, count: u64) {
        if count > 0 {
            self.lost.fetch_add(count, Ordering::Relaxed);
            self.notify(Notice::Lost(count));
        }
    }

    // ---- called by the client's thread: the state of the connection ----

    pub(crate) fn is_connected(&self) -> bool {
        *self.connected.borrow()
    }

    /// Waits until there is a connection.
    pub(crate) async fn wait_connected(&self) {
        let mut connected = self.connected.subscribe();
        let _ = connected.wait_for(|connected| *connected).await; // the sender lives as long as `self`
    }

    /// Waits until there is no connection.
    pub(crate) async fn wait_disconnected(&self) {
        let mut connected = self.connected.subscribe();
        let _ = connected.wait_for(|connected| !*connected).await; // the sender lives as long as `self`
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.borrow().is_some()
    }
}

/// Returns the patterns to unsubscribe among the result of [`Shared::take_changes`].
pub(crate) fn ended(changes: &[(Pattern, bool)]) -> impl Iterator<Item = &Pattern> + Clone {
    changes.iter().filter(|(_, wanted)| !wanted).map(|(pattern, _)| pattern)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
