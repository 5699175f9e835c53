//! One client as the application sees it: a handle that any thread may keep and use, also after the session's end.

use std::any::Any;
use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Instant;

use percent_encoding::percent_decode_str;
use wirespeed_driver::encoded::Encoded;
use wirespeed_driver::fork;
use wirespeed_driver::frames::Account;
use wirespeed_driver::protocol::handshake::HeaderList;
use wirespeed_driver::protocol::{CloseCode, MessageKind, SendError};

use crate::auth::acl::{Acl, Rights, TopicPermission};
use crate::auth::authenticate::authenticate_token;
use crate::auth::principal::{Principal, User};
use crate::auth::{Denied, Error, Identity};
use crate::config::Route;
use crate::control::{Command, Refused, Watch, WorkerHandle};
use crate::delivery::Pending;
use crate::delivery::memory::MemoryAccounting;
use crate::metrics::SessionFigures;
use crate::session::request_head::RequestHead;
use crate::topics::{Pattern, Registry};
use crate::util::locks::lock;
use crate::util::slab::Key;
use crate::util::wakers::Wake;

/// Why a session refuses an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is closing, or closed.
    Closed,
    /// The limit of its worker's mailbox is reached: see [`Session::wait_for_capacity`].
    Full,
    /// The message or close frame is not valid.
    Invalid(SendError),
    /// The broker's queue is full, and its policy is to return an error.
    BrokerFull,
    /// The session has no permission: see [`Session::may`].
    Denied,
    /// It has as many subscriptions as one session may have: this number.
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

/// A handle of a session.
///
/// All calls are safe from any thread. [`Self::send`] and [`Self::close`] put a command into the worker's mailbox, in
/// order. A sender that gets `false` should call [`Self::wait_for_capacity`] before it sends more.
#[derive(Clone)]
pub struct Session(Arc<Shared>);

/// Facts about a client that are known when its session begins.
pub(crate) struct ClientInfo {
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) request: RequestHead,
    pub(crate) subprotocol: Option<Box<str>>,
}

pub(crate) struct Shared {
    id: u64,
    key: Key,
    worker: Arc<WorkerHandle>,
    /// The settings for all sessions of its path.
    route: Arc<Route>,
    info: ClientInfo,
    /// Whether messages are accepted.
    open: AtomicBool,
    /// Bytes that wait for the client. A sender adds those of its message. The worker adds those of published
    /// messages, and subtracts what left or was dropped.
    queued: AtomicUsize,
    /// There is no capacity from this number of bytes on.
    high_water: usize,
    /// Whether the handler wants more messages, and whether the worker has yet to handle a change of this.
    reading: AtomicBool,
    reading_changed: AtomicBool,
    attachment: OnceLock<Box<dyn Any + Send + Sync>>,
    /// The identity and permissions, if it has a token or [`Session::allow`] was called.
    principal: OnceLock<Box<Mutex<Principal>>>,
    opened: Instant,
    /// Set when the session is over.
    figures: OnceLock<Box<SessionFigures>>,
}

/// Why a session did not get a new token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRefreshed {
    /// The session is closing, or closed.
    Closed,
    /// Its path requires no token.
    NoAuth,
    /// The token was denied.
    Denied(Denied),
    /// The token belongs to another user, or to none: tokens without a user cannot be compared.
    OtherUser,
}

impl PartialEq for Session {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Session {}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The target of the request may contain a token.
        f.debug_struct("Session").field("id", &self.0.id).field("remote", &self.0.info.remote).finish_non_exhaustive()
    }
}

impl Session {
    pub(crate) fn new(
        id: u64,
        key: Key,
        worker: Arc<WorkerHandle>,
        route: Arc<Route>,
        info: ClientInfo,
        user: Option<User>,
    ) -> Self {
        Self(Arc::new(Shared {
            id,
            key,
            worker,
            info,
            open: AtomicBool::new(true),
            queued: AtomicUsize::new(0),
            high_water: route.settings.outbox_limit.div_ceil(2).max(1),
            route,
            reading: AtomicBool::new(true),
            reading_changed: AtomicBool::new(false),
            attachment: OnceLock::new(),
            opened: Instant::now(),
            figures: OnceLock::new(),
            principal: user.map(|user| OnceLock::from(Box::new(Mutex::new(user.into())))).unwrap_or_default(),
        }))
    }

