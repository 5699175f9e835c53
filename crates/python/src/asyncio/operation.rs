//! The awaitable that `recv()` and `send()` return: an object that asyncio takes for a coroutine.
//!
//! If the operation is possible immediately, `await` completes inside `am_send`, without a future, a
//! StopIteration, or a turn of the loop. Otherwise it yields a [`Waiter`](super::waiter), and tries again when
//! it is resumed.
//!
//! Only one step runs at a time: [`Operation::enter`] returns an error for calls from inside the step or from
//! another thread. So the cells of an operation belong to the thread that runs the step, and no `&mut` to an
//! operation exists. The completed operation, which all callers share, is never written to.

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
pub(super) use super::kind::{OperationKind, delivery};
use super::raw::{self, FreeList, c};
use super::waiter::WaiterRef;
use crate::errors;
use crate::leaked::leak_static;

/// The progress of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Fresh,
    Suspended,
    Finished,
}

/// The result of a step.
pub(super) enum Step {
    /// The operation is complete: a new reference to its value.
    Ready(*mut ffi::PyObject),
    /// The task waits for this waiter.
    Wait(WaiterRef),
    /// The task yields to the loop once.
    Yield,
}

#[repr(C)]
pub(super) struct Operation {
    ob_base: ffi::PyObject,
    /// Whether a step is running.
    running: AtomicBool,
    connection: Cell<*mut ffi::PyObject>,
    /// The message of [`OperationKind::Send`], or the iterator of [`OperationKind::SendMany`].
    message: Cell<*mut ffi::PyObject>,
    waiter: Cell<Option<WaiterRef>>,
    kind: Cell<OperationKind>,
    stage: Cell<Stage>,
    /// The place of a waiting sender in the send queue; 0 before it waits.
    ticket: Cell<u64>,
    /// The argument of `recv(decode=...)`, or for [`OperationKind::Send`] the argument `text`.
    pub(super) option: Option<bool>,
    pub(super) compress: Option<bool>,
    pub(super) limit: usize,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(ptr::null_mut());
static COMPLETED: AtomicPtr<ffi::PyObject> = AtomicPtr::new(ptr::null_mut());
static FREE: FreeList = FreeList::new();

impl Operation {
    /// Returns a new reference to an operation on `connection`.
    #[inline]
    pub(super) fn create(
        connection: &Bound<'_, AsyncConnection>,
        kind: OperationKind,
        option: Option<bool>,
    ) -> *mut ffi::PyObject {
        Self::create_raw(connection.as_ptr(), kind, option, None, 0, ptr::null_mut())
    }

    /// Creates an [`OperationKind::ReceiveMany`] operation with its `limit`.
    pub(super) fn create_many(
        connection: &Bound<'_, AsyncConnection>,
        option: Option<bool>,
        limit: usize,
    ) -> *mut ffi::PyObject {
        Self::create_raw(connection.as_ptr(), OperationKind::ReceiveMany, option, None, limit, ptr::null_mut())
    }

    /// Creates an operation for a message that waits for room in the send queue.
    pub(super) fn create_send(
        connection: &Bound<'_, AsyncConnection>,
        message: &Bound<'_, PyAny>,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> *mut ffi::PyObject {
        Self::create_raw(connection.as_ptr(), OperationKind::Send, text, compress, 0, message.as_ptr())
    }

    /// Creates an operation that sends the messages of an iterator.
    pub(super) fn create_send_many(
        connection: &Bound<'_, AsyncConnection>,
        iterator: &Bound<'_, PyAny>,
        text: Option<bool>,
        compress: Option<bool>,
    ) -> *mut ffi::PyObject {
        Self::create_raw(connection.as_ptr(), OperationKind::SendMany, text, compress, 0, iterator.as_ptr())
    }

