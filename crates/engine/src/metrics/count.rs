//! Numbers with one writer and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that one thread changes. Relaxed ordering suffices: no other data depends on it.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds to it. Only its one writer may call this.
    pub(crate) fn add(&self, more: u64) {
        self.set(self.value().wrapping_add(more));
    }

    /// Subtracts from it, down to 0. Only its one writer may call this.
    pub(crate) fn subtract(&self, less: u64) {
        self.set(self.value().saturating_sub(less));
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The upper bounds of the buckets of a histogram, in microseconds; one more bucket has longer durations.
pub const BOUNDS: [u64; 18] = [
    10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000,
];

/// A histogram of durations, with one writer.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    counts: [Count; BOUNDS.len() + 1],
    nanoseconds: Count,
}

impl Histogram {
    pub(crate) fn add(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let place = BOUNDS.iter().position(|bound| nanoseconds <= bound * 1000).unwrap_or(BOUNDS.len());
        if let Some(count) = self.counts.get(place) {
            count.add(1);
        }
        self.nanoseconds.add(nanoseconds);
    }

    pub(crate) fn read(&self) -> Distribution {
        Distribution {
            counts: self.counts.each_ref().map(Count::value),
            seconds: self.nanoseconds.value() as f64 / 1e9,
        }
    }
}

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    /// The number of durations in each bucket of [`BOUNDS`], and in the last one for longer durations.
    pub counts: [u64; BOUNDS.len() + 1],
    /// The sum of all durations, in seconds.
    pub seconds: f64,
}

impl Distribution {
    /// Returns the number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds the durations of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.seconds += other.seconds;
    }

    /// Returns the bound that this share of the durations does not exceed: 0.99 for 99 of 100. 0 if there are none,
    /// [`Duration::MAX`] if it is beyond the last bound.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        if self.count() == 0 {
            return Duration::ZERO;
        }
        for (count, bound) in self.counts.iter().zip(BOUNDS) {
            seen += count;
            if seen >= wanted {
                return Duration::from_micros(bound);
            }
        }
        Duration::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_counted_in_its_bucket() {
        let histogram = Histogram::default();
        for microseconds in [0, 10, 11, 5_000_000, 5_000_001] {
            histogram.add(Duration::from_micros(microseconds));
        }
        let read = histogram.read();
        assert_eq!((read.counts[0], read.counts[1], read.counts[17], read.counts[18]), (2, 1, 1, 1));
        assert_eq!(read.count(), 5);
        assert!((read.seconds - 10.000_022).abs() < 1e-9, "{}", read.seconds);
        assert_eq!(read.quantile(0.4), Duration::from_micros(10));
        assert_eq!(read.quantile(0.5), Duration::from_micros(25));
        assert_eq!(read.quantile(1.0), Duration::MAX);
        assert_eq!(Distribution::default().quantile(0.5), Duration::ZERO);
    }

    #[test]
    fn count_is_never_negative() {
        let count = Count::default();
        count.add(2);
        count.subtract(3);
        assert_eq!(count.value(), 0);
    }
}
