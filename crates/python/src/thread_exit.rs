//! Protects native frames when the interpreter ends a thread that is calling it.
//!
//! Before CPython 3.14, a finalizing interpreter ends daemon threads with `pthread_exit` when they next take
//! the GIL. This can happen at any bytecode, so inside every call that may run Python code, including
//! finalizers. With glibc, `pthread_exit` unwinds the stack. Unwinding must not pass native frames: it runs
//! their destructors without the GIL, and a `catch_unwind` on the way aborts the process.
//!
//! Therefore each interpreter function that may run Python code is called through a wrapper with the same
//! signature. The wrapper parks the thread permanently when it is unwound, as CPython 3.14 does by itself. The
//! linker inserts the wrappers (`--wrap`, see build.rs) for the calls of `PyO3` and for our own, so callers
//! need not know them. `PyO3` does the same where it takes the GIL. `tests/test_exit.py` checks that no
//! function is missing here.
//!
//! Not covered: Python code run by the garbage collector while an object of one of our classes is allocated,
//! before 3.12. The allocator is called through a pointer, which the linker cannot wrap.

#![allow(unsafe_code)] // the interpreter's calling convention
#![allow(non_snake_case)] // its names

use std::ffi::{c_char, c_int, c_long};

use pyo3::ffi::{Py_buffer, Py_ssize_t, PyObject, PyTypeObject};

/// Parks the thread permanently when dropped. Only unwinding drops it: [`park_on_unwind`] forgets it after a normal
/// return.
struct ParkOnUnwind;

