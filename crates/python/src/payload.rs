//! Creates Python objects from received bytes.
//!
//! A binary message is written once, directly into the `bytes` object that the application gets: from the read
//! buffer, or by the kernel if it is large. Text is decoded once, from the read buffer or from the buffer in
//! which it was assembled.

#![allow(unsafe_code)] // uninitialised bytes objects: PyO3 can only make initialised ones

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use wirespeed_driver::protocol::{MessageKind, OutOfMemory, Payload, PayloadBuffer};

/// Initial capacity for a message of unknown size.
const FIRST_ROOM: usize = 256;

unsafe extern "C" {
    /// In CPython's stable ABI since 3.2. pyo3-ffi does not declare it.
    fn _PyBytes_Resize(bytes: *mut *mut ffi::PyObject, newsize: ffi::Py_ssize_t) -> std::ffi::c_int;
}

/// The buffer in which a message is assembled.
pub(crate) enum PyPayload {
    /// The future bytes object.
    Binary(BytesBuilder),
    /// UTF-8, decoded once it is complete.
    Text(Vec<u8>),
}

/// A `bytes` object that only this builder refers to.
///
/// Every method except `room`, `as_slice` and `as_mut_slice` needs the GIL. They do not check this: the
/// connection's lock is taken only by threads that hold the GIL, and [`PayloadBuffer`] promises that other
/// threads call `room` only.
pub(crate) struct BytesBuilder {
    /// Invariant: null, or a bytes object with one reference, held here, and at least `len` initialised bytes.
    /// Never the shared empty object.
    object: *mut ffi::PyObject,
    len: usize,
}

// SAFETY: only the builder refers to the object, so moving the builder moves the only reference.
unsafe impl Send for BytesBuilder {}

impl BytesBuilder {
    fn new(capacity: usize) -> Result<Self, OutOfMemory> {
        let mut builder = Self { object: ptr::null_mut(), len: 0 };
        if capacity > 0 {
            builder.grow(capacity)?;
        }
        Ok(builder)
    }

    fn capacity(&self) -> usize {
        if self.object.is_null() {
            return 0;
        }
        // SAFETY: not null, so a live bytes object by the invariant. Its size is not negative.
        unsafe { ffi::Py_SIZE(self.object) as usize }
    }

    fn data(&self) -> *mut u8 {
        if self.object.is_null() {
            return NonNull::dangling().as_ptr();
        }
        // SAFETY: not null, so a live bytes object by the invariant.
        unsafe { ffi::PyBytes_AS_STRING(self.object).cast_mut().cast() }
    }

    fn grow(&mut self, capacity: usize) -> Result<(), OutOfMemory> {
        let size = ffi::Py_ssize_t::try_from(capacity).map_err(|_| OutOfMemory)?;
        // SAFETY: the GIL is held. A null source requests an object with uninitialised content. A resize needs
        // the only reference, which is held here. Both store null, with an exception set, if there is no
        // memory; the resize has then released the old object.
        unsafe {
            if self.object.is_null() {
                self.object = ffi::PyBytes_FromStringAndSize(ptr::null(), size);
            } else {
                _PyBytes_Resize(&raw mut self.object, size);
            }
            if self.object.is_null() {
                ffi::PyErr_Clear();
                self.len = 0;
                return Err(OutOfMemory);
            }
        }
        Ok(())
    }

    fn finish(mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.len == 0 {
            return Ok(pyo3::types::PyBytes::new(py, b"").into_any().unbind());
        }
        if self.len < self.capacity() {
            self.grow(self.len).map_err(|OutOfMemory| PyMemoryError::new_err("no memory for the message"))?;
        }
        let object = std::mem::replace(&mut self.object, ptr::null_mut());
        // SAFETY: a new reference to a bytes object, and all its bytes are initialised.
        Ok(unsafe { Bound::from_owned_ptr(py, object) }.unbind())
    }
}

impl Drop for BytesBuilder {
    fn drop(&mut self) {
        if !self.object.is_null() {
            let object = self.object;
            Python::attach(|_| {
                // SAFETY: attached, and this was the only reference.
                unsafe { ffi::Py_DECREF(object) };
            });
        }
    }
}

