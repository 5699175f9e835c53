//! One client, as the application sees it: a handle that may be kept and used from any thread, also after the
//! session's end.

use std::any::Any;
use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use percent_encoding::percent_decode_str;
use wirespeed_driver::encoded::Encoded;
use wirespeed_driver::fork;
use wirespeed_driver::frames::Account;
use wirespeed_driver::protocol::handshake::HeaderList;
use wirespeed_driver::protocol::{CloseCode, MessageKind, SendError};

use crate::auth::acl::{Acl, AclOptions, Rights};
use crate::auth::{Denied, Error, Identity};
use crate::authenticate::identify_again;
use crate::capacity::{CapacityNotifier, Watch};
use crate::locks::lock;
use crate::logs::Logs;
use crate::mailbox::{Mailbox, Refused, Wake};
use crate::memory::MemoryAccounting;
use crate::outbox::Pending;
use crate::principal::{Principal, User};
use crate::request_head::RequestHead;
use crate::routes::Route;
use crate::slow_consumer::SlowConsumerState;
use crate::topics::{Pattern, Registry, WorkerId};
use crate::worker::{Command, Key};

/// What a session cannot do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is over, or about to be.
    Closed,
    /// Far more waits for its worker than may: see [`Session::wait_for_capacity`].
    Full,
    /// There is no such message: see the reason.
    Invalid(SendError),
    /// Far more waits for the broker than may, and its policy is to say so.
    BrokerFull,
    /// It is not allowed to: see [`Session::may`].
    Denied,
    /// It subscribes to as many topics as it may, which are so many.
    TooManySubscriptions(usize),
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Closed => Self::Closed,
            Refused::Full => Self::Full,
        }
    }
}

/// See the module.
#[derive(Clone)]
pub struct Session(Arc<Shared>);

/// Where sessions of one worker live.
pub(crate) struct WorkerHandle {
    pub(crate) worker: WorkerId,
    pub(crate) mailbox: Arc<Mailbox<Command>>,
    pub(crate) registry: Arc<Registry>,
    /// The process that its worker is in, as [`entropy::forks`] counts them.
    pub(crate) process: u64,
    /// Of all workers.
    pub(crate) room: Arc<CapacityNotifier>,
    pub(crate) congestion: SlowConsumerState,
    /// Clients that another worker has accepted for this one, and that it has not looked at yet.
    pub(crate) arriving: AtomicUsize,
    /// Of all workers: counts what is sent.
    pub(crate) memory: Arc<MemoryAccounting>,
    pub(crate) logs: Arc<Logs>,
    /// Where the rights of tokens are, and what sessions without one may do.
    pub(crate) acl: AclOptions,
}

/// What is known of a client when its session begins.
pub(crate) struct About {
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) asked: RequestHead,
    pub(crate) subprotocol: Option<Box<str>>,
}

pub(crate) struct Shared {
    id: u64,
    key: Key,
    worker: Arc<WorkerHandle>,
    /// What holds for all sessions of its path.
    route: Arc<Route>,
    about: About,
    /// Messages are accepted.
    open: AtomicBool,
    /// Bytes that wait for the client: what was sent is added by whoever sends it, and what was published by the
    /// worker, which takes off what has left or was dropped.
    queued: AtomicUsize,
    /// From so many of them on there is no room.
    high: usize,
    /// Whoever handles its messages wants more of them; and whether its worker is yet to be told of a change.
    reads: AtomicBool,
    reads_changed: AtomicBool,
    attachment: OnceLock<Box<dyn Any + Send + Sync>>,
    /// Who it is and what it may do, if it has a token or was allowed anything.
    who: OnceLock<Box<Mutex<Principal>>>,
    opened: Instant,
    /// Once it is over.
    figures: OnceLock<Box<SessionFigures>>,
}

