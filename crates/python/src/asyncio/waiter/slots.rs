//! What the interpreter and asyncio see of a waiter: its type, and what stands for the methods of a future.

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
use super::{FREE, Parts, Stage, TYPE, Waiter, WaiterRef};
use crate::errors;
use crate::leaked::leak_static;

unsafe extern "C" fn traverse(object: *mut ffi::PyObject, visit: ffi::visitproc, arg: *mut c_void) -> c_int {
    // SAFETY: the collector calls this with an object of this type.
    unsafe {
        let waiter = this(object);
        for reference in [ffi::Py_TYPE(object).cast(), waiter.event_loop.get()] {
            let result = raw::visit(reference, visit, arg);
            if result != 0 {
                return result;
            }
        }
        // Locked: what is not visited is taken for referenced from elsewhere, and lives on.
        let Some(parts) = waiter.parts.try_lock_for_gc() else { return 0 };
        let item = parts.given.as_ref().map_or(ptr::null_mut(), |given| given.item.message.as_ptr());
        for reference in [parts.wakeup, parts.context, parts.cancel_message, item] {
            let result = raw::visit(reference, visit, arg);
            if result != 0 {
                return result;
            }
        }
    }
    0
}

unsafe extern "C" fn tp_clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: the collector, or `dealloc`, calls this with an object of this type, whose fields own their
    // references.
    unsafe {
        let waiter = this(object);
        // Taken out first: to drop them may run Python code.
        let taken = waiter.parts.try_lock_for_gc().map(|mut parts| {
            let wakeup = mem::replace(&mut parts.wakeup, ptr::null_mut());
            let context = mem::replace(&mut parts.context, ptr::null_mut());
            let message = mem::replace(&mut parts.cancel_message, ptr::null_mut());
            ([wakeup, context, message], parts.given.take(), parts.error.take())
        });
        raw::clear(&waiter.event_loop);
        if let Some((references, given, error)) = taken {
            for reference in references {
                ffi::Py_XDECREF(reference);
            }
            drop((given, error));
        }
    }
    0
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this once, with an object of this type that nobody references.
    unsafe {
        let kind = ffi::Py_TYPE(object);
        ffi::PyObject_GC_UnTrack(object.cast());
        tp_clear(object);
        ptr::drop_in_place(&raw mut (*object.cast::<Waiter>()).parts);
        FREE.give(object);
        ffi::Py_DECREF(kind.cast()); // an object of a heap type holds a reference to it
    }
}

/// # Safety
///
/// `object` is a live waiter, for as long as the reference is used.
#[inline]
unsafe fn this<'a>(object: *mut ffi::PyObject) -> &'a Waiter {
    // SAFETY: methods and attributes of this type are called with objects of this type; everything that
    // changes is in a cell or behind a lock.
    unsafe { &*object.cast::<Waiter>() }
}

/// What changes of a waiter.
///
/// # Safety
///
/// As for `this`; the thread is attached.
#[inline]
unsafe fn parts<'a>(object: *mut ffi::PyObject) -> Guard<'a, Parts> {
    // SAFETY: the caller's promises.
    unsafe { this(object).parts.lock(Python::assume_attached()) }
}

/// # Safety
///
/// The thread is attached.
unsafe fn new_none() -> *mut ffi::PyObject {
    // SAFETY: None lives for ever; a reference all the same.
    unsafe {
        ffi::Py_INCREF(ffi::Py_None());
        ffi::Py_None()
    }
}

/// # Safety
///
/// The thread is attached.
unsafe fn new_bool(value: bool) -> *mut ffi::PyObject {
    // SAFETY: attached.
    unsafe { ffi::PyBool_FromLong(value.into()) }
}

unsafe extern "C" fn get_loop(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: see `this`; the loop is there until the collector clears the object.
    unsafe {
        let event_loop = this(object).event_loop.get();
        if event_loop.is_null() {
            return new_none();
        }
        ffi::Py_INCREF(event_loop);
        event_loop
    }
}

