//! Evicting clients that have not sent their request, when there are too many of them.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use wirespeed_driver::accept::{Evicted, Eviction, GRACE, IDLE_TIME};

use super::Worker;
use crate::connection::Client;
use crate::reasons::Reason;
use crate::util::slab::{Key, Slab};

impl Worker {
    /// Adds a handshake whose request has not arrived yet; evicts others if there are too many.
    pub(super) fn add_pending(&mut self, key: Key, now: Instant) {
        let Some(Client::Opening(opening)) = self.clients.get(key) else { return };
        let origin = opening.origin();
        let evicted = self.pending.enter(key, origin, now, |key| has_unread(&self.clients, key));
        self.evict(evicted);
    }

    /// Returns how long no handshake can start, if there are far too many.
    pub(super) fn handshake_delay(&mut self, now: Instant) -> Option<Duration> {
        let delay = self.pending.delay(now, |key| has_unread(&self.clients, key));
        (!delay.is_zero()).then_some(delay)
    }

    /// Evicts the next victim, for the sake of its descriptor. Returns how long the eviction has to wait; zero if a
    /// client was evicted, or there is none.
    pub(super) fn evict_one(&mut self, now: Instant) -> Duration {
        match self.pending.evict_one(now, |key| has_unread(&self.clients, key)) {
            Eviction::After(delay) => return delay,
            Eviction::Done(evicted) => self.evict([evicted]),
            Eviction::Empty => {}
        }
        Duration::ZERO
    }

    /// Evicts some of the clients above the limit.
    pub(super) fn trim(&mut self, now: Instant) {
        let evicted = self.pending.trim(now, |key| has_unread(&self.clients, key));
        self.evict(evicted);
    }

    /// Evicts a client that is going to be refused, if the limit of such clients is reached. The victim has been
    /// silent longest, of the address with most of them, and had time to send its request.
    pub(super) fn evict_refused(&mut self, now: Instant) {
        if !self.shared.admission.can_reserve_rejection()
            && let Eviction::Done(evicted) = self.to_be_refused.evict_one(now, |key| has_unread(&self.clients, key))
        {
            self.evict([evicted]);
        }
    }

    /// Ends a handshake if its time is over.
    pub(super) fn expire_handshake(&mut self, key: Key, now: Instant) {
        let unread = has_unread(&self.clients, key);
        let Some(Client::Opening(opening)) = self.clients.get_mut(key) else { return };
        if opening.is_due(now, unread) {
            opening.note_failure(Reason::Timeout);
            self.remove(key);
        }
    }

    /// Shortens the time of all handshakes, because the engine drains and waits for them.
    pub(super) fn shorten_deadlines(&mut self) {
        let now = Instant::now();
        let most = IDLE_TIME.min(self.shared.config.open_timeout);
        for key in self.clients.keys() {
            if let Some(Client::Opening(opening)) = self.clients.get_mut(key) {
                opening.shorten_deadlines(now, GRACE, most).into_iter().for_each(|by| self.wheel.set(by, key));
            }
        }
    }

    fn evict(&mut self, evicted: impl IntoIterator<Item = Evicted<Key>>) {
        for Evicted { key, .. } in evicted {
            if let Some(Client::Opening(opening)) = self.clients.get_mut(key) {
                opening.note_failure(Reason::Crowded);
            }
            self.remove(key);
        }
    }
}

/// Returns whether a client has sent bytes that this worker has not read yet. Such a client is not silent.
fn has_unread(clients: &Slab<Client>, key: Key) -> bool {
    let Some(Client::Opening(opening)) = clients.get(key) else { return false };
    let mut byte = [MaybeUninit::uninit()];
    opening.awaited().is_some_and(|socket| socket.options().peek(&mut byte).is_ok_and(|count| count > 0))
}
