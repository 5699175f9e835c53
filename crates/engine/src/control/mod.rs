//! How other threads reach a worker: its mailbox, and waiting for capacity there.

pub(crate) mod capacity;
pub(crate) mod mailbox;

pub use self::capacity::{CapacityNotifier, Watch};
pub use self::mailbox::{Mailbox, Refused, Wake};
