//! All workers together: begins, is told what to send, and ends.

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
use crate::broker::{Broker, EngineSink, EnqueueResult, Message, Published, Slot};
use crate::capacity::{CapacityNotifier, Watch};
use crate::certificate::{Certificate, Renewal};
use crate::config::{Config, Place, Role};
use crate::drain::{Drain, Draining, EngineControl};
use crate::events::Events;
use crate::handoff::{self, HandoffServer};
use crate::listen::SocketFile;
use crate::locks::lock;
use crate::logs::{self, Cause, Level, Logs};
use crate::mailbox::{Refused, Wake};
use crate::metrics::{Figures, WorkerMetrics};
use crate::operator_tokens::OperatorTokens;
use crate::outbox::Pending;
use crate::page;
use crate::publishing::{FanOut, has_capacity};
use crate::routes::Route;
use crate::session::{Refusal, Session, TopicPermission, WorkerHandle};
use crate::session_registry::SessionRegistry;
use crate::session_setup::{self, Opened};
use crate::slow_consumer::Budgets;
use crate::takeover_lock;
use crate::topics::{MAX_WORKERS, Registry, Topic, WorkerId};
use crate::worker::{self, Command, EngineShared};

/// Bytes of the reason in a close frame, at most (RFC 6455 5.5).
const REASON: usize = 123;

/// A message for [`Engine::publish_many`].
#[derive(Clone, Debug)]
pub struct Item {
    /// Where it is published.
    pub topic: Topic,
    /// What: see [`Engine::encode`].
    pub message: Arc<Encoded>,
    /// What it is about: see [`crate::outbox::Policy::Conflate`].
    pub key: Option<Arc<str>>,
}

