//! The type of a waiter: its slots, and the methods of a future that asyncio calls.

#![allow(unsafe_code)] // type slots

use std::ffi::{c_int, c_void};
use std::mem::{self, offset_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;

use super::super::gil_mutex::Guard;
use super::super::raw::{self, c};
use super::{FREE, Stage, TYPE, Waiter, WaiterRef, WaiterState};
use crate::errors;
use crate::leaked::leak_static;

unsafe extern "C" fn traverse(object: *mut ffi::PyObject, visit: ffi::visitproc, arg: *mut c_void) -> c_int {
    // SAFETY: the garbage collector calls this with an object of this type.
    unsafe {
        let waiter = this(object);
        for reference in [ffi::Py_TYPE(object).cast(), waiter.event_loop.get()] {
            let result = raw::visit(reference, visit, arg);
            if result != 0 {
                return result;
            }
        }
        // If it is locked, the objects are not visited: the collector then takes them for referenced and keeps
        // them.
        let Some(state) = waiter.state.try_lock_for_gc() else { return 0 };
        let item = state.assigned.as_ref().map_or(ptr::null_mut(), |assigned| assigned.item.message.as_ptr());
        for reference in [state.wakeup, state.context, state.cancel_message, item] {
            let result = raw::visit(reference, visit, arg);
            if result != 0 {
                return result;
            }
        }
    }
    0
}

unsafe extern "C" fn tp_clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: called by the garbage collector or `dealloc`, with an object of this type whose fields own their
    // references.
    unsafe {
        let waiter = this(object);
        // Taken out first, because dropping them may run Python code.
        let taken = waiter.state.try_lock_for_gc().map(|mut state| {
            let wakeup = mem::replace(&mut state.wakeup, ptr::null_mut());
            let context = mem::replace(&mut state.context, ptr::null_mut());
            let message = mem::replace(&mut state.cancel_message, ptr::null_mut());
            ([wakeup, context, message], state.assigned.take(), state.error.take())
        });
        raw::clear(&waiter.event_loop);
        if let Some((references, assigned, error)) = taken {
            for reference in references {
                ffi::Py_XDECREF(reference);
            }
            drop((assigned, error));
        }
    }
    0
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this once, with an object of this type that has no references.
    unsafe {
        let kind = ffi::Py_TYPE(object);
        ffi::PyObject_GC_UnTrack(object.cast());
        tp_clear(object);
        ptr::drop_in_place(&raw mut (*object.cast::<Waiter>()).state);
        FREE.put(object);
        ffi::Py_DECREF(kind.cast()); // an object of a heap type holds a reference to it
    }
}

/// Returns the waiter behind an object pointer.
///
/// # Safety
///
/// `object` is a live waiter for as long as the reference is used.
#[inline]
unsafe fn this<'a>(object: *mut ffi::PyObject) -> &'a Waiter {
    // SAFETY: methods and attributes of this type are called with objects of this type. All fields that change
    // are in cells or behind a lock.
    unsafe { &*object.cast::<Waiter>() }
}

/// Locks the fields of a waiter that change.
///
/// # Safety
///
/// As for `this`, and the thread is attached.
#[inline]
unsafe fn state<'a>(object: *mut ffi::PyObject) -> Guard<'a, WaiterState> {
    // SAFETY: the caller's promises.
    unsafe { this(object).state.lock(Python::assume_attached()) }
}

/// Returns a new reference to None.
///
/// # Safety
///
/// The thread is attached.
unsafe fn new_none() -> *mut ffi::PyObject {
    // SAFETY: None is never freed, but the caller gets a counted reference.
    unsafe {
        ffi::Py_INCREF(ffi::Py_None());
        ffi::Py_None()
    }
}

/// Returns a new reference to a bool.
///
/// # Safety
///
/// The thread is attached.
unsafe fn new_bool(value: bool) -> *mut ffi::PyObject {
    // SAFETY: attached.
    unsafe { ffi::PyBool_FromLong(value.into()) }
}

unsafe extern "C" fn get_loop(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: see `this`. The loop is set until the garbage collector clears the object.
    unsafe {
        let event_loop = this(object).event_loop.get();
        if event_loop.is_null() {
            return new_none();
        }
        ffi::Py_INCREF(event_loop);
        event_loop
    }
}

