//! The lock of what an event loop's objects share, but for the state of a connection, which has an
//! [`OwnerCheckedMutex`](super::exclusive::Exclusive).
//!
//! Where the interpreter has its lock, that one excludes already, and a flag is enough; where it has none
//! (free-threaded builds), this is a mutex. Either way it is held for some lines that neither run Python
//! code, which could come back here, nor give up the interpreter's lock: no object is made, called or dropped
//! with it.

#![allow(unsafe_code)] // the flag's side of it

use std::ops::{Deref, DerefMut};

use pyo3::prelude::*;

#[cfg(Py_GIL_DISABLED)]
mod imp {
    use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

    pub(super) struct Lock<T>(Mutex<T>);
    pub(super) type Guard<'a, T> = MutexGuard<'a, T>;

    impl<T> Lock<T> {
        pub(super) const fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        pub(super) fn lock(&self) -> Guard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }
    }
}

#[cfg(not(Py_GIL_DISABLED))]
mod imp {
    use std::cell::{Cell, UnsafeCell};
    use std::ops::{Deref, DerefMut};

    pub(super) struct Lock<T> {
        held: Cell<bool>,
        value: UnsafeCell<T>,
    }

    // SAFETY: every access is behind `lock` and `try_lock`, whose callers hold the interpreter's lock (they
    // have a `Python` token) and do not give it up while they have the guard, which is not `Send`: so one
    // thread at a time; `held` excludes a second guard in that thread.
    unsafe impl<T: Send> Sync for Lock<T> {}

    pub(super) struct Guard<'a, T> {
        lock: &'a Lock<T>,
        // Not Send: the guard belongs to the thread that holds the interpreter's lock.
        _thread: std::marker::PhantomData<*const ()>,
    }

    impl<T> Lock<T> {
        pub(super) const fn new(value: T) -> Self {
            Self { held: Cell::new(false), value: UnsafeCell::new(value) }
        }

        #[inline]
        #[allow(clippy::panic, reason = "a bug of ours, at which nothing can be looked at")]
        pub(super) fn lock(&self) -> Guard<'_, T> {
            match self.try_lock() {
                Some(guard) => guard,
                None => panic!("locked twice: see the rule of this module"),
            }
        }

        #[inline]
        pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
            if self.held.replace(true) {
                return None;
            }
            Some(Guard { lock: self, _thread: std::marker::PhantomData })
        }
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        #[inline]
        fn deref(&self) -> &T {
            // SAFETY: there is one guard at a time, see `Lock`.
            unsafe { &*self.lock.value.get() }
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        #[inline]
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: there is one guard at a time, see `Lock`.
            unsafe { &mut *self.lock.value.get() }
        }
    }

    impl<T> Drop for Guard<'_, T> {
        #[inline]
        fn drop(&mut self) {
            self.lock.held.set(false);
        }
    }
}

/// A value for one thread at a time.
pub(crate) struct GilMutex<T>(imp::Lock<T>);

/// Access to it.
pub(crate) struct Guard<'a, T>(imp::Guard<'a, T>);

impl<T> GilMutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(imp::Lock::new(value))
    }

    /// Locks. Do not detach from the interpreter, nor run Python code, with the guard.
    #[inline]
    pub(crate) fn lock(&self, _: Python<'_>) -> Guard<'_, T> {
        Guard(self.0.lock())
    }

    /// Locks unless somebody has locked: for the garbage collector, which may run anywhere.
    pub(crate) fn try_lock_for_gc(&self) -> Option<Guard<'_, T>> {
        self.0.try_lock().map(Guard)
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
