//! The options of an engine: plain data, validated where it is made.
//!
//! Knows the libraries below it ([`topics`](crate::topics), [`auth`](crate::auth), [`broker`](crate::broker)), and
//! nothing of the engine that uses the options.

mod limits;
mod listen;
mod operations;
mod origins;
mod proxies;
mod role;
pub(crate) mod routes;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use wirespeed_driver::protocol::Limits as MessageLimits;
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::handshake::HeaderList;

use crate::auth::Jwt;
use crate::auth::acl::{AclOptions, DefaultPolicy};
use crate::broker::Connect;

pub use self::limits::{Inbound, Limits, Policy, Rate, RatePolicy};
pub use self::listen::{Listen, Load, Place, Renewal};
pub use self::operations::{Drain, Http};
pub use self::origins::{Origins, exact_origin_problem};
pub use self::proxies::{ForwardedHeader, Networks, Proxies};
pub use self::role::{Admission, Admit, Relay, Role};
pub use self::routes::{PathPattern, Route, RouteSettings, Routes};

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
    pub limits: MessageLimits,
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
    pub admission: Limits,
    /// Limits on the rate of each session's messages.
    pub inbound: Inbound,
    /// The trusted proxies.
    pub proxies: Proxies,
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
            limits: MessageLimits::default(),
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
            admission: Limits::default(),
            inbound: Inbound::default(),
            proxies: Proxies::default(),
            broker: None,
        }
    }
}

impl Config {
    /// Returns the settings for routes without their own ones.
    #[must_use]
    pub fn route_settings(&self) -> RouteSettings {
        RouteSettings {
            auth: self.auth.clone(),
            origins: self.origins.clone(),
            subprotocols: self.subprotocols.clone(),
            compression: self.compression,
            limits: self.limits,
            inbound: self.inbound,
            outbox_limit: self.outbox_limit,
            policy: self.policy,
        }
    }
}
