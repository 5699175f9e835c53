//! What `recv()` and `send()` return: an object that asyncio takes for a coroutine.
//!
//! If what it is for is possible at once, `await` completes inside `am_send`: no future, no StopIteration, no
//! turn of the loop. Otherwise it yields a [`Waiter`](super::waiter) and tries again when it is resumed.

//!
//! One step is made at a time: [`Operation::enter`] makes whoever comes meanwhile, from inside the step or
//! from another thread, fail. So the cells of an operation belong to the thread that is in the step; nobody
//! holds a `&mut` to one. The operation that is done, which all share, is never written to.

#![allow(unsafe_code)] // type slots

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use wirespeed_driver::protocol::failpoint;

use super::connection::AsyncConnection;
use super::kind::method_name;
pub(super) use super::kind::{Kind, delivery};
use super::raw::{self, FreeList, c};
use super::waiter::WaiterRef;
use crate::errors;
use crate::leaked::leak_static;

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Fresh,
    Suspended,
    Finished,
}

/// What the next step of an operation is.
pub(super) enum Step {
    /// It is done: a new reference to its value.
    Ready(*mut ffi::PyObject),
    /// The task waits on this.
    Wait(WaiterRef),
    /// The task has the loop's next turn.
    Yield,
}

#[repr(C)]
pub(super) struct Operation {
    ob_base: ffi::PyObject,
    /// A step is being made.
    running: AtomicBool,
    connection: Cell<*mut ffi::PyObject>,
    /// Of [`Kind::Send`]: the message; of [`Kind::SendMany`]: the iterator.
    message: Cell<*mut ffi::PyObject>,
    waiter: Cell<Option<WaiterRef>>,
    kind: Cell<Kind>,
    stage: Cell<Stage>,
    /// Of a sender that had to wait: its place among those that do, 0 before.
    ticket: Cell<u64>,
    /// As in `recv(decode=...)`; of [`Kind::Send`], `text`.
    pub(super) option: Option<bool>,
    pub(super) compress: Option<bool>,
    pub(super) limit: usize,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(ptr::null_mut());
static DONE: AtomicPtr<ffi::PyObject> = AtomicPtr::new(ptr::null_mut());
static FREE: FreeList = FreeList::new();

impl Operation {
    /// A new reference to an operation on `connection`.
    #[inline]
    pub(super) fn create(
        connection: &Bound<'_, AsyncConnection>,
        kind: Kind,
        option: Option<bool>,
    ) -> *mut ffi::PyObject {
        Self::create_raw(connection.as_ptr(), kind, option, None, 0, ptr::null_mut())
    }

    /// As [`Self::create`]; `limit` of [`Kind::ReceiveMany`].
    pub(super) fn create_many(
        connection: &Bound<'_, AsyncConnection>,
        option: Option<bool>,
        limit: usize,
    ) -> *mut ffi::PyObject {
        Self::create_raw(connection.as_ptr(), Kind::ReceiveMany, option, None, limit, ptr::null_mut())
    }

    /// As [`Self::create`]; a message that waits for room.
    pub(super) fn create_send(
        connection: &Bound<'_, AsyncConnection>,
        message: &Bound<'_, PyAny>,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> *mut ffi::PyObject {
        Self::create_raw(connection.as_ptr(), Kind::Send, text, compress, 0, message.as_ptr())
    }

    /// As [`Self::create`]; messages from an iterator.
    pub(super) fn create_send_many(
        connection: &Bound<'_, AsyncConnection>,
        iterator: &Bound<'_, PyAny>,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> *mut ffi::PyObject {
        Self::create_raw(connection.as_ptr(), Kind::SendMany, text, compress, 0, iterator.as_ptr())
    }

