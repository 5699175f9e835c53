//! The handle of a worker, for all threads.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::capacity::{CapacityNotifier, Refused};
use super::command::Command;
use super::mailbox::Mailbox;
use crate::auth::acl::AclOptions;
use crate::delivery::memory::MemoryAccounting;
use crate::delivery::slow_consumer::SlowConsumerState;
use crate::logs::Logs;
use crate::topics::{Registry, Topic, WorkerId};

/// What all threads know of a worker: its number, its mailbox, and what it shares with the other workers.
pub(crate) struct WorkerHandle {
    pub(crate) worker: WorkerId,
    pub(crate) mailbox: Arc<Mailbox<Command>>,
    pub(crate) registry: Arc<Registry>,
    /// The generation of the process that the worker is in, as [`wirespeed_driver::fork::generation`] counts it.
    pub(crate) process: u64,
    /// Shared by all workers.
    pub(crate) capacity: Arc<CapacityNotifier>,
    pub(crate) congestion: SlowConsumerState,
    /// Clients that another worker has accepted for this one, and that it has not taken yet.
    pub(crate) arriving: AtomicUsize,
    /// Shared by all workers: counts the memory of messages.
    pub(crate) memory: Arc<MemoryAccounting>,
    pub(crate) logs: Arc<Logs>,
    /// How tokens contain permissions, and the permissions of sessions without a token.
    pub(crate) acl: AclOptions,
}

/// Returns whether every mailbox has capacity and the topic is not congested; without a topic, whether a broadcast is
/// not.
pub(crate) fn has_capacity(handles: &[Arc<WorkerHandle>], topic: Option<&Topic>) -> Result<bool, Refused> {
    handles.iter().try_fold(true, |has_capacity, worker| {
        Ok(worker.mailbox.has_capacity()? && has_capacity && !worker.congestion.has(topic))
    })
}
