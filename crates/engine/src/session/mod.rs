//! Sessions as the application sees them.

mod handle;
pub(crate) mod registry;
pub(crate) mod request_head;

pub(crate) use self::handle::ClientInfo;
pub use self::handle::{NotRefreshed, Refusal, Session};
