//! What other threads want of a worker: a queue that wakes it, and bounds who fills it.
//!
//! A worker that finds nothing says so under the same lock under which others put something in, so no
//! wake-up is lost, and none is made while it is awake.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::locks::lock;

/// So many times as much as whoever waits puts in, whoever does not wait may.
pub const HARD: usize = 4;

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
    /// What they hold, in bytes.
    bytes: usize,
    /// The worker has found nothing, and sleeps or is about to.
    sleeping: bool,
    /// It takes nothing any more.
    closed: bool,
}

/// See the module. `C`: what is wanted.
pub struct Mailbox<C> {
    inner: Mutex<Inner<C>>,
    /// Told when there is room again.
    room: Condvar,
    /// Bytes from which on there is none.
    limit: usize,
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

impl<C> Mailbox<C> {
    /// An empty one, whose worker is awake.
    pub fn new(limit: usize, waker: Arc<dyn Wake>) -> Self {
        let inner = Inner { commands: VecDeque::new(), bytes: 0, sleeping: false, closed: false };
        Self { inner: Mutex::new(inner), room: Condvar::new(), limit, waker }
    }

    /// Puts something in. Whether there is room for more: whoever can wait should, if there is not. Who does not
    /// is refused at [`HARD`] times the limit; what has no bytes, which clients and their ends bound, is not.
    ///
    /// # Errors
    /// There is far too much, or the worker has ended.
    pub fn put(&self, command: C, bytes: usize) -> Result<bool, Refused> {
        let mut inner = lock(&self.inner);
        if inner.closed {
            return Err(Refused::Closed);
        }
        if bytes > 0 && inner.bytes >= self.limit.saturating_mul(HARD) {
            return Err(Refused::Full);
        }
        inner.commands.push_back(command);
        inner.bytes += bytes;
        let room = inner.bytes < self.limit;
        let wake = std::mem::take(&mut inner.sleeping);
        drop(inner);
        if wake {
            self.waker.wake();
        }
        Ok(room)
    }

    /// Whether there is room for more.
    #[must_use]
    pub fn has_room(&self) -> bool {
        lock(&self.inner).bytes < self.limit
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
    pub fn wait_for_room(&self, deadline: Option<Instant>) -> Result<(), Refused> {
        let mut inner = lock(&self.inner);
        loop {
            if inner.closed {
                return Err(Refused::Closed);
            }
            if inner.bytes < self.limit {
                return Ok(());
            }
            inner = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.room.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return Err(Refused::Full),
                Some(left) => self.room.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// For the worker: takes everything out, into a queue that is empty. `sleeps`: if there is nothing it will
    /// wait until it is woken. Whether there was something.
    pub fn take(&self, commands: &mut VecDeque<C>, sleeps: bool) -> bool {
        let mut inner = lock(&self.inner);
        std::mem::swap(&mut inner.commands, commands);
        let was_full = inner.bytes >= self.limit;
        inner.bytes = 0;
        let some = !commands.is_empty();
        inner.sleeping = sleeps && !some;
        drop(inner);
        if was_full {
            self.room.notify_all();
        }
        some
    }

    /// For the worker: it takes nothing any more; what was in it.
    pub fn close(&self) -> VecDeque<C> {
        let mut inner = lock(&self.inner);
        inner.closed = true;
        inner.bytes = 0;
        let left = std::mem::take(&mut inner.commands);
        drop(inner);
        self.room.notify_all();
        left
    }
}
