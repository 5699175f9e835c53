//! The command line of the load generator.

use std::error::Error;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt as _};
use wirespeed_driver::protocol::MessageKind;

use crate::show;

use super::content::Form;
use super::tls::Tls;

const HELP: &str = "\
Load for a WebSocket server on the loopback interface; prints what it did as a line of JSON.

Usage: wirespeed-bench load [OPTIONS] ws[s]://ADDRESS:PORT/PATH [URL...]

Several URLs are for fan-out and publish: servers that pass on to each other what is published, or with --apart do not.

Workloads:
  echo      Every connection sends a message, waits for its echo, and sends the next. With --rate, so many messages a
            second are sent, by all connections in turn, at moments that are settled beforehand; latencies begin when a
            message was due
  burst     All connections send a message at the same time; when everybody has the echo, again. Latencies begin with
            the burst
  sink      Every connection sends as fast as the server reads, to a path that counts, and answers each text message
            with {\"messages\": N, \"bytes\": M}; what it says there is what counts. A server that decodes messages may
            answer {\"messages\": N, \"sum\": S}, with the sum of the numbers in them, modulo 2 to the 32
  fan-out   One connection sends a message, which the server sends to all of them; when all have it, it sends the next
  publish   The same, but so many messages a second, or a share of what is possible; latencies begin when a message was
            due
  open      Connections are opened and closed, as many at once as --connections says
  touch     Connects, sends a request that was made beforehand, waits until the answer is there, and leaves, one
            connection at a time: openings with as little of the client in them as can be
  storm     All connections are begun at once; when all are ready they are closed; again, until the window is over. The
            seconds are those of opening
  pings     All connections are begun at once; then they are pinged in turn, at moments that are settled beforehand.
            None may be lost; what counts are pongs, latencies begin when a ping was due
  hold      Connections are held: pings are answered, one connection after the other sends a message, and at the end
            everybody does
  most      Connections are opened until the server or the system refuses, --connections at most; those that then echo
            a message count
  idle      Connections are opened, have a message echoed, and are held until standard input ends

Options:
  --workload NAME     [default: echo]
  --connections N     To each server [default: 1]
  --size BYTES        Of a message, 8 at least [default: 128]
  --content FORM      binary, text: numbered; json: documents in text messages; json-bytes: the same in binary ones;
                      msgpack: maps in binary messages. The smallest document has some 40 bytes [default: binary]
  --deflate           Offer permessage-deflate, and compress every message if it is agreed on
  --window N          Messages under way at once: of a connection for echo [default: 1], to everybody for fan-out
                      [default: 1] and for publish while it looks for what is possible [default: 4]
  --rate R            Messages a second, of all connections together, for echo and publish; for hold [default: one for
                      every hundred connections, one at least]; pings a second, for pings [default: one for each]
  --share S           Of what is possible, for publish without --rate; that is looked for during the warm-up
                      [default: 0.5]
  --seconds S         What is measured [default: 1]
  --warmup S          What comes before [default: 0.3]
  --apart             Of several servers each has a publisher of its own, and its connections get what that one publishes;
                      without it, the first connection to the first server publishes for all
  --threads N         Threads that share the connections, for echo, sink, fan-out and open [default: 1]
  --ca PATH           PEM file with the authority that signed the server's certificate, for wss://
  --token TOKEN       Send a token along, as the cookie access_token
  --wse-token TOKEN   Speak the handshake of WSE: the token (a JWT) goes along as the cookie access_token, and a connection is
                      ready when the server has sent `server_ready`
  -h, --help          Show this text

It prints `begin` first, where what is measured begins, or `ready` when all connections are idle. Then a line of JSON:
  count, seconds      What was counted, all of it checked, and how long it took; `checked` says so
  cpu                 Seconds of this process on a processor
  limited             The part of the time in which this process had work to do: near 1, it was the limit, and not the
                      server; above 0.9 it says so on standard error too
  mean, p50, p90, p99, p999, max
                      Latencies in microseconds, where there are some
  deviation           Of windows of two seconds and more: the standard deviation of the rates of single seconds, as a
                      part of their mean
  offered             What was to be counted in a second, with a rate: for publish, deliveries
  servers             Of several servers the count of each, and its latencies
  pings               How many of the server's pings were answered, for hold and idle
  stopped             Why there are no more connections, for most
  deflate             Whether compression was agreed on, if it was offered
A reply, a delivery or a count that is wrong, missing or out of order is an error, in one line on standard error.
";

/// What the connections do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    Echo,
    Burst,
    Sink,
    FanOut,
    Publish,
    Open,
    Touch,
    Storm,
    Pings,
    Hold,
    Most,
    Idle,
}

const WORKLOADS: [(&str, Workload); 12] = [
    ("echo", Workload::Echo),
    ("burst", Workload::Burst),
    ("sink", Workload::Sink),
    ("fan-out", Workload::FanOut),
    ("publish", Workload::Publish),
    ("open", Workload::Open),
    ("touch", Workload::Touch),
    ("storm", Workload::Storm),
    ("pings", Workload::Pings),
    ("hold", Workload::Hold),
    ("most", Workload::Most),
    ("idle", Workload::Idle),
];

const FORMS: [(&str, Form); 5] = [
    ("binary", Form::Binary),
    ("text", Form::Text),
    ("json", Form::Json),
    ("json-bytes", Form::JsonBytes),
    ("msgpack", Form::MessagePack),
];

/// What to do.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) workload: Workload,
    pub(crate) connections: usize,
    /// Bytes of a message.
    pub(crate) size: usize,
    pub(crate) form: Form,
    /// Messages under way.
    pub(crate) window: Option<usize>,
    pub(crate) deflate: bool,
    /// A second.
    pub(crate) rate: Option<f64>,
    pub(crate) share: f64,
    pub(crate) seconds: Duration,
    pub(crate) warmup: Duration,
    /// What goes along as a cookie.
    pub(crate) token: Option<String>,
    /// The server says when a connection is ready: the handshake of WSE.
    pub(crate) greeted: bool,
    /// With a server whose URL is wss.
    pub(crate) tls: Option<Tls>,
    /// That put load on it.
    pub(crate) threads: usize,
    /// Of several servers each has a publisher of its own.
    pub(crate) apart: bool,
    /// At least one.
    pub(crate) servers: Vec<Server>,
}

