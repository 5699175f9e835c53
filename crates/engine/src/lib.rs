//! A WebSocket server of many threads.
//!
//! Each worker is a thread with listeners, clients, an event loop and a clock of its own; a client stays with
//! the worker that has accepted it. Whatever the application or another worker wants of a client is a command
//! in its worker's [`mailbox`]; what clients send becomes [`events`], unless the session's role is served by
//! the worker itself. Neither is unbounded: a mailbox that is full is told to whoever fills it, events that
//! find no room stop the reading of sockets, and what a client does not read is bounded by its [`outbox`] and
//! the policy for slow consumers.
//!
//! Who subscribes to what is known twice: to each worker, of its own clients, without a lock; and to the
//! [`topics`] registry, which counts, and says which workers a message goes to.
//!
//! Engines on other machines are reached over a [`broker`], which is given to it.
//!
//! It knows nothing of Python, and opens no runtime: only threads.

pub mod admission;
pub mod auth;
pub mod broker;
mod certificate;
mod config;
mod congestion;
mod connection;
mod consumers;
mod drain;
mod engine;
pub mod events;
mod handover;
mod http;
mod identify;
pub mod inbound;
mod listen;
mod locks;
pub mod logs;
pub mod mailbox;
pub mod metrics;
pub mod outbox;
mod page;
mod publishing;
mod reasons;
mod relay;
pub mod room;
mod roster;
mod routes;
mod session;
mod slab;
pub mod topics;
mod watches;
pub mod wheel;
mod who;
mod worker;

pub use certificate::{Load, Renewal};
pub use config::{Admission, Admit, Config, Listen, Place, Role};
pub use drain::{Drain, Drained, Draining};
pub use engine::{Engine, Item};
pub use http::Http;
pub use locks::contended;
pub use reasons::Reason;
pub use relay::Relay;
pub use routes::{Origins, PathPattern, Route, Routes};
pub use session::{Deed, NotRefreshed, Refusal, Session, SessionFigures};
pub use wirespeed_driver as driver;
