//! One WebSocket connection on one socket, plain or TLS.
//!
//! This crate joins [`wirespeed_protocol`] to the operating system: sockets, TLS, buffers, keepalive. It knows
//! nothing of Python, event loops or topics. It reads no clock on the hot path: callers pass the time to
//! [`Keepalive`].
//!
//! - [`Endpoint`] parses input and queues output; it never blocks.
//! - [`connection`] moves bytes, closes connections and keeps them alive, independent of how callers wait.
//! - [`encoded`] is one message for many connections.
//! - [`source`] is a message to send, read in pieces.
//! - [`blocking`] is the connection for threads; its system calls run outside the lock.
//! - [`readiness`] waits for many sockets at once.
//! - [`accept`] limits the pending handshakes of servers.
//! - [`opening`] runs before the WebSocket: proxies, TLS handshakes, the opening handshake.
//! - [`tls`] encrypts the bytes between the WebSocket and the socket.

// Input from a peer must not cause a panic. Arithmetic is left to the checks of the test builds and of the fuzzers.
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

pub mod accept;
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
pub mod source;
pub mod thread;
pub mod tls;
pub mod write_queue;

pub use connection::ConnectionDriver;
pub use endpoint::{Endpoint, ReadOperation};
pub use keepalive::Keepalive;
pub use wirespeed_protocol as protocol;
pub use write_queue::WriteQueue;

/// Prepares this crate for use in a child process. Call it in the child after each fork, before anything else.
pub fn after_fork() {
    fork::advance();
    buffer_pool::after_fork();
    compression_pool::after_fork();
}