/// What was counted of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionFigures {
    /// Messages that the client has sent.
    pub messages_received: u64,
    /// Bytes of their payloads.
    pub bytes_received: u64,
    /// Messages to it, as far as they were handed to its connection.
    pub messages_sent: u64,
    /// Bytes of their payloads.
    pub bytes_sent: u64,
    /// Messages dropped, because it reads too slowly.
    pub messages_dropped: u64,
    /// Messages dropped, because it sends too many.
    pub messages_limited: u64,
    /// Messages dropped, because it may not publish: of a relay.
    pub messages_denied: u64,
    /// Bytes that wait for it.
    pub queued_bytes: usize,
    /// Topics, and patterns of topics, that it subscribes to.
    pub subscriptions: usize,
    /// How long it has been open, or was.
    pub open: Duration,
}

/// Why a token does not take the place of the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRefreshed {
    /// The session is over, or about to be.
    Closed,
    /// Nobody is asked for a token where it is.
    NoAuth,
    /// It is no good one.
    Denied(Denied),
    /// It is another user's, or nobody's: tokens without a user tell nobody apart.
    OtherUser,
}

/// What one may do with a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicPermission {
    /// Receive what is published on it.
    Subscribe,
    /// Publish on it.
    Publish,
}

impl PartialEq for Session {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Session {}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The target may hold a token.
        f.debug_struct("Session").field("id", &self.0.id).field("remote", &self.0.about.remote).finish_non_exhaustive()
    }
}

impl Session {
    pub(crate) fn new(
        id: u64,
        key: Key,
        worker: Arc<WorkerHandle>,
        route: Arc<Route>,
        about: About,
        user: Option<User>,
    ) -> Self {
        Self(Arc::new(Shared {
            id,
            key,
            worker,
            about,
            open: AtomicBool::new(true),
            queued: AtomicUsize::new(0),
            high: route.outbox_limit.div_ceil(2).max(1),
            route,
            reads: AtomicBool::new(true),
            reads_changed: AtomicBool::new(false),
            attachment: OnceLock::new(),
            opened: Instant::now(),
            figures: OnceLock::new(),
            who: user.map(|user| OnceLock::from(Box::new(Mutex::new(user.into())))).unwrap_or_default(),
        }))
    }

    /// Whether it may do this with a topic, or with all that match a pattern: by its token and by [`Self::allow`].
    #[must_use]
    pub fn may(&self, deed: TopicPermission, pattern_or_topic: &str) -> bool {
        match self.0.who.get() {
            Some(who) => lock(who).may(deed, pattern_or_topic),
            None => self.0.worker.acl.unsaid.may(pattern_or_topic),
        }
    }

    /// Allows and denies more than its token does, from now on; to deny wins, whoever does it. What it subscribes to
    /// already it goes on to get.
    ///
    /// # Errors
    /// One of them is no pattern; nothing has changed. `{user}` in it stands for the user, as in a token.
    pub fn allow<S: AsRef<str>>(&self, deeds: &[TopicPermission], allow: &[S], deny: &[S]) -> Result<(), Error> {
        // Without a user, patterns with `{user}` are errors, and nothing is kept for them.
        let user = self.identity().map(|identity| identity.user.clone()).unwrap_or_default();
        let more = Acl::new(allow, deny, &user)?;
        let nobody = || Box::new(Mutex::new(Principal::nobody(self.0.worker.acl.unsaid.rights())));
        lock(self.0.who.get_or_init(nobody)).add(deeds, &more);
        Ok(())
    }

    /// Goes on with another token of the same user, by the rules of its path: who it is, what it may do and when it
    /// ends are as that says; what was allowed and denied by [`Self::allow`] stays. What it subscribes to already it
    /// goes on to get.
    ///
    /// # Errors
    /// [`NotRefreshed`]: nothing has changed.
    pub fn refresh(&self, token: &str) -> Result<(), NotRefreshed> {
        let (Some(auth), Some(who)) = (&self.0.route.auth, self.0.who.get()) else {
            return Err(NotRefreshed::NoAuth);
        };
        if !self.is_open() {
            return Err(NotRefreshed::Closed);
        }
        let user =
            identify_again(auth, &self.0.worker.acl, token, &self.0.worker.logs).map_err(NotRefreshed::Denied)?;
        if !lock(who).renew(user) {
            return Err(NotRefreshed::OtherUser);
        }
        // The worker has to look earlier than it meant to, or need not.
        self.0.worker.mailbox.put(Command::Refreshed(self.0.key), 0).map(drop).map_err(|_| NotRefreshed::Closed)
    }

