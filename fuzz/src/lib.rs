//! The bodies of the fuzz targets. Each takes any bytes and panics if the protocol crate, or the driver,
//! disagrees with an oracle.
//!
//! | target | oracle |
//! |---|---|
//! | `receive` | whole input = input in any pieces = input read into destinations = a receiver that sees all bytes at once |
//! | `round_trip` | what one end was asked to send, taken apart by a naive decoder and received by the other end |
//! | `deflate` | zlib in C, as compressor and as decompressor |
//! | `client_head`, `server_head` | whole = pieces; what is accepted obeys RFC 6455 4, checked line by line |
//! | `lent` | input that is lent out and put back = input at once |
//! | `drives`, `drives_tls` | what one end has sent arrives at the other, in order, before its close frame; all ends in its time |

// The tests' naive codec is the oracle here as well.
#[path = "../../crates/protocol/tests/support/mod.rs"]
mod support;

pub mod client_head;
pub mod deflate;
pub mod drives;
mod input;
pub mod lent;
mod opened;
mod pipe;
pub mod receive;
pub mod round_trip;
pub mod server_head;

/// A target: takes any bytes, panics where an oracle is contradicted.
pub type Target = fn(&[u8]);

/// Every target with the name of its corpus.
pub const TARGETS: [(&str, Target); 8] = [
    ("receive", receive::run),
    ("round_trip", round_trip::run),
    ("deflate", deflate::run),
    ("client_head", client_head::run),
    ("server_head", server_head::run),
    ("lent", lent::run),
    ("drives", drives::run),
    ("drives_tls", drives::run_tls),
];
