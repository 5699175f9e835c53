//! The limit on the rate of new connections per address.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use governor::clock::{Clock, MonotonicClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use wirespeed_driver::accept::Origin;

use crate::config::Rate;

/// The time between two sweeps, which remove addresses that are back at their full burst.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum number of addresses in memory, some 20 MiB. Beyond it the engine admits all connections: they come from
/// so many addresses that each stays below its own rate.
const MAX_ADDRESSES: usize = 1 << 18;

/// The maximum time in seconds for which a connection counts against later ones: a month.
const MAX_PERIOD: f64 = 30.0 * 86_400.0;

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // converting saturates
fn quota(rate: Rate) -> Quota {
    // The period times the burst must fit into the clock of the limiter, which counts nanoseconds.
    let period = (1.0 / rate.per_second()).clamp(1e-9, MAX_PERIOD);
    let burst = NonZeroU32::new(rate.burst().min(MAX_PERIOD / period) as u32).unwrap_or(NonZeroU32::MIN);
    Quota::with_period(Duration::from_secs_f64(period)).unwrap_or_else(|| Quota::per_second(burst)).allow_burst(burst)
}

type Limiter = RateLimiter<Origin, HashMapStateStore<Origin>, MonotonicClock, NoOpMiddleware<Instant>>;

/// The rate limiter of new connections, per address.
pub(super) struct AddressRate {
    limiter: Limiter,
    start: Instant,
    /// When the next sweep is due, in milliseconds since the start.
    next_sweep: AtomicU64,
}

impl AddressRate {
    pub(super) fn new(rate: Rate) -> Self {
        let clock = MonotonicClock;
        let limiter = RateLimiter::new(quota(rate), HashMapStateStore::default(), clock);
        Self { limiter, start: Instant::now(), next_sweep: AtomicU64::new(0) }
    }

    /// Counts a connection. Beyond the rate, returns the time until the next one is allowed.
    pub(super) fn check(&self, origin: Origin) -> Result<(), Duration> {
        self.sweep();
        if self.limiter.len() >= MAX_ADDRESSES {
            return Ok(());
        }
        self.limiter.check_key(&origin).map_err(|until| until.wait_time_from(MonotonicClock.now()))
    }

    /// Removes addresses that are back at their full burst, at most once per [`SWEEP_INTERVAL`].
    fn sweep(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let due = self.next_sweep.load(Ordering::Relaxed);
        let next = now.saturating_add(SWEEP_INTERVAL.as_millis() as u64);
        // Only one thread sweeps.
        if now >= due && self.next_sweep.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
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
    fn addresses_have_separate_limits_and_are_forgotten() {
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
        std::thread::sleep(SWEEP_INTERVAL + Duration::from_millis(100));
        assert_eq!(rate.check(of(1)), Ok(()));
        assert_eq!(rate.limiter.len(), 1);
    }

    #[test]
    fn invalid_rates_are_rejected() {
        assert_eq!(Rate::new(5.0, None).map(|rate| (rate.per_second(), rate.burst())), Some((5.0, 5.0)));
        assert_eq!(Rate::new(0.1, None).map(|rate| rate.burst()), Some(1.0));
        for (per_second, burst) in
            [(0.0, None), (-1.0, None), (f64::NAN, None), (1.0, Some(0.0)), (f64::INFINITY, None)]
        {
            assert_eq!(Rate::new(per_second, burst), None);
        }
        // Extreme rates are valid.
        for per_second in [1e-300, 1e-9, 1e12, 1e300] {
            AddressRate::new(Rate::new(per_second, None).unwrap()).check(Origin::Local).unwrap();
        }
    }
}
