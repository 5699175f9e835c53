//! The queue of commands from other threads to a worker. It wakes the worker, and bounds the bytes of its commands.
//!
//! The worker marks itself as sleeping under the lock under which commands are added. So no wake-up is lost, and none
//! is made while it is awake.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use super::capacity::{CapacityNotifier, Refused};
use crate::util::locks::lock;
use crate::util::wakers::Wake;

struct Inner<C> {
    commands: VecDeque<C>,
    /// Bytes of messages in the queue, and of those that were taken and not executed yet.
    bytes: usize,
    /// Bytes of commands without a message, likewise.
    command_bytes: usize,
    /// The worker has found no command, and sleeps or is about to.
    sleeping: bool,
    /// The worker takes no more commands.
    closed: bool,
}

/// A mailbox for commands of type `C`.
///
/// Senders call [`Self::put`], or [`Self::check`] on several mailboxes and then [`Self::put_checked`] on each.
/// Subscriptions call [`Self::check_commands`] and then [`Self::put_command`]. A sender without capacity waits by
/// [`Self::wait_for_capacity`]. The worker calls [`Self::take`], executes the commands, and then [`Self::done`].
pub struct Mailbox<C> {
    inner: Mutex<Inner<C>>,
    /// Notified when there is capacity again.
    capacity: Arc<CapacityNotifier>,
    /// There is no capacity from this number of bytes on.
    high_water: usize,
    /// From this number of bytes on, senders that do not wait for capacity are refused.
    limit: usize,
    /// The limit of commands without a message, apart from `limit`: a flood of messages does not prevent subscriptions.
    command_limit: usize,
    waker: Arc<dyn Wake>,
}

/// The minimum limit of commands without a message, in bytes.
const MIN_COMMAND_LIMIT: usize = 1 << 20;

impl<C> Mailbox<C> {
    /// Returns an empty mailbox whose worker is awake. It has capacity below `high_water` bytes. From `limit` bytes on,
    /// senders that do not wait for capacity are refused.
    pub fn new(high_water: usize, limit: usize, waker: Arc<dyn Wake>, capacity: Arc<CapacityNotifier>) -> Self {
        let inner = Inner { commands: VecDeque::new(), bytes: 0, command_bytes: 0, sleeping: false, closed: false };
        Self {
            inner: Mutex::new(inner),
            capacity,
            high_water,
            limit,
            command_limit: limit.max(MIN_COMMAND_LIMIT),
            waker,
        }
    }

    /// Adds a command. Returns whether there is capacity for more; a sender that can wait should do so if there is
    /// not. At the limit the command is refused. A command of 0 bytes never is: the sender has to bound the number of
    /// these.
    ///
    /// # Errors
    /// The limit is reached, or the worker has ended.
    pub fn put(&self, command: C, bytes: usize) -> Result<bool, Refused> {
        let inner = lock(&self.inner);
        if bytes > 0 {
            self.check_limit(&inner)?;
        }
        wirespeed_driver::protocol::failpoint::hit("engine.mailbox");
        self.push(inner, command, bytes)
    }

    /// Checks whether [`Self::put`] would accept a command.
    ///
    /// # Errors
    /// As for [`Self::put`].
    pub fn check(&self) -> Result<(), Refused> {
        self.check_limit(&lock(&self.inner))
    }

