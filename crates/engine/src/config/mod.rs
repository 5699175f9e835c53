//! The configuration of an engine.

pub(crate) mod origins;
pub(crate) mod relay;
pub(crate) mod routes;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use wirespeed_driver::protocol::Limits;
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::handshake::{HeaderList, Request, Response};
use wirespeed_driver::tls::server::ServerConfig as TlsConfig;

use crate::admission;
use crate::auth::Jwt;
use crate::auth::acl::{AclOptions, DefaultPolicy};
use crate::broker::Connect;
use crate::config::origins::Origins;
use crate::config::relay::Relay;
use crate::config::routes::Routes;
use crate::connection::meter::Inbound;
use crate::delivery::outbox::Policy;
use crate::http::Http;
use crate::listen::certificate::Renewal;
use crate::ops::drain::Drain;

/// A listener of the engine.
#[derive(Clone)]
pub struct Listen {
    /// The address to listen at.
    pub at: Place,
    /// The TLS configuration; `None` for plain connections.
    pub tls: Option<Arc<TlsConfig>>,
}

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// TCP. With port 0 the system chooses a free port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// The way in which the messages of a session are handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// They become events for [`crate::Engine::events`].
    Events,
    /// Each message is sent back.
    Echo,
    /// Each message is published: see [`Relay`].
    Relay(Relay),
}

/// The decision about an opening request.
pub enum Admission {
    /// Accepts the request: it becomes a session.
    Accept {
        /// The handling of its messages. [`Role::Relay`] is not possible here and is answered with 500, because its
        /// topic comes from a route.
        role: Role,
        /// The subprotocol, which must be one that the client offers.
        subprotocol: Option<String>,
        /// Additional header fields of the response.
        headers: HeaderList,
    },
    /// Answers with an HTTP response and closes the connection.
    Refuse {
        /// The status, 200 to 999.
        status: u16,
        /// The header fields.
        headers: HeaderList,
        /// The body.
        body: Vec<u8>,
    },
    /// Answers with a complete response and closes the connection.
    Respond(Response),
}

/// Decides about a request. Called in a worker's thread: it must not block.
pub type Admit = dyn Fn(&Request, Option<SocketAddr>) -> Admission + Send + Sync;

/// The configuration of an engine. `Config::default()` accepts all clients and turns their messages into events.
#[derive(Clone)]
pub struct Config {
    /// The addresses where clients connect; each worker has its own listener at each of them.
    pub listen: Vec<Listen>,
    /// Allows other processes of this user to listen at the same TCP addresses and to accept a part of the clients. If
    /// false, the start fails when another process listens there.
    pub reuse_port: bool,
    /// The number of worker threads; 0: one per core.
    pub workers: usize,
    /// Verifies the clients' tokens before [`Self::admit`] is called. `None`: clients need no token.
    pub auth: Option<Arc<Jwt>>,
    /// The topic rights that tokens grant; clients without a token get the default policy.
    pub acl: AclOptions,
    /// The routes by request path, each with its own settings. If set, [`Self::admit`] is not called.
    pub routes: Option<Arc<Routes>>,
    /// Decides about each request if there are no routes. Its sessions have the settings of this configuration.
    pub admit: Arc<Admit>,
    /// Origins of pages that may connect, for routes without their own setting.
    pub origins: Origins,
    /// The subprotocols in order of preference, for routes without their own setting.
    pub subprotocols: Vec<String>,
    /// Limits on the messages of clients.
    pub limits: Limits,
    /// The settings of permessage-deflate; `None`: it is not accepted.
    pub compression: Option<negotiate::Config>,
    /// The maximum time from the connection to the session.
    pub open_timeout: Duration,
    /// The time between two pings; `None`: no pings are sent.
    pub ping_interval: Option<Duration>,
    /// The maximum time until a pong arrives.
    pub ping_timeout: Option<Duration>,
    /// The maximum time for the client's part of the closing handshake.
    pub close_timeout: Duration,
    /// The maximum number of bytes in the outbox of one session.
    pub outbox_limit: usize,
    /// The maximum number of bytes in all outboxes together, where a message to many sessions counts once. Mailboxes do
    /// not count: see [`Self::mailbox_limit`]. From half of this limit on, a session that reads nothing may hold less
    /// than `outbox_limit`. Beyond it, the slow-consumer policy applies to the sessions that hold most, and closes them
    /// if that is not enough.
    pub total_outbox_limit: usize,
    /// The policy for messages that exceed the limits of an outbox.
    pub policy: Policy,
    /// The maximum number of bytes of sent messages in the mailbox of one worker; further messages are refused. Senders
    /// that wait for room wait much earlier, from an eighth of `outbox_limit` on.
    pub mailbox_limit: usize,
    /// How long an idle worker polls before it sleeps. Polling reduces latency and keeps a core busy. Zero: it sleeps
    /// at once.
    pub busy_poll: Duration,
    /// The maximum number of events in the queue. Reading from clients pauses while it is full.
    pub max_events: usize,
    /// The maximum number of bytes of the messages in the event queue.
    pub max_event_bytes: usize,
    /// The maximum number of topics and patterns that one session may subscribe to.
    pub max_subscriptions: usize,
    /// The HTTP endpoints.
    pub http: Http,
    /// The path of a Unix socket, by which this engine receives listeners from the previous engine and gives them to
    /// the next one.
    pub handoff: Option<PathBuf>,
    /// The files of the TLS configuration of all listeners; `None`: only [`crate::Engine::set_tls`] replaces it.
    pub renewal: Option<Renewal>,
    /// The settings for draining after a handoff.
    pub drain: Drain,
    /// Limits on the number of clients.
    pub admission: admission::Limits,
    /// Limits on the rate of each session's messages.
    pub inbound: Inbound,
    /// The trusted proxies.
    pub proxies: admission::Proxies,
    /// The broker that connects this engine with others; `None`: there is none.
    pub broker: Option<Arc<dyn Connect>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            reuse_port: false,
            workers: 0,
            auth: None,
            acl: AclOptions { default_policy: DefaultPolicy::All, ..AclOptions::default() },
            routes: None,
            origins: Origins::default(),
            subprotocols: Vec::new(),
            admit: Arc::new(|_, _| Admission::Accept {
                role: Role::Events,
                subprotocol: None,
                headers: HeaderList::new(),
            }),
            limits: Limits::default(),
            compression: None,
            open_timeout: Duration::from_secs(10),
            ping_interval: Some(Duration::from_secs(20)),
            ping_timeout: Some(Duration::from_secs(20)),
            close_timeout: Duration::from_secs(10),
            outbox_limit: 1 << 20,
            total_outbox_limit: 1 << 30,
            policy: Policy::default(),
            mailbox_limit: 16 << 20,
            busy_poll: Duration::ZERO,
            max_events: 64 * 1024,
            max_event_bytes: 64 << 20,
            max_subscriptions: 1024,
            http: Http::default(),
            handoff: None,
            renewal: None,
            drain: Drain::default(),
            admission: admission::Limits::default(),
            inbound: Inbound::default(),
            proxies: admission::Proxies::default(),
            broker: None,
        }
    }
}
