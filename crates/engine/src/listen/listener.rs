//! Listening sockets, and the sockets that they accept.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use wirespeed_driver::socket::Socket;

use super::certificate::Certificate;
use crate::config::Place;

/// Listening sockets and their address.
pub(crate) struct ListenerSet {
    pub(crate) place: Place,
    pub(crate) listeners: Vec<OwnedFd>,
}

/// A listening socket and its options.
pub(crate) struct Listener {
    /// `None`: it is closed.
    pub(crate) socket: Option<OwnedFd>,
    pub(crate) options: ListenerOptions,
}

/// The protocol that clients of a listener use.
#[derive(Clone)]
pub(crate) struct ListenerOptions {
    pub(crate) tls: Option<Arc<Certificate>>,
    pub(crate) unix: bool,
    /// The listener is that of [`crate::config::Http::at`]: no sessions begin there, and it stays open until the engine ends.
    pub(crate) internal: bool,
}

/// An accepted socket whose handshake has not started yet.
pub(crate) struct AcceptedSocket {
    pub(crate) options: ListenerOptions,
    pub(crate) socket: Socket,
    pub(crate) remote: Option<SocketAddr>,
    /// Another worker has accepted it.
    pub(crate) passed: bool,
}
