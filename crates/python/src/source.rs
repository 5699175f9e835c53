//! Access to the bytes of Python objects that are to be sent.

#![allow(unsafe_code)] // the buffer protocol

use std::ops::Range;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use wirespeed_driver::protocol::{MessageKind, utf8};
use wirespeed_driver::source::Source;

use crate::payload::decode_utf8;

/// A message as the application passed it: its bytes, not copied.
pub(crate) enum Message<'a> {
    /// The UTF-8 of a `str`, or a `bytes` object: immutable, kept alive by the caller's reference.
    Slice(&'a [u8]),
    /// Any other object with a buffer.
    View(View),
}

/// An exported buffer. The exporter may let other code write to it while it is exported, but not resize it.
pub(crate) struct View {
    // Boxed, because exporters may keep its address.
    buffer: Box<ffi::Py_buffer>,
}

// SAFETY: the buffer is released in Drop, which attaches to the interpreter. Until then it is only read, in
// `piece`.
unsafe impl Send for View {}
// SAFETY: as above. Several threads may read it at the same time.
unsafe impl Sync for View {}

impl View {
    /// Acquires the contiguous buffer of an object.
    fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut buffer = Box::new(ffi::Py_buffer::new());
        // SAFETY: attached. `buffer` is valid memory for a view, which Drop releases if this call succeeds.
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
            // SAFETY: attached. The view was acquired, and is released once.
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
            #[allow(clippy::indexing_slicing, reason = "the driver asks for ranges within `len()` only")]
            Self::Slice(slice) => &slice[range],
            Self::View(view) => {
                assert!(range.start <= range.end && range.end <= view.buffer.len as usize);
                if range.is_empty() {
                    return &[];
                }
                // SAFETY: the assertion keeps the range in bounds, and the memory does not move before the view
                // is released. It is read only while the GIL is held, as `Source` promises, so Python code does
                // not write to it meanwhile. Code that writes without the GIL, or a thread of a free-threaded
                // interpreter, causes the same race as with socket.send: the bytes may be mixed, but no other
                // harm is done.
                unsafe { std::slice::from_raw_parts(view.buffer.buf.cast::<u8>().add(range.start), range.len()) }
            }
        }
    }
}

/// Returns kind and bytes of `message`, or `None` if it is neither `str` nor bytes-like. `text` overrides the
/// kind.
#[inline]
pub(crate) fn message<'a>(
    message: &'a Bound<'_, PyAny>,
    text: Option<bool>,
) -> PyResult<Option<(MessageKind, Message<'a>)>> {
    let Some((kind, source)) = fragment(message, text)? else { return Ok(None) };
    // RFC 6455 5.6: text is UTF-8. The UTF-8 of a str is valid already.
    if kind == MessageKind::Text && text.is_some() && utf8::validate(source.piece(0..source.len())).is_err() {
        decode_utf8(message.py(), source.piece(0..source.len()))?; // raises UnicodeDecodeError
    }
    Ok(Some((kind, source)))
}

/// Like [`message`] for a fragment. Text is not validated here: it may end inside a character, and the sender
/// validates the whole message.
#[inline]
pub(crate) fn fragment<'a>(
    message: &'a Bound<'_, PyAny>,
    text: Option<bool>,
) -> PyResult<Option<(MessageKind, Message<'a>)>> {
    let (kind, source) = if let Ok(bytes) = message.cast_exact::<PyBytes>() {
        (MessageKind::Binary, Message::Slice(bytes.as_bytes()))
    } else if let Ok(string) = message.cast::<PyString>() {
        // A lone surrogate cannot be encoded: UnicodeEncodeError.
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
    // SAFETY: attached, and the object is alive.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) == 1 }
}

fn contiguous<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<Message<'a>> {
    match View::new(object) {
        Ok(view) => Ok(Message::View(view)),
        // A strided view, for example of every second byte, is copied into a contiguous object.
        Err(error) if error.is_instance_of::<PyBufferError>(object.py()) => {
            let copy =
                object.py().import("builtins")?.getattr("memoryview")?.call1((object,))?.call_method0("tobytes")?;
            View::new(&copy).map(Message::View)
        }
        Err(error) => Err(error),
    }
}

/// Copies the payload of a ping or pong, which is `str` or bytes-like.
pub(crate) fn control(data: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    match message(data, None)? {
        Some((_, source)) => Ok(source.piece(0..source.len()).to_vec()),
        None => Err(PyTypeError::new_err(format!("data must be str or bytes-like, not {}", type_name(data)))),
    }
}

/// Returns the name of an object's type, for error messages.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string())
}
