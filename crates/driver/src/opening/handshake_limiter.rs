//! Who goes when more clients are in the opening handshake than there may be.
//!
//! Whoever comes takes the place of a client that lets the server wait: of the address that has most of them, the
//! one that has sent nothing for longest. So a flood of half-open clients drives out itself, and others are served
//! meanwhile. Nobody goes who has had no time to speak, so that a burst of clients that mean well is served whole:
//! for a short time there may be more of them.
//!
//! There is no socket and no clock in here: times are arguments.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a client may be silent although there are more than there may be. Thousands that come at the same moment
/// and mean well have all spoken long before, even over slow networks with TLS; those that do not, cost a descriptor
/// and some kilobytes each for this time.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// The same when there are far too many, or no more descriptors. What they have sent may be on its way.
pub const GRACE: Duration = Duration::from_millis(20);

/// How many times more than there may be is far too many.
pub const BURST: usize = 16;

/// What an address counts for: one customer of a network, as far as one can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// An address of IPv4.
    V4([u8; 4]),
    /// The first 64 bits of one of IPv6: a customer has all that begin so.
    V6([u8; 8]),
    /// All clients without an address: those of Unix sockets.
    Local,
}

impl Origin {
    /// Of an address; without one: [`Self::Local`].
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

/// Whose turn to go it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due<K> {
    /// Nobody's before this time has passed.
    In(Duration),
    /// This one's, unless it has sent what nobody has read yet: then the server is late, and not the client, and
    /// this is [progress](Pending::progress).
    Now(K),
}

/// The clients that are in the opening handshake, as far as it waits for them, by the keys that the caller has for
/// them, and by what their addresses count for. Each method takes a time that grows with the logarithm of their
/// number.
pub struct HandshakeLimiter<K, O = Origin> {
    limit: usize,
    patience: Duration,
    grace: Duration,
    /// Of all that happens: greater than that of any client which was silent longer.
    order: u64,
    places: HashMap<K, (O, u64)>,
    /// Of each address its clients, the one that was silent longest first, and since when.
    origins: HashMap<O, BTreeMap<u64, (K, Instant)>>,
    /// The first is the one who has to give: most clients, then the longest silence.
    ranking: BTreeSet<(Reverse<usize>, u64, O)>,
}

impl<K: Copy + Eq + Hash, O: Clone + Ord + Hash> HandshakeLimiter<K, O> {
    /// Nobody; there may be `limit`, 1 at least.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self::with_idle_time(limit, PATIENCE, GRACE)
    }

    /// The same, with other times than [`PATIENCE`] and [`GRACE`].
    #[must_use]
    pub fn with_idle_time(limit: usize, patience: Duration, grace: Duration) -> Self {
        Self {
            limit: limit.max(1),
            patience,
            grace,
            order: 0,
            places: HashMap::new(),
            origins: HashMap::new(),
            ranking: BTreeSet::new(),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether there are as many as there may be, so that one more should not come before one has gone.
    #[must_use]
    pub fn is_over_limit(&self) -> bool {
        self.len() >= self.limit
    }

    /// Whether there are far too many, so that one more must not come before one has gone.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// How many more there may be until there are far too many.
    #[must_use]
    pub fn room(&self) -> usize {
        self.limit.saturating_mul(BURST).saturating_sub(self.len())
    }

    /// Admits somebody, full or not.
    pub fn add(&mut self, key: K, origin: O, now: Instant) {
        self.remove(key);
        self.order += 1;
        let order = self.order;
        self.places.insert(key, (origin.clone(), order));
        self.change(origin, |clients| {
            clients.insert(order, (key, now));
        });
    }

    /// Something came from it. It does not matter how much; how long it may go on is the deadline's business. Of
    /// whoever is not admitted any more: nothing, and false.
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

    /// Gives a place back; whether it was there.
    pub fn remove(&mut self, key: K) -> bool {
        let Some((origin, order)) = self.places.remove(&key) else { return false };
        self.change(origin, |clients| {
            clients.remove(&order);
        });
        true
    }

    /// Who would have to give a place now, and since when it is silent.
    #[must_use]
    pub fn first(&self) -> Option<(K, Instant)> {
        let (_, order, origin) = self.ranking.first()?;
        self.origins.get(origin)?.get(order).copied()
    }

    /// How many there are of the origin of this one.
    #[must_use]
    pub fn companions(&self, key: K) -> usize {
        let clients = self.places.get(&key).and_then(|(origin, _)| self.origins.get(origin));
        clients.map_or(0, BTreeMap::len)
    }

    /// Who has to go now, as there are more than there may be, or one more comes. `unread`: whether a client has
    /// sent what nobody has read yet; then the server is late, and not the client.
    pub fn next_victim(&mut self, now: Instant, unread: impl FnMut(K) -> bool) -> Option<K> {
        self.left(self.patience, now, unread).is_zero().then(|| self.first()).flatten().map(|(key, _)| key)
    }

    /// After how long [`Self::next_victim`] may have an answer, if there are too many.
    #[must_use]
    pub fn next_victim_in(&self, now: Instant) -> Option<Duration> {
        let (_, since) = self.first().filter(|_| self.len() > self.limit)?;
        Some((since + self.patience).saturating_duration_since(now))
    }

    /// After how long somebody can be made to go for whoever cannot wait; zero: at once.
    pub fn delay(&mut self, now: Instant, unread: impl FnMut(K) -> bool) -> Duration {
        self.left(self.grace, now, unread)
    }

    /// For how long the first to go still has time. Whoever has sent what nobody has read has it anew.
    fn left(&mut self, patience: Duration, now: Instant, mut unread: impl FnMut(K) -> bool) -> Duration {
        loop {
            match self.due(patience, now) {
                Due::In(left) => return left,
                Due::Now(key) if unread(key) => self.progress(key, now), // each is asked once in that time
                Due::Now(_) => return Duration::ZERO,
            };
        }
    }

    /// Whose turn to go it is, if a client may be silent for so long: what [`Self::next_victim`] and [`Self::delay`] ask,
    /// for callers that look for unread bytes themselves.
    #[must_use]
    pub fn due(&self, patience: Duration, now: Instant) -> Due<K> {
        let Some((key, since)) = self.first() else { return Due::In(patience) };
        match (since + patience).saturating_duration_since(now) {
            Duration::ZERO => Due::Now(key),
            left => Due::In(left),
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