/// Returns `None` or raises `CancelledError`. The task calls this when its wakeup is called.
unsafe extern "C" fn result(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: see `this`. Attached.
    unsafe {
        let py = Python::assume_attached();
        let message = {
            let state = state(object);
            if state.stage != Stage::Cancelled {
                return new_none();
            }
            Bound::from_borrowed_ptr_or_opt(py, state.cancel_message)
        };
        match raw::asyncio(py) {
            Ok(asyncio) => {
                // None if there is no message: an exception without arguments.
                let message = message.unwrap_or_else(|| py.None().into_bound(py));
                ffi::PyErr_SetObject(asyncio.cancelled_error.as_ptr(), message.as_ptr());
            }
            Err(error) => error.restore(py),
        }
        ptr::null_mut()
    }
}

unsafe extern "C" fn exception(object: *mut ffi::PyObject, unused: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: as for `result`, whose only value is None.
    unsafe { result(object, unused) }
}

unsafe extern "C" fn done(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: see `this`.
    unsafe { new_bool(state(object).stage != Stage::Waiting) }
}

unsafe extern "C" fn cancelled(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: see `this`.
    unsafe { new_bool(state(object).stage == Stage::Cancelled) }
}

/// Called by `Task.cancel`, from inside the step of another task. So the wakeup goes through `call_soon`, and
/// `result` raises then.
unsafe extern "C" fn cancel(
    object: *mut ffi::PyObject,
    arguments: *mut ffi::PyObject,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: see `this`. The arguments are a tuple, and a dict or null, as the interpreter passes them.
    unsafe {
        let mut message = ptr::null_mut();
        if ffi::PyTuple_Size(arguments) > 0 {
            message = ffi::PyTuple_GetItem(arguments, 0);
        } else if !keywords.is_null() {
            message = ffi::PyDict_GetItemString(keywords, c!("msg"));
        }
        let suspended = {
            let mut state = state(object);
            if state.stage != Stage::Waiting {
                return new_bool(false);
            }
            ffi::Py_XINCREF(message);
            state.cancel_message = message; // was null, as a waiter is cancelled only once
            state.stage = Stage::Cancelled;
            !state.wakeup.is_null()
        };
        let py = Python::assume_attached();
        if suspended && let Err(error) = WaiterRef::from_borrowed(object).resume_soon(py) {
            error.restore(py);
            return ptr::null_mut();
        }
        new_bool(true)
    }
}

/// Resumes the task. The loop calls this in the task's context.
unsafe extern "C" fn resume(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: see `this`. Attached.
    unsafe {
        let py = Python::assume_attached();
        match catch_unwind(AssertUnwindSafe(|| WaiterRef::from_borrowed(object).resume(py))) {
            Ok(Ok(())) => new_none(),
            Ok(Err(error)) => {
                error.restore(py);
                ptr::null_mut()
            }
            Err(_) => {
                errors::panicked().restore(py);
                ptr::null_mut()
            }
        }
    }
}

/// Calls the object. It is its own `add_done_callback` and `get_loop`, so that a suspending task creates no
/// method objects.
pub(super) unsafe extern "C" fn called(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: vectorcall has the convention of METH_FASTCALL | METH_KEYWORDS, except for a flag in `count`.
    unsafe {
        let count = ffi::PyVectorcall_NARGS(count);
        if count == 0 && names.is_null() {
            return get_loop(object, ptr::null_mut());
        }
        add_done_callback(object, values, count, names)
    }
}

unsafe extern "C" fn getattro(object: *mut ffi::PyObject, name: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: see `this`. Attribute names in code are interned, so comparing pointers is enough.
    unsafe {
        let py = Python::assume_attached();
        if name == intern!(py, "_asyncio_future_blocking").as_ptr() {
            return new_bool(state(object).blocking);
        }
        if name == intern!(py, "add_done_callback").as_ptr() || name == intern!(py, "get_loop").as_ptr() {
            ffi::Py_INCREF(object);
            return object;
        }
        ffi::PyObject_GenericGetAttr(object, name)
    }
}

