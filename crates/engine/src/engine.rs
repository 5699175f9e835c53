//! All workers together: begins, is told what to send, and ends.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use wirespeed_driver::protocol::{CloseCode, MessageKind};
use wirespeed_driver::tls::server::ServerConfig as TlsConfig;

use crate::admission::Admission;
use crate::broker::{self, Broker, Inlet, Message, Published, Slot};
use crate::certificate::Certificate;
use crate::config::{Config, Place};
use crate::drain::{Drain, Draining, Reins};
use crate::events::Events;
use crate::handover::{self, Inherited, Keeper, Offer};
use crate::listen;
use crate::locks::lock;
use crate::logs::{self, Logs};
use crate::mailbox::{Refused, Wake};
use crate::metrics::{Figures, Sheet};
use crate::outbox::Pending;
use crate::page::{self, Roster};
use crate::room::{Room, Watch};
use crate::session::{Deed, Home, Refusal, Session};
use crate::topics::{MAX_WORKERS, Registry, Topic, WorkerId};
use crate::worker::{self, Command, Common, Door};

/// A server that runs. Dropped, it stops.
pub struct Engine {
    common: Arc<Common>,
    homes: Vec<Arc<Home>>,
    registry: Arc<Registry>,
    room: Arc<Room>,
    wakers: Vec<Arc<dyn Wake>>,
    threads: Mutex<Vec<JoinHandle<io::Result<()>>>>,
    places: Vec<Place>,
    /// Of the listeners that have one.
    certificates: Vec<Arc<Certificate>>,
    inside: Option<Place>,
    /// Whoever waits for an engine that takes over.
    keeper: Mutex<Option<Keeper>>,
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
    /// Begins to serve.
    ///
    /// # Errors
    /// An address cannot be listened at, or a thread cannot begin.
    pub fn start(config: Config) -> io::Result<Self> {
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
        let mut inherited = config.handover.as_deref().map(handover::ask).transpose()?.flatten();
        for listen in &config.listen {
            let certificate =
                listen.tls.clone().map(|tls| Arc::new(Certificate::new(tls, config.renewal.clone(), start)));
            places.push(opened.open(&listen.at, certificate.as_ref(), false, inherited.as_mut())?);
            certificates.extend(certificate);
        }
        let inside = match &config.http.at {
            None => None,
            Some(at) => Some(opened.open(at, None, true, inherited.as_mut())?),
        };
        let Opened { doors, mut offers, .. } = opened;
        if config.handover.is_none() {
            offers.clear();
        }
        let common = Arc::new(Common {
            events: Events::new(config.max_events, config.max_event_bytes),
            admission: Admission::new(config.admission.clone()),
            pending: config.admission.max_pending.div_ceil(count),
            sheets: (0..count).map(|_| Arc::new(Sheet::new(start))).collect(),
            stop: AtomicBool::new(false),
            last_id: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            homes: OnceLock::new(),
            listeners: Mutex::new(offers),
            // Until they are ours alone, to give up changes nothing for whoever has them.
            lent: AtomicBool::new(inherited.is_some()),
            logs: Arc::new(Logs::new(start, logs::INTERVAL)),
            ledger: Arc::default(),
            roster: config.http.page.is_some().then(|| Roster::new(count)),
            page: page::Kept::default(),
            start,
            alive: AtomicUsize::new(count),
            broker: Slot::new(),
            config,
        });
        let mut engine = Self {
            common: Arc::clone(&common),
            homes: Vec::new(),
            registry: Arc::new(Registry::new(common.config.max_subscriptions)),
            room: Arc::default(),
            wakers: Vec::new(),
            threads: Mutex::new(Vec::new()),
            places,
            certificates,
            inside,
            keeper: Mutex::new(None),
            drained: AtomicBool::new(false),
            process: std::process::id(),
        };
        let mut workers = Vec::new();
        for (number, doors) in doors.into_iter().enumerate() {
            let id = WorkerId::new(number).ok_or_else(|| io::Error::other("there are too many workers"))?;
            let worker = worker::prepare(
                id,
                Arc::clone(&common),
                Arc::clone(&engine.registry),
                Arc::clone(&engine.room),
                doors,
            )?;
            engine.homes.push(worker.home());
            engine.wakers.push(worker.waker());
            workers.push(worker);
        }
        let _ = common.homes.set(engine.homes.clone()); // nobody else does
        // Before the first session, so that it hears of every subscription.
        if let Some(connect) = &common.config.broker {
            let inlet = Inlet::new(Arc::clone(&common), Arc::clone(&engine.registry), engine.homes.clone());
            let broker = connect.connect(Arc::new(inlet))?;
            let told = Arc::downgrade(&broker);
            engine.registry.set_interest(Box::new(move |pattern, wanted| {
                if let Some(broker) = told.upgrade() {
                    broker.interest(pattern, wanted);
                }
            }));
            let _ = common.broker.set(broker); // once
        }
        for (number, worker) in workers.into_iter().enumerate() {
            let name = format!("wirespeed-{number}");
            let thread = std::thread::Builder::new().name(name).spawn(move || worker.run())?;
            lock(&engine.threads).push(thread);
        }
        // They accept: whoever had the listeners may let go.
        if let Some(inherited) = inherited {
            inherited.confirm()?;
            common.lent.store(false, Ordering::Release);
        }
        if let Some(path) = &common.config.handover {
            let keeper = handover::keep(path, engine.reins(), common.config.drain.clone())?;
            *lock(&engine.keeper) = Some(keeper);
        }
        Ok(engine)
    }

