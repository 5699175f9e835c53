//! What a waiting task waits on: an object that asyncio takes for a future.
//!
//! A task that suspends asks for its wakeup to be called (`add_done_callback`). [`WaiterRef::wake`] calls it: at once, in the
//! task's own context, when the loop itself has called us; through `call_soon` from anywhere else. So an awaiting task costs what a callback
//! costs, and no task is ever entered from inside another.

#![allow(unsafe_code)] // type slots

mod slots;

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use wirespeed_driver::blocking::Item;
use wirespeed_driver::protocol::Delivery;

use self::slots::called;
pub(super) use self::slots::init;
use super::raw::{self, FreeList};

/// How far a wait is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It goes on.
    Waiting,
    /// What was waited for is there, or will never come.
    Woken,
    /// The task was cancelled.
    Cancelled,
}

#[repr(C)]
pub(super) struct Waiter {
    ob_base: ffi::PyObject,
    /// [`called`]: the type says where it is.
    vectorcall: ffi::vectorcallfunc,
    event_loop: *mut ffi::PyObject,
    wakeup: *mut ffi::PyObject,
    context: *mut ffi::PyObject,
    cancel_message: *mut ffi::PyObject,
    item: Option<Item<Py<PyAny>>>,
    error: Option<PyErr>,
    decode: Option<bool>,
    delivery: Delivery,
    stage: Stage,
    blocking: bool,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(ptr::null_mut());
static FREE: FreeList = FreeList::new();

/// A reference to a waiter. Dropped by attached threads only: it lives in objects of the loop.
pub(super) struct WaiterRef(NonNull<Waiter>);

// SAFETY: as for any reference to a Python object: everything but moving it needs an attached thread.
unsafe impl Send for WaiterRef {}
// SAFETY: as above.
unsafe impl Sync for WaiterRef {}

impl WaiterRef {
    /// A waiter of `event_loop`, and what it wants if it receives.
    #[inline]
    pub(super) fn new(event_loop: &Bound<'_, PyAny>, decode: Option<bool>, delivery: Delivery) -> PyResult<Self> {
        // SAFETY: attached; the type was made by `init`. Every field is written before the object is known to anybody.
        unsafe {
            let object = FREE.take(TYPE.load(Ordering::Relaxed)).cast::<Waiter>();
            let Some(object) = NonNull::new(object) else { return Err(PyErr::fetch(event_loop.py())) };
            let waiter = object.as_ptr();
            (&raw mut (*waiter).vectorcall).write(called);
            (&raw mut (*waiter).event_loop).write(event_loop.clone().into_ptr());
            (&raw mut (*waiter).wakeup).write(ptr::null_mut());
            (&raw mut (*waiter).context).write(ptr::null_mut());
            (&raw mut (*waiter).cancel_message).write(ptr::null_mut());
            (&raw mut (*waiter).item).write(None);
            (&raw mut (*waiter).error).write(None);
            (&raw mut (*waiter).decode).write(decode);
            (&raw mut (*waiter).delivery).write(delivery);
            (&raw mut (*waiter).stage).write(Stage::Waiting);
            (&raw mut (*waiter).blocking).write(true);
            ffi::PyObject_GC_Track(waiter.cast());
            Ok(Self(object))
        }
    }

    #[inline]
    pub(super) fn as_ptr(&self) -> *mut ffi::PyObject {
        self.0.as_ptr().cast()
    }

