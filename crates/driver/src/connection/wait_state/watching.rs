//! Tasks and futures that wait for a pong or for the end of the connection, and all waiters for a garbage collector.

use std::mem::take;
use std::time::{Duration, Instant};

use wirespeed_protocol::SendError;

use super::{End, Environment, WaitState};

impl<E: Environment> WaitState<E> {
    /// Queues a ping. [`Self::take_answered_pings`] returns `future` when its pong arrives, and [`Self::finish`] if the
    /// connection ends before. The payload must differ from those of unanswered pings.
    pub fn send_ping(&mut self, payload: &[u8], future: E::Future, now: Instant) -> Result<(), SendError> {
        let number = self.driver.send_half_mut().send_numbered_ping(payload, now)?;
        self.watchers.make().pings.push((number, future));
        Ok(())
    }

    /// Takes the futures of the pings that were answered since the last call, with the round-trip times. Call it after
    /// messages or events were taken.
    #[inline]
    pub fn take_answered_pings(&mut self) -> Vec<(E::Future, Duration)> {
        let answered = self.driver.endpoint_mut().take_answered_pings();
        if answered.is_empty() { Vec::new() } else { self.watchers.take_answered(&answered) }
    }

    /// Adds a future that waits until the connection is over. [`Self::finish`] or [`Self::record_transport_closed`]
    /// returns it. Call it only if [`Self::end`] is not [`End::Complete`].
    pub fn add_closer(&mut self, future: E::Future) {
        self.watchers.make().closers.push(future);
    }

    /// Adds a future like [`Self::add_closer`], for which [`Self::has_waiters`] does not return true.
    pub fn add_observer(&mut self, future: E::Future) {
        self.watchers.make().observers.push(future);
    }

    /// Adds a task that waits for the end of the connection, to raise its error. Call it only if
    /// [`Self::is_finished`] returns false.
    pub fn add_end_waiter(&mut self, waiter: E::Waiter) {
        self.watchers.make().end_waiters.push(waiter);
    }

    /// Removes futures that are no longer awaited.
    pub fn remove_futures(&mut self, is_removed: impl Fn(&E::Future) -> bool) {
        self.watchers.remove_futures(is_removed);
    }

    /// Records that the external transport has closed its socket. Returns the futures that wait for the end.
    pub fn record_transport_closed(&mut self) -> Vec<E::Future> {
        if self.is_finished() {
            self.end = End::Complete;
        }
        self.watchers.take_closers()
    }

    /// Returns all waiting tasks, and the one that was assigned a message.
    pub fn waiters(&self) -> impl Iterator<Item = &E::Waiter> {
        let receivers = self.receivers.iter().chain(&self.in_delivery);
        receivers.chain(self.send_queue.waiters()).chain(self.watchers.end_waiters())
    }

    /// Returns all futures.
    pub fn futures(&self) -> impl Iterator<Item = &E::Future> {
        self.watchers.futures()
    }

    /// Takes out all tasks and futures, for a garbage collector that has found the connection unreachable. Drop them
    /// outside the lock.
    pub fn take_references(&mut self) -> impl Sized + use<E> {
        (
            take(&mut self.receivers),
            self.in_delivery.take(),
            self.send_queue.take_all().collect::<Vec<_>>(),
            self.send_queue.take_flushes().collect::<Vec<_>>(),
            self.watchers.take(),
        )
    }
}
