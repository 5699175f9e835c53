//! Tasks that wait for a pong or for the end of a connection.

use std::mem::take;

use super::LazyBox;
use super::wait_state::Environment;

/// Tasks and futures that wait for a pong or for the end of the connection.
pub struct Watchers<E: Environment> {
    /// Futures that wait for pongs, with the numbers of their pings.
    pub pings: Vec<(u64, E::Future)>,
    /// Futures that wait until the connection is over.
    pub closers: Vec<E::Future>,
    /// Futures that are notified when the connection is over. They do not count as waiting.
    pub observers: Vec<E::Future>,
    /// Waiters that wait for the end of the connection, to raise its error.
    pub error_waiters: Vec<E::Waiter>,
}

impl<E: Environment> Default for Watchers<E> {
    fn default() -> Self {
        Self { pings: Vec::new(), closers: Vec::new(), observers: Vec::new(), error_waiters: Vec::new() }
    }
}

impl<E: Environment> Watchers<E> {
    fn futures(&self) -> impl Iterator<Item = &E::Future> {
        self.closers.iter().chain(&self.observers).chain(self.pings.iter().map(|(_, future)| future))
    }
}

impl<E: Environment> LazyBox<Watchers<E>> {
    /// Takes the futures whose pings a pong has answered (RFC 6455 5.5.3); `numbers` are the numbers of those
    /// pings.
    pub fn take_answered(&mut self, numbers: &[u64]) -> impl Iterator<Item = E::Future> {
        let pings = self.get_mut().map(|watchers| &mut watchers.pings);
        let answered = pings.map(|pings| pings.extract_if(.., |(id, _)| numbers.contains(id)));
        answered.into_iter().flatten().map(|(_, future)| future)
    }

    /// Removes a waiter that no longer waits for the end of the connection.
    pub fn remove_error_waiter(&mut self, waiter: &E::Waiter) {
        if let Some(watchers) = self.get_mut() {
            watchers.error_waiters.retain(|other| other != waiter);
        }
    }

    /// Takes the futures that are notified when the connection is over.
    pub fn take_closers(&mut self) -> Vec<E::Future> {
        let Some(watchers) = self.get_mut() else { return Vec::new() };
        let mut closers = take(&mut watchers.closers);
        closers.append(&mut watchers.observers);
        closers
    }

    /// Removes futures that are no longer awaited.
    pub fn remove_futures(&mut self, is_removed: impl Fn(&E::Future) -> bool) {
        if let Some(watchers) = self.get_mut() {
            watchers.closers.retain(|future| !is_removed(future));
            watchers.observers.retain(|future| !is_removed(future));
            watchers.pings.retain(|(_, future)| !is_removed(future));
        }
    }

    /// Returns whether a future or waiter waits here; observers do not count.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        self.get().is_some_and(|watchers| {
            !watchers.closers.is_empty() || !watchers.pings.is_empty() || !watchers.error_waiters.is_empty()
        })
    }

    /// Returns the waiters that wait for the end of the connection, to raise its error.
    pub fn error_waiters(&self) -> impl Iterator<Item = &E::Waiter> {
        self.get().into_iter().flat_map(|watchers| &watchers.error_waiters)
    }

    /// Returns all futures.
    pub fn futures(&self) -> impl Iterator<Item = &E::Future> {
        self.get().into_iter().flat_map(Watchers::futures)
    }
}
