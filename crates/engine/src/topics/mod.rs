//! Topics: their names, who subscribes to what, and where what is published goes.
//!
//! Owns names and patterns ([`Topic`], [`Pattern`]), a worker's account of its own sessions ([`Index`]) and
//! the account of all workers ([`Registry`]). Knows no socket, message or mailbox: sessions and workers are
//! numbers here, and what is done for them is a closure of the caller's. Called by sessions (subscribe), by
//! publishers and by workers (fan-out).

mod index;
mod pattern;
mod registry;
mod set;
mod tree;
mod workers;

pub use index::Index;
pub use pattern::{InvalidTopic, MAX_LEN, Pattern, Topic};
pub use registry::{Interest, Registry, TooManySubscriptions};
pub use set::Set;
pub use workers::{MAX_WORKERS, WorkerId, Workers};
