//! Accepting clients, for all servers: which opening handshakes may be pending, and the state of each.
//!
//! It knows no sockets and reads no clock: callers pass the time, the bytes that arrived, and a function that returns
//! whether a client has sent bytes that were not read yet.

mod limiter;
mod pending;

pub use limiter::{BURST, Evicted, Eviction, GRACE, HandshakeLimiter, IDLE_TIME, Origin};
pub use pending::PendingHandshake;
