//! Shared code of the two hand-written types: references, memory, and names of asyncio that are looked up once.
//!
//! All functions need an attached thread. The interpreter calls the slots of the types, so their thread is
//! attached.

#![allow(unsafe_code)] // type slots

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// Returns whether the fields of an object are initialised, given the address of one of them. CPython 3.11 and
/// 3.12 create the `__dict__` of an object after the object is tracked, and before PyO3 initialises its fields.
/// A collection at that point traverses an object of zeros.
pub(crate) fn is_initialized<T>(field: *const Py<T>) -> bool {
    // SAFETY: the address is inside a live object, whose memory is either zero or initialised. The code reads a
    // pointer and assumes nothing about it.
    let object = unsafe { field.cast::<*mut ffi::PyObject>().read_volatile() };
    !object.is_null()
}

/// Dead objects of one type, kept for reuse. This avoids `free`, which takes as long as the rest of a `recv`
/// that need not wait.
#[cfg(not(Py_GIL_DISABLED))]
pub(super) struct FreeList {
    objects: std::cell::UnsafeCell<([*mut ffi::PyObject; FreeList::SIZE], usize)>,
}

// SAFETY: `take` and `put` are called with the GIL held, and run no Python code.
#[cfg(not(Py_GIL_DISABLED))]
unsafe impl Sync for FreeList {}

#[cfg(not(Py_GIL_DISABLED))]
impl FreeList {
    /// The number of tasks that receive in the same iteration of a busy loop is some tens. Each object has
    /// about 100 bytes.
    const SIZE: usize = 64;

    pub(super) const fn new() -> Self {
        Self { objects: std::cell::UnsafeCell::new(([ptr::null_mut(); Self::SIZE], 0)) }
    }

    /// Returns memory for an object of type `kind`, as [`ffi::PyObject_GC_New`] does: with one reference and
    /// uninitialised fields.
    ///
    /// # Safety
    ///
    /// The thread is attached. `kind` is a garbage-collected type, the same in all calls for one list.
    #[inline]
    #[allow(clippy::indexing_slicing, reason = "below the count, which is at most the size")]
    pub(super) unsafe fn take(&self, kind: *mut ffi::PyTypeObject) -> *mut ffi::PyObject {
        // SAFETY: one thread at a time, see above. The first `count` entries of `objects` are dead objects of
        // this type.
        unsafe {
            let (objects, count) = &mut *self.objects.get();
            if *count > 0 {
                *count -= 1;
                return ffi::PyObject_Init(objects[*count], kind);
            }
            ffi::PyObject_GC_New::<ffi::PyObject>(kind)
        }
    }

