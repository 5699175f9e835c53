//! The opening handshake (RFC 6455 4 and 7692 5), both sides, and HTTP CONNECT to a proxy, as pure state.
//!
//! Each of [`ClientHandshake`], [`ServerHandshake`] and [`ConnectHandshake`] is fed the bytes of the peer, in
//! pieces of any size, until it answers with [`Progress::Complete`] or an error. It never takes a byte behind
//! its last head: what follows belongs to the WebSocket connection, or to the tunnel. Origin checks,
//! redirects and authentication are left to the callers.

pub mod accept_key;
mod body;
pub mod client;
pub mod connect;
pub mod error;
pub mod extension;
mod head;
pub mod header_list;
pub mod message;
mod response_reader;
pub mod server;

pub use accept_key::accept_key;
pub use client::{ClientHandshake, ClientRequest};
pub use connect::{ConnectHandshake, ConnectRequest};
pub use error::HandshakeError;
pub use header_list::{DuplicateHeader, Header, HeaderError, HeaderList};
pub use message::{Request, Response, Version, reason_phrase};
pub use server::{ServerConfig, ServerHandshake};

use alloc::string::String;

use crate::deflate::negotiate::Params;

/// What the peer's heads and a refusal's body may cost us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one head, from the start line to the empty line. Default 16 KiB, as servers commonly allow.
    pub head_size: usize,
    /// Fields of one head. Default 128.
    pub headers: usize,
    /// Bytes that are kept of the body of a refusal. Default 1 MiB. What is longer is cut, not an error.
    pub body_size: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { head_size: 16 * 1024, headers: 128, body_size: 1024 * 1024 }
    }
}

/// How far one call to `receive` has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// The input was taken whole, and more is needed.
    Incomplete,
    /// Done.
    Complete {
        /// Bytes of this call's input that were taken. The rest does not belong to the handshake.
        consumed: usize,
        /// The outcome.
        output: T,
    },
}

/// An opening handshake that both sides agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The response with status 101.
    pub response: Response,
    /// The subprotocol in use.
    pub subprotocol: Option<String>,
    /// The parameters of permessage-deflate, if it is in use.
    pub deflate: Option<Params>,
}
