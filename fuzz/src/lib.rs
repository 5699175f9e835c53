//! The bodies of the fuzz targets. Each takes any bytes and panics if the protocol crate disagrees with an
//! oracle.
//!
//! | target | oracle |
//! |---|---|
//! | `receive` | whole input = input in any pieces = input read into destinations = a receiver that sees all bytes at once |
//! | `round_trip` | what one end was asked to send, taken apart by a naive decoder and received by the other end |
//! | `deflate` | zlib in C, as compressor and as decompressor |
//! | `client_head`, `server_head` | whole = pieces; what is accepted obeys RFC 6455 4, checked line by line |

// The tests' naive codec is the oracle here as well.
#[path = "../../crates/protocol/tests/support/mod.rs"]
mod support;

pub mod client_head;
pub mod deflate;
mod input;
pub mod receive;
pub mod round_trip;
pub mod server_head;

/// A target: takes any bytes, panics where an oracle is contradicted.
pub type Target = fn(&[u8]);

/// Every target with the name of its corpus.
pub const TARGETS: [(&str, Target); 5] = [
    ("receive", receive::run),
    ("round_trip", round_trip::run),
    ("deflate", deflate::run),
    ("client_head", client_head::run),
    ("server_head", server_head::run),
];
