//! Frames (RFC 6455 5.2): opcodes and headers. Payloads are the business of
//! [`Connection`](crate::Connection).

mod header;
mod opcode;

pub use header::{Encoded, Header};
pub use opcode::Opcode;