    fn reins(&self) -> Reins {
        Reins { common: Arc::clone(&self.common), homes: self.homes.clone(), wakers: self.wakers.clone() }
    }

    /// Where [`crate::Http::at`] is.
    #[must_use]
    pub fn http_place(&self) -> Option<&Place> {
        self.inside.as_ref()
    }

    /// What those who run it should hear of.
    #[must_use]
    pub fn logs(&self) -> &Logs {
        &self.common.logs
    }

    /// The same, for whoever takes them in a thread of its own.
    #[must_use]
    pub fn shared_logs(&self) -> Arc<Logs> {
        Arc::clone(&self.common.logs)
    }

    /// Replaces the TLS configuration of all listeners that have one: for clients that come from now on.
    pub fn set_tls(&self, config: &Arc<TlsConfig>) {
        self.certificates.iter().for_each(|certificate| certificate.replace(Arc::clone(config)));
    }

    /// Ends it without haste: the steps are the caller's to make.
    #[must_use]
    pub fn begin_drain(&self, how: Drain) -> Draining {
        // Nobody takes over from an engine that ends.
        drop(lock(&self.keeper).take());
        Draining::begin(self.reins(), how, false, Instant::now())
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
    pub fn events(&self) -> &Events {
        &self.common.events
    }

    /// What has been counted, of each worker.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.common.figures()
    }

