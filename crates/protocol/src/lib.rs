//! RFC 6455 (WebSocket) and RFC 7692 (permessage-deflate) as pure state, both sides.
//!
//! This crate owns the rules of the protocol and nothing else. It opens no socket, reads no clock, starts no
//! thread and draws no random number: bytes, masking keys and nonces are arguments, so that every run repeats
//! exactly. It does not decide where payload bytes land either: the caller supplies the [`PayloadBuffer`]
//! that a message is assembled in.
//!
//! # Call order
//!
//! 1. Open: a [`handshake::client::ClientHandshake`] or [`handshake::server::ServerHandshake`] turns the
//!    bytes of the opening handshake into the parameters of a connection.
//! 2. Receive: hand every chunk that arrives to [`Connection::receive`], again and again until it answers
//!    `None`; each call returns at most one [`Event`]. A large payload can bypass the chunk: see
//!    [`Connection::take_destination`].
//! 3. Send: the `send_*` methods append whole frames to a `Vec<u8>`; writing it to the peer is the caller's
//!    work.
//! 4. Close: after [`Event::Close`] or a [`Fault`], [`Connection::send_close_reply`] or
//!    [`Connection::send_fault`] produces the frame that is due; [`Connection::state`] tells when TCP may go.
//!
//! Nothing needs polling: the crate has no timers. Deadlines belong to the layer above.

#![cfg_attr(not(feature = "std"), no_std)]
// What a peer causes is no reason for a panic. Arithmetic is left to the checks of the test builds and of the fuzzers.
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

/// Which end of the connection this is. The client masks, the server does not (RFC 6455 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The end that sent the opening request.
    Client,
    /// The end that answered it.
    Server,
}