    #[inline]
    fn get(&self) -> &Waiter {
        // SAFETY: a live object, by this reference. The fields that change are written by `set` and the slots, between which no
        // reference lives on.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    #[allow(clippy::mut_from_ref)] // an object of the interpreter: one thread at a time, for one line
    fn set(&self) -> &mut Waiter {
        // SAFETY: as above; an event loop's objects belong to its thread.
        unsafe { &mut *self.0.as_ptr() }
    }

    #[inline]
    pub(super) fn stage(&self) -> Stage {
        self.get().stage
    }

    /// What it wants to receive.
    #[inline]
    pub(super) fn wants(&self) -> (Option<bool>, Delivery) {
        (self.get().decode, self.get().delivery)
    }

    /// Gives it what it waited for. [`Self::wake`] must follow.
    #[inline]
    pub(super) fn assign(&self, item: Item<Py<PyAny>>) {
        self.set().item = Some(item);
    }

    /// Gives it an error instead.
    pub(super) fn fail(&self, error: PyErr) {
        self.set().error = Some(error);
    }

    /// Takes what it was given.
    #[inline]
    pub(super) fn take(&self) -> Option<Item<Py<PyAny>>> {
        self.set().item.take()
    }

    pub(super) fn take_error(&self) -> Option<PyErr> {
        self.set().error.take()
    }

    /// The task waits on it again, or a spurious step of its coroutine came: it is yielded once more.
    pub(super) fn yield_again(&self) -> *mut ffi::PyObject {
        self.set().blocking = true;
        let object = self.as_ptr();
        // SAFETY: a live object.
        unsafe { ffi::Py_INCREF(object) };
        object
    }

    /// Nobody waits on it any more.
    pub(super) fn abandon(&self) {
        if self.get().stage == Stage::Waiting {
            self.set().stage = Stage::Cancelled;
        }
    }

    /// Resumes the task. `direct`: here and now, which only a callback of the loop may do.
    #[inline]
    pub(super) fn wake(&self, py: Python<'_>, direct: bool) -> PyResult<()> {
        let waiter = self.set();
        if waiter.stage == Stage::Waiting {
            waiter.stage = Stage::Woken;
        }
        let wakeup = mem::replace(&mut waiter.wakeup, ptr::null_mut());
        let context = mem::replace(&mut waiter.context, ptr::null_mut());
        if wakeup.is_null() {
            return Ok(()); // not suspended yet: add_done_callback will see to it
        }
        let argument = self.told_to(py, wakeup, waiter.stage);
        // SAFETY: attached; both references were owned by the waiter and are owned here now.
        let (wakeup, context) =
            unsafe { (Bound::from_owned_ptr(py, wakeup), Bound::from_owned_ptr_or_opt(py, context)) };
        if direct {
            let Some(context) = &context else {
                return call_one(&wakeup, argument);
            };
            // SAFETY: a context object; what is entered is left. It fails if it is entered already, in which case the task cannot run now.
            unsafe {
                if ffi::PyContext_Enter(context.as_ptr()) == 0 {
                    let result = call_one(&wakeup, argument);
                    ffi::PyContext_Exit(context.as_ptr());
                    return result;
                }
                ffi::PyErr_Clear();
            }
        }
        self.call_soon(py, wakeup, context)
    }

    /// What a wakeup is called with, a borrowed reference. That of the tasks of `_asyncio`, a C function, asks any future for its result, and
    /// ours by a name that it makes a string of each time; but a future of its own type without a call: it gets one that is done.
    #[inline]
    fn told_to(&self, py: Python<'_>, wakeup: *mut ffi::PyObject, stage: Stage) -> *mut ffi::PyObject {
        // SAFETY: attached, a live object.
        let is_native = unsafe { ffi::PyCFunction_CheckExact(wakeup) } != 0;
        match raw::asyncio(py) {
            Ok(asyncio) if is_native && stage == Stage::Woken => asyncio.finished.as_ptr(),
            _ => self.as_ptr(),
        }
    }

    #[cold]
    fn call_soon<'py>(
        &self,
        py: Python<'py>,
        wakeup: Bound<'py, PyAny>,
        context: Option<Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        // SAFETY: attached; the loop is referenced by the waiter.
        let event_loop = unsafe { Bound::from_borrowed_ptr(py, self.get().event_loop) };
        // SAFETY: attached; a live object.
        let this = unsafe { Bound::from_borrowed_ptr(py, self.as_ptr()) };
        let kwargs = PyDict::new(py);
        if let Some(context) = context {
            kwargs.set_item("context", context)?;
        }
        event_loop.call_method("call_soon", (wakeup, this), Some(&kwargs)).map(drop)
    }

    /// For objects whose `__traverse__` is PyO3's.
    pub(super) fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // SAFETY: `Py` is a transparent pointer to an object, as this reference is.
        visit.call(unsafe { &*(&raw const self.0).cast::<Py<PyAny>>() })
    }

    pub(super) fn traverse(&self, visit: ffi::visitproc, arg: *mut c_void) -> c_int {
        // SAFETY: the collector's own function and argument.
        unsafe { raw::visit(self.as_ptr(), visit, arg) }
    }
}

/// Calls `wakeup(waiter)`.
#[inline]
fn call_one(wakeup: &Bound<'_, PyAny>, argument: *mut ffi::PyObject) -> PyResult<()> {
    // SAFETY: attached, live objects; a new reference or null with an exception comes back.
    unsafe {
        let result = ffi::PyObject_CallOneArg(wakeup.as_ptr(), argument);
        if result.is_null() {
            return Err(PyErr::fetch(wakeup.py()));
        }
        ffi::Py_DECREF(result);
    }
    Ok(())
}

impl Clone for WaiterRef {
    fn clone(&self) -> Self {
        // SAFETY: a live object.
        unsafe { ffi::Py_INCREF(self.as_ptr()) };
        Self(self.0)
    }
}

impl Drop for WaiterRef {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: an owned reference; attached, see the type.
        unsafe { ffi::Py_DECREF(self.as_ptr()) };
    }
}
