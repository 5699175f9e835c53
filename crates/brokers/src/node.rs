//! One end of a broker: what every kind of it has, and its thread.
//!
//! Whoever publishes puts into the queue under its lock, and wakes the thread if it found nothing there; sessions that
//! subscribe change what is wanted in the same way. The thread makes the broker agree with both, and gives what comes
//! to the engine. Nobody waits for the thread but who asks it to flush, or closes it.

mod store;
mod thread;
mod under_way;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use wirespeed_engine::broker::{Broker, Connect, Message, Notice, RESERVED, Sink, State, Status, Took, is_reserved};
use wirespeed_engine::lock as locked;
use wirespeed_engine::topics::{Pattern, Topic};

use self::store::Store;
pub(crate) use self::under_way::UnderWay;
use crate::account::{ALL, Account, Arrival, For};
use crate::address::{Address, Kind};
use crate::envelope::NodeId;
use crate::held;
use crate::interests::Interests;
use crate::parcel;
use crate::queue::{Policy, Queue, To};

/// Notices that are kept for who does not take them.
const NOTICES: usize = 256;

/// How long the thread waits for room before it looks whether it is to end.
const SLICE: Duration = Duration::from_millis(50);

/// Which broker, and how it is used: for an engine, as [`wirespeed_engine::Config::broker`].
#[derive(Clone, Debug)]
pub struct Hub {
    /// Where it is.
    pub address: Address,
    /// Before the name of each topic, with a `.` between: for those who share a broker. Empty: nothing.
    pub prefix: String,
    /// Bytes that may wait to be sent.
    pub limit: usize,
    /// What becomes of what is more.
    pub policy: Policy,
}

impl Hub {
    /// One with 16 MiB that may wait, and no prefix.
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self { address, prefix: String::new(), limit: 16 << 20, policy: Policy::default() }
    }

    /// Sets the prefix.
    ///
    /// # Errors
    /// It is no name of a topic: in words.
    pub fn set_prefix(&mut self, prefix: &str) -> Result<(), String> {
        if !prefix.is_empty() {
            let topic = Topic::new(prefix).map_err(|error| error.to_string())?;
            if is_reserved(&topic) {
                return Err(format!("{RESERVED:?} is the brokers' own"));
            }
        }
        self.prefix = prefix.to_owned();
        Ok(())
    }
}

impl Connect for Hub {
    fn connect(&self, sink: Arc<dyn Sink>) -> io::Result<Arc<dyn Broker>> {
        Ok(Arc::new(Node::start(self, Some(sink))?))
    }
}

/// See the module. Dropped, it is closed.
pub struct Node {
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
    /// What was last refused by this connection, or by the one that is being made.
    refusal: Option<String>,
    connected_before: bool,
    reconnects: u64,
}

/// What the thread shares with others.
pub(crate) struct Shared {
    pub(crate) address: Address,
    /// With its separator.
    pub(crate) prefix: String,
    pub(crate) id: NodeId,
    /// Until the end, as the engine has this and this the engine. `None`: nothing is to come.
    sink: Mutex<Option<Arc<dyn Sink>>>,
    receives: bool,
    queue: Store,
    /// Somebody wants to know when everything is settled.
    flushes: AtomicBool,
    interests: Mutex<Interests>,
    notices: Mutex<Notices>,
    /// There is something in the queue, or to be flushed.
    pub(crate) outgoing: Notify,
    /// What is wanted has changed.
    pub(crate) wanted: Notify,
    /// A task of a client's library has panicked in code of ours, which only that library hears of.
    pub(crate) defect: Notify,
    connected: watch::Sender<bool>,
    closing: watch::Sender<bool>,
    published: AtomicU64,
    received: AtomicU64,
    lost: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
    doubtful: AtomicU64,
    invalid: AtomicU64,
}

