//! The engine for Python: it converts, waits without the interpreter, and maps errors. All that serves is below.

pub(crate) mod auth;
pub(crate) mod event;
pub(crate) mod handle;
pub(crate) mod session;