/// `None`, or `CancelledError`: the task asks when its wakeup is called.
unsafe extern "C" fn result(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: see `this`; attached.
    unsafe {
        let py = Python::assume_attached();
        let message = {
            let parts = parts(object);
            if parts.stage != Stage::Cancelled {
                return new_none();
            }
            Bound::from_borrowed_ptr_or_opt(py, parts.cancel_message)
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
    // SAFETY: as `result`, which has no other value than None.
    unsafe { result(object, unused) }
}

unsafe extern "C" fn done(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: see `this`.
    unsafe { new_bool(parts(object).stage != Stage::Waiting) }
}

unsafe extern "C" fn cancelled(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: see `this`.
    unsafe { new_bool(parts(object).stage == Stage::Cancelled) }
}

/// `Task.cancel` comes here, from inside some other task's step: so the wakeup goes through `call_soon`, and
/// `result` then raises.
unsafe extern "C" fn cancel(
    object: *mut ffi::PyObject,
    arguments: *mut ffi::PyObject,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: see `this`; a tuple and a dict or null, as the interpreter passes them.
    unsafe {
        let mut message = ptr::null_mut();
        if ffi::PyTuple_Size(arguments) > 0 {
            message = ffi::PyTuple_GetItem(arguments, 0);
        } else if !keywords.is_null() {
            message = ffi::PyDict_GetItemString(keywords, c!("msg"));
        }
        let suspended = {
            let mut parts = parts(object);
            if parts.stage != Stage::Waiting {
                return new_bool(false);
            }
            ffi::Py_XINCREF(message);
            parts.cancel_message = message; // there was none: it can be cancelled once
            parts.stage = Stage::Cancelled;
            !parts.wakeup.is_null()
        };
        let py = Python::assume_attached();
        if suspended && let Err(error) = WaiterRef::from_borrowed(object).resume_soon(py) {
            error.restore(py);
            return ptr::null_mut();
        }
        new_bool(true)
    }
}

/// What the loop calls to resume the task, in its context.
unsafe extern "C" fn resume(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: see `this`; attached.
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

/// The object is its own `add_done_callback` and `get_loop`, so that a task that suspends makes no method
/// objects.
pub(super) unsafe extern "C" fn called(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: vectorcall has the convention of METH_FASTCALL | METH_KEYWORDS, but for a flag in `count`.
    unsafe {
        let count = ffi::PyVectorcall_NARGS(count);
        if count == 0 && names.is_null() {
            return get_loop(object, ptr::null_mut());
        }
        add_done_callback(object, values, count, names)
    }
}

unsafe extern "C" fn getattro(object: *mut ffi::PyObject, name: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: see `this`; names of attributes are interned wherever they stand in code.
    unsafe {
        let py = Python::assume_attached();
        if name == intern!(py, "_asyncio_future_blocking").as_ptr() {
            return new_bool(parts(object).blocking);
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
    // SAFETY: as `getattro`; a null value is a deletion.
    unsafe {
        if value == ffi::Py_False() && name == intern!(Python::assume_attached(), "_asyncio_future_blocking").as_ptr() {
            parts(object).blocking = false;
            return 0;
        }
        ffi::PyObject_GenericSetAttr(object, name, value)
    }
}

/// Whether it is the name of the keyword argument `context`.
///
/// # Safety
///
/// The thread is attached; a live `str` object.
#[inline]
unsafe fn is_context(name: *mut ffi::PyObject) -> bool {
    /// The one of `_asyncio`, which is not interned, with a reference.
    static KNOWN: AtomicPtr<ffi::PyObject> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: attached, a live object.
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
    // SAFETY: see `this`; the calling convention of METH_FASTCALL | METH_KEYWORDS: `count` positional values,
    // then one for each of the names.
    unsafe {
        let py = Python::assume_attached();
        let named = if names.is_null() { 0 } else { ffi::PyTuple_GET_SIZE(names) };
        if count != 1 || named > 1 || !parts(object).wakeup.is_null() {
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
            let mut parts = parts(object);
            parts.wakeup = wakeup; // both are null, see above
            parts.context = context;
            parts.stage == Stage::Waiting
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
    // SAFETY: see `this`; the comparison may run Python code, so what is compared is held by a reference of
    // its own.
    unsafe {
        let py = Python::assume_attached();
        let Some(wakeup) = Bound::from_borrowed_ptr_or_opt(py, parts(object).wakeup) else {
            return ffi::PyLong_FromLong(0);
        };
        match ffi::PyObject_RichCompareBool(wakeup.as_ptr(), callback, ffi::Py_EQ) {
            1 => {
                let context = {
                    let mut parts = parts(object);
                    if parts.wakeup != wakeup.as_ptr() {
                        return ffi::PyLong_FromLong(0); // it was called meanwhile
                    }
                    parts.wakeup = ptr::null_mut();
                    mem::replace(&mut parts.context, ptr::null_mut())
                };
                ffi::Py_DECREF(wakeup.as_ptr()); // that of the waiter
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
    unsafe { new_bool(parts(object).blocking) }
}

unsafe extern "C" fn blocking_set(object: *mut ffi::PyObject, value: *mut ffi::PyObject, _: *mut c_void) -> c_int {
    // SAFETY: see `this`; a null value would be a deletion.
    unsafe {
        let truth = if value.is_null() { 0 } else { ffi::PyObject_IsTrue(value) };
        if truth < 0 {
            return -1;
        }
        parts(object).blocking = truth == 1;
    }
    0
}

unsafe extern "C" fn self_iter(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: a live object.
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

/// Makes the type.
pub(in crate::asyncio) fn init(py: Python<'_>) -> PyResult<()> {
    // Leaked: the type refers to them for ever.
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
    // SAFETY: attached; the specification is valid, its tables live for ever. The reference is kept for ever.
    unsafe {
        let kind = ffi::PyType_FromSpec(&raw mut spec);
        if kind.is_null() {
            return Err(PyErr::fetch(py));
        }
        TYPE.store(kind.cast(), Ordering::Relaxed);
    }
    Ok(())
}
