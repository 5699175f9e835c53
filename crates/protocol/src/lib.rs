//! RFC 6455 (WebSocket) and RFC 7692 (permessage-deflate) as pure state, both sides.
//!
//! This crate owns the rules of the protocol and nothing else. It opens no socket, reads no clock, starts no thread
//! and draws no random number. Bytes, masking keys and nonces are arguments, so every run is reproducible. The caller
//! also supplies the [`PayloadBuffer`] into which messages are assembled.
//!
//! # Call order
//!
//! 1. Open: a [`handshake::client::ClientHandshake`] or [`handshake::server::ServerHandshake`] turns the bytes of the
//!    opening handshake into the parameters of a connection.
//! 2. Receive: pass each received chunk to [`Connection::receive`] until it returns `None`. Each call returns at most
//!    one [`Event`]. The caller can also read a large payload straight into its buffer: see
//!    [`Connection::take_destination`].
//! 3. Send: the `send_*` methods append whole frames to a `Vec<u8>`. The caller writes it to the peer.
//! 4. Close: after [`Event::Close`], call [`Connection::send_close_reply`]; after a [`Fault`],
//!    [`Connection::send_fault`]. In [`State::Closed`] and [`State::Failed`] the caller may close the TCP connection.
//!
//! The crate has no timers: deadlines belong to the layer above.

#![cfg_attr(not(feature = "std"), no_std)]
// Input from a peer must not cause a panic. Test builds and fuzzers check arithmetic for overflow.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

extern crate alloc;

pub mod close;
pub mod connection;
pub mod deflate;
pub mod error;
pub mod event;
pub mod failpoint;
pub mod frame;
pub mod handshake;
pub mod limits;
pub mod mask;
pub mod payload;
pub mod state;
pub mod utf8;

pub use close::{CloseCode, CloseFrame};
pub use connection::{Config, Connection, Delivery, Destination};
pub use error::{Fault, SendError};
pub use event::{ControlPayload, Event, MessageKind, Payload};
pub use limits::Limits;
pub use payload::{OutOfMemory, PayloadBuffer};
pub use state::State;

/// The role of an endpoint. Clients mask their frames, servers do not (RFC 6455 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The endpoint that sends the opening request.
    Client,
    /// The endpoint that answers the opening request.
    Server,
}
