//! All workers together: begins, is told what to send, and ends.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use wirespeed_driver::encoded::Encoded;
use wirespeed_driver::protocol::{CloseCode, MessageKind};

use crate::config::{Config, Place};
use crate::events::Events;
use crate::listen;
use crate::locks::lock;
use crate::mailbox::{Refused, Wake};
use crate::outbox::Pending;
use crate::session::{Home, Refusal, Session};
use crate::topics::{Registry, Topic, WorkerId};
use crate::worker::{self, Command, Common, Counters, Door};

/// A server that runs. Dropped, it stops.
pub struct Engine {
    common: Arc<Common>,
    homes: Vec<Arc<Home>>,
    registry: Arc<Registry>,
    wakers: Vec<Arc<dyn Wake>>,
    threads: Mutex<Vec<JoinHandle<io::Result<()>>>>,
    places: Vec<Place>,
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
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        let mut doors: Vec<Vec<Door>> = (0..count).map(|_| Vec::new()).collect();
        let mut places = Vec::new();
        for listen in &config.listen {
            let (listeners, place) = listen::bind(&listen.at, count)?;
            let unix = matches!(place, Place::Unix(_));
            for (doors, listener) in doors.iter_mut().zip(listeners) {
                doors.push(Door { listener, tls: listen.tls.clone(), unix });
            }
            places.push(place);
        }
        let common = Arc::new(Common {
            events: Events::new(config.max_events, config.max_event_bytes),
            config,
            counters: Counters::default(),
            stop: AtomicBool::new(false),
            last_id: AtomicU64::new(0),
        });
        let mut engine = Self {
            common: Arc::clone(&common),
            homes: Vec::new(),
            registry: Arc::new(Registry::new(common.config.max_subscriptions)),
            wakers: Vec::new(),
            threads: Mutex::new(Vec::new()),
            places,
            process: std::process::id(),
        };
        for (number, doors) in doors.into_iter().enumerate() {
            let id = WorkerId::new(number).ok_or_else(|| io::Error::other("there are too many workers"))?;
            let worker = worker::prepare(id, Arc::clone(&common), Arc::clone(&engine.registry), doors)?;
            engine.homes.push(worker.home());
            engine.wakers.push(worker.waker());
            let name = format!("wirespeed-{number}");
            let thread = std::thread::Builder::new().name(name).spawn(move || worker.run())?;
            lock(&engine.threads).push(thread);
        }
        Ok(engine)
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

    /// What is counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.common.counters
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
        let message = Arc::new(Encoded::new(kind, payload).map_err(Refusal::Invalid)?);
        let mut room = true;
        for home in &self.homes {
            let pending = Pending { message: Arc::clone(&message), key: None };
            let command = Command::Broadcast(pending, except.map(|session| session.id()));
            room &= home.mailbox.put(command, message.size())?;
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
        let message = Arc::new(Encoded::new(kind, payload).map_err(Refusal::Invalid)?);
        let except = except.map(Session::id);
        let (count, put) = self.registry.publish(topic, except, |workers| {
            workers.iter().try_fold(true, |room, worker| {
                let pending = Pending { message: Arc::clone(&message), key: key.clone() };
                let command = Command::Publish(topic.clone(), pending, except);
                Ok::<_, Refused>(room & self.homes[worker.index()].mailbox.put(command, message.size())?)
            })
        });
        let room = put?;
        if count == 0 && self.common.stop.load(Ordering::Acquire) {
            return Err(Refusal::Closed);
        }
        Ok((count, room))
    }

    /// How many sessions subscribe to a topic, by its name or by wildcards.
    #[must_use]
    pub fn subscribers(&self, topic: &Topic) -> usize {
        self.registry.subscribers(topic)
    }

    /// Waits until every worker takes more, or the deadline.
    ///
    /// # Errors
    /// Not by then, or the engine has stopped.
    pub fn wait_for_room(&self, deadline: Option<Instant>) -> Result<(), Refused> {
        self.homes.iter().try_for_each(|home| home.mailbox.wait_for_room(deadline))
    }

    /// Accepts nobody any more, and closes all sessions, after what was sent to them. The workers end when the
    /// last one is over.
    pub fn drain(&self, code: CloseCode, reason: &str) {
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
        let threads = std::mem::take(&mut *lock(&self.threads));
        let mut result = Ok(());
        for thread in threads {
            match thread.join() {
                Ok(ended) => result = result.and(ended),
                Err(_) => result = Err(io::Error::other("a worker has panicked")),
            }
        }
        self.common.events.close();
        result
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.stop(); // nobody is left to be told
    }
}