    #[inline]
    fn create_raw(
        connection: *mut ffi::PyObject,
        kind: Kind,
        option: Option<bool>,
        compress: Option<bool>,
        limit: usize,
        message: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject {
        // SAFETY: attached, as all callers are bound to the interpreter; the type was made by `init`. Every
        // field is written before the object is known to anybody. Null means that an exception is set, and is
        // passed on.
        unsafe {
            let object = FREE.take(TYPE.load(Ordering::Relaxed));
            if object.is_null() {
                return object;
            }
            ffi::Py_XINCREF(connection);
            ffi::Py_XINCREF(message);
            let operation = object.cast::<Self>();
            (&raw mut (*operation).running).write(AtomicBool::new(false));
            (&raw mut (*operation).connection).write(Cell::new(connection));
            (&raw mut (*operation).message).write(Cell::new(message));
            (&raw mut (*operation).waiter).write(Cell::new(None));
            (&raw mut (*operation).kind).write(Cell::new(kind));
            (&raw mut (*operation).stage).write(Cell::new(Stage::Fresh));
            (&raw mut (*operation).ticket).write(Cell::new(0));
            (&raw mut (*operation).option).write(option);
            (&raw mut (*operation).compress).write(compress);
            (&raw mut (*operation).limit).write(limit);
            ffi::PyObject_GC_Track(object.cast());
            object
        }
    }

    /// A new reference to the operation that is done: one object serves all.
    #[inline]
    pub(super) fn done() -> *mut ffi::PyObject {
        let object = DONE.load(Ordering::Relaxed);
        // SAFETY: made by `init`, and never freed.
        unsafe { ffi::Py_INCREF(object) };
        object
    }

    /// The message, or the iterator.
    pub(super) fn message<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        // SAFETY: attached; the field is null or owns its reference.
        unsafe { Bound::from_borrowed_ptr_or_opt(py, self.message.get()) }
    }

    /// What it is for, as far as it has come.
    #[inline]
    pub(super) fn kind(&self) -> Kind {
        self.kind.get()
    }

    /// Whether this is its first step.
    pub(super) fn is_fresh(&self) -> bool {
        self.stage.get() == Stage::Fresh
    }

    /// It is for something else from now on.
    pub(super) fn become_kind(&self, kind: Kind) {
        self.kind.set(kind);
    }

    /// Its place among the senders that wait, which it keeps until it has sent: `next` if it has none.
    pub(super) fn keep_ticket(&self, next: impl FnOnce() -> u64) -> u64 {
        if self.ticket.get() == 0 {
            self.ticket.set(next());
        }
        self.ticket.get()
    }

    /// It has sent: if it must wait again, it is behind the others.
    pub(super) fn drop_ticket(&self) {
        self.ticket.set(0);
    }

    /// What it has waited on, out of it.
    #[inline]
    pub(super) fn take_waiter(&self) -> Option<WaiterRef> {
        self.waiter.take()
    }

    /// Begins a step; `None`, with an exception: one is being made. Not for the operation that is done.
    #[inline]
    fn enter(&self, py: Python<'_>) -> Option<Running<'_>> {
        // Where the interpreter has its lock nobody comes between these two lines.
        #[cfg(not(Py_GIL_DISABLED))]
        let running = {
            let running = self.running.load(Ordering::Relaxed);
            self.running.store(true, Ordering::Relaxed);
            running
        };
        #[cfg(Py_GIL_DISABLED)]
        let running = self.running.swap(true, Ordering::Acquire);
        if running {
            PyRuntimeError::new_err("this is executing already").restore(py);
            return None;
        }
        Some(Running(self))
    }
}

/// A step that is being made, until it is dropped.
struct Running<'a>(&'a Operation);

impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}

/// # Safety
///
/// `object` is a live operation, for as long as the reference is used.
#[inline]
unsafe fn this<'a>(object: *mut ffi::PyObject) -> &'a Operation {
    // SAFETY: slots and methods of this type are called with objects of this type; everything that changes is
    // in cells.
    unsafe { &*object.cast::<Operation>() }
}

