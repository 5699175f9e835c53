//! A mutex for data that the objects of an event loop share, except for the state of a connection, which has an
//! [`OwnerCheckedMutex`](super::owner_mutex::OwnerCheckedMutex).
//!
//! With a GIL, threads already exclude each other, and a flag is enough. In free-threaded builds this is a real
//! mutex. In both cases it is held for a few lines that neither release the GIL nor run Python code, which
//! could lock it again: no object is created, called or dropped while it is held.

#![allow(unsafe_code)] // access to the value behind the flag

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

    // SAFETY: every access goes through `lock` and `try_lock`. Their callers hold the GIL (they have a `Python`
    // token) and do not release it while they have the guard, which is not `Send`. So one thread at a time has
    // access, and `held` excludes a second guard in that thread.
    unsafe impl<T: Send> Sync for Lock<T> {}

    pub(super) struct Guard<'a, T> {
        lock: &'a Lock<T>,
        // Not Send: the guard belongs to the thread that holds the GIL.
        _thread: std::marker::PhantomData<*const ()>,
    }

    impl<T> Lock<T> {
        pub(super) const fn new(value: T) -> Self {
            Self { held: Cell::new(false), value: UnsafeCell::new(value) }
        }

        #[inline]
        #[allow(clippy::panic, reason = "a bug in this crate, after which the value must not be accessed")]
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
            // SAFETY: there is only one guard at a time, see `Lock`.
            unsafe { &*self.lock.value.get() }
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        #[inline]
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: there is only one guard at a time, see `Lock`.
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

/// A value that one thread at a time may access.
pub(crate) struct GilMutex<T>(imp::Lock<T>);

/// Access to the value of a [`GilMutex`].
pub(crate) struct Guard<'a, T>(imp::Guard<'a, T>);

impl<T> GilMutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(imp::Lock::new(value))
    }

    /// Locks. The caller must not release the GIL or run Python code while it has the guard.
    #[inline]
    pub(crate) fn lock(&self, _: Python<'_>) -> Guard<'_, T> {
        Guard(self.0.lock())
    }

    /// Locks unless it is locked already. For the garbage collector, which may run at any point.
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
