//! Accepting clients, for servers written in Python. The rules are in `driver::accept`.

pub(crate) mod limiter;
pub(crate) mod pending;
