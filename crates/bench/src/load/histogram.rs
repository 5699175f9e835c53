//! Latencies, kept in buckets that grow with what they hold: within 1/32 of the truth.

use std::time::Duration;

const STEPS: u32 = 32;

pub(crate) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self { buckets: vec![0; 64 * STEPS as usize], count: 0 }
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1);
        if let Some(bucket) = self.buckets.get_mut(index(nanoseconds)) {
            *bucket += 1;
            self.count += 1;
        }
    }

    /// Microseconds below which this part of all lies.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // counts
        let wanted = ((self.count as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper(index) / 1000.0;
            }
        }
        0.0
    }
}

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
        for (part, truth) in [(0.5, 5000.0), (0.99, 9900.0), (0.999, 9990.0), (0.0001, 1.0)] {
            let found = histogram.quantile(part);
            assert!((found / truth - 1.0).abs() < 0.04, "{part}: {found} is not {truth}");
        }
    }

    #[test]
    fn every_latency_has_a_bucket() {
        let mut histogram = Histogram::new();
        for latency in [Duration::ZERO, Duration::from_nanos(31), Duration::from_secs(3600)] {
            histogram.record(latency);
        }
        assert_eq!(histogram.count, 3);
        assert_eq!(Histogram::new().quantile(0.5), 0.0);
    }
}