/// A server that runs. Dropped, it stops.
pub struct Engine {
    shared: Arc<EngineShared>,
    homes: Vec<Arc<WorkerHandle>>,
    registry: Arc<Registry>,
    room: Arc<CapacityNotifier>,
    threads: Mutex<Vec<JoinHandle<io::Result<()>>>>,
    places: Vec<Place>,
    /// Of the listeners that have one.
    certificates: Vec<Arc<Certificate>>,
    internal: Option<Place>,
    /// Whoever waits for an engine that takes over.
    keeper: Mutex<Option<HandoffServer>>,
    /// Of Unix sockets where clients connect.
    files: Mutex<Vec<SocketFile>>,
    /// All workers were told to end their sessions.
    drained: AtomicBool,
    /// Its threads are those of this process.
    process: u32,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("places", &self.places)
            .field("workers", &self.homes.len())
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
    /// An address cannot be listened at, or a thread cannot begin.
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
        // Until it serves: an engine that starts at the same moment takes over from this one then.
        let _turn = config.handoff.as_deref().map(|path| takeover_lock::take(path, check)).transpose()?;
        let mut inherited = config.handoff.as_deref().map(handoff::ask).transpose()?.flatten();
        for listen in &config.listen {
            let certificate =
                listen.tls.clone().map(|tls| Arc::new(Certificate::new(tls, config.renewal.clone(), start)));
            places.push(opened.open(&listen.at, certificate.as_ref(), false, inherited.as_mut())?);
            certificates.extend(certificate);
        }
        let internal = match &config.http.at {
            None => None,
            Some(at) => Some(opened.open(at, None, true, inherited.as_mut())?),
        };
        let Opened { listeners, joining, mut offers, files, .. } = opened;
        if config.handoff.is_none() {
            offers.clear();
        }
        let shared = Arc::new(EngineShared {
            events: Arc::new(Events::new(config.max_events, config.max_event_bytes)),
            admission: Admission::new(config.admission.clone()),
            pending: config.admission.max_pending.div_ceil(count),
            sheets: (0..count).map(|_| Arc::new(WorkerMetrics::new(start))).collect(),
            stop: AtomicBool::new(false),
            last_id: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            homes: OnceLock::new(),
            listeners: Mutex::new(offers),
            // Until they are ours alone, to give up changes nothing for whoever has them.
            checked_out: AtomicBool::new(inherited.is_some()),
            logs: Arc::new(Logs::new(start, logs::INTERVAL)),
            operator_tokens: OperatorTokens::default(),
            invalid: AtomicU64::new(0),
            memory: Arc::default(),
            sessions_registry: SessionRegistry::new(count),
            page: page::Kept::default(),
            start,
            alive: AtomicUsize::new(count),
            turns: AtomicUsize::new(0),
            occupied: AtomicUsize::new(count),
            short: AtomicBool::new(false),
            budgets: Budgets::default(),
            broker: Slot::new(),
            plain: [Role::Events, Role::Echo].map(|role| Arc::new(Route::new(role, &config))),
            config,
        });
        let mut engine = Self {
            shared: Arc::clone(&shared),
            homes: Vec::new(),
            registry: Arc::new(Registry::new(shared.config.max_subscriptions)),
            room: Arc::default(),
            threads: Mutex::new(Vec::new()),
            places,
            certificates,
            internal,
            keeper: Mutex::new(None),
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
                Arc::clone(&engine.room),
                listeners,
            )?;
            engine.homes.push(worker.worker());
            workers.push(worker);
        }
        let _ = shared.homes.set(engine.homes.clone()); // nobody else does
        // Before the first session, so that it hears of every subscription.
        if let Some(connect) = &shared.config.broker {
            let inlet = EngineSink::new(Arc::clone(&shared), Arc::clone(&engine.registry), engine.homes.clone());
            let broker = connect.connect(Arc::new(inlet))?;
            let told = Arc::downgrade(&broker);
            engine.registry.set_interest(Box::new(move |pattern, wanted| {
                if let Some(broker) = told.upgrade() {
                    broker.interest(pattern, wanted);
                }
            }));
            let _ = shared.broker.set(broker); // once
        }
        // Nobody is accepted before nothing can fail any more: else whoever came in would be lost with us.
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
        let keep = |path| handoff::keep(path, engine.control(), shared.config.drain.clone());
        let mut keeper = shared.config.handoff.as_deref().map(keep).transpose()?;
        // They are about to accept: whoever had the listeners may let go.
        let confirmed = inherited.is_some();
        if let (Some(inherited), Some(path)) = (inherited, &shared.config.handoff) {
            inherited.confirm(path)?;
            shared.checked_out.store(false, Ordering::Release);
            // What others have bound is ours now.
            *lock(&engine.files) = engine.places.iter().filter_map(session_setup::file_of).collect();
        }
        let joined = session_setup::join(joining, count, &shared);
        match keeper.as_mut().map_or(Ok(()), HandoffServer::take_place) {
            // Nobody else serves any more.
            Err(error) if confirmed => shared.logs.note_as(Cause::Handoff, Level::Error, Instant::now(), || {
                format!("nobody can take over from this engine: {error}")
            }),
            placed => placed?,
        }
        for (gate, listeners) in gates.into_iter().zip(joined) {
            let _ = gate.send(listeners); // it waits for that
        }
        *lock(&engine.keeper) = keeper;
        Ok(engine)
    }

    fn control(&self) -> EngineControl {
        EngineControl { shared: Arc::clone(&self.shared), homes: self.homes.clone() }
    }

    /// Where [`crate::Http::at`] is.
    #[must_use]
    pub fn http_place(&self) -> Option<&Place> {
        self.internal.as_ref()
    }

    /// What those who run it should hear of.
    #[must_use]
    pub fn logs(&self) -> &Logs {
        &self.shared.logs
    }

    /// The same, for whoever takes them in a thread of its own.
    #[must_use]
    pub fn shared_logs(&self) -> Arc<Logs> {
        Arc::clone(&self.shared.logs)
    }

    /// Replaces the TLS configuration of all listeners that have one, and where it is from: for clients that come from
    /// now on.
    pub fn set_tls(&self, config: &Arc<TlsConfig>, renewal: Option<&Renewal>) {
        self.certificates.iter().for_each(|certificate| certificate.replace(Arc::clone(config), renewal.cloned()));
    }

    /// Where it is told, once, until when this engine drains that another one has taken over from; what is there has
    /// ended when nobody can any more. `None`: nobody can, or somebody else has it.
    #[must_use]
    pub fn handed_over(&self) -> Option<Receiver<Instant>> {
        lock(&self.keeper).as_mut()?.given()
    }

    /// Ends it without haste: the steps are the caller's to make.
    #[must_use]
    pub fn begin_drain(&self, how: Drain) -> Draining {
        // Nobody takes over from an engine that ends.
        drop(lock(&self.keeper).take());
        Draining::begin(self.control(), how, false, Instant::now())
    }

    /// Where clients connect to.
    #[must_use]
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Threads that serve.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.homes.len()
    }

    /// What clients have sent, and who has come and gone: to be taken, or nothing more is read.
    #[must_use]
    pub fn events(&self) -> &Arc<Events> {
        &self.shared.events
    }

    /// What has been counted, of each worker.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.shared.figures()
    }

    /// The application does not understand what a client has sent: that is counted and logged, by the `kind` of error,
    /// which must have nothing of the message; and the session closed with code 1007 (RFC 6455 7.4.1), if `closes`, and
    /// as much of the reason why as a close frame can hold.
    pub fn refuse_message(&self, session: &Session, kind: &str, why: &str, closes: bool) {
        self.shared.invalid.fetch_add(1, Ordering::Relaxed);
        self.shared.logs.note(Cause::Invalid, Instant::now(), || {
            format!("session {} has sent a message that is not valid: {}", session.id(), kind.escape_debug())
        });
        if closes {
            let reason = why.get(..why.floor_char_boundary(REASON)).unwrap_or_default();
            let _ = session.close(CloseCode::INVALID_DATA, reason); // its length and code are right
        }
    }

    /// Whether this is a copy in a child process, which has none of the threads.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// A message for [`Self::publish_many`] and [`Session::send_encoded`]; it counts among what waits for all sessions,
    /// for as long as there is any of it.
    ///
    /// # Errors
    /// There is no such message.
    pub fn encode(&self, kind: MessageKind, payload: &[u8]) -> Result<Arc<Encoded>, Refusal> {
        self.shared.encode(kind, payload).map_err(Refusal::Invalid)
    }

    /// Sends a message to all sessions that are open, but `except`. True: there is room for more.
    ///
    /// # Errors
    /// There is no such message, or the engine has stopped.
    pub fn broadcast(&self, kind: MessageKind, payload: &[u8], except: Option<&Session>) -> Result<bool, Refusal> {
        self.check_broker(payload.len())?;
        let except = self.number(except);
        let homes = || self.homes.iter();
        let pending = Pending { message: self.encode(kind, payload)?, key: None };
        let mut posting = FanOut::new(&self.shared, &self.homes);
        let room = posting.put(homes, None, pending.cost(), || Command::broadcast(&pending, except))?;
        if let Some(broker) = self.shared.broker.get() {
            broker.broadcast(Message { kind, payload, key: None }); // what is refused is counted, and told
        }
        Ok(room)
    }

    /// Sends a message to the sessions that subscribe to the topic, but `except`: how many they are, and whether
    /// there is room for more. `key`: what it is about, see [`crate::outbox::Policy::Conflate`].
    ///
    /// # Errors
    /// There is no such message, or the engine has stopped.
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

    /// The same, and whether it goes to other engines.
    ///
    /// # Errors
    /// As for [`Self::publish`]; and the broker's queue is full, if its policy is to say so: then nobody gets it.
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
        let mut posting = FanOut::new(&self.shared, &self.homes);
        posting.publish(&self.registry, topic, message, self.number(except), key).map_err(Refusal::from)
    }

    /// Publishes several messages, in their order, each as [`Self::publish_everywhere`] does; workers are woken once for
    /// all of them, as far as there is room. To how many sessions they go in all, whether there is room for more, and
    /// whether each goes to other engines: if not, what became of the last that does not.
    ///
    /// # Errors
    /// As for that, of the message at this place: those before it are published, it and those after it are not.
    pub fn publish_many(&self, items: impl IntoIterator<Item = Item>) -> Result<Published, (usize, Refusal)> {
        let mut posting = FanOut::new(&self.shared, &self.homes).waking_late();
        let mut all: Option<Published> = None;
        for (index, Item { topic, message, key }) in items.into_iter().enumerate() {
            let done = self
                .check_broker(message.payload().len())
                .and_then(|()| posting.publish(&self.registry, &topic, message, None, key).map_err(Refusal::from));
            let done = done.map_err(|refusal| (index, refusal))?;
            let all = all.get_or_insert(Published { count: 0, room: true, took: EnqueueResult::Yes });
            all.count += done.count;
            all.room &= done.room;
            if done.took != EnqueueResult::Yes {
                all.took = done.took;
            }
        }
        Ok(all.unwrap_or(Published { count: 0, room: true, took: EnqueueResult::Local }))
    }

    /// The sessions that are open at this moment, of all workers and whatever is done with their messages; the newest
    /// first.
    #[must_use]
    pub fn sessions(&self) -> Vec<Session> {
        self.shared.sessions_registry.find(usize::MAX, Session::is_open)
    }

    /// The session with this number, if it is open.
    #[must_use]
    pub fn session(&self, id: u64) -> Option<Session> {
        self.shared.sessions_registry.session(id).filter(Session::is_open)
    }

    /// The number of a session that is ours: one of another engine may have the same.
    fn number(&self, session: Option<&Session>) -> Option<u64> {
        session.filter(|session| session.belongs_to(&self.registry)).map(Session::id)
    }

    fn check_broker(&self, bytes: usize) -> Result<(), Refusal> {
        let admits = self.shared.broker.get().is_none_or(|broker| broker.admits(bytes));
        if admits { Ok(()) } else { Err(Refusal::BrokerFull) }
    }

    /// What connects it with other engines.
    #[must_use]
    pub fn broker(&self) -> Option<&dyn Broker> {
        self.shared.broker.get().map(|broker| &**broker)
    }

    /// The same for a session: if it may, see [`Session::may`]. `except_self`: it does not get it itself.
    ///
    /// # Errors
    /// It may not; or as for [`Self::publish`].
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

    /// How many sessions subscribe to a topic, by its name or by wildcards.
    #[must_use]
    pub fn subscribers(&self, topic: &Topic) -> usize {
        self.registry.subscribers(topic)
    }

    /// Whether every worker takes more, and most of the topic's subscribers keep up, as far as they take anything
    /// at all; without a topic, most of all sessions.
    ///
    /// # Errors
    /// The engine has stopped.
    pub fn has_capacity(&self, topic: Option<&Topic>) -> Result<bool, Refused> {
        has_capacity(&self.homes, topic)
    }

    /// Waits for what [`Self::has_capacity`] says, or the deadline.
    ///
    /// # Errors
    /// Not by then, or the engine has stopped.
    pub fn wait_for_capacity(&self, topic: Option<&Topic>, deadline: Option<Instant>) -> Result<(), Refused> {
        self.room.wait(deadline, || self.has_capacity(topic))
    }

    /// The same number for all whom the same [`Self::watch_room`] tells: this engine and its sessions.
    #[must_use]
    pub fn room_key(&self) -> usize {
        Arc::as_ptr(&self.room) as usize
    }

    /// Has somebody woken, in whichever thread, whenever there may be room again, until what is returned is
    /// dropped.
    #[must_use]
    pub fn watch_room(&self, wake: Arc<dyn Wake>) -> Watch {
        self.room.watch(wake)
    }

    /// Accepts nobody any more, and closes all sessions, after what was sent to them. The workers end when the
    /// last one is over.
    pub fn drain(&self, code: CloseCode, reason: &str) {
        if self.drained.swap(true, Ordering::AcqRel) {
            return; // they have been told, and nobody has come since
        }
        for worker in &self.homes {
            let _ = worker.mailbox.put(Command::Drain(code, reason.into()), 0); // who has ended is drained
        }
    }

    /// Whether all workers have ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.sheets.iter().all(|metrics| metrics.ended.load(Ordering::Acquire))
    }

    /// Ends everything now, and waits for the threads. Again: nothing.
    ///
    /// # Errors
    /// What a worker has ended with before: its event loop has failed.
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
        drop(lock(&self.keeper).take());
        let files = std::mem::take(&mut *lock(&self.files));
        if self.shared.may_shut() {
            drop(files);
        } else {
            files.into_iter().for_each(SocketFile::leave);
        }
        self.shared.take_listeners();
        // Whoever comes second waits as well: before all have ended, nothing is complete.
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
        let _ = self.stop(); // nobody is left to be told
    }
}
