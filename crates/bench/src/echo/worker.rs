//! One thread: its listeners, its connections, its loop.

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

/// How long a signal may take to be noticed by threads that it does not interrupt, and the end of a closing.
const TICK: Duration = Duration::from_millis(200);

/// Where connections come from.
pub(super) struct Listener {
    pub(super) socket: TcpListener,
    pub(super) tls: Option<Arc<Tls>>,
}

/// What a thread has.
struct Worker {
    poll: Poll,
    settings: Settings,
    connections: HashMap<Token, Connection>,
    /// Those whose closing takes time, and when it was last looked whether it is over.
    closing: HashSet<Token>,
    looked: Instant,
    /// The token of the next connection; those of listeners are the first.
    next: usize,
    /// That a connection could not be accepted was told.
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
                self.connections.remove(&token); // what is closed is watched no longer
            }
        }
    }

    /// Ends those that take longer to close than they may.
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
                // A client that left before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                // Too few descriptors for now: the others go on, and who waits is accepted with the next one
                // that comes.
                Err(error) => {
                    if !mem::replace(&mut self.warned, true) {
                        let open = self.connections.len();
                        warn(&format!("{open} connections are open, the next one cannot be accepted: {error}"));
                    }
                    return Ok(());
                }
            };
            let _ = stream.set_nodelay(true); // it may have left meanwhile, which is found when it is read
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