unsafe extern "C" fn setattro(
    object: *mut ffi::PyObject,
    name: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
) -> c_int {
    // SAFETY: as for `getattro`. A null value is a deletion.
    unsafe {
        if value == ffi::Py_False() && name == intern!(Python::assume_attached(), "_asyncio_future_blocking").as_ptr() {
            state(object).blocking = false;
            return 0;
        }
        ffi::PyObject_GenericSetAttr(object, name, value)
    }
}

/// Returns whether `name` is the keyword argument `context`.
///
/// # Safety
///
/// The thread is attached, and `name` is a live `str` object.
#[inline]
unsafe fn is_context(name: *mut ffi::PyObject) -> bool {
    /// The string of `_asyncio`, which is not interned, with a reference.
    static KNOWN: AtomicPtr<ffi::PyObject> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: attached, and the object is alive.
    unsafe {
        if name == KNOWN.load(Ordering::Relaxed) {
            return true;
        }
        if ffi::PyUnicode_CompareWithASCIIString(name, c!("context")) != 0 {
            return false;
        }
        ffi::Py_INCREF(name);
        ffi::Py_XDECREF(KNOWN.swap(name, Ordering::Relaxed));
        true
    }
}

unsafe extern "C" fn add_done_callback(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: see `this`. The calling convention of METH_FASTCALL | METH_KEYWORDS: `count` positional values,
    // then one value for each name.
    unsafe {
        let py = Python::assume_attached();
        let named = if names.is_null() { 0 } else { ffi::PyTuple_GET_SIZE(names) };
        if count != 1 || named > 1 || !state(object).wakeup.is_null() {
            PyRuntimeError::new_err("one task waits on this, and no other can").restore(py);
            return ptr::null_mut();
        }
        let mut context = ptr::null_mut();
        if named == 1 {
            if !is_context(ffi::PyTuple_GET_ITEM(names, 0)) {
                PyTypeError::new_err("add_done_callback() takes no other keyword argument than context").restore(py);
                return ptr::null_mut();
            }
            context = *values.add(1);
        }
        let wakeup = *values;
        ffi::Py_INCREF(wakeup);
        ffi::Py_XINCREF(context);
        let waiting = {
            let mut state = state(object);
            state.wakeup = wakeup; // both are null, as checked above
            state.context = context;
            state.stage == Stage::Waiting
        };
        if !waiting && let Err(error) = WaiterRef::from_borrowed(object).resume_soon(py) {
            error.restore(py);
            return ptr::null_mut();
        }
        new_none()
    }
}

unsafe extern "C" fn remove_done_callback(
    object: *mut ffi::PyObject,
    callback: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: see `this`. The comparison may run Python code, so the compared object is held by a reference of
    // its own.
    unsafe {
        let py = Python::assume_attached();
        let Some(wakeup) = Bound::from_borrowed_ptr_or_opt(py, state(object).wakeup) else {
            return ffi::PyLong_FromLong(0);
        };
        match ffi::PyObject_RichCompareBool(wakeup.as_ptr(), callback, ffi::Py_EQ) {
            1 => {
                let context = {
                    let mut state = state(object);
                    if state.wakeup != wakeup.as_ptr() {
                        return ffi::PyLong_FromLong(0); // the wakeup was called meanwhile
                    }
                    state.wakeup = ptr::null_mut();
                    mem::replace(&mut state.context, ptr::null_mut())
                };
                ffi::Py_DECREF(wakeup.as_ptr()); // the waiter's reference
                ffi::Py_XDECREF(context);
                ffi::PyLong_FromLong(1)
            }
            0 => ffi::PyLong_FromLong(0),
            _ => ptr::null_mut(),
        }
    }
}

unsafe extern "C" fn blocking_get(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: see `this`.
    unsafe { new_bool(state(object).blocking) }
}

unsafe extern "C" fn blocking_set(object: *mut ffi::PyObject, value: *mut ffi::PyObject, _: *mut c_void) -> c_int {
    // SAFETY: see `this`. A null value is a deletion.
    unsafe {
        let truth = if value.is_null() { 0 } else { ffi::PyObject_IsTrue(value) };
        if truth < 0 {
            return -1;
        }
        state(object).blocking = truth == 1;
    }
    0
}

