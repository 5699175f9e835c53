//! One client, as the application sees it: a handle that may be kept and used from any thread, also after the
//! session's end.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use wirespeed_driver::encoded::Encoded;
use wirespeed_driver::protocol::handshake::{HeaderList, Request};
use wirespeed_driver::protocol::{CloseCode, MessageKind, SendError};

use crate::auth::Identity;
use crate::auth::acl::Rights;
use crate::mailbox::{Mailbox, Refused};
use crate::outbox::Pending;
use crate::topics::{Pattern, Registry, WorkerId};
use crate::worker::{Command, Key};

/// What a session cannot do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is over, or about to be.
    Closed,
    /// Far more waits for its worker than may: see [`crate::Engine::wait_for_room`].
    Full,
    /// There is no such message: see the reason.
    Invalid(SendError),
    /// Its token does not allow it.
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
pub(crate) struct Home {
    pub(crate) worker: WorkerId,
    pub(crate) mailbox: Arc<Mailbox<Command>>,
    pub(crate) registry: Arc<Registry>,
}

/// What is known of a client when its session begins.
pub(crate) struct About {
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) request: Request,
    pub(crate) subprotocol: Option<Box<str>>,
    pub(crate) user: Option<User>,
}

/// Who it is, by its token.
pub(crate) struct User {
    pub(crate) identity: Identity,
    pub(crate) rights: Rights,
    /// When the token is good no longer.
    pub(crate) expires: Option<Instant>,
}

pub(crate) struct Shared {
    id: u64,
    key: Key,
    home: Arc<Home>,
    about: About,
    /// Messages are accepted.
    open: AtomicBool,
    /// Bytes that wait for the client, as of the worker's last look.
    queued: AtomicUsize,
    attachment: OnceLock<Box<dyn Any + Send + Sync>>,
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
    pub(crate) fn new(id: u64, key: Key, home: Arc<Home>, about: About) -> Self {
        Self(Arc::new(Shared {
            id,
            key,
            home,
            about,
            open: AtomicBool::new(true),
            queued: AtomicUsize::new(0),
            attachment: OnceLock::new(),
        }))
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
        self.0.about.request.target.split(['?', '#']).next().unwrap_or_default()
    }

    /// The query of the request's target, not decoded, without its question mark; empty if there is none.
    #[must_use]
    pub fn query(&self) -> &str {
        self.0.about.request.target.split_once('?').map_or("", |(_, query)| query)
    }

    /// The header fields of the request.
    #[must_use]
    pub fn headers(&self) -> &HeaderList {
        &self.0.about.request.headers
    }

    /// The subprotocol that was chosen.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.0.about.subprotocol.as_deref()
    }

    /// Who it is, by its token; `None` where none is asked for.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        self.0.about.user.as_ref().map(|user| &user.identity)
    }

    /// What its token allows; `None` where none is asked for: everything.
    #[must_use]
    pub fn rights(&self) -> Option<&Rights> {
        self.0.about.user.as_ref().map(|user| &user.rights)
    }

    pub(crate) fn expires(&self) -> Option<Instant> {
        self.0.about.user.as_ref()?.expires
    }

    /// Whether messages are accepted for it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Acquire)
    }

    pub(crate) fn set_closed(&self) -> bool {
        self.0.open.swap(false, Ordering::AcqRel)
    }

    /// Bytes that wait because the client does not read as fast, a moment ago.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.0.queued.load(Ordering::Relaxed)
    }

    pub(crate) fn set_queued(&self, bytes: usize) {
        self.0.queued.store(bytes, Ordering::Relaxed);
    }

    /// Something of the application's that goes with the session: set once.
    #[must_use]
    pub fn attachment(&self) -> &OnceLock<Box<dyn Any + Send + Sync>> {
        &self.0.attachment
    }

    /// Sends a message: it leaves after everything that was sent before, by whatever call. True: there is room
    /// for more; false: whoever can wait should, see [`crate::Engine::wait_for_room`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn send(&self, kind: MessageKind, payload: &[u8]) -> Result<bool, Refusal> {
        self.send_encoded(Arc::new(Encoded::new(kind, payload).map_err(Refusal::Invalid)?), None)
    }

    /// The same, of a message that was encoded before. `key`: what it is about, see
    /// [`crate::outbox::Policy::Conflate`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn send_encoded(&self, message: Arc<Encoded>, key: Option<Arc<str>>) -> Result<bool, Refusal> {
        if !self.is_open() {
            return Err(Refusal::Closed);
        }
        let size = message.size();
        let command = Command::Send(self.0.key, Pending { message, key });
        Ok(self.0.home.mailbox.put(command, size)?)
    }

    /// Subscribes it to a topic, or to all that match a pattern: it gets what is published from now on. False: it
    /// does already.
    ///
    /// # Errors
    /// It is over, subscribes to as much as one session may, or its token does not allow it.
    pub fn subscribe(&self, pattern: &Pattern) -> Result<bool, Refusal> {
        if !self.is_open() {
            return Err(Refusal::Closed);
        }
        if self.rights().is_some_and(|rights| !rights.subscribe.may(pattern.as_str())) {
            return Err(Refusal::Denied);
        }
        let Home { worker, mailbox, registry } = &*self.0.home;
        let command = Command::Subscribe(self.0.key, self.0.id, pattern.clone());
        // Put in while the account is held, so that it stands before or after what others publish.
        let subscribed = registry.subscribe(pattern, *worker, self.0.id, || {
            let _ = mailbox.put(command, 0); // its worker has ended: so has it
        });
        subscribed.map_err(|error| Refusal::TooManySubscriptions(error.limit))
    }

    /// Ends that; false: it does not subscribe to it.
    pub fn unsubscribe(&self, pattern: &Pattern) -> bool {
        let Home { mailbox, registry, .. } = &*self.0.home;
        let command = Command::Unsubscribe(self.0.key, pattern.clone());
        registry.unsubscribe(pattern, self.0.id, || {
            let _ = mailbox.put(command, 0); // as above
        })
    }

    /// What it subscribes to.
    #[must_use]
    pub fn topics(&self) -> Vec<Pattern> {
        self.0.home.registry.patterns_of(self.0.id)
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
            let _ = self.0.home.mailbox.put(command, 0); // its worker has ended: so has it
        }
        Ok(())
    }
}
