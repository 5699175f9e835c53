//! The account of all subscriptions of all workers.
//!
//! Owns how many sessions a publish goes to and which workers have one of them, and orders each publish before
//! or after each change that concerns it. Knows no message and no mailbox: what is put into mailboxes is put
//! there by closures that run while the account cannot change, so that each worker is told in the order in
//! which the account changed. Called by sessions, publishers and workers, from any thread.
//!
//! # Locks
//! In this order, and none is waited for by whoever has a later one:
//! 1. one of `accounts`, which orders what is done to one session;
//! 2. one of `exact`, or all of them, by their places;
//! 3. `wild`.
//!
//! Closures run under them: they must not call the registry, and must not wait for anybody who does.

use std::array;
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, RwLock, RwLockWriteGuard};

use foldhash::fast::RandomState;
use indexmap::{IndexMap, IndexSet};

use super::pattern::{Pattern, Topic};
use super::set::{Members, count_distinct};
use super::tree::Tree;
use super::workers::{WorkerId, Workers};
use crate::locks::{lock, read, write};

/// Parts of the account that are locked apart from each other: a few for each thread that publishes on
/// machines of today, and few enough to be taken all at once.
const SHARDS: usize = 16;

/// On cache lines of its own (two are fetched at a time on x86): a lock that is taken elsewhere would move the
/// line.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Padded<T>(T);

/// The patterns of each session that has any.
type Accounts = HashMap<u64, IndexSet<Pattern, RandomState>, RandomState>;

/// The sessions of each pattern without wildcards that has any. The names are of peers' choosing: the hash has
/// a seed.
type Exact = HashMap<Pattern, Subscribers, RandomState>;

/// See the module. Sessions are known by numbers that no two of them share, on whichever worker.
pub struct Registry {
    /// By the sessions' numbers.
    accounts: [Padded<Mutex<Accounts>>; SHARDS],
    /// By the hashes of names.
    exact: [Padded<RwLock<Exact>>; SHARDS],
    wild: RwLock<Tree<Subscribers>>,
    /// Whether `wild` has any. Set only by whoever has all of `exact`, so that "no" holds for as long as one
    /// has one of them; cleared only after the last one's `apply`.
    has_wild: AtomicBool,
    hasher: RandomState,
    max_subscriptions: usize,
    /// Told of first and last subscribers.
    interest: OnceLock<Box<Interest>>,
}

/// A pattern has its first subscriber, or none any more. Called under the locks of the pattern, so in the order in
/// which it became so: it must not call the registry, and must not wait.
pub type Interest = dyn Fn(&Pattern, bool) + Send + Sync;

/// A session has as many subscriptions as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySubscriptions {
    /// How many.
    pub limit: usize,
}

fn keep_most(most: &mut Vec<(Pattern, usize)>, count: usize) {
    most.sort_unstable_by(|(one, fewer), (other, more)| more.cmp(fewer).then_with(|| one.as_str().cmp(other.as_str())));
    most.truncate(count);
}

impl Registry {
    /// An empty one, in which a session may have `max_subscriptions` patterns.
    #[must_use]
    pub fn new(max_subscriptions: usize) -> Self {
        Self {
            accounts: array::from_fn(|_| Padded::default()),
            exact: array::from_fn(|_| Padded::default()),
            wild: RwLock::default(),
            has_wild: AtomicBool::new(false),
            hasher: RandomState::default(),
            max_subscriptions,
            interest: OnceLock::new(),
        }
    }

    /// Sets who is told of first and last subscribers, before there are any; the second time: nothing.
    pub fn set_interest(&self, interest: Box<Interest>) {
        let _ = self.interest.set(interest); // once
    }

    fn notify(&self, pattern: &Pattern, wanted: bool) {
        if let Some(interest) = self.interest.get() {
            interest(pattern, wanted);
        }
    }

