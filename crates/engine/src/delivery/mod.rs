//! Messages on their way to sessions: the outbox of a session, the memory of all of them, and slow consumers.
//!
//! Knows no sockets, sessions or threads. Workers call it; publishers ask it whether an audience is congested.

pub(crate) mod memory;
pub(crate) mod message;
pub(crate) mod outbox;
pub(crate) mod slow_consumer;

pub use self::message::{MessageBatch, Pending};
pub use self::outbox::{Outbox, Pushed, Waiting};