    #[inline]
    fn create_raw(
        connection: *mut ffi::PyObject,
        kind: OperationKind,
        option: Option<bool>,
        compress: Option<bool>,
        limit: usize,
        message: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject {
        // SAFETY: attached, because all callers hold bound references. `init` has created the type. Every field
        // is written before any other code knows the object. Null means that an exception is set, and is
        // returned.
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

    /// Returns a new reference to the completed operation, which all callers share.
    #[inline]
    pub(super) fn done() -> *mut ffi::PyObject {
        let object = COMPLETED.load(Ordering::Relaxed);
        // SAFETY: created by `init`, and never freed.
        unsafe { ffi::Py_INCREF(object) };
        object
    }

    /// Returns the message or the iterator.
    pub(super) fn message<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        // SAFETY: attached. The field is null or owns its reference.
        unsafe { Bound::from_borrowed_ptr_or_opt(py, self.message.get()) }
    }

    /// Returns the current purpose, which may change between steps.
    #[inline]
    pub(super) fn kind(&self) -> OperationKind {
        self.kind.get()
    }

    /// Returns whether this is the first step.
    pub(super) fn is_fresh(&self) -> bool {
        self.stage.get() == Stage::Fresh
    }

    /// Changes the purpose of the next steps.
    pub(super) fn set_kind(&self, kind: OperationKind) {
        self.kind.set(kind);
    }

    /// Returns the operation's place among the waiting senders, which it keeps until it has sent. Takes `next`
    /// if it has none.
    pub(super) fn keep_ticket(&self, next: impl FnOnce() -> u64) -> u64 {
        if self.ticket.get() == 0 {
            self.ticket.set(next());
        }
        self.ticket.get()
    }

    /// Gives up the place after sending: if the operation waits again, it is behind the others.
    pub(super) fn drop_ticket(&self) {
        self.ticket.set(0);
    }

    /// Takes out the waiter that the operation has waited for.
    #[inline]
    pub(super) fn take_waiter(&self) -> Option<WaiterRef> {
        self.waiter.take()
    }

    /// Starts a step. `None`, with an exception set, if a step is running. Not for the completed operation.
    #[inline]
    fn enter(&self, py: Python<'_>) -> Option<Running<'_>> {
        // With the GIL, no other thread runs between these two lines.
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

/// A running step. It ends when this is dropped.
struct Running<'a>(&'a Operation);

impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}

/// Returns the operation behind an object pointer.
///
/// # Safety
///
/// `object` is a live operation for as long as the reference is used.
#[inline]
unsafe fn this<'a>(object: *mut ffi::PyObject) -> &'a Operation {
    // SAFETY: slots and methods of this type are called with objects of this type, and all fields that change
    // are cells.
    unsafe { &*object.cast::<Operation>() }
}

/// Returns the connection of an operation.
///
/// # Safety
///
/// The field is null or a live connection.
unsafe fn connection<'py>(py: Python<'py>, operation: &Operation) -> Option<Bound<'py, AsyncConnection>> {
    // SAFETY: attached. The field is null, after the garbage collector has cleared it, or owns a reference to a
    // connection.
    unsafe {
        Bound::from_borrowed_ptr_or_opt(py, operation.connection.get()).map(|object| object.cast_into_unchecked())
    }
}

/// Runs the next step. Returns the error that ends the operation.
#[inline]
fn advance(py: Python<'_>, operation: &Operation) -> PyResult<Step> {
    failpoint::hit("python.step");
    match (operation.kind.get(), operation.stage.get()) {
        (OperationKind::Yield, Stage::Suspended) => return Ok(Step::Ready(none())),
        (_, Stage::Finished) => return Err(PyRuntimeError::new_err("this was awaited already")),
        _ => {}
    }
    // SAFETY: see `connection`.
    let Some(connection) = (unsafe { connection(py, operation) }) else {
        return Err(PyRuntimeError::new_err("the connection is gone"));
    };
    connection.get().step(&connection, operation)
}

/// Closes the connection after a step has panicked.
#[cold]
fn fail_after_panic(py: Python<'_>, operation: &Operation) -> PyErr {
    // SAFETY: see `connection`.
    match unsafe { connection(py, operation) } {
        Some(connection) => AsyncConnection::fail_after_panic(&connection),
        None => errors::panicked(),
    }
}

/// Returns a new reference to None.
#[inline]
pub(super) fn none() -> *mut ffi::PyObject {
    // SAFETY: None is never freed.
    unsafe {
        ffi::Py_INCREF(ffi::Py_None());
        ffi::Py_None()
    }
}

/// The slot `am_send`.
unsafe extern "C" fn am_send(
    object: *mut ffi::PyObject,
    _: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    // SAFETY: the interpreter calls this slot attached, with an object of this type and valid memory for the
    // result.
    unsafe {
        let py = Python::assume_attached();
        let operation = this(object);
        *result = ptr::null_mut();
        if operation.kind.get() == OperationKind::Done {
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

/// The protocol of generators, for callers that do not use `am_send`, such as `await` itself in CPython 3.12 to
/// 3.14.
unsafe extern "C" fn iternext(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: as for `am_send`.
    unsafe {
        if this(object).kind.get() == OperationKind::Done {
            return ptr::null_mut(); // null without an exception means None
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
    // SAFETY: as for `iternext`.
    unsafe {
        let value = iternext(object);
        // A method must not return null without an exception.
        if value.is_null() && ffi::PyErr_Occurred().is_null() {
            ffi::PyErr_SetNone(ffi::PyExc_StopIteration);
        }
        value
    }
}

/// Ends an operation whose task does not continue. Messages assigned to it go to other tasks.
fn end(py: Python<'_>, operation: &Operation) {
    let suspended = operation.stage.replace(Stage::Finished) == Stage::Suspended;
    let kind = operation.kind.get();
    let waiter = operation.waiter.take();
    let yielded = suspended && waiter.is_none() && kind.receives();
    if waiter.is_none() && !yielded {
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

/// Ends an operation from outside a step. False, with an exception set, if a step is running.
fn end_from_outside(py: Python<'_>, operation: &Operation) -> bool {
    if operation.kind.get() == OperationKind::Done {
        return true;
    }
    let Some(_running) = operation.enter(py) else { return false };
    end(py, operation);
    true
}

/// Throws an exception into the operation, such as a cancellation.
unsafe extern "C" fn throw(object: *mut ffi::PyObject, arguments: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: as for `send`. `arguments` is a tuple of one to three objects, as for generators.
    unsafe {
        let py = Python::assume_attached();
        if !end_from_outside(py, this(object)) {
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
    // SAFETY: as for `send`.
    unsafe {
        if !end_from_outside(Python::assume_attached(), this(object)) {
            return ptr::null_mut();
        }
        none()
    }
}

unsafe extern "C" fn self_new_reference(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the object is alive.
    unsafe { ffi::Py_INCREF(object) };
    object
}

/// `__name__` and `__qualname__`, for the `repr` of tasks.
unsafe extern "C" fn name(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: see `this`.
    unsafe { ffi::PyUnicode_FromString(method_name(this(object).kind.get())) }
}

unsafe extern "C" fn traverse(object: *mut ffi::PyObject, visit: ffi::visitproc, arg: *mut c_void) -> c_int {
    // SAFETY: the garbage collector calls this with an object of this type.
    unsafe {
        let operation = this(object);
        for reference in [ffi::Py_TYPE(object).cast(), operation.connection.get(), operation.message.get()] {
            let result = raw::visit(reference, visit, arg);
            if result != 0 {
                return result;
            }
        }
        // Read without taking it out: the collector runs between two lines of the thread that runs the step, or
        // while all threads are stopped.
        let waiter = &*operation.waiter.as_ptr();
        waiter.as_ref().map_or(0, |waiter| waiter.traverse(visit, arg))
    }
}

unsafe extern "C" fn tp_clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: called by the garbage collector or `dealloc`, with an object of this type whose fields own their
    // references.
    unsafe {
        let operation = this(object);
        end(Python::assume_attached(), operation);
        raw::clear(&operation.connection);
        raw::clear(&operation.message);
    }
    0
}

/// Warns that an operation was never awaited.
///
/// # Safety
///
/// The thread is attached.
#[cold]
unsafe fn warn_never_awaited(operation: &Operation) {
    // SAFETY: attached. A pending exception is preserved, because `dealloc` cannot raise.
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
    // SAFETY: the interpreter calls this once, with an object of this type that has no references.
    unsafe {
        let kind = ffi::Py_TYPE(object);
        ffi::PyObject_GC_UnTrack(object.cast());
        let operation = this(object);
        if operation.stage.get() == Stage::Fresh
            && !matches!(
                operation.kind.get(),
                OperationKind::Yield | OperationKind::Drain | OperationKind::SendTurn | OperationKind::Done
            )
        {
            warn_never_awaited(operation);
        }
        tp_clear(object);
        FREE.put(object);
        ffi::Py_DECREF(kind.cast()); // an object of a heap type holds a reference to it
    }
}

/// Creates the type and the completed operation.
pub(super) fn init(py: Python<'_>) -> PyResult<()> {
    let method = |name, function, flags| ffi::PyMethodDef {
        ml_name: name,
        ml_meth: ffi::PyMethodDefPointer { PyCFunction: function },
        ml_flags: flags,
        ml_doc: ptr::null(),
    };
    // Leaked, because the type refers to them until the process ends.
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
    // SAFETY: attached. The specification is valid and its tables are never freed. Both references are kept
    // until the process ends.
    unsafe {
        let kind = ffi::PyType_FromSpec(&raw mut spec);
        if kind.is_null() {
            return Err(PyErr::fetch(py));
        }
        TYPE.store(kind.cast(), Ordering::Relaxed);
        let done = Operation::create_raw(ptr::null_mut(), OperationKind::Done, None, None, 0, ptr::null_mut());
        if done.is_null() {
            return Err(PyErr::fetch(py));
        }
        COMPLETED.store(done, Ordering::Relaxed);
    }
    Ok(())
}
