//! Tasks that wait for a pong or for the end of a connection.

use std::mem::take;
use std::time::Duration;

use super::lazy_box::LazyBox;
use super::wait_state::Environment;
use crate::keepalive::AnsweredPing;

/// Tasks and futures that wait for a pong or for the end of the connection.
pub(super) struct Watchers<E: Environment> {
    /// Futures that wait for pongs, with the numbers of their pings.
    pub(super) pings: Vec<(u64, E::Future)>,
    /// Futures that wait until the connection is over.
    pub(super) closers: Vec<E::Future>,
    /// Futures that are notified when the connection is over. They do not count as waiting.
    pub(super) observers: Vec<E::Future>,
    /// Waiters that wait for the end of the connection, to raise its error.
    pub(super) end_waiters: Vec<E::Waiter>,
}

impl<E: Environment> Default for Watchers<E> {
    fn default() -> Self {
        Self { pings: Vec::new(), closers: Vec::new(), observers: Vec::new(), end_waiters: Vec::new() }
    }
}

impl<E: Environment> Watchers<E> {
    fn futures(&self) -> impl Iterator<Item = &E::Future> {
        self.closers.iter().chain(&self.observers).chain(self.pings.iter().map(|(_, future)| future))
    }
}

impl<E: Environment> LazyBox<Watchers<E>> {
    /// Takes the futures of answered pings, with the round-trip times.
    pub(super) fn take_answered(&mut self, answered: &[AnsweredPing]) -> Vec<(E::Future, Duration)> {
        let Some(watchers) = self.get_mut() else { return Vec::new() };
        let latency = |id: u64| answered.iter().find(|ping| ping.number == id).map(|ping| ping.latency);
        let futures = watchers.pings.extract_if(.., |(id, _)| latency(*id).is_some());
        futures.filter_map(|(id, future)| Some((future, latency(id)?))).collect()
    }

    /// Removes a waiter that no longer waits for the end of the connection.
    pub(super) fn remove_end_waiter(&mut self, waiter: &E::Waiter) {
        if let Some(watchers) = self.get_mut() {
            watchers.end_waiters.retain(|other| other != waiter);
        }
    }

    /// Takes the futures that are notified when the connection is over.
    pub(super) fn take_closers(&mut self) -> Vec<E::Future> {
        let Some(watchers) = self.get_mut() else { return Vec::new() };
        let mut closers = take(&mut watchers.closers);
        closers.append(&mut watchers.observers);
        closers
    }

    /// Removes futures that are no longer awaited.
    pub(super) fn remove_futures(&mut self, is_removed: impl Fn(&E::Future) -> bool) {
        if let Some(watchers) = self.get_mut() {
            watchers.closers.retain(|future| !is_removed(future));
            watchers.observers.retain(|future| !is_removed(future));
            watchers.pings.retain(|(_, future)| !is_removed(future));
        }
    }

    /// Returns whether a future or waiter waits here; observers do not count.
    #[must_use]
    pub(super) fn has_waiters(&self) -> bool {
        self.get().is_some_and(|watchers| {
            !watchers.closers.is_empty() || !watchers.pings.is_empty() || !watchers.end_waiters.is_empty()
        })
    }

    /// Returns the waiters that wait for the end of the connection, to raise its error.
    pub(super) fn end_waiters(&self) -> impl Iterator<Item = &E::Waiter> {
        self.get().into_iter().flat_map(|watchers| &watchers.end_waiters)
    }

    /// Returns all futures.
    pub(super) fn futures(&self) -> impl Iterator<Item = &E::Future> {
        self.get().into_iter().flat_map(Watchers::futures)
    }
}
