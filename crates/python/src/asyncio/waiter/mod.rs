//! The object that a waiting task awaits. asyncio takes it for a future.
//!
//! A task that suspends registers its wakeup (`add_done_callback`). [`WaiterRef::wake`] calls it: directly, in
//! the task's own context, from a callback of the loop; otherwise through `call_soon`. So an awaiting task
//! costs as little as a callback, and no task is entered from inside another.
//!
//! All fields that change are in `state`, behind a lock that is held for a few lines. The wakeup stays there
//! until it is called. If a signal handler raises, the loop is asked twice to call it, but it is called only
//! once.

#![allow(unsafe_code)] // type slots

mod slots;

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use wirespeed_driver::connection::Item;
use wirespeed_driver::protocol::Delivery;

use self::slots::called;
pub(super) use self::slots::init;
use super::gil_mutex::{GilMutex, Guard};
use super::invoke;
use super::raw::{self, FreeList};

/// The progress of a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The task still waits.
    Waiting,
    /// The event has happened, or will never happen.
    Woken,
    /// The task was cancelled.
    Cancelled,
}

#[repr(C)]
pub(super) struct Waiter {
    ob_base: ffi::PyObject,
    /// [`called`]. The type contains the offset of this field.
    vectorcall: ffi::vectorcallfunc,
    /// Set once. Cleared by the garbage collector, when no other code can access it.
    event_loop: Cell<*mut ffi::PyObject>,
    decode: Option<bool>,
    delivery: Delivery,
    /// The place of a sender among the waiting senders.
    ticket: u64,
    state: GilMutex<WaiterState>,
}

/// A message that is assigned to a receiver.
pub(super) struct AssignedMessage {
    pub(super) item: Item<Py<PyAny>>,
    /// Whether it continues a message of which fragments were taken.
    pub(super) continues: bool,
    /// Whether the task is resumed later: see `WaitState::assign`.
    pub(super) later: bool,
}

/// The fields of a waiter that change. Pointers own their references, or are null.
struct WaiterState {
    wakeup: *mut ffi::PyObject,
    context: *mut ffi::PyObject,
    cancel_message: *mut ffi::PyObject,
    assigned: Option<AssignedMessage>,
    error: Option<PyErr>,
    stage: Stage,
    blocking: bool,
}

// SAFETY: the references are owned, and any attached thread may use Python objects. The lock lets one thread at
// a time access them.
unsafe impl Send for WaiterState {}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(ptr::null_mut());
static FREE: FreeList = FreeList::new();

/// A reference to a waiter. Only attached threads drop it: it is owned by objects of the loop.
pub(super) struct WaiterRef(NonNull<Waiter>);

// SAFETY: as for any reference to a Python object: every use except moving it needs an attached thread.
unsafe impl Send for WaiterRef {}
// SAFETY: as above.
unsafe impl Sync for WaiterRef {}

impl WaiterRef {
    /// Creates a waiter on `event_loop`, with the options of a receiver.
    #[inline]
    pub(super) fn new(event_loop: &Bound<'_, PyAny>, decode: Option<bool>, delivery: Delivery) -> PyResult<Self> {
        Self::create(event_loop, decode, delivery, 0)
    }

    /// Creates a waiter for a sender.
    pub(super) fn for_sender(event_loop: &Bound<'_, PyAny>, ticket: u64) -> PyResult<Self> {
        Self::create(event_loop, None, Delivery::default(), ticket)
    }

    #[inline]
    fn create(event_loop: &Bound<'_, PyAny>, decode: Option<bool>, delivery: Delivery, ticket: u64) -> PyResult<Self> {
        // SAFETY: attached. `init` has created the type. Every field is written before any other code knows the
        // object.
        unsafe {
            let object = FREE.take(TYPE.load(Ordering::Relaxed)).cast::<Waiter>();
            let Some(object) = NonNull::new(object) else { return Err(PyErr::fetch(event_loop.py())) };
            let waiter = object.as_ptr();
            (&raw mut (*waiter).vectorcall).write(called);
            (&raw mut (*waiter).event_loop).write(Cell::new(event_loop.clone().into_ptr()));
            (&raw mut (*waiter).decode).write(decode);
            (&raw mut (*waiter).delivery).write(delivery);
            (&raw mut (*waiter).ticket).write(ticket);
            (&raw mut (*waiter).state).write(GilMutex::new(WaiterState {
                wakeup: ptr::null_mut(),
                context: ptr::null_mut(),
                cancel_message: ptr::null_mut(),
                assigned: None,
                error: None,
                stage: Stage::Waiting,
                blocking: true,
            }));
            ffi::PyObject_GC_Track(waiter.cast());
            Ok(Self(object))
        }
    }