    /// Returns whether it has a permission for a topic or a pattern, by its token and [`Self::allow`].
    #[must_use]
    pub fn may(&self, permission: TopicPermission, pattern_or_topic: &str) -> bool {
        match self.0.principal.get() {
            Some(principal) => lock(principal).may(permission, pattern_or_topic),
            None => self.0.worker.acl.default_policy.may(pattern_or_topic),
        }
    }

    /// Adds permissions to those of its token, and denials, which always win. Existing subscriptions stay. In a
    /// pattern `{user}` stands for the user, as in a token.
    ///
    /// # Errors
    /// A text is not a valid pattern; nothing has changed.
    pub fn allow<S: AsRef<str>>(&self, permissions: &[TopicPermission], allow: &[S], deny: &[S]) -> Result<(), Error> {
        // Without a user, patterns with `{user}` are errors, and nothing is stored for them.
        let user = self.identity().map(|identity| identity.user.clone()).unwrap_or_default();
        let more = Acl::new(allow, deny, &user)?;
        let default = || Box::new(Mutex::new(Principal::anonymous(self.0.worker.acl.default_policy.rights())));
        lock(self.0.principal.get_or_init(default)).add(permissions, &more);
        Ok(())
    }

    /// Replaces the token by another one of the same user, by the rules of its path: identity, permissions and expiry
    /// are those of the new token. Permissions from [`Self::allow`] and existing subscriptions stay.
    ///
    /// # Errors
    /// [`NotRefreshed`]: nothing has changed.
    pub fn refresh(&self, token: &str) -> Result<(), NotRefreshed> {
        let (Some(auth), Some(principal)) = (&self.0.route.settings.auth, self.0.principal.get()) else {
            return Err(NotRefreshed::NoAuth);
        };
        if !self.is_open() {
            return Err(NotRefreshed::Closed);
        }
        let user =
            authenticate_token(auth, &self.0.worker.acl, token, &self.0.worker.logs).map_err(NotRefreshed::Denied)?;
        if !lock(principal).renew(user) {
            return Err(NotRefreshed::OtherUser);
        }
        // The worker has to set an earlier deadline, or none.
        self.0.worker.mailbox.put(Command::Refreshed(self.0.key), 0).map(drop).map_err(|_| NotRefreshed::Closed)
    }

    /// Returns its number, which no other session of this engine ever has.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns the address of the client; `None` for a Unix socket.
    #[must_use]
    pub fn remote_address(&self) -> Option<SocketAddr> {
        self.0.info.remote
    }

    /// Returns the path of the request's target, not decoded.
    #[must_use]
    pub fn path(&self) -> &str {
        self.0.info.request.path()
    }

    /// Returns the settings for all sessions of its path.
    #[must_use]
    pub fn route(&self) -> &Route {
        &self.0.route
    }

    /// Returns the number that the application has given to its path: see [`Route::tag`].
    #[must_use]
    pub fn tag(&self) -> u32 {
        self.0.route.tag
    }

    /// Returns the named segments of its path, decoded. A segment that is not valid UTF-8 is returned undecoded.
    #[must_use]
    pub fn params(&self) -> Vec<(&str, Cow<'_, str>)> {
        let decoded = |text| percent_decode_str(text).decode_utf8().unwrap_or(Cow::Borrowed(text));
        self.0.route.params(self.path()).into_iter().map(|(name, text)| (name, decoded(text))).collect()
    }

    /// Returns the query of the request's target, not decoded, without the question mark; empty if there is none.
    #[must_use]
    pub fn query(&self) -> &str {
        self.0.info.request.query()
    }

    /// Returns the header fields of the request, rebuilt from their compact form.
    #[must_use]
    pub fn headers(&self) -> HeaderList {
        self.0.info.request.headers()
    }

