//! The engine for Python: it converts, waits without the interpreter, and maps errors. All that serves is below.

mod arguments;
pub(crate) mod auth;
pub(crate) mod batch;
pub(crate) mod broker;
pub(crate) mod capacity;
pub(crate) mod event;
pub(crate) mod handle;
pub(crate) mod limits;
mod many;
pub(crate) mod message;
pub(crate) mod operations;
mod routes;
pub(crate) mod session;
pub(crate) mod wakers;
