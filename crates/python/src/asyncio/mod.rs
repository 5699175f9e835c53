//! Connections on event loops: asyncio, uvloop, rloop, and this library's own.
//!
//! - `connection` is the object that the application holds. `receiving`, `sending`, `writing`, `driving` and
//!   `listener` are its parts, and `access` has what all parts use.
//! - `fast_methods` is the calling convention of `recv` and `send`. `operation` is the awaitable that they
//!   return, and `waiter` the future that a task waits on: hand-written types.
//! - `state` is the state of a connection, `loop_state` the state that all connections of a loop share.
//! - `loop_adapter` has the callbacks that the loop holds for a connection. `epoll_registry` knows the
//!   descriptors of an epoll, and `selector` serves it inside `select()`.
//! - `broadcast` sends one message to many connections.
//! - `owner_mutex` locks the state of a connection, `gil_mutex` all other shared state. `invoke` calls Python
//!   code from callbacks of the loop.

mod access;
pub(crate) mod broadcast;
pub(crate) mod connection;
mod driving;
#[cfg(target_os = "linux")]
pub(crate) mod epoll_registry;
mod fast_methods;
mod gil_mutex;
mod invoke;
pub(crate) mod kind;
mod listener;
pub(crate) mod loop_adapter;
mod loop_callbacks;
pub(crate) mod loop_state;
mod operation;
mod owner_mutex;
mod raw;
mod ready;
mod receiving;
#[cfg(target_os = "linux")]
pub(crate) mod selector;
mod sending;
mod state;
mod waiter;
mod writing;

use pyo3::prelude::*;

pub(crate) use self::raw::is_initialized;

/// Creates the hand-written types.
pub(crate) fn init(py: Python<'_>) -> PyResult<()> {
    waiter::init(py)?;
    operation::init(py)?;
    fast_methods::init(py)
}
