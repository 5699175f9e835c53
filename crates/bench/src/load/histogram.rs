//! Latencies: an HDR histogram, within a thousandth of the truth. Their sum and the longest are exact.

use std::time::Duration;

use hdrhistogram::Histogram as Hdr;

/// Three significant digits.
const DIGITS: u8 = 3;

/// An hour, in nanoseconds: what took longer counts as that much.
const LONGEST: u64 = 3_600_000_000_000;

pub(crate) struct Histogram {
    /// Of nanoseconds.
    counts: Hdr<u64>,
    /// Nanoseconds.
    sum: u128,
    /// Nanoseconds.
    max: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        #[allow(clippy::expect_used)] // constants, which a test uses too
        let counts = Hdr::new_with_max(LONGEST, DIGITS).expect("valid bounds");
        Self { counts, sum: 0, max: 0 }
    }

    #[inline]
    pub(crate) fn record(&mut self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.counts.saturating_record(nanoseconds);
        self.sum += u128::from(nanoseconds);
        self.max = self.max.max(nanoseconds);
    }

    /// Takes over what another one has.
    pub(crate) fn add(&mut self, other: &Self) -> Result<(), String> {
        self.counts.add(&other.counts).map_err(super::text)?;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
        Ok(())
    }

    /// How many were recorded.
    pub(crate) fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Microseconds below which this part of all lies; 0 without any.
    #[allow(clippy::cast_precision_loss)] // nanoseconds
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        // The end of a bucket may be beyond the longest.
        self.counts.value_at_quantile(part).min(self.max) as f64 / 1000.0
    }

    /// Microseconds, 0 without any.
    #[allow(clippy::cast_precision_loss)] // a sum of nanoseconds
    pub(crate) fn mean(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum as f64 / self.count() as f64 / 1000.0 }
    }

    /// Microseconds.
    #[allow(clippy::cast_precision_loss)] // nanoseconds
    pub(crate) fn max(&self) -> f64 {
        self.max as f64 / 1000.0
    }
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
            assert!((found / truth - 1.0).abs() < 0.001, "{part}: {found} is not {truth}");
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
        for latency in [Duration::ZERO, Duration::from_nanos(31), Duration::from_secs(3600), Duration::from_secs(9999)]
        {
            histogram.record(latency);
        }
        assert_eq!(histogram.count(), 4);
    }

    #[test]
    fn two_together_are_as_one() {
        let (mut all, mut odd, mut even) = (Histogram::new(), Histogram::new(), Histogram::new());
        for microseconds in 1..=1000 {
            all.record(Duration::from_micros(microseconds));
            (if microseconds % 2 == 0 { &mut even } else { &mut odd }).record(Duration::from_micros(microseconds));
        }
        odd.add(&even).expect("alike");
        for part in [0.1, 0.5, 0.99, 1.0] {
            assert_eq!(odd.quantile(part).to_bits(), all.quantile(part).to_bits());
        }
        assert_eq!(
            (odd.count(), odd.max().to_bits(), odd.mean().to_bits()),
            (1000, all.max().to_bits(), all.mean().to_bits())
        );
    }

    #[test]
    fn nothing_recorded_is_nothing() {
        let histogram = Histogram::new();
        assert_eq!((histogram.count(), histogram.quantile(0.5), histogram.mean(), histogram.max()), (0, 0.0, 0.0, 0.0));
    }
}
