//! How other threads reach a worker: the commands in its mailbox, and waiting for capacity there.

mod capacity;
mod command;
mod mailbox;
mod worker_handle;

pub use self::capacity::{CapacityNotifier, Refused, Watch};
pub(crate) use self::command::Command;
pub use self::mailbox::Mailbox;
pub(crate) use self::worker_handle::{WorkerHandle, has_capacity};
