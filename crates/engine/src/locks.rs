//! Locks that count who has to wait for them.
//!
//! For all locks on the way of a message. A panic of whoever had one changes nothing that is not consistent: what
//! is under these locks is changed by calls that cannot panic half-way, and before a caller's closure runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// Locks that somebody else had, of all engines of this process: see [`contended`].
static CONTENDED: AtomicU64 = AtomicU64::new(0);

/// How often a thread had to wait for a lock on the way of a message, in this process.
#[must_use]
pub fn contended() -> u64 {
    CONTENDED.load(Ordering::Relaxed)
}

/// Takes a lock, and counts if somebody has it. For brokers too.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    taken(mutex.try_lock()).unwrap_or_else(|| mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The same, for reading: with others who do.
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    taken(lock.try_read()).unwrap_or_else(|| lock.read().unwrap_or_else(PoisonError::into_inner))
}

/// The same, for writing: alone.
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    taken(lock.try_write()).unwrap_or_else(|| lock.write().unwrap_or_else(PoisonError::into_inner))
}

fn taken<G>(result: Result<G, TryLockError<G>>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => {
            CONTENDED.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}