    /// Takes back the memory of a dead, untracked object.
    ///
    /// # Safety
    ///
    /// The thread is attached. The object came from this list, and has no references.
    #[inline]
    #[allow(clippy::indexing_slicing, reason = "below the size")]
    pub(super) unsafe fn put(&self, object: *mut ffi::PyObject) {
        // SAFETY: as above. The caller owns the dead object.
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

/// Without the GIL a list would need a lock. The interpreter's allocator is as fast.
#[cfg(Py_GIL_DISABLED)]
pub(super) struct FreeList;

#[cfg(Py_GIL_DISABLED)]
impl FreeList {
    pub(super) const fn new() -> Self {
        Self
    }

    /// # Safety
    ///
    /// The thread is attached. `kind` is a garbage-collected type.
    pub(super) unsafe fn take(&self, kind: *mut ffi::PyTypeObject) -> *mut ffi::PyObject {
        // SAFETY: `kind` is a garbage-collected type.
        unsafe { ffi::PyObject_GC_New::<ffi::PyObject>(kind) }
    }

    /// # Safety
    ///
    /// The thread is attached, and the object has no references.
    pub(super) unsafe fn put(&self, object: *mut ffi::PyObject) {
        // SAFETY: the caller owns the dead object.
        unsafe { ffi::PyObject_GC_Del(object.cast()) }
    }
}

/// Ends an iterator with a value, whose reference is taken over. `tp_iternext` returns null after this.
///
/// From CPython 3.12 on, `await` gets the value of every call that need not wait in this way. Creating a
/// `StopIteration` takes longer than receiving a message, so one is cached. It keeps the last value alive, so
/// the value must be small, and of a type that cannot run code.
///
/// # Safety
///
/// The thread is attached, without an exception. The caller owns the reference `value`.
#[inline]
pub(super) unsafe fn stop_iteration(value: *mut ffi::PyObject) {
    // SAFETY: attached. Every reference is owned where it is used.
    unsafe {
        if value == ffi::Py_None() {
            ffi::Py_DECREF(value);
            return; // null without an exception means None
        }
        #[cfg(all(Py_3_12, not(Py_GIL_DISABLED)))]
        if is_small(value) && cached::raise(value) {
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

/// Returns whether `value` is a `bytes` or `str` object of at most 64 KiB.
///
/// # Safety
///
/// `value` is a live object.
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
mod cached {
    use std::mem;
    use std::ptr;
    use std::sync::atomic::{AtomicPtr, Ordering};

    use pyo3::ffi;

    /// The cached exception, with a reference. Accessed with the GIL held.
    static CACHED: AtomicPtr<ffi::PyStopIterationObject> = AtomicPtr::new(ptr::null_mut());

    /// Raises the cached exception with `value`, whose reference is then taken over. False if there is none,
    /// without any effect.
    ///
    /// # Safety
    ///
    /// The thread is attached, without an exception. `value` is a `bytes` or `str` object.
    #[inline]
    pub(super) unsafe fn raise(value: *mut ffi::PyObject) -> bool {
        // SAFETY: attached. The exception is a StopIteration. With one reference, no other code can see it
        // change.
        unsafe {
            let mut exception = CACHED.load(Ordering::Relaxed);
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

    /// Returns whether the previous user has neither kept the exception nor left anything in it.
    ///
    /// # Safety
    ///
    /// The thread is attached, and the `StopIteration` is alive.
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

    /// Caches a new exception and returns it. Null if there is no memory.
    ///
    /// # Safety
    ///
    /// The thread is attached, without an exception.
    #[cold]
    unsafe fn renew() -> *mut ffi::PyStopIterationObject {
        // SAFETY: attached. The old reference is owned here.
        unsafe {
            let exception = ffi::PyObject_CallNoArgs(ffi::PyExc_StopIteration);
            if exception.is_null() {
                ffi::PyErr_Clear(); // the caller will get the same error
                return ptr::null_mut();
            }
            let old = CACHED.swap(exception.cast(), Ordering::Relaxed);
            ffi::Py_XDECREF(old.cast());
            exception.cast()
        }
    }
}

/// Drops the reference in `place`, if there is one.
///
/// # Safety
///
/// `place` is null or owns its reference.
#[inline]
pub(super) unsafe fn clear(place: &Cell<*mut ffi::PyObject>) {
    let object = place.replace(ptr::null_mut());
    // SAFETY: by the caller's promise, the place owns its reference.
    unsafe { ffi::Py_XDECREF(object) };
}

/// Like the macro `Py_VISIT`.
///
/// # Safety
///
/// Called inside `tp_traverse`, with its arguments.
#[inline]
pub(super) unsafe fn visit(object: *mut ffi::PyObject, visit: ffi::visitproc, arg: *mut c_void) -> c_int {
    if object.is_null() {
        return 0;
    }
    // SAFETY: the garbage collector's own function and argument.
    unsafe { visit(object, arg) }
}

/// Objects of asyncio, looked up once.
pub(super) struct Asyncio {
    pub(super) cancelled_error: Py<PyAny>,
    /// A completed `_asyncio` future whose result is None.
    pub(super) finished: Py<PyAny>,
    /// The function `_get_running_loop`.
    pub(super) running_loop: Py<PyAny>,
    /// The dict of the running tasks by loop, where it exists. Otherwise the functions that return the running
    /// task: for tasks in C, and for tasks in Python.
    current_tasks: Result<Py<PyDict>, Vec<Py<PyAny>>>,
}

static ASYNCIO: PyOnceLock<Asyncio> = PyOnceLock::new();

pub(super) fn asyncio(py: Python<'_>) -> PyResult<&'static Asyncio> {
    ASYNCIO.get_or_try_init(py, || {
        let module = py.import("asyncio")?;
        let dict = || py.import("_asyncio")?.getattr("_current_tasks");
        // From 3.14 on, the running task is a field of the thread.
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

/// Creates a completed future. No task waits for it, so it needs no loop, which it would keep alive.
fn finished<'py>(asyncio: &Bound<'py, PyModule>) -> PyResult<Bound<'py, PyAny>> {
    let py = asyncio.py();
    let kwargs = PyDict::new(py);
    // The only method that the constructor calls on a loop.
    let namespace = py.import("types")?.getattr("SimpleNamespace")?;
    let answers = PyDict::new(py);
    answers.set_item("get_debug", py.get_type::<pyo3::types::PyBool>())?; // bool() is False
    kwargs.set_item("loop", namespace.call((), Some(&answers))?)?;
    let future = asyncio.getattr("Future")?.call((), Some(&kwargs))?;
    future.call_method1("set_result", (py.None(),))?;
    Ok(future)
}

/// Takes ownership of a new reference, or returns the exception that was set.
pub(super) fn adopt(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, object) }
}

/// Returns the running task of this loop as a number that is unique among live tasks; 0 if none.
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

/// Returns whether a task of this loop is running, so that no other task may be entered.
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

/// A null-terminated string literal, for tables of methods.
macro_rules! c {
    ($text:literal) => {
        concat!($text, "\0").as_ptr().cast::<std::ffi::c_char>()
    };
}
pub(super) use c;
