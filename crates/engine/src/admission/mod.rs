//! Limits on sessions in total, per address and per user. They apply before a session exists and before Python sees
//! an event.
//!
//! Owns the counters that all workers share. A client holds its share of them as a [`Permit`], and dropping the permit
//! gives the share back. Pending handshakes are limited by
//! [`HandshakeLimiter`](wirespeed_driver::accept::HandshakeLimiter), of which each worker has its
//! own.

mod forwarded;
mod keyed_counters;
pub(crate) mod operator_tokens;
mod proxy_header;
mod rate;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use wirespeed_driver::accept::Origin;
use wirespeed_driver::protocol::handshake::{HeaderList, Response, ServerHandshake};

pub(crate) use self::proxy_header::{NotProxyHeader, ProxyHead};

use self::keyed_counters::KeyedCounters;
use self::rate::AddressRate;
use crate::config::Limits;
use crate::reasons::Reason;

/// Connections that may be answered at once although the engine will reject them: the answer needs the whole handshake,
/// with TLS some milliseconds. Beyond this limit the engine closes the one that has been idle longest, or the new one.
const MAX_REJECTIONS: usize = 64;

/// The reason why a client is rejected, and when it may try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) reason: Reason,
    retry_after: Duration,
}

impl Rejection {
    /// Returns the HTTP response for the client.
    pub(crate) fn response(self, handshake: &ServerHandshake) -> Response {
        let (status, text) = match self.reason {
            Reason::Full => (503, "There are too many connections.\n"),
            Reason::Address => (429, "There are too many connections of this address.\n"),
            Reason::User => (429, "There are too many connections of this user.\n"),
            _ => (429, "Too many connections were made in a short time.\n"),
        };
        // RFC 9110 10.2.3: whole seconds. They are rounded up, because an earlier attempt would fail.
        let seconds = self.retry_after.as_nanos().div_ceil(1_000_000_000).max(1).to_string();
        let mut headers = HeaderList::new();
        for (name, value) in [("Retry-After", seconds.as_str()), ("Content-Type", "text/plain; charset=utf-8")] {
            let _ = headers.push(name, value); // valid
        }
        handshake.reject(status, &headers, text.as_bytes()).unwrap_or_else(|error| handshake.reject_error(&error))
    }
}

/// Returns the key under which an address is counted.
pub(crate) fn origin_of(address: Option<SocketAddr>) -> Origin {
    Origin::of(address.map(|address| address.ip()))
}

/// The counters of all workers.
pub(crate) struct Admission {
    limits: Limits,
    sessions: AtomicUsize,
    addresses: KeyedCounters<Origin>,
    users: KeyedCounters<Box<str>>,
    rate: Option<AddressRate>,
    rejections: AtomicUsize,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        let rate = limits.rate_per_address.map(AddressRate::new);
        Arc::new(Self {
            limits,
            sessions: AtomicUsize::new(0),
            addresses: KeyedCounters::default(),
            users: KeyedCounters::default(),
            rate,
            rejections: AtomicUsize::new(0),
        })
    }

    /// Counts a new connection of an address.
    ///
    /// # Errors
    /// The address has exceeded its rate.
    pub(crate) fn count_connection(&self, origin: Origin) -> Result<(), Rejection> {
        match self.rate.as_ref().map(|rate| rate.check(origin)) {
            Some(Err(retry_after)) => Err(Rejection { reason: Reason::RateLimited, retry_after }),
            _ => Ok(()),
        }
    }

    /// Returns the rejection of a client for which no descriptor is free.
    pub(crate) fn out_of_descriptors(&self) -> Rejection {
        Rejection { reason: Reason::Full, retry_after: self.limits.retry_after }
    }

    /// Returns why a session of this address would be rejected now; `None` if it would be admitted.
    pub(crate) fn would_reject(&self, origin: Option<Origin>) -> Option<Reason> {
        let Limits { max_connections, max_connections_per_address, .. } = self.limits;
        if self.sessions.load(Ordering::Relaxed) >= max_connections {
            return Some(Reason::Full);
        }
        let address_full = max_connections_per_address != usize::MAX
            && origin.is_some_and(|origin| self.addresses.count(&origin) >= max_connections_per_address);
        address_full.then_some(Reason::Address)
    }

    /// Reserves one of [`MAX_REJECTIONS`] for a connection that will be rejected; `None` if all are in use.
    pub(crate) fn reserve_rejection(self: &Arc<Self>) -> Option<RejectionSlot> {
        try_increment(&self.rejections, MAX_REJECTIONS).then(|| RejectionSlot(Arc::clone(self)))
    }

    /// Whether [`Self::reserve_rejection`] would succeed now.
    pub(crate) fn can_reserve_rejection(&self) -> bool {
        self.rejections.load(Ordering::Relaxed) < MAX_REJECTIONS
    }

    /// Reserves a session for an address.
    ///
    /// # Errors
    /// A limit is reached.
    pub(crate) fn admit(self: &Arc<Self>, origin: Origin) -> Result<Permit, Rejection> {
        let rejected = |reason| Rejection { reason, retry_after: self.limits.retry_after };
        if !try_increment(&self.sessions, self.limits.max_connections) {
            return Err(rejected(Reason::Full));
        }
        let mut permit = Permit { admission: Arc::clone(self), origin: None, user: None };
        if self.limits.max_connections_per_address != usize::MAX {
            if !self.addresses.try_increment(&origin, self.limits.max_connections_per_address) {
                return Err(rejected(Reason::Address));
            }
            permit.origin = Some(origin);
        }
        Ok(permit)
    }
}

/// Increments the counter unless it has reached the limit. Returns whether it did.
fn try_increment(count: &AtomicUsize, limit: usize) -> bool {
    let next = |count: usize| (count < limit).then_some(count + 1);
    count.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok()
}

/// One of [`MAX_REJECTIONS`]; dropping it gives it back.
pub(crate) struct RejectionSlot(Arc<Admission>);

impl Drop for RejectionSlot {
    fn drop(&mut self) {
        self.0.rejections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A session's share of the counters: in total, of its address and of its user. Dropping it gives the share back.
pub(crate) struct Permit {
    admission: Arc<Admission>,
    origin: Option<Origin>,
    user: Option<Box<str>>,
}

impl Permit {
    /// Counts the session for a user too.
    ///
    /// # Errors
    /// The user has reached the maximum number of sessions.
    pub(crate) fn count_user(&mut self, user: &str) -> Result<(), Rejection> {
        let Limits { max_sessions_per_user: limit, retry_after, .. } = self.admission.limits;
        if limit == usize::MAX || user.is_empty() || self.user.is_some() {
            return Ok(());
        }
        let user: Box<str> = user.into();
        if !self.admission.users.try_increment(&user, limit) {
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
            self.admission.addresses.decrement(origin);
        }
        if let Some(user) = &self.user {
            self.admission.users.decrement(user);
        }
    }
}