unsafe extern "C" fn self_iter(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the object is alive.
    unsafe { ffi::Py_INCREF(object) };
    object
}

const fn no_arguments(name: *const std::ffi::c_char, f: ffi::PyCFunction) -> ffi::PyMethodDef {
    ffi::PyMethodDef {
        ml_name: name,
        ml_meth: ffi::PyMethodDefPointer { PyCFunction: f },
        ml_flags: ffi::METH_NOARGS,
        ml_doc: ptr::null(),
    }
}

const fn keywords(name: *const std::ffi::c_char, f: ffi::PyCFunctionWithKeywords) -> ffi::PyMethodDef {
    ffi::PyMethodDef {
        ml_name: name,
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionWithKeywords: f },
        ml_flags: ffi::METH_VARARGS | ffi::METH_KEYWORDS,
        ml_doc: ptr::null(),
    }
}

/// Creates the type.
pub(in crate::asyncio) fn init(py: Python<'_>) -> PyResult<()> {
    // Leaked, because the type refers to them until the process ends.
    let methods = leak_static([
        no_arguments(c!("get_loop"), get_loop),
        no_arguments(c!("result"), result),
        no_arguments(c!("exception"), exception),
        no_arguments(c!("done"), done),
        no_arguments(c!("cancelled"), cancelled),
        no_arguments(c!("_resume"), resume),
        keywords(c!("cancel"), cancel),
        ffi::PyMethodDef {
            ml_name: c!("add_done_callback"),
            ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: add_done_callback },
            ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
            ml_doc: ptr::null(),
        },
        ffi::PyMethodDef {
            ml_name: c!("remove_done_callback"),
            ml_meth: ffi::PyMethodDefPointer { PyCFunction: remove_done_callback },
            ml_flags: ffi::METH_O,
            ml_doc: ptr::null(),
        },
        ffi::PyMethodDef::zeroed(),
    ]);
    let attributes = leak_static([
        ffi::PyGetSetDef {
            name: c!("_asyncio_future_blocking"),
            get: Some(blocking_get),
            set: Some(blocking_set),
            doc: ptr::null(),
            closure: ptr::null_mut(),
        },
        ffi::PyGetSetDef::default(),
    ]);
    let members = leak_static([
        ffi::PyMemberDef {
            name: c!("__vectorcalloffset__"),
            type_code: ffi::Py_T_PYSSIZET,
            offset: offset_of!(Waiter, vectorcall) as ffi::Py_ssize_t,
            flags: ffi::Py_READONLY,
            doc: ptr::null(),
        },
        ffi::PyMemberDef::default(),
    ]);
    let slot = |slot, pfunc: *mut c_void| ffi::PyType_Slot { slot, pfunc };
    let mut slots = [
        slot(ffi::Py_tp_members, members.as_mut_ptr().cast()),
        slot(ffi::Py_tp_call, ffi::PyVectorcall_Call as *mut c_void),
        slot(ffi::Py_tp_getattro, getattro as *mut c_void),
        slot(ffi::Py_tp_setattro, setattro as *mut c_void),
        slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
        slot(ffi::Py_tp_traverse, traverse as *mut c_void),
        slot(ffi::Py_tp_clear, tp_clear as *mut c_void),
        slot(ffi::Py_tp_methods, methods.as_mut_ptr().cast()),
        slot(ffi::Py_tp_getset, attributes.as_mut_ptr().cast()),
        slot(ffi::Py_tp_iter, self_iter as *mut c_void),
        slot(0, ptr::null_mut()),
    ];
    let mut spec = ffi::PyType_Spec {
        name: c!("wirespeed._native.Waiter"),
        basicsize: size_of::<Waiter>() as c_int,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT
            | ffi::Py_TPFLAGS_HAVE_GC
            | ffi::Py_TPFLAGS_HAVE_VECTORCALL
            | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION) as std::ffi::c_uint,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: attached. The specification is valid and its tables are never freed. The reference is kept until
    // the process ends.
    unsafe {
        let kind = ffi::PyType_FromSpec(&raw mut spec);
        if kind.is_null() {
            return Err(PyErr::fetch(py));
        }
        TYPE.store(kind.cast(), Ordering::Relaxed);
    }
    Ok(())
}
