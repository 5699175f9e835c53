//! The engine: starts all workers, sends to their sessions, and stops them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use wirespeed_driver::encoded::Encoded;
use wirespeed_driver::protocol::{CloseCode, MessageKind};
use wirespeed_driver::tls::server::ServerConfig as TlsConfig;

use crate::admission::Admission;
use crate::admission::operator_tokens::OperatorTokens;
use crate::auth::acl::TopicPermission;
use crate::broker::{Broker, EnqueueResult, Message, Published, Slot};
use crate::config::{Config, Drain, Place, Renewal, Role, Route};
use crate::control::{CapacityNotifier, Command, Refused, Watch, WorkerHandle, has_capacity};
use crate::delivery::Pending;
use crate::delivery::slow_consumer::Budgets;
use crate::events::Events;
use crate::listen::{Certificate, SocketFile};
use crate::logs::{self, Cause, Level, Logs};
use crate::metrics::{Figures, WorkerMetrics};
use crate::ops::drain::{Draining, EngineControl};
use crate::ops::handoff::{self, HandoffServer};
use crate::ops::open_listeners::{self, Opened};
use crate::ops::takeover_lock;
use crate::pubsub::broker_sink::EngineSink;
use crate::pubsub::publish::FanOut;
use crate::session::registry::SessionRegistry;
use crate::session::{Refusal, Session};
use crate::shared::EngineShared;
use crate::topics::{MAX_WORKERS, Registry, Topic, WorkerId};
use crate::util::locks::lock;
use crate::util::wakers::Wake;
use crate::worker;

/// The maximum length of the reason in a close frame, in bytes (RFC 6455 5.5).
const MAX_REASON: usize = 123;

/// A message for [`Engine::publish_many`].
#[derive(Clone, Debug)]
pub struct Item {
    /// The topic on which it is published.
    pub topic: Topic,
    /// The message: see [`Engine::encode`].
    pub message: Arc<Encoded>,
    /// The subject of the message: see [`crate::config::Policy::Conflate`].
    pub key: Option<Arc<str>>,
}

/// A running server. It stops when it is dropped.
///
/// 1. [`Self::start`], then take [`Self::events`] in a loop, or the workers stop reading.
/// 2. Send: [`Session::send`] to one, [`Self::publish`] to the subscribers of a topic, [`Self::broadcast`] to all. A
///    result without capacity asks the caller to [wait](Self::wait_for_capacity).
/// 3. End: [`Self::begin_drain`] gracefully, or [`Self::drain`] all sessions at once; then [`Self::join`]. Or
///    [`Self::stop`] immediately.
pub struct Engine {
    shared: Arc<EngineShared>,
    handles: Vec<Arc<WorkerHandle>>,
    registry: Arc<Registry>,
    capacity: Arc<CapacityNotifier>,
    threads: Mutex<Vec<JoinHandle<io::Result<()>>>>,
    places: Vec<Place>,
    /// Those of the listeners with TLS.
    certificates: Vec<Arc<Certificate>>,
    internal: Option<Place>,
    /// Serves engines that take over the listeners.
    handoff_server: Mutex<Option<HandoffServer>>,
    /// The files of Unix sockets for clients.
    files: Mutex<Vec<SocketFile>>,
    /// All workers have a command to close their sessions.
    drained: AtomicBool,
    /// The id of the process that has its threads.
    process: u32,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("places", &self.places)
            .field("workers", &self.handles.len())
            .finish_non_exhaustive()
    }
}

impl Engine {
    #[cfg(feature = "fuzzing")]
    pub(crate) fn shared(&self) -> &EngineShared {
        &self.shared
    }

    /// Begins to serve.
    ///
    /// # Errors
    /// An address cannot be listened at, or a thread cannot start.
    pub fn start(config: Config) -> io::Result<Self> {
        Self::start_checking(config, || Ok(()))
    }