    /// Adds a command after [`Self::check`], even if other threads have filled the mailbox since. A sender with
    /// several mailboxes checks all of them first, so that all of them get the command or none.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn put_checked(&self, command: C, bytes: usize) -> Result<bool, Refused> {
        self.push(lock(&self.inner), command, bytes)
    }

    /// Adds a command like [`Self::put_checked`] without waking the worker. The second result: the worker sleeps, and
    /// the caller has to wake it soon.
    pub(crate) fn put_without_waking(&self, command: C, bytes: usize) -> Result<(bool, bool), Refused> {
        self.add(lock(&self.inner), command, bytes)
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Checks whether the limit of commands without a message is not reached.
    ///
    /// # Errors
    /// The limit is reached, or the worker has ended.
    pub fn check_commands(&self) -> Result<(), Refused> {
        let inner = lock(&self.inner);
        if inner.closed {
            return Err(Refused::Closed);
        }
        if inner.command_bytes >= self.command_limit { Err(Refused::Full) } else { Ok(()) }
    }

    /// Adds a command after [`Self::check_commands`], even if other threads have added some since.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn put_command(&self, command: C, bytes: usize) -> Result<(), Refused> {
        let mut inner = lock(&self.inner);
        inner.command_bytes += bytes;
        self.push(inner, command, 0).map(drop)
    }

    fn check_limit(&self, inner: &Inner<C>) -> Result<(), Refused> {
        if inner.closed {
            return Err(Refused::Closed);
        }
        if inner.bytes >= self.limit {
            return Err(Refused::Full);
        }
        Ok(())
    }

    fn push(&self, inner: MutexGuard<'_, Inner<C>>, command: C, bytes: usize) -> Result<bool, Refused> {
        let (capacity, asleep) = self.add(inner, command, bytes)?;
        if asleep {
            self.waker.wake();
        }
        Ok(capacity)
    }

    fn add(&self, mut inner: MutexGuard<'_, Inner<C>>, command: C, bytes: usize) -> Result<(bool, bool), Refused> {
        if inner.closed {
            return Err(Refused::Closed);
        }
        inner.commands.push_back(command);
        inner.bytes += bytes;
        let capacity = inner.bytes < self.high_water;
        Ok((capacity, std::mem::take(&mut inner.sleeping)))
    }

    /// Wakes the worker if it sleeps, without a command.
    pub fn nudge(&self) {
        if std::mem::take(&mut lock(&self.inner).sleeping) {
            self.waker.wake();
        }
    }

    /// Returns whether there is capacity for more.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn has_capacity(&self) -> Result<bool, Refused> {
        let inner = lock(&self.inner);
        if inner.closed { Err(Refused::Closed) } else { Ok(inner.bytes < self.high_water) }
    }

    /// Returns the bytes of messages that wait.
    #[must_use]
    pub fn bytes(&self) -> usize {
        lock(&self.inner).bytes
    }

    /// Waits until there is capacity, or the deadline.
    ///
    /// # Errors
    /// There is none by then, or the worker has ended.
    pub fn wait_for_capacity(&self, deadline: Option<Instant>) -> Result<(), Refused> {
        self.capacity.wait(deadline, || self.has_capacity())
    }

    /// For the worker: moves all commands into an empty queue, and returns whether there were any. `sleeps`: the
    /// worker waits for its waker if there are none.
    pub fn take(&self, commands: &mut VecDeque<C>, sleeps: bool) -> bool {
        let mut inner = lock(&self.inner);
        std::mem::swap(&mut inner.commands, commands);
        let some = !commands.is_empty();
        inner.sleeping = sleeps && !some;
        some
    }

    /// For the worker: commands without a message, of this number of bytes, were executed.
    pub fn done_commands(&self, bytes: usize) {
        if bytes > 0 {
            let mut inner = lock(&self.inner);
            inner.command_bytes = inner.command_bytes.saturating_sub(bytes);
        }
    }

    /// For the worker: messages of this number of bytes were delivered. Only now is their capacity free, so a sender
    /// that waited for it sees the effects of all earlier messages.
    pub fn done(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut inner = lock(&self.inner);
        let was_full = inner.bytes >= self.high_water;
        inner.bytes = inner.bytes.saturating_sub(bytes);
        let has_capacity = inner.bytes < self.high_water;
        drop(inner);
        if was_full && has_capacity {
            self.capacity.notify();
        }
    }

    /// For the worker: closes the mailbox, and returns the commands in it.
    pub fn close(&self) -> VecDeque<C> {
        let mut inner = lock(&self.inner);
        inner.closed = true;
        (inner.bytes, inner.command_bytes) = (0, 0);
        let left = std::mem::take(&mut inner.commands);
        drop(inner);
        self.capacity.notify();
        left
    }
}
