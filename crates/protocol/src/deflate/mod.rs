//! permessage-deflate (RFC 7692): what is negotiated, and the codec.

pub mod codec;
pub mod negotiate;

pub use codec::Contexts;
pub use negotiate::{Config, Params};
