//! What the two hand-written types share: references, memory, and names of asyncio that are looked up once.
//!
//! Everything here needs an attached thread; the types' slots are called by the interpreter, so there is one.

#![allow(unsafe_code)] // type slots

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// Whether the fields of an object were filled, by the place of one of them. CPython 3.11 and 3.12 make the
/// dict of an object that is to have one after the object is tracked and before PyO3 fills its fields: a
/// collection that this starts traverses an object of zeros.
pub(crate) fn is_filled<T>(field: *const Py<T>) -> bool {
    // SAFETY: the place is inside a live object, whose memory is either zero or has been filled; a pointer is
    // read, of which nothing is assumed.
    let object = unsafe { field.cast::<*mut ffi::PyObject>().read_volatile() };
    !object.is_null()
}

/// Objects of one type kept for reuse. A list of its own, because `free` would cost as much as the rest of a
/// ready `recv`.
#[cfg(not(Py_GIL_DISABLED))]
pub(super) struct FreeList {
    objects: std::cell::UnsafeCell<([*mut ffi::PyObject; FreeList::SIZE], usize)>,
}

// SAFETY: `take` and `give` are called with the interpreter's lock held, and run no Python code.
#[cfg(not(Py_GIL_DISABLED))]
unsafe impl Sync for FreeList {}

#[cfg(not(Py_GIL_DISABLED))]
impl FreeList {
    /// As many as tasks that receive at once in one iteration of a busy loop, some tens; of 100 bytes each.
    const SIZE: usize = 64;

    pub(super) const fn new() -> Self {
        Self { objects: std::cell::UnsafeCell::new(([ptr::null_mut(); Self::SIZE], 0)) }
    }

    /// Memory of an object of `kind`, as [`ffi::PyObject_GC_New`] returns it: with one reference, its fields
    /// not initialised.
    ///
    /// # Safety
    ///
    /// Attached; `kind` is a type with garbage collection, always the same for one list.
    #[inline]
    #[allow(clippy::indexing_slicing, reason = "below the count, which is at most the size")]
    pub(super) unsafe fn take(&self, kind: *mut ffi::PyTypeObject) -> *mut ffi::PyObject {
        // SAFETY: one thread at a time, see above; the first `1` objects of `0` are dead objects of this
        // type.
        unsafe {
            let (objects, count) = &mut *self.objects.get();
            if *count > 0 {
                *count -= 1;
                return ffi::PyObject_Init(objects[*count], kind);
            }
            ffi::PyObject_GC_New::<ffi::PyObject>(kind)
        }
    }

    /// Takes the memory of a dead, untracked object back.
    ///
    /// # Safety
    ///
    /// Attached; nobody refers to the object, which came from this list.
    #[inline]
    #[allow(clippy::indexing_slicing, reason = "below the size")]
    pub(super) unsafe fn give(&self, object: *mut ffi::PyObject) {
        // SAFETY: as above; the caller owns the dead object.
        unsafe {
            let (objects, count) = &mut *self.objects.get();
            if *count < Self::SIZE {
                objects[*count] = object;
                *count += 1;
            } else {
                ffi::PyObject_GC_Del(object.cast());
            }
        }
    }
}

/// Without the interpreter's lock a list would need one of its own: the interpreter's allocator is as fast.
#[cfg(Py_GIL_DISABLED)]
pub(super) struct FreeList;

#[cfg(Py_GIL_DISABLED)]
impl FreeList {
    pub(super) const fn new() -> Self {
        Self
    }

    /// # Safety
    ///
    /// Attached; `kind` is a type with garbage collection.
    pub(super) unsafe fn take(&self, kind: *mut ffi::PyTypeObject) -> *mut ffi::PyObject {
        // SAFETY: a type with garbage collection.
        unsafe { ffi::PyObject_GC_New::<ffi::PyObject>(kind) }
    }

    /// # Safety
    ///
    /// Attached; nobody refers to the object.
    pub(super) unsafe fn give(&self, object: *mut ffi::PyObject) {
        // SAFETY: the caller owns the dead object.
        unsafe { ffi::PyObject_GC_Del(object.cast()) }
    }
}

