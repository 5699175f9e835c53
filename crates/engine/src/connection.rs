//! One client of a worker: its opening, then its session. It moves bytes, and says what is next; who it is
//! called by, and when, is the worker's.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use wirespeed_driver::drive::{Progress, Reading};
use wirespeed_driver::opening::{Carrier, Moved, Server};
use wirespeed_driver::peer::{Failure, PeerEvent};
use wirespeed_driver::protocol::handshake::{
    self, Header, HeaderList, Request, Response, ServerConfig, ServerHandshake,
};
use wirespeed_driver::protocol::{CloseCode, Payload};
use wirespeed_driver::socket::Socket;
use wirespeed_driver::tls::Layer;
use wirespeed_driver::write_queue::Flushed;
use wirespeed_driver::{Drive, Keepalive, Peer};

use crate::auth::acl::AclOptions;
use crate::auth::{Denied, Head, Jwt};
use crate::config::{Admission, Config, Role};
use crate::events::{Batch, Ended};
use crate::outbox::{Outbox, Pending, Pushed};
use crate::session::{About, Session, User};
use crate::topics::Pattern;

/// Reads of one connection in one turn: then others have theirs.
const READS: u32 = 4;

/// Bytes of messages that are handed to the connection at once, while the kernel takes them: as many as stay
/// in the cache.
const AT_ONCE: usize = 64 * 1024;

/// What an opening has come to.
pub(crate) enum Opened {
    /// It goes on.
    NotYet,
    /// There will be no session.
    Over,
    /// There is one.
    Session(Box<Peer<Vec<u8>>>, Box<About>, Role),
}

/// A client that has no session yet.
pub(crate) struct Opening {
    server: Option<Server>,
    carrier: Carrier,
    socket: Option<Socket>,
    remote: Option<SocketAddr>,
}

impl Opening {
    /// `None`: TLS cannot begin.
    pub(crate) fn new(
        socket: Socket,
        remote: Option<SocketAddr>,
        layer: Option<Box<dyn Layer>>,
        config: &Config,
    ) -> Option<Self> {
        let server = ServerConfig { deflate: config.compression, ..ServerConfig::default() };
        let server = Server::new(server, handshake::Limits::default(), layer).ok()?;
        Some(Self { server: Some(server), carrier: Carrier::default(), socket: Some(socket), remote })
    }

    pub(crate) fn take_socket(&mut self) -> Option<Socket> {
        self.socket.take()
    }

    /// Does what can be done without waiting.
    pub(crate) fn proceed(&mut self, config: &Config) -> Opened {
        loop {
            let (Some(server), Some(socket)) = (&mut self.server, &self.socket) else { return Opened::Over };
            match self.carrier.proceed(server, socket) {
                Ok(Moved::Waits(_)) => return Opened::NotYet,
                Ok(Moved::Over) => return Opened::Over,
                Ok(Moved::Done) => match self.answer(config) {
                    Some(opened) => return opened,
                    None => continue,
                },
                Err(_) => {}
            }
            // What is no request is told so; where nobody can be told, it is over.
            let Some(response) = server.fault().map(|fault| server.handshake().reject_error(fault)) else {
                return Opened::Over;
            };
            server.refuse(&response);
        }
    }

    /// Answers the request; `None`: by a refusal, which has yet to be told.
    fn answer(&mut self, config: &Config) -> Option<Opened> {
        let server = self.server.as_mut()?;
        let refusal = match Self::judge(server, self.remote, config) {
            Ok((response, role, subprotocol, user)) => {
                let now = Instant::now();
                let keepalive = Keepalive::new(config.ping_interval, config.ping_timeout, now);
                let (mut peer, handshake) = self.server.take()?.finish(config.limits, keepalive)?;
                peer.link.send_head(&response.to_bytes());
                let Some(request) = handshake.into_request() else { return Some(Opened::Over) };
                let subprotocol = subprotocol.map(String::into_boxed_str);
                let about = About { remote: self.remote, request, subprotocol, user };
                return Some(Opened::Session(Box::new(peer), Box::new(about), role));
            }
            Err(response) => response,
        };
        server.refuse(&refusal);
        None
    }

    fn judge(
        server: &Server,
        remote: Option<SocketAddr>,
        config: &Config,
    ) -> Result<(Response, Role, Option<String>, Option<User>), Response> {
        let handshake = server.handshake();
        let failed = |error| handshake.reject_error(&error);
        let request = handshake.request().ok_or_else(|| Response::new(500, Default::default()))?;
        // What is no WebSocket is told so, and not that it lacks a token.
        handshake.check().map_err(failed)?;
        let user = match &config.auth {
            None => None,
            Some(auth) => Some(identify(auth, &config.acl, request).map_err(|denied| refusal(handshake, &denied))?),
        };
        match (config.admit)(request, remote) {
            Admission::Accept { role, subprotocol, headers } => {
                let accepted = handshake.accept(subprotocol.as_deref(), &headers).map_err(failed)?;
                Ok((accepted.response, role, subprotocol, user))
            }
            Admission::Refuse { status, headers, body } => {
                Err(handshake.reject(status, &headers, &body).unwrap_or_else(failed))
            }
            Admission::Respond(response) => Err(response),
        }
    }
}