    /// Subscribes a session of `worker` and calls `apply`, before any publish that counts it and after any
    /// that does not. False, and no call, if it did already. It must stay with its worker.
    ///
    /// # Errors
    /// It has as many subscriptions as it may have. `apply` was not called.
    pub fn subscribe(
        &self,
        pattern: &Pattern,
        worker: WorkerId,
        id: u64,
        apply: impl FnOnce(),
    ) -> Result<bool, TooManySubscriptions> {
        let mut accounts = lock(self.account(id));
        wirespeed_driver::protocol::failpoint::hit("engine.subscribe");
        let patterns = accounts.get(&id);
        if patterns.is_some_and(|patterns| patterns.contains(pattern)) {
            return Ok(false);
        }
        if patterns.map_or(0, IndexSet::len) >= self.max_subscriptions {
            return Err(TooManySubscriptions { limit: self.max_subscriptions });
        }
        accounts.entry(id).or_default().insert(pattern.clone());
        if pattern.is_exact() {
            let mut exact = write(self.shard(pattern.as_str()));
            let set = exact.entry(pattern.clone()).or_default();
            set.insert(id, worker);
            if set.len() == 1 {
                self.notify(pattern, true);
            }
            apply();
        } else {
            let (_exact, mut wild) = self.write_wild();
            let set = wild.members_mut(pattern);
            set.insert(id, worker);
            if set.len() == 1 {
                self.notify(pattern, true);
            }
            self.has_wild.store(true, Ordering::Release);
            apply();
        }
        Ok(true)
    }

    /// Ends a subscription and calls `apply`, before any publish that does not count the session for it any
    /// more and after any that does. False, and no call, if there is none.
    pub fn unsubscribe(&self, pattern: &Pattern, id: u64, apply: impl FnOnce()) -> bool {
        let mut accounts = lock(self.account(id));
        let Some(patterns) = accounts.get_mut(&id) else { return false };
        if !patterns.swap_remove(pattern) {
            return false;
        }
        if patterns.is_empty() {
            accounts.remove(&id);
        }
        self.remove(pattern, id, apply);
        true
    }

    /// Ends all subscriptions of a session, one after the other: a publish meanwhile may count it or not.
    /// What they were.
    ///
    /// Does not keep it from subscribing again: a worker that is told by `apply` of a session which has ended
    /// calls this once more.
    pub fn remove_session(&self, id: u64) -> Vec<Pattern> {
        // Kept until all are gone: who subscribes meanwhile would have what is yet to be removed.
        let mut accounts = lock(self.account(id));
        let patterns = accounts.remove(&id).unwrap_or_default();
        for pattern in &patterns {
            self.remove(pattern, id, || {});
        }
        patterns.into_iter().collect()
    }

    /// Counts the sessions that subscribe to what matches, each of them once and without `exclude`, and calls
    /// `route` with the workers that have one of them. No subscription that matches changes until it returns;
    /// others publish meanwhile. It is called with no worker too, and must put nothing off: its order among
    /// the calls of `apply` and of other `route`s in a mailbox is that of the account.
    pub fn publish<R>(&self, topic: &Topic, exclude: Option<u64>, route: impl FnOnce(&Workers) -> R) -> (usize, R) {
        let exact = read(self.shard(topic.as_str()));
        let wild = self.has_wild.load(Ordering::Acquire).then(|| read(&self.wild));
        let mut workers = Workers::default();
        let mut excluded = false;
        let sets = exact.get(topic.as_str()).into_iter();
        let sets = sets.chain(wild.iter().flat_map(|wild| wild.matching(topic)));
        let count = count_distinct(sets.inspect(|set| excluded |= set.reach(exclude, &mut workers)));
        let routed = route(&workers);
        (count - usize::from(excluded), routed)
    }

    /// How many sessions something published now would go to.
    #[must_use]
    pub fn subscribers(&self, topic: &Topic) -> usize {
        self.publish(topic, None, |_| ()).0
    }

    /// The patterns of a session, in no order.
    #[must_use]
    pub fn patterns_of(&self, id: u64) -> Vec<Pattern> {
        lock(self.account(id)).get(&id).into_iter().flatten().cloned().collect()
    }

    /// How many patterns have a subscriber. While others change that, it may be a number that never was.
    #[must_use]
    pub fn len(&self) -> usize {
        self.exact.iter().map(|shard| read(&shard.0).len()).sum::<usize>() + read(&self.wild).len()
    }

    /// Whether nobody subscribes to anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The patterns that most sessions subscribe to, with how many do; `count` of them.
    #[must_use]
    pub fn most(&self, count: usize) -> Vec<(Pattern, usize)> {
        let mut most = Vec::new();
        // Not all at once, which would hold everybody up; and no more are kept than may be wanted.
        for shard in &self.exact {
            most.extend(read(&shard.0).iter().map(|(pattern, set)| (pattern.clone(), set.len())));
            keep_most(&mut most, count);
        }
        most.extend(read(&self.wild).patterns().map(|(pattern, set)| (pattern.clone(), set.len())));
        keep_most(&mut most, count);
        most
    }

