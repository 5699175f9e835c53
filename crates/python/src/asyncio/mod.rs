//! Connections on event loops: asyncio, uvloop, rloop, our own.
//!
//! - `connection` is the object that the application holds, `access` what all its parts use; `receiving`,
//!   `sending`, `writing`, `driving`, `listener` are what it does.
//! - `calls` is how CPython calls `recv` and `send`; `operation` is what `recv()` and `send()` return,
//!   `waiter` what a task waits on: hand-written types.
//! - `state` is what a connection knows, `loop_state` what all connections of a loop share.
//! - `port` is what the loop holds of a connection; `epolls` is what an epoll of ours watches, `selector`
//!   serves it inside `select()`.
//! - `broadcast` is one message for many connections.
//! - `exclusive` is the lock of a connection's state, `guarded` that of everything else; `invoke` is how
//!   Python code is called from callbacks of the loop.

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

pub(crate) use self::raw::is_filled;

/// Makes the hand-written types.
pub(crate) fn init(py: Python<'_>) -> PyResult<()> {
    waiter::init(py)?;
    operation::init(py)?;
    fast_methods::init(py)
}