/// Ends an iterator with a value, whose reference is taken over: `tp_iternext` returns null after this.
///
/// From CPython 3.12 on, `await` gets the value of every call that did not have to wait in this way, so a
/// `StopIteration` is kept for them: to make one takes longer than to receive a message. It keeps the last
/// value alive, so that must be small, and of a type that cannot run code.
///
/// # Safety
///
/// Attached, without an exception; `value` is a reference that the caller owns.
#[inline]
pub(super) unsafe fn stop_iteration(value: *mut ffi::PyObject) {
    // SAFETY: attached; every reference is owned where it is used.
    unsafe {
        if value == ffi::Py_None() {
            ffi::Py_DECREF(value);
            return; // null without an exception stands for None
        }
        #[cfg(all(Py_3_12, not(Py_GIL_DISABLED)))]
        if is_small(value) && kept::raise(value) {
            return;
        }
        let exception = ffi::PyObject_CallOneArg(ffi::PyExc_StopIteration, value);
        ffi::Py_DECREF(value);
        if !exception.is_null() {
            ffi::PyErr_SetObject(ffi::PyExc_StopIteration, exception);
            ffi::Py_DECREF(exception);
        }
    }
}

/// Whether it is a `bytes` or `str` object of some pages.
///
/// # Safety
///
/// A live object.
#[cfg(all(Py_3_12, not(Py_GIL_DISABLED)))]
#[inline]
unsafe fn is_small(value: *mut ffi::PyObject) -> bool {
    const SMALL: isize = 64 * 1024;
    // SAFETY: the type is checked first.
    unsafe {
        if ffi::PyBytes_CheckExact(value) != 0 {
            ffi::Py_SIZE(value) <= SMALL
        } else {
            ffi::PyUnicode_CheckExact(value) != 0 && ffi::PyUnicode_GET_LENGTH(value) <= SMALL / 4
        }
    }
}

#[cfg(all(Py_3_12, not(Py_GIL_DISABLED)))]
mod kept {
    use std::mem;
    use std::ptr;
    use std::sync::atomic::{AtomicPtr, Ordering};

    use pyo3::ffi;

    /// The one that is kept, with a reference; accessed with the interpreter's lock held.
    static KEPT: AtomicPtr<ffi::PyStopIterationObject> = AtomicPtr::new(ptr::null_mut());

    /// Raises it with `value`, whose reference is then taken over; false: there is none, and nothing has
    /// happened.
    ///
    /// # Safety
    ///
    /// Attached, without an exception; `value` is a `bytes` or `str` object.
    #[inline]
    pub(super) unsafe fn raise(value: *mut ffi::PyObject) -> bool {
        // SAFETY: attached. The exception is a StopIteration; with one reference, nobody else can see it
        // change.
        unsafe {
            let mut exception = KEPT.load(Ordering::Relaxed);
            if exception.is_null() || !is_clean(exception) {
                exception = renew();
                if exception.is_null() {
                    return false;
                }
            }
            let old = mem::replace(&mut (*exception).value, value);
            ffi::Py_XDECREF(old);
            ffi::Py_INCREF(exception.cast());
            ffi::PyErr_SetRaisedException(exception.cast());
            true
        }
    }

    /// Whether nobody has kept it, or left anything in it, the last time.
    ///
    /// # Safety
    ///
    /// Attached; a live `StopIteration`.
    #[inline]
    unsafe fn is_clean(exception: *mut ffi::PyStopIterationObject) -> bool {
        // SAFETY: a live StopIteration.
        unsafe {
            ffi::Py_REFCNT(exception.cast()) == 1
                && (*exception).dict.is_null()
                && (*exception).notes.is_null()
                && (*exception).traceback.is_null()
                && (*exception).context.is_null()
                && (*exception).cause.is_null()
        }
    }

    /// Keeps a new one, and returns it; null if there is no memory for it.
    ///
    /// # Safety
    ///
    /// Attached, without an exception.
    #[cold]
    unsafe fn renew() -> *mut ffi::PyStopIterationObject {
        // SAFETY: attached; the old reference was ours.
        unsafe {
            let exception = ffi::PyObject_CallNoArgs(ffi::PyExc_StopIteration);
            if exception.is_null() {
                ffi::PyErr_Clear(); // whoever asked will have the same trouble
                return ptr::null_mut();
            }
            let old = KEPT.swap(exception.cast(), Ordering::Relaxed);
            ffi::Py_XDECREF(old.cast());
            exception.cast()
        }
    }
}

/// Drops the reference in `place`, if there is one.
///
/// # Safety
///
/// The place is null or owns its reference.
#[inline]
pub(super) unsafe fn clear(place: &Cell<*mut ffi::PyObject>) {
    let object = place.replace(ptr::null_mut());
    // SAFETY: the caller says that the place owns its reference.
    unsafe { ffi::Py_XDECREF(object) };
}