    /// Its number: no other session of this engine has had it, or will.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Where the client is; `None` of a Unix socket.
    #[must_use]
    pub fn remote_address(&self) -> Option<SocketAddr> {
        self.0.about.remote
    }

    /// The path of the request's target, not decoded.
    #[must_use]
    pub fn path(&self) -> &str {
        self.0.about.asked.path()
    }

    /// What holds for all sessions of its path.
    #[must_use]
    pub fn route(&self) -> &Route {
        &self.0.route
    }

    /// Whatever the application says that its path is: see [`Route::tag`].
    #[must_use]
    pub fn tag(&self) -> u32 {
        self.0.route.tag
    }

    /// The segments of its path that the route names, decoded; as they are where that gives no text.
    #[must_use]
    pub fn params(&self) -> Vec<(&str, Cow<'_, str>)> {
        let decoded = |text| percent_decode_str(text).decode_utf8().unwrap_or(Cow::Borrowed(text));
        self.0.route.params(self.path()).into_iter().map(|(name, text)| (name, decoded(text))).collect()
    }

    /// The query of the request's target, not decoded, without its question mark; empty if there is none.
    #[must_use]
    pub fn query(&self) -> &str {
        self.0.about.asked.query()
    }

    /// The header fields of the request, made again from what is kept.
    #[must_use]
    pub fn headers(&self) -> HeaderList {
        self.0.about.asked.headers()
    }

