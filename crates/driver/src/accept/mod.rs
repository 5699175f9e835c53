//! Accepting clients, for all servers: which opening handshakes may be pending, and the state of each.
//!
//! It knows no sockets and reads no clock: callers pass the time, the bytes that arrived, and a function that returns
//! whether a client has sent bytes that were not read yet.

mod limiter;

pub use limiter::{BURST, Due, GRACE, HandshakeLimiter, IDLE_TIME, Origin};