/// # Safety
///
/// Its connection is null or a live connection.
unsafe fn connection<'py>(py: Python<'py>, operation: &Operation) -> Option<Bound<'py, AsyncConnection>> {
    // SAFETY: attached; the field is null, after the collector has cleared it, or owns a reference to a
    // connection.
    unsafe {
        Bound::from_borrowed_ptr_or_opt(py, operation.connection.get()).map(|object| object.cast_into_unchecked())
    }
}

/// The next step, or the error it ends with.
#[inline]
fn advance(py: Python<'_>, operation: &Operation) -> PyResult<Step> {
    failpoint::hit("python.step");
    match (operation.kind.get(), operation.stage.get()) {
        (Kind::Yield, Stage::Suspended) => return Ok(Step::Ready(none())),
        (_, Stage::Finished) => return Err(PyRuntimeError::new_err("this was awaited already")),
        _ => {}
    }
    // SAFETY: see `connection`.
    let Some(connection) = (unsafe { connection(py, operation) }) else {
        return Err(PyRuntimeError::new_err("the connection is gone"));
    };
    connection.get().step(&connection, operation)
}

/// A step has panicked: its connection is over.
#[cold]
fn fail_after_panic(py: Python<'_>, operation: &Operation) -> PyErr {
    // SAFETY: see `connection`.
    match unsafe { connection(py, operation) } {
        Some(connection) => AsyncConnection::fail_after_panic(&connection),
        None => errors::panicked(),
    }
}

/// A new reference to None.
#[inline]
pub(super) fn none() -> *mut ffi::PyObject {
    // SAFETY: None lives for ever.
    unsafe {
        ffi::Py_INCREF(ffi::Py_None());
        ffi::Py_None()
    }
}

/// `am_send`.
unsafe extern "C" fn am_send(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    // SAFETY: the interpreter calls this slot attached, with an object of this type and a place for the
    // result.
    unsafe {
        let py = Python::assume_attached();
        let operation = this(object);
        *result = ptr::null_mut();
        if operation.kind.get() == Kind::Done {
            *result = none();
            return ffi::PySendResult::PYGEN_RETURN;
        }
        let Some(_running) = operation.enter(py) else { return ffi::PySendResult::PYGEN_ERROR };
        let step = catch_unwind(AssertUnwindSafe(|| advance(py, operation)))
            .unwrap_or_else(|_| Err(fail_after_panic(py, operation)));
        match step {
            Ok(Step::Ready(value)) => {
                operation.stage.set(Stage::Finished);
                drop(operation.waiter.take());
                *result = value;
                ffi::PySendResult::PYGEN_RETURN
            }
            Ok(Step::Wait(waiter)) => {
                operation.stage.set(Stage::Suspended);
                *result = waiter.yield_again(py);
                operation.waiter.set(Some(waiter));
                ffi::PySendResult::PYGEN_NEXT
            }
            Ok(Step::Yield) => {
                operation.stage.set(Stage::Suspended);
                *result = none();
                ffi::PySendResult::PYGEN_NEXT
            }
            Err(error) => {
                operation.stage.set(Stage::Finished);
                drop(operation.waiter.take());
                error.restore(py);
                ffi::PySendResult::PYGEN_ERROR
            }
        }
    }
}

/// The same as generators have it, for whoever does not know `am_send`: `await` itself, in CPython 3.12 to
/// 3.14.
unsafe extern "C" fn iternext(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: as `am_send`.
    unsafe {
        if this(object).kind.get() == Kind::Done {
            return ptr::null_mut(); // without an exception: the value is None
        }
        let mut value = ptr::null_mut();
        if am_send(object, ptr::null_mut(), &raw mut value) == ffi::PySendResult::PYGEN_RETURN {
            raw::stop_iteration(value);
            return ptr::null_mut();
        }
        value
    }
}

unsafe extern "C" fn send(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: as `iternext`.
    unsafe {
        let value = iternext(object);
        // Of a method, a value that is missing needs an exception.
        if value.is_null() && ffi::PyErr_Occurred().is_null() {
            ffi::PyErr_SetNone(ffi::PyExc_StopIteration);
        }
        value
    }
}