    /// The subprotocol that was chosen.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.0.about.subprotocol.as_deref()
    }

    /// Who it is, by its token; `None` where none is asked for.
    #[must_use]
    pub fn identity(&self) -> Option<Arc<Identity>> {
        self.0.who.get().and_then(|who| lock(who).identity().cloned())
    }

    /// Whether it is of the engine that has this registry.
    pub(crate) fn belongs_to(&self, registry: &Arc<Registry>) -> bool {
        Arc::ptr_eq(&self.0.worker.registry, registry)
    }

    /// What its token allows; `None` where none is asked for.
    #[must_use]
    pub fn rights(&self) -> Option<Rights> {
        self.0.who.get().and_then(|who| lock(who).by_token().cloned())
    }

    pub(crate) fn expires(&self) -> Option<Instant> {
        lock(self.0.who.get()?).expires()
    }

    pub(crate) fn worker(&self) -> &Arc<WorkerHandle> {
        &self.0.worker
    }

    pub(crate) fn opened(&self) -> Instant {
        self.0.opened
    }

    /// For the worker: it is over.
    pub(crate) fn set_figures(&self, figures: SessionFigures) {
        let _ = self.0.figures.set(Box::new(figures)); // it is over once
    }

    /// What was counted of it: as its worker says, which is asked, and waited for until the deadline. Of one that is
    /// over, what was counted at its end.
    ///
    /// # Errors
    /// Not by then; or the engine stops at this moment.
    pub fn figures(&self, deadline: Instant) -> Result<SessionFigures, Refused> {
        let known = || self.0.figures.get().map(|figures| **figures);
        if let Some(figures) = known() {
            return Ok(figures);
        }
        let (asker, answer) = mpsc::sync_channel(1);
        if self.0.worker.mailbox.put(Command::Figures(self.0.key, asker), 0).is_ok() {
            match answer.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(figures) => return Ok(figures),
                Err(mpsc::RecvTimeoutError::Timeout) => return Err(Refused::Full),
                Err(mpsc::RecvTimeoutError::Disconnected) => {} // it has ended meanwhile
            }
        }
        known().ok_or(Refused::Closed)
    }

    /// Whether messages are accepted for it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Acquire)
    }

    /// Whether this is a copy in a child process, where nobody sees to it: its calls may wait for ever for a lock.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.0.worker.process != fork::generation()
    }

    /// No more messages are accepted for it. False: none were before.
    pub(crate) fn set_closed(&self) -> bool {
        let was = self.0.open.swap(false, Ordering::SeqCst);
        if was {
            self.0.worker.room.notify(); // whoever waits for room waits in vain
        }
        was
    }

    /// Bytes that wait: for its worker, and because the client does not read as fast.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.0.queued.load(Ordering::SeqCst)
    }

    /// For the worker: of those that it has known of, `before`, and what others have added, so many are left of
    /// the first. True: there is room where there was none.
    pub(crate) fn recount(&self, before: usize, left: usize) -> bool {
        if left >= before {
            if left > before {
                self.0.queued.fetch_add(left - before, Ordering::SeqCst);
            }
            return false;
        }
        let was = self.0.queued.fetch_sub(before - left, Ordering::SeqCst);
        was >= self.0.high && was.saturating_sub(before - left) < self.0.high
    }

    /// Bytes from which on there is no room.
    pub(crate) fn high(&self) -> usize {
        self.0.high
    }

    /// Whether there is room for more: in its worker's mailbox, and among what waits for it, of which half of the
    /// limit is for what others send and publish.
    ///
    /// # Errors
    /// It is over, or about to be.
    pub fn has_capacity(&self) -> Result<bool, Refused> {
        if !self.is_open() {
            return Err(Refused::Closed);
        }
        Ok(self.queued() < self.0.high && self.0.worker.mailbox.has_capacity()?)
    }

    /// Waits until there is room, or the deadline.
    ///
    /// # Errors
    /// Not by then, or it is over.
    pub fn wait_for_capacity(&self, deadline: Option<Instant>) -> Result<(), Refused> {
        self.0.worker.room.wait(deadline, || self.has_capacity())
    }

    /// See [`crate::Engine::room_key`].
    #[must_use]
    pub fn room_key(&self) -> usize {
        Arc::as_ptr(&self.0.worker.room) as usize
    }

    /// Has somebody woken, in whichever thread, whenever there may be room again, for this session or any other
    /// of the engine, until what is returned is dropped.
    #[must_use]
    pub fn watch_room(&self, wake: Arc<dyn Wake>) -> Watch {
        self.0.worker.room.watch(wake)
    }

    /// Something of the application's that goes with the session: set once.
    #[must_use]
    pub fn attachment(&self) -> &OnceLock<Box<dyn Any + Send + Sync>> {
        &self.0.attachment
    }

    /// Sends a message: it leaves after everything that was sent before, by whatever call. True: there is room
    /// for more; false: whoever can wait should, see [`Self::wait_for_capacity`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn send(&self, kind: MessageKind, payload: &[u8]) -> Result<bool, Refusal> {
        self.send_encoded(self.encode(kind, payload)?, None)
    }

    /// Encodes a message for any sessions of this engine: what it holds counts for their total.
    ///
    /// # Errors
    /// There is no such message.
    pub fn encode(&self, kind: MessageKind, payload: &[u8]) -> Result<Arc<Encoded>, Refusal> {
        let account: Arc<dyn Account> = Arc::<MemoryAccounting>::clone(&self.0.worker.memory);
        Encoded::counted(kind, payload, Some(account)).map(Arc::new).map_err(Refusal::Invalid)
    }

    /// The same as [`Self::send`], of a message that was encoded before. `key`: what it is about, see
    /// [`crate::outbox::Policy::Conflate`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn send_encoded(&self, message: Arc<Encoded>, key: Option<Arc<str>>) -> Result<bool, Refusal> {
        if !self.is_open() {
            return Err(Refusal::Closed);
        }
        let pending = Pending { message, key };
        let size = pending.cost();
        let command = Command::send(self.0.key, pending);
        let queued = self.0.queued.fetch_add(size, Ordering::SeqCst) + size;
        match self.0.worker.mailbox.put(command, size) {
            Ok(room) => Ok(room && queued < self.0.high),
            Err(refused) => {
                self.0.queued.fetch_sub(size, Ordering::SeqCst);
                self.0.worker.room.notify(); // who has looked meanwhile has seen less than there is
                Err(refused.into())
            }
        }
    }

    /// Subscribes it to a topic, or to all that match a pattern: it gets what is published from now on. False: it
    /// does already.
    ///
    /// # Errors
    /// It is over, subscribes to as much as one session may, its token does not allow it; or its worker is far
    /// behind with what it was told before: [`Refusal::Full`], and nothing has changed.
    pub fn subscribe(&self, pattern: &Pattern) -> Result<bool, Refusal> {
        if !self.is_open() {
            return Err(Refusal::Closed);
        }
        if !self.may(TopicPermission::Subscribe, pattern.as_str()) {
            return Err(Refusal::Denied);
        }
        let WorkerHandle { worker, mailbox, registry, .. } = &*self.0.worker;
        mailbox.check_errands()?;
        let command = Command::Subscribe(self.0.key, self.0.id, pattern.clone());
        let size = command.command();
        // Put in while the account is held, so that it stands before or after what others publish.
        let subscribed = registry.subscribe(pattern, *worker, self.0.id, || {
            let _ = mailbox.put_errand(command, size); // its worker has ended: so has it
        });
        subscribed.map_err(|error| Refusal::TooManySubscriptions(error.limit))
    }

    /// Ends that; false: it does not subscribe to it. Never refused: as often as it subscribes.
    pub fn unsubscribe(&self, pattern: &Pattern) -> bool {
        let WorkerHandle { mailbox, registry, .. } = &*self.0.worker;
        let command = Command::Unsubscribe(self.0.key, pattern.clone());
        let size = command.command();
        registry.unsubscribe(pattern, self.0.id, || {
            let _ = mailbox.put_errand(command, size); // as above
        })
    }

    /// What it subscribes to.
    #[must_use]
    pub fn topics(&self) -> Vec<Pattern> {
        self.0.worker.registry.patterns_of(self.0.id)
    }

    /// Reads what the client sends no more, or again: for whoever handles its messages more slowly than they come.
    /// What was read before comes all the same. Pings are not answered meanwhile, and pongs not missed.
    pub fn set_reading(&self, reads: bool) {
        self.0.reads.store(reads, Ordering::SeqCst);
        // One command at a time, however often it changes.
        if !self.0.reads_changed.swap(true, Ordering::SeqCst) {
            let _ = self.0.worker.mailbox.put(Command::Reading(self.0.key), 0); // its worker has ended: so has it
        }
    }

    /// For the worker: whether it is to be read.
    pub(crate) fn take_reading(&self) -> bool {
        self.0.reads_changed.store(false, Ordering::SeqCst);
        self.0.reads.load(Ordering::SeqCst)
    }

    /// Closes it, with the closing handshake, after what was sent before. Again, or after its end: nothing.
    ///
    /// # Errors
    /// The code must not be sent, or the reason is too long (RFC 6455 7.4).
    pub fn close(&self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        // RFC 6455 5.5: the payload of a control frame has at most 125 bytes, 2 of them the code.
        if !code.is_sendable() {
            return Err(SendError::InvalidCloseCode(code.0));
        }
        if reason.len() > 123 {
            return Err(SendError::ReasonTooLong(reason.len()));
        }
        if self.set_closed() {
            let command = Command::Close(self.0.key, code, reason.into());
            let _ = self.0.worker.mailbox.put(command, 0); // its worker has ended: so has it
        }
        Ok(())
    }
}