    fn account(&self, id: u64) -> &Mutex<Accounts> {
        #[allow(clippy::indexing_slicing, reason = "an index below SHARDS, of an array of so many")]
        &self.accounts[(id % SHARDS as u64) as usize].0
    }

    fn shard(&self, name: &str) -> &RwLock<Exact> {
        #[allow(clippy::indexing_slicing, reason = "an index below SHARDS, of an array of so many")]
        &self.exact[(self.hasher.hash_one(name) % SHARDS as u64) as usize].0
    }

    /// For somebody to be put into a set of `wild`. If nobody was in any, whoever publishes does not look
    /// there: then the other locks keep everybody from that.
    fn write_wild(&self) -> (Vec<RwLockWriteGuard<'_, Exact>>, RwLockWriteGuard<'_, Tree<Subscribers>>) {
        let wild = write(&self.wild);
        if !wild.is_empty() {
            return (Vec::new(), wild);
        }
        // Somebody who has one of the others may wait for this one.
        drop(wild);
        let exact = self.exact.iter().map(|shard| write(&shard.0)).collect();
        (exact, write(&self.wild))
    }

    /// Takes a session out of the set of a pattern, and calls `apply`. Its account is locked.
    fn remove(&self, pattern: &Pattern, id: u64, apply: impl FnOnce()) {
        if !pattern.is_exact() {
            let mut wild = write(&self.wild);
            let mut last = false;
            wild.remove(pattern, |set| {
                let removed = set.remove(id);
                last = removed && set.len() == 0;
                removed
            });
            if last {
                self.notify(pattern, false);
            }
            apply();
            if wild.is_empty() {
                self.has_wild.store(false, Ordering::Release);
            }
            return;
        }
        let mut exact = write(self.shard(pattern.as_str()));
        if let Some(set) = exact.get_mut(pattern) {
            set.remove(id);
            if set.len() == 0 {
                exact.remove(pattern);
                self.notify(pattern, false);
            }
        }
        apply();
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("max_subscriptions", &self.max_subscriptions).finish_non_exhaustive()
    }
}

impl fmt::Display for TooManySubscriptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a session has at most {} subscriptions", self.limit)
    }
}

impl Error for TooManySubscriptions {}

/// The sessions that subscribe to one pattern.
#[derive(Debug, Default)]
struct Subscribers {
    sessions: IndexMap<u64, WorkerId, RandomState>,
    /// How many of them each worker has; none of these numbers is 0.
    workers: Vec<(WorkerId, u32)>,
}

impl Subscribers {
    fn insert(&mut self, id: u64, worker: WorkerId) {
        if let indexmap::map::Entry::Vacant(entry) = self.sessions.entry(id) {
            entry.insert(worker);
            match self.workers.iter_mut().find(|(other, _)| *other == worker) {
                Some((_, count)) => *count += 1,
                None => self.workers.push((worker, 1)),
            }
        }
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(worker) = self.sessions.swap_remove(&id) else { return false };
        let mut counts = self.workers.iter_mut().enumerate();
        if let Some((place, (_, count))) = counts.find(|(_, (other, _))| *other == worker) {
            *count -= 1;
            if *count == 0 {
                self.workers.swap_remove(place);
            }
        }
        true
    }

    /// Adds the workers that have a session other than `exclude`; whether that one is among the sessions.
    fn reach(&self, exclude: Option<u64>, workers: &mut Workers) -> bool {
        let excluded = exclude.and_then(|id| self.sessions.get(&id).copied());
        for &(worker, count) in &self.workers {
            if count > u32::from(excluded == Some(worker)) {
                workers.insert(worker);
            }
        }
        excluded.is_some()
    }
}

impl Members for Subscribers {
    type Member = u64;

    fn len(&self) -> usize {
        self.sessions.len()
    }

    fn contains(&self, member: u64) -> bool {
        self.sessions.contains_key(&member)
    }

    fn members(&self) -> impl Iterator<Item = u64> {
        self.sessions.keys().copied()
    }
}
