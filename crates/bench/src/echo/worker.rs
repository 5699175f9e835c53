//! One thread of the echo server, with its listeners and connections.

use std::collections::{HashMap, HashSet};
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use wirespeed_driver::connection::Progress;
use wirespeed_driver::socket::Socket;
pub(super) use wirespeed_driver::tls::server::ServerConfig as Tls;
use wirespeed_driver::tls::{Layer, RustlsLayer};

use super::Settings;
use super::connection::Connection;
use crate::warn;

/// The longest delay until other threads notice a signal, and until an overdue closing handshake is ended.
const TICK: Duration = Duration::from_millis(200);

/// A listening socket.
pub(super) struct Listener {
    pub(super) socket: TcpListener,
    pub(super) tls: Option<Arc<Tls>>,
}

/// The state of a thread.
struct Worker {
    poll: Poll,
    settings: Settings,
    connections: HashMap<Token, Connection>,
    /// Connections with an unfinished closing handshake, and when these were last checked.
    closing: HashSet<Token>,
    looked: Instant,
    /// The token of the next connection; the first tokens are those of listeners.
    next: usize,
    /// A failure of `accept` was reported.
    warned: bool,
}

pub(super) fn serve(mut listeners: Vec<Listener>, settings: Settings, stop: &AtomicBool) -> io::Result<()> {
    let mut worker = Worker {
        poll: Poll::new()?,
        settings,
        connections: HashMap::new(),
        closing: HashSet::new(),
        looked: Instant::now(),
        next: listeners.len(),
        warned: false,
    };
    for (token, listener) in listeners.iter_mut().enumerate() {
        worker.poll.registry().register(&mut listener.socket, Token(token), Interest::READABLE)?;
    }
    let mut events = Events::with_capacity(1024);
    while !stop.load(Ordering::Relaxed) {
        match worker.poll.poll(&mut events, Some(TICK)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        }
        for event in &events {
            match listeners.get(event.token().0) {
                Some(listener) => worker.accept(listener)?,
                None => worker.proceed(event.token(), Some(event)),
            }
        }
        worker.end_late();
    }
    Ok(())
}

impl Worker {
    fn proceed(&mut self, token: Token, edge: Option<&Event>) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        match connection.proceed(edge) {
            Progress::Open => {}
            Progress::Closing => {
                self.closing.insert(token);
            }
            Progress::Over => {
                self.closing.remove(&token);
                self.connections.remove(&token); // closing its socket also removes it from epoll
            }
        }
    }

    /// Ends connections whose closing handshake takes too long.
    fn end_late(&mut self) {
        if !self.closing.is_empty() && self.looked.elapsed() >= TICK {
            self.looked = Instant::now();
            for token in mem::take(&mut self.closing) {
                self.proceed(token, None);
            }
        }
    }

    fn accept(&mut self, listener: &Listener) -> io::Result<()> {
        loop {
            let stream = match listener.socket.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The client left before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                // Too few descriptors at present. Open connections continue, and the waiting one is accepted after the
                // next event.
                Err(error) => {
                    if !mem::replace(&mut self.warned, true) {
                        let open = self.connections.len();
                        warn(&format!("{open} connections are open, the next one cannot be accepted: {error}"));
                    }
                    return Ok(());
                }
            };
            let _ = stream.set_nodelay(true); // the client may have left, which is noticed when reading
            let socket = Socket::new(OwnedFd::from(std::net::TcpStream::from(stream)));
            let layer: Option<Box<dyn Layer>> = match &listener.tls {
                Some(config) => Some(Box::new(RustlsLayer::server(Arc::clone(config)).map_err(io::Error::other)?)),
                None => None,
            };
            let token = Token(self.next);
            self.next += 1;
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut SourceFd(&socket.raw()), token, interest)?;
            self.connections.insert(token, Connection::new(socket, layer, self.settings)?);
        }
    }
}