/// Nothing more is wanted of it: what it was given goes back.
fn abandon(py: Python<'_>, operation: &Operation) {
    let suspended = operation.stage.replace(Stage::Finished) == Stage::Suspended;
    let kind = operation.kind.get();
    let waiter = operation.waiter.take();
    let gave_turn = suspended && waiter.is_none() && kind.receives();
    if waiter.is_none() && !gave_turn {
        return;
    }
    // SAFETY: see `connection`.
    if let Some(connection) = unsafe { connection(py, operation) } {
        let abandoned = AsyncConnection::contain(&connection, || {
            match &waiter {
                Some(waiter) => connection.get().abandon(&connection, waiter, kind),
                None => connection.get().abandon_turn(&connection),
            }
            Ok(())
        });
        if let Err(error) = abandoned {
            error.write_unraisable(py, Some(connection.as_any()));
        }
    }
}

/// The same from outside; false, with an exception: a step is being made.
fn abandon_from_outside(py: Python<'_>, operation: &Operation) -> bool {
    if operation.kind.get() == Kind::Done {
        return true;
    }
    let Some(_running) = operation.enter(py) else { return false };
    abandon(py, operation);
    true
}

/// Cancellation, and other exceptions thrown in.
unsafe extern "C" fn throw(object: *mut ffi::PyObject, arguments: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: as `send`; a tuple of one to three, as generators take them.
    unsafe {
        let py = Python::assume_attached();
        if !abandon_from_outside(py, this(object)) {
            return ptr::null_mut();
        }
        let kind = ffi::PyTuple_GetItem(arguments, 0);
        if kind.is_null() {
            return ptr::null_mut();
        }
        if ffi::PyExceptionInstance_Check(kind) != 0 {
            ffi::PyErr_SetObject(ffi::Py_TYPE(kind).cast(), kind);
        } else if ffi::PyExceptionClass_Check(kind) != 0 {
            let value =
                if ffi::PyTuple_Size(arguments) > 1 { ffi::PyTuple_GetItem(arguments, 1) } else { ptr::null_mut() };
            if !value.is_null() && ffi::PyExceptionInstance_Check(value) != 0 {
                ffi::PyErr_SetObject(ffi::Py_TYPE(value).cast(), value);
            } else {
                ffi::PyErr_SetObject(kind, value);
            }
        } else {
            PyTypeError::new_err("exceptions must be classes or instances deriving from BaseException").restore(py);
        }
        ptr::null_mut()
    }
}

unsafe extern "C" fn close(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: as `send`.
    unsafe {
        if !abandon_from_outside(Python::assume_attached(), this(object)) {
            return ptr::null_mut();
        }
        none()
    }
}

unsafe extern "C" fn self_new_reference(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: a live object.
    unsafe { ffi::Py_INCREF(object) };
    object
}

/// `__name__` and `__qualname__`, for the `repr` of tasks.
unsafe extern "C" fn name(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: see `this`.
    unsafe { ffi::PyUnicode_FromString(method_name(this(object).kind.get())) }
}

unsafe extern "C" fn traverse(object: *mut ffi::PyObject, visit: ffi::visitproc, arg: *mut c_void) -> c_int {
    // SAFETY: the collector calls this with an object of this type.
    unsafe {
        let operation = this(object);
        for reference in [ffi::Py_TYPE(object).cast(), operation.connection.get(), operation.message.get()] {
            let result = raw::visit(reference, visit, arg);
            if result != 0 {
                return result;
            }
        }
        // A look, without taking it out: the collector runs between two lines of whoever is in a step, or
        // while all threads stand still.
        let waiter = &*operation.waiter.as_ptr();
        waiter.as_ref().map_or(0, |waiter| waiter.traverse(visit, arg))
    }
}

unsafe extern "C" fn tp_clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: the collector, or `dealloc`, calls this with an object of this type, whose fields own their
    // references.
    unsafe {
        let operation = this(object);
        abandon(Python::assume_attached(), operation);
        raw::clear(&operation.connection);
        raw::clear(&operation.message);
    }
    0
}

