//! The local and remote address of a connection, converted to the form of Python's `socket` on access.

use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use wirespeed_driver::socket::Socket;

/// The address of one end of a connection.
#[derive(Default)]
pub(crate) enum Address {
    /// Not known, for example because the peer has already disconnected.
    #[default]
    Unknown,
    /// An IPv4 address.
    V4(SocketAddrV4),
    /// An IPv6 address, boxed because it is larger and rarer.
    V6(Box<SocketAddrV6>),
    /// An address object passed by Python code.
    Python(Py<PyAny>),
}

impl Address {
    /// Returns the address as `socket.getsockname()` would.
    pub(crate) fn to_python(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(match self {
            Self::Unknown => py.None(),
            Self::V4(address) => (address.ip().to_string(), address.port()).into_pyobject(py)?.into_any().unbind(),
            Self::V6(address) => (address.ip().to_string(), address.port(), address.flowinfo(), address.scope_id())
                .into_pyobject(py)?
                .into_any()
                .unbind(),
            Self::Python(address) => address.clone_ref(py),
        })
    }

    /// Wraps an optional address.
    pub(crate) fn of(address: Option<SocketAddr>) -> Self {
        match address {
            None => Self::Unknown,
            Some(SocketAddr::V4(address)) => Self::V4(address),
            Some(SocketAddr::V6(address)) => Self::V6(Box::new(address)),
        }
    }

    /// For objects whose `__traverse__` is PyO3's.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Self::Python(address) = self { visit.call(address) } else { Ok(()) }
    }
}

/// The addresses of both ends.
#[derive(Default)]
pub(crate) struct Addresses {
    pub(crate) local: Address,
    pub(crate) remote: Address,
}

impl Addresses {
    /// Reads both addresses of a socket.
    pub(crate) fn of(socket: &Socket) -> Self {
        Self { local: Self::local_of(socket), remote: Address::of(socket.remote_address()) }
    }

    /// Reads the local address of a socket.
    pub(crate) fn local_of(socket: &Socket) -> Address {
        Address::of(socket.local_address())
    }

    /// Replaces each address by the one that Python code has passed, if any.
    pub(crate) fn with_overrides(self, local: Option<Bound<'_, PyAny>>, remote: Option<Bound<'_, PyAny>>) -> Self {
        let select = |address: Option<Bound<'_, PyAny>>, known| {
            address.map_or(known, |address| Address::Python(address.unbind()))
        };
        Self { local: select(local, self.local), remote: select(remote, self.remote) }
    }

    /// For objects whose `__traverse__` is PyO3's.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.local.traverse(visit)?;
        self.remote.traverse(visit)
    }
}
