//! How many connections this process may have open: its limit of file descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for everything that is no connection: standard streams, the poll, timers, what the libraries
/// open.
const RESERVE: u64 = 32;

/// Raises the limit as far as a process without privileges may; how many connections it then allows.
pub(crate) fn raise() -> usize {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // If it is refused, what holds is what counts.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    match getrlimit(Resource::Nofile).current {
        Some(current) => usize::try_from(current.saturating_sub(RESERVE)).unwrap_or(usize::MAX),
        None => usize::MAX,
    }
}

/// Sees to it that so many connections are allowed, or says how many are.
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
