//! How often something may happen, and new connections of an address by it.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use governor::clock::{Clock, MonotonicClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use wirespeed_driver::opening::handshake_limiter::Origin;

/// Between looks for addresses that are as good as new, and forgotten then.
const SWEEP: Duration = Duration::from_secs(1);

/// Addresses that are remembered at most, some 20 MiB. While there are more, nobody is refused: each of so many
/// stays below its own rate.
const ADDRESSES: usize = 1 << 18;

/// Seconds for which a connection is held against the next ones, at most: a month.
const MEMORY: f64 = 30.0 * 86_400.0;

/// So much in the long run, and so much at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    per_second: f64,
    burst: f64,
}

impl Rate {
    /// `burst`: one second's worth if it is not said, and 1 at least. `None`: one of them is no positive number.
    #[must_use]
    pub fn new(per_second: f64, burst: Option<f64>) -> Option<Self> {
        let good = |number: f64| number.is_finite() && number > 0.0;
        let burst = burst.unwrap_or(per_second);
        (good(per_second) && good(burst)).then(|| Self { per_second, burst: burst.max(1.0) })
    }

    /// How much in a second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.per_second
    }

    /// How much at once.
    #[must_use]
    pub fn burst(&self) -> f64 {
        self.burst
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // converting saturates
    fn quota(self) -> Quota {
        // Both together fit into the clock of the limiter, which counts nanoseconds.
        let period = (1.0 / self.per_second).clamp(1e-9, MEMORY);
        let burst = NonZeroU32::new(self.burst.min(MEMORY / period) as u32).unwrap_or(NonZeroU32::MIN);
        Quota::with_period(Duration::from_secs_f64(period))
            .unwrap_or_else(|| Quota::per_second(burst))
            .allow_burst(burst)
    }
}

type Limiter = RateLimiter<Origin, HashMapStateStore<Origin>, MonotonicClock, NoOpMiddleware<Instant>>;

/// New connections of each address.
pub(super) struct AddressRate {
    limiter: Limiter,
    start: Instant,
    /// The next look, in milliseconds since the start.
    sweep: AtomicU64,
}

impl AddressRate {
    pub(super) fn new(rate: Rate) -> Self {
        let clock = MonotonicClock;
        let limiter = RateLimiter::new(rate.quota(), HashMapStateStore::default(), clock);
        Self { limiter, start: Instant::now(), sweep: AtomicU64::new(0) }
    }

    /// Counts one. If it is too many: when the next one is not.
    pub(super) fn check(&self, origin: Origin) -> Result<(), Duration> {
        self.forget();
        if self.limiter.len() >= ADDRESSES {
            return Ok(());
        }
        self.limiter.check_key(&origin).map_err(|until| until.wait_time_from(MonotonicClock.now()))
    }

    /// Forgets addresses of which nothing is held against the next connection, from time to time.
    fn forget(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let due = self.sweep.load(Ordering::Relaxed);
        let next = now.saturating_add(SWEEP.as_millis() as u64);
        // One thread does it.
        if now >= due && self.sweep.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.limiter.retain_recent();
            self.limiter.shrink_to_fit();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_own_and_is_forgotten() {
        let rate = AddressRate::new(Rate::new(100.0, Some(3.0)).unwrap());
        let of = |number: u32| Origin::V4(number.to_be_bytes());
        for _ in 0..3 {
            assert_eq!(rate.check(of(1)), Ok(()));
        }
        let wait = rate.check(of(1)).unwrap_err();
        assert!(wait > Duration::ZERO && wait <= Duration::from_millis(10), "{wait:?}");
        for number in 2..10_000 {
            assert_eq!(rate.check(of(number)), Ok(()));
        }
        assert!(rate.limiter.len() > 9000);
        std::thread::sleep(SWEEP + Duration::from_millis(100));
        assert_eq!(rate.check(of(1)), Ok(()));
        assert_eq!(rate.limiter.len(), 1);
    }

    #[test]
    fn rates() {
        assert_eq!(Rate::new(5.0, None).map(|rate| (rate.per_second(), rate.burst())), Some((5.0, 5.0)));
        assert_eq!(Rate::new(0.1, None).map(|rate| rate.burst()), Some(1.0));
        for (per_second, burst) in
            [(0.0, None), (-1.0, None), (f64::NAN, None), (1.0, Some(0.0)), (f64::INFINITY, None)]
        {
            assert_eq!(Rate::new(per_second, burst), None);
        }
        // However odd, a rate is one.
        for per_second in [1e-300, 1e-9, 1e12, 1e300] {
            AddressRate::new(Rate::new(per_second, None).unwrap()).check(Origin::Local).unwrap();
        }
    }
}