impl Node {
    /// Begins to connect. `sink`: where what comes goes; `None`: nothing is wanted.
    ///
    /// # Errors
    /// A thread cannot begin, or there is no randomness.
    pub fn start(hub: &Hub, sink: Option<Arc<dyn Sink>>) -> io::Result<Self> {
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
}

impl Broker for Node {
    fn interest(&self, pattern: &Pattern, wanted: bool) {
        if pattern.segments().any(|segment| segment == RESERVED) {
            return;
        }
        if locked(&self.shared.interests).want(pattern, wanted) {
            self.shared.wanted.notify_one();
        }
    }

    fn publish(&self, topic: &Topic, message: Message<'_>) -> Took {
        self.shared.push(To::Topic(topic.clone()), message)
    }

    fn broadcast(&self, message: Message<'_>) -> Took {
        self.shared.push(To::All, message)
    }

    fn admits(&self, bytes: usize) -> bool {
        let raises = self.shared.queue.look(|queue| queue.raises(bytes));
        if raises {
            self.shared.count_refused(1);
        }
        !raises
    }

    fn has_room(&self) -> bool {
        self.shared.lets_relays_go_on()
    }

    fn status(&self) -> Status {
        let shared = &self.shared;
        let (queued, queued_bytes) = shared.queue.look(|queue| (queue.len(), queue.bytes()));
        let subscriptions = locked(&shared.interests).len();
        let notices = locked(&shared.notices);
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Status {
            state: notices.state,
            server: shared.address.to_string(),
            reason: notices.reason.as_ref().or(notices.refusal.as_ref()).cloned(),
            queued,
            queued_bytes,
            subscriptions,
            published: count(&shared.published),
            received: count(&shared.received),
            lost: count(&shared.lost),
            refused: count(&shared.refused),
            dropped: count(&shared.dropped),
            doubtful: count(&shared.doubtful),
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
        if self.process != std::process::id() {
            return; // a copy in a child process
        }
        self.shared.closing.send_replace(true);
        let thread = locked(&self.thread).take();
        if let Some(thread) = thread {
            let _ = thread.join(); // it has caught what it raised
            let sink = locked(&self.shared.sink).take();
            drop(sink);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn new(hub: &Hub, sink: Option<Arc<dyn Sink>>, id: NodeId) -> Self {
        let prefix = if hub.prefix.is_empty() { String::new() } else { format!("{}.", hub.prefix) };
        Self {
            address: hub.address.clone(),
            prefix,
            id,
            receives: sink.is_some(),
            sink: Mutex::new(sink),
            queue: Store::new(Queue::new(id, hub.limit, hub.policy)),
            flushes: AtomicBool::new(false),
            interests: Mutex::default(),
            notices: Mutex::default(),
            outgoing: Notify::new(),
            wanted: Notify::new(),
            defect: Notify::new(),
            connected: watch::Sender::new(false),
            closing: watch::Sender::new(false),
            published: AtomicU64::new(0),
            received: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            doubtful: AtomicU64::new(0),
            invalid: AtomicU64::new(0),
        }
    }

    // ---- for whoever publishes ----

    pub(crate) fn push(&self, to: To, message: Message<'_>) -> Took {
        let (first, pushed) = self.change(|queue| {
            wirespeed_engine::driver::protocol::faults::reach("brokers.push");
            (queue.len() == 0, queue.push(to, message))
        });
        if first && pushed.took == Took::Yes {
            self.outgoing.notify_one();
        }
        if pushed.dropped > 0 {
            self.dropped.fetch_add(pushed.dropped, Ordering::Relaxed);
            self.tell(Notice::Dropped(pushed.dropped));
        }
        if pushed.took == Took::Full {
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
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.queue.look(|queue| queue.has_room(bytes) || queue.is_closed())
    }

    /// Waits until a message of so many bytes finds room, or the deadline; whether it does, or all has ended.
    pub(crate) fn wait_for_room(&self, bytes: usize, deadline: Instant) -> bool {
        self.queue.wait(Some(deadline), |queue| (queue.has_room(bytes) || queue.is_closed()).then_some(())).is_some()
    }

    /// See [`Broker::has_room`].
    fn lets_relays_go_on(&self) -> bool {
        self.queue.look(|queue| !queue.is_filling() || !queue.is_strict() && !self.is_connected())
    }

    /// Changes the queue, and tells whom it concerns.
    fn change<T>(&self, change: impl FnOnce(&mut Queue) -> T) -> T {
        let (result, eased) = self.queue.change(change);
        if eased {
            self.tell_room();
        }
        result
    }

    /// Relays may go on that wait for this.
    fn tell_room(&self) {
        let sink = locked(&self.sink).clone();
        if let Some(sink) = sink {
            sink.has_room_again();
        }
    }

    fn count_refused(&self, count: u64) {
        self.refused.fetch_add(count, Ordering::Relaxed);
        self.tell(Notice::Refused(count));
    }

    pub(crate) fn tell(&self, notice: Notice) {
        let mut notices = locked(&self.notices);
        wirespeed_engine::driver::protocol::faults::reach("brokers.notice");
        let first = notices.waiting.is_empty();
        match (notices.waiting.back_mut(), &notice) {
            (Some(Notice::Lost(count)), Notice::Lost(more))
            | (Some(Notice::Refused(count)), Notice::Refused(more))
            | (Some(Notice::Dropped(count)), Notice::Dropped(more))
            | (Some(Notice::Doubtful(count)), Notice::Doubtful(more)) => *count += more,
            _ => {
                if notices.waiting.len() >= NOTICES {
                    notices.waiting.pop_front();
                }
                notices.waiting.push_back(notice);
            }
        }
        drop(notices);
        let sink = if first { locked(&self.sink).clone() } else { None };
        if let Some(sink) = sink {
            sink.noticed();
        }
    }

    // ---- for the thread: what leaves ----

    /// What a connection takes out of the queue: nothing yet.
    pub(crate) fn under_way(&self) -> UnderWay<'_> {
        UnderWay::new(self)
    }

    /// Whether the broker has so many of what was taken, is not known.
    fn doubt(&self, count: u64) {
        if count > 0 {
            // Before those who wait for it to be settled are woken; the notice, which runs code of others, behind it.
            self.doubtful.fetch_add(count, Ordering::Relaxed);
            self.change(|queue| queue.settle(count, true));
            self.tell(Notice::Doubtful(count));
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
    pub(crate) fn account(&self) -> Account {
        self.forget_interests();
        Account::new(self.id, &self.prefix, self.address.kind == Kind::Cluster)
    }

    /// What is to be subscribed to, and what no longer.
    pub(crate) fn take_interests(&self, account: &mut Account) -> Vec<(Pattern, bool)> {
        let (left, changes) = {
            let mut interests = locked(&self.interests);
            (interests.take_left(), interests.take())
        };
        account.forget_left(&left);
        changes.iter().filter(|(_, wanted)| *wanted).for_each(|(pattern, _)| account.follow(pattern));
        changes
    }

    /// That was done.
    pub(crate) fn done(&self, pattern: &Pattern, there: bool) {
        if locked(&self.interests).done(pattern, there) {
            self.wanted.notify_one();
        }
    }

    /// The broker does not let us have that; `reason`: what it says, or nothing has it. It is not asked again until somebody wants
    /// it anew, or by another connection.
    pub(crate) fn deny(&self, account: &mut Account, pattern: &Pattern, reason: Option<&str>) {
        account.leave(pattern);
        locked(&self.interests).deny(pattern);
        match reason {
            None => self.tell(Notice::Unsupported(pattern.clone())),
            Some(reason) => self.tell_denied(pattern, reason),
        }
    }

    /// That the broker does not let us have it is told, and shown.
    pub(crate) fn tell_denied(&self, pattern: &Pattern, reason: &str) {
        let reason = self.address.redact(reason);
        locked(&self.notices).refusal = Some(reason.clone());
        self.tell(Notice::Denied { pattern: pattern.clone(), reason });
    }

    /// The library has made another connection, and has kept what is subscribed to: what was denied may be allowed now.
    pub(crate) fn ask_denied_again(&self) {
        if locked(&self.interests).ask_denied_again() {
            self.wanted.notify_one();
        }
    }

    /// The broker has no subscription of ours any more.
    pub(crate) fn lose_subscriptions(&self, account: &mut Account) {
        account.disconnect();
        self.forget_interests();
    }

    fn forget_interests(&self) {
        locked(&self.interests).forget();
        self.wanted.notify_one();
    }

    /// Something came, one message or several. Waits while the engine has no room, and so does all that this thread does.
    pub(crate) fn arrive(&self, account: &mut Account, name: &str, via: Option<&[Pattern]>, bytes: &[u8]) {
        if Account::is_from(bytes, &self.id) {
            return; // so are all that are with it
        }
        let Some(sink) = locked(&self.sink).clone() else { return };
        // The thread may be waiting for an answer about what was wanted before.
        let left = locked(&self.interests).take_left();
        account.forget_left(&left);
        for message in parcel::unpack(bytes) {
            self.arrive_one(&*sink, account, name, via, message);
        }
    }

    fn arrive_one(&self, sink: &dyn Sink, account: &mut Account, name: &str, via: Option<&[Pattern]>, bytes: &[u8]) {
        wirespeed_engine::driver::protocol::faults::reach("brokers.arrive");
        let put = match account.arrive(name, via, bytes) {
            Arrival::Ignore => return,
            Arrival::Deliver(For::Topic(topic), message) => sink.publish(&topic, message).ok(),
            Arrival::Deliver(For::All, message) => sink.broadcast(message).ok(),
            Arrival::Invalid => None,
        };
        self.count_lost(account.take_lost());
        let Some(room) = put else {
            self.invalid.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.received.fetch_add(1, Ordering::Relaxed);
        if !room {
            held::hold(|| while !sink.wait_for_room(Instant::now() + SLICE) && !self.is_closing() {});
        }
    }

    fn count_lost(&self, count: u64) {
        if count > 0 {
            self.lost.fetch_add(count, Ordering::Relaxed);
            self.tell(Notice::Lost(count));
        }
    }

    // ---- for the thread: how it stands ----

    pub(crate) fn set_connected(&self) {
        {
            let mut notices = locked(&self.notices);
            if notices.state == State::Connected {
                return;
            }
            notices.state = State::Connected;
            notices.reason = None;
            if std::mem::replace(&mut notices.connected_before, true) {
                notices.reconnects += 1;
            }
        }
        self.tell(Notice::Connected);
        self.connected.send_replace(true);
    }

    /// There is no connection. Told once; the reason that is shown is the last one.
    pub(crate) fn set_disconnected(&self, reason: &str) {
        let reason = self.address.redact(reason);
        let before = {
            let mut notices = locked(&self.notices);
            notices.reason = Some(reason.clone());
            notices.refusal = None;
            let before = notices.state;
            if before == State::Connected {
                notices.state = State::Disconnected;
            }
            before
        };
        self.connected.send_replace(false);
        if before == State::Connected {
            self.tell_room();
            self.tell(Notice::Disconnected { reason });
        }
    }

    /// Why something does not work: why there is no connection, or what it was refused.
    pub(crate) fn set_reason(&self, reason: &str) {
        let mut notices = locked(&self.notices);
        let reason = Some(self.address.redact(reason));
        match notices.state {
            State::Connected => notices.refusal = reason,
            _ => notices.reason = reason,
        }
    }

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
        *self.closing.borrow()
    }
}

/// Of what [`Shared::take_interests`] says, what is to be subscribed to no longer.
pub(crate) fn ended(changes: &[(Pattern, bool)]) -> impl Iterator<Item = &Pattern> + Clone {
    changes.iter().filter(|(_, wanted)| !wanted).map(|(pattern, _)| pattern)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
