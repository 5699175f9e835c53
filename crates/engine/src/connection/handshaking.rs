//! A client that has no session yet: its TLS and opening handshakes, and the decision about its request.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wirespeed_driver::accept::Origin;
use wirespeed_driver::opening::{Carrier, Error, Moved, Opening as _, Server};
use wirespeed_driver::protocol::handshake::{self, HeaderList, Request, Response, ServerConfig, ServerHandshake};
use wirespeed_driver::socket::{Mode, Socket};
use wirespeed_driver::tls::Layer;
use wirespeed_driver::{Endpoint, Keepalive, buffer_pool};

use crate::admission::{self, NotProxyHeader, Permit, ProxyHead, Rejection, RejectionSlot};
use crate::auth::authenticate::{authenticate, denial};
use crate::auth::principal::User;
use crate::config::{Admission, Config, Relay, Role, Route};
use crate::http;
use crate::reasons::{Denied, Reason};
use crate::session::ClientInfo;
use crate::session::request_head::RequestHead;
use crate::shared::EngineShared;
use crate::topics::Topic;
use crate::util::descriptors;

/// Bytes that a refused client may still send until it has read the answer: those that were under way.
const LINGER: u64 = 256 * 1024;

/// The maximum number of characters of an origin in the log.
const ORIGIN: usize = 100;

/// The state of an opening handshake.
pub(crate) enum Opened {
    /// It needs more bytes, or room.
    NotYet,
    /// There will be no session.
    Over,
    /// The request was accepted: a session begins.
    Session(Box<Accepted>),
}

/// What a session begins with.
pub(crate) struct Accepted {
    pub(crate) endpoint: Endpoint<Vec<u8>>,
    pub(crate) route: Arc<Route>,
    pub(crate) info: ClientInfo,
    pub(crate) user: Option<User>,
    /// Only of relays.
    pub(crate) topic: Option<Topic>,
    pub(crate) permit: Permit,
}

/// Details of a refusal for the log.
pub(crate) enum Detail {
    /// Why the token was denied.
    Token(Denied),
    /// The origin of the page, as the client has sent it.
    Origin(String),
    /// Why the TLS handshake failed.
    Tls(String),
    /// The client may not subscribe to the topic of the relay.
    Topic,
}

impl Detail {
    /// Returns the origin of a request, shortened: clients could send anything.
    fn origin(request: &Request) -> Self {
        let text: String = request.headers.value_str("Origin").unwrap_or_default().chars().take(ORIGIN).collect();
        Self::Origin(text)
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(denied) => denied.fmt(f),
            Self::Origin(origin) => write!(f, "pages of {origin:?} are forbidden by `origins`"),
            Self::Tls(error) => error.fmt(f),
            Self::Topic => f.write_str("the client may not subscribe to the topic of its path"),
        }
    }
}

/// A client that has no session yet.
///
/// The worker creates it, calls [`Self::count_connection`] once, and [`Self::proceed`] on each edge until it returns
/// [`Opened::Over`] or [`Opened::Session`]. After [`Opened::NotYet`] it checks the `take_*` methods for changes.
pub(crate) struct Opening {
    server: Option<Server>,
    carrier: Carrier,
    socket: Option<Socket>,
    /// A duplicate of the socket, with a descriptor that sessions may have, if its own is reserved.
    lowered: Option<Socket>,
    /// Many descriptors will be free soon: the session may keep a reserved one.
    may_use_reserved: bool,
    /// The address of the client, as far as it is known.
    remote: Option<SocketAddr>,
    /// Why there will be no session.
    failure: Option<Reason>,
    /// More about that, for the log.
    detail: Option<Detail>,
    /// It came to the internal listener, where no sessions begin.
    internal: bool,
    /// It got a plain HTTP answer, and is no failure.
    answered: bool,
    /// An edge has reported that the client has ended its direction.
    read_closed: bool,
    /// The PROXY header that comes first, until it is complete.
    proxy: Option<ProxyHead>,
    /// The client's address has changed since the last call of `take_origin_changed`.
    origin_changed: bool,
    /// It was answered without a session, since the last call of `take_refused`.
    refused: bool,
    /// The limit on connections that refuses it, for any request.
    rejection: Option<Rejection>,
    /// The permission to answer with a refusal.
    answer: Option<RejectionSlot>,
    /// It turned out since the last call of `take_to_be_refused` that it will be refused.
    to_be_refused: bool,
    /// When it was accepted.
    accepted_at: Instant,
    /// The client has sent something.
    has_sent: bool,
    /// The engine drains: the deadlines of a silent client, and of any client.
    shortened_deadlines: Option<(Instant, Instant)>,
    /// The request was accepted, and the session waits until events have capacity.
    awaiting_admission: Option<Box<Accepted>>,
}