    /// # Safety
    ///
    /// `object` is a live waiter.
    unsafe fn from_borrowed(object: *mut ffi::PyObject) -> Self {
        // SAFETY: a live object, so not null.
        unsafe {
            ffi::Py_INCREF(object);
            Self(NonNull::new_unchecked(object.cast()))
        }
    }

    #[inline]
    pub(super) fn as_ptr(&self) -> *mut ffi::PyObject {
        self.0.as_ptr().cast()
    }

    #[inline]
    fn get(&self) -> &Waiter {
        // SAFETY: this reference keeps the object alive. All fields that change are in cells or behind a lock.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn state(&self, py: Python<'_>) -> Guard<'_, WaiterState> {
        self.get().state.lock(py)
    }

    #[inline]
    pub(super) fn stage(&self, py: Python<'_>) -> Stage {
        self.state(py).stage
    }

    /// Returns the options of a receiver.
    #[inline]
    pub(super) fn receive_options(&self) -> (Option<bool>, Delivery) {
        (self.get().decode, self.get().delivery)
    }

    /// Returns the place of a sender.
    pub(super) fn ticket(&self) -> u64 {
        self.get().ticket
    }

    /// Assigns a message. [`Self::wake`] must follow.
    #[inline]
    pub(super) fn assign(&self, py: Python<'_>, assigned: AssignedMessage) {
        self.state(py).assigned = Some(assigned);
    }

    /// Returns whether the task has not taken its assigned message yet.
    #[inline]
    pub(super) fn is_message_pending(&self, py: Python<'_>) -> bool {
        self.state(py).assigned.is_some()
    }

    /// If the task was to be resumed directly and has not taken its message yet, marks it as resumed later and
    /// returns true.
    #[inline]
    pub(super) fn defer_if_assigned(&self, py: Python<'_>) -> bool {
        match &mut self.state(py).assigned {
            Some(assigned) => !std::mem::replace(&mut assigned.later, true),
            None => false,
        }
    }

    /// Sets an error instead of a message.
    pub(super) fn fail(&self, py: Python<'_>, error: PyErr) {
        self.state(py).error = Some(error);
    }

    /// Takes the assigned message.
    #[inline]
    pub(super) fn take(&self, py: Python<'_>) -> Option<AssignedMessage> {
        self.state(py).assigned.take()
    }

    pub(super) fn take_error(&self, py: Python<'_>) -> Option<PyErr> {
        self.state(py).error.take()
    }

    /// Returns a new reference to yield to the loop: the task waits again, or its coroutine was resumed without
    /// a reason.
    pub(super) fn yield_again(&self, py: Python<'_>) -> *mut ffi::PyObject {
        self.state(py).blocking = true;
        let object = self.as_ptr();
        // SAFETY: the object is alive.
        unsafe { ffi::Py_INCREF(object) };
        object
    }

    /// Marks the wait as cancelled.
    pub(super) fn abandon(&self, py: Python<'_>) {
        let mut state = self.state(py);
        if state.stage == Stage::Waiting {
            state.stage = Stage::Cancelled;
        }
    }

    /// Resumes the task. `direct`, which only a callback of the loop may use, resumes it immediately.
    #[inline]
    pub(super) fn wake(&self, py: Python<'_>, direct: bool) -> PyResult<()> {
        let suspended = {
            let mut state = self.state(py);
            if state.stage == Stage::Waiting {
                state.stage = Stage::Woken;
            }
            !state.wakeup.is_null()
        };
        match (suspended, direct) {
            (false, _) => Ok(()), // not suspended yet: add_done_callback will resume it
            (true, true) => self.resume_in_context(py),
            (true, false) => self.resume_soon(py),
        }
    }