impl PayloadBuffer for PyPayload {
    fn with_capacity(kind: MessageKind, expected: usize) -> Result<Self, OutOfMemory> {
        match kind {
            MessageKind::Binary => BytesBuilder::new(expected).map(Self::Binary),
            MessageKind::Text => <Vec<u8> as PayloadBuffer>::with_capacity(kind, expected).map(Self::Text),
        }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            // SAFETY: by the invariant, `len` initialised bytes that no other code writes to. The pointer
            // dangles only if `len` is zero.
            Self::Binary(builder) => unsafe { std::slice::from_raw_parts(builder.data(), builder.len) },
            Self::Text(text) => text,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            // SAFETY: as above, and no other code reads them: Python does not know the object yet.
            Self::Binary(builder) => unsafe { std::slice::from_raw_parts_mut(builder.data(), builder.len) },
            Self::Text(text) => text,
        }
    }

    fn spare(&mut self, additional: usize) -> Result<&mut [MaybeUninit<u8>], OutOfMemory> {
        if let Self::Binary(builder) = self {
            let wanted = builder.len.checked_add(additional.max(1)).ok_or(OutOfMemory)?;
            if wanted > builder.capacity() {
                // Doubling, so that many small fragments are copied at most twice on average.
                builder.grow(wanted.max(builder.capacity().saturating_mul(2)).max(FIRST_ROOM))?;
            }
        } else if let Self::Text(text) = self {
            text.try_reserve(additional.max(1)).map_err(|_| OutOfMemory)?;
        }
        Ok(self.room())
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        match self {
            Self::Binary(builder) => {
                let room = builder.capacity() - builder.len;
                // SAFETY: the bytes from `len` up to the capacity belong to the object, and only this builder
                // refers to it. They may be uninitialised. With a dangling pointer the room is zero.
                unsafe { std::slice::from_raw_parts_mut(builder.data().add(builder.len).cast(), room) }
            }
            Self::Text(text) => text.spare_capacity_mut(),
        }
    }

    unsafe fn advance(&mut self, written: usize) {
        match self {
            Self::Binary(builder) => builder.len += written,
            // SAFETY: the caller's promise that `written` bytes of the room are initialised.
            Self::Text(text) => unsafe { text.advance(written) },
        }
    }

    fn extend_from_slice(&mut self, data: &[u8]) -> Result<(), OutOfMemory> {
        if let Self::Text(text) = self {
            text.try_reserve(data.len()).map_err(|_| OutOfMemory)?;
            text.extend_from_slice(data);
            return Ok(());
        }
        let room = self.spare(data.len())?;
        #[allow(clippy::indexing_slicing, reason = "`spare` returns at least the requested length, or an error")]
        room[..data.len()].write_copy_of_slice(data);
        // SAFETY: the line above initialised these bytes.
        unsafe { self.advance(data.len()) };
        Ok(())
    }
}

/// Creates the object that the application gets. `decode` requests `str` or `bytes`; `None` means `str` for
/// text and `bytes` for binary messages.
#[inline]
pub(crate) fn message(
    py: Python<'_>,
    kind: MessageKind,
    payload: Payload<'_, PyPayload>,
    decode: Option<bool>,
) -> PyResult<Py<PyAny>> {
    wirespeed_driver::protocol::failpoint::hit("python.message");
    let text = decode.unwrap_or(kind == MessageKind::Text);
    match payload {
        Payload::Buffer(PyPayload::Binary(builder)) if !text => builder.finish(py),
        payload => {
            let bytes = match &payload {
                Payload::Slice(slice) => slice,
                Payload::Buffer(buffer) => buffer.as_slice(),
            };
            if text { decode_utf8(py, bytes) } else { copy_bytes(py, bytes) }
        }
    }
}

/// Joins the fragments of a message, which are `bytes`, to one message.
pub(crate) fn join(py: Python<'_>, kind: MessageKind, fragments: &[Py<PyAny>]) -> PyResult<Py<PyAny>> {
    let mut joined = Vec::new();
    for fragment in fragments {
        joined.extend_from_slice(fragment.bind(py).cast::<pyo3::types::PyBytes>()?.as_bytes());
    }
    message(py, kind, Payload::Slice(&joined), None)
}

#[inline]
fn copy_bytes(py: Python<'_>, bytes: &[u8]) -> PyResult<Py<PyAny>> {
    // SAFETY: attached. Pointer and length are those of a slice. Null means that an exception is set.
    unsafe {
        let object = ffi::PyBytes_FromStringAndSize(bytes.as_ptr().cast(), bytes.len() as ffi::Py_ssize_t);
        Bound::from_owned_ptr_or_err(py, object).map(Bound::unbind)
    }
}

/// Decodes text to `str`. Text frames are valid UTF-8 already. For other bytes this may raise
/// `UnicodeDecodeError`.
#[inline]
pub(crate) fn decode_utf8(py: Python<'_>, bytes: &[u8]) -> PyResult<Py<PyAny>> {
    // SAFETY: attached. Pointer and length are those of a slice. Null means that an exception is set.
    unsafe {
        let object = ffi::PyUnicode_DecodeUTF8(bytes.as_ptr().cast(), bytes.len() as ffi::Py_ssize_t, ptr::null());
        Bound::from_owned_ptr_or_err(py, object).map(Bound::unbind)
    }
}