impl Opening {
    /// Returns `None` if TLS cannot begin. `internal`: it came to the internal listener, which no proxy forwards to.
    pub(crate) fn new(
        socket: Socket,
        remote: Option<SocketAddr>,
        layer: Option<Box<dyn Layer>>,
        config: &Config,
        internal: bool,
    ) -> Option<Self> {
        let server = ServerConfig { deflate: config.compression, ..ServerConfig::default() };
        let server = Server::new(server, handshake::Limits::default(), layer).ok()?;
        Some(Self {
            server: Some(server),
            carrier: Carrier::lingering(LINGER),
            socket: Some(socket),
            lowered: None,
            may_use_reserved: false,
            remote,
            detail: None,
            failure: None,
            internal,
            answered: false,
            read_closed: false,
            proxy: (!internal && config.proxies.expects_header(remote)).then(ProxyHead::default),
            origin_changed: false,
            refused: false,
            rejection: None,
            answer: None,
            to_be_refused: false,
            accepted_at: Instant::now(),
            has_sent: false,
            shortened_deadlines: None,
            awaiting_admission: None,
        })
    }

    /// Notes why there will be no session; the first reason stays.
    pub(crate) fn note_failure(&mut self, reason: Reason) {
        self.failure.get_or_insert(reason);
    }

    /// Returns why there is no session; `None` if it got a plain HTTP answer.
    pub(crate) fn failure(&self) -> Option<Reason> {
        if self.answered { None } else { Some(self.failure.unwrap_or(Reason::Reset)) }
    }

    /// Returns more about why there is no session.
    pub(crate) fn detail(&self) -> Option<&Detail> {
        self.detail.as_ref()
    }

    pub(crate) fn note_read_closed(&mut self) {
        self.read_closed = true;
    }

    pub(crate) fn is_read_closed(&self) -> bool {
        self.read_closed
    }

    pub(crate) fn remote(&self) -> Option<SocketAddr> {
        self.remote
    }

    /// Counts the connection for its address. Returns false if it cannot become a session, and cannot be answered
    /// either.
    pub(crate) fn count_connection(&mut self, shared: &EngineShared) -> bool {
        if self.proxy.is_some() {
            return true; // the header will contain its address
        }
        let admission = &shared.admission;
        // If the peer is a proxy, the address of the client is in the request.
        let origin = (!shared.config.proxies.trusts(self.remote)).then(|| self.origin());
        self.rejection = origin.and_then(|origin| admission.count_connection(origin).err());
        let full = self.lacks_descriptor().then_some(Reason::Full);
        let to_be_refused =
            self.rejection.map(|rejection| rejection.reason).or(full).or_else(|| admission.would_reject(origin));
        if let Some(reason) = to_be_refused {
            self.answer = admission.reserve_rejection();
            self.to_be_refused = self.answer.is_some();
            if self.answer.is_none() {
                self.note_failure(reason);
                return false;
            }
        }
        true
    }

    /// Returns whether its descriptor is reserved, and no other is free.
    pub(crate) fn lacks_descriptor(&self) -> bool {
        let reserved = |socket: &Socket| descriptors::is_reserved(socket.raw());
        self.socket
            .as_ref()
            .is_some_and(|socket| reserved(socket) && descriptors::duplicate_unreserved(socket.options()).is_none())
    }

    /// Duplicates the socket to a descriptor that a session may have. Returns false if all are taken.
    fn lower_descriptor(&mut self) -> bool {
        if let Some(socket) = self.socket.as_ref().filter(|socket| descriptors::is_reserved(socket.raw())) {
            self.lowered = descriptors::duplicate_unreserved(socket.options()).map(Socket::new);
            return self.lowered.is_some() || self.may_use_reserved;
        }
        true
    }

    pub(crate) fn set_may_use_reserved(&mut self, may_use_reserved: bool) {
        self.may_use_reserved = may_use_reserved;
    }

    /// Returns the duplicate of the socket, for the session.
    pub(crate) fn take_lowered(&mut self) -> Option<Socket> {
        self.lowered.take()
    }

