//! The bytes of Python objects that are to be sent.

#![allow(unsafe_code)] // the buffer protocol

use std::ops::Range;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use wirespeed_driver::blocking::Source;
use wirespeed_driver::protocol::{MessageKind, utf8};

use crate::payload::decode_utf8;

/// A message as the application gave it: the bytes, without a copy.
pub(crate) enum Message<'a> {
    /// A `str`'s UTF-8, or a `bytes`: immutable, kept alive by the caller's reference.
    Slice(&'a [u8]),
    /// Anything else with a buffer.
    View(View),
}

/// An exported buffer. The exporter may let others write to it while it is exported, though not resize it.
pub(crate) struct View {
    // Boxed: exporters may keep its address.
    buffer: Box<ffi::Py_buffer>,
}

// SAFETY: the buffer is released in Drop, which attaches; in between it is only read, in `piece`.
unsafe impl Send for View {}
// SAFETY: as above; reading it from several threads is reading.
unsafe impl Sync for View {}

impl View {
    /// The contiguous buffer of an object.
    fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut buffer = Box::new(ffi::Py_buffer::new());
        // SAFETY: attached; `buffer` is a valid place for a view, which Drop releases if this succeeds.
        let result = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *buffer, ffi::PyBUF_SIMPLE) };
        if result != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Self { buffer })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        Python::attach(|_| {
            // SAFETY: attached; the view was acquired and is released once.
            unsafe { ffi::PyBuffer_Release(&raw mut *self.buffer) };
        });
    }
}

impl Source for Message<'_> {
    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::Slice(slice) => slice.len(),
            Self::View(view) => view.buffer.len as usize,
        }
    }

    #[inline]
    fn piece(&self, range: Range<usize>) -> &[u8] {
        match self {
            #[allow(clippy::indexing_slicing, reason = "our own ranges, of a source whose length was asked")]
            Self::Slice(slice) => &slice[range],
            Self::View(view) => {
                assert!(range.start <= range.end && range.end <= view.buffer.len as usize);
                if range.is_empty() {
                    return &[];
                }
                // SAFETY: in bounds by the assertion; the memory stays where it is until the view is
                // released. It is read only under the interpreter's lock, as Source promises: then Python
                // code does not write to it. Code that writes without the lock, or a thread of a
                // free-threaded interpreter, races as it would with socket.send: bytes may be mixed, nothing
                // else.
                unsafe { std::slice::from_raw_parts(view.buffer.buf.cast::<u8>().add(range.start), range.len()) }
            }
        }
    }
}

/// What `message` is: `None` if it is neither `str` nor bytes-like. `text` overrides the kind.
#[inline]
pub(crate) fn message<'a>(
    message: &'a Bound<'_, PyAny>,
    text: Option<bool>,
) -> PyResult<Option<(MessageKind, Message<'a>)>> {
    let Some((kind, source)) = fragment(message, text)? else { return Ok(None) };
    // RFC 6455 5.6: text is UTF-8. That of a str is.
    if kind == MessageKind::Text && text.is_some() && utf8::validate(source.piece(0..source.len())).is_err() {
        decode_utf8(message.py(), source.piece(0..source.len()))?; // raises UnicodeDecodeError
    }
    Ok(Some((kind, source)))
}

/// The same of a fragment of a message: text may end inside a character, and whoever sends it looks at the whole.
#[inline]
pub(crate) fn fragment<'a>(
    message: &'a Bound<'_, PyAny>,
    text: Option<bool>,
) -> PyResult<Option<(MessageKind, Message<'a>)>> {
    let (kind, source) = if let Ok(bytes) = message.cast_exact::<PyBytes>() {
        (MessageKind::Binary, Message::Slice(bytes.as_bytes()))
    } else if let Ok(string) = message.cast::<PyString>() {
        // A lone surrogate has no UTF-8: UnicodeEncodeError.
        (MessageKind::Text, Message::Slice(string.to_str()?.as_bytes()))
    } else if has_buffer(message) {
        (MessageKind::Binary, contiguous(message)?)
    } else {
        return Ok(None);
    };
    let kind = match text {
        None => kind,
        Some(true) => MessageKind::Text,
        Some(false) => MessageKind::Binary,
    };
    Ok(Some((kind, source)))
}

fn has_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: attached, a live object.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) == 1 }
}

fn contiguous<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<Message<'a>> {
    match View::new(object) {
        Ok(view) => Ok(Message::View(view)),
        // A strided view, as of every second byte: a contiguous copy of it.
        Err(error) if error.is_instance_of::<PyBufferError>(object.py()) => {
            let copy =
                object.py().import("builtins")?.getattr("memoryview")?.call1((object,))?.call_method0("tobytes")?;
            View::new(&copy).map(Message::View)
        }
        Err(error) => Err(error),
    }
}

/// The payload of a ping or pong: `str` or bytes-like, copied.
pub(crate) fn control(data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    match message(data, None)? {
        Some((_, source)) => Ok(source.piece(0..source.len()).to_vec()),
        None => Err(PyTypeError::new_err(format!("data must be str or bytes-like, not {}", type_name(data)))),
    }
}

/// The name of an object's type, for messages.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string())
}