impl Drop for ParkOnUnwind {
    #[cold]
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

// build.rs reads the function names of the list below.
macro_rules! park_on_unwind {
    ($($(#[$attributes:meta])* fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        /// # Safety
        ///
        /// The caller keeps the contract of the interpreter's function.
        $(#[$attributes])*
        #[unsafe(export_name = concat!("__wrap_", stringify!($name)))]
        unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            unsafe extern "C-unwind" {
                #[link_name = concat!("__real_", stringify!($name))]
                fn real($($argument: $type),*) $(-> $result)?;
            }
            let guard = ParkOnUnwind;
            // SAFETY: the caller keeps the contract of the wrapped function.
            let result = unsafe { real($($argument),*) };
            std::mem::forget(guard);
            result
        }
    )*};
}

type Object = *mut PyObject;
type ObjectArray = *const *mut PyObject;

park_on_unwind! {
    fn PyBuffer_Release(view: *mut Py_buffer);
    fn PyContext_CopyCurrent() -> Object;
    fn PyDict_Clear(dict: Object);
    fn PyDict_Contains(dict: Object, key: Object) -> c_int;
    fn PyDict_DelItem(dict: Object, key: Object) -> c_int;
    fn PyDict_GetItemString(dict: Object, key: *const c_char) -> Object;
    fn PyDict_GetItemWithError(dict: Object, key: Object) -> Object;
    fn PyDict_New() -> Object;
    fn PyDict_SetItem(dict: Object, key: Object, value: Object) -> c_int;
    fn PyErr_CheckSignals() -> c_int;
    fn PyErr_Clear();
    fn PyErr_NormalizeException(class: *mut Object, value: *mut Object, traceback: *mut Object);
    fn PyErr_PrintEx(set_variables: c_int);
    fn PyErr_Restore(class: Object, value: Object, traceback: Object);
    fn PyErr_SetNone(class: Object);
    fn PyErr_SetObject(class: Object, value: Object);
    fn PyErr_SetString(class: Object, text: *const c_char);
    fn PyErr_WriteUnraisable(object: Object);
    fn PyException_SetCause(exception: Object, cause: Object);
    fn PyException_SetTraceback(exception: Object, traceback: Object) -> c_int;
    fn PyFloat_AsDouble(object: Object) -> f64;
    fn PyImport_Import(name: Object) -> Object;
    fn PyIter_Next(iterator: Object) -> Object;
    fn PyList_New(count: Py_ssize_t) -> Object;
    fn PyLong_AsLong(object: Object) -> c_long;
    fn PyMemoryView_FromObject(object: Object) -> Object;
    fn PyNumber_Index(object: Object) -> Object;
    fn PyOS_FSPath(object: Object) -> Object;
    fn PyObject_Call(callable: Object, arguments: Object, names: Object) -> Object;
    fn PyObject_CallNoArgs(callable: Object) -> Object;
    fn PyObject_ClearWeakRefs(object: Object);
    fn PyObject_DelItem(object: Object, key: Object) -> c_int;
    fn PyObject_GenericGetAttr(object: Object, name: Object) -> Object;
    fn PyObject_GenericGetDict(object: Object, context: *mut std::ffi::c_void) -> Object;
    fn PyObject_GenericSetAttr(object: Object, name: Object, value: Object) -> c_int;
    fn PyObject_GenericSetDict(object: Object, value: Object, context: *mut std::ffi::c_void) -> c_int;
    fn PyObject_GetAttr(object: Object, name: Object) -> Object;
    fn PyObject_GetBuffer(object: Object, view: *mut Py_buffer, flags: c_int) -> c_int;
    fn PyObject_GetItem(object: Object, key: Object) -> Object;
    fn PyObject_GetIter(object: Object) -> Object;
    fn PyObject_IsInstance(object: Object, class: Object) -> c_int;
    fn PyObject_IsTrue(object: Object) -> c_int;
    fn PyObject_LengthHint(object: Object, otherwise: Py_ssize_t) -> Py_ssize_t;
    fn PyObject_Repr(object: Object) -> Object;
    fn PyObject_RichCompare(object: Object, other: Object, how: c_int) -> Object;
    fn PyObject_RichCompareBool(object: Object, other: Object, how: c_int) -> c_int;
    fn PyObject_SetAttr(object: Object, name: Object, value: Object) -> c_int;
    fn PyObject_SetAttrString(object: Object, name: *const c_char, value: Object) -> c_int;
    fn PyObject_SetItem(object: Object, key: Object, value: Object) -> c_int;
    fn PyObject_Size(object: Object) -> Py_ssize_t;
    fn PyObject_Str(object: Object) -> Object;
    fn PyObject_Vectorcall(callable: Object, arguments: ObjectArray, count: usize, names: Object) -> Object;
    fn PyObject_VectorcallMethod(name: Object, arguments: ObjectArray, count: usize, names: Object) -> Object;
    fn PySlice_Unpack(slice: Object, start: *mut Py_ssize_t, stop: *mut Py_ssize_t, step: *mut Py_ssize_t) -> c_int;
    fn PyTraceBack_Print(traceback: Object, file: Object) -> c_int;
    fn PyTuple_GetSlice(tuple: Object, low: Py_ssize_t, high: Py_ssize_t) -> Object;
    fn PyTuple_New(count: Py_ssize_t) -> Object;
    fn PyUnicode_AsEncodedString(text: Object, encoding: *const c_char, errors: *const c_char) -> Object;
    fn PyUnicode_DecodeFSDefaultAndSize(bytes: *const c_char, size: Py_ssize_t) -> Object;
    fn PyUnicode_DecodeUTF8(bytes: *const c_char, size: Py_ssize_t, errors: *const c_char) -> Object;
    fn PyUnicode_EncodeFSDefault(text: Object) -> Object;
    fn PyVectorcall_Call(callable: Object, arguments: Object, names: Object) -> Object;
    fn PyWeakref_NewRef(object: Object, callback: Object) -> Object;
    fn _PyObject_GC_New(class: *mut PyTypeObject) -> Object;
    fn _Py_Dealloc(object: Object);
    #[cfg(not(Py_3_12))]
    fn _PyObject_MakeTpCall(
        thread: *mut pyo3::ffi::PyThreadState,
        callable: Object,
        arguments: ObjectArray,
        count: Py_ssize_t,
        names: Object
    ) -> Object;
    #[cfg(Py_3_12)]
    fn PyErr_SetRaisedException(exception: Object);
    #[cfg(Py_3_12)]
    fn PyObject_CallOneArg(callable: Object, argument: Object) -> Object;
    #[cfg(Py_3_13)]
    fn PyDict_GetItemRef(dict: Object, key: Object, value: *mut Object) -> c_int;
    #[cfg(Py_3_13)]
    fn PyLong_AsNativeBytes(object: Object, to: *mut std::ffi::c_void, size: Py_ssize_t, flags: c_int) -> Py_ssize_t;
    #[cfg(Py_3_13)]
    fn PyObject_HasAttrWithError(object: Object, name: Object) -> c_int;
}

/// Returns the function that calls an object. Before CPython 3.12 `PyO3` asks for this function and then calls
/// it.
///
/// # Safety
///
/// The caller keeps the contract of the interpreter's function.
#[cfg(not(Py_3_12))]
#[unsafe(export_name = "__wrap_PyVectorcall_Function")]
unsafe extern "C" fn PyVectorcall_Function(callable: Object) -> Option<pyo3::ffi::vectorcallfunc> {
    unsafe extern "C" {
        #[link_name = "__real_PyVectorcall_Function"]
        fn real(callable: *mut PyObject) -> Option<pyo3::ffi::vectorcallfunc>;
    }
    // SAFETY: the caller keeps the contract. `PyObject_Vectorcall` has the same signature and calls the same function.
    unsafe { real(callable) }.map(|_| PyObject_Vectorcall as pyo3::ffi::vectorcallfunc)
}
