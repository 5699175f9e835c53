//! Latencies, kept in buckets that grow with what they hold: within 1/32 of the truth. Their sum and the
//! longest are exact.

use std::time::Duration;

const STEPS: u32 = 32;

pub(crate) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    /// Nanoseconds.
    sum: u128,
    /// Nanoseconds.
    max: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self { buckets: vec![0; 64 * STEPS as usize], count: 0, sum: 0, max: 0 }
    }

    #[inline]
    pub(crate) fn record(&mut self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.buckets.get_mut(index(nanoseconds.max(1))) {
            *bucket += 1;
            self.count += 1;
            self.sum += u128::from(nanoseconds);
            self.max = self.max.max(nanoseconds);
        }
    }

    /// How many were recorded.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Microseconds below which this part of all lies.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // counts
        let wanted = ((self.count as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper(index).min(self.max as f64) / 1000.0;
            }
        }
        0.0
    }

    /// Microseconds, 0 without any.
    #[allow(clippy::cast_precision_loss)] // a sum of nanoseconds
    pub(crate) fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 / 1000.0 }
    }

    /// Microseconds.
    #[allow(clippy::cast_precision_loss)] // nanoseconds
    pub(crate) fn max(&self) -> f64 {
        self.max as f64 / 1000.0
    }
}

#[inline]
fn index(nanoseconds: u64) -> usize {
    let power = 63 - nanoseconds.leading_zeros();
    let step = if power >= 5 { (nanoseconds >> (power - 5)) & 31 } else { (nanoseconds << (5 - power)) & 31 };
    (power * STEPS) as usize + step as usize
}

/// The end of a bucket, in nanoseconds.
#[allow(clippy::cast_precision_loss)] // small
fn upper(index: usize) -> f64 {
    let (power, step) = (index / STEPS as usize, index % STEPS as usize);
    2f64.powi(i32::try_from(power).unwrap_or(63)) * (1.0 + (step as f64 + 1.0) / f64::from(STEPS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near_the_truth() {
        let mut histogram = Histogram::new();
        for microseconds in 1..=10_000 {
            histogram.record(Duration::from_micros(microseconds));
        }
        for (part, truth) in [(0.5, 5000.0), (0.9, 9000.0), (0.99, 9900.0), (0.999, 9990.0), (0.0001, 1.0)] {
            let found = histogram.quantile(part);
            assert!((found / truth - 1.0).abs() < 0.04, "{part}: {found} is not {truth}");
        }
    }

    #[test]
    fn mean_and_max_are_exact() {
        let mut histogram = Histogram::new();
        for microseconds in [1, 2, 6] {
            histogram.record(Duration::from_micros(microseconds));
        }
        assert!((histogram.mean() - 3.0).abs() < 1e-9);
        assert!((histogram.max() - 6.0).abs() < 1e-9);
        assert!(histogram.quantile(1.0) <= histogram.max(), "no quantile is above the longest");
    }

    #[test]
    fn every_latency_has_a_bucket() {
        let mut histogram = Histogram::new();
        for latency in [Duration::ZERO, Duration::from_nanos(31), Duration::from_secs(3600)] {
            histogram.record(latency);
        }
        assert_eq!(histogram.count(), 3);
    }

    #[test]
    fn nothing_recorded_is_nothing() {
        let histogram = Histogram::new();
        assert_eq!((histogram.count(), histogram.quantile(0.5), histogram.mean(), histogram.max()), (0, 0.0, 0.0, 0.0));
    }
}