    /// Returns the address to which its limits apply.
    pub(crate) fn origin(&self) -> Origin {
        admission::origin_of(self.remote)
    }

    /// Returns the socket while the request has not arrived; `None` after that.
    pub(crate) fn awaited(&self) -> Option<&Socket> {
        self.socket.as_ref().filter(|_| self.failure.is_none() && !self.answered && self.awaiting_admission.is_none())
    }

    /// Shortens its time, because the engine drains: it has `most` from now on. A client that has sent nothing has
    /// `most` since it was accepted, but at least `silent` from now on. Returns both deadlines.
    pub(crate) fn shorten_deadlines(&mut self, now: Instant, silent: Duration, most: Duration) -> [Instant; 2] {
        let by = now + most;
        let silent = (self.accepted_at + most).max(now + silent).min(by);
        self.shortened_deadlines = Some((silent, by));
        [silent, by]
    }

    /// Returns whether its time is over, when one of its timers fires. `unread`: it has sent bytes that were not read
    /// yet.
    pub(crate) fn is_due(&self, now: Instant, unread: bool) -> bool {
        let has_sent = self.has_sent || self.carrier.total() > 0 || unread;
        self.shortened_deadlines.is_none_or(|(silent, by)| by <= now || !has_sent && silent <= now)
    }

    /// Returns whether its PROXY header has not arrived yet.
    pub(crate) fn awaits_proxy_header(&self) -> bool {
        self.proxy.is_some()
    }

    /// Keeps an accepted request until events have capacity.
    pub(crate) fn await_admission(&mut self, accepted: Box<Accepted>) {
        self.awaiting_admission = Some(accepted);
        self.answer = None; // it costs nothing more
    }

    pub(crate) fn awaits_admission(&self) -> bool {
        self.awaiting_admission.is_some()
    }

    pub(crate) fn take_socket(&mut self) -> Option<Socket> {
        self.socket.take()
    }

    /// Does what can be done without waiting.
    pub(crate) fn proceed(&mut self, shared: &EngineShared) -> Opened {
        wirespeed_driver::protocol::failpoint::hit("engine.opening");
        if let Some(accepted) = self.awaiting_admission.take() {
            return Opened::Session(accepted);
        }
        let mut early = match self.receive_proxy(shared) {
            Ok(early) => early,
            Err(opened) => return opened,
        };
        loop {
            let (Some(server), Some(socket)) = (&mut self.server, &self.socket) else { return Opened::Over };
            let mut reason = Reason::Reset;
            let moved = match early.take() {
                Some(error) => {
                    if let Error::Tls(_) = error {
                        let _ = self.carrier.proceed(server, socket); // sends an alert, as far as the kernel takes it
                    }
                    Err(error)
                }
                None => self.carrier.proceed(server, socket),
            };
            match moved {
                Ok(Moved::Waits(_)) => return Opened::NotYet,
                Ok(Moved::Over) => return Opened::Over,
                Ok(Moved::Done) => match self.answer(shared) {
                    Some(opened) => return opened,
                    None => continue,
                },
                Err(Error::Tls(error)) => {
                    reason = Reason::Tls;
                    self.detail = Some(Detail::Tls(error.to_string()));
                }
                Err(_) => {}
            }
            // An invalid request is answered; if the request cannot be answered, the connection is over.
            let Some(response) = server.fault().map(|fault| server.handshake().reject_error(fault)) else {
                self.note_failure(reason);
                return Opened::Over;
            };
            server.refuse(&response);
            self.refused = true;
            self.note_failure(Reason::Malformed);
        }
    }

    /// Receives the PROXY header, if one is expected. Bytes behind it go to the handshake, whose error is returned.
    fn receive_proxy(&mut self, shared: &EngineShared) -> Result<Option<Error>, Opened> {
        while let Some(proxy) = &mut self.proxy {
            let (Some(server), Some(socket)) = (&mut self.server, &self.socket) else { return Err(Opened::Over) };
            let mut buffer = buffer_pool::take_read();
            match socket.receive(&mut buffer, usize::MAX, Mode::NonBlocking) {
                Ok(0) => return Err(Opened::Over),
                Ok(_) => self.has_sent = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(Opened::NotYet),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Err(Opened::Over),
            }
            let (client, rest) = match proxy.receive(&buffer) {
                Ok(None) => continue,
                Ok(Some(taken)) => taken,
                Err(NotProxyHeader) => {
                    self.note_failure(Reason::Proxy);
                    return Err(Opened::Over);
                }
            };
            let received = server.receive(&rest);
            self.proxy = None;
            self.origin_changed = client.is_some();
            self.remote = client.or(self.remote);
            if !self.count_connection(shared) {
                return Err(Opened::Over);
            }
            return Ok(received.err());
        }
        Ok(None)
    }

