//! The addresses of a connection's ends, in the form of Python's `socket` once somebody asks.

use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use wirespeed_driver::socket::Socket;

/// One end.
#[derive(Default)]
pub(crate) enum End {
    /// Nobody knows: the other end has gone, perhaps.
    #[default]
    Unknown,
    /// Of the internet, as it was.
    V4(SocketAddrV4),
    /// The same; larger, and rarer.
    V6(Box<SocketAddrV6>),
    /// As Python has given it.
    AssignedMessage(Py<PyAny>),
}

impl End {
    /// What `socket.getsockname()` would return.
    pub(crate) fn to_python(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(match self {
            Self::Unknown => py.None(),
            Self::V4(address) => (address.ip().to_string(), address.port()).into_pyobject(py)?.into_any().unbind(),
            Self::V6(address) => (address.ip().to_string(), address.port(), address.flowinfo(), address.scope_id())
                .into_pyobject(py)?
                .into_any()
                .unbind(),
            Self::AssignedMessage(address) => address.clone_ref(py),
        })
    }

    /// That with an address, or without.
    pub(crate) fn of(address: Option<SocketAddr>) -> Self {
        match address {
            None => Self::Unknown,
            Some(SocketAddr::V4(address)) => Self::V4(address),
            Some(SocketAddr::V6(address)) => Self::V6(Box::new(address)),
        }
    }

    /// For objects whose `__traverse__` is PyO3's.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Self::AssignedMessage(address) = self { visit.call(address) } else { Ok(()) }
    }
}

/// Both.
#[derive(Default)]
pub(crate) struct Addresses {
    pub(crate) local: End,
    pub(crate) remote: End,
}

impl Addresses {
    /// Those of a socket.
    pub(crate) fn of(socket: &Socket) -> Self {
        Self { local: Self::local_of(socket), remote: End::of(socket.remote_address()) }
    }

    /// This end of a socket.
    pub(crate) fn local_of(socket: &Socket) -> End {
        End::of(socket.local_address())
    }

    /// The same, but for what Python has given.
    pub(crate) fn given(self, local: Option<Bound<'_, PyAny>>, remote: Option<Bound<'_, PyAny>>) -> Self {
        let end =
            |given: Option<Bound<'_, PyAny>>, known| given.map_or(known, |given| End::AssignedMessage(given.unbind()));
        Self { local: end(local, self.local), remote: end(remote, self.remote) }
    }

    /// For objects whose `__traverse__` is PyO3's.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.local.traverse(visit)?;
        self.remote.traverse(visit)
    }
}
