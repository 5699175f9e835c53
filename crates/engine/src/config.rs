//! What an engine is told before it starts.

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
use crate::certificate::Renewal;
use crate::drain::Drain;
use crate::http::Http;
use crate::inbound::Inbound;
use crate::origins::Origins;
use crate::outbox::Policy;
use crate::relay::Relay;
use crate::routes::Routes;

/// Where clients connect to.
#[derive(Clone)]
pub struct Listen {
    /// The address.
    pub at: Place,
    /// With TLS.
    pub tls: Option<Arc<TlsConfig>>,
}

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// TCP; port 0: one that is free.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// What is done with the messages of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// They are events, for [`crate::Engine::events`].
    Events,
    /// Each is sent back.
    Echo,
    /// Each is published: see [`Relay`].
    Relay(Relay),
}

/// What becomes of a request.
pub enum Admission {
    /// It becomes a session.
    Accept {
        /// What is done with its messages. Not [`Role::Relay`], whose topic is what a route says: that is answered with
        /// 500.
        role: Role,
        /// The subprotocol, one of those that the client offers.
        subprotocol: Option<String>,
        /// Further header fields of the answer.
        headers: HeaderList,
    },
    /// It is answered by HTTP, and the connection closed.
    Refuse {
        /// The status, 200 to 999.
        status: u16,
        /// Header fields.
        headers: HeaderList,
        /// What is said.
        body: Vec<u8>,
    },
    /// The same, with a response that is complete.
    Respond(Response),
}

/// Decides, in a worker's thread: it must not wait.
pub type Admit = dyn Fn(&Request, Option<SocketAddr>) -> Admission + Send + Sync;

/// What an engine is told before it starts.
#[derive(Clone)]
pub struct Config {
    /// Where clients connect to; each worker has a listener of its own at each.
    pub listen: Vec<Listen>,
    /// Other processes of this user may listen at the same TCP addresses, and get a part of the clients. False: to
    /// start fails where anybody listens already.
    pub reuse_port: bool,
    /// Threads that serve; 0: one for each core.
    pub workers: usize,
    /// Who the clients are, by their tokens: asked before [`Self::admit`]. `None`: nobody is asked.
    pub auth: Option<Arc<Jwt>>,
    /// What their tokens allow them to subscribe to and publish on; without a token, what that leaves unsaid.
    pub acl: AclOptions,
    /// Where sessions begin, by the paths of requests, with the settings of each: [`Self::admit`] is not asked. `None`:
    /// it alone is.
    pub routes: Option<Arc<Routes>>,
    /// Who gets a session, with the settings of this configuration.
    pub admit: Arc<Admit>,
    /// Whose pages may connect to routes that say nothing else.
    pub origins: Origins,
    /// The subprotocols of routes that say nothing else, the preferred one first.
    pub subprotocols: Vec<String>,
    /// Of what clients send.
    pub limits: Limits,
    /// How permessage-deflate is accepted; `None`: it is not.
    pub compression: Option<negotiate::Config>,
    /// How long a client may take from its connection to its session.
    pub open_timeout: Duration,
    /// Between pings; `None`: none are sent.
    pub ping_interval: Option<Duration>,
    /// How long a pong may take.
    pub ping_timeout: Option<Duration>,
    /// How long a client may take to do its part of the closing.
    pub close_timeout: Duration,
    /// Bytes that may wait for one session.
    pub outbox_limit: usize,
    /// Bytes of memory that may wait for all of them together, where a message that waits for many counts once, and
    /// what waits for a worker does not: see [`Self::mailbox_limit`]. From
    /// half of it on a session whose client takes nothing may have less than `outbox_limit`; beyond it those who hold
    /// most of it meet the policy, and are cut off if that is not enough.
    pub total_outbox_limit: usize,
    /// What becomes of what is more.
    pub policy: Policy,
    /// Sent messages, in bytes, that may wait for one worker: whoever sends more is refused. Long before that,
    /// at an eighth of `outbox_limit`, there is no room for those who ask.
    pub mailbox_limit: usize,
    /// How long a worker that has nothing to do looks for something before it sleeps: what comes in that time finds it
    /// awake, at the price of a busy core. Zero: it sleeps at once.
    pub busy_poll: Duration,
    /// Events that may wait to be taken; nothing is read while more do.
    pub max_events: usize,
    /// The same, in bytes of their messages.
    pub max_event_bytes: usize,
    /// Topics, and patterns of topics, that one session may subscribe to.
    pub max_subscriptions: usize,
    /// What is answered over HTTP.
    pub http: Http,
    /// A Unix socket by which the next engine gets our listeners, and we got those of the one before.
    pub handoff: Option<PathBuf>,
    /// Where the TLS configuration of all listeners is from; `None`: it changes by [`crate::Engine::set_tls`] only.
    pub renewal: Option<Renewal>,
    /// How it ends when the next engine has them.
    pub drain: Drain,
    /// How many clients there may be.
    pub admission: admission::Limits,
    /// What each session may send.
    pub inbound: Inbound,
    /// Who speaks for others.
    pub proxies: admission::Proxies,
    /// What connects it with other engines; `None`: nothing.
    pub broker: Option<Arc<dyn Connect>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            reuse_port: false,
            workers: 0,
            auth: None,
            acl: AclOptions { unsaid: DefaultPolicy::All, ..AclOptions::default() },
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