    /// Returns whether it was answered without a session since the last call.
    pub(crate) fn take_refused(&mut self) -> bool {
        if self.refused {
            self.answer = None; // the rest of the answer costs no handshake
        }
        std::mem::take(&mut self.refused)
    }

    /// Returns whether it turned out since the last call that it will be refused, with an answer.
    pub(crate) fn take_to_be_refused(&mut self) -> bool {
        std::mem::take(&mut self.to_be_refused)
    }

    /// Returns whether the client's address has changed since the last call.
    pub(crate) fn take_origin_changed(&mut self) -> bool {
        std::mem::take(&mut self.origin_changed)
    }

    /// Answers the request. Returns `None` if it was refused and the response has yet to be sent.
    fn answer(&mut self, shared: &EngineShared) -> Option<Opened> {
        wirespeed_driver::protocol::failpoint::hit("engine.answer");
        let config = &shared.config;
        let server = self.server.as_mut()?;
        if let Some(response) = http::answer(server.handshake(), self.remote, self.internal, shared) {
            (self.answered, self.refused) = (true, true);
            server.refuse(&response);
            return None;
        }
        if config.proxies.trusts(self.remote)
            && let Some(request) = server.handshake().request()
        {
            self.remote = config.proxies.client(self.remote, &request.headers);
            self.rejection = shared.admission.count_connection(admission::origin_of(self.remote)).err();
        }
        if self.rejection.is_none() && !self.lower_descriptor() {
            self.rejection = Some(shared.admission.out_of_descriptors());
        }
        let server = self.server.as_mut()?;
        let matched = server.handshake().request().map_or(RouteMatch::NotFound, |request| find_route(request, shared));
        if let RouteMatch::Route(route) = &matched {
            server.set_deflate(route.settings.compression);
        }
        let Refused { reason, detail, response } =
            match Self::decide(server, matched, self.remote, self.rejection, shared) {
                Ok(AcceptedRequest { response, route, subprotocol, user, topic, permit }) => {
                    let now = Instant::now();
                    let keepalive = Keepalive::new(config.ping_interval, config.ping_timeout, now);
                    let (mut endpoint, handshake) = self.server.take()?.finish(route.settings.limits, keepalive)?;
                    endpoint.send_half_mut().send_head(&response.to_bytes());
                    let Some(request) = handshake.into_request() else { return Some(Opened::Over) };
                    let subprotocol = subprotocol.map(String::into_boxed_str);
                    let info = ClientInfo { remote: self.remote, request: RequestHead::new(&request), subprotocol };
                    return Some(Opened::Session(Box::new(Accepted { endpoint, route, info, user, topic, permit })));
                }
                Err(refused) => refused,
            };
        self.lowered = None;
        server.refuse(&response);
        self.refused = true;
        self.detail = detail;
        self.note_failure(reason);
        None
    }

