//! A schedule: times at a fixed rate, independent of replies.

use std::time::{Duration, Instant};

use super::client_pool::BEHIND;

/// Times at equal intervals: number n is due n / rate seconds after the start. Each is computed from the start, so that
/// rounding errors do not accumulate.
pub(crate) struct Schedule {
    start: Instant,
    /// The rate per second.
    rate: f64,
    /// The number of the next one.
    next: u64,
}

impl Schedule {
    /// Makes a schedule. `rate`: per second, above 0. The first time is the start.
    pub(crate) fn new(start: Instant, rate: f64) -> Self {
        Self { start, rate, next: 0 }
    }

    /// Returns the next scheduled time.
    #[allow(clippy::cast_precision_loss)] // exact up to 2^53, which is never reached
    pub(crate) fn due(&self) -> Instant {
        let after = Duration::try_from_secs_f64(self.next as f64 / self.rate).unwrap_or(Duration::MAX);
        // With a tiny rate, the next time may be out of range.
        self.start.checked_add(after).unwrap_or(self.start + Duration::from_secs(1 << 30))
    }

    /// Takes the next number and time, if it is due at `now`, and before `end`.
    pub(crate) fn take(&mut self, now: Instant, end: Instant) -> Option<(u64, Instant)> {
        let due = self.due();
        if due > now || due >= end {
            return None;
        }
        self.next += 1;
        Some((self.next - 1, due))
    }

    /// Returns an error if the load generator is too late.
    pub(crate) fn check(&self, now: Instant, things: &str) -> Result<(), String> {
        if now.saturating_duration_since(self.due()) <= BEHIND {
            return Ok(());
        }
        let (rate, late) = (self.rate, BEHIND.as_secs());
        Err(format!("the load generator cannot send {rate:.1} {things} a second: it is {late} s late"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Duration = Duration::from_secs(1 << 20);

    #[test]
    fn late_caller_gets_all_missed_times() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start, 1000.0);
        let moments: Vec<_> = (0..=5).map(|n| (n, start + Duration::from_millis(n))).collect();
        let late = moments[5].1;
        let found: Vec<_> = std::iter::from_fn(|| schedule.take(late, late)).collect();
        assert_eq!(found, moments[..5], "the end is exclusive");
        assert_eq!((schedule.due(), schedule.take(late - Duration::from_micros(1), start + LATER)), (late, None));
        assert_eq!(schedule.take(late, start + LATER), Some(moments[5]));
        assert!(schedule.check(late, "things").is_ok() && schedule.check(late + BEHIND * 2, "things").is_err());
    }

    #[test]
    fn rates_neither_drift_nor_overflow() {
        let start = Instant::now();
        for (rate, found) in [(3.0, 3001), (1e-300, 1)] {
            let mut schedule = Schedule::new(start, rate);
            let end = start + Duration::from_secs(1000);
            assert_eq!(std::iter::from_fn(|| schedule.take(end, start + LATER)).count(), found);
            assert!(schedule.due() > end);
        }
    }
}