/// Where one listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) host: String,
    pub(crate) target: String,
}

impl Server {
    fn new(rest: &str) -> Result<Self, String> {
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let mut addresses = host.to_socket_addrs().map_err(|error| format!("{rest}: {error}"))?;
        let address = addresses.next().ok_or_else(|| format!("{rest}: the host has no address"))?;
        Ok(Self { address, host: host.to_owned(), target: format!("/{path}") })
    }
}

impl Options {
    /// Connections to all servers together.
    pub(crate) fn clients(&self) -> usize {
        self.connections * self.servers.len()
    }
}

/// Reads the command line; none: it was answered.
pub(crate) fn parse(mut arguments: Parser) -> Result<Option<Options>, Box<dyn Error>> {
    let mut options = Options {
        workload: Workload::Echo,
        connections: 1,
        size: 128,
        form: Form::Binary,
        window: None,
        deflate: false,
        rate: None,
        share: 0.5,
        seconds: Duration::from_secs(1),
        warmup: Duration::from_millis(300),
        token: None,
        greeted: false,
        tls: None,
        threads: 1,
        apart: false,
        servers: Vec::new(),
    };
    let (mut share, mut authority, mut secure) = (None, None, None);
    while let Some(argument) = arguments.next()? {
        match argument {
            Arg::Long("workload") => options.workload = choice("--workload", &mut arguments, &WORKLOADS)?,
            Arg::Long("content") => options.form = choice("--content", &mut arguments, &FORMS)?,
            Arg::Long("connections") => options.connections = arguments.value()?.parse()?,
            Arg::Long("size") => options.size = arguments.value()?.parse()?,
            Arg::Long("window") => options.window = Some(arguments.value()?.parse()?),
            Arg::Long("deflate") => options.deflate = true,
            Arg::Long("rate") => options.rate = Some(positive("--rate", &mut arguments)?),
            Arg::Long("share") => share = Some(positive("--share", &mut arguments)?),
            Arg::Long("seconds") => {
                options.seconds = Duration::try_from_secs_f64(positive("--seconds", &mut arguments)?)?
            }
            Arg::Long("warmup") => options.warmup = Duration::try_from_secs_f64(arguments.value()?.parse()?)?,
            Arg::Long("token") => options.token = Some(arguments.value()?.string()?),
            Arg::Long("wse-token") => {
                options.token = Some(arguments.value()?.string()?);
                options.greeted = true;
            }
            Arg::Long("ca") => authority = Some(arguments.value()?),
            Arg::Long("threads") => options.threads = arguments.value()?.parse()?,
            Arg::Long("apart") => options.apart = true,
            Arg::Short('h') | Arg::Long("help") => {
                show(HELP);
                return Ok(None);
            }
            Arg::Value(url) => {
                let url = url.string()?;
                let tls = url.starts_with("wss://");
                let rest = url.strip_prefix(if tls { "wss://" } else { "ws://" });
                options.servers.push(Server::new(rest.ok_or("the URL must begin with ws:// or wss://")?)?);
                if *secure.get_or_insert(tls) != tls {
                    return Err("all URLs must be ws://, or all wss://".into());
                }
            }
            other => return Err(other.unexpected().into()),
        }
    }
    match (secure == Some(true), authority) {
        (true, Some(path)) => options.tls = Some(Tls::new(Path::new(&path), options.servers[0].address)?),
        (true, None) => return Err("wss:// needs --ca".into()),
        (false, Some(_)) => return Err("--ca is for wss://".into()),
        (false, None) => {}
    }
    check(&options, share)?;
    options.share = share.unwrap_or(options.share);
    Ok(Some(options))
}

