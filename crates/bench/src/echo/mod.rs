//! The echo server: options, listeners and threads.

mod connection;
mod role;
mod worker;

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::certificate::Certificate;
use crate::{at_least_one, descriptors, show};
use worker::Listener;

/// A WebSocket server on 127.0.0.1, for tests, benchmarks and demonstrations
///
/// It prints one line for each port when it listens:
///   listening ws://127.0.0.1:PORT
///   listening wss://127.0.0.1:PORT ca=PATH
/// PATH is a PEM file with the authority that signed the certificate. It is created at start and removed at exit.
/// SIGTERM and SIGINT end the server.
///
/// Paths:
///   /                 Echoes every message
///   /stamp            Echoes binary messages of 24 bytes or more, with two timestamps in nanoseconds of CLOCK_MONOTONIC,
///                     8 bytes little-endian each: bytes 8 to 15 contain when the message was received, bytes 16 to 23
///                     when the reply was sent. Other messages are answered with close code 1008
///   /blast?size=N     Sends binary messages of N bytes as fast as the client reads. Message i begins with i, 8 bytes
///                     little-endian; each following byte j is j modulo 256
///   /sink             Counts binary messages; the reply to a text message is {"messages": N, "bytes": M}
///   /duplex?size=N    /blast and /sink at the same time, independent of each other
///   /mixed?size=N     Alternates: nine messages as of /blast, and nine more for each message that is counted
///   /hash             As /sink; the reply also has "sha256": HEX, the hash of all binary payloads in order
///   /file?size=N&bytes=M
///                     Sends M bytes in binary messages of N bytes, as of /blast, the last one possibly shorter. Then
///                     it sends the text {"messages": N, "bytes": M, "sha256": HEX}. Each text message `again` repeats
///                     this, from number 0 [default: size=65536&bytes=1048576]
///   /close?code=N     Closes with code N at once
#[derive(clap::Args)]
#[command(verbatim_doc_comment, args_override_self = true)]
pub(crate) struct Options {
    /// Port for ws://, 0 for any free one
    #[arg(long, value_name = "N", default_value_t = 0)]
    port: u16,
    /// Port for wss://, 0 for any free one [default: none]
    #[arg(long, value_name = "N")]
    tls_port: Option<u16>,
    /// Worker threads, each with its own connections
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one)]
    threads: usize,
    #[command(flatten)]
    settings: Settings,
}

/// Settings of all connections.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct Settings {
    /// Do not negotiate permessage-deflate
    #[arg(long)]
    no_compression: bool,
    /// Largest message in bytes
    #[arg(long, value_name = "N", default_value_t = 64 << 20)]
    max_size: usize,
}

/// The length of the accept queue, which the system limits further (/proc/sys/net/core/somaxconn).
const BACKLOG: i32 = 1 << 16;

pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    descriptors::raise();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let certificate = options.tls_port.map(|_| Certificate::generate()).transpose()?;
    let mut workers: Vec<Vec<Listener>> = (0..options.threads).map(|_| Vec::new()).collect();
    let port = listen(&mut workers, options.port, None)?;
    let mut listening = format!("listening ws://127.0.0.1:{port}\n");
    if let (Some(port), Some(Certificate { config, path })) = (options.tls_port, &certificate) {
        let port = listen(&mut workers, port, Some(config))?;
        listening += &format!("listening wss://127.0.0.1:{port} ca={}\n", path.display());
    }
    show(&listening);
    let settings = options.settings;
    let serve = |listeners| {
        let stop = Arc::clone(&stop);
        thread::spawn(move || worker::serve(listeners, settings, &stop).map_err(|error| error.to_string()))
    };
    let workers: Vec<_> = workers.into_iter().map(serve).collect();
    for worker in workers {
        let result = worker.join().map_err(|_| "a worker panicked")?;
        stop.store(true, Ordering::Relaxed);
        result?;
    }
    Ok(())
}

/// Adds a listener on the same port to each thread; the kernel distributes the connections. Returns the port.
fn listen(workers: &mut [Vec<Listener>], port: u16, tls: Option<&Arc<worker::Tls>>) -> Result<u16, Box<dyn Error>> {
    let (mut port, several) = (port, workers.len() > 1);
    for worker in workers {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        if several {
            socket.set_reuse_port(true)?;
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        socket.bind(&address.into()).map_err(|error| cannot_listen(address, &error))?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let socket: TcpListener = socket.into();
        port = socket.local_addr()?.port();
        worker.push(Listener { socket: mio::net::TcpListener::from_std(socket), tls: tls.cloned() });
    }
    Ok(port)
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> String {
    let reason = match error.kind() {
        io::ErrorKind::AddrInUse => "the port is in use",
        io::ErrorKind::PermissionDenied => "only root may use this port",
        _ => return format!("cannot listen on {address}: {error}"),
    };
    format!("cannot listen on {address}: {reason}; choose another one, or 0 for any that is free")
}
