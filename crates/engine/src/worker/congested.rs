//! Congested audiences: those whose publishers should wait for slow sessions, and when the wait ends.
//!
//! Publishers wait for sessions that read. Time in which another session of the audience, of any worker, has nothing
//! left to read is charged to the budget of the audience. While all sessions are behind, publishers go at the pace of
//! the sessions, and the time is charged only for sessions that never catch up.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::poll::CONGESTION_INTERVAL;
use super::{Client, Worker};
use crate::connection::Established;
use crate::control::Command;
use crate::delivery::slow_consumer::{ALLOWANCE, SlowConsumerBudget, SlowConsumerState};
use crate::topics::Topic;
use crate::util::slab::Key;

/// The maximum number of audiences tracked individually. Beyond it, all audiences of this worker count as congested
/// until half of them are left: a session that subscribes with a wildcard may be behind in any number of topics.
const MAX_CONGESTED: usize = 4096;

/// A session that has proven that it reads always gets this time for a quarter of its limit, even if the budget is
/// spent: other sessions that spend the budget must not cost a reader its session.
const MIN_ALLOWANCE: Duration = Duration::from_millis(100);

/// How much faster the time of a session that has not proven that it reads is used up, while others have nothing left
/// to read. It may use half of the budget: the rest is for sessions that read.
const UNPROVEN_WEIGHT: f64 = 10.0;

/// If all sessions of an audience are slow, publishers wait for one that reads this number of bytes in [`ALLOWANCE`],
/// or a sixteenth of its limit if that is less.
const SLOWEST_BYTES: usize = 64 * 1024;

/// An audience that is congested here or in another worker.
pub(super) struct Congested {
    /// Publishers wait for sessions of this worker. If not, another worker has asked whether sessions here have
    /// nothing left to read.
    holds: bool,
    /// The session that sent the last message, if a session did.
    sender: Option<u64>,
    /// The sessions that publishers wait for.
    delays: HashMap<Key, Delay>,
}

/// How long publishers have waited for a session.
#[derive(Clone, Copy)]
struct Delay {
    /// Since the session last took enough bytes.
    waited: Duration,
    /// The part of it that is charged to the budget if the session does not catch up.
    unpaid: Duration,
    /// The bytes that the session had taken by then.
    taken: u64,
}

/// The number of sessions that a message went to, and of those that are behind.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) all: usize,
    behind: usize,
}

impl Sent {
    pub(super) fn count(&mut self, client: &mut Established, high_water: usize, now: impl FnOnce() -> Instant) {
        self.add(client.is_behind(high_water, now));
    }

    fn add(&mut self, behind: bool) {
        self.all += 1;
        self.behind += usize::from(behind);
    }
}

/// The result of checking the sessions of an audience.
#[derive(Default)]
struct CheckResult {
    /// The sessions that are behind.
    behind: Vec<Key>,
    /// A session has nothing left to read.
    starved: bool,
    any: bool,
}

impl Worker {
    /// Marks the audience as congested if sessions are behind. `sender`: a session that did not get the message.
    pub(super) fn note_congestion(
        &mut self,
        sent: &Sent,
        sender: Option<u64>,
        audience: impl FnOnce() -> Option<Topic>,
    ) {
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
        for worker in self.shared.handles.get().into_iter().flatten() {
            if worker.worker != self.worker.worker {
                let _ = worker.mailbox.put(Command::Observe(audience.clone(), sender), 0); // the worker may have ended
            }
        }
    }

    fn add_congested(&mut self, audience: Option<Topic>, congested: Congested) {
        if self.congested.is_empty() {
            self.congestion_checked = Instant::now();
        }
        self.congested.insert(audience, congested);
    }

    /// Begins to check whether sessions here have nothing left to read, for publishers that wait for another worker's
    /// sessions. Does nothing if too many audiences are congested.
    pub(super) fn observe(&mut self, audience: Option<Topic>, sender: Option<u64>) {
        if self.congested.len() < MAX_CONGESTED / 2 && !self.congested.contains_key(&audience) {
            self.add_congested(audience, Congested { holds: false, sender, delays: HashMap::new() });
            self.check_congestion_after = Instant::now();
        }
    }

