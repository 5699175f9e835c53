//! The limit of file descriptors, which bounds the number of connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are not connections: standard streams, epoll, timers, and those of libraries.
const RESERVE: u64 = 32;

/// Raises the soft limit to the hard limit. Returns the number of connections that it allows.
pub(crate) fn raise() -> usize {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // If that fails, the current limit applies.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    match getrlimit(Resource::Nofile).current {
        Some(current) => usize::try_from(current.saturating_sub(RESERVE)).unwrap_or(usize::MAX),
        None => usize::MAX,
    }
}

/// Raises the limit. Returns an error if it allows fewer connections than these.
pub(crate) fn allow(connections: usize) -> Result<(), String> {
    let allowed = raise();
    if connections <= allowed {
        return Ok(());
    }
    Err(format!(
        "{connections} connections are too many: the limit of file descriptors of this process allows {allowed}; \
         raise it with `ulimit -n {}`, or choose fewer --connections",
        connections as u64 + RESERVE
    ))
}