    /// Returns the negotiated subprotocol.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.0.info.subprotocol.as_deref()
    }

    /// Returns the identity from its token; `None` where no token is required.
    #[must_use]
    pub fn identity(&self) -> Option<Arc<Identity>> {
        self.0.principal.get().and_then(|principal| lock(principal).identity().cloned())
    }

    /// Returns whether it belongs to the engine with this registry.
    pub(crate) fn belongs_to(&self, registry: &Arc<Registry>) -> bool {
        Arc::ptr_eq(&self.0.worker.registry, registry)
    }

    /// Returns the permissions from its token; `None` where no token is required.
    #[must_use]
    pub fn rights(&self) -> Option<Rights> {
        self.0.principal.get().and_then(|principal| lock(principal).token_rights().cloned())
    }

    pub(crate) fn expires(&self) -> Option<Instant> {
        lock(self.0.principal.get()?).expires()
    }

    pub(crate) fn worker(&self) -> &Arc<WorkerHandle> {
        &self.0.worker
    }

    pub(crate) fn opened(&self) -> Instant {
        self.0.opened
    }

    /// For the worker: stores the figures of a session that is over.
    pub(crate) fn set_figures(&self, figures: SessionFigures) {
        let _ = self.0.figures.set(Box::new(figures)); // called once
    }

    /// Returns its figures. Asks its worker, and waits for the answer until the deadline. For a session that is over,
    /// the figures are those of its end.
    ///
    /// # Errors
    /// There was no answer by the deadline, or the engine is stopping.
    pub fn figures(&self, deadline: Instant) -> Result<SessionFigures, Refused> {
        let known = || self.0.figures.get().map(|figures| **figures);
        if let Some(figures) = known() {
            return Ok(figures);
        }
        let (reply, answer) = mpsc::sync_channel(1);
        if self.0.worker.mailbox.put(Command::Figures(self.0.key, reply), 0).is_ok() {
            match answer.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(figures) => return Ok(figures),
                Err(mpsc::RecvTimeoutError::Timeout) => return Err(Refused::Full),
                Err(mpsc::RecvTimeoutError::Disconnected) => {} // the session has ended meanwhile
            }
        }
        known().ok_or(Refused::Closed)
    }

    /// Returns whether messages are accepted for it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Acquire)
    }

    /// Returns whether this is a copy in a forked child, where no worker serves it. Calls may then block forever.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.0.worker.process != fork::generation()
    }

    /// Stops accepting messages. Returns false if that was so before.
    pub(crate) fn set_closed(&self) -> bool {
        let was = self.0.open.swap(false, Ordering::SeqCst);
        if was {
            self.0.worker.capacity.notify(); // senders that wait for capacity get an error
        }
        was
    }

    /// Returns the bytes that wait in the mailbox of its worker, and for the client.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.0.queued.load(Ordering::SeqCst)
    }

    /// For the worker: of the queued bytes that it knows, `before`, `left` are left; other threads may have added
    /// more. Returns whether there is capacity where there was none.
    pub(crate) fn update_queued(&self, before: usize, left: usize) -> bool {
        if left >= before {
            if left > before {
                self.0.queued.fetch_add(left - before, Ordering::SeqCst);
            }
            return false;
        }
        let was = self.0.queued.fetch_sub(before - left, Ordering::SeqCst);
        was >= self.0.high_water && was.saturating_sub(before - left) < self.0.high_water
    }

    /// Returns the number of bytes from which on there is no capacity.
    pub(crate) fn high_water(&self) -> usize {
        self.0.high_water
    }

    /// Returns whether there is capacity for more, in its worker's mailbox and in its queue. Half of the queue's limit
    /// is for senders; the rest is for messages that do not wait.
    ///
    /// # Errors
    /// It is closing, or closed.
    pub fn has_capacity(&self) -> Result<bool, Refused> {
        if !self.is_open() {
            return Err(Refused::Closed);
        }
        Ok(self.queued() < self.0.high_water && self.0.worker.mailbox.has_capacity()?)
    }

    /// Waits until there is capacity, or the deadline.
    ///
    /// # Errors
    /// There was none by the deadline, or the session is closed.
    pub fn wait_for_capacity(&self, deadline: Option<Instant>) -> Result<(), Refused> {
        self.0.worker.capacity.wait(deadline, || self.has_capacity())
    }

    /// Returns the same number as [`crate::Engine::capacity_key`].
    #[must_use]
    pub fn capacity_key(&self) -> usize {
        Arc::as_ptr(&self.0.worker.capacity) as usize
    }

    /// Calls the waker, in any thread, whenever there may be capacity again, for this session or any other of the
    /// engine, until the result is dropped.
    #[must_use]
    pub fn watch_capacity(&self, wake: Arc<dyn Wake>) -> Watch {
        self.0.worker.capacity.watch(wake)
    }

    /// Returns the place for an object of the application that belongs to the session. It can be set once.
    #[must_use]
    pub fn attachment(&self) -> &OnceLock<Box<dyn Any + Send + Sync>> {
        &self.0.attachment
    }

    /// Sends a message after everything that was sent before. Returns whether there is capacity for more; if not, the
    /// caller should wait: see [`Self::wait_for_capacity`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn send(&self, kind: MessageKind, payload: &[u8]) -> Result<bool, Refusal> {
        self.send_encoded(self.encode(kind, payload)?, None)
    }

    /// Encodes a message for any sessions of this engine. Its memory counts towards the total of all sessions.
    ///
    /// # Errors
    /// The message is not valid.
    pub fn encode(&self, kind: MessageKind, payload: &[u8]) -> Result<Arc<Encoded>, Refusal> {
        let account: Arc<dyn Account> = Arc::<MemoryAccounting>::clone(&self.0.worker.memory);
        Encoded::counted(kind, payload, Some(account)).map(Arc::new).map_err(Refusal::Invalid)
    }

    /// Sends an encoded message, as [`Self::send`] does. `key`: the subject of the message, see
    /// [`crate::config::Policy::Conflate`].
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
            Ok(room) => Ok(room && queued < self.0.high_water),
            Err(refused) => {
                self.0.queued.fetch_sub(size, Ordering::SeqCst);
                self.0.worker.capacity.notify(); // another sender may have seen these bytes, and found no capacity
                Err(refused.into())
            }
        }
    }

    /// Subscribes it to a topic, or to all that match a pattern. Returns false if it is subscribed already.
    ///
    /// # Errors
    /// It is closed, has too many subscriptions, or no permission. [`Refusal::Full`]: its worker is far behind with
    /// earlier commands. After an error nothing has changed.
    pub fn subscribe(&self, pattern: &Pattern) -> Result<bool, Refusal> {
        if !self.is_open() {
            return Err(Refusal::Closed);
        }
        if !self.may(TopicPermission::Subscribe, pattern.as_str()) {
            return Err(Refusal::Denied);
        }
        let WorkerHandle { worker, mailbox, registry, .. } = &*self.0.worker;
        mailbox.check_commands()?;
        let command = Command::Subscribe(self.0.key, self.0.id, pattern.clone());
        let size = command.command_size();
        // Added under the lock of the registry, so that it is ordered before or after each publish.
        let subscribed = registry.subscribe(pattern, *worker, self.0.id, || {
            let _ = mailbox.put_command(command, size); // fails if the worker has ended, and the session with it
        });
        subscribed.map_err(|error| Refusal::TooManySubscriptions(error.limit))
    }

    /// Ends a subscription. Returns false if there is none. It has no limit beside that of subscriptions.
    pub fn unsubscribe(&self, pattern: &Pattern) -> bool {
        let WorkerHandle { mailbox, registry, .. } = &*self.0.worker;
        let command = Command::Unsubscribe(self.0.key, pattern.clone());
        let size = command.command_size();
        registry.unsubscribe(pattern, self.0.id, || {
            let _ = mailbox.put_command(command, size); // as above
        })
    }

    /// Returns its subscriptions.
    #[must_use]
    pub fn topics(&self) -> Vec<Pattern> {
        self.0.worker.registry.patterns_of(self.0.id)
    }

    /// Stops or resumes reading, for a handler that is slower than its client. Messages that were read before still
    /// arrive. Meanwhile pings are not answered, and missing pongs do not count.
    pub fn set_reading(&self, reading: bool) {
        self.0.reading.store(reading, Ordering::SeqCst);
        // At most one command is under way, however often this changes.
        if !self.0.reading_changed.swap(true, Ordering::SeqCst) {
            let _ = self.0.worker.mailbox.put(Command::Reading(self.0.key), 0); // fails if the worker has ended
        }
    }

    /// For the worker: returns whether it is to be read.
    pub(crate) fn take_reading(&self) -> bool {
        self.0.reading_changed.store(false, Ordering::SeqCst);
        self.0.reading.load(Ordering::SeqCst)
    }

    /// Starts the closing handshake after all messages sent before. On a closed session it does nothing.
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
            let _ = self.0.worker.mailbox.put(command, 0); // fails if the worker has ended, and the session with it
        }
        Ok(())
    }
}
