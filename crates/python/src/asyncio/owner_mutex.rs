//! The lock around the state of a connection.
//!
//! Unlike [`GilMutex`](super::guarded::Guarded) it may be held while the interpreter's lock is given up:
//! around system calls that move much, and by an `ssl.SSLContext`, which gives it up by itself, looks for
//! signals and makes objects, so that handlers and finalizers may run. So it knows its owner: another thread
//! waits, without the interpreter's lock; the same thread, which would wait for itself, gets an exception.
//!
//! A panic while it is held marks it: what it guards may be half changed. Whoever locks next is told, once.

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

/// How long a thread waits before it looks again whether another has let go: the time of some system calls.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// See the module.
pub(super) struct OwnerCheckedMutex<T> {
    /// [`this_thread`] of who holds it; 0: nobody.
    owner: AtomicUsize,
    poisoned: AtomicBool,
    /// The process that it was made in, as [`entropy::forks`] counts them.
    generation: u64,
    value: ManuallyDrop<UnsafeCell<T>>,
}

impl<T> Drop for OwnerCheckedMutex<T> {
    fn drop(&mut self) {
        // An owner that is left is a thread of the parent process: what it has is left alone, and leaks, in
        // the child.
        if *self.owner.get_mut() == 0 {
            // SAFETY: dropped once, here, and not used any more.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

// SAFETY: the value is reached through a `Guard` only, of which there is one at a time: `acquire` hands it
// out when it has made this thread the owner, and nobody else becomes owner before the guard is dropped.
unsafe impl<T: Send> Sync for OwnerCheckedMutex<T> {}

/// Access to it; belongs to the thread that has locked.
pub(super) struct Guard<'a, T> {
    lock: &'a OwnerCheckedMutex<T>,
    /// This thread panicked before it had the lock: it is in a finalizer, perhaps, of what a panic unwinds.
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

    /// Makes this thread the owner if there is none; else who is.
    #[inline]
    fn acquire(&self) -> Result<Guard<'_, T>, usize> {
        let owner = self.claim(this_thread());
        if owner != 0 {
            return Err(owner);
        }
        Ok(Guard { lock: self, unwinding: std::thread::panicking(), _thread: PhantomData })
    }

    /// The owner there was: 0 if it is `thread` now.
    #[cfg(not(Py_GIL_DISABLED))]
    #[inline]
    fn claim(&self, thread: usize) -> usize {
        // Every caller has the interpreter's lock, over both lines: nobody comes in between.
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

    /// Locks; waits for another thread without the interpreter's lock. An error if this thread has locked
    /// already. `None`: a thread of the parent process had locked at the fork, or one that the interpreter has
    /// ended, and there is no such thread here: what it has may be half changed, and is never to be looked at.
    #[inline]
    pub(super) fn lock(&self, py: Python<'_>) -> PyResult<Option<Guard<'_, T>>> {
        match self.acquire() {
            Ok(guard) => Ok(Some(guard)),
            Err(owner) => self.wait(py, owner),
        }
    }

    #[cold]
    fn wait(&self, py: Python<'_>, mut owner: usize) -> PyResult<Option<Guard<'_, T>>> {
        let begun = Instant::now();
        loop {
            if self.generation != fork::generation() {
                return Ok(None);
            }
            if gil_yield::is_shutting_down() && begun.elapsed() > SHUTDOWN_WAIT {
                return Ok(None);
            }
            if owner == this_thread() {
                return Err(PyRuntimeError::new_err(
                    "the connection is at work: a signal handler or finalizer that runs meanwhile cannot use it",
                ));
            }
            py.detach(|| std::thread::sleep(LOOK_AGAIN));
            match self.acquire() {
                Ok(guard) => return Ok(Some(guard)),
                Err(other) => owner = other,
            }
        }
    }

    /// Locks unless somebody has locked: for the garbage collector, which may run anywhere.
    pub(super) fn try_lock_for_gc(&self) -> Option<Guard<'_, T>> {
        self.acquire().ok()
    }

    /// Whether a panic has left the value half changed; tells once.
    #[inline]
    pub(super) fn take_poison(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed) && self.poisoned.swap(false, Ordering::Relaxed)
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time, see `OwnerCheckedMutex`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one guard at a time, see `OwnerCheckedMutex`.
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
