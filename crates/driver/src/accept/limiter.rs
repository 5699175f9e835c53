//! Chooses the client to disconnect when too many opening handshakes are in progress.
//!
//! A new client takes the place of a client that makes the server wait: of the address with the most handshakes,
//! the one that has been silent longest. So a flood of half-open clients displaces itself, and other clients are
//! served meanwhile. A client is not disconnected before it has had time to send, so a burst of well-behaved
//! clients is served completely; for a short time there may be more than the limit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a client may be silent while the limit is exceeded. Thousands of well-behaved clients that connect at
/// once have sent their requests long before, even over slow networks with TLS. Others cost a file descriptor and
/// some kilobytes each for this time.
pub const IDLE_TIME: Duration = Duration::from_secs(1);

/// How long a client may be silent at `limit * BURST` handshakes, or without free file descriptors. Its bytes may
/// be on their way.
pub const GRACE: Duration = Duration::from_millis(20);

/// The multiple of the limit that is never exceeded.
pub const BURST: usize = 16;

/// The maximum number of clients that a new one evicts: two, so that the number falls.
const EVICTED_BY_NEW: usize = 2;

/// The maximum number of clients that [`HandshakeLimiter::trim`] evicts: 1 or 2 ms, so that the server can do other
/// work.
const TRIMMED_AT_ONCE: usize = 64;

/// The interval between calls of [`HandshakeLimiter::trim`] while many clients are above the limit.
const TRIM_INTERVAL: Duration = Duration::from_millis(5);

/// The unit that is counted: one customer of a network, as far as its address shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// An IPv4 address.
    V4([u8; 4]),
    /// The first 64 bits of an IPv6 address: one customer has all addresses with this prefix.
    V6([u8; 8]),
    /// All clients without an address: those of Unix sockets.
    Local,
}

impl Origin {
    /// Returns the origin of an address; without one: [`Self::Local`].
    #[must_use]
    pub fn of(address: Option<IpAddr>) -> Self {
        match address.map(|address| address.to_canonical()) {
            None => Self::Local,
            Some(IpAddr::V4(address)) => Self::V4(address.octets()),
            Some(IpAddr::V6(address)) => {
                let mut prefix = [0; 8];
                prefix.copy_from_slice(&address.octets()[..8]);
                Self::V6(prefix)
            }
        }
    }
}

/// A client that the limiter has removed, and that the caller must disconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted<K> {
    /// The caller's key.
    pub key: K,
    /// The number of clients with the same origin, including this one.
    pub same_origin: usize,
}

/// The result of [`HandshakeLimiter::evict_one`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction<K> {
    /// There is no client.
    Empty,
    /// No client may be disconnected before this time has passed.
    After(Duration),
    /// The caller must disconnect this client.
    Done(Evicted<K>),
}

/// The clients whose opening handshake the server waits for, by the caller's keys and by origin. Each method takes
/// time logarithmic in their number.
///
/// 1. Accept clients while [`Self::delay`] is zero. [`Self::enter`] each, record its bytes with [`Self::progress`],
///    and [`Self::remove`] it at the end of its handshake.
/// 2. Call [`Self::trim`] after [`Self::trim_in`].
/// 3. Call [`Self::evict_one`] when the system has no more descriptors.
///
/// These methods remove the clients that they return; the caller disconnects them. `unread` returns whether a client
/// has sent bytes that were not read yet. Then the server is late, not the client, which counts as progress.
pub struct HandshakeLimiter<K, O = Origin> {
    limit: usize,
    idle_time: Duration,
    grace: Duration,
    /// Counts all events; a client with a lower number has been silent longer.
    order: u64,
    places: HashMap<K, (O, u64)>,
    /// The clients of each origin, the one that has been silent longest first, with the time of its last bytes.
    origins: HashMap<O, BTreeMap<u64, (K, Instant)>>,
    /// The first is the next victim: most clients, then the longest silence.
    ranking: BTreeSet<(Reverse<usize>, u64, O)>,
}

