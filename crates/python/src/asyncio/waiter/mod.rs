//! What a waiting task waits on: an object that asyncio takes for a future.
//!
//! A task that suspends asks for its wakeup to be called (`add_done_callback`). [`WaiterRef::wake`] calls it:
//! at once, in the task's own context, when the loop itself has called us; through `call_soon` from anywhere
//! else. So an awaiting task costs what a callback costs, and no task is ever entered from inside another.
//!
//! What changes is in `parts`, behind a lock of its own that is held for some lines. The wakeup stays there
//! until it is called: asking the loop twice to call it, as is done when a signal handler raises in between,
//! calls it once.

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
    /// Set once; cleared by the collector, when nobody else can see it.
    event_loop: Cell<*mut ffi::PyObject>,
    decode: Option<bool>,
    delivery: Delivery,
    /// Of a sender: its place among those that wait, see `State::park_sender`.
    ticket: u64,
    parts: GilMutex<Parts>,
}

/// What a receiver was given.
pub(super) struct AssignedMessage {
    pub(super) item: Item<Py<PyAny>>,
    /// It goes on with a message of which fragments were taken.
    pub(super) continues: bool,
    /// The task is resumed later: see `WaitState::assign`.
    pub(super) later: bool,
}

/// What changes of a waiter. Pointers own their references, or are null.
struct Parts {
    wakeup: *mut ffi::PyObject,
    context: *mut ffi::PyObject,
    cancel_message: *mut ffi::PyObject,
    given: Option<AssignedMessage>,
    error: Option<PyErr>,
    stage: Stage,
    blocking: bool,
}

