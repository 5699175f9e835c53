//! Frame headers and opcodes (RFC 6455 5.2). [`Connection`](crate::Connection) handles payloads.

mod header;
mod opcode;

pub use header::{Encoded, Header};
pub use opcode::Opcode;
