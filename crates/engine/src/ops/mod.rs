//! The start and the end of an engine: listeners, handoff to the next process, graceful shutdown.

pub(crate) mod drain;
pub(crate) mod handoff;
pub(crate) mod open_listeners;
pub(crate) mod takeover_lock;