struct Fields<'a>(&'a Request);

impl Head for Fields<'_> {
    fn headers(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.0.headers.iter().filter(move |field| field.name().eq_ignore_ascii_case(name)).map(Header::value)
    }

    fn target(&self) -> &str {
        &self.0.target
    }
}

/// Who it is, and what he may.
fn identify(auth: &Jwt, acl: &AclOptions, request: &Request) -> Result<User, Denied> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // It looks no more often than once a second; what it cannot read leaves the keys that there are.
    let _ = auth.refresh(now);
    let identity = auth.verify(&Fields(request), now)?;
    let rights = acl.rights(&identity)?;
    let left = identity.expires.map(|at| Duration::from_secs(at.saturating_sub(now)));
    // A token that is good for longer than clocks go is good for ever.
    let expires = left.and_then(|left| Instant::now().checked_add(left));
    Ok(User { identity, rights, expires })
}

fn refusal(handshake: &ServerHandshake, denied: &Denied) -> Response {
    let mut headers = HeaderList::new();
    let fields = [("WWW-Authenticate", denied.challenge()), ("Content-Type", Some("text/plain; charset=utf-8"))];
    for (name, value) in fields {
        if let Some(value) = value {
            let _ = headers.push(name, value); // constants, and valid
        }
    }
    handshake
        .reject(denied.status(), &headers, denied.client_text().as_bytes())
        .unwrap_or_else(|error| handshake.reject_error(&error))
}

/// What a turn of a session has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing more can be done before the next edge.
    Idle,
    /// There is more to be read: it has had its turn.
    Again,
    /// There may be more to be read, once events have room.
    Held,
    /// It is over.
    Over,
}

/// What is done with its messages, and where they go.
pub(crate) struct Live {
    pub(crate) session: Session,
    role: Role,
    drive: Drive<Vec<u8>>,
    outbox: Outbox,
    /// To be closed once what was sent before has left.
    closing: Option<Box<(CloseCode, Box<str>)>>,
    /// The kernel has no room; since when it has taken nothing.
    blocked: Option<Instant>,
    /// Messages dropped, because the client reads too slowly.
    pub(crate) dropped: u64,
    /// Topics, and patterns of topics, that it gets.
    pub(crate) subscriptions: Vec<Pattern>,
    /// The last message published that it got, as the worker counts them.
    pub(crate) published: u64,
    /// Wanted by the worker's list of those that have something to write.
    pub(crate) dirty: bool,
    /// On one of the worker's lists of those that have something to read.
    pub(crate) unread: bool,
    /// When the worker will ask for what is due.
    pub(crate) timer: Option<Instant>,
    /// An edge has told that the client has ended its direction.
    read_closed: bool,
}

impl Live {
    pub(crate) fn new(
        session: Session,
        role: Role,
        peer: Peer<Vec<u8>>,
        socket: Socket,
        close_timeout: Duration,
    ) -> Self {
        Self {
            session,
            role,
            drive: Drive::new(peer, Some(socket), Some(close_timeout)),
            outbox: Outbox::default(),
            closing: None,
            blocked: None,
            dropped: 0,
            subscriptions: Vec::new(),
            published: 0,
            dirty: false,
            unread: false,
            timer: None,
            read_closed: false,
        }
    }

    /// Whether what happens to it is told.
    pub(crate) fn is_told(&self) -> bool {
        self.role == Role::Events
    }

    pub(crate) fn note_read_closed(&mut self) {
        self.read_closed = true;
    }

    /// Bytes that wait for the client.
    pub(crate) fn queued(&self) -> usize {
        self.outbox.bytes() + self.drive.link().queued()
    }

    /// Reads what is there, as far as this is its turn. `roomy`: events have room.
    pub(crate) fn read(&mut self, batch: &mut Batch, roomy: bool) -> Turn {
        let events = self.role == Role::Events;
        if events && !roomy {
            return Turn::Held;
        }
        let mut drained = false;
        for _ in 0..READS {
            if !self.drive.peer.has_input() {
                drained = self.drive.read_edge(self.read_closed);
            }
            self.take_events(batch);
            if self.write(Instant::now) == Progress::Over {
                return Turn::Over;
            }
            if !events && self.drive.link().queued() >= AT_ONCE {
                return Turn::Idle; // it reads on when the client has: see `write_ready`
            }
            if drained && !self.drive.peer.has_input() {
                return Turn::Idle;
            }
        }
        Turn::Again
    }

