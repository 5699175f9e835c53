//! Topics: their names, their subscribers, and where messages go.
//!
//! Owns names and patterns ([`Topic`], [`Pattern`]), a worker's index of its own sessions ([`Index`]) and the registry
//! of all workers ([`Registry`]). Knows no socket, message or mailbox: sessions and workers are numbers here, and
//! callers pass closures. Called by sessions (subscribe), by publishers and by workers (fan-out).

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