    /// Begins to serve, and calls `check` repeatedly while another engine with the same handoff path is starting.
    ///
    /// # Errors
    /// As for [`Self::start`]; or the error of `check`, which ends the wait.
    pub fn start_checking(config: Config, check: impl Fn() -> io::Result<()>) -> io::Result<Self> {
        let count = match config.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from).min(MAX_WORKERS),
            count if count > MAX_WORKERS => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "there are too many workers"));
            }
            count => count,
        };
        let start = Instant::now();
        let mut certificates = Vec::new();
        let mut places = Vec::new();
        let mut opened = Opened::new(count, config.reuse_port);
        // Held until it serves: an engine that starts at the same moment then takes over from this one.
        let _turn = config.handoff.as_deref().map(|path| takeover_lock::acquire(path, check)).transpose()?;
        let mut received = config.handoff.as_deref().map(handoff::request_listeners).transpose()?.flatten();
        for listen in &config.listen {
            let certificate =
                listen.tls.clone().map(|tls| Arc::new(Certificate::new(tls, config.renewal.clone(), start)));
            places.push(opened.open(&listen.at, certificate.as_ref(), false, received.as_mut())?);
            certificates.extend(certificate);
        }
        let internal = match &config.http.at {
            None => None,
            Some(at) => Some(opened.open(at, None, true, received.as_mut())?),
        };
        let Opened { listeners, joining, mut offers, files, .. } = opened;
        if config.handoff.is_none() {
            offers.clear();
        }
        let shared = Arc::new(EngineShared {
            events: Arc::new(Events::new(config.max_events, config.max_event_bytes)),
            admission: Admission::new(config.admission.clone()),
            pending: config.admission.max_pending.div_ceil(count),
            metrics: (0..count).map(|_| Arc::new(WorkerMetrics::new(start))).collect(),
            stop: AtomicBool::new(false),
            last_id: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            handles: OnceLock::new(),
            listeners: Mutex::new(offers),
            // While another engine has the listeners too, an early end must not shut them down.
            checked_out: AtomicBool::new(received.is_some()),
            logs: Arc::new(Logs::new(start, logs::INTERVAL)),
            operator_tokens: OperatorTokens::default(),
            invalid_messages: AtomicU64::new(0),
            memory: Arc::default(),
            sessions: SessionRegistry::new(count),
            page_topics: Mutex::default(),
            start,
            alive: AtomicUsize::new(count),
            next_worker: AtomicUsize::new(0),
            occupied_workers: AtomicUsize::new(count),
            descriptors_short: AtomicBool::new(false),
            budgets: Budgets::default(),
            broker: Slot::new(),
            default_routes: [Role::Events, Role::Echo].map(|role| Arc::new(Route::new(role, config.route_settings()))),
            config,
        });
        let mut engine = Self {
            shared: Arc::clone(&shared),
            handles: Vec::new(),
            registry: Arc::new(Registry::new(shared.config.max_subscriptions)),
            capacity: Arc::default(),
            threads: Mutex::new(Vec::new()),
            places,
            certificates,
            internal,
            handoff_server: Mutex::new(None),
            files: Mutex::new(files),
            drained: AtomicBool::new(false),
            process: std::process::id(),
        };
        let mut workers = Vec::new();
        for (number, listeners) in listeners.into_iter().enumerate() {
            let id = WorkerId::new(number).ok_or_else(|| io::Error::other("there are too many workers"))?;
            let worker = worker::prepare(
                id,
                Arc::clone(&shared),
                Arc::clone(&engine.registry),
                Arc::clone(&engine.capacity),
                listeners,
            )?;
            engine.handles.push(worker.worker());
            workers.push(worker);
        }
        let _ = shared.handles.set(engine.handles.clone()); // it is set only here
        // Before the first session, so that the broker gets every subscription.
        if let Some(connect) = &shared.config.broker {
            let sink = EngineSink::new(Arc::clone(&shared), Arc::clone(&engine.registry), engine.handles.clone());
            let broker = connect.connect(Arc::new(sink))?;
            let weak = Arc::downgrade(&broker);
            engine.registry.set_interest(Box::new(move |pattern, wanted| {
                if let Some(broker) = weak.upgrade() {
                    broker.interest(pattern, wanted);
                }
            }));
            let _ = shared.broker.set(broker); // it is set only here
        }
        // Workers accept only once nothing can fail: their clients would be lost.
        let mut gates = Vec::new();
        for (number, worker) in workers.into_iter().enumerate() {
            let name = format!("wirespeed-{number}");
            let (gate, opened) = channel();
            let serve = move || match opened.recv() {
                Ok(listeners) => worker.run(listeners),
                Err(_) => worker.give_up(),
            };
            lock(&engine.threads).push(std::thread::Builder::new().name(name).spawn(serve)?);
            gates.push(gate);
        }
        let keep = |path| handoff::serve(path, engine.control(), shared.config.drain.clone());
        let mut handoff_server = shared.config.handoff.as_deref().map(keep).transpose()?;
        // The workers are about to accept: the other engine may close its listeners.
        let confirmed = received.is_some();
        if let (Some(received), Some(path)) = (received, &shared.config.handoff) {
            received.confirm(path)?;
            shared.checked_out.store(false, Ordering::Release);
            // The files that the other engine has created belong to this one now.
            *lock(&engine.files) = engine.places.iter().filter_map(open_listeners::file_of).collect();
        }
        let joined = open_listeners::join(joining, count, &shared);
        match handoff_server.as_mut().map_or(Ok(()), HandoffServer::take_place) {
            // The other engine has ended: this one goes on in spite of the error.
            Err(error) if confirmed => shared.logs.note_as(Cause::Handoff, Level::Error, Instant::now(), || {
                format!("no engine can take over from this one: {error}")
            }),
            placed => placed?,
        }
        for (gate, listeners) in gates.into_iter().zip(joined) {
            let _ = gate.send(listeners); // the worker waits for it
        }
        *lock(&engine.handoff_server) = handoff_server;
        Ok(engine)
    }

    fn control(&self) -> EngineControl {
        EngineControl { shared: Arc::clone(&self.shared), workers: self.handles.clone() }
    }

    /// Returns the address of [`crate::config::Http::at`].
    #[must_use]
    pub fn http_place(&self) -> Option<&Place> {
        self.internal.as_ref()
    }

    /// Returns the log records for the operators.
    #[must_use]
    pub fn logs(&self) -> &Logs {
        &self.shared.logs
    }

    /// Returns the log records for a thread of its own.
    #[must_use]
    pub fn shared_logs(&self) -> Arc<Logs> {
        Arc::clone(&self.shared.logs)
    }

    /// Replaces the TLS configuration of all listeners that have one, and its files, for new clients.
    pub fn set_tls(&self, config: &Arc<TlsConfig>, renewal: Option<&Renewal>) {
        self.certificates.iter().for_each(|certificate| certificate.replace(Arc::clone(config), renewal.cloned()));
    }

    /// Returns a channel that receives, at most once, the end of the drain after another engine has taken over. It is
    /// closed when no engine can take over any more. `None`: handoff is not configured, or the channel was taken
    /// before.
    #[must_use]
    pub fn handed_over(&self) -> Option<Receiver<Instant>> {
        lock(&self.handoff_server).as_mut()?.drain_deadline()
    }

    /// Begins a graceful shutdown. The caller makes its steps.
    #[must_use]
    pub fn begin_drain(&self, how: Drain) -> Draining {
        // No engine takes over from one that ends.
        drop(lock(&self.handoff_server).take());
        Draining::begin(self.control(), how, false, Instant::now())
    }

    /// Returns the addresses that clients connect to.
    #[must_use]
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Returns the number of worker threads.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.handles.len()
    }

    /// Returns the queue of events. If events are not taken, nothing more is read.
    #[must_use]
    pub fn events(&self) -> &Arc<Events> {
        &self.shared.events
    }

    /// Returns the metrics of each worker, and those of the engine.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.shared.figures()
    }

    /// Counts and logs a message that the application did not understand. `kind` names the error for the log, and must
    /// not contain anything of the message. If `closes`, the session is closed with code 1007 (RFC 6455 7.4.1), and
    /// with the part of `why` that fits into a close frame.
    pub fn refuse_message(&self, session: &Session, kind: &str, why: &str, closes: bool) {
        self.shared.invalid_messages.fetch_add(1, Ordering::Relaxed);
        self.shared.logs.note(Cause::Invalid, Instant::now(), || {
            format!("session {} has sent a message that is not valid: {}", session.id(), kind.escape_debug())
        });
        if closes {
            let reason = why.get(..why.floor_char_boundary(MAX_REASON)).unwrap_or_default();
            let _ = session.close(CloseCode::INVALID_DATA, reason); // the code and the length are valid
        }
    }

    /// Returns whether this is a copy in a forked child, which has none of the threads.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Encodes a message for [`Self::publish_many`] and [`Session::send_encoded`]. Its memory counts towards the total
    /// of all sessions until it is freed.
    ///
    /// # Errors
    /// The message is not valid.
    pub fn encode(&self, kind: MessageKind, payload: &[u8]) -> Result<Arc<Encoded>, Refusal> {
        self.shared.encode(kind, payload).map_err(Refusal::Invalid)
    }

    /// Sends a message to all open sessions but `except`. Returns whether there is capacity for more.
    ///
    /// # Errors
    /// The message is not valid, or the engine has stopped.
    pub fn broadcast(&self, kind: MessageKind, payload: &[u8], except: Option<&Session>) -> Result<bool, Refusal> {
        self.check_broker(payload.len())?;
        let except = self.own_id(except);
        let handles = || self.handles.iter();
        let pending = Pending { message: self.encode(kind, payload)?, key: None };
        let mut fan_out = FanOut::new(&self.shared, &self.handles);
        let room = fan_out.put(handles, None, pending.cost(), || Command::broadcast(&pending, except))?;
        if let Some(broker) = self.shared.broker.get() {
            broker.broadcast(Message { kind, payload, key: None }); // the broker counts and logs a refusal
        }
        Ok(room)
    }

    /// Sends a message to the subscribers of the topic but `except`. Returns their number, and whether there is
    /// capacity for more. `key`: the subject of the message, see [`crate::config::Policy::Conflate`].
    ///
    /// # Errors
    /// The message is not valid, or the engine has stopped.
    pub fn publish(
        &self,
        topic: &Topic,
        kind: MessageKind,
        payload: &[u8],
        except: Option<&Session>,
        key: Option<Arc<str>>,
    ) -> Result<(usize, bool), Refusal> {
        self.publish_everywhere(topic, kind, payload, except, key).map(|done| (done.count, done.room))
    }

    /// Publishes like [`Self::publish`], and also returns whether the message goes to other engines.
    ///
    /// # Errors
    /// As for [`Self::publish`]. If the broker's queue is full and its policy is to return an error, no session gets
    /// it.
    pub fn publish_everywhere(
        &self,
        topic: &Topic,
        kind: MessageKind,
        payload: &[u8],
        except: Option<&Session>,
        key: Option<Arc<str>>,
    ) -> Result<Published, Refusal> {
        let message = self.encode(kind, payload)?;
        self.check_broker(payload.len())?;
        let mut fan_out = FanOut::new(&self.shared, &self.handles);
        fan_out.publish(&self.registry, topic, message, self.own_id(except), key).map_err(Refusal::from)
    }

    /// Publishes several messages in order, as [`Self::publish_everywhere`] does. Workers are woken once for all of
    /// them, as far as mailboxes have capacity. Returns the sum of the recipients, and whether there is capacity for
    /// more. The result for other engines is that of the last message that does not go to them, if there is one.
    ///
    /// # Errors
    /// The error of the message at this index: those before it are published, it and those after it are not.
    pub fn publish_many(&self, items: impl IntoIterator<Item = Item>) -> Result<Published, (usize, Refusal)> {
        let mut fan_out = FanOut::new(&self.shared, &self.handles).waking_later();
        let mut all: Option<Published> = None;
        for (index, Item { topic, message, key }) in items.into_iter().enumerate() {
            let done = self
                .check_broker(message.payload().len())
                .and_then(|()| fan_out.publish(&self.registry, &topic, message, None, key).map_err(Refusal::from));
            let done = done.map_err(|refusal| (index, refusal))?;
            let all = all.get_or_insert(Published { count: 0, room: true, broker: EnqueueResult::Yes });
            all.count += done.count;
            all.room &= done.room;
            if done.broker != EnqueueResult::Yes {
                all.broker = done.broker;
            }
        }
        Ok(all.unwrap_or(Published { count: 0, room: true, broker: EnqueueResult::Local }))
    }

    /// Returns the open sessions of all workers and roles, the newest first.
    #[must_use]
    pub fn sessions(&self) -> Vec<Session> {
        self.shared.sessions.find(usize::MAX, Session::is_open)
    }

    /// Returns the session with this number, if it is open.
    #[must_use]
    pub fn session(&self, id: u64) -> Option<Session> {
        self.shared.sessions.session(id).filter(Session::is_open)
    }

    /// Returns the number of a session of this engine: one of another engine may have the same.
    fn own_id(&self, session: Option<&Session>) -> Option<u64> {
        session.filter(|session| session.belongs_to(&self.registry)).map(Session::id)
    }

    fn check_broker(&self, bytes: usize) -> Result<(), Refusal> {
        let admits = self.shared.broker.get().is_none_or(|broker| broker.admits(bytes));
        if admits { Ok(()) } else { Err(Refusal::BrokerFull) }
    }

    /// Returns the connection to other engines.
    #[must_use]
    pub fn broker(&self) -> Option<&dyn Broker> {
        self.shared.broker.get().map(|broker| &**broker)
    }

    /// Publishes like [`Self::publish`] in the name of a session that may, see [`Session::may`]. `except_self`: the
    /// session does not get the message itself.
    ///
    /// # Errors
    /// The session has no permission; or as for [`Self::publish`].
    pub fn publish_as(
        &self,
        session: &Session,
        topic: &Topic,
        kind: MessageKind,
        payload: &[u8],
        except_self: bool,
        key: Option<Arc<str>>,
    ) -> Result<(usize, bool), Refusal> {
        if !session.may(TopicPermission::Publish, topic.as_str()) {
            return Err(Refusal::Denied);
        }
        self.publish(topic, kind, payload, except_self.then_some(session), key)
    }

    /// Returns how many sessions subscribe to a topic, by its name or by wildcards.
    #[must_use]
    pub fn subscribers(&self, topic: &Topic) -> usize {
        self.registry.subscribers(topic)
    }

    /// Returns whether every mailbox has capacity and the topic's subscribers are not congested. Sessions that read
    /// nothing do not count. Without a topic, all sessions are meant.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn has_capacity(&self, topic: Option<&Topic>) -> Result<bool, Refused> {
        has_capacity(&self.handles, topic)
    }

    /// Waits until [`Self::has_capacity`] returns true, or the deadline.
    ///
    /// # Errors
    /// There was none by the deadline, or the engine has stopped.
    pub fn wait_for_capacity(&self, topic: Option<&Topic>, deadline: Option<Instant>) -> Result<(), Refused> {
        self.capacity.wait(deadline, || self.has_capacity(topic))
    }

    /// Returns a number that identifies what [`Self::watch_capacity`] watches: it is the same for an engine and its
    /// sessions.
    #[must_use]
    pub fn capacity_key(&self) -> usize {
        Arc::as_ptr(&self.capacity) as usize
    }

    /// Calls the waker, in any thread, whenever there may be capacity again, until the result is dropped.
    #[must_use]
    pub fn watch_capacity(&self, wake: Arc<dyn Wake>) -> Watch {
        self.capacity.watch(wake)
    }

    /// Stops accepting, and closes all sessions after their queued messages. The workers end when the last session is
    /// over.
    pub fn drain(&self, code: CloseCode, reason: &str) {
        if self.drained.swap(true, Ordering::AcqRel) {
            return; // the workers have the command, and have accepted no client since
        }
        for worker in &self.handles {
            let _ = worker.mailbox.put(Command::Drain(code, reason.into()), 0); // a worker that has ended is drained
        }
    }

    /// Returns whether all workers have ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.metrics.iter().all(|metrics| metrics.ended.load(Ordering::Acquire))
    }

    /// Ends everything immediately, and waits for the threads. A second call does nothing.
    ///
    /// # Errors
    /// The event loop of a worker had failed before.
    pub fn stop(&self) -> io::Result<()> {
        self.shared.end_workers();
        self.join()
    }

    /// Waits until all workers have ended.
    ///
    /// # Errors
    /// As for [`Self::stop`].
    pub fn join(&self) -> io::Result<()> {
        if self.is_forked() {
            return Ok(());
        }
        drop(lock(&self.handoff_server).take());
        let files = std::mem::take(&mut *lock(&self.files));
        if self.shared.may_shut_down() {
            drop(files);
        } else {
            files.into_iter().for_each(SocketFile::keep);
        }
        self.shared.take_listeners();
        // Under the lock, so that a second caller also waits until all have ended.
        let mut threads = lock(&self.threads);
        let mut result = Ok(());
        for thread in threads.drain(..) {
            match thread.join() {
                Ok(ended) => result = result.and(ended),
                Err(_) => result = Err(io::Error::other("a worker has panicked")),
            }
        }
        if let Some(broker) = self.shared.broker.get() {
            broker.close();
        }
        self.shared.events.close();
        self.shared.logs.end();
        result
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.stop(); // the error has no recipient
    }
}
