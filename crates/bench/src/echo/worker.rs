//! One thread: its listeners, its connections, its loop.

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use wirespeed_driver::socket::Socket;
use wirespeed_driver::tls::server::ServerConfig;
use wirespeed_driver::tls::{Layer, RustlsLayer};

use super::Settings;
use super::connection::{Connection, Outcome};

const PLAIN: Token = Token(0);
const SECURE: Token = Token(1);

/// How long a signal may take to be noticed by threads that it does not interrupt.
const TICK: Duration = Duration::from_millis(200);

pub(crate) fn serve(
    plain: TcpListener,
    secure: Option<(TcpListener, Arc<ServerConfig>)>,
    settings: Arc<Settings>,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let mut plain = mio::net::TcpListener::from_std(plain);
    poll.registry().register(&mut plain, PLAIN, Interest::READABLE)?;
    let (mut listener, config) = match secure {
        Some((listener, config)) => (Some(mio::net::TcpListener::from_std(listener)), Some(config)),
        None => (None, None),
    };
    if let Some(listener) = &mut listener {
        poll.registry().register(listener, SECURE, Interest::READABLE)?;
    }
    let mut connections: HashMap<Token, Connection> = HashMap::new();
    let mut next = 2;
    let mut events = Events::with_capacity(1024);
    while !stop.load(Ordering::Relaxed) {
        match poll.poll(&mut events, Some(TICK)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        }
        for event in &events {
            let token = event.token();
            let (listener, tls) = match token {
                PLAIN => (Some(&plain), None),
                SECURE => (listener.as_ref(), config.as_ref()),
                _ => (None, None),
            };
            if let Some(listener) = listener {
                accept(listener, tls, &settings, &poll, &mut connections, &mut next)?;
                continue;
            }
            let Some(connection) = connections.get_mut(&token) else { continue };
            if connection.proceed(event.is_read_closed()) == Outcome::Over
                && let Some(connection) = connections.remove(&token)
            {
                let _ = poll.registry().deregister(&mut SourceFd(&connection.socket().raw()));
            }
        }
    }
    Ok(())
}

fn accept(
    listener: &mio::net::TcpListener,
    tls: Option<&Arc<ServerConfig>>,
    settings: &Arc<Settings>,
    poll: &Poll,
    connections: &mut HashMap<Token, Connection>,
    next: &mut usize,
) -> io::Result<()> {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // A client that left before it was accepted, or too few descriptors for now: the others go on.
            Err(_) => return Ok(()),
        };
        stream.set_nodelay(true)?;
        let socket = Socket::new(OwnedFd::from(std::net::TcpStream::from(stream)));
        let layer: Option<Box<dyn Layer>> = match tls {
            Some(config) => Some(Box::new(RustlsLayer::server(Arc::clone(config)).map_err(io::Error::other)?)),
            None => None,
        };
        let token = Token(*next);
        *next += 1;
        poll.registry().register(&mut SourceFd(&socket.raw()), token, Interest::READABLE | Interest::WRITABLE)?;
        connections.insert(token, Connection::new(socket, layer, Arc::clone(settings)));
    }
}
