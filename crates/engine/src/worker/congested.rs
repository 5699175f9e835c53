//! Audiences whose publishers should wait: which they are, and when they no longer are.
//!
//! Publishers wait for sessions that read. Time in which another session of the audience, of any worker, has nothing left
//! to read is charged to the budget of the audience. While all sessions are behind, the publishers go at their pace, and
//! the time is charged only for sessions that never catch up.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::poll::CONGESTION_PAUSE;
use super::{Client, Command, Key, Worker};
use crate::connection::Established;
use crate::slow_consumer::{ALLOWANCE, SlowConsumerBudget, SlowConsumerState};
use crate::topics::Topic;

/// Audiences that are known one by one. Where there are more, all of this worker's count for as long as half of these
/// are left: a session that subscribes with a wildcard may be behind in any number of topics.
const MAX_CONGESTED: usize = 4096;

/// A session that has shown that it reads is given so long for a quarter of its limit even if the budget is spent: others
/// that spend it must not cost a reader its session.
const LEAST: Duration = Duration::from_millis(100);

/// How much less patience publishers have with a session that has not shown that it reads, while others have nothing
/// left to read. It may use half of the budget: the rest is for those that read.
const UNPROVEN: f64 = 10.0;

/// Where all sessions of an audience are slow, publishers wait for one that reads so many bytes in [`ALLOWANCE`], or a
/// sixteenth of its limit if that is less.
const SLOWEST: usize = 64 * 1024;

/// An audience that is congested, here or in another worker.
pub(super) struct Congested {
    /// Publishers wait for sessions of this worker. Else another worker has asked whether sessions here have nothing left
    /// to read.
    holds: bool,
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
    pub(super) fn count(&mut self, live: &mut Established, high: usize, now: impl FnOnce() -> Instant) {
        self.add(live.is_behind(high, now));
    }

    fn add(&mut self, behind: bool) {
        self.all += 1;
        self.behind += usize::from(behind);
    }
}

/// What a look at the sessions of an audience has found.
#[derive(Default)]
struct Found {
    /// The sessions that are behind.
    behind: Vec<Key>,
    /// A session has nothing left to read.
    starved: bool,
    any: bool,
}

impl Worker {
    /// `sender`: one of the audience, perhaps, that did not get the message.
    pub(super) fn note_sent(&mut self, sent: &Sent, sender: Option<u64>, audience: impl FnOnce() -> Option<Topic>) {
        if sent.behind == 0 && self.congested.is_empty() {
            return;
        }
        let audience = audience();
        if let Some(congested) = self.congested.get_mut(&audience) {
            congested.sender = sender;
            if sent.behind == 0 || std::mem::replace(&mut congested.holds, true) {
                return;
            }
        } else if sent.behind == 0 {
            return;
        } else if self.congested.len() < MAX_CONGESTED {
            self.add_congested(audience.clone(), Congested { holds: true, sender, delays: HashMap::new() });
        } else {
            return self.worker.congestion.set_all(true);
        }
        self.worker.congestion.add(audience.clone());
        for worker in self.shared.homes.get().into_iter().flatten() {
            if worker.worker != self.worker.worker {
                let _ = worker.mailbox.put(Command::Observe(audience.clone(), sender), 0); // it has ended
            }
        }
    }

    fn add_congested(&mut self, audience: Option<Topic>, congested: Congested) {
        if self.congested.is_empty() {
            self.looked = Instant::now();
        }
        self.congested.insert(audience, congested);
    }