impl<K: Copy + Eq + Hash, O: Clone + Ord + Hash> HandshakeLimiter<K, O> {
    /// Creates an empty limiter for `limit` clients, at least 1.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self::with_idle_time(limit, IDLE_TIME, GRACE)
    }

    /// Creates a limiter with other times than [`IDLE_TIME`] and [`GRACE`].
    #[must_use]
    pub fn with_idle_time(limit: usize, idle_time: Duration, grace: Duration) -> Self {
        Self {
            limit: limit.max(1),
            idle_time,
            grace,
            order: 0,
            places: HashMap::new(),
            origins: HashMap::new(),
            ranking: BTreeSet::new(),
        }
    }

    /// Returns the number of clients.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether there are no clients.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns whether `limit * BURST` is reached, so that a client must be evicted before another is added.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Returns how many clients can be added before `limit * BURST` is reached.
    #[must_use]
    pub fn room(&self) -> usize {
        self.limit.saturating_mul(BURST).saturating_sub(self.len())
    }

    /// Returns how long the server must not accept clients, because there are too many that had no time to send yet.
    pub fn delay(&mut self, now: Instant, unread: impl FnMut(K) -> bool) -> Duration {
        if self.is_full() { self.remaining(self.grace, now, unread) } else { Duration::ZERO }
    }

    /// Adds a client. Evicts others if the limit is exceeded: up to two that are late, or any if the limiter is full.
    pub fn enter(&mut self, key: K, origin: O, now: Instant, mut unread: impl FnMut(K) -> bool) -> Vec<Evicted<K>> {
        let mut evicted = Vec::new();
        while self.len() >= self.limit && evicted.len() < EVICTED_BY_NEW {
            let Some(late) = self.take_late(now, &mut unread) else { break };
            evicted.push(late);
        }
        if self.is_full() {
            evicted.extend(self.take_next());
        }
        self.add(key, origin, now);
        evicted
    }

    /// Adds a client, regardless of the limit.
    pub fn add(&mut self, key: K, origin: O, now: Instant) {
        self.remove(key);
        self.order += 1;
        let order = self.order;
        self.places.insert(key, (origin.clone(), order));
        self.change(origin, |clients| {
            clients.insert(order, (key, now));
        });
    }

    /// Records that bytes arrived from a client. Their number does not matter, because the handshake timeout limits
    /// the total. Returns false for a client that is not in the limiter.
    pub fn progress(&mut self, key: K, now: Instant) -> bool {
        let Some((origin, place)) = self.places.get_mut(&key) else { return false };
        self.order += 1;
        let (origin, before, order) = (origin.clone(), std::mem::replace(place, self.order), self.order);
        self.change(origin, |clients| {
            clients.remove(&before);
            clients.insert(order, (key, now));
        });
        true
    }

    /// Removes a client. Returns whether it was there.
    pub fn remove(&mut self, key: K) -> bool {
        let Some((origin, order)) = self.places.remove(&key) else { return false };
        self.change(origin, |clients| {
            clients.remove(&order);
        });
        true
    }

    /// Evicts some of the clients above the limit. Call it again after [`Self::trim_in`].
    pub fn trim(&mut self, now: Instant, mut unread: impl FnMut(K) -> bool) -> Vec<Evicted<K>> {
        let mut evicted = Vec::new();
        while self.late_in(now).is_some_and(|left| left.is_zero()) && evicted.len() < TRIMMED_AT_ONCE {
            let Some(late) = self.take_late(now, &mut unread) else { break };
            evicted.push(late);
        }
        evicted
    }

    /// Returns when to call [`Self::trim`]; `None` within the limit.
    #[must_use]
    pub fn trim_in(&self, now: Instant) -> Option<Duration> {
        self.late_in(now).map(|left| left.max(TRIM_INTERVAL))
    }

    /// Evicts the next victim, whose descriptor is needed, even within the limit.
    pub fn evict_one(&mut self, now: Instant, unread: impl FnMut(K) -> bool) -> Eviction<K> {
        if self.is_empty() {
            return Eviction::Empty;
        }
        match self.remaining(self.grace, now, unread) {
            Duration::ZERO => self.take_next().map_or(Eviction::Empty, Eviction::Done),
            remaining => Eviction::After(remaining),
        }
    }

    /// Returns the client that is evicted next, and since when it has been silent.
    #[must_use]
    pub fn next_victim(&self) -> Option<(K, Instant)> {
        let (_, order, origin) = self.ranking.first()?;
        self.origins.get(origin)?.get(order).copied()
    }

    fn take_next(&mut self) -> Option<Evicted<K>> {
        let (Reverse(same_origin), ..) = *self.ranking.first()?;
        let (key, _) = self.next_victim()?;
        self.remove(key);
        Some(Evicted { key, same_origin })
    }

    /// Removes the next victim, if it has been silent for the idle time.
    fn take_late(&mut self, now: Instant, unread: impl FnMut(K) -> bool) -> Option<Evicted<K>> {
        self.remaining(self.idle_time, now, unread).is_zero().then(|| self.take_next()).flatten()
    }

    /// Returns in what time the next victim is late; `None` within the limit.
    fn late_in(&self, now: Instant) -> Option<Duration> {
        let (_, since) = self.next_victim().filter(|_| self.len() > self.limit)?;
        Some((since + self.idle_time).saturating_duration_since(now))
    }

    /// Returns the remaining time of the next victim. A client with unread bytes gets the full time again, so each
    /// client is asked once in that time.
    fn remaining(&mut self, idle_time: Duration, now: Instant, mut unread: impl FnMut(K) -> bool) -> Duration {
        while let Some((key, since)) = self.next_victim() {
            let remaining = (since + idle_time).saturating_duration_since(now);
            if !remaining.is_zero() || !unread(key) {
                return remaining;
            }
            self.progress(key, now);
        }
        idle_time
    }

    fn change(&mut self, origin: O, change: impl FnOnce(&mut BTreeMap<u64, (K, Instant)>)) {
        let clients = self.origins.entry(origin.clone()).or_default();
        if let Some(order) = clients.keys().next() {
            self.ranking.remove(&(Reverse(clients.len()), *order, origin.clone()));
        }
        change(clients);
        if let Some(order) = clients.keys().next() {
            self.ranking.insert((Reverse(clients.len()), *order, origin));
        } else {
            self.origins.remove(&origin);
        }
    }
}
