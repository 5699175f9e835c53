//! Locks that count contention.
//!
//! Used for all locks on the path of a message. Poisoning is ignored, because a panic leaves the data consistent: it is
//! changed by calls that cannot panic half-way, and before a caller's closure runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// Contended locks of all engines in this process: see [`contended`].
static CONTENDED: AtomicU64 = AtomicU64::new(0);

/// Returns how often a thread of this process had to wait for a lock on the path of a message.
#[must_use]
pub fn contended() -> u64 {
    CONTENDED.load(Ordering::Relaxed)
}

/// Locks a mutex, and counts if it is contended. Brokers use it too.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    acquired(mutex.try_lock()).unwrap_or_else(|| mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Locks for reading, and counts if the lock is contended.
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    acquired(lock.try_read()).unwrap_or_else(|| lock.read().unwrap_or_else(PoisonError::into_inner))
}

/// Locks for writing, and counts if the lock is contended.
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    acquired(lock.try_write()).unwrap_or_else(|| lock.write().unwrap_or_else(PoisonError::into_inner))
}

fn acquired<G>(result: Result<G, TryLockError<G>>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => {
            CONTENDED.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}
