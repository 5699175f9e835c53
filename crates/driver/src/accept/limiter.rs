//! Chooses the client to disconnect when too many opening handshakes are in progress.
//!
//! A new client takes the place of a client that makes the server wait: of the address with the most handshakes,
//! the one that has been silent longest. So a flood of half-open clients displaces itself, and other clients are
//! served meanwhile. A client is not disconnected before it has had time to send, so a burst of well-behaved
//! clients is served completely; for a short time there may be more than the limit.
//!
//! It knows no sockets and reads no clock: callers pass the time.

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

/// Whether a client may be disconnected now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due<K> {
    /// None before this time has passed.
    In(Duration),
    /// This client, unless it has sent bytes that were not read yet: then the server is late, and this counts as
    /// [progress](HandshakeLimiter::progress).
    Now(K),
}

/// The clients whose opening handshake the server waits for, by the caller's keys and by origin. Each method takes
/// time logarithmic in their number.
///
/// 1. [`Self::add`] each client, record its bytes with [`Self::progress`], [`Self::remove`] it at the end of its
///    handshake.
/// 2. While [`Self::is_over_limit`], disconnect the client that [`Self::next_victim`] returns.
/// 3. While [`Self::is_full`], accept no client until [`Self::delay`] has passed.
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

    /// Returns whether the limit is reached, so that a client should be disconnected before another is added.
    #[must_use]
    pub fn is_over_limit(&self) -> bool {
        self.len() >= self.limit
    }

    /// Returns whether `limit * BURST` is reached, so that a client must be disconnected before another is added.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Returns how many clients can be added before `limit * BURST` is reached.
    #[must_use]
    pub fn room(&self) -> usize {
        self.limit.saturating_mul(BURST).saturating_sub(self.len())
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

    /// Returns the next victim, and since when it has been silent.
    #[must_use]
    pub fn first(&self) -> Option<(K, Instant)> {
        let (_, order, origin) = self.ranking.first()?;
        self.origins.get(origin)?.get(order).copied()
    }

    /// Returns the number of clients with the same origin as this one.
    #[must_use]
    pub fn count_same_origin(&self, key: K) -> usize {
        let clients = self.places.get(&key).and_then(|(origin, _)| self.origins.get(origin));
        clients.map_or(0, BTreeMap::len)
    }

    /// Returns the client to disconnect now, as the limit is exceeded or a client arrives. `unread`: returns
    /// whether a client has sent bytes that were not read yet; then the server is late, and the client stays.
    pub fn next_victim(&mut self, now: Instant, unread: impl FnMut(K) -> bool) -> Option<K> {
        self.remaining(self.idle_time, now, unread).is_zero().then(|| self.first()).flatten().map(|(key, _)| key)
    }

    /// Returns the time until [`Self::next_victim`] may return a client, if the limit is exceeded.
    #[must_use]
    pub fn next_victim_in(&self, now: Instant) -> Option<Duration> {
        let (_, since) = self.first().filter(|_| self.len() > self.limit)?;
        Some((since + self.idle_time).saturating_duration_since(now))
    }

    /// Returns the time until a client can be disconnected for one that cannot wait; zero: now.
    pub fn delay(&mut self, now: Instant, unread: impl FnMut(K) -> bool) -> Duration {
        self.remaining(self.grace, now, unread)
    }

    /// Returns the remaining time of the next victim. A client with unread bytes gets the full time again.
    fn remaining(&mut self, idle_time: Duration, now: Instant, mut unread: impl FnMut(K) -> bool) -> Duration {
        loop {
            match self.due(idle_time, now) {
                Due::In(remaining) => return remaining,
                Due::Now(key) if unread(key) => self.progress(key, now), // each client is asked once in that time
                Due::Now(_) => return Duration::ZERO,
            };
        }
    }

    /// Returns whether the next victim has been silent for `idle_time`, like [`Self::next_victim`] and
    /// [`Self::delay`], for callers that check for unread bytes themselves.
    #[must_use]
    pub fn due(&self, idle_time: Duration, now: Instant) -> Due<K> {
        let Some((key, since)) = self.first() else { return Due::In(idle_time) };
        match (since + idle_time).saturating_duration_since(now) {
            Duration::ZERO => Due::Now(key),
            remaining => Due::In(remaining),
        }
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
