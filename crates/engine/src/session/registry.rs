//! All sessions of an engine by their numbers.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::session::Session;
use crate::util::locks::lock;

/// The sessions of one worker, which alone changes them.
type Part = Mutex<BTreeMap<u64, Session>>;

/// The sessions of each worker.
pub(crate) struct SessionRegistry(Vec<Part>);

impl SessionRegistry {
    pub(crate) fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Mutex::default()).collect())
    }

    pub(crate) fn add(&self, worker: usize, session: &Session) {
        if let Some(part) = self.0.get(worker) {
            lock(part).insert(session.id(), session.clone());
        }
    }

    pub(crate) fn remove(&self, worker: usize, id: u64) {
        if let Some(part) = self.0.get(worker) {
            lock(part).remove(&id);
        }
    }

    pub(crate) fn session(&self, id: u64) -> Option<Session> {
        self.0.iter().find_map(|part| lock(part).get(&id).cloned())
    }

    /// Returns the newest sessions that match, `most` at most.
    pub(crate) fn find(&self, most: usize, fits: impl Fn(&Session) -> bool) -> Vec<Session> {
        let mut found: Vec<Session> = Vec::new();
        for part in &self.0 {
            found.extend(lock(part).values().rev().filter(|session| fits(session)).take(most).cloned());
        }
        found.sort_unstable_by_key(|session| std::cmp::Reverse(session.id()));
        found.truncate(most);
        found
    }
}
