//! The command line of the load generator.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use wirespeed_driver::protocol::MessageKind;

use super::content::Form;
use super::text;
use super::tls::Tls;
use crate::at_least_one;

/// What the connections do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Every connection sends a message, waits for its echo, and sends the next. With --rate, all connections in turn
    /// send messages on a fixed schedule; latencies begin at the scheduled times
    Echo,
    /// All connections send a message at the same time, and again when all have the echo. Latencies begin with the
    /// burst
    Burst,
    /// Every connection sends as fast as the server reads, to a path that counts messages, and answers each text
    /// message with {"messages": N, "bytes": M}. Only messages confirmed in this way count. A server that decodes
    /// messages may answer {"messages": N, "sum": S} instead, with the sum of the numbers in them, modulo 2 to the 32
    Sink,
    /// One connection sends a message, which the server sends to all; when all have received it, it sends the next
    FanOut,
    /// As fan-out, on a fixed schedule: a given rate, or a share of the maximum; latencies begin at the scheduled times
    Publish,
    /// Connections are opened and closed, --connections of them at the same time
    Open,
    /// One connection at a time connects, sends a prepared request, waits for the response, and leaves: openings with
    /// as little client work as possible
    Touch,
    /// All connections are started at once, closed when all are ready, and started again until the window is over.
    /// `seconds` is the time of opening
    Storm,
    /// All connections are started at once, and then pinged in turn on a fixed schedule. None may be lost; pongs are
    /// counted, and latencies begin at the scheduled times
    Pings,
    /// Connections are held: pings are answered, one connection after the other sends a message, and at the end all do
    Hold,
    /// Connections are opened, echo a message, and are held until standard input ends
    Idle,
}

/// Load for a WebSocket server on the loopback interface; prints its result as a line of JSON
///
/// It prints `begin` at the start of the measurement, or `ready` when all connections are idle. Then it prints a line
/// of JSON:
///   count, seconds      Counted operations, all of them checked (`checked`), and the duration
///   cpu                 Processor time of this process in seconds
///   limited             The share of time in which this process was busy: near 1, it was the limit instead of the server.
///                       Above 0.9, it prints a warning on standard error
///   mean, p50, p90, p95, p99, p999, max
///                       Latencies in microseconds, if there are any
///   second_1 ... second_5
///                       For windows of two seconds and more: the count of each of the first seconds
///   offered             The scheduled rate per second; for publish, in deliveries
///   servers             The count and latencies of each of several servers
///   pings               The number of the server's pings that were answered, for hold and idle
///   deflate             Whether all connections negotiated compression, if it was offered
#[derive(Clone, clap::Args)]
#[command(verbatim_doc_comment, args_override_self = true)]
pub(crate) struct Options {
    /// What the connections do
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Workload::Echo)]
    pub(crate) workload: Workload,
    /// Connections to each server
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one)]
    pub(crate) connections: usize,
    /// Bytes of a message, at least 8
    #[arg(long, value_name = "BYTES", default_value_t = 128)]
    pub(crate) size: usize,
    /// The format of messages
    #[arg(long = "content", value_name = "FORM", value_enum, default_value_t = Form::Binary)]
    pub(crate) form: Form,
    /// Offer permessage-deflate, and compress every message if it is negotiated
    #[arg(long)]
    pub(crate) deflate: bool,
    /// Messages in flight at once: per connection for echo [default: 1], in total for fan-out [default: 1] and for
    /// publish while it determines the maximum [default: 4]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) window: Option<usize>,
    /// Messages per second, on all connections together, for echo and publish; for hold [default: one for every hundred
    /// connections, at least one]; pings per second, for pings [default: one for each connection]
    #[arg(long, value_name = "R", value_parser = positive)]
    pub(crate) rate: Option<f64>,
    /// The share of the maximum, for publish without --rate; the warm-up determines the maximum [default: 0.5]
    #[arg(long, value_name = "S", value_parser = positive)]
    pub(crate) share: Option<f64>,
    /// For sink: messages of each connection in a round, which ends with the answers; repeated until the window is
    /// over. Latencies are those of a round
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) messages: Option<usize>,
    /// For pings: each connection also has one message in flight all the time, as for echo
    #[arg(long)]
    pub(crate) busy: bool,
    /// The duration of the measurement in seconds
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// The duration of the warm-up in seconds
    #[arg(long, value_name = "S", default_value = "0.3", value_parser = duration)]
    pub(crate) warmup: Duration,
    /// Each of several servers has a publisher of its own, whose messages only its connections receive; otherwise the
    /// first connection to the first server publishes for all
    #[arg(long)]
    pub(crate) apart: bool,
    /// Threads that share the connections, for echo, sink, fan-out and open
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one)]
    pub(crate) threads: usize,
    /// PEM file with the authority that signed the server's certificate, for wss://
    #[arg(long, value_name = "PATH")]
    pub(crate) ca: Option<PathBuf>,
    /// A token to send as the cookie access_token
    #[arg(long)]
    pub(crate) token: Option<String>,
    /// Use the handshake of WSE: the token (a JWT) is sent as the cookie access_token, and a connection is ready when
    /// the server has sent `server_ready`
    #[arg(long, value_name = "TOKEN")]
    pub(crate) wse_token: Option<String>,
    /// ws[s]://ADDRESS:PORT/PATH. Several URLs are for fan-out and publish: servers that forward published messages to
    /// each other, or with --apart do not
    #[arg(value_name = "URL", required = true, value_parser = Server::parse)]
    pub(crate) servers: Vec<Server>,
    /// The TLS configuration, for wss:// URLs.
    #[arg(skip)]
    pub(crate) tls: Option<Tls>,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) host: String,
    pub(crate) target: String,
    secure: bool,
}

