//! Audiences whose publishers should wait: which they are, and when they no longer are.
//!
//! A session delays publishers while it reads, and within the budget of the audience. What counts is the time for which
//! the others of the audience have nothing left to read, and the time for which sessions did not catch up in the end.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use super::waiting::CONGESTION_PAUSE;
use super::{Client, Key, Worker};
use crate::congestion::Budget;
use crate::connection::Live;
use crate::topics::Topic;

/// Audiences that are known one by one. Where there are more, all of this worker's count for as long as half of these
/// are left: a session that subscribes with a wildcard may be behind in any number of topics.
const MAX_CONGESTED: usize = 4096;

/// What sessions may delay the publishers of an audience.
const BUDGET: Duration = Duration::from_secs(5);

/// A session that has shown that it reads is given so long for a quarter of its limit even if the budget is spent: others
/// that spend it must not cost a reader its session.
const LEAST: Duration = Duration::from_millis(100);

/// How much faster a session spends the budget before it has shown that it reads, if all others have to wait for it. It
/// may spend half of what is left: the rest is for those that read.
const UNPROVEN: f64 = 10.0;

/// Budgets of a worker. Audiences of the same place share one, so that their number is bounded.
const BUDGETS: usize = 1024;

/// The budgets of the audiences of one worker.
#[derive(Default)]
pub(super) struct Budgets {
    /// Made when the first is needed.
    places: Vec<Budget>,
    /// Clients cannot choose topics that share a place.
    hasher: RandomState,
}

impl Budgets {
    fn of(&mut self, audience: Option<&Topic>, now: Instant) -> Option<&mut Budget> {
        if self.places.is_empty() {
            self.places = vec![Budget::new(BUDGET, now); BUDGETS];
        }
        let place = self.hasher.hash_one(audience.map(Topic::as_str)) % BUDGETS as u64;
        self.places.get_mut(place as usize)
    }
}

/// A congested audience.
pub(super) struct Congested {
    /// The session that sent the last message, if one did.
    sender: Option<u64>,
    /// The sessions that publishers wait for.
    delays: HashMap<Key, Delay>,
}

/// How long publishers have waited for a session.
#[derive(Clone, Copy)]
struct Delay {
    /// Since it took something that counts.
    waited: Duration,
    /// Of that, what the budget has not been charged with: it is if the session does not catch up.
    unpaid: Duration,
    /// What it had taken by then.
    taken: u64,
}

/// Sessions that a message went to, and how many of them are behind.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) all: usize,
    behind: usize,
}

impl Sent {
    pub(super) fn count(&mut self, live: &mut Live, high: usize, now: impl FnOnce() -> Instant) {
        self.add(live.is_behind(high, now));
    }

    fn add(&mut self, behind: bool) {
        self.all += 1;
        self.behind += usize::from(behind);
    }
}

impl Worker {
    /// `sender`: one of the audience, perhaps, that did not get the message.
    pub(super) fn note_sent(&mut self, sent: &Sent, sender: Option<u64>, audience: impl FnOnce() -> Option<Topic>) {
        if sent.behind == 0 {
            return;
        }
        let audience = audience();
        if let Some(congested) = self.congested.get_mut(&audience) {
            congested.sender = sender;
        } else if self.congested.len() < MAX_CONGESTED {
            if self.congested.is_empty() {
                self.looked = Instant::now();
            }
            self.congested.insert(audience.clone(), Congested { sender, delays: HashMap::new() });
            self.home.congestion.add(audience);
        } else {
            self.home.congestion.set_all(true);
        }
    }

