//! Reserves file descriptors, so that sessions cannot use all of them.
//!
//! The system gives a new file the lowest free number, so a number shows how many are left. Sessions get none of the
//! highest numbers. The first half of these is for clients that get a 503 and for `/health` and `/ready`; the second
//! half is for the application.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

/// The maximum number of reserved descriptors.
const RESERVE: usize = 1024;

/// The reserved part is one in this number, if that is less than [`RESERVE`].
const RESERVED_PART: usize = 8;

/// The last result of [`limit`]. The system is asked again only for descriptors in the reserve.
static LAST_LIMIT: AtomicUsize = AtomicUsize::new(0);

/// Returns how many descriptors this process may have.
pub(crate) fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit.try_into().unwrap_or(usize::MAX));
    LAST_LIMIT.store(limit, Ordering::Relaxed);
    limit
}

fn reserve(limit: usize) -> usize {
    (limit / RESERVED_PART).min(RESERVE)
}

/// Whether a descriptor is in the reserve, which sessions must not use.
pub(crate) fn is_reserved(descriptor: RawFd) -> bool {
    let number = descriptor.unsigned_abs() as usize;
    let is_beyond = |limit: usize| number >= limit - reserve(limit);
    is_beyond(LAST_LIMIT.load(Ordering::Relaxed)) && is_beyond(limit())
}

/// Whether a descriptor is reserved for the application, or would be after `others` more are opened.
pub(crate) fn is_reserved_for_application(descriptor: RawFd, others: usize) -> bool {
    let limit = limit();
    (descriptor.unsigned_abs() as usize).saturating_add(others) >= limit - reserve(limit) / 2
}

/// Returns the descriptor that the next file gets, found by a copy of `file`; `None` if none is free.
pub(crate) fn next_free(file: impl AsFd) -> Option<RawFd> {
    fcntl_dupfd_cloexec(file, 0).ok().map(|next| next.as_raw_fd())
}

/// Duplicates the descriptor of a file for a session; `None` if all that sessions may use are taken.
pub(crate) fn duplicate_unreserved(file: impl AsFd) -> Option<OwnedFd> {
    fcntl_dupfd_cloexec(file, 0).ok().filter(|copy| !is_reserved(copy.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_an_eighth_up_to_1024() {
        assert_eq!([64, 1024, 1 << 20, usize::MAX].map(reserve), [8, 128, 1024, 1024]);
    }
}
