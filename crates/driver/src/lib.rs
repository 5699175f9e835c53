//! One WebSocket connection on one socket, plain or TLS.
//!
//! This crate joins [`wirespeed_protocol`] to the operating system: sockets, TLS, buffers, keepalive. It
//! knows nothing of Python, event loops or topics. It reads no clock on the hot path:
//! [`Keepalive`] is given the time.
//!
//! - [`Endpoint`] is the connection: it parses what was read, queues what is to be written, and never blocks.
//! - [`driver`] is what moves, closes and keeps alive a connection, whoever waits for it and how.
//! - [`encoded`] is one message for many connections.
//! - [`blocking`] is how threads wait: the calls of the socket happen outside its lock.
//! - [`readiness`] waits for many sockets at once.
//! - [`opening`] carries bytes before the WebSocket begins: proxies, TLS handshakes, the opening handshake.
//! - [`tls`] are the layers between the two.

// What a peer causes is no reason for a panic. Arithmetic is left to the checks of the test builds and of the fuzzers.
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

pub mod blocking;
pub mod buffer_pool;
pub mod compression_pool;
pub mod connection;
pub mod dial;
pub mod encoded;
pub mod endpoint;
pub mod entropy;
pub mod fork;
pub mod frames;
pub mod keepalive;
pub mod opening;
#[cfg(target_os = "linux")]
pub mod readiness;
pub mod socket;
pub mod thread;
pub mod tls;
pub mod write_queue;

pub use connection::ConnectionDriver;
pub use endpoint::{Endpoint, PeerEvent, ReadOperation};
pub use keepalive::Keepalive;
pub use wirespeed_protocol as protocol;
pub use write_queue::WriteQueue;

/// Prepares this crate for use in a child process. To be called in the child after each fork, before anything else.
pub fn after_fork() {
    fork::advance();
    buffer_pool::after_fork();
    compression_pool::after_fork();
}