    /// Publishers of an audience may go on when all sessions have caught up that are worth the wait.
    pub(super) fn look_at_congestion(&mut self) {
        if self.congested.is_empty() {
            return;
        }
        let now = Instant::now();
        if now < self.look_after {
            return;
        }
        let waited = now.duration_since(self.looked);
        self.looked = now;
        let mut congested = std::mem::take(&mut self.congested);
        let before = congested.len();
        congested.retain(|audience, congested| {
            let keep = self.is_behind(audience.as_ref(), congested, now, waited);
            if !keep {
                self.home.congestion.remove(audience);
            }
            keep
        });
        let fewer = congested.len() < before;
        self.congested = congested;
        if self.congested.len() <= MAX_CONGESTED / 2 {
            self.home.congestion.set_all(false);
        }
        // However many they are, looking at them is a small part of the work.
        self.look_after = now + CONGESTION_PAUSE.max(now.elapsed() * 20);
        if fewer {
            self.home.room.tell();
        }
    }

    /// Whether publishers of the audience should go on waiting. `waited`: for so long they have since the last look.
    fn is_behind(
        &mut self,
        audience: Option<&Topic>,
        congested: &mut Congested,
        now: Instant,
        waited: Duration,
    ) -> bool {
        let keys: Vec<Key> = match audience {
            Some(topic) => self.topics.matching(topic).flat_map(|set| set.iter()).collect(),
            None => self.clients.keys(),
        };
        self.published += 1;
        let mut sent = Sent::default();
        let (mut last, mut starved) = (Vec::new(), 0);
        for key in keys {
            let Some(Client::Live(live)) = self.clients.get_mut(key) else { continue };
            // A session that subscribes in several ways is counted once, and a broadcast does not go to all clients.
            if std::mem::replace(&mut live.published, self.published) == self.published
                || audience.is_none() && (!live.is_told() || live.is_ending())
            {
                continue;
            }
            // Half of what made it wait: else it would go on for one message.
            let behind = live.is_behind(live.quarter(), || now);
            // The session that sent the message has nothing to read, unless others send too.
            if behind || congested.sender != Some(live.session.id()) {
                sent.add(behind);
                if behind {
                    last.push(key);
                } else {
                    starved += usize::from(live.queued() == 0);
                }
            }
            if live.take_asked() {
                self.mark(key);
            }
        }
        let share = starved as f64 / sent.all.max(1) as f64;
        self.charge(audience, congested, &last, now, waited, share)
    }

    /// Charges the budget of an audience with what sessions have delayed it, and gives up on those that it is not enough
    /// for. `last`: the sessions that are behind; `share` of the audience has nothing left to read. Whether publishers
    /// should wait for any.
    fn charge(
        &mut self,
        audience: Option<&Topic>,
        congested: &mut Congested,
        last: &[Key],
        now: Instant,
        waited: Duration,
        share: f64,
    ) -> bool {
        let Some(budget) = self.budgets.of(audience, now) else { return false };
        let mut lost = Duration::ZERO;
        for (key, delay) in &congested.delays {
            // Those that left did not catch up.
            let here = matches!(self.clients.get(*key), Some(Client::Live(live)) if !live.is_ending());
            lost = if here { lost } else { lost.max(delay.unpaid) };
        }
        let left = budget.left(now).saturating_sub(waited.mul_f64(share));
        let mut delays = HashMap::with_capacity(last.len());
        for key in last {
            let Some(Client::Live(live)) = self.clients.get_mut(*key) else { continue };
            let taken = live.taken();
            let none = Delay { waited: Duration::ZERO, unpaid: Duration::ZERO, taken };
            let mut delay = congested.delays.get(key).copied().unwrap_or(none);
            let reads = live.reads();
            let weight = if reads { 1.0 } else { 1.0 + (UNPROVEN - 1.0) * share };
            delay.waited += waited.mul_f64(weight);
            delay.unpaid += waited.mul_f64(weight - share);
            // Where others have nothing left to read it has to take enough to catch up; else all are as slow as it is.
            let enough = if share > 0.0 { live.quarter() as u64 } else { 1 };
            if taken - delay.taken >= enough {
                delay = none;
            }
            if delay.waited > if reads { left.max(LEAST) } else { left / 2 } {
                live.give_up();
                lost = lost.max(delay.unpaid);
            } else {
                delays.insert(*key, delay);
            }
        }
        budget.spend(waited.mul_f64(share) + lost);
        congested.delays = delays;
        !congested.delays.is_empty()
    }
}
