//! When something is due that happens so many times a second, whatever became of what was due before.

use std::time::{Duration, Instant};

/// Moments at equal distances: number n is due n / rate seconds after the start. Each is computed from the
/// start, so that errors of rounding do not add up.
pub(crate) struct Schedule {
    start: Instant,
    /// A second.
    rate: f64,
    /// The number of the next.
    next: u64,
}

impl Schedule {
    /// `rate`: a second, above 0. The first is due at once.
    pub(crate) fn new(start: Instant, rate: f64) -> Self {
        Self { start, rate, next: 0 }
    }

    /// When the next is due.
    #[allow(clippy::cast_precision_loss)] // 2^53 of them are more than there will be
    pub(crate) fn due(&self) -> Instant {
        let after = Duration::try_from_secs_f64(self.next as f64 / self.rate).unwrap_or(Duration::MAX);
        // A rate of next to nothing has nothing due in the lifetime of a computer.
        self.start.checked_add(after).unwrap_or(self.start + Duration::from_secs(1 << 30))
    }

    /// The next one, with its number, if it is due at `now`.
    pub(crate) fn take(&mut self, now: Instant) -> Option<(u64, Instant)> {
        let due = self.due();
        if due > now {
            return None;
        }
        self.next += 1;
        Some((self.next - 1, due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_spread_evenly() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start, 1000.0);
        assert_eq!(schedule.take(start), Some((0, start)));
        assert_eq!(schedule.take(start), None);
        assert_eq!(schedule.due(), start + Duration::from_millis(1));
        assert_eq!(schedule.take(start + Duration::from_micros(999)), None);
    }

    #[test]
    fn who_comes_late_finds_all_that_was_due_since_at_its_own_time() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start, 1000.0);
        let late = start + Duration::from_millis(5);
        let found: Vec<_> = std::iter::from_fn(|| schedule.take(late)).collect();
        let expected: Vec<_> = (0..=5).map(|n| (n, start + Duration::from_millis(n))).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_third_of_a_second_does_not_drift() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start, 3.0);
        let end = start + Duration::from_secs(1000);
        assert_eq!(std::iter::from_fn(|| schedule.take(end)).count(), 3001);
        assert!(schedule.due() > end);
    }

    #[test]
    fn a_rate_of_next_to_nothing_is_due_once() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start, 1e-300);
        assert!(schedule.take(start).is_some());
        assert_eq!(schedule.take(start + Duration::from_secs(1_000_000)), None);
    }
}