/// Tells what does not go together.
fn check(options: &Options, share: Option<f64>) -> Result<(), String> {
    let Options { workload, .. } = *options;
    if options.servers.is_empty() {
        return Err("the URL is missing; try --help".into());
    }
    if !options.servers.iter().all(|server| server.address.ip().is_loopback()) {
        return Err("load is for servers on the loopback interface only".into());
    }
    if options.connections == 0 || options.window == Some(0) || options.size < 8 {
        return Err("--connections and --window must be at least 1, --size at least 8".into());
    }
    if options.rate.is_some()
        && !matches!(workload, Workload::Echo | Workload::Publish | Workload::Pings | Workload::Hold)
    {
        return Err("--rate is for echo, publish, pings and hold".into());
    }
    if options.servers.len() > 1 && (options.threads > 1 || !matches!(workload, Workload::FanOut | Workload::Publish)) {
        return Err("several URLs are for fan-out and publish, in one thread".into());
    }
    if options.apart && options.servers.len() == 1 {
        return Err("--apart is for several URLs".into());
    }
    if options.threads == 0 {
        return Err("--threads must be at least 1".into());
    }
    if options.threads > 1
        && (options.rate.is_some()
            || !matches!(workload, Workload::Echo | Workload::Sink | Workload::FanOut | Workload::Open))
    {
        return Err("--threads is for echo without --rate, sink, fan-out and open".into());
    }
    if options.rate.is_some() && workload == Workload::Echo && options.window.is_some() {
        return Err(
            "--rate and --window exclude each other: at a given rate, as many messages are under way as there are"
                .into(),
        );
    }
    if options.window.is_some() && !matches!(workload, Workload::Echo | Workload::FanOut | Workload::Publish) {
        return Err("--window is for echo, fan-out and publish".into());
    }
    if share.is_some() && (workload != Workload::Publish || options.rate.is_some()) {
        return Err("--share is for publish without --rate".into());
    }
    if workload == Workload::Sink && options.form.kind() == MessageKind::Text {
        return Err("sink needs binary messages, as a text message asks for the count: \
                    --content binary, json-bytes or msgpack"
            .into());
    }
    Ok(())
}