    /// Resumes the task in its own context. If that context is entered already, the task cannot run now, and is
    /// scheduled.
    #[inline]
    fn resume_in_context(&self, py: Python<'_>) -> PyResult<()> {
        let context = {
            let state = self.state(py);
            // SAFETY: attached. The field is null or owns its reference.
            unsafe { Bound::from_borrowed_ptr_or_opt(py, state.context) }
        };
        let Some(context) = context else { return self.resume(py) };
        // SAFETY: a context object, which is left if it was entered.
        unsafe {
            if ffi::PyContext_Enter(context.as_ptr()) == 0 {
                let result = self.resume(py);
                ffi::PyContext_Exit(context.as_ptr());
                return result;
            }
            ffi::PyErr_Clear();
        }
        self.resume_soon(py)
    }

    /// Calls the wakeup, once.
    #[inline]
    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        let (wakeup, context, stage) = {
            let mut state = self.state(py);
            if state.stage == Stage::Waiting {
                return Ok(()); // an old request: the task waits again
            }
            let wakeup = mem::replace(&mut state.wakeup, ptr::null_mut());
            (wakeup, mem::replace(&mut state.context, ptr::null_mut()), state.stage)
        };
        // SAFETY: attached. The waiter owned both references, which are owned here now.
        let (wakeup, _context) =
            unsafe { (Bound::from_owned_ptr_or_opt(py, wakeup), Bound::from_owned_ptr_or_opt(py, context)) };
        let Some(wakeup) = wakeup else { return Ok(()) };
        let argument = self.argument(py, &wakeup, stage);
        // SAFETY: attached, and all objects are live. The result is a new reference, or null with an exception.
        unsafe {
            let result = invoke::call_raw(wakeup.as_ptr(), &[argument]);
            if result.is_null() {
                return Err(PyErr::fetch(py));
            }
            ffi::Py_DECREF(result);
        }
        Ok(())
    }

    /// Returns the argument of a wakeup, a borrowed reference. The wakeup of `_asyncio` tasks is a C function
    /// that asks its argument for the result. It accesses its own type of future without a call, but calls
    /// others by a name for which it creates a string each time. So it gets a completed `_asyncio` future.
    #[inline]
    fn argument(&self, py: Python<'_>, wakeup: &Bound<'_, PyAny>, stage: Stage) -> *mut ffi::PyObject {
        // SAFETY: attached, and the object is alive.
        let is_native = unsafe { ffi::PyCFunction_CheckExact(wakeup.as_ptr()) } != 0;
        match raw::asyncio(py) {
            Ok(asyncio) if is_native && stage == Stage::Woken => asyncio.finished.as_ptr(),
            _ => self.as_ptr(),
        }
    }

    /// Makes the loop resume the task.
    #[cold]
    fn resume_soon(&self, py: Python<'_>) -> PyResult<()> {
        // SAFETY: attached. The fields are null or own their references, and the object is alive.
        let (event_loop, context, this) = unsafe {
            let context = Bound::from_borrowed_ptr_or_opt(py, self.state(py).context);
            let event_loop = Bound::from_borrowed_ptr_or_opt(py, self.get().event_loop.get());
            (event_loop, context, Bound::from_borrowed_ptr(py, self.as_ptr()))
        };
        let Some(event_loop) = event_loop else { return Ok(()) };
        let resume = this.getattr(intern!(py, "_resume"))?;
        let Some(context) = context else { return invoke::call_soon(&event_loop, &resume) };
        let name = intern!(py, "call_soon");
        invoke::retry_interrupted(|| invoke::method_in_context(&event_loop, name, [&resume], &context).map(drop))
            .or_else(|error| invoke::unless_closed(&event_loop, error))
    }

    /// Visits the waiter for objects whose `__traverse__` is PyO3's.
    pub(super) fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // SAFETY: `Py` is a transparent pointer to an object, as this reference is.
        visit.call(unsafe { &*(&raw const self.0).cast::<Py<PyAny>>() })
    }

    pub(super) fn traverse(&self, visit: ffi::visitproc, arg: *mut c_void) -> c_int {
        // SAFETY: the garbage collector's own function and argument.
        unsafe { raw::visit(self.as_ptr(), visit, arg) }
    }
}

impl PartialEq for WaiterRef {
    /// Compares identity.
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Clone for WaiterRef {
    fn clone(&self) -> Self {
        // SAFETY: the object is alive.
        unsafe { ffi::Py_INCREF(self.as_ptr()) };
        Self(self.0)
    }
}

impl Drop for WaiterRef {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the reference is owned, and the thread is attached, see the type.
        unsafe { ffi::Py_DECREF(self.as_ptr()) };
    }
}
