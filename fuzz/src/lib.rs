//! The fuzz targets. Each takes any bytes and panics if the result of the tested code differs from an oracle.
//!
//! | target | oracle |
//! |---|---|
//! | `receive` | the same events for whole input, any pieces, and destinations; a model that has all bytes at once |
//! | `round_trip` | sent messages are decoded by a simple decoder and received by the peer |
//! | `deflate` | zlib in C, as compressor and as decompressor |
//! | `client_head`, `server_head` | the same result for whole input and pieces; accepted heads obey RFC 6455 4 |
//! | `checked_out_input` | the same events if the input is checked out and returned at any time |
//! | `opening` | the proxy's and the server's response parsed separately; no forged bytes are accepted under TLS |
//! | `drivers`, `drivers_tls`, `drivers_small_buffers` | messages arrive in order and before the close frame; both ends close in time |
//! | `jwt` | a general JSON parser; no token with a changed bit is accepted |
//! | `jwt_keys` | a key is used only for its stated purpose; no error message has a part of a key |
//! | `jwt_sources` | a simple parser of requests |
//! | `proxy_header` | headers encoded after the specification; a simple decoder |
//! | `forwarded` | the address that the first trusted proxy has seen, independent of the client's header |
//! | `topics` | linear searches in lists of all subscriptions, patterns and topics |
//! | `routes` | a backtracking matcher; a subprotocol that both ends support |
//! | `http_answers` | no data without its token; responses are well formed |
//! | `brokers` | batches are decoded into their messages; a simple PSUBSCRIBE; each message is delivered once, to its subscribers |

// The simple codec of the protocol's tests is an oracle here too.
#[path = "../../crates/protocol/tests/support/mod.rs"]
mod support;

pub mod brokers;
pub mod checked_out_input;
pub mod client_head;
pub mod deflate;
mod driver_pair;
pub mod drivers;
pub mod forwarded;
pub mod http_answers;
mod input;
pub mod jwt;
pub mod jwt_keys;
pub mod jwt_sources;
mod keys;
pub mod opening;
mod pipe;
pub mod proxy_header;
pub mod receive;
pub mod round_trip;
pub mod routes;
pub mod server_head;
pub mod topics;

/// A target: takes any bytes and panics if the result differs from an oracle.
pub type Target = fn(&[u8]);

/// All targets with the names of their corpora.
pub const TARGETS: [(&str, Target); 19] = [
    ("receive", receive::run),
    ("round_trip", round_trip::run),
    ("deflate", deflate::run),
    ("client_head", client_head::run),
    ("server_head", server_head::run),
    ("checked_out_input", checked_out_input::run),
    ("drivers", drivers::run),
    ("drivers_tls", drivers::run_tls),
    ("drivers_small_buffers", drivers::run_small_buffers),
    ("opening", opening::run),
    ("jwt", jwt::run),
    ("jwt_keys", jwt_keys::run),
    ("jwt_sources", jwt_sources::run),
    ("proxy_header", proxy_header::run),
    ("forwarded", forwarded::run),
    ("topics", topics::run),
    ("routes", routes::run),
    ("http_answers", http_answers::run),
    ("brokers", brokers::run),
];
