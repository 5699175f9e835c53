//! The engine for Python: converts arguments and results, waits while detached from the interpreter, and maps errors.
//! The crate `wirespeed_engine` does everything else.

mod arguments;
pub(crate) mod auth;
pub(crate) mod batch;
pub(crate) mod broker;
mod capacity;
pub(crate) mod event;
pub(crate) mod handle;
pub(crate) mod limits;
pub(crate) mod logs;
mod many;
pub(crate) mod message;
pub(crate) mod operations;
mod refusals;
mod routes;
pub(crate) mod session;
pub(crate) mod wakers;
