//! The bodies of the fuzz targets. Each takes any bytes and panics if what it tries disagrees with an oracle.
//!
//! | target | oracle |
//! |---|---|
//! | `receive` | whole input = input in any pieces = input read into destinations = a receiver that sees all bytes at once |
//! | `round_trip` | what one end was asked to send, taken apart by a naive decoder and received by the other end |
//! | `deflate` | zlib in C, as compressor and as decompressor |
//! | `client_head`, `server_head` | whole = pieces; what is accepted obeys RFC 6455 4, checked line by line |
//! | `lent` | input that is lent out and put back = input at once |
//! | `opening` | the proxy's answer and the server's, each alone; nobody takes for said under TLS what was not |
//! | `drives`, `drives_tls`, `drives_crowded` | what one end has sent arrives at the other, in order, before its close frame; all ends in its time |
//! | `jwt` | a parser of JSON that knows nothing of tokens; none is accepted of which a bit was changed |
//! | `jwt_keys` | what a key says it is for; no error shows any of it |
//! | `jwt_places` | who takes the request apart himself |
//! | `proxy_header` | what was written by the book; a naive decoder |
//! | `forwarded` | what the first trusted proxy has seen, whatever the client has sent |
//! | `topics` | lists of all subscriptions, patterns and topics, gone through |
//! | `routes` | a matcher that tries every way; a subprotocol that both ends know |
//! | `pages` | nothing without its token; answers that are well formed |
//! | `brokers` | what was put together, comes apart; a naive PSUBSCRIBE; each message once, to who wants it |

// The tests' naive codec is the oracle here as well.
#[path = "../../crates/protocol/tests/support/mod.rs"]
mod support;

pub mod brokers;
pub mod client_head;
pub mod deflate;
pub mod drives;
pub mod forwarded;
mod input;
pub mod jwt;
pub mod jwt_keys;
pub mod jwt_places;
mod keys;
pub mod lent;
mod opened;
pub mod opening;
pub mod pages;
mod pipe;
pub mod proxy_header;
pub mod receive;
pub mod round_trip;
pub mod routes;
pub mod server_head;
pub mod topics;

/// A target: takes any bytes, panics where an oracle is contradicted.
pub type Target = fn(&[u8]);

/// Every target with the name of its corpus.
pub const TARGETS: [(&str, Target); 19] = [
    ("receive", receive::run),
    ("round_trip", round_trip::run),
    ("deflate", deflate::run),
    ("client_head", client_head::run),
    ("server_head", server_head::run),
    ("lent", lent::run),
    ("drives", drives::run),
    ("drives_tls", drives::run_tls),
    ("drives_crowded", drives::run_crowded),
    ("opening", opening::run),
    ("jwt", jwt::run),
    ("jwt_keys", jwt_keys::run),
    ("jwt_places", jwt_places::run),
    ("proxy_header", proxy_header::run),
    ("forwarded", forwarded::run),
    ("topics", topics::run),
    ("routes", routes::run),
    ("pages", pages::run),
    ("brokers", brokers::run),
];
