//! The limit of pending handshakes, for servers written in Python: which handshakes to close.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use wirespeed_driver::accept::{self, BURST, Evicted, Eviction, GRACE, IDLE_TIME};

use crate::opening::connected::has_unread;
use crate::options::duration;

/// The unit by which clients are counted, for Python code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, IntoPyObject)]
pub(crate) enum Origin {
    Address(Vec<u8>),
    /// A host that is no IP address.
    Host(String),
}

/// Returns the key by which the handshakes of one client are counted together. `address` was returned by `accept`.
/// All clients of a Unix socket count as one, and so do all addresses of an IPv6 network of 64 bits.
#[pyfunction]
pub(crate) fn origin_of(address: &Bound<'_, PyAny>) -> PyResult<Origin> {
    let Ok(parts) = address.cast::<PyTuple>() else { return Ok(Origin::Address(Vec::new())) };
    let host = parts.get_item(0)?.str()?;
    let host = host.to_string_lossy();
    // RFC 4007 11: the zone follows a percent sign.
    let Ok(parsed) = host.split('%').next().unwrap_or_default().parse::<IpAddr>() else {
        return Ok(Origin::Host(host.into_owned()));
    };
    Ok(Origin::Address(match accept::Origin::of(Some(parsed)) {
        accept::Origin::Local => Vec::new(),
        accept::Origin::V4(octets) => octets.to_vec(),
        accept::Origin::V6(prefix) => prefix.to_vec(),
    }))
}

/// Limits the pending handshakes of a server: see the driver's [`accept::HandshakeLimiter`]. Times are seconds of the
/// caller's clock, starting at 0. Evicted clients are returned as their key and the number of clients with the same
/// origin; the caller disconnects them.
#[pyclass(frozen, module = "wirespeed._native")]
pub(crate) struct HandshakeLimiter {
    inner: Mutex<Inner>,
    start: Instant,
}

struct Inner {
    limiter: accept::HandshakeLimiter<u64, Origin>,
    /// The sockets of the clients whose unread bytes count.
    descriptors: HashMap<u64, RawFd>,
    last_key: u64,
}

impl Inner {
    fn remove_evicted(&mut self, evicted: impl IntoIterator<Item = Evicted<u64>>) -> Vec<(u64, usize)> {
        let remove = |evicted: Evicted<u64>| {
            self.descriptors.remove(&evicted.key);
            (evicted.key, evicted.same_origin)
        };
        evicted.into_iter().map(remove).collect()
    }
}

impl HandshakeLimiter {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, now: f64) -> Instant {
        let since = Duration::try_from_secs_f64(now).unwrap_or_default();
        self.start.checked_add(since).unwrap_or(self.start)
    }
}

/// Returns whether a client has sent bytes that were not read yet.
fn unread(descriptors: &HashMap<u64, RawFd>) -> impl Fn(u64) -> bool {
    |key| descriptors.get(&key).is_some_and(|descriptor| has_unread(*descriptor))
}

#[pymethods]
impl HandshakeLimiter {
    #[classattr]
    const BURST: usize = BURST;

    #[classattr]
    #[pyo3(name = "IDLE_TIME")]
    fn idle_time() -> f64 {
        IDLE_TIME.as_secs_f64()
    }

    #[classattr]
    #[pyo3(name = "GRACE")]
    fn grace() -> f64 {
        GRACE.as_secs_f64()
    }

    #[new]
    fn new(limit: usize, idle_time: f64, grace: f64) -> PyResult<Self> {
        let of = |name, seconds| duration(name, Some(seconds)).map(Option::unwrap_or_default);
        let limiter = accept::HandshakeLimiter::with_idle_time(limit, of("idle_time", idle_time)?, of("grace", grace)?);
        let inner = Inner { limiter, descriptors: HashMap::new(), last_key: 0 };
        Ok(Self { inner: Mutex::new(inner), start: Instant::now() })
    }

    fn __len__(&self) -> usize {
        self.lock().limiter.len()
    }

    #[getter]
    fn is_full(&self) -> bool {
        self.lock().limiter.is_full()
    }

    #[getter]
    fn room(&self) -> usize {
        self.lock().limiter.room()
    }

    /// Returns for how many seconds not to accept clients.
    fn delay(&self, now: f64) -> f64 {
        let (now, mut inner) = (self.at(now), self.lock());
        let Inner { limiter, descriptors, .. } = &mut *inner;
        limiter.delay(now, unread(descriptors)).as_secs_f64()
    }

    /// Adds a client with an address that `accept` returned; returns its key, and the clients evicted for it.
    /// `descriptor`: its socket, negative if unread bytes do not matter. `evict`: whether to evict others.
    fn enter(
        &self,
        address: &Bound<'_, PyAny>,
        descriptor: RawFd,
        now: f64,
        evict: bool,
    ) -> PyResult<(u64, Vec<(u64, usize)>)> {
        let origin = origin_of(address)?;
        let (now, mut inner) = (self.at(now), self.lock());
        inner.last_key += 1;
        let key = inner.last_key;
        let Inner { limiter, descriptors, .. } = &mut *inner;
        let evicted = if evict {
            limiter.enter(key, origin, now, unread(descriptors))
        } else {
            limiter.add(key, origin, now);
            Vec::new()
        };
        let evicted = inner.remove_evicted(evicted);
        if descriptor >= 0 {
            inner.descriptors.insert(key, descriptor);
        }
        Ok((key, evicted))
    }

    fn progress(&self, key: u64, now: f64) {
        let now = self.at(now);
        self.lock().limiter.progress(key, now);
    }

    fn remove(&self, key: u64) -> bool {
        let mut inner = self.lock();
        inner.descriptors.remove(&key);
        inner.limiter.remove(key)
    }

    /// Evicts some clients above the limit.
    fn trim(&self, now: f64) -> Vec<(u64, usize)> {
        let (now, mut inner) = (self.at(now), self.lock());
        let Inner { limiter, descriptors, .. } = &mut *inner;
        let evicted = limiter.trim(now, unread(descriptors));
        inner.remove_evicted(evicted)
    }

    /// Returns in how many seconds to call `trim`, `None` within the limit.
    fn trim_in(&self, now: f64) -> Option<f64> {
        self.lock().limiter.trim_in(self.at(now)).map(|left| left.as_secs_f64())
    }

    /// Evicts one client, whose descriptor is needed. Returns the seconds until that is possible, and the client;
    /// `None` without clients.
    fn evict_one(&self, now: f64) -> Option<(f64, Vec<(u64, usize)>)> {
        let (now, mut inner) = (self.at(now), self.lock());
        let Inner { limiter, descriptors, .. } = &mut *inner;
        match limiter.evict_one(now, unread(descriptors)) {
            Eviction::Empty => None,
            Eviction::After(remaining) => Some((remaining.as_secs_f64(), Vec::new())),
            Eviction::Done(evicted) => Some((0.0, inner.remove_evicted([evicted]))),
        }
    }
}
