//! File descriptors that sessions leave to others.
//!
//! The system gives a new file the lowest number that is free, so that a number tells how many are left. No session has
//! one of the highest numbers: the first half of these is for clients that are answered with 503, and for `/health` and
//! `/ready`, the second half for the application.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

/// Kept at most, where a process may have many.
const RESERVE: usize = 1024;

/// The part of all that is kept, where it may have few.
const PART: usize = 8;

/// The last result of [`most`]: the limit is read again only for numbers beyond it.
static KNOWN: AtomicUsize = AtomicUsize::new(0);

/// How many this process may have.
pub(crate) fn most() -> usize {
    let most = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| most.try_into().unwrap_or(usize::MAX));
    KNOWN.store(most, Ordering::Relaxed);
    most
}

fn reserve(most: usize) -> usize {
    (most / PART).min(RESERVE)
}

/// Whether no session is to have this one.
pub(crate) fn is_reserved(descriptor: RawFd) -> bool {
    let number = descriptor.unsigned_abs() as usize;
    let is_beyond = |most: usize| number >= most - reserve(most);
    is_beyond(KNOWN.load(Ordering::Relaxed)) && is_beyond(most())
}

/// Whether it is one of those that are kept for the application, or may be once `others` more are taken.
pub(crate) fn is_last(descriptor: RawFd, others: usize) -> bool {
    let most = most();
    (descriptor.unsigned_abs() as usize).saturating_add(others) >= most - reserve(most) / 2
}

/// The one that the next file gets; `None`: there is none. It is found with a copy of `file`.
pub(crate) fn next(file: impl AsFd) -> Option<RawFd> {
    fcntl_dupfd_cloexec(file, 0).ok().map(|next| next.as_raw_fd())
}

/// Another descriptor of the file, one that a session may have; `None`: all of these are taken.
pub(crate) fn lower(file: impl AsFd) -> Option<OwnedFd> {
    fcntl_dupfd_cloexec(file, 0).ok().filter(|lower| !is_reserved(lower.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_is_kept_and_no_more_than_a_thousand() {
        assert_eq!([64, 1024, 1 << 20, usize::MAX].map(reserve), [8, 128, 1024, 1024]);
    }
}