// SAFETY: owned references to Python objects, which any attached thread may use; the lock hands them to one
// at a time.
unsafe impl Send for Parts {}

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
        Self::make(event_loop, decode, delivery, 0)
    }

    /// A waiter of a sender.
    pub(super) fn of_sender(event_loop: &Bound<'_, PyAny>, ticket: u64) -> PyResult<Self> {
        Self::make(event_loop, None, Delivery::default(), ticket)
    }

    #[inline]
    fn make(event_loop: &Bound<'_, PyAny>, decode: Option<bool>, delivery: Delivery, ticket: u64) -> PyResult<Self> {
        // SAFETY: attached; the type was made by `init`. Every field is written before the object is known to
        // anybody.
        unsafe {
            let object = FREE.take(TYPE.load(Ordering::Relaxed)).cast::<Waiter>();
            let Some(object) = NonNull::new(object) else { return Err(PyErr::fetch(event_loop.py())) };
            let waiter = object.as_ptr();
            (&raw mut (*waiter).vectorcall).write(called);
            (&raw mut (*waiter).event_loop).write(Cell::new(event_loop.clone().into_ptr()));
            (&raw mut (*waiter).decode).write(decode);
            (&raw mut (*waiter).delivery).write(delivery);
            (&raw mut (*waiter).ticket).write(ticket);
            (&raw mut (*waiter).parts).write(GilMutex::new(Parts {
                wakeup: ptr::null_mut(),
                context: ptr::null_mut(),
                cancel_message: ptr::null_mut(),
                given: None,
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
    /// A live waiter.
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
        // SAFETY: a live object, by this reference; everything that changes is in a cell or behind a lock.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn parts(&self, py: Python<'_>) -> Guard<'_, Parts> {
        self.get().parts.lock(py)
    }

    #[inline]
    pub(super) fn stage(&self, py: Python<'_>) -> Stage {
        self.parts(py).stage
    }

    /// What it wants to receive.
    #[inline]
    pub(super) fn wants(&self) -> (Option<bool>, Delivery) {
        (self.get().decode, self.get().delivery)
    }

    /// The place of a sender.
    pub(super) fn ticket(&self) -> u64 {
        self.get().ticket
    }

    /// Gives it what it waited for. [`Self::wake`] must follow.
    #[inline]
    pub(super) fn assign(&self, py: Python<'_>, given: AssignedMessage) {
        self.parts(py).given = Some(given);
    }

    /// Whether it has yet to take what it was given.
    #[inline]
    pub(super) fn is_holding(&self, py: Python<'_>) -> bool {
        self.parts(py).given.is_some()
    }

    /// The same; and if so, its task is resumed later, though it was to be resumed at once.
    #[inline]
    pub(super) fn holds_on(&self, py: Python<'_>) -> bool {
        match &mut self.parts(py).given {
            Some(given) => !std::mem::replace(&mut given.later, true),
            None => false,
        }
    }

    /// Gives it an error instead.
    pub(super) fn fail(&self, py: Python<'_>, error: PyErr) {
        self.parts(py).error = Some(error);
    }

    /// Takes what it was given.
    #[inline]
    pub(super) fn take(&self, py: Python<'_>) -> Option<AssignedMessage> {
        self.parts(py).given.take()
    }

    pub(super) fn take_error(&self, py: Python<'_>) -> Option<PyErr> {
        self.parts(py).error.take()
    }

    /// The task waits on it again, or a spurious step of its coroutine came: it is yielded once more.
    pub(super) fn yield_again(&self, py: Python<'_>) -> *mut ffi::PyObject {
        self.parts(py).blocking = true;
        let object = self.as_ptr();
        // SAFETY: a live object.
        unsafe { ffi::Py_INCREF(object) };
        object
    }

    /// Nobody waits on it any more.
    pub(super) fn abandon(&self, py: Python<'_>) {
        let mut parts = self.parts(py);
        if parts.stage == Stage::Waiting {
            parts.stage = Stage::Cancelled;
        }
    }

    /// Resumes the task. `direct`: here and now, which only a callback of the loop may do.
    #[inline]
    pub(super) fn wake(&self, py: Python<'_>, direct: bool) -> PyResult<()> {
        let suspended = {
            let mut parts = self.parts(py);
            if parts.stage == Stage::Waiting {
                parts.stage = Stage::Woken;
            }
            !parts.wakeup.is_null()
        };
        match (suspended, direct) {
            (false, _) => Ok(()), // not suspended yet: add_done_callback will see to it
            (true, true) => self.resume_in_context(py),
            (true, false) => self.resume_soon(py),
        }
    }

    /// Resumes the task in its own context; if that is entered already, the task cannot run now, and does
    /// soon.
    #[inline]
    fn resume_in_context(&self, py: Python<'_>) -> PyResult<()> {
        let context = {
            let parts = self.parts(py);
            // SAFETY: attached; the field is null or owns its reference.
            unsafe { Bound::from_borrowed_ptr_or_opt(py, parts.context) }
        };
        let Some(context) = context else { return self.resume(py) };
        // SAFETY: a context object; what is entered is left.
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
            let mut parts = self.parts(py);
            if parts.stage == Stage::Waiting {
                return Ok(()); // an old request of a wait that is over: this is the next
            }
            let wakeup = mem::replace(&mut parts.wakeup, ptr::null_mut());
            (wakeup, mem::replace(&mut parts.context, ptr::null_mut()), parts.stage)
        };
        // SAFETY: attached; both references were owned by the waiter and are owned here now.
        let (wakeup, _context) =
            unsafe { (Bound::from_owned_ptr_or_opt(py, wakeup), Bound::from_owned_ptr_or_opt(py, context)) };
        let Some(wakeup) = wakeup else { return Ok(()) };
        let argument = self.argument(py, &wakeup, stage);
        // SAFETY: attached, live objects; a new reference or null with an exception comes back.
        unsafe {
            let result = invoke::call_raw(wakeup.as_ptr(), &[argument]);
            if result.is_null() {
                return Err(PyErr::fetch(py));
            }
            ffi::Py_DECREF(result);
        }
        Ok(())
    }

    /// What a wakeup is called with, a borrowed reference. That of the tasks of `_asyncio`, a C function,
    /// asks any future for its result, and ours by a name that it makes a string of each time; but a future
    /// of its own type without a call: it gets one that is done.
    #[inline]
    fn argument(&self, py: Python<'_>, wakeup: &Bound<'_, PyAny>, stage: Stage) -> *mut ffi::PyObject {
        // SAFETY: attached, a live object.
        let is_native = unsafe { ffi::PyCFunction_CheckExact(wakeup.as_ptr()) } != 0;
        match raw::asyncio(py) {
            Ok(asyncio) if is_native && stage == Stage::Woken => asyncio.finished.as_ptr(),
            _ => self.as_ptr(),
        }
    }

    /// Has the loop resume the task.
    #[cold]
    fn resume_soon(&self, py: Python<'_>) -> PyResult<()> {
        // SAFETY: attached; the fields are null or own their references. A live object.
        let (event_loop, context, this) = unsafe {
            let context = Bound::from_borrowed_ptr_or_opt(py, self.parts(py).context);
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

impl PartialEq for WaiterRef {
    /// Whether it is the same object.
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
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
