//! The echo server: options, listeners, threads.

mod connection;
mod opening;
mod role;
mod worker;

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lexopt::{Arg, Parser, ValueExt as _};
use wirespeed_driver::tls::server::ServerConfig;

use crate::{certificate, descriptors, show};

const HELP: &str = "\
A WebSocket server on 127.0.0.1, for tests, benchmarks and demonstrations.

Usage: wirespeed-bench echo [OPTIONS]

It prints a line for every port as soon as it listens:
  listening ws://127.0.0.1:PORT
  listening wss://127.0.0.1:PORT ca=PATH
PATH is a PEM file with the authority that signed its certificate, made at start and removed at the end.

Paths:
  /                 Sends every message back
  /stamp            Sends binary messages of 24 bytes or more back, with two times in nanoseconds of CLOCK_MONOTONIC,
                    each 8 bytes little-endian: in bytes 8 to 15 when the message was taken, in 16 to 23 when the reply
                    was sent. Anything else is closed with code 1008
  /blast?size=N     Sends binary messages of N bytes as fast as the client reads. Message i begins with i, 8 bytes
                    little-endian; byte j behind is j modulo 256
  /sink             Counts binary messages; a text message is answered with {\"messages\": N, \"bytes\": M}
  /duplex?size=N    Both at the same time, neither waiting for the other
  /hash             As /sink; the answer has \"sha256\": HEX too, of the payloads of all binary messages in their order
  /file?size=N&bytes=M
                    Sends M bytes in binary messages of N, as those of /blast, the last one shorter if need be, then the
                    text {\"messages\": N, \"bytes\": M, \"sha256\": HEX}. The same again, from number 0, for each text
                    message `again` [default: size=65536&bytes=1048576]
  /deaf             Neither reads nor writes once the connection is open
  /close?code=N     Closes with code N at once

Options:
  --port N          Port for ws://, 0 for any free one [default: 0]
  --tls-port N      Port for wss://, 0 for any free one [default: none]
  --threads N       Threads that serve, each with its own connections [default: 1]
  --no-compression  Do not negotiate permessage-deflate
  --max-size N      Bytes of a message [default: 67108864]
  -h, --help        Show this text

It ends with SIGTERM or SIGINT.
";

/// Connections that may wait to be accepted: as many as the system allows (/proc/sys/net/core/somaxconn).
const BACKLOG: i32 = 1 << 16;

/// What all connections share.
pub(crate) struct Settings {
    pub(crate) compression: bool,
    pub(crate) max_size: usize,
}

struct Options {
    port: u16,
    tls_port: Option<u16>,
    threads: usize,
    settings: Settings,
}

pub(crate) fn run(arguments: Parser) -> Result<(), Box<dyn Error>> {
    let Some(options) = parse(arguments)? else { return Ok(()) };
    descriptors::raise();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let plain = bind(options.port, options.threads)?;
    let certificate = options.tls_port.map(|_| certificate::Certificate::generate()).transpose()?;
    let secure = match options.tls_port {
        Some(port) => bind(port, options.threads)?,
        None => Vec::new(),
    };
    show(&format!("listening ws://127.0.0.1:{}\n", port_of(&plain)?));
    if let Some(certificate) = &certificate {
        show(&format!("listening wss://127.0.0.1:{} ca={}\n", port_of(&secure)?, certificate.path().display()));
    }
    let settings = Arc::new(options.settings);
    let config: Option<Arc<ServerConfig>> = certificate.as_ref().map(certificate::Certificate::config).transpose()?;
    let mut secure = secure.into_iter();
    let workers: Vec<_> = plain
        .into_iter()
        .map(|listener| {
            let tls = secure.next().zip(config.clone());
            let (settings, stop) = (Arc::clone(&settings), Arc::clone(&stop));
            thread::spawn(move || worker::serve(listener, tls, settings, &stop).map_err(|error| error.to_string()))
        })
        .collect();
    for worker in workers {
        let result = worker.join().map_err(|_| "a worker panicked")?;
        stop.store(true, Ordering::Relaxed);
        result?;
    }
    Ok(())
}

fn parse(mut arguments: Parser) -> Result<Option<Options>, Box<dyn Error>> {
    let mut options =
        Options { port: 0, tls_port: None, threads: 1, settings: Settings { compression: true, max_size: 64 << 20 } };
    while let Some(argument) = arguments.next()? {
        match argument {
            Arg::Long("port") => options.port = arguments.value()?.parse()?,
            Arg::Long("tls-port") => options.tls_port = Some(arguments.value()?.parse()?),
            Arg::Long("threads") => options.threads = arguments.value()?.parse()?,
            Arg::Long("no-compression") => options.settings.compression = false,
            Arg::Long("max-size") => options.settings.max_size = arguments.value()?.parse()?,
            Arg::Short('h') | Arg::Long("help") => {
                show(HELP);
                return Ok(None);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if options.threads == 0 {
        return Err("--threads must be at least 1".into());
    }
    Ok(Some(options))
}

/// One listener per thread on the same port: the kernel spreads the connections.
fn bind(port: u16, threads: usize) -> Result<Vec<TcpListener>, Box<dyn Error>> {
    let mut port = port;
    let mut listeners = Vec::new();
    for _ in 0..threads {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        if threads > 1 {
            socket.set_reuse_port(true)?;
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        socket.bind(&address.into()).map_err(|error| cannot_listen(address, &error))?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener: TcpListener = socket.into();
        port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(listeners)
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("cannot listen on {address}: the port is in use; choose another one, or 0 for any that is free")
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "cannot listen on {address}: only root may use this port; choose another one, or 0 for any that is free"
            )
        }
        _ => format!("cannot listen on {address}: {error}"),
    }
}

fn port_of(listeners: &[TcpListener]) -> Result<u16, Box<dyn Error>> {
    Ok(listeners.first().ok_or("no listener")?.local_addr()?.port())
}

/// Bytes as lower-case hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
