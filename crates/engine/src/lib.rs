//! A multi-threaded WebSocket server.
//!
//! Each worker is a thread with its own listeners, clients, event loop and timers; a client stays with the worker that
//! has accepted it. The application and other workers reach a client by commands in its worker's
//! [mailbox](control::Mailbox). Messages of clients become [`events`], unless the worker itself serves the session's
//! role. All queues are bounded: a sender gets an error from a full mailbox, a full queue of events stops reading from
//! sockets, and unread messages of a client are bounded by its [outbox](delivery::Outbox) and the policy for slow
//! consumers.
//!
//! Each worker has an index of its own subscriptions, without a lock. The registry in [`topics`] has those of all
//! workers: it counts the subscribers, and finds the workers that a message goes to.
//!
//! Engines on other machines are reached through a [`broker`], which the application passes in.
//!
//! A module imports only from those before it: `util`; `reasons`, `topics`; `logs`; `auth`, `broker`; `config`;
//! `admission`, `delivery`, `listen`, `metrics`; `control`; `session`; `events`; `shared`; `http`, `pubsub`;
//! `connection`; `worker`; `ops`; `engine`.
//!
//! The crate knows nothing of Python, and starts no async runtime: only threads.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::time::{Duration, Instant};
//!
//! use wirespeed_engine::driver::protocol::MessageKind;
//! use wirespeed_engine::events::Event;
//! use wirespeed_engine::{Config, Engine, Listen, Place};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let at = Place::Tcp("127.0.0.1:0".parse()?);
//! let engine = Engine::start(Config { listen: vec![Listen { at, tls: None }], workers: 2, ..Config::default() })?;
//! let [Place::Tcp(address)] = engine.places() else { unreachable!() };
//!
//! // A client, written by hand: its request, then "hello" in a frame with a mask of zeros (RFC 6455 5.2).
//! let mut client = std::net::TcpStream::connect(address)?;
//! client.write_all(
//!     b"GET /greet HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
//!       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
//! )?;
//! client.write_all(b"\x81\x85\0\0\0\0hello")?;
//!
//! let deadline = Instant::now() + Duration::from_secs(20);
//! let mut answered = false;
//! while !answered {
//!     for batch in engine.events().take(100, Some(deadline)).map_err(|_| "the engine has ended")? {
//!         for (session, event) in batch.iter() {
//!             if let Event::Message { kind: MessageKind::Text, data } = event {
//!                 assert_eq!((session.path(), data), ("/greet", &b"hello"[..]));
//!                 session.send(MessageKind::Text, b"good bye").map_err(|refusal| format!("{refusal:?}"))?;
//!                 answered = true;
//!             }
//!         }
//!     }
//!     assert!(Instant::now() < deadline);
//! }
//! client.set_read_timeout(Some(Duration::from_secs(20)))?;
//! let (mut answer, mut byte) = (Vec::new(), [0]);
//! while !answer.ends_with(b"\x81\x08good bye") {
//!     client.read_exact(&mut byte)?;
//!     answer.push(byte[0]);
//! }
//! assert!(answer.starts_with(b"HTTP/1.1 101 "));
//! engine.stop()?;
//! # Ok(())
//! # }
//! ```

// Input of clients must not cause a panic. Arithmetic is left to the checks of the test builds and of the fuzzers.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod admission;
pub mod auth;
pub mod broker;
pub mod config;
mod connection;
pub mod control;
pub mod delivery;
mod engine;
pub mod events;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod listen;
pub mod logs;
pub mod metrics;
mod ops;
mod pubsub;
mod reasons;
mod session;
mod shared;
pub mod topics;
pub mod util;
mod worker;

pub use auth::acl::TopicPermission;
pub use config::{Admission, Config, Drain, Http, Listen, Place, Relay, Role, Route, Routes};
pub use engine::{Engine, Item};
pub use ops::drain::{Drained, Draining};
pub use reasons::Reason;
pub use session::{NotRefreshed, Refusal, Session};
pub use util::locks::{contended, lock};
pub use util::wakers::Wake;
pub use wirespeed_driver as driver;