    fn take_events(&mut self, batch: &mut Batch) {
        loop {
            if self.role == Role::Echo && self.drive.link().queued() >= AT_ONCE {
                return;
            }
            let (event, mut sender) = self.drive.poll_event_and_sender();
            match event {
                Some(PeerEvent::Message { kind, payload }) => match &self.role {
                    Role::Echo => {
                        let _ = sender.send_message(kind, payload.as_slice(), None); // refused only while closing
                    }
                    Role::Events => match payload {
                        Payload::Slice(data) => batch.message(&self.session, kind, data),
                        Payload::Buffer(data) => batch.owned_message(&self.session, kind, data),
                    },
                },
                Some(_) => {}
                None => return,
            }
        }
    }

    /// Whether reading stopped because the client does not read what it is answered.
    pub(crate) fn waits_to_answer(&self) -> bool {
        self.role == Role::Echo && (self.drive.peer.has_input() || self.drive.link().queued() >= AT_ONCE)
    }

    /// Adds a message; false: there is too much, and the session is being ended.
    pub(crate) fn push(&mut self, message: Pending, config: &Config) -> bool {
        if self.closing.is_some() || self.drive.is_closing() {
            return true;
        }
        match self.outbox.push(message, self.drive.link().queued(), config.outbox_limit, config.policy) {
            Pushed::Kept { dropped } => self.dropped += dropped as u64,
            Pushed::Dropped => self.dropped += 1,
            Pushed::Overflow => {
                self.dropped += 1 + self.outbox.clear() as u64;
                self.session.set_closed();
                // RFC 6455 11.7, 1013: "try again later". If it cannot leave, the time for closing ends it.
                self.closing = Some(Box::new((CloseCode::TRY_AGAIN_LATER, "too slow".into())));
                return false;
            }
        }
        true
    }

    /// Closes it after what waits.
    pub(crate) fn close(&mut self, code: CloseCode, reason: Box<str>) {
        self.session.set_closed();
        if self.closing.is_none() {
            self.closing = Some(Box::new((code, reason)));
        }
    }

    /// Ends it here and now.
    pub(crate) fn abort(&mut self) {
        self.drive.end(Failure::Aborted);
    }

    /// Hands the kernel what waits, as far as it has room, and makes the steps of an ending.
    pub(crate) fn write(&mut self, now: impl Fn() -> Instant) -> Progress {
        loop {
            let before = self.drive.link().written();
            while self.drive.link().queued() < AT_ONCE
                && let Some(pending) = self.outbox.pop()
            {
                let _ = pending.message.send(self.drive.link_mut()); // refused only while closing
            }
            if self.outbox.is_empty()
                && let Some(closing) = self.closing.take()
                && !self.drive.is_closing()
            {
                let (code, reason) = *closing;
                let _ = self.drive.begin_close(Some(code), &reason, now()); // both were checked
            }
            let (flushed, progress) = self.drive.flush_and_advance(&now);
            let moved = self.drive.link().written() != before;
            if flushed == Flushed::Blocked {
                if moved || self.blocked.is_none() {
                    self.blocked = Some(now());
                }
            } else {
                self.blocked = None;
            }
            if progress == Progress::Over {
                self.outbox.clear();
            }
            if progress == Progress::Over || self.blocked.is_some() || self.outbox.is_empty() && self.closing.is_none()
            {
                return progress;
            }
        }
    }

    /// When [`Self::handle_deadline`] is due.
    pub(crate) fn deadline(&self, now: Instant, config: &Config) -> Option<Instant> {
        let closing = self.blocked.filter(|_| self.closing.is_some()).map(|since| since + config.close_timeout);
        let expires = self.session.expires().filter(|_| !self.is_ending());
        [self.drive.deadline(now), closing, expires].into_iter().flatten().min()
    }

    /// Sees to what is due. `held`: nothing is read at present.
    pub(crate) fn handle_deadline(&mut self, now: Instant, held: bool, config: &Config) {
        // What was to leave before the close frame does not.
        if self.closing.is_some() && self.blocked.is_some_and(|since| since + config.close_timeout <= now) {
            return self.abort();
        }
        if self.session.expires().is_some_and(|expires| expires <= now) {
            // RFC 6455 7.4.1, 1008: "a message that violates its policy".
            self.close(CloseCode::POLICY_VIOLATION, "token expired".into());
        }
        let reading = if held { Reading::Paused } else { Reading::Going };
        let _ = self.drive.handle_deadline(now, reading);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.closing.is_some() || self.drive.is_closing()
    }

    /// How it ended.
    pub(crate) fn ended(&self) -> Ended {
        let link = self.drive.link();
        let (code, reason) = match link.close_received() {
            Some(frame) => (frame.code.unwrap_or(CloseCode::NO_STATUS_RCVD).0, frame.reason.clone()),
            None => (CloseCode::ABNORMAL_CLOSURE.0, String::new()),
        };
        Ended { code, reason, failure: link.failure().map(ToString::to_string) }
    }
}

/// A client, on whichever side of its opening.
pub(crate) enum Client {
    Opening(Box<Opening>),
    Live(Box<Live>),
}
