//! Clients whose request is awaited, when they are too many: who has to go, and when.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use wirespeed_driver::opening::handshake_limiter::{GRACE, IDLE_TIME};

use super::{Key, Worker};
use crate::connection::Client;
use crate::reasons::Reason;
use crate::slab::Slab;

/// Closed at once: there are others to be served.
const TRIMMED_AT_ONCE: usize = 64;

/// Between such times.
const TRIM_INTERVAL: Duration = Duration::from_millis(5);

impl Worker {
    /// Gives a place to one whose request is not there yet; if there was none, others go.
    pub(super) fn enter(&mut self, key: Key, now: Instant) {
        let Some(Client::Opening(opening)) = self.clients.get(key) else { return };
        let origin = opening.origin();
        if self.pending.is_over_limit() {
            // Two, so that there are fewer in the end, if there are too many.
            for _ in 0..2 {
                if self.pending.is_over_limit()
                    && let Some(first) = self.pending.next_victim(now, |key| has_unread(&self.clients, key))
                {
                    self.evict(first);
                }
            }
        }
        self.pending.add(key, origin, now);
    }

    /// After how long somebody can come: far too many are there.
    pub(super) fn crowded_for(&mut self, now: Instant) -> Option<Duration> {
        self.pending.is_full().then(|| self.evict_one(now)).filter(|delay| !delay.is_zero())
    }

    /// Closes who is first to go, for the sake of its place or descriptor; after how long that is possible, zero: it
    /// is done.
    pub(super) fn evict_one(&mut self, now: Instant) -> Duration {
        let delay = self.pending.delay(now, |key| has_unread(&self.clients, key));
        if delay.is_zero()
            && let Some((first, _)) = self.pending.first()
        {
            self.evict(first);
        }
        delay
    }

    /// Closes some of those that are too many.
    pub(super) fn trim(&mut self, now: Instant) {
        for _ in 0..TRIMMED_AT_ONCE {
            if !self.pending.next_victim_in(now).is_some_and(|left| left.is_zero()) {
                return;
            }
            let Some(first) = self.pending.next_victim(now, |key| has_unread(&self.clients, key)) else { return };
            self.evict(first);
        }
    }

    /// After how long to do so again.
    pub(super) fn trim_in(&self, now: Instant) -> Option<Duration> {
        self.pending.next_victim_in(now).map(|left| left.max(TRIM_INTERVAL))
    }

    /// Has one go that will be refused anyway, if as many of them are awaited as may be, for the sake of the next: the
    /// one that was silent longest, of the address that has most, once it has had time to speak.
    pub(super) fn make_answerable(&mut self, now: Instant) {
        if !self.shared.admission.can_answer()
            && self.to_be_refused.delay(now, |key| has_unread(&self.clients, key)).is_zero()
            && let Some((first, _)) = self.to_be_refused.first()
        {
            self.evict(first);
        }
    }

    /// Some of its time is over, or all of it.
    pub(super) fn end_opening(&mut self, key: Key, now: Instant) {
        let unread = has_unread(&self.clients, key);
        let Some(Client::Opening(opening)) = self.clients.get_mut(key) else { return };
        if opening.is_due(now, unread) {
            opening.note_failure(Reason::Timeout);
            self.remove(key);
        }
    }

    /// Nobody comes any more: openings do not hold up the end of all, and have no longer than who means well needs.
    pub(super) fn hurry(&mut self) {
        let now = Instant::now();
        let most = IDLE_TIME.min(self.shared.config.open_timeout);
        for key in self.clients.keys() {
            if let Some(Client::Opening(opening)) = self.clients.get_mut(key) {
                opening.hurry(now, GRACE, most).into_iter().for_each(|by| self.wheel.set(by, key));
            }
        }
    }

    fn evict(&mut self, key: Key) {
        if let Some(Client::Opening(opening)) = self.clients.get_mut(key) {
            opening.note_failure(Reason::Crowded);
        }
        self.remove(key);
    }
}

/// Whether a client has sent what was not read yet: then we are late.
fn has_unread(clients: &Slab<Client>, key: Key) -> bool {
    let Some(Client::Opening(opening)) = clients.get(key) else { return false };
    let mut byte = [MaybeUninit::uninit()];
    opening.awaited().is_some_and(|socket| socket.options().peek(&mut byte).is_ok_and(|count| count > 0))
}
