//! The opening handshake (RFC 6455 4 and 7692 5), both sides, and HTTP CONNECT to a proxy, as pure state.
//!
//! The caller passes received bytes, in pieces of any size, to the `receive` method of [`ClientHandshake`],
//! [`ServerHandshake`] or [`ConnectHandshake`] until it returns [`Progress::Complete`] or an error. The handshake never
//! consumes bytes after the last head: they belong to the WebSocket connection or the tunnel. Origin checks, redirects
//! and authentication are up to the caller.

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

/// Limits on the peer's heads and on the body of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of a head in bytes, from the start line to the empty line. Default: 16 KiB, as in most servers.
    pub head_size: usize,
    /// Maximum number of fields of a head. Default: 128.
    pub headers: usize,
    /// Maximum size of the body of a rejection in bytes. Default: 1 MiB. A longer body is truncated.
    pub body_size: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { head_size: 16 * 1024, headers: 128, body_size: 1024 * 1024 }
    }
}

/// The result of a call of `receive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// All input was consumed, and more is needed.
    Incomplete,
    /// The handshake is complete.
    Complete {
        /// Number of bytes consumed of this call's input. The rest does not belong to the handshake.
        consumed: usize,
        /// The result.
        output: T,
    },
}

/// The result of a successful opening handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The response with status 101.
    pub response: Response,
    /// The negotiated subprotocol.
    pub subprotocol: Option<String>,
    /// The parameters of permessage-deflate, if it was negotiated.
    pub deflate: Option<Params>,
}