    /// Publishers of an audience wait for sessions of another worker, which asks whether sessions here have nothing left to
    /// read. There is no answer if too many audiences are congested.
    pub(super) fn observe(&mut self, audience: Option<Topic>, sender: Option<u64>) {
        if self.congested.len() < MAX_CONGESTED / 2 && !self.congested.contains_key(&audience) {
            self.add_congested(audience, Congested { holds: false, sender, delays: HashMap::new() });
            self.look_after = Instant::now();
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
        let before = std::mem::replace(&mut self.looked, now);
        let mut fewer = false;
        let mut congested = std::mem::take(&mut self.congested);
        congested.retain(|audience, congested| {
            let found = self.find_behind(audience.as_ref(), congested, now);
            self.worker.congestion.set_starved(audience, found.starved);
            if congested.holds && !self.charge(audience, congested, &found, before, now) {
                congested.holds = false;
                self.worker.congestion.remove(audience);
                fewer = true;
            }
            let keep = congested.holds || found.any && self.others(|congestion| congestion.holds(audience));
            if !keep {
                self.worker.congestion.set_starved(audience, false);
            }
            keep
        });
        self.congested = congested;
        if self.congested.len() <= MAX_CONGESTED / 2 {
            self.worker.congestion.set_all(false);
        }
        // However many they are, looking at them is a small part of the work.
        self.look_after = now + CONGESTION_PAUSE.max(now.elapsed() * 20);
        if fewer {
            self.worker.room.notify();
        }
    }

    /// Whether something holds for another worker.
    fn others(&self, holds: impl Fn(&SlowConsumerState) -> bool) -> bool {
        let homes = self.shared.homes.get().into_iter().flatten();
        homes.filter(|worker| worker.worker != self.worker.worker).any(|worker| holds(&worker.congestion))
    }

    /// The sessions here that publishers of the audience wait for, and whether one has nothing left to read.
    fn find_behind(&mut self, audience: Option<&Topic>, congested: &Congested, now: Instant) -> Found {
        let keys: Vec<Key> = match audience {
            Some(topic) => self.topics.matching(topic).flat_map(|set| set.iter()).collect(),
            None => self.clients.keys(),
        };
        self.published += 1;
        let mut found = Found::default();
        for key in keys {
            let Some(Client::Established(live)) = self.clients.get_mut(key) else { continue };
            // A session that subscribes in several ways is counted once, and a broadcast does not go to all clients.
            if std::mem::replace(&mut live.published, self.published) == self.published
                || live.is_ending()
                || audience.is_none() && !live.is_told()
            {
                continue;
            }
            found.any = true;
            // Half of what made it wait: else it would go on for one message.
            if congested.holds && live.is_behind(live.quarter(), || now) {
                found.behind.push(key);
            } else if congested.sender != Some(live.session.id()) {
                // The session that sent the message has nothing to read, unless others send too.
                found.starved |= live.queued() == 0;
            }
            if live.take_asked() {
                self.mark(key);
            }
        }
        found
    }

    /// Charges the budget of an audience with what sessions have delayed it, and gives up on those that it is not enough
    /// for. `before`: the time of the last look. Whether publishers should wait for any.
    fn charge(
        &mut self,
        audience: &Option<Topic>,
        congested: &mut Congested,
        found: &Found,
        before: Instant,
        now: Instant,
    ) -> bool {
        let waited = now.saturating_duration_since(before);
        let starved = found.starved || self.others(|congestion| congestion.is_starved(audience));
        let budgets = &self.shared.budgets;
        let spend = |budget: &mut SlowConsumerBudget| {
            if starved {
                budget.spend_between(before, now);
            }
            budget.left(now)
        };
        let Some(left) = budgets.with(audience.as_ref(), now, spend) else { return false };
        let mut lost = Duration::ZERO;
        for (key, delay) in &congested.delays {
            // Those that left did not catch up.
            let here = matches!(self.clients.get(*key), Some(Client::Established(live)) if !live.is_ending());
            lost = if here { lost } else { lost.max(delay.unpaid) };
        }
        let mut delays = HashMap::with_capacity(found.behind.len());
        for key in &found.behind {
            let Some(Client::Established(live)) = self.clients.get_mut(*key) else { continue };
            let taken = live.taken();
            let none = Delay { waited: Duration::ZERO, unpaid: Duration::ZERO, taken };
            let mut delay = congested.delays.get(key).copied().unwrap_or(none);
            let reads = live.reads();
            let weight = if starved && !reads { UNPROVEN } else { 1.0 };
            delay.waited += waited.mul_f64(weight);
            delay.unpaid += waited.mul_f64(if starved { weight - 1.0 } else { weight });
            let most = if reads { left.max(LEAST) } else { left / 2 };
            // Where others have nothing left to read it has to take enough to catch up; else all are as slow as it is.
            let enough = if starved { live.quarter() } else { slowest(live.quarter(), most) };
            if taken - delay.taken >= enough as u64 {
                delay = none;
            }
            if delay.waited > most {
                live.give_up();
                lost = lost.max(delay.unpaid);
            } else {
                delays.insert(*key, delay);
            }
        }
        if !lost.is_zero() {
            self.shared.budgets.with(audience.as_ref(), now, |budget| budget.spend(lost));
        }
        congested.delays = delays;
        !congested.delays.is_empty()
    }
}

/// Bytes that a session has to read in this time where all sessions are slow. `quarter`: of its limit.
fn slowest(quarter: usize, time: Duration) -> usize {
    let bytes = SLOWEST.min(quarter / 4) as f64;
    ((bytes * time.as_secs_f64() / ALLOWANCE.as_secs_f64()) as usize).max(1)
}
