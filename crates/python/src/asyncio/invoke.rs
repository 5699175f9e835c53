//! Calls of objects that may be Python code, from callbacks of the loop, and what their exceptions must not
//! break.

#![allow(unsafe_code)] // the interpreter's calling convention

use pyo3::exceptions::{PyKeyboardInterrupt, PySystemExit};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

/// `callable(*arguments)`, borrowed references.
///
/// # Safety
///
/// Attached; live objects.
#[inline]
pub(super) unsafe fn call_raw(callable: *mut ffi::PyObject, arguments: &[*mut ffi::PyObject]) -> *mut ffi::PyObject {
    // SAFETY: the caller's promise; no names.
    unsafe { ffi::PyObject_Vectorcall(callable, arguments.as_ptr(), arguments.len(), std::ptr::null_mut()) }
}

/// `callable(*arguments)`.
pub(super) fn call<'py, const N: usize>(
    callable: &Bound<'py, PyAny>,
    arguments: [&Bound<'py, PyAny>; N],
) -> PyResult<Bound<'py, PyAny>> {
    let arguments = arguments.map(Bound::as_ptr);
    // SAFETY: attached, live objects, by the bound references. A new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(callable.py(), call_raw(callable.as_ptr(), &arguments)) }
}

/// `object.name(*arguments)`.
pub(super) fn method<'py, const N: usize>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    arguments: [&Bound<'py, PyAny>; N],
) -> PyResult<Bound<'py, PyAny>> {
    method_raw(object, name, arguments, None)
}

/// `object.name(*arguments, context=context)`.
pub(super) fn method_in_context<'py, const N: usize>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    arguments: [&Bound<'py, PyAny>; N],
    context: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    method_raw(object, name, arguments, Some(context))
}

#[allow(clippy::indexing_slicing, reason = "N is smaller than MOST: the compiler has checked it")]
fn method_raw<'py, const N: usize>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    arguments: [&Bound<'py, PyAny>; N],
    context: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    /// The object, its arguments, and the context.
    const MOST: usize = 6;
    const { assert!(N + 2 <= MOST) }
    let py = object.py();
    let mut values = [std::ptr::null_mut(); MOST];
    values[0] = object.as_ptr();
    for (place, argument) in values[1..].iter_mut().zip(arguments) {
        *place = argument.as_ptr();
    }
    let mut names = None;
    if let Some(context) = context {
        values[1 + N] = context.as_ptr();
        names = Some(PyTuple::new(py, [pyo3::intern!(py, "context")])?);
    }
    let names = names.as_ref().map_or(std::ptr::null_mut(), |names| names.as_ptr());
    // SAFETY: attached, live objects, by the bound references: the object, `N` arguments, and the value of
    // each name. A new reference, or null with an exception.
    unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyObject_VectorcallMethod(name.as_ptr(), values.as_ptr(), 1 + N, names))
    }
}

/// Asks the loop for something that may be asked twice. What a signal handler raises while the loop is being
/// asked must not lose the request, on which somebody waits: it is made again, and then the exception goes
/// on.
pub(super) fn retry_interrupted(ask: impl FnMut() -> PyResult<()>) -> PyResult<()> {
    retry_interrupted_known(ask).1
}

/// The same, and whether it was done.
pub(super) fn retry_interrupted_known(ask: impl FnMut() -> PyResult<()>) -> (bool, PyResult<()>) {
    let (done, result) = retry_interrupted_value(ask);
    (done.is_some(), result)
}

/// The same, and what came of it.
pub(super) fn retry_interrupted_value<T>(mut ask: impl FnMut() -> PyResult<T>) -> (Option<T>, PyResult<()>) {
    /// A timer whose handler raises may strike more than once; what never succeeds has another reason.
    const TRIES: usize = 8;
    match ask() {
        Ok(value) => (Some(value), Ok(())),
        Err(error) => ((1..TRIES).find_map(|_| ask().ok()), Err(error)),
    }
}

/// What a method without arguments says; false where it never does. A handler of a signal that raises meanwhile does not
/// decide it.
pub(super) fn asks(object: &Bound<'_, PyAny>, name: &Bound<'_, PyString>, steps: &mut FirstError) -> bool {
    let (answer, result) = retry_interrupted_value(|| method(object, name, [])?.is_truthy());
    steps.note(result);
    answer.unwrap_or(false)
}

/// `loop.call_soon(callback)`, of a callback that may be called twice.
pub(super) fn call_soon(event_loop: &Bound<'_, PyAny>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
    let name = pyo3::intern!(event_loop.py(), "call_soon");
    retry_interrupted(|| method(event_loop, name, [callback]).map(drop))
        .or_else(|error| unless_closed(event_loop, error))
}

/// The loop could not be asked: on one that is closed nobody waits.
#[cold]
pub(super) fn unless_closed(event_loop: &Bound<'_, PyAny>, error: PyErr) -> PyResult<()> {
    let closed = method(event_loop, pyo3::intern!(event_loop.py(), "is_closed"), []);
    if closed.and_then(|closed| closed.is_truthy()).unwrap_or(false) { Ok(()) } else { Err(error) }
}

/// A copy of the context that is current.
pub(super) fn current_context(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyContext_CopyCurrent()) }
}

/// Runs `f` in a context; in the current one if it is entered already.
#[inline]
pub(super) fn in_context<R>(context: &Bound<'_, PyAny>, f: impl FnOnce() -> R) -> R {
    struct Entered<'a, 'py>(&'a Bound<'py, PyAny>);

    impl Drop for Entered<'_, '_> {
        fn drop(&mut self) {
            // SAFETY: a context object, and the current one: whatever was entered meanwhile was left.
            unsafe { ffi::PyContext_Exit(self.0.as_ptr()) };
        }
    }

    // SAFETY: a context object, which is left by the same thread.
    if unsafe { ffi::PyContext_Enter(context.as_ptr()) } != 0 {
        drop(PyErr::take(context.py()));
        return f();
    }
    let _entered = Entered(context);
    f()
}

/// Tells the loop of what a callback of ours has raised, as it does by itself with callbacks of its own. What
/// ends programs goes on.
#[cold]
pub(super) fn report(event_loop: &Bound<'_, PyAny>, error: PyErr) -> PyResult<()> {
    let py = event_loop.py();
    if error.is_instance_of::<PyKeyboardInterrupt>(py) || error.is_instance_of::<PySystemExit>(py) {
        return Err(error);
    }
    let context = PyDict::new(py);
    context.set_item("message", "Exception in a callback of a WebSocket connection")?;
    context.set_item("exception", error.into_value(py))?;
    let name = pyo3::intern!(py, "call_exception_handler");
    method(event_loop, name, [context.as_any()]).map(drop)
}

/// Steps of which each is to be made whatever the others raise; the first exception is kept.
pub(super) struct FirstError(PyResult<()>);

impl FirstError {
    pub(super) const fn new() -> Self {
        Self(Ok(()))
    }

    /// A step was made.
    #[inline]
    pub(super) fn note(&mut self, result: PyResult<()>) {
        if self.0.is_ok() {
            self.0 = result;
        }
    }

    /// The exception, if there was one.
    pub(super) fn end(self) -> PyResult<()> {
        self.0
    }
}
