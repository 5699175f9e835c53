//! The result of a workload, as a line of JSON.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::text;

/// An hour in nanoseconds; longer latencies count as this.
const LONGEST: u64 = 3_600_000_000_000;

/// Three significant digits: recorded latencies are within a thousandth of the true ones.
const DIGITS: u8 = 3;

const QUANTILES: [(&str, f64); 5] = [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)];

/// A count, and the latencies in nanoseconds.
pub(crate) struct Part {
    pub(crate) count: u64,
    pub(crate) latencies: Histogram<u64>,
}

impl Default for Part {
    fn default() -> Self {
        Self { count: 0, latencies: Histogram::new_with_max(LONGEST, DIGITS).expect("valid bounds") }
    }
}

impl Part {
    #[inline]
    pub(crate) fn record(&mut self, latency: Duration) {
        self.latencies.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    #[allow(clippy::cast_precision_loss)] // nanoseconds
    fn figures(&self) -> Map<String, Value> {
        let mut figures = Map::from_iter([("count".to_owned(), self.count.into())]);
        if !self.latencies.is_empty() {
            let mut add = |name: &str, nanoseconds: f64| figures.insert(name.into(), rounded(nanoseconds / 1000.0, 2));
            add("mean", self.latencies.mean());
            for (name, part) in QUANTILES {
                add(name, self.latencies.value_at_quantile(part) as f64);
            }
            add("max", self.latencies.max() as f64);
        }
        figures
    }
}

/// The result of a window. Values that were not measured are omitted from the JSON.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) all: Part,
    /// The part of each server, if there are several.
    pub(crate) servers: Vec<Part>,
    /// The duration in seconds.
    pub(crate) seconds: f64,
    /// The processor time of this process in seconds.
    pub(crate) cpu: Option<f64>,
    /// The share of the window in which this process was busy, 0 to 1.
    pub(crate) limited: Option<f64>,
    /// The count of each of the first seconds.
    pub(crate) by_second: Vec<u64>,
    /// The requested rate, in operations per second.
    pub(crate) offered: Option<f64>,
    /// The number of the server's pings that were answered.
    pub(crate) pings: Option<u64>,
    /// The number of connections that could not be opened, if some may fail.
    pub(crate) failed: Option<u64>,
    /// Whether compression was negotiated, if it was offered.
    pub(crate) deflate: Option<bool>,
}

impl Answer {
    /// Records a latency, in total and for one of several servers.
    #[inline]
    pub(crate) fn record(&mut self, server: usize, latency: Duration) {
        self.all.record(latency);
        if let Some(part) = self.servers.get_mut(server) {
            part.record(latency);
        }
    }

    /// Adds the result of another thread whose window began at the same moment. The longer window counts.
    pub(crate) fn add(mut self, other: Self) -> Result<Self, String> {
        self.all.count += other.all.count;
        self.all.latencies.add(&other.all.latencies).map_err(text)?;
        self.seconds = self.seconds.max(other.seconds);
        self.cpu = self.cpu.zip(other.cpu).map(|(one, other)| one + other);
        // The busiest thread is the limit.
        self.limited = self.limited.zip(other.limited).map(|(one, other)| one.max(other));
        self.by_second = self.by_second.iter().zip(other.by_second).map(|(one, other)| one + other).collect();
        self.deflate = self.deflate.zip(other.deflate).map(|(one, other)| one && other);
        Ok(self)
    }

    /// Returns the JSON object.
    pub(crate) fn to_json(&self) -> Value {
        let mut line = self.all.figures();
        let mut add = |name: &str, value: Option<Value>| line.extend(value.map(|value| (name.to_owned(), value)));
        add("seconds", Some(rounded(self.seconds, 6)));
        add("checked", Some(true.into()));
        for (name, value, decimals) in
            [("cpu", self.cpu, 6), ("limited", self.limited, 3), ("offered", self.offered, 3)]
        {
            add(name, value.map(|value| rounded(value, decimals)));
        }
        for (second, count) in (1..).zip(&self.by_second) {
            add(&format!("second_{second}"), Some((*count).into()));
        }
        let servers: Vec<_> = self.servers.iter().map(Part::figures).collect();
        add("servers", (!servers.is_empty()).then(|| json!(servers)));
        add("pings", self.pings.map(Value::from));
        add("not_opened", self.failed.map(Value::from));
        add("deflate", self.deflate.map(Value::from));
        Value::Object(line)
    }
}

fn rounded(value: f64, decimals: i32) -> Value {
    let scale = 10_f64.powi(decimals);
    json!((value * scale).round() / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_latencies_are_accurate() {
        let mut answers = [Answer::default(), Answer::default()];
        for microseconds in 0..=10_000 {
            answers[microseconds % 2].record(0, Duration::from_micros(microseconds as u64));
        }
        answers[0].record(0, Duration::MAX); // the longest latencies have a bucket as well
        let [one, other] = answers;
        let figures = one.add(other).expect("alike").to_json();
        for (name, truth) in [("p50", 5000.0), ("p90", 9000.0), ("p95", 9500.0), ("p99", 9900.0), ("p999", 9990.0)] {
            let found = figures[name].as_f64().expect("a number");
            assert!((found / truth - 1.0).abs() < 0.001, "{name}: {found} is not {truth}");
        }
        assert!(figures["max"].as_f64() > Some(3.6e9));
    }
}
