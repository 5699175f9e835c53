//! From a connected socket to an open WebSocket: tunnel, TLS, the opening handshake.
//!
//! [`Client`] and [`Server`] are the whole of it as state, bytes in and bytes out; what came early, and what
//! has yet to leave, goes on to the [`Endpoint`](crate::Peer). [`Carrier`] moves the bytes over a socket without
//! waiting, for whoever is told of readiness, and [`complete`] for threads that wait. [`pending`] says who of many
//! that do not go on has to go.

mod carrier;
mod client;
mod early;
pub mod handshake_limiter;
mod server;

use std::fmt;
use std::io;

use wirespeed_protocol::handshake::HandshakeError;

use crate::tls;
use crate::write_queue::WriteQueue;

pub use carrier::{Carrier, Moved, Stop, complete};
pub use client::{Client, Plan};
pub use server::Server;

/// How far an opening is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// TLS with a proxy.
    ProxyTls,
    /// The request for a tunnel, to a proxy.
    Tunnel,
    /// TLS with the other end.
    Tls,
    /// The opening handshake (RFC 6455 4): a client has sent its request, a server waits for one.
    Handshake,
    /// A client has its answer; a server has a request, which is to be answered.
    Done,
    /// It has failed.
    Failed,
}

/// Why an opening has failed.
#[derive(Debug)]
pub enum Error {
    /// The socket has.
    Io(io::Error),
    /// TLS has.
    Tls(tls::Error),
    /// The proxy did not make the tunnel.
    Tunnel(HandshakeError),
    /// The other end did not do its part of the opening handshake.
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

/// Either end: what whoever moves its bytes has to know.
pub trait Opening {
    /// How far it is.
    fn stage(&self) -> Stage;

    /// What is to be written. After an error too: an alert, or a response, may say why.
    fn output(&mut self) -> &mut WriteQueue;

    /// Takes bytes that were read, as many as came: what belongs to the WebSocket is kept for it.
    ///
    /// # Errors
    /// It has failed, and takes no more.
    fn receive(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// Nothing more will come, before it is done: the stream has ended or, with an error, the socket has
    /// failed; why the opening has. What the other end said before explains more than an error of the socket.
    fn receive_end(&mut self, error: Option<io::Error>) -> Error;

    /// Whether the other end has refused, and only the rest of its reason is waited for: the body of its response.
    fn is_refused(&self) -> bool;

    /// Nobody waits any longer: it is over. What the other end has said so far, if that explains why no more
    /// comes: a refusal whose body does not end.
    fn give_up(&mut self) -> Option<Error>;
}
