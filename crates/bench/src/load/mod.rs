//! The load generator: many clients in one thread, which count only what they have checked.

mod client;
mod histogram;
mod run;

use std::error::Error;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt as _};

use crate::show;

const HELP: &str = "\
Load for a WebSocket server on the loopback interface; prints what it did as a line of JSON.

Usage: wirespeed-bench load [OPTIONS] ws://ADDRESS:PORT/PATH

Workloads:
  echo      Every connection sends a message, waits for its echo, and sends the next
  fan-out   One connection sends a message, which the server sends to all of them; when all have it, it sends the next
  open      Connections are opened and closed, as many at once as --connections says
  idle      Connections are opened, have a message echoed, and are held until standard input ends

Options:
  --workload NAME   [default: echo]
  --connections N   [default: 1]
  --size BYTES      Of a message, 8 at least [default: 128]
  --window N        Messages of a connection that are under way at once, for echo [default: 1]
  --deflate         Offer permessage-deflate
  --seconds S       What is measured [default: 1]
  --warmup S        What comes before [default: 0.3]
  -h, --help        Show this text

It prints `begin` first, where what is measured begins, or `ready` when all connections are idle. The line has what was counted, the seconds, the latencies in microseconds, and the processor time of this process. `limited` is the part of
the time in which this process had work to do: near 1, it was the limit, and not the server.
";

/// What the connections do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    Echo,
    FanOut,
    Open,
    Idle,
}

pub(crate) struct Options {
    pub(crate) workload: Workload,
    pub(crate) connections: usize,
    pub(crate) size: usize,
    pub(crate) window: usize,
    pub(crate) deflate: bool,
    pub(crate) seconds: Duration,
    pub(crate) warmup: Duration,
    pub(crate) address: SocketAddr,
    pub(crate) host: String,
    pub(crate) target: String,
}

pub(crate) fn run(arguments: Parser) -> Result<(), Box<dyn Error>> {
    let Some(options) = parse(arguments)? else { return Ok(()) };
    show(&run::run(&options)?);
    Ok(())
}

fn parse(mut arguments: Parser) -> Result<Option<Options>, Box<dyn Error>> {
    let mut options = Options {
        workload: Workload::Echo,
        connections: 1,
        size: 128,
        window: 1,
        deflate: false,
        seconds: Duration::from_secs(1),
        warmup: Duration::from_millis(300),
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        host: String::new(),
        target: String::new(),
    };
    while let Some(argument) = arguments.next()? {
        match argument {
            Arg::Long("workload") => {
                options.workload = match arguments.value()?.string()?.as_str() {
                    "echo" => Workload::Echo,
                    "fan-out" => Workload::FanOut,
                    "open" => Workload::Open,
                    "idle" => Workload::Idle,
                    other => return Err(format!("--workload {other}: choose echo, fan-out, open or idle").into()),
                }
            }
            Arg::Long("connections") => options.connections = arguments.value()?.parse()?,
            Arg::Long("size") => options.size = arguments.value()?.parse()?,
            Arg::Long("window") => options.window = arguments.value()?.parse()?,
            Arg::Long("deflate") => options.deflate = true,
            Arg::Long("seconds") => options.seconds = seconds(&arguments.value()?.string()?)?,
            Arg::Long("warmup") => options.warmup = seconds(&arguments.value()?.string()?)?,
            Arg::Short('h') | Arg::Long("help") => {
                show(HELP);
                return Ok(None);
            }
            Arg::Value(url) if options.host.is_empty() => {
                let url = url.string()?;
                let rest = url.strip_prefix("ws://").ok_or("the URL must begin with ws://")?;
                let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
                options.address = host.to_socket_addrs()?.next().ok_or("the host has no address")?;
                options.host = host.to_owned();
                options.target = format!("/{path}");
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if options.host.is_empty() {
        return Err("the URL is missing; try --help".into());
    }
    if !options.address.ip().is_loopback() {
        return Err("load is for servers on the loopback interface only".into());
    }
    if options.connections == 0 || options.window == 0 || options.size < 8 {
        return Err("--connections and --window must be at least 1, --size at least 8".into());
    }
    Ok(Some(options))
}

fn seconds(text: &str) -> Result<Duration, Box<dyn Error>> {
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}