    /// Checks the congested audiences. Publishers go on when all sessions have caught up, or were given up.
    pub(super) fn check_congestion(&mut self) {
        if self.congested.is_empty() {
            return;
        }
        let now = Instant::now();
        if now < self.check_congestion_after {
            return;
        }
        let before = std::mem::replace(&mut self.congestion_checked, now);
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
        // Even with many sessions the checks are a small part of the work.
        self.check_congestion_after = now + CONGESTION_INTERVAL.max(now.elapsed() * 20);
        if fewer {
            self.worker.capacity.notify();
        }
    }

    /// Returns whether the predicate holds for another worker.
    fn others(&self, holds: impl Fn(&SlowConsumerState) -> bool) -> bool {
        let handles = self.shared.handles.get().into_iter().flatten();
        handles.filter(|worker| worker.worker != self.worker.worker).any(|worker| holds(&worker.congestion))
    }

    /// Finds the sessions here that publishers of the audience wait for, and whether one has nothing left to read.
    fn find_behind(&mut self, audience: Option<&Topic>, congested: &Congested, now: Instant) -> CheckResult {
        let keys: Vec<Key> = match audience {
            Some(topic) => self.topics.matching(topic).flat_map(|set| set.iter()).collect(),
            None => self.clients.keys(),
        };
        self.published += 1;
        let mut found = CheckResult::default();
        for key in keys {
            let Some(Client::Established(client)) = self.clients.get_mut(key) else { continue };
            // A session with several matching subscriptions is counted once, and a broadcast does not go to all
            // clients.
            if std::mem::replace(&mut client.published, self.published) == self.published
                || client.is_ending()
                || audience.is_none() && !client.emits_events()
            {
                continue;
            }
            found.any = true;
            // A quarter of the limit: half of the mark at which the wait began, so that it does not end for one
            // message.
            if congested.holds && client.is_behind(client.quarter_limit(), || now) {
                found.behind.push(key);
            } else if congested.sender != Some(client.session.id()) {
                // The sender has nothing to read unless other sessions send too.
                found.starved |= client.queued() == 0;
            }
            if client.take_wrote_early() {
                self.mark(key);
            }
        }
        found
    }

    /// Charges the budget of an audience with the delays of its sessions, and gives up sessions that have used it up.
    /// `before`: the time of the last check. Returns whether publishers should go on waiting.
    fn charge(
        &mut self,
        audience: &Option<Topic>,
        congested: &mut Congested,
        found: &CheckResult,
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
            // A session that left did not catch up.
            let here = matches!(self.clients.get(*key), Some(Client::Established(client)) if !client.is_ending());
            lost = if here { lost } else { lost.max(delay.unpaid) };
        }
        let mut delays = HashMap::with_capacity(found.behind.len());
        for key in &found.behind {
            let Some(Client::Established(client)) = self.clients.get_mut(*key) else { continue };
            let taken = client.taken_bytes();
            let none = Delay { waited: Duration::ZERO, unpaid: Duration::ZERO, taken };
            let mut delay = congested.delays.get(key).copied().unwrap_or(none);
            let reads = client.has_proven_reading();
            let weight = if starved && !reads { UNPROVEN_WEIGHT } else { 1.0 };
            delay.waited += waited.mul_f64(weight);
            delay.unpaid += waited.mul_f64(if starved { weight - 1.0 } else { weight });
            let most = if reads { left.max(MIN_ALLOWANCE) } else { left / 2 };
            // If others have nothing left to read, it has to take enough to catch up; else all are as slow as it is.
            let enough = if starved { client.quarter_limit() } else { slowest_bytes(client.quarter_limit(), most) };
            if taken - delay.taken >= enough as u64 {
                delay = none;
            }
            if delay.waited > most {
                client.give_up();
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

/// Returns the bytes that a session has to read in this time, if all sessions are slow. `quarter_limit`: of its limit.
fn slowest_bytes(quarter_limit: usize, time: Duration) -> usize {
    let bytes = SLOWEST_BYTES.min(quarter_limit / 4) as f64;
    ((bytes * time.as_secs_f64() / ALLOWANCE.as_secs_f64()) as usize).max(1)
}