    fn decide(
        server: &Server,
        matched: RouteMatch,
        remote: Option<SocketAddr>,
        rejection: Option<Rejection>,
        shared: &EngineShared,
    ) -> Result<AcceptedRequest, Refused> {
        let config = &shared.config;
        let handshake = server.handshake();
        let failed = |error| {
            let response = handshake.reject_error(&error);
            (Reason::of_status(response.status), response)
        };
        let refused = |rejection: Rejection| (rejection.reason, rejection.response(handshake));
        let request = handshake.request().ok_or_else(|| (Reason::Panic, Response::new(500, Default::default())))?;
        // A request that is no WebSocket handshake gets an error about that, not about its token.
        handshake.check().map_err(failed)?;
        if let Some(rejection) = rejection {
            return Err(refused(rejection).into());
        }
        // Before the token is verified, which costs more than counting.
        let mut permit = shared.admission.admit(admission::origin_of(remote)).map_err(refused)?;
        let text = |status, text: &str| {
            let response = reject(handshake, status, text);
            (Reason::of_status(status), response)
        };
        let auth = match &matched {
            RouteMatch::NotFound => return Err(text(404, "There is no WebSocket at this path.\n").into()),
            RouteMatch::Application => &config.auth,
            RouteMatch::Route(route) => {
                if !route.settings.origins.admit(request) {
                    let response = reject(handshake, 403, "Pages of this origin may not connect.\n");
                    return Err(Refused { reason: Reason::Origin, detail: Some(Detail::origin(request)), response });
                }
                &route.settings.auth
            }
        };
        let user = match auth {
            None => None,
            Some(auth) => {
                let denied = |denied: Denied| {
                    let (reason, response) = (Reason::of_status(denied.status()), denial(handshake, &denied));
                    Refused { reason, detail: Some(Detail::Token(denied)), response }
                };
                let user = authenticate(auth, &config.acl, request, &shared.logs).map_err(denied)?;
                permit.count_user(&user.identity.user).map_err(refused)?;
                Some(user)
            }
        };
        if let RouteMatch::Route(route) = matched {
            let topic = match &route.role {
                Role::Relay(relay) => Some(relay_topic(relay, &route, request, user.as_ref(), config).map_err(
                    |refused| match refused {
                        HandshakeError::NoTopic => text(404, "There is no such topic.\n").into(),
                        HandshakeError::Denied => Refused {
                            detail: Some(Detail::Topic),
                            ..text(403, "This topic may not be subscribed to.\n").into()
                        },
                    },
                )?),
                _ => None,
            };
            let subprotocol = route.subprotocol(&request.headers).map(ToOwned::to_owned);
            let accepted = handshake.accept(subprotocol.as_deref(), &HeaderList::new()).map_err(failed)?;
            return Ok(AcceptedRequest { response: accepted.response, route, subprotocol, user, topic, permit });
        }
        match (config.admit)(request, remote) {
            // A relay's topic comes from its route.
            Admission::Accept { role: Role::Relay(_), .. } => Err(text(500, "A relay needs a route.\n").into()),
            Admission::Accept { role, subprotocol, headers } => {
                let accepted = handshake.accept(subprotocol.as_deref(), &headers).map_err(failed)?;
                let route = shared.default_route(role);
                Ok(AcceptedRequest { response: accepted.response, route, subprotocol, user, topic: None, permit })
            }
            Admission::Refuse { status, headers, body } => {
                let response = handshake.reject(status, &headers, &body);
                let response = response.unwrap_or_else(|error| handshake.reject_error(&error));
                Err((Reason::of_status(status), response).into())
            }
            Admission::Respond(response) => Err((Reason::of_status(response.status), response).into()),
        }
    }
}

/// An accepted request.
struct AcceptedRequest {
    response: Response,
    route: Arc<Route>,
    subprotocol: Option<String>,
    user: Option<User>,
    /// Only of relays.
    topic: Option<Topic>,
    permit: Permit,
}

/// The response to a request that was not accepted.
struct Refused {
    reason: Reason,
    detail: Option<Detail>,
    response: Response,
}

impl From<(Reason, Response)> for Refused {
    fn from((reason, response): (Reason, Response)) -> Self {
        Self { reason, detail: None, response }
    }
}

/// The route of a request.
enum RouteMatch {
    Route(Arc<Route>),
    /// The application decides.
    Application,
    NotFound,
}

fn find_route(request: &Request, shared: &EngineShared) -> RouteMatch {
    match &shared.config.routes {
        None => RouteMatch::Application,
        Some(routes) => routes.find(request).map_or(RouteMatch::NotFound, RouteMatch::Route),
    }
}

/// Returns the topic of a relay's client, if the client may receive it.
fn relay_topic(
    relay: &Relay,
    route: &Route,
    request: &Request,
    user: Option<&User>,
    config: &Config,
) -> Result<Topic, HandshakeError> {
    let topic = route.relay_topic(relay, request).ok_or(HandshakeError::NoTopic)?;
    let may = match user {
        Some(user) => user.rights.subscribe.may(topic.as_str()),
        None => config.acl.default_policy.may(topic.as_str()),
    };
    if relay.receive && !may { Err(HandshakeError::Denied) } else { Ok(topic) }
}

/// Why a client cannot join a relay.
enum HandshakeError {
    NoTopic,
    Denied,
}

/// Builds a response with a text.
fn reject(handshake: &ServerHandshake, status: u16, text: &str) -> Response {
    let mut headers = HeaderList::new();
    let _ = headers.push("Content-Type", "text/plain; charset=utf-8"); // valid
    handshake.reject(status, &headers, text.as_bytes()).unwrap_or_else(|error| handshake.reject_error(&error))
}
