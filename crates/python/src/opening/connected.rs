//! A stream socket that nobody in Python needs to touch: dialled here, or taken over.

#![allow(unsafe_code)] // taking over a file descriptor

use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use wirespeed_driver::dial;
use wirespeed_driver::socket::Socket;

use crate::addresses::End;
use crate::blocking::deadline;
use crate::blocking::host::PythonHost;
use crate::errors;

/// Accepts a connection that waits at a listening socket of the internet, without blocking: the descriptor,
/// which does not block, and the address of the other end; `None`: there is none.
#[pyfunction]
pub(crate) fn accept(py: Python<'_>, listening: RawFd) -> PyResult<Option<(RawFd, Py<PyAny>)>> {
    if listening < 0 {
        return Err(closed());
    }
    // SAFETY: the caller has it open during this call.
    let listening = unsafe { BorrowedFd::borrow_raw(listening) };
    let Some((socket, address)) = Socket::accept(listening).map_err(|error| errors::io_error(&error))? else {
        return Ok(None);
    };
    let address = End::of(address).to_python(py)?;
    Ok(Some((socket.into_descriptor().into_raw_fd(), address)))
}

/// A connected stream socket, or one that is being connected. It is closed with this object, unless somebody
/// takes it.
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

    /// Gives it back.
    pub(crate) fn put_back(&self, socket: Socket) {
        *self.lock() = Some(socket);
    }

    /// Lends it to `f`, which must not call Python.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&Socket) -> PyResult<R>) -> PyResult<R> {
        self.lock().as_ref().map_or_else(|| Err(closed()), f)
    }
}

fn closed() -> PyErr {
    PyOSError::new_err("the socket is closed")
}

#[pymethods]
impl ConnectedSocket {
    /// Begins to connect to a numeric address of this family, 0 for any; `None`: it is none.
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
        // SAFETY: the caller has detached the descriptor, so nobody else closes it.
        let socket = Socket::new(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Self { socket: Mutex::new(Some(socket)) })
    }

    /// Whether it is connected; raises why not, if the attempt has failed.
    fn is_connected(&self) -> PyResult<bool> {
        self.with(|socket| {
            if socket.remote_address().is_some() {
                return Ok(true);
            }
            socket.take_error().map(|()| false).map_err(|error| errors::io_error(&error))
        })
    }

    /// Waits until it is connected, for `timeout` seconds at most: 0, or the number of the error with which
    /// the attempt has failed, or `None`: the time is over.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<i32>> {
        let deadline = deadline(timeout)?;
        // Out of its lock: other threads run meanwhile, and signal handlers.
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

    /// Gives the descriptor to the caller.
    fn detach(&self) -> PyResult<RawFd> {
        Ok(self.take()?.into_descriptor().into_raw_fd())
    }

    /// Closes it, unless somebody has taken it.
    fn close(&self) {
        drop(self.lock().take());
    }
}