    /// Whether this is a copy in a child process, which has none of the threads.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Sends a message to all sessions that are open, but `except`. True: there is room for more.
    ///
    /// # Errors
    /// There is no such message, or the engine has stopped.
    pub fn broadcast(&self, kind: MessageKind, payload: &[u8], except: Option<&Session>) -> Result<bool, Refusal> {
        self.check_broker(payload.len())?;
        let except = self.number(except);
        let homes = || self.homes.iter();
        let pending = Pending { message: self.common.encode(kind, payload).map_err(Refusal::Invalid)?, key: None };
        let room = self.put_into(homes, None, pending.cost(), || Command::Broadcast(pending.clone(), except))?;
        if let Some(broker) = self.common.broker.get() {
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
        let message = self.common.encode(kind, payload).map_err(Refusal::Invalid)?;
        let pending = Pending { message, key: key.clone() };
        self.check_broker(payload.len())?;
        let except = self.number(except);
        let (count, put) = self.registry.publish(topic, except, |workers| {
            let homes = || workers.iter().map(|worker| &self.homes[worker.index()]);
            self.put_into(homes, Some(topic), pending.cost(), || {
                Command::Publish(topic.clone(), pending.clone(), except)
            })
        });
        let room = put?;
        if count == 0 && self.common.stop.load(Ordering::Acquire) {
            return Err(Refusal::Closed);
        }
        let took = broker::forward(&self.common.broker, topic, Message { kind, payload, key: key.as_deref() });
        Ok(Published { count, room, took })
    }

    /// The number of a session that is ours: one of another engine may have the same.
    fn number(&self, session: Option<&Session>) -> Option<u64> {
        session.filter(|session| session.belongs_to(&self.registry)).map(Session::id)
    }

    fn check_broker(&self, bytes: usize) -> Result<(), Refusal> {
        let admits = self.common.broker.get().is_none_or(|broker| broker.admits(bytes));
        if admits { Ok(()) } else { Err(Refusal::BrokerFull) }
    }

    /// What connects it with other engines.
    #[must_use]
    pub fn broker(&self) -> Option<&dyn Broker> {
        self.common.broker.get().map(|broker| &**broker)
    }

    /// Puts a command into the mailboxes of several workers: of all, or of none, because whoever is refused comes
    /// again. Whether there is room for more, and the audience keeps up.
    fn put_into<'a, H: Iterator<Item = &'a Arc<Home>>>(
        &self,
        homes: impl Fn() -> H,
        audience: Option<&Topic>,
        bytes: usize,
        command: impl Fn() -> Command,
    ) -> Result<bool, Refused> {
        homes().try_for_each(|home| home.mailbox.check())?;
        homes().try_fold(true, |room, home| {
            self.time_publishing(home);
            Ok(room & home.mailbox.put_checked(command(), bytes)? & !home.congestion.has(audience))
        })
    }

    /// Has what is put in next timed, if nothing of that worker is at present.
    fn time_publishing(&self, home: &Home) {
        if self.common.sheets.get(home.worker.index()).is_some_and(|sheet| sheet.begin_timing()) {
            let _ = home.mailbox.put(Command::Published(Instant::now()), 0); // its worker has ended: nothing is timed
        }
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
        if !session.may(Deed::Publish, topic.as_str()) {
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
    pub fn has_room(&self, topic: Option<&Topic>) -> Result<bool, Refused> {
        self.homes
            .iter()
            .try_fold(true, |room, home| Ok(home.mailbox.has_room()? && room && !home.congestion.has(topic)))
    }

    /// Waits for what [`Self::has_room`] says, or the deadline.
    ///
    /// # Errors
    /// Not by then, or the engine has stopped.
    pub fn wait_for_room(&self, topic: Option<&Topic>, deadline: Option<Instant>) -> Result<(), Refused> {
        self.room.wait(deadline, || self.has_room(topic))
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
        for home in &self.homes {
            let _ = home.mailbox.put(Command::Drain(code, reason.into()), 0); // who has ended is drained
        }
    }

    /// Ends everything now, and waits for the threads. Again: nothing.
    ///
    /// # Errors
    /// What a worker has ended with before: its event loop has failed.
    pub fn stop(&self) -> io::Result<()> {
        self.common.stop.store(true, Ordering::Release);
        self.wakers.iter().for_each(|waker| waker.wake());
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
        self.common.take_listeners();
        // Whoever comes second waits as well: before all have ended, nothing is complete.
        let mut threads = lock(&self.threads);
        let mut result = Ok(());
        for thread in threads.drain(..) {
            match thread.join() {
                Ok(ended) => result = result.and(ended),
                Err(_) => result = Err(io::Error::other("a worker has panicked")),
            }
        }
        if let Some(broker) = self.common.broker.get() {
            broker.close();
        }
        self.common.events.close();
        self.common.logs.set_notify(None);
        result
    }
}

/// The listeners of an engine that begins.
struct Opened {
    /// Of each worker.
    doors: Vec<Vec<Door>>,
    /// Copies, to be handed over.
    offers: Vec<Offer>,
    reuse_port: bool,
}

impl Opened {
    fn new(workers: usize, reuse_port: bool) -> Self {
        Self { doors: (0..workers).map(|_| Vec::new()).collect(), offers: Vec::new(), reuse_port }
    }

    /// Gives each worker its listeners at a place: those that were handed over, or new ones.
    fn open(
        &mut self,
        at: &Place,
        tls: Option<&Arc<Certificate>>,
        inside: bool,
        inherited: Option<&mut Inherited>,
    ) -> io::Result<Place> {
        let count = self.doors.len();
        let (shares, place) = match inherited.and_then(|inherited| inherited.take(at)) {
            Some(offer) => listen::share(offer, count)?,
            None => {
                let (listeners, place) = listen::bind(at, count, self.reuse_port)?;
                (listeners.into_iter().map(|listener| vec![listener]).collect(), place)
            }
        };
        let unix = matches!(place, Place::Unix(_));
        let mut offer = Offer { place: place.clone(), listeners: Vec::new() };
        for (doors, listeners) in self.doors.iter_mut().zip(shares) {
            for listener in listeners {
                if !unix || offer.listeners.is_empty() {
                    offer.listeners.push(listener.try_clone()?);
                }
                doors.push(Door { listener: Some(listener), tls: tls.cloned(), unix, inside });
            }
            if doors.len() > worker::DOORS {
                return Err(io::Error::other("a worker has too many listeners"));
            }
        }
        self.offers.push(offer);
        Ok(place)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.stop(); // nobody is left to be told
    }
}
