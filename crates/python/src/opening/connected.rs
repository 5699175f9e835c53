//! A stream socket that is not a Python object: connected here, or taken over from Python.

#![allow(unsafe_code)] // taking over a file descriptor

use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use wirespeed_driver::dial;
use wirespeed_driver::socket::{Readiness, Socket};

use crate::addresses::Address;
use crate::blocking::deadline;
use crate::blocking::host::PythonHost;
use crate::errors;

/// Accepts a pending connection of a listening TCP socket, without blocking. Returns the non-blocking
/// descriptor and the remote address, or `None` if no connection is pending.
#[pyfunction]
pub(crate) fn accept(py: Python<'_>, listening: RawFd) -> PyResult<Option<(RawFd, Py<PyAny>)>> {
    if listening < 0 {
        return Err(closed());
    }
    // SAFETY: the caller keeps the descriptor open during this call.
    let listening = unsafe { BorrowedFd::borrow_raw(listening) };
    let Some((socket, address)) = Socket::accept(listening).map_err(|error| errors::io_error(&error))? else {
        return Ok(None);
    };
    let address = Address::of(address).to_python(py)?;
    Ok(Some((socket.into_descriptor().into_raw_fd(), address)))
}

/// Returns whether a socket has input: bytes, the end of the stream or an error. `descriptor` is not negative.
pub(crate) fn has_unread(descriptor: RawFd) -> bool {
    // SAFETY: it is only polled, and polling a closed descriptor returns at once.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let readable = Readiness { readable: true, writable: false };
    let ready = Socket::with_borrowed(descriptor, |socket| socket.wait(readable, Some(Instant::now())));
    ready.is_ok_and(|ready| ready.readable)
}

/// A connected or connecting stream socket. Dropping this object closes it, unless it was taken.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct ConnectedSocket {
    socket: Mutex<Option<Socket>>,
}

impl ConnectedSocket {
    fn lock(&self) -> MutexGuard<'_, Option<Socket>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the socket out.
    pub(crate) fn take(&self) -> PyResult<Socket> {
        self.lock().take().ok_or_else(closed)
    }

    /// Puts the socket back.
    pub(crate) fn put_back(&self, socket: Socket) {
        *self.lock() = Some(socket);
    }

    /// Calls `f` with the socket. `f` must not call Python.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&Socket) -> PyResult<R>) -> PyResult<R> {
        self.lock().as_ref().map_or_else(|| Err(closed()), f)
    }
}

fn closed() -> PyErr {
    PyOSError::new_err("the socket is closed")
}

#[pymethods]
impl ConnectedSocket {
    /// Starts to connect to a numeric address of the address family, 0 for any. `None` if `host` is not
    /// numeric.
    #[staticmethod]
    fn begin(host: &str, port: u16, family: i32) -> PyResult<Option<Self>> {
        let Some(address) = dial::numeric(host, port, family) else { return Ok(None) };
        let socket = Socket::connect(address).map_err(|error| errors::io_error(&error))?;
        Ok(Some(Self { socket: Mutex::new(Some(socket)) }))
    }

    /// Takes over a descriptor that the caller has detached.
    #[staticmethod]
    fn adopt(fd: RawFd) -> PyResult<Self> {
        if fd < 0 {
            return Err(closed());
        }
        // SAFETY: the caller has detached the descriptor, so no other code closes it.
        let socket = Socket::new(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Self { socket: Mutex::new(Some(socket)) })
    }

    /// Returns whether it is connected. Raises the error if the attempt has failed.
    fn is_connected(&self) -> PyResult<bool> {
        self.with(|socket| {
            if socket.remote_address().is_some() {
                return Ok(true);
            }
            socket.take_error().map(|()| false).map_err(|error| errors::io_error(&error))
        })
    }

    /// Waits until it is connected, for at most `timeout` seconds. Returns 0, the errno of a failed attempt, or
    /// `None` after the timeout.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<i32>> {
        let deadline = deadline(timeout)?;
        // Taken out of the lock, because other threads and signal handlers run during the wait.
        let socket = self.take()?;
        if socket.remote_address().is_none() {
            let host = PythonHost { py, decode: None };
            match dial::wait(&socket, &host, deadline) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(Ok(error)) => return error.raw_os_error().map(Some).ok_or_else(|| errors::io_error(&error)),
                Err(Err(error)) => return Err(error),
            }
        }
        self.put_back(socket);
        Ok(Some(0))
    }

    /// The number of the descriptor.
    fn fileno(&self) -> PyResult<RawFd> {
        self.with(|socket| Ok(socket.raw()))
    }

    /// Transfers the descriptor to the caller.
    fn detach(&self) -> PyResult<RawFd> {
        Ok(self.take()?.into_descriptor().into_raw_fd())
    }

    /// Closes the socket, unless it was taken.
    fn close(&self) {
        drop(self.lock().take());
    }
}
