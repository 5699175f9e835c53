//! The window: what is counted from its beginning to its end.

use std::time::{Duration, Instant};

use super::answer::{Answer, Part};
use super::crew::Crew;
use super::histogram::Histogram;
use super::publications::Delivery;
use super::team::Member;

/// A window that has begun.
pub(crate) struct Window {
    pub(crate) begin: Instant,
    /// When it is to be over.
    pub(crate) end: Instant,
    pub(crate) latencies: Histogram,
    count: u64,
    /// What came of each of several servers.
    servers: Vec<Part>,
    seconds: Seconds,
    /// Seconds of this process on a processor until it began.
    processor: f64,
}

impl Window {
    /// Begins, and says so on standard output.
    pub(crate) fn begin(crew: &mut Crew) -> Self {
        if crew.member.as_ref().is_none_or(Member::meet) {
            crate::show("begin\n");
        }
        crew.waited = Duration::ZERO;
        let processor = processor_time();
        let begin = Instant::now();
        let end = begin + crew.options.seconds;
        let servers = crew.options.servers.len();
        let servers = (0..servers).filter(|_| servers > 1).map(|_| Part::default()).collect();
        Self { begin, end, latencies: Histogram::new(), count: 0, servers, seconds: Seconds::new(begin), processor }
    }

    /// Counts what has arrived and was checked.
    #[inline]
    pub(crate) fn count(&mut self, now: Instant, count: u64) {
        self.count += count;
        self.seconds.count(now, count);
    }

    /// The same, with its latency, of the server that sent it.
    #[inline]
    pub(crate) fn deliver(&mut self, delivery: Delivery) {
        self.latencies.record(delivery.latency());
        if let Some(part) = self.servers.get_mut(delivery.server) {
            part.count += 1;
            part.latencies.record(delivery.latency());
        }
        self.count(delivery.now, 1);
    }

    /// What was found until `end`.
    pub(crate) fn finish(self, crew: &Crew, end: Instant) -> Answer {
        let took = end.saturating_duration_since(self.begin);
        self.finish_after(crew, end, took)
    }

    /// The same, if only `took` of the time counts.
    pub(crate) fn finish_after(self, crew: &Crew, end: Instant, took: Duration) -> Answer {
        let seconds = took.as_secs_f64();
        let limited = (1.0 - crew.waited.as_secs_f64() / seconds).clamp(0.0, 1.0);
        Answer {
            count: self.count,
            seconds,
            cpu: Some(processor_time() - self.processor),
            limited: Some(limited),
            latencies: Some(self.latencies),
            servers: self.servers,
            deviation: self.seconds.deviation(end.min(self.end)),
            deflate: crew.deflate(),
            ..Answer::default()
        }
    }
}

/// What was counted in each second.
struct Seconds {
    begin: Instant,
    counts: Vec<u64>,
}

impl Seconds {
    fn new(begin: Instant) -> Self {
        Self { begin, counts: Vec::new() }
    }

    #[inline]
    fn count(&mut self, now: Instant, count: u64) {
        let second = usize::try_from(now.saturating_duration_since(self.begin).as_secs()).unwrap_or(usize::MAX);
        match self.counts.get_mut(second) {
            Some(counted) => *counted += count,
            None if second < 1 << 20 => {
                self.counts.resize(second + 1, 0);
                self.counts[second] = count;
            }
            None => {} // twelve days
        }
    }

    /// The standard deviation of what whole seconds counted, as a share of their mean; none if there are not
    /// two.
    #[allow(clippy::cast_precision_loss)] // counts
    fn deviation(&self, end: Instant) -> Option<f64> {
        // A window of two seconds ends a moment after them, or before by what a clock may be wrong.
        let length = end.saturating_duration_since(self.begin) + Duration::from_millis(1);
        let whole = usize::try_from(length.as_secs()).unwrap_or(usize::MAX);
        if whole < 2 {
            return None;
        }
        // A second at the end in which nothing came has no entry.
        let counts: Vec<f64> =
            (0..whole).map(|second| self.counts.get(second).map_or(0.0, |count| *count as f64)).collect();
        let mean = counts.iter().sum::<f64>() / whole as f64;
        let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / whole as f64;
        (mean > 0.0).then(|| variance.sqrt() / mean)
    }
}

/// Seconds of this thread on a processor; 0 where the system does not tell.
fn processor_time() -> f64 {
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok())
        .map_or(0.0, |nanoseconds| nanoseconds / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(counts: &[u64]) -> (Seconds, Instant) {
        let begin = Instant::now();
        let mut seconds = Seconds::new(begin);
        for (second, count) in (0..).zip(counts) {
            // In two parts of the second.
            seconds.count(begin + Duration::from_secs(second), count / 2);
            seconds.count(begin + Duration::from_millis(second * 1000 + 999), count - count / 2);
        }
        (seconds, begin)
    }

    #[test]
    fn seconds_alike_do_not_deviate() {
        let (seconds, begin) = counted(&[100, 100, 100]);
        assert_eq!(seconds.deviation(begin + Duration::from_secs(3)), Some(0.0));
    }

    #[test]
    fn the_deviation_is_a_share_of_the_mean() {
        let (seconds, begin) = counted(&[90, 110]);
        let found = seconds.deviation(begin + Duration::from_secs(2)).expect("two seconds");
        assert!((found - 0.1).abs() < 1e-9, "{found}");
    }

    #[test]
    fn a_part_of_a_second_is_left_out_and_one_is_not_enough() {
        let (seconds, begin) = counted(&[100, 100, 1]);
        assert_eq!(seconds.deviation(begin + Duration::from_millis(2500)), Some(0.0));
        assert_eq!(seconds.deviation(begin + Duration::from_millis(1900)), None);
    }

    #[test]
    fn a_second_without_anything_counts() {
        let (seconds, begin) = counted(&[100]);
        let found = seconds.deviation(begin + Duration::from_secs(2)).expect("two seconds");
        assert!((found - 1.0).abs() < 1e-9, "{found}");
        let (nothing, begin) = counted(&[]);
        assert_eq!(nothing.deviation(begin + Duration::from_secs(2)), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_thread_uses_a_processor() {
        let (before, begin) = (processor_time(), Instant::now());
        while processor_time() <= before {
            assert!(begin.elapsed() < Duration::from_secs(10), "no time was counted");
        }
    }
}
