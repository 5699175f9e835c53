//! Message objects, with a hand-written type, because one is made for each received message.
//!
//! An iteration that keeps no message alternates between two objects: if only the iterator refers to an object, it is
//! refilled. Only messages with decoded objects are tracked by the garbage collector; sessions, text and bytes refer to
//! nothing, and tracking costs memory and time.

#![allow(unsafe_code)] // type slots

use std::ffi::{c_int, c_void};
use std::mem;
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::event::measure;
use super::session::PySession;
use crate::leaked::leak_static;

/// The type, with a reference, set by [`init`].
static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(ptr::null_mut());

#[repr(C)]
struct Message {
    base: ffi::PyObject,
    /// Owned references, never null.
    session: *mut ffi::PyObject,
    data: *mut ffi::PyObject,
    /// Whether the garbage collector tracks it; its memory then begins with the collector's header.
    collected: bool,
}

/// Returns whether the payload is exactly `bytes` or `str`, which refer to nothing.
#[inline]
fn is_plain(data: &Py<PyAny>) -> bool {
    // SAFETY: only the types of a live object are compared.
    unsafe { ffi::PyBytes_CheckExact(data.as_ptr()) != 0 || ffi::PyUnicode_CheckExact(data.as_ptr()) != 0 }
}

/// Makes a message of a session.
pub(super) fn new(py: Python<'_>, session: Py<PySession>, data: Py<PyAny>) -> PyResult<Py<PyAny>> {
    let collected = !is_plain(&data);
    // SAFETY: attached. The type exists since the module was initialized, and its objects have no dict and no weak
    // references. The allocation is a `Message`, with the collector's header before it or, as `is_gc` returns, without.
    // Its fields are set before the collector or any other code sees it. Each field takes over a reference.
    unsafe {
        let kind = TYPE.load(Ordering::Relaxed);
        let object = if collected { ffi::PyObject_GC_New::<Message>(kind) } else { ffi::PyObject_New::<Message>(kind) };
        if object.is_null() {
            return Err(PyErr::fetch(py));
        }
        (*object).session = session.into_ptr();
        (*object).data = data.into_ptr();
        (*object).collected = collected;
        if collected {
            ffi::PyObject_GC_Track(object.cast());
        }
        Ok(Bound::from_owned_ptr(py, object.cast()).unbind())
    }
}

/// Two messages that are used alternately: a loop still holds one when it gets the next.
#[derive(Default)]
pub(super) struct ReusedMessages {
    objects: [Option<Py<PyAny>>; 2],
    next: usize,
}

impl ReusedMessages {
    /// Returns a message: a refilled object, if only this iterator refers to it, or else a new one.
    #[inline]
    pub(super) fn message(&mut self, py: Python<'_>, session: Py<PySession>, data: Py<PyAny>) -> PyResult<Py<PyAny>> {
        #[allow(clippy::indexing_slicing, reason = "it is 0 or 1")]
        let ours = &mut self.objects[self.next];
        self.next ^= 1;
        let (session, data) = match ours {
            Some(object) => match refill(py, object, session, data) {
                Ok(before) => {
                    let object = object.clone_ref(py);
                    drop(before); // last, as it may run code of the application, which must find a complete message
                    return Ok(object);
                }
                Err(new) => new,
            },
            None => (session, data),
        };
        let object = new(py, session, data)?;
        *ours = Some(object.clone_ref(py));
        Ok(object)
    }

    /// Releases both objects.
    pub(super) fn forget(&mut self) {
        self.objects = [None, None];
    }

    /// Visits the references for the garbage collector.
    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.objects.iter().try_for_each(|object| visit.call(object))
    }
}

/// The contents of a message: its session and its payload.
type Contents = (Py<PySession>, Py<PyAny>);

/// Replaces the contents of an object, unless anything else refers to it. Returns the previous contents, or else the
/// new ones as the error.
#[cfg(not(Py_GIL_DISABLED))]
#[inline]
fn refill(py: Python<'_>, object: &Py<PyAny>, session: Py<PySession>, data: Py<PyAny>) -> Result<Contents, Contents> {
    // SAFETY: the interpreter's lock is held and the reference count is 1, so the only reference is ours, and no other
    // code can reach the object meanwhile. Borrowed references on the stack of CPython 3.14 are safe as well: a
    // variable that owns the object outlives them. The fields own their references, so their previous values become
    // ours; the first is a session, see `new`.
    unsafe {
        if ffi::Py_REFCNT(object.as_ptr()) != 1 {
            return Err((session, data));
        }
        let message = object.as_ptr().cast::<Message>();
        if !(*message).collected && !is_plain(&data) {
            return Err((session, data));
        }
        let session = mem::replace(&mut (*message).session, session.into_ptr());
        let data = mem::replace(&mut (*message).data, data.into_ptr());
        let session = Bound::from_owned_ptr(py, session).cast_into_unchecked::<PySession>();
        Ok((session.unbind(), Bound::from_owned_ptr(py, data).unbind()))
    }
}

