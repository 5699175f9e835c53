//! What a workload found, as the line of JSON.

use std::fmt::Write as _;

use super::histogram::Histogram;
use super::publications::Delivery;

/// The result of a window; whatever was not measured is not in the line.
#[derive(Default)]
pub(crate) struct Answer {
    /// What was counted, all of it checked.
    pub(crate) count: u64,
    /// What it took.
    pub(crate) seconds: f64,
    /// Processor time of this process meanwhile, in seconds.
    pub(crate) cpu: Option<f64>,
    /// The share of the window in which this process had work, 0 to 1.
    pub(crate) limited: Option<f64>,
    pub(crate) latencies: Option<Histogram>,
    /// What of all that came of each server, if there are several.
    pub(crate) servers: Vec<Part>,
    /// Of the rates of single seconds: their standard deviation as a share of their mean.
    pub(crate) deviation: Option<f64>,
    /// Operations a second that were asked for.
    pub(crate) offered: Option<f64>,
    /// Pings of the server that were answered.
    pub(crate) pings: Option<u64>,
    /// Why there are no more connections.
    pub(crate) stopped: Option<String>,
    /// Whether compression, which was offered, was agreed on.
    pub(crate) deflate: Option<bool>,
}

/// What came of one of several servers.
pub(crate) struct Part {
    pub(crate) count: u64,
    pub(crate) latencies: Histogram,
}

impl Default for Part {
    fn default() -> Self {
        Self { count: 0, latencies: Histogram::new() }
    }
}

impl Answer {
    /// Adds what came after the window: it does not count.
    pub(crate) fn add_latency(&mut self, delivery: Delivery) {
        let part = self.servers.get_mut(delivery.server).map(|part| &mut part.latencies);
        for latencies in [self.latencies.as_mut(), part].into_iter().flatten() {
            latencies.record(delivery.latency());
        }
    }

    /// What several threads found in windows that began at the same moment: the longest of them is the window.
    pub(crate) fn together(answers: Vec<Self>) -> Result<Self, String> {
        let mut all = Self::default();
        for answer in answers {
            all.count += answer.count;
            all.seconds = all.seconds.max(answer.seconds);
            all.cpu = sum(all.cpu, answer.cpu);
            // Who had most to do is the limit.
            all.limited =
                all.limited.zip(answer.limited).map(|(one, other)| one.max(other)).or(all.limited).or(answer.limited);
            all.deflate = all.deflate.or(answer.deflate).map(|agreed| agreed && answer.deflate == Some(true));
            match (&mut all.latencies, answer.latencies) {
                (Some(latencies), Some(more)) => latencies.add(&more)?,
                (latencies, more) => *latencies = latencies.take().or(more),
            }
        }
        Ok(all)
    }

    /// The line, with its end.
    pub(crate) fn to_json(&self) -> String {
        let mut line = format!("{{\"count\": {}, \"seconds\": {:.6}, \"checked\": true", self.count, self.seconds);
        number(&mut line, "cpu", self.cpu, 6);
        number(&mut line, "limited", self.limited, 3);
        if let Some(latencies) = &self.latencies {
            distribution(&mut line, latencies);
        }
        number(&mut line, "deviation", self.deviation, 5);
        number(&mut line, "offered", self.offered, 3);
        for (place, part) in self.servers.iter().enumerate() {
            let _ = write!(line, "{}{{\"count\": {}", if place == 0 { ", \"servers\": [" } else { ", " }, part.count);
            distribution(&mut line, &part.latencies);
            line.push_str(if place + 1 == self.servers.len() { "}]" } else { "}" });
        }
        if let Some(pings) = self.pings {
            let _ = write!(line, ", \"pings\": {pings}");
        }
        if let Some(stopped) = &self.stopped {
            let _ = write!(line, ", \"stopped\": {}", serde_json::Value::from(stopped.as_str()));
        }
        if let Some(deflate) = self.deflate {
            let _ = write!(line, ", \"deflate\": {deflate}");
        }
        line.push_str("}\n");
        line
    }
}

fn number(line: &mut String, name: &str, value: Option<f64>, decimals: usize) {
    if let Some(value) = value {
        let _ = write!(line, ", \"{name}\": {value:.decimals$}"); // a String takes everything
    }
}

fn distribution(line: &mut String, latencies: &Histogram) {
    if latencies.count() == 0 {
        return;
    }
    number(line, "mean", Some(latencies.mean()), 2);
    for (name, part) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)] {
        number(line, name, Some(latencies.quantile(part)), 1);
    }
    number(line, "max", Some(latencies.max()), 1);
}

fn sum(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.zip(other).map(|(one, other)| one + other).or(one).or(other)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_was_not_measured_is_left_out() {
        let answer = Answer { count: 3, seconds: 0.5, latencies: Some(Histogram::new()), ..Answer::default() };
        assert_eq!(answer.to_json(), "{\"count\": 3, \"seconds\": 0.500000, \"checked\": true}\n");
    }

    #[test]
    fn several_together() {
        let mut latencies = Histogram::new();
        latencies.record(Duration::from_micros(10));
        let one = Answer { count: 3, seconds: 1.0, cpu: Some(0.5), limited: Some(0.2), ..Answer::default() };
        let other = Answer { count: 4, seconds: 1.5, cpu: Some(0.25), latencies: Some(latencies), ..Answer::default() };
        let found = Answer::together(vec![one, other]).expect("alike");
        assert_eq!((found.count, found.seconds.to_bits()), (7, 1.5_f64.to_bits()));
        assert_eq!((found.cpu, found.limited), (Some(0.75), Some(0.2)));
        assert_eq!(found.latencies.map(|latencies| latencies.count()), Some(1));
        let deflate = |agreed| Answer { deflate: agreed, ..Answer::default() };
        for (one, other, both) in [(Some(true), Some(false), Some(false)), (Some(true), Some(true), Some(true))] {
            let found = Answer::together(vec![deflate(one), deflate(other)]).expect("alike");
            assert_eq!(found.deflate, both);
        }
    }

    #[test]
    fn everything_is_valid_json() {
        let mut latencies = Histogram::new();
        latencies.record(Duration::from_micros(10));
        let answer = Answer {
            count: 1,
            seconds: 1.0,
            cpu: Some(0.25),
            limited: Some(0.5),
            latencies: Some(latencies),
            servers: vec![Part { count: 7, ..Part::default() }, Part::default()],
            deviation: Some(0.01),
            offered: Some(100.0),
            pings: Some(2),
            stopped: Some("it said \"no\"\n".into()),
            deflate: Some(true),
        };
        let found: Value = serde_json::from_str(&answer.to_json()).expect("JSON");
        assert_eq!(found["stopped"], "it said \"no\"\n");
        assert_eq!(found["max"], json!(10.0));
        assert_eq!(found["mean"], json!(10.0));
        assert_eq!(found["servers"], json!([{"count": 7}, {"count": 0}]));
        assert_eq!((&found["pings"], &found["deflate"], &found["limited"]), (&json!(2), &json!(true), &json!(0.5)));
    }
}