impl Server {
    fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let secure = scheme == "wss";
        if !secure && scheme != "ws" {
            return Err("the URL must begin with ws:// or wss://".into());
        }
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let address = host.to_socket_addrs().map_err(text)?.next().ok_or("the host has no address")?;
        Ok(Self { address, host: host.to_owned(), target: format!("/{path}"), secure })
    }
}

impl Options {
    /// Returns the number of connections to all servers together.
    pub(crate) fn clients(&self) -> usize {
        self.connections * self.servers.len()
    }

    /// Returns the token to send as a cookie.
    pub(crate) fn token(&self) -> Option<&String> {
        self.wse_token.as_ref().or(self.token.as_ref())
    }

    /// Returns whether the server sends a greeting: the handshake of WSE.
    pub(crate) fn greeted(&self) -> bool {
        self.wse_token.is_some()
    }

    /// Loads the files that the options name. Returns an error if options contradict each other.
    pub(crate) fn complete(mut self) -> Result<Self, String> {
        self.check()?;
        if let Some(authority) = &self.ca {
            self.tls = Some(Tls::new(authority, self.servers[0].address)?);
        }
        Ok(self)
    }

    fn check(&self) -> Result<(), String> {
        use Workload::{Echo, FanOut, Hold, Open, Pings, Publish, Sink};
        let none_of = |allowed: &[Workload]| !allowed.contains(&self.workload);
        let (paced, several, threads) = (self.rate.is_some(), self.servers.len() > 1, self.threads > 1);
        let secure = self.servers[0].secure;
        let foreign = |server: &Server| !server.address.ip().is_loopback();
        let refused = [
            (self.size < 8, "--size must be at least 8"),
            (self.servers.iter().any(foreign), "load is for servers on the loopback interface only"),
            (self.servers.iter().any(|server| server.secure != secure), "all URLs must be ws://, or all wss://"),
            (secure && self.ca.is_none(), "wss:// needs --ca"),
            (!secure && self.ca.is_some(), "--ca is for wss://"),
            (paced && none_of(&[Echo, Publish, Pings, Hold]), "--rate is for echo, publish, pings and hold"),
            (
                several && (threads || none_of(&[FanOut, Publish])),
                "several URLs are for a thread of fan-out or publish",
            ),
            (self.apart && !several, "--apart is for several URLs"),
            (threads && paced, "--threads is for echo without --rate"),
            (threads && none_of(&[Echo, Sink, FanOut, Open]), "--threads is for echo, sink, fan-out and open"),
            (
                self.window.is_some() && paced && self.workload == Echo,
                "--rate and --window exclude each other: at a given rate, as many messages are under way as there are",
            ),
            (self.window.is_some() && none_of(&[Echo, FanOut, Publish]), "--window is for echo, fan-out and publish"),
            (self.share.is_some() && (paced || none_of(&[Publish])), "--share is for publish without --rate"),
            (self.messages.is_some() && none_of(&[Sink]), "--messages is for sink"),
            (self.busy && none_of(&[Pings]), "--busy is for pings"),
            (
                self.workload == Sink && self.form.kind() == MessageKind::Text,
                "sink needs binary messages, as a text message asks for the count: --content binary, json-bytes or msgpack",
            ),
        ];
        refused.iter().find(|(wrong, _)| *wrong).map_or(Ok(()), |(_, reason)| Err((*reason).to_owned()))
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0 && number.is_finite());
    number.ok_or_else(|| "a number above 0 is wanted".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    positive(text)?;
    duration(text)
}

fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "a number of seconds is wanted".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parsed(arguments: &str) -> Result<Options, String> {
        let arguments = ["load", "ws://127.0.0.1:80/path?x=1"].into_iter().chain(arguments.split_whitespace());
        Line::try_parse_from(arguments).map_err(text)?.options.complete()
    }

