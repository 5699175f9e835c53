//! Tasks that wait for a pong, or for the end of a connection.

use std::mem::take;

use super::LazyBox;
use super::wait_state::Environment;

/// Who waits for a pong, or the end.
pub struct Watchers<E: Environment> {
    /// Those who wait for pongs, by the numbers of their pings.
    pub pings: Vec<(u64, E::Future)>,
    /// Those who wait until it is over.
    pub closers: Vec<E::Future>,
    /// Those who are told then, and for whom nobody waits.
    pub observers: Vec<E::Future>,
    /// Those who wait for the end in order to raise it.
    pub enders: Vec<E::Waiter>,
}

impl<E: Environment> Default for Watchers<E> {
    fn default() -> Self {
        Self { pings: Vec::new(), closers: Vec::new(), observers: Vec::new(), enders: Vec::new() }
    }
}

impl<E: Environment> Watchers<E> {
    fn futures(&self) -> impl Iterator<Item = &E::Future> {
        self.closers.iter().chain(&self.observers).chain(self.pings.iter().map(|(_, future)| future))
    }
}

impl<E: Environment> LazyBox<Watchers<E>> {
    /// Takes those whose pings a pong has answered (RFC 6455 5.5.3): by their numbers.
    pub fn take_answered(&mut self, numbers: &[u64]) -> impl Iterator<Item = E::Future> {
        let pings = self.get_mut().map(|watchers| &mut watchers.pings);
        let answered = pings.map(|pings| pings.extract_if(.., |(id, _)| numbers.contains(id)));
        answered.into_iter().flatten().map(|(_, future)| future)
    }

    /// Somebody no longer waits for the end in order to raise it.
    pub fn forget(&mut self, ender: &E::Waiter) {
        if let Some(watchers) = self.get_mut() {
            watchers.enders.retain(|other| other != ender);
        }
    }

    /// Takes those who are told that it is over.
    pub fn take_closers(&mut self) -> Vec<E::Future> {
        let Some(watchers) = self.get_mut() else { return Vec::new() };
        let mut closers = take(&mut watchers.closers);
        closers.append(&mut watchers.observers);
        closers
    }

    /// Nobody waits for these futures any more.
    pub fn forget_futures(&mut self, is_forgotten: impl Fn(&E::Future) -> bool) {
        if let Some(watchers) = self.get_mut() {
            watchers.closers.retain(|future| !is_forgotten(future));
            watchers.observers.retain(|future| !is_forgotten(future));
            watchers.pings.retain(|(_, future)| !is_forgotten(future));
        }
    }

    /// Whether anybody waits.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.get().is_some_and(|watchers| {
            !watchers.closers.is_empty() || !watchers.pings.is_empty() || !watchers.enders.is_empty()
        })
    }

    /// All who wait for the end in order to raise it.
    pub fn enders(&self) -> impl Iterator<Item = &E::Waiter> {
        self.get().into_iter().flat_map(|watchers| &watchers.enders)
    }

    /// All futures.
    pub fn futures(&self) -> impl Iterator<Item = &E::Future> {
        self.get().into_iter().flat_map(Watchers::futures)
    }
}
