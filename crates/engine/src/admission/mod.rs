//! How many clients there may be, of everybody, of an address and of a user, and what becomes of those that are
//! more: before there is a session, and before Python hears of anything.
//!
//! Owns the counts that all workers share. What a client holds of them is a [`Permit`], given back when that is
//! dropped: whatever ends a session, its place is free. Openings are bounded by
//! [`Pending`](wirespeed_driver::opening::pending::Pending), of which each worker has its own.

mod proxies;
mod rate;
mod shares;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use wirespeed_driver::opening::handshake_limiter::Origin;
use wirespeed_driver::protocol::handshake::{HeaderList, Response, ServerHandshake};

pub use self::proxies::{ForwardedHeader, Networks, Proxies};
pub(crate) use self::proxies::{NoHeader, ProxyHead};
pub use self::rate::Rate;

use self::rate::AddressRate;
use self::shares::Shares;
use crate::reasons::Reason;

/// Clients at once whose request is awaited though it is known from the beginning that they will be refused: each costs
/// a handshake, with TLS some milliseconds. Beyond that the one goes that was silent longest, or whoever comes.
const ANSWERS: usize = 64;

/// How many clients there may be. What is refused by it is answered with 503 or 429 and `Retry-After`.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Sessions at most. More: 503.
    pub max_connections: usize,
    /// Clients whose request is awaited, for longer than a second: see
    /// [`Pending`](wirespeed_driver::opening::pending::Pending). Each worker has its part of them.
    pub max_pending: usize,
    /// Sessions of one address; of IPv6, of 64 bits of it. More: 429.
    pub max_connections_per_address: usize,
    /// New connections of one address. More: 429.
    pub rate_per_address: Option<Rate>,
    /// Sessions of one user, by the `sub` of its token; tokens without one are nobody's. More: 429.
    pub max_sessions_per_user: usize,
    /// What whoever is one too many is told to wait, where nothing else says how long.
    pub retry_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: usize::MAX,
            max_pending: 1024,
            max_connections_per_address: usize::MAX,
            rate_per_address: None,
            max_sessions_per_user: usize::MAX,
            retry_after: Duration::from_secs(5),
        }
    }
}

/// Why somebody has no place, and when to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) reason: Reason,
    retry_after: Duration,
}

impl Rejection {
    /// What it is told.
    pub(crate) fn response(self, handshake: &ServerHandshake) -> Response {
        let (status, text) = match self.reason {
            Reason::Full => (503, "There are too many connections.\n"),
            Reason::Address => (429, "There are too many connections of this address.\n"),
            Reason::User => (429, "There are too many connections of this user.\n"),
            _ => (429, "Too many connections were made in a short time.\n"),
        };
        // RFC 9110 10.2.3: whole seconds, and to come back too early would be in vain.
        let seconds = self.retry_after.as_nanos().div_ceil(1_000_000_000).max(1).to_string();
        let mut headers = HeaderList::new();
        for (name, value) in [("Retry-After", seconds.as_str()), ("Content-Type", "text/plain; charset=utf-8")] {
            let _ = headers.push(name, value); // valid
        }
        handshake.reject(status, &headers, text.as_bytes()).unwrap_or_else(|error| handshake.reject_error(&error))
    }
}

/// What an address counts for.
pub(crate) fn origin(address: Option<SocketAddr>) -> Origin {
    Origin::of(address.map(|address| address.ip()))
}

/// The counts, for all workers.
pub(crate) struct Admission {
    limits: Limits,
    sessions: AtomicUsize,
    addresses: Shares<Origin>,
    users: Shares<Box<str>>,
    rate: Option<AddressRate>,
    answers: AtomicUsize,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        let rate = limits.rate_per_address.map(AddressRate::new);
        Arc::new(Self {
            limits,
            sessions: AtomicUsize::new(0),
            addresses: Shares::default(),
            users: Shares::default(),
            rate,
            answers: AtomicUsize::new(0),
        })
    }

    /// Counts a new connection of an address.
    ///
    /// # Errors
    /// There were too many.
    pub(crate) fn count(&self, origin: Origin) -> Result<(), Rejection> {
        match self.rate.as_ref().map(|rate| rate.check(origin)) {
            Some(Err(retry_after)) => Err(Rejection { reason: Reason::RateLimited, retry_after }),
            _ => Ok(()),
        }
    }

    /// The answer to a client for which there is no descriptor.
    pub(crate) fn full(&self) -> Rejection {
        Rejection { reason: Reason::Full, retry_after: self.limits.retry_after }
    }

    /// Whether one of this address would be refused now.
    pub(crate) fn foresee(&self, origin: Option<Origin>) -> Option<Reason> {
        let Limits { max_connections, max_connections_per_address, .. } = self.limits;
        if self.sessions.load(Ordering::Relaxed) >= max_connections {
            return Some(Reason::Full);
        }
        let crowded = max_connections_per_address != usize::MAX
            && origin.is_some_and(|origin| self.addresses.count(&origin) >= max_connections_per_address);
        crowded.then_some(Reason::Address)
    }

    /// For one that will be refused, the permission to be told so; `None`: as many are as may be.
    pub(crate) fn answer(self: &Arc<Self>) -> Option<Answer> {
        take(&self.answers, ANSWERS).then(|| Answer(Arc::clone(self)))
    }

    /// Whether there may be one more of them.
    pub(crate) fn can_answer(&self) -> bool {
        self.answers.load(Ordering::Relaxed) < ANSWERS
    }

    /// A session's place.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn admit(self: &Arc<Self>, origin: Origin) -> Result<Permit, Rejection> {
        let turned = |reason| Rejection { reason, retry_after: self.limits.retry_after };
        if !take(&self.sessions, self.limits.max_connections) {
            return Err(turned(Reason::Full));
        }
        let mut permit = Permit { admission: Arc::clone(self), origin: None, user: None };
        if self.limits.max_connections_per_address != usize::MAX {
            if !self.addresses.take(&origin, self.limits.max_connections_per_address) {
                return Err(turned(Reason::Address));
            }
            permit.origin = Some(origin);
        }
        Ok(permit)
    }
}

/// Counts one more, if that is not too many.
fn take(count: &AtomicUsize, limit: usize) -> bool {
    let next = |count: usize| (count < limit).then_some(count + 1);
    count.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok()
}

/// That one more may be answered, while it lasts.
pub(crate) struct Answer(Arc<Admission>);

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.answers.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A session's place among all, among those of its address and among those of its user, while it lasts.
pub(crate) struct Permit {
    admission: Arc<Admission>,
    origin: Option<Origin>,
    user: Option<Box<str>>,
}

impl Permit {
    /// Counts it for a user too.
    ///
    /// # Errors
    /// The user has as many sessions as one may.
    pub(crate) fn count_user(&mut self, user: &str) -> Result<(), Rejection> {
        let Limits { max_sessions_per_user: limit, retry_after, .. } = self.admission.limits;
        if limit == usize::MAX || user.is_empty() || self.user.is_some() {
            return Ok(());
        }
        let user: Box<str> = user.into();
        if !self.admission.users.take(&user, limit) {
            return Err(Rejection { reason: Reason::User, retry_after });
        }
        self.user = Some(user);
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.sessions.fetch_sub(1, Ordering::AcqRel);
        if let Some(origin) = &self.origin {
            self.admission.addresses.give_back(origin);
        }
        if let Some(user) = &self.user {
            self.admission.users.give_back(user);
        }
    }
}
