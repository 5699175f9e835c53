//! From a connected socket to an open WebSocket: proxy tunnel, TLS, the opening handshake.
//!
//! [`Client`] and [`Server`] are state without I/O: bytes in, bytes out. Bytes that arrived early, and bytes that
//! wait to be written, pass to the [`Endpoint`](crate::Endpoint). [`Carrier`] moves the bytes over a socket without
//! blocking, for event loops, and [`complete`] does so for threads.

mod carrier;
mod client;
mod early;
mod server;

use std::fmt;
use std::io;

use wirespeed_protocol::handshake::HandshakeError;

use crate::tls;
use crate::write_queue::WriteQueue;

pub use carrier::{Carrier, Moved, Stop, complete};
pub use client::{Client, Plan};
pub use server::Server;

/// How far an opening has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// TLS handshake with a proxy.
    ProxyTls,
    /// The request for a tunnel was sent to a proxy.
    Tunnel,
    /// TLS handshake with the peer.
    Tls,
    /// The opening handshake (RFC 6455 4): a client has sent its request, or a server waits for one.
    Handshake,
    /// A client has its response; a server has a request, which the application must answer.
    Done,
    /// The opening has failed.
    Failed,
}

/// Why an opening has failed.
#[derive(Debug)]
pub enum Error {
    /// The socket has failed.
    Io(io::Error),
    /// TLS has failed.
    Tls(tls::Error),
    /// The proxy did not establish the tunnel.
    Tunnel(HandshakeError),
    /// The peer's part of the opening handshake is invalid or missing.
    Handshake(HandshakeError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Tls(error) => error.fmt(f),
            Self::Tunnel(error) => write!(f, "the proxy made no tunnel: {error}"),
            Self::Handshake(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<tls::Error> for Error {
    fn from(error: tls::Error) -> Self {
        Self::Tls(error)
    }
}

/// The opening of a client or server, as the code that moves its bytes sees it.
///
/// 1. Write [`Self::output`], then read and pass the bytes to [`Self::receive`], or the end to
///    [`Self::receive_end`].
/// 2. Repeat until [`Self::stage`] is `Done` or `Failed`; when the time is up, call [`Self::give_up`].
pub trait Opening {
    /// Returns how far the opening has come.
    fn stage(&self) -> Stage;

    /// Returns the bytes to be written. After an error too: they may be an alert or a response.
    fn output(&mut self) -> &mut WriteQueue;

    /// Takes any number of bytes that were read. Bytes of the WebSocket after the handshake are kept for it.
    ///
    /// # Errors
    /// Fails if the opening has failed; it then takes no more bytes.
    fn receive(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// Records that no more bytes arrive before the opening is done: the stream has ended or, with an error, the
    /// socket has failed. Returns why the opening has failed; earlier input explains more than an error of the
    /// socket.
    fn receive_end(&mut self, error: Option<io::Error>) -> Error;

    /// Returns whether the peer has refused, and only the rest of its response body is awaited.
    fn is_refused(&self) -> bool;

    /// Ends the opening, because the caller no longer waits. Returns a refusal whose body does not end, if that
    /// explains why.
    fn give_up(&mut self) -> Option<Error>;
}
