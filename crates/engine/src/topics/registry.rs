//! The registry of all subscriptions of all workers.
//!
//! Owns how many sessions a message goes to and which workers have one of them, and orders each publish before or
//! after each change of a matching subscription. Knows no message and no mailbox: closures of the callers put commands
//! into mailboxes while the registry cannot change, so each worker gets them in the order of the changes. Called by
//! sessions, publishers and workers, from any thread.
//!
//! # Locks
//! They are taken in this order; a thread with a later one never waits for an earlier one:
//! 1. one of `accounts`, which orders the operations on one session;
//! 2. one of `exact`, or all of them, by their index;
//! 3. `wild`.
//!
//! Closures are called under these locks: they must not call the registry, and must not wait for a thread that does.

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
use crate::util::locks::{lock, read, write};

/// The number of separately locked parts: a few for each publishing thread of a current machine, and so few that all
/// can be locked at once.
const SHARDS: usize = 16;

/// Aligned to two cache lines, as x86 fetches two at a time: otherwise other locks would move the line.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Padded<T>(T);

/// The patterns of each session that has any.
type Accounts = HashMap<u64, IndexSet<Pattern, RandomState>, RandomState>;

/// The sessions of each pattern without wildcards that has any. Clients choose the names, so the hash is seeded.
type Exact = HashMap<Pattern, Subscribers, RandomState>;

/// The subscriptions of all sessions, by numbers that are unique among all workers.
pub struct Registry {
    /// By the numbers of the sessions.
    accounts: [Padded<Mutex<Accounts>>; SHARDS],
    /// By the hashes of the names.
    exact: [Padded<RwLock<Exact>>; SHARDS],
    wild: RwLock<Tree<Subscribers>>,
    /// Whether `wild` has any subscription. It is set only under all locks of `exact`, so that false stays true while
    /// a thread holds one of them. It is cleared only after the `apply` of the last one.
    has_wild: AtomicBool,
    hasher: RandomState,
    max_subscriptions: usize,
    /// Called for first and last subscribers.
    interest: OnceLock<Box<Interest>>,
}

/// Called when a pattern has its first subscriber (true), or none any more (false). It is called under the locks of
/// the pattern, and so in order: it must not call the registry, and must not wait.
pub type Interest = dyn Fn(&Pattern, bool) + Send + Sync;

/// A session has the maximum number of subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySubscriptions {
    /// The maximum.
    pub limit: usize,
}

fn keep_most(most: &mut Vec<(Pattern, usize)>, count: usize) {
    most.sort_unstable_by(|(one, fewer), (other, more)| more.cmp(fewer).then_with(|| one.as_str().cmp(other.as_str())));
    most.truncate(count);
}

impl Registry {
    /// Returns an empty registry, in which a session may have `max_subscriptions` patterns.
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

    /// Sets the function for first and last subscribers, before there are any. A second call does nothing.
    pub fn set_interest(&self, interest: Box<Interest>) {
        let _ = self.interest.set(interest); // the first one stays
    }

    fn notify(&self, pattern: &Pattern, wanted: bool) {
        if let Some(interest) = self.interest.get() {
            interest(pattern, wanted);
        }
    }

    /// Subscribes a session of `worker`, and calls `apply`: before any publish that counts it and after any that does
    /// not. Returns false without a call if it is subscribed already. A session must never change its worker.
    ///
    /// # Errors
    /// It has the maximum number of subscriptions. `apply` was not called.
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

    /// Ends a subscription and calls `apply`: before any publish that no longer counts the session and after any that
    /// does. Returns false without a call if there is none.
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

    /// Ends all subscriptions of a session, one after the other, and returns them. A concurrent publish may count it
    /// or not.
    ///
    /// It does not prevent the session from subscribing again: a worker that gets a subscription of a session which
    /// has ended calls this once more.
    pub fn remove_session(&self, id: u64) -> Vec<Pattern> {
        // Locked until all are removed: a concurrent subscription could be removed here.
        let mut accounts = lock(self.account(id));
        let patterns = accounts.remove(&id).unwrap_or_default();
        for pattern in &patterns {
            self.remove(pattern, id, || {});
        }
        patterns.into_iter().collect()
    }

    /// Counts the sessions with a matching subscription, each once and without `exclude`, and calls `route` with their
    /// workers. No matching subscription changes until `route` returns; other publishes may be concurrent. `route` is
    /// called even if there is no worker. It must put its commands into the mailboxes before it returns, so that their
    /// order is that of the registry.
    pub fn publish<R>(&self, topic: &Topic, exclude: Option<u64>, route: impl FnOnce(&Workers) -> R) -> (usize, R) {
        let exact = read(self.shard(topic.as_str()));
        let wild = self.has_wild.load(Ordering::Acquire).then(|| read(&self.wild));
        let mut workers = Workers::default();
        let mut excluded = false;
        let sets = exact.get(topic.as_str()).into_iter();
        let sets = sets.chain(wild.iter().flat_map(|wild| wild.matching(topic)));
        let count = count_distinct(sets.inspect(|set| excluded |= set.add_workers(exclude, &mut workers)));
        let routed = route(&workers);
        (count - usize::from(excluded), routed)
    }

    /// Returns how many sessions a message published now would go to.
    #[must_use]
    pub fn subscribers(&self, topic: &Topic) -> usize {
        self.publish(topic, None, |_| ()).0
    }

    /// Returns the patterns of a session, in no order.
    #[must_use]
    pub fn patterns_of(&self, id: u64) -> Vec<Pattern> {
        lock(self.account(id)).get(&id).into_iter().flatten().cloned().collect()
    }

    /// Returns the number of patterns with a subscriber. With concurrent changes it is approximate.
    #[must_use]
    pub fn len(&self) -> usize {
        self.exact.iter().map(|shard| read(&shard.0).len()).sum::<usize>() + read(&self.wild).len()
    }

    /// Returns whether there are no subscriptions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the `count` patterns with the most subscribers, with their numbers.
    #[must_use]
    pub fn most(&self, count: usize) -> Vec<(Pattern, usize)> {
        let mut most = Vec::new();
        // One part at a time, so that publishers go on; and no more are kept than needed.
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

    /// Locks `wild` for an insertion. While it is empty publishers do not look there, so the first insertion needs all
    /// locks of `exact` too.
    fn write_wild(&self) -> (Vec<RwLockWriteGuard<'_, Exact>>, RwLockWriteGuard<'_, Tree<Subscribers>>) {
        let wild = write(&self.wild);
        if !wild.is_empty() {
            return (Vec::new(), wild);
        }
        // The locks of `exact` come first: a thread with one of them may wait for this one.
        drop(wild);
        let exact = self.exact.iter().map(|shard| write(&shard.0)).collect();
        (exact, write(&self.wild))
    }

    /// Removes a session from the set of a pattern, and calls `apply`. The caller holds the lock of its account.
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
    /// The number of sessions of each worker; never 0.
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

    /// Adds the workers that have a session other than `exclude`. Returns whether that one is among the sessions.
    fn add_workers(&self, exclude: Option<u64>, workers: &mut Workers) -> bool {
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
