//! Calls objects that may be Python code from callbacks of the loop, so that their exceptions do not leave the
//! connection in an inconsistent state.

#![allow(unsafe_code)] // the interpreter's calling convention

use pyo3::exceptions::{PyKeyboardInterrupt, PySystemExit};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

/// Calls `callable(*arguments)` with borrowed references.
///
/// # Safety
///
/// The thread is attached, and all objects are live.
#[inline]
pub(super) unsafe fn call_raw(callable: *mut ffi::PyObject, arguments: &[*mut ffi::PyObject]) -> *mut ffi::PyObject {
    // SAFETY: the caller's promise. There are no keyword names.
    unsafe { ffi::PyObject_Vectorcall(callable, arguments.as_ptr(), arguments.len(), std::ptr::null_mut()) }
}

/// Calls `callable(*arguments)`.
pub(super) fn call<'py, const N: usize>(
    callable: &Bound<'py, PyAny>,
    arguments: [&Bound<'py, PyAny>; N],
) -> PyResult<Bound<'py, PyAny>> {
    let arguments = arguments.map(Bound::as_ptr);
    // SAFETY: attached, and the bound references keep the objects alive. The result is a new reference, or null
    // with an exception.
    unsafe { Bound::from_owned_ptr_or_err(callable.py(), call_raw(callable.as_ptr(), &arguments)) }
}

/// Calls `object.name(*arguments)`.
pub(super) fn method<'py, const N: usize>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    arguments: [&Bound<'py, PyAny>; N],
) -> PyResult<Bound<'py, PyAny>> {
    method_raw(object, name, arguments, None)
}

/// Calls `object.name(*arguments, context=context)`.
pub(super) fn method_in_context<'py, const N: usize>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    arguments: [&Bound<'py, PyAny>; N],
    context: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    method_raw(object, name, arguments, Some(context))
}

#[allow(clippy::indexing_slicing, reason = "N + 2 is at most MAX_VALUES: checked at compile time")]
fn method_raw<'py, const N: usize>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    arguments: [&Bound<'py, PyAny>; N],
    context: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    /// The object, its arguments, and the context.
    const MAX_VALUES: usize = 6;
    const { assert!(N + 2 <= MAX_VALUES) }
    let py = object.py();
    let mut values = [std::ptr::null_mut(); MAX_VALUES];
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
    // SAFETY: attached, and the bound references keep the objects alive: the object, `N` arguments, and the
    // value of each name. The result is a new reference, or null with an exception.
    unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyObject_VectorcallMethod(name.as_ptr(), values.as_ptr(), 1 + N, names))
    }
}

/// Makes an idempotent request to the loop. An exception that a signal handler raises during the request must
/// not lose it, because a task may wait for it. So the request is repeated, and then the exception is returned.
pub(super) fn retry_interrupted(request: impl FnMut() -> PyResult<()>) -> PyResult<()> {
    retry_interrupted_succeeded(request).1
}

/// Like [`retry_interrupted`], and returns whether the request succeeded.
pub(super) fn retry_interrupted_succeeded(request: impl FnMut() -> PyResult<()>) -> (bool, PyResult<()>) {
    let (done, result) = retry_interrupted_value(request);
    (done.is_some(), result)
}

/// Like [`retry_interrupted`], and returns the value of the request.
pub(super) fn retry_interrupted_value<T>(mut request: impl FnMut() -> PyResult<T>) -> (Option<T>, PyResult<()>) {
    /// A timer whose handler raises may fire several times. A request that never succeeds has another reason.
    const TRIES: usize = 8;
    match request() {
        Ok(value) => (Some(value), Ok(())),
        Err(error) => ((1..TRIES).find_map(|_| request().ok()), Err(error)),
    }
}

/// Calls a method without arguments and returns the truth of its result; false if it fails. A signal handler
/// that raises meanwhile does not change the result.
pub(super) fn query_bool(object: &Bound<'_, PyAny>, name: &Bound<'_, PyString>, first_error: &mut FirstError) -> bool {
    let (answer, result) = retry_interrupted_value(|| method(object, name, [])?.is_truthy());
    first_error.record(result);
    answer.unwrap_or(false)
}

/// Calls `loop.call_soon(callback)` with a callback that may be called twice.
pub(super) fn call_soon(event_loop: &Bound<'_, PyAny>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
    let name = pyo3::intern!(event_loop.py(), "call_soon");
    retry_interrupted(|| method(event_loop, name, [callback]).map(drop))
        .or_else(|error| unless_closed(event_loop, error))
}

/// Handles the error of a request to the loop: ignores it if the loop is closed, as no task can wait there.
#[cold]
pub(super) fn unless_closed(event_loop: &Bound<'_, PyAny>, error: PyErr) -> PyResult<()> {
    let closed = method(event_loop, pyo3::intern!(event_loop.py(), "is_closed"), []);
    if closed.and_then(|closed| closed.is_truthy()).unwrap_or(false) { Ok(()) } else { Err(error) }
}

/// Returns a copy of the current context.
pub(super) fn current_context(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the result is a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyContext_CopyCurrent()) }
}

/// Runs `f` in a context, or in the current one if the context is entered already.
#[inline]
pub(super) fn in_context<R>(context: &Bound<'_, PyAny>, f: impl FnOnce() -> R) -> R {
    struct Entered<'a, 'py>(&'a Bound<'py, PyAny>);

    impl Drop for Entered<'_, '_> {
        fn drop(&mut self) {
            // SAFETY: a context object, and the current one: contexts that were entered meanwhile were left.
            unsafe { ffi::PyContext_Exit(self.0.as_ptr()) };
        }
    }

    // SAFETY: a context object. The same thread leaves it.
    if unsafe { ffi::PyContext_Enter(context.as_ptr()) } != 0 {
        drop(PyErr::take(context.py()));
        return f();
    }
    let _entered = Entered(context);
    f()
}

/// Passes an exception of a callback to the loop's exception handler, as the loop does for its own callbacks.
/// Exceptions that end the program are returned.
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

/// Collects the results of several steps, each of which runs even if others fail. Keeps the first exception.
pub(super) struct FirstError(PyResult<()>);

impl FirstError {
    pub(super) const fn new() -> Self {
        Self(Ok(()))
    }

    /// Adds the result of a step.
    #[inline]
    pub(super) fn record(&mut self, result: PyResult<()>) {
        if self.0.is_ok() {
            self.0 = result;
        }
    }

    /// Returns the first exception, if there was one.
    pub(super) fn into_result(self) -> PyResult<()> {
        self.0
    }
}