    #[test]
    fn defaults_apply_and_the_last_occurrence_of_an_option_counts() {
        let options = parsed("").expect("valid");
        assert_eq!((options.workload, options.connections, options.size), (Workload::Echo, 1, 128));
        assert_eq!((options.seconds.as_secs_f64(), options.warmup.as_millis()), (1.0, 300));
        let server = &options.servers[0];
        assert_eq!((server.host.as_str(), server.target.as_str()), ("127.0.0.1:80", "/path?x=1"));
        let arguments = "--workload echo --workload fan-out --connections 3 --apart ws://127.0.0.1:81";
        let options = parsed(arguments).expect("valid");
        assert_eq!((options.clients(), options.servers[1].host.as_str()), (6, "127.0.0.1:81"));
    }

    #[test]
    fn contradicting_options_are_refused() {
        for (arguments, word) in [
            ("--workload nothing", "possible values: echo, burst"),
            ("--content xml", "possible values: binary, text, json"),
            ("--connections 0", "at least 1"),
            ("--size 7", "at least 8"),
            ("--window 0", "at least 1"),
            ("--rate 0", "above 0"),
            ("--rate nan", "above 0"),
            ("--seconds=-1", "above 0"),
            ("--rate 5 --workload burst", "--rate is for"),
            ("--rate 5 --window 5", "exclude"),
            ("--window 5 --workload sink", "--window is for"),
            ("--share 0.5", "--share is for"),
            ("--share 0.5 --rate 5 --workload publish", "--share is for"),
            ("--busy", "--busy is for"),
            ("--messages 5", "--messages is for sink"),
            ("--messages 0 --workload sink", "at least 1"),
            ("--workload sink --content json", "binary messages"),
            ("--workload sink --content text", "binary messages"),
            ("--threads 0", "at least 1"),
            ("--threads 2 --workload burst", "--threads is for"),
            ("--threads 2 --rate 5", "--threads is for"),
            ("--ca nowhere.pem", "--ca is for wss"),
            ("ws://127.0.0.1:81", "several URLs are for"),
            ("http://127.0.0.1:81", "must begin with ws"),
            ("--workload fan-out --threads 2 ws://127.0.0.1:81", "several URLs are for"),
            ("--workload fan-out wss://127.0.0.1:81", "all URLs must be"),
            ("--workload fan-out --apart", "--apart is for"),
        ] {
            let error = parsed(arguments).map(|_| ()).expect_err(arguments);
            assert!(error.contains(word), "{arguments}: {error}");
        }
    }
}
