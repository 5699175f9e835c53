//! permessage-deflate (RFC 7692): its negotiation and its codec.

pub mod codec;
pub mod negotiate;

pub use codec::Contexts;
pub use negotiate::{Config, Params};
