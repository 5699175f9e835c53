//! The metrics as text, in the format that Prometheus reads (OpenMetrics 1.0).

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::count::{BOUNDS, Distribution};
use super::snapshot::{Figures, WorkerFigures};
use crate::broker::{State, Status};

/// The content type of the text in HTTP.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the metrics as text.
#[must_use]
pub fn to_text(figures: &Figures) -> String {
    let mut registry = Registry::with_prefix("wirespeed");
    registry.register_collector(Box::new(Exporter(figures.clone())));
    let mut text = String::with_capacity(8192);
    let _ = text::encode(&mut text, &registry); // writing to a string never fails
    text
}

#[derive(Debug)]
struct Exporter(Figures);

/// Whether a metric is the sum of all workers, or has a value for each.
#[derive(Clone, Copy)]
enum Aggregation {
    Sum,
    PerWorker,
}

impl Collector for Exporter {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        self.gauge(
            encoder,
            "connections",
            "Connected clients, with a session or in their handshake",
            Aggregation::PerWorker,
            |w| w.connections,
        )?;
        self.gauge(encoder, "sessions", "Open sessions", Aggregation::PerWorker, |w| w.sessions)?;
        self.counter(encoder, "sessions_opened", "Sessions opened since the start", |w| w.sessions_opened)?;
        self.counter(encoder, "messages_received", "Messages from clients", |w| w.messages_received)?;
        self.counter(encoder, "received_bytes", "Bytes of their payloads", |w| w.bytes_received)?;
        self.counter(encoder, "messages_sent", "Messages to clients; a published message counts once for each", |w| {
            w.messages_sent
        })?;
        self.counter(encoder, "sent_bytes", "Bytes of their payloads", |w| w.bytes_sent)?;
        self.counter(encoder, "events", "Events passed to the application", |w| w.events)?;
        let help = "Bytes that wait because clients read slowly";
        self.gauge(encoder, "outbox_bytes", help, Aggregation::Sum, |w| w.outbox_bytes)?;
        let help = "Bytes of messages that wait for a worker";
        self.gauge(encoder, "mailbox_bytes", help, Aggregation::PerWorker, |w| w.mailbox_bytes)?;
        let total = self.0.total();
        let of = total.dropped_by_policy();
        family(
            encoder,
            "messages_dropped",
            "Messages dropped: the client reads too slowly, or has left",
            "policy",
            of,
        )?;
        let of = total.failures_by_reason().map(|(reason, count)| (reason.name(), count));
        family(encoder, "handshakes_failed", "Opening handshakes that failed", "reason", of)?;
        let of = total.tokens_denied_by_reason();
        family(encoder, "tokens_denied", "Opening handshakes that failed because of their token", "reason", of)?;
        let (help, of) =
            ("Requests for metrics and page without a valid token", self.0.operator_tokens_refused.into_iter());
        family(encoder, "operator_tokens_refused", help, "at", of)?;
        self.counter(encoder, "messages_limited", "Messages dropped because their clients send too many", |w| {
            w.limited
        })?;
        self.counter(
            encoder,
            "messages_denied",
            "Messages of relays dropped because their clients may not publish",
            |w| w.denied,
        )?;
        self.counter(encoder, "reads_delayed", "How often a client was not read because it sends too much", |w| {
            w.delayed
        })?;
        self.counter(encoder, "panics", "Panics of the engine that have ended a session", |w| w.panics)?;
        let help = "Messages that the codec of their route did not understand";
        encoder
            .encode_descriptor("messages_invalid", help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(&self.0.messages_invalid, None)?;
        let waiting = [
            ("events_waiting", "Events that wait to be taken", self.0.events_waiting),
            ("event_bytes_waiting", "Bytes of their messages", self.0.event_bytes_waiting),
            ("total_outbox_bytes", "Memory of everything that waits for sessions", self.0.total_outbox_bytes),
            ("key_files_failed", "Key files that could not be read again", self.0.key_files_failed),
        ];
        for (name, help, value) in waiting {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&(value as u64))?;
        }
        let help = "How long the oldest event has waited to be taken";
        let mut metric = encoder.encode_descriptor("oldest_event_seconds", help, None, MetricType::Gauge)?;
        metric.encode_gauge(&self.0.oldest_event.as_secs_f64())?;
        if let Some(broker) = &self.0.broker {
            broker_figures(encoder, broker)?;
        }
        let help = "Durations of a worker's turns: the longest that a new event waits";
        let mut metric = encoder.encode_descriptor("loop_lag_seconds", help, None, MetricType::Histogram)?;
        for (number, worker) in self.0.workers.iter().enumerate() {
            histogram(&mut metric.encode_family(&[("worker", number.to_string())])?, &worker.lag)?;
        }
        let help = "Time from publishing to the last socket of a worker, for samples";
        let mut metric = encoder.encode_descriptor("publish_latency_seconds", help, None, MetricType::Histogram)?;
        histogram(&mut metric, &total.latency)
    }
}

type Figure = fn(&WorkerFigures) -> u64;

impl Exporter {
    fn counter(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, of: Figure) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (number, worker) in self.0.workers.iter().enumerate() {
            let labels = [("worker", number.to_string())];
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&of(worker), None)?;
        }
        Ok(())
    }

    fn gauge(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        aggregation: Aggregation,
        of: Figure,
    ) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        match aggregation {
            Aggregation::Sum => metric.encode_gauge(&self.0.workers.iter().map(of).sum::<u64>()),
            Aggregation::PerWorker => self.0.workers.iter().enumerate().try_for_each(|(number, worker)| {
                metric.encode_family(&[("worker", number.to_string())])?.encode_gauge(&of(worker))
            }),
        }
    }
}

fn broker_figures(encoder: &mut DescriptorEncoder<'_>, broker: &Status) -> fmt::Result {
    let connected = u64::from(broker.state == State::Connected);
    let connected = ("connected", "Whether there is a connection to the broker", connected);
    for (name, help, value) in [connected].into_iter().chain(broker.gauges()) {
        encoder.encode_descriptor(&format!("broker_{name}"), help, None, MetricType::Gauge)?.encode_gauge(&value)?;
    }
    for (name, help, value) in broker.counters() {
        encoder
            .encode_descriptor(&format!("broker_{name}"), help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    Ok(())
}

fn family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    of: impl Iterator<Item = (&'static str, u64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (value, count) in of {
        metric.encode_family(&[(label, value)])?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
    }
    Ok(())
}

fn histogram(metric: &mut prometheus_client::encoding::MetricEncoder<'_>, of: &Distribution) -> fmt::Result {
    let bounds = BOUNDS.iter().map(|bound| *bound as f64 / 1e6).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(of.counts).collect();
    metric.encode_histogram::<NoLabelSet>(of.seconds, of.count(), &buckets, None)
}
