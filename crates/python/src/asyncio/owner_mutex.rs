//! The lock around the state of a connection.
//!
//! Unlike [`GilMutex`](super::gil_mutex::GilMutex) it may be held while the GIL is released: during system
//! calls that move many bytes, and by an `ssl.SSLContext`, which releases the GIL by itself, checks for signals
//! and creates objects, so handlers and finalizers may run. Therefore it knows its owner. Another thread waits
//! without the GIL. The same thread, which would wait for itself, gets an exception.
//!
//! A panic while it is held poisons it, because the value may be half changed. The next caller that locks it is
//! informed once.

#![allow(unsafe_code)] // the lock itself

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use wirespeed_driver::fork;
use wirespeed_driver::thread::{SHUTDOWN_WAIT, this_thread};

use crate::gil_yield;

/// How long a thread waits before it tries again: the duration of some system calls.
const RETRY_INTERVAL: Duration = Duration::from_micros(50);

/// A mutex that knows the thread which has locked it.
pub(super) struct OwnerCheckedMutex<T> {
    /// [`this_thread`] of the owner; 0 if it is not locked.
    owner: AtomicUsize,
    poisoned: AtomicBool,
    /// The process that created it, see [`fork::generation`].
    generation: u64,
    value: ManuallyDrop<UnsafeCell<T>>,
}

impl<T> Drop for OwnerCheckedMutex<T> {
    fn drop(&mut self) {
        // A remaining owner is a thread of the parent process. Its value may be half changed, so it leaks in
        // the child.
        if *self.owner.get_mut() == 0 {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

// SAFETY: the value is accessed through a `Guard` only, of which there is one at a time: `acquire` returns it
// after it has made this thread the owner, and no other thread becomes owner before the guard is dropped.
unsafe impl<T: Send> Sync for OwnerCheckedMutex<T> {}

/// Access to the value. Belongs to the thread that has locked.
pub(super) struct Guard<'a, T> {
    lock: &'a OwnerCheckedMutex<T>,
    /// Whether this thread was panicking before it locked: it may run a finalizer while a panic unwinds.
    unwinding: bool,
    _thread: PhantomData<*const ()>,
}

impl<T> OwnerCheckedMutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            owner: AtomicUsize::new(0),
            poisoned: AtomicBool::new(false),
            generation: fork::generation(),
            value: ManuallyDrop::new(UnsafeCell::new(value)),
        }
    }

    /// Makes this thread the owner if there is none. Otherwise returns the owner.
    #[inline]
    fn acquire(&self) -> Result<Guard<'_, T>, usize> {
        let owner = self.claim(this_thread());
        if owner != 0 {
            return Err(owner);
        }
        Ok(Guard { lock: self, unwinding: std::thread::panicking(), _thread: PhantomData })
    }

    /// Returns the previous owner: 0 if `thread` has become the owner.
    #[cfg(not(Py_GIL_DISABLED))]
    #[inline]
    fn claim(&self, thread: usize) -> usize {
        // Every caller holds the GIL over both lines, so no other thread runs in between.
        let owner = self.owner.load(Ordering::Acquire);
        if owner == 0 {
            self.owner.store(thread, Ordering::Relaxed);
        }
        owner
    }

    #[cfg(Py_GIL_DISABLED)]
    #[inline]
    fn claim(&self, thread: usize) -> usize {
        self.owner.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed).err().unwrap_or(0)
    }

    /// Locks, and waits without the GIL if another thread has locked. An error if this thread has locked
    /// already. `None` if the owner no longer exists: it was a thread of the parent process at the fork, or the
    /// interpreter has ended it. Its value may be half changed, and must never be accessed.
    #[inline]
    pub(super) fn lock(&self, py: Python<'_>) -> PyResult<Option<Guard<'_, T>>> {
        match self.acquire() {
            Ok(guard) => Ok(Some(guard)),
            Err(owner) => self.wait(py, owner),
        }
    }

    #[cold]
    fn wait(&self, py: Python<'_>, mut owner: usize) -> PyResult<Option<Guard<'_, T>>> {
        let started = Instant::now();
        loop {
            if self.generation != fork::generation() {
                return Ok(None);
            }
            if gil_yield::is_shutting_down() && started.elapsed() > SHUTDOWN_WAIT {
                return Ok(None);
            }
            if owner == this_thread() {
                return Err(PyRuntimeError::new_err(
                    "the connection is at work: a signal handler or finalizer that runs meanwhile cannot use it",
                ));
            }
            py.detach(|| std::thread::sleep(RETRY_INTERVAL));
            match self.acquire() {
                Ok(guard) => return Ok(Some(guard)),
                Err(other) => owner = other,
            }
        }
    }

    /// Locks unless it is locked already. For the garbage collector, which may run at any point.
    pub(super) fn try_lock_for_gc(&self) -> Option<Guard<'_, T>> {
        self.acquire().ok()
    }

    /// Returns whether a panic has left the value half changed. Returns true only once.
    #[inline]
    pub(super) fn take_poison(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed) && self.poisoned.swap(false, Ordering::Relaxed)
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is only one guard at a time, see `OwnerCheckedMutex`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is only one guard at a time, see `OwnerCheckedMutex`.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            self.lock.poisoned.store(true, Ordering::Relaxed);
        }
        self.lock.owner.store(0, Ordering::Release);
    }
}
