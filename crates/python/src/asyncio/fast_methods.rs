//! `recv` and `send` as methods with CPython's fast calling convention.

#![allow(unsafe_code)] // raw methods: PyO3's trampoline would take as long as the methods themselves

use std::ptr;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::connection::AsyncConnection;
use super::operation::{Operation, OperationKind};
use super::raw::c;
use crate::leaked::leak_static;

/// Runs a raw method. A panic becomes an exception.
///
/// # Safety
///
/// `object` is a live connection, and the thread is attached.
#[inline]
unsafe fn enter(
    object: *mut ffi::PyObject,
    body: impl FnOnce(&Bound<'_, AsyncConnection>) -> PyResult<*mut ffi::PyObject>,
) -> *mut ffi::PyObject {
    // SAFETY: the descriptor has checked the type of its object, and the interpreter calls methods attached.
    unsafe {
        let py = Python::assume_attached();
        let this = Bound::from_borrowed_ptr(py, object).cast_into_unchecked::<AsyncConnection>();
        AsyncConnection::contain(&this, || body(&this)).unwrap_or_else(|error| {
            error.restore(py);
            ptr::null_mut()
        })
    }
}

/// Positional and keyword arguments of a raw method.
struct Arguments<'a> {
    method: &'static str,
    values: &'a [*mut ffi::PyObject],
    positional: usize,
    names: *mut ffi::PyObject,
}

impl<'a> Arguments<'a> {
    /// # Safety
    ///
    /// `values` are `count` positional values, then one value for each name, as CPython passes them.
    unsafe fn new(
        method: &'static str,
        values: *const *mut ffi::PyObject,
        count: ffi::Py_ssize_t,
        names: *mut ffi::PyObject,
    ) -> Self {
        // SAFETY: the calling convention: `count` positional values, then one value for each name.
        unsafe {
            let named = if names.is_null() { 0 } else { ffi::PyTuple_GET_SIZE(names) };
            let total = (count + named) as usize;
            let values = if total == 0 { &[] } else { std::slice::from_raw_parts(values, total) };
            Self { method, values, positional: count as usize, names }
        }
    }

    /// Fills `places` with borrowed references, in the order of `names`. The first `positional` arguments may
    /// be passed without a name.
    fn bind(
        &self,
        py: Python<'_>,
        names: &[&str],
        positional: usize,
        places: &mut [*mut ffi::PyObject],
    ) -> PyResult<()> {
        let method = self.method;
        if self.positional > positional {
            return Err(PyTypeError::new_err(format!(
                "{method}() takes {positional} positional arguments at most, {} were given",
                self.positional
            )));
        }
        let (unnamed, named) = self.values.split_at_checked(self.positional).unwrap_or((self.values, &[]));
        for (place, value) in places.iter_mut().zip(unnamed) {
            *place = *value;
        }
        if self.names.is_null() {
            return Ok(());
        }
        // SAFETY: this is the tuple of names that the interpreter passes.
        let called = unsafe { Bound::from_borrowed_ptr(py, self.names).cast_into_unchecked::<PyTuple>() };
        for (name, &value) in called.iter().zip(named) {
            let name: String = name.extract()?;
            let place = names.iter().position(|known| *known == name).and_then(|index| places.get_mut(index));
            let Some(place) = place else {
                return Err(PyTypeError::new_err(format!("{method}() got an unexpected keyword argument '{name}'")));
            };
            if !place.is_null() {
                return Err(PyTypeError::new_err(format!("{method}() got multiple values for argument '{name}'")));
            }
            *place = value;
        }
        Ok(())
    }
}

/// Converts an argument that is a bool, None, or missing.
///
/// # Safety
///
/// `place` is null or a live object.
unsafe fn option(py: Python<'_>, place: *mut ffi::PyObject) -> PyResult<Option<bool>> {
    // SAFETY: `place` is null or a borrowed reference.
    match unsafe { Bound::from_borrowed_ptr_or_opt(py, place) } {
        None => Ok(None),
        Some(object) if object.is_none() => Ok(None),
        Some(object) => object.extract::<bool>().map(Some),
    }
}

unsafe extern "C" fn recv(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the calling convention of METH_FASTCALL | METH_KEYWORDS.
    unsafe {
        if count == 0 && names.is_null() {
            let py = Python::assume_attached();
            let this = Bound::from_borrowed_ptr(py, object).cast_into_unchecked::<AsyncConnection>();
            return Operation::create(&this, OperationKind::Receive, None);
        }
        enter(object, |this| {
            let mut places = [ptr::null_mut(); 1];
            Arguments::new("recv", values, count, names).bind(this.py(), &["decode"], 1, &mut places)?;
            Ok(Operation::create(this, OperationKind::Receive, option(this.py(), places[0])?))
        })
    }
}

unsafe extern "C" fn send(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: the calling convention of METH_FASTCALL | METH_KEYWORDS.
    unsafe {
        enter(object, |this| {
            let py = this.py();
            if count == 1 && names.is_null() {
                let message = Bound::from_borrowed_ptr(py, *values);
                return AsyncConnection::send(this, &message, None, None);
            }
            let mut places = [ptr::null_mut(); 3];
            let arguments = Arguments::new("send", values, count, names);
            arguments.bind(py, &["message", "text", "compress"], 1, &mut places)?;
            if places[0].is_null() {
                return Err(PyTypeError::new_err("send() is missing its argument 'message'"));
            }
            let message = Bound::from_borrowed_ptr(py, places[0]);
            AsyncConnection::send(this, &message, option(py, places[1])?, option(py, places[2])?)
        })
    }
}

/// `am_anext`: returns the awaitable of `async for`.
unsafe extern "C" fn anext(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls the slot attached, with an object of this type.
    unsafe {
        let py = Python::assume_attached();
        let this = Bound::from_borrowed_ptr(py, object).cast_into_unchecked::<AsyncConnection>();
        Operation::create(&this, OperationKind::Next, None)
    }
}

/// Adds the raw methods to the class.
pub(super) fn init(py: Python<'_>) -> PyResult<()> {
    let kind = py.get_type::<AsyncConnection>();
    let method = |name, function: ffi::PyCFunctionFastWithKeywords, doc| {
        // Leaked, because the descriptor refers to it until the process ends.
        leak_static(ffi::PyMethodDef {
            ml_name: name,
            ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: function },
            ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
            ml_doc: doc,
        })
    };
    let methods = [
        ("recv", method(c!("recv"), recv, c!("recv($self, /, decode=None)\n--\n\nReceives the next message."))),
        (
            "send",
            method(
                c!("send"),
                send,
                c!(
                    "send($self, /, message, *, text=None, compress=None)\n--\n\nSends a message, or the items of an iterable as its fragments."
                ),
            ),
        ),
    ];
    // SAFETY: attached. A heap type has this table. Derived classes, of which none exist yet, inherit the slot.
    // `__anext__` stays as it is.
    unsafe {
        let table = (*kind.as_type_ptr()).tp_as_async;
        if !table.is_null() {
            (*table).am_anext = Some(anext);
        }
    }
    for (name, definition) in methods {
        // SAFETY: attached, and the definition is never freed. The result is a new reference, or null with an
        // exception set.
        let descriptor = unsafe {
            let descriptor = ffi::PyDescr_NewMethod(kind.as_type_ptr(), definition);
            Bound::from_owned_ptr_or_err(py, descriptor)?
        };
        kind.setattr(name, descriptor)?;
    }
    Ok(())
}