fn choice<T: Copy>(option: &str, arguments: &mut Parser, among: &[(&str, T)]) -> Result<T, Box<dyn Error>> {
    let name = arguments.value()?.string()?;
    if let Some((_, found)) = among.iter().find(|(known, _)| *known == name) {
        return Ok(*found);
    }
    let known: Vec<_> = among.iter().map(|(known, _)| *known).collect();
    Err(format!("{option} {name}: choose one of {}", known.join(", ")).into())
}

fn positive(option: &str, arguments: &mut Parser) -> Result<f64, Box<dyn Error>> {
    let value: f64 = arguments.value()?.parse()?;
    if value > 0.0 && value.is_finite() { Ok(value) } else { Err(format!("{option} must be above 0").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &str) -> Result<Options, String> {
        let arguments = ["ws://127.0.0.1:80/path?x=1"].into_iter().chain(arguments.split_whitespace());
        match parse(Parser::from_args(arguments)) {
            Ok(options) => options.ok_or_else(|| "it was answered".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn defaults() {
        let options = parsed("").expect("valid");
        assert_eq!((options.workload, options.connections, options.size), (Workload::Echo, 1, 128));
        let server = &options.servers[0];
        assert_eq!((server.host.as_str(), server.target.as_str()), ("127.0.0.1:80", "/path?x=1"));
        assert!(options.token.is_none() && options.rate.is_none() && options.window.is_none());
    }

    #[test]
    fn several_servers() {
        let options = parsed("--workload fan-out --connections 3 --apart ws://127.0.0.1:81").expect("valid");
        assert_eq!((options.clients(), options.servers[1].host.as_str()), (6, "127.0.0.1:81"));
    }

    #[test]
    fn every_workload_is_known_and_helped_with() {
        for (name, workload) in WORKLOADS {
            assert_eq!(parsed(&format!("--workload {name}")).expect("valid").workload, workload);
            assert!(HELP.contains(&format!("\n  {name} ")), "{name}");
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for (arguments, word) in [
            ("--workload nothing", "choose one of echo, burst"),
            ("--content xml", "choose one of binary, text, json"),
            ("--connections 0", "at least 1"),
            ("--size 7", "at least 8"),
            ("--window 0", "at least 1"),
            ("--rate 0", "above 0"),
            ("--rate nan", "above 0"),
            ("--seconds -1", "above 0"),
            ("--rate 5 --workload burst", "--rate is for"),
            ("--rate 5 --window 5", "exclude"),
            ("--window 5 --workload sink", "--window is for"),
            ("--share 0.5", "--share is for"),
            ("--share 0.5 --rate 5 --workload publish", "--share is for"),
            ("--workload sink --content json", "binary messages"),
            ("--workload sink --content text", "binary messages"),
            ("--threads 0", "at least 1"),
            ("--threads 2 --workload burst", "--threads is for"),
            ("--threads 2 --rate 5", "--threads is for"),
            ("--ca nowhere.pem", "--ca is for wss"),
            ("ws://127.0.0.1:81", "several URLs are for"),
            ("--workload fan-out --threads 2 ws://127.0.0.1:81", "several URLs are for"),
            ("--workload fan-out wss://127.0.0.1:81", "all URLs must be"),
            ("--workload fan-out --apart", "--apart is for"),
        ] {
            let error = parsed(arguments).map(|_| ()).expect_err(arguments);
            assert!(error.contains(word), "{arguments}: {error}");
        }
    }
}
