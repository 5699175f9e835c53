//! What other threads want of a worker: a queue that wakes it, and bounds who fills it.
//!
//! A worker that finds nothing says so under the same lock under which others put something in, so no
//! wake-up is lost, and none is made while it is awake.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crate::capacity::CapacityNotifier;
use crate::locks::lock;

/// What wakes a worker that waits for its sockets.
pub trait Wake: Send + Sync {
    /// It will look into its mailbox.
    fn wake(&self);
}

/// The same for whoever has one.
impl<F: Fn() + Send + Sync> Wake for F {
    fn wake(&self) {
        self();
    }
}

struct Inner<C> {
    commands: VecDeque<C>,
    /// What they hold, and those that were taken and are not done, in bytes.
    bytes: usize,
    /// The same of those that are no messages.
    commands_done: usize,
    /// The worker has found nothing, and sleeps or is about to.
    sleeping: bool,
    /// It takes nothing any more.
    closed: bool,
}

/// See the module. `C`: what is wanted.
pub struct Mailbox<C> {
    inner: Mutex<Inner<C>>,
    /// Told when there is room again.
    room: Arc<CapacityNotifier>,
    /// Bytes from which on there is none.
    full: usize,
    /// Bytes from which on whoever does not wait for room is refused.
    limit: usize,
    /// The same of what is no message: a flood of these keeps nobody from subscribing.
    errand_limit: usize,
    waker: Arc<dyn Wake>,
}

/// Why nothing was put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no room, or was none until the deadline.
    Full,
    /// The worker has ended.
    Closed,
}

/// Bytes of what is no message that may wait at least, however few of messages may.
const ERRANDS: usize = 1 << 20;

impl<C> Mailbox<C> {
    /// An empty one, whose worker is awake. There is room below `full` bytes; who does not wait for it is refused
    /// from `limit` on.
    pub fn new(full: usize, limit: usize, waker: Arc<dyn Wake>, room: Arc<CapacityNotifier>) -> Self {
        let inner = Inner { commands: VecDeque::new(), bytes: 0, commands_done: 0, sleeping: false, closed: false };
        Self { inner: Mutex::new(inner), room, full, limit, errand_limit: limit.max(ERRANDS), waker }
    }

    /// Puts something in. Whether there is room for more: whoever can wait should, if there is not. Who does not
    /// is refused at the limit. What has no bytes is not: whoever puts it in bounds how often, by an end that comes once
    /// for each session, for example.
    ///
    /// # Errors
    /// There is far too much, or the worker has ended.
    pub fn put(&self, command: C, bytes: usize) -> Result<bool, Refused> {
        let inner = lock(&self.inner);
        if bytes > 0 {
            self.look(&inner)?;
        }
        wirespeed_driver::protocol::failpoint::hit("engine.mailbox");
        self.push(inner, command, bytes)
    }

    /// Whether [`Self::put`] would take something.
    ///
    /// # Errors
    /// As for that.
    pub fn check(&self) -> Result<(), Refused> {
        self.look(&lock(&self.inner))
    }

    /// Puts something in after [`Self::check`], whatever others have put in since: so that whoever has several
    /// mailboxes to put it into puts it into all, or into none.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn put_checked(&self, command: C, bytes: usize) -> Result<bool, Refused> {
        self.push(lock(&self.inner), command, bytes)
    }

    /// The same without waking the worker; whether it sleeps, and is to be woken soon.
    pub(crate) fn put_quietly(&self, command: C, bytes: usize) -> Result<(bool, bool), Refused> {
        self.add(lock(&self.inner), command, bytes)
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Whether there are not too many errands: what is no message, and has bytes all the same.
    ///
    /// # Errors
    /// There are far too many, or the worker has ended.
    pub fn check_errands(&self) -> Result<(), Refused> {
        let inner = lock(&self.inner);
        if inner.closed {
            return Err(Refused::Closed);
        }
        if inner.commands_done >= self.errand_limit { Err(Refused::Full) } else { Ok(()) }
    }

    /// Puts one in after [`Self::check_errands`], whatever others have put in since.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn put_errand(&self, command: C, bytes: usize) -> Result<(), Refused> {
        let mut inner = lock(&self.inner);
        inner.commands_done += bytes;
        self.push(inner, command, 0).map(drop)
    }

    fn look(&self, inner: &Inner<C>) -> Result<(), Refused> {
        if inner.closed {
            return Err(Refused::Closed);
        }
        if inner.bytes >= self.limit {
            return Err(Refused::Full);
        }
        Ok(())
    }

    fn push(&self, inner: MutexGuard<'_, Inner<C>>, command: C, bytes: usize) -> Result<bool, Refused> {
        let (room, asleep) = self.add(inner, command, bytes)?;
        if asleep {
            self.waker.wake();
        }
        Ok(room)
    }

    fn add(&self, mut inner: MutexGuard<'_, Inner<C>>, command: C, bytes: usize) -> Result<(bool, bool), Refused> {
        if inner.closed {
            return Err(Refused::Closed);
        }
        inner.commands.push_back(command);
        inner.bytes += bytes;
        let room = inner.bytes < self.full;
        Ok((room, std::mem::take(&mut inner.sleeping)))
    }

    /// Has the worker look around, if it sleeps.
    pub fn nudge(&self) {
        if std::mem::take(&mut lock(&self.inner).sleeping) {
            self.waker.wake();
        }
    }

    /// Whether there is room for more.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn has_capacity(&self) -> Result<bool, Refused> {
        let inner = lock(&self.inner);
        if inner.closed { Err(Refused::Closed) } else { Ok(inner.bytes < self.full) }
    }

    /// Bytes that wait.
    #[must_use]
    pub fn bytes(&self) -> usize {
        lock(&self.inner).bytes
    }

    /// Waits until there is room, or the deadline.
    ///
    /// # Errors
    /// There is none by then, or the worker has ended.
    pub fn wait_for_capacity(&self, deadline: Option<Instant>) -> Result<(), Refused> {
        self.room.wait(deadline, || self.has_capacity())
    }

    /// For the worker: takes everything out, into a queue that is empty. `sleeps`: if there is nothing it will
    /// wait until it is woken. Whether there was something.
    pub fn take(&self, commands: &mut VecDeque<C>, sleeps: bool) -> bool {
        let mut inner = lock(&self.inner);
        std::mem::swap(&mut inner.commands, commands);
        let some = !commands.is_empty();
        inner.sleeping = sleeps && !some;
        some
    }

    /// For the worker: of what it has taken it has done errands of so many bytes.
    pub fn done_errands(&self, bytes: usize) {
        if bytes > 0 {
            let mut inner = lock(&self.inner);
            inner.commands_done = inner.commands_done.saturating_sub(bytes);
        }
    }

    /// For the worker: of what it has taken it has done messages of so many bytes. Only now is there room, so that whoever
    /// waits for it knows all that came of what was sent before.
    pub fn done(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut inner = lock(&self.inner);
        let was_full = inner.bytes >= self.full;
        inner.bytes = inner.bytes.saturating_sub(bytes);
        let has_capacity = inner.bytes < self.full;
        drop(inner);
        if was_full && has_capacity {
            self.room.notify();
        }
    }

    /// For the worker: it takes nothing any more; what was in it.
    pub fn close(&self) -> VecDeque<C> {
        let mut inner = lock(&self.inner);
        inner.closed = true;
        (inner.bytes, inner.commands_done) = (0, 0);
        let left = std::mem::take(&mut inner.commands);
        drop(inner);
        self.room.notify();
        left
    }
}