/// `Py_VISIT`.
///
/// # Safety
///
/// Called inside `tp_traverse`, with its arguments.
#[inline]
pub(super) unsafe fn visit(object: *mut ffi::PyObject, visit: ffi::visitproc, arg: *mut c_void) -> c_int {
    if object.is_null() {
        return 0;
    }
    // SAFETY: the collector's own function and argument.
    unsafe { visit(object, arg) }
}

/// Names of asyncio.
pub(super) struct Asyncio {
    pub(super) cancelled_error: Py<PyAny>,
    /// A future of `_asyncio` whose result is None.
    pub(super) finished: Py<PyAny>,
    /// `_get_running_loop`.
    pub(super) running_loop: Py<PyAny>,
    /// The dict of the tasks that run now, by loop, where there is one; else the functions that tell: of
    /// tasks in C, and of those in Python.
    current_tasks: Result<Py<PyDict>, Vec<Py<PyAny>>>,
}

static ASYNCIO: PyOnceLock<Asyncio> = PyOnceLock::new();

pub(super) fn asyncio(py: Python<'_>) -> PyResult<&'static Asyncio> {
    ASYNCIO.get_or_try_init(py, || {
        let module = py.import("asyncio")?;
        let dict = || py.import("_asyncio")?.getattr("_current_tasks");
        // From 3.14 on, the tasks that run are fields of threads.
        let current_tasks = match (py.version_info() < (3, 14), dict().map(Bound::cast_into::<PyDict>)) {
            (true, Ok(Ok(dict))) => Ok(dict.unbind()),
            _ => {
                let mut functions = vec![module.getattr("current_task")?.unbind()];
                if let Ok(function) = module.getattr("tasks")?.getattr("_py_current_task") {
                    functions.push(function.unbind());
                }
                Err(functions)
            }
        };
        Ok(Asyncio {
            cancelled_error: module.getattr("CancelledError")?.unbind(),
            finished: finished(&module)?.unbind(),
            running_loop: module.getattr("_get_running_loop")?.unbind(),
            current_tasks,
        })
    })
}

/// A future that is done. Nobody ever waits on it, so it needs no loop, which it would keep alive.
fn finished<'py>(asyncio: &Bound<'py, PyModule>) -> PyResult<Bound<'py, PyAny>> {
    let py = asyncio.py();
    let kwargs = PyDict::new(py);
    // What the constructor asks a loop.
    let namespace = py.import("types")?.getattr("SimpleNamespace")?;
    let answers = PyDict::new(py);
    answers.set_item("get_debug", py.get_type::<pyo3::types::PyBool>())?; // bool() is False
    kwargs.set_item("loop", namespace.call((), Some(&answers))?)?;
    let future = asyncio.getattr("Future")?.call((), Some(&kwargs))?;
    future.call_method1("set_result", (py.None(),))?;
    Ok(future)
}

/// A new reference, or the error that was set.
pub(super) fn adopt(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, object) }
}

/// The task of this loop that is running now, as a number that tells it from every other that lives; 0: none.
pub(super) fn current_task(event_loop: &Bound<'_, PyAny>) -> PyResult<usize> {
    let py = event_loop.py();
    let number = |task: &Bound<'_, PyAny>| if task.is_none() { 0 } else { task.as_ptr() as usize };
    match &asyncio(py)?.current_tasks {
        Ok(dict) => Ok(dict.bind(py).get_item(event_loop)?.as_ref().map_or(0, number)),
        Err(functions) => {
            for function in functions {
                match number(&function.bind(py).call1((event_loop,))?) {
                    0 => {}
                    task => return Ok(task),
                }
            }
            Ok(0)
        }
    }
}

/// Whether a task of this loop is running now, so that no other must be entered.
#[inline]
pub(super) fn is_inside_task(event_loop: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = event_loop.py();
    match &asyncio(py)?.current_tasks {
        Ok(dict) => {
            let dict = dict.bind(py);
            Ok(!dict.is_empty() && dict.contains(event_loop)?)
        }
        Err(_) => Ok(current_task(event_loop)? != 0),
    }
}

/// Text of a `CStr` literal for tables of methods.
macro_rules! c {
    ($text:literal) => {
        concat!($text, "\0").as_ptr().cast::<std::ffi::c_char>()
    };
}
pub(super) use c;