/// Without the interpreter's lock, other references cannot be ruled out.
#[cfg(Py_GIL_DISABLED)]
fn refill(_: Python<'_>, _: &Py<PyAny>, session: Py<PySession>, data: Py<PyAny>) -> Result<Contents, Contents> {
    Err((session, data))
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this once, with an object of this type without references; an object of a heap type
    // holds a reference to its type, and the type cannot be subclassed.
    unsafe {
        let kind = ffi::Py_TYPE(object);
        let message = object.cast::<Message>();
        let collected = (*message).collected;
        if collected {
            ffi::PyObject_GC_UnTrack(object.cast());
        }
        ffi::Py_DECREF((*message).session);
        ffi::Py_DECREF((*message).data);
        if collected {
            ffi::PyObject_GC_Del(object.cast());
        } else {
            ffi::PyObject_Free(object.cast());
        }
        ffi::Py_DECREF(kind.cast());
    }
}

unsafe extern "C" fn is_gc(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: the interpreter calls this with a live object of this type.
    unsafe { c_int::from((*object.cast::<Message>()).collected) }
}

unsafe extern "C" fn traverse(object: *mut ffi::PyObject, visit: ffi::visitproc, arg: *mut c_void) -> c_int {
    // SAFETY: the collector calls this with a live object of this type, and its own function and argument.
    unsafe {
        let message = object.cast::<Message>();
        for reference in [ffi::Py_TYPE(object).cast(), (*message).session, (*message).data] {
            let result = visit(reference, arg);
            if result != 0 {
                return result;
            }
        }
    }
    0
}

unsafe extern "C" fn clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: the collector calls this, attached, with a live object of this type, whose field owns its reference; None
    // is immortal.
    unsafe {
        ffi::Py_INCREF(ffi::Py_None());
        ffi::Py_DECREF(mem::replace(&mut (*object.cast::<Message>()).data, ffi::Py_None()));
    }
    0
}

unsafe extern "C" fn repr(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls this, attached, with a live object of this type.
    let (py, session, data) = unsafe {
        let py = Python::assume_attached();
        let message = object.cast::<Message>();
        let session = Bound::from_borrowed_ptr(py, (*message).session);
        (py, session, Bound::from_borrowed_ptr(py, (*message).data))
    };
    let described = catch_unwind(AssertUnwindSafe(|| {
        let session = session.cast::<PySession>()?.get().describe(py);
        Ok(format!("Message({session}, {})", measure(&data)?))
    }));
    let panicked = |_| Err(PyRuntimeError::new_err("internal error: a panic, see standard error"));
    match described.unwrap_or_else(panicked).and_then(|text: String| text.into_pyobject(py).map_err(PyErr::from)) {
        Ok(text) => text.into_ptr(),
        Err(error) => {
            error.restore(py);
            ptr::null_mut()
        }
    }
}

/// Makes the type, and adds it to the module.
pub(crate) fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
    const NOTHING: ffi::PyMemberDef =
        ffi::PyMemberDef { name: ptr::null(), type_code: 0, offset: 0, flags: 0, doc: ptr::null() };
    let member = |name: &'static std::ffi::CStr, offset: usize| ffi::PyMemberDef {
        name: name.as_ptr(),
        type_code: ffi::Py_T_OBJECT_EX,
        offset: offset.cast_signed(),
        flags: ffi::Py_READONLY,
        doc: ptr::null(),
    };
    // Never freed: before CPython 3.11, a type refers to its member definitions.
    let members = leak_static([
        member(c"session", offset_of!(Message, session)),
        member(c"data", offset_of!(Message, data)),
        NOTHING,
    ]);
    let slot = |slot, pfunc: *mut c_void| ffi::PyType_Slot { slot, pfunc };
    let mut slots = [
        slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
        slot(ffi::Py_tp_is_gc, is_gc as *mut c_void),
        slot(ffi::Py_tp_traverse, traverse as *mut c_void),
        slot(ffi::Py_tp_clear, clear as *mut c_void),
        slot(ffi::Py_tp_repr, repr as *mut c_void),
        slot(ffi::Py_tp_members, members.as_mut_ptr().cast()),
        slot(ffi::Py_tp_doc, c"A session received a message.".as_ptr().cast_mut().cast()),
        slot(0, ptr::null_mut()),
    ];
    let flags = ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_GC | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION;
    let mut spec = ffi::PyType_Spec {
        name: c"wirespeed.engine.Message".as_ptr(),
        basicsize: i32::try_from(size_of::<Message>())?,
        itemsize: 0,
        flags: u32::try_from(flags)?,
        slots: slots.as_mut_ptr(),
    };
    let py = module.py();
    // SAFETY: attached. The slots end with a zero, the members with one without a name, and their pointers fit their
    // kinds. The result is a type, or null with an exception. The static keeps a reference of its own.
    let kind = unsafe {
        let kind = Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&raw mut spec))?;
        TYPE.store(kind.clone().into_ptr().cast(), Ordering::Relaxed);
        kind
    };
    kind.setattr("__match_args__", ("session", "data"))?;
    module.add("Message", kind)
}