/// # Safety
///
/// The thread is attached.
#[cold]
unsafe fn warn_never_awaited(operation: &Operation) {
    // SAFETY: attached; an exception on its way is kept. `dealloc` cannot raise.
    unsafe {
        let py = Python::assume_attached();
        let pending = PyErr::take(py);
        let format = c!("'%s' was never awaited");
        if ffi::PyErr_WarnFormat(ffi::PyExc_RuntimeWarning, 1, format, method_name(operation.kind.get())) < 0 {
            ffi::PyErr_WriteUnraisable(operation.connection.get());
        }
        if let Some(pending) = pending {
            pending.restore(py);
        }
    }
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this once, with an object of this type that nobody references.
    unsafe {
        let kind = ffi::Py_TYPE(object);
        ffi::PyObject_GC_UnTrack(object.cast());
        let operation = this(object);
        if operation.stage.get() == Stage::Fresh
            && !matches!(operation.kind.get(), Kind::Yield | Kind::Drain | Kind::Room | Kind::Done)
        {
            warn_never_awaited(operation);
        }
        tp_clear(object);
        FREE.give(object);
        ffi::Py_DECREF(kind.cast()); // an object of a heap type holds a reference to it
    }
}

/// Makes the type, and the operation that is done.
pub(super) fn init(py: Python<'_>) -> PyResult<()> {
    let method = |name, function, flags| ffi::PyMethodDef {
        ml_name: name,
        ml_meth: ffi::PyMethodDefPointer { PyCFunction: function },
        ml_flags: flags,
        ml_doc: ptr::null(),
    };
    // Leaked: the type refers to them for ever.
    let methods = leak_static([
        method(c!("send"), send as ffi::PyCFunction, ffi::METH_O),
        method(c!("throw"), throw as ffi::PyCFunction, ffi::METH_VARARGS),
        method(c!("close"), close as ffi::PyCFunction, ffi::METH_NOARGS),
        ffi::PyMethodDef::zeroed(),
    ]);
    let attribute =
        |text| ffi::PyGetSetDef { name: text, get: Some(name), set: None, doc: ptr::null(), closure: ptr::null_mut() };
    let attributes =
        leak_static([attribute(c!("__name__")), attribute(c!("__qualname__")), ffi::PyGetSetDef::default()]);
    let slot = |slot, pfunc: *mut c_void| ffi::PyType_Slot { slot, pfunc };
    let mut slots = [
        slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
        slot(ffi::Py_tp_traverse, traverse as *mut c_void),
        slot(ffi::Py_tp_clear, tp_clear as *mut c_void),
        slot(ffi::Py_tp_methods, methods.as_mut_ptr().cast()),
        slot(ffi::Py_tp_getset, attributes.as_mut_ptr().cast()),
        slot(ffi::Py_tp_iter, self_new_reference as *mut c_void),
        slot(ffi::Py_tp_iternext, iternext as *mut c_void),
        slot(ffi::Py_am_await, self_new_reference as *mut c_void),
        slot(ffi::Py_am_send, am_send as *mut c_void),
        slot(0, ptr::null_mut()),
    ];
    let mut spec = ffi::PyType_Spec {
        name: c!("wirespeed._native.Operation"),
        basicsize: size_of::<Operation>() as c_int,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_GC | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION)
            as std::ffi::c_uint,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: attached; the specification is valid, its tables live for ever. Both references are kept for
    // ever.
    unsafe {
        let kind = ffi::PyType_FromSpec(&raw mut spec);
        if kind.is_null() {
            return Err(PyErr::fetch(py));
        }
        TYPE.store(kind.cast(), Ordering::Relaxed);
        let done = Operation::create_raw(ptr::null_mut(), Kind::Done, None, None, 0, ptr::null_mut());
        if done.is_null() {
            return Err(PyErr::fetch(py));
        }
        DONE.store(done, Ordering::Relaxed);
    }
    Ok(())
}
