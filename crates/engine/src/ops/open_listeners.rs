//! The listeners of an engine that starts, and their assignment to workers.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use crate::config::Place;
use crate::listen::{
    self, Certificate, DeferredListener, Listener, ListenerOptions, ListenerSet, SharedListeners, SocketFile,
};
use crate::logs::{Cause, Level};
use crate::ops::handoff::ReceivedListeners;
use crate::shared::EngineShared;
use crate::util::locks::lock;
use crate::worker;

/// A listening socket of a worker that shares an address with others. It begins to listen once nothing can fail.
pub(crate) struct Joining {
    worker: usize,
    socket: DeferredListener,
    /// A copy for a handoff.
    copy: OwnedFd,
    place: Place,
    tls: Option<Arc<Certificate>>,
    internal: bool,
}

/// The listeners of an engine that starts.
pub(crate) struct Opened {
    /// The listeners of each worker.
    pub(crate) listeners: Vec<Vec<Listener>>,
    pub(crate) joining: Vec<Joining>,
    /// Copies for a handoff.
    pub(crate) offers: Vec<ListenerSet>,
    /// The files of Unix sockets that were bound here.
    pub(crate) files: Vec<SocketFile>,
    reuse_port: bool,
}

impl Opened {
    pub(crate) fn new(workers: usize, reuse_port: bool) -> Self {
        let listeners = (0..workers).map(|_| Vec::new()).collect();
        Self { listeners, joining: Vec::new(), offers: Vec::new(), files: Vec::new(), reuse_port }
    }

    /// Gives each worker its listeners at a place: received from another engine, or new.
    pub(crate) fn open(
        &mut self,
        at: &Place,
        tls: Option<&Arc<Certificate>>,
        internal: bool,
        received: Option<&mut ReceivedListeners>,
    ) -> io::Result<Place> {
        let count = self.listeners.len();
        let (SharedListeners { listeners, joining }, place) = match received.and_then(|received| received.take(at)) {
            Some(offer) => {
                let place = offer.place.clone();
                (listen::distribute(offer, count)?, place)
            }
            None => {
                let (listeners, place) = listen::bind(at, count, self.reuse_port)?;
                self.files.extend(file_of(&place));
                let listeners = listeners.into_iter().map(|listener| vec![listener]).collect();
                (SharedListeners { listeners, joining: Vec::new() }, place)
            }
        };
        let first = count - joining.len();
        for (socket, worker) in joining.into_iter().zip(first..) {
            let (copy, place, tls) = (socket.socket.try_clone()?.into(), place.clone(), tls.cloned());
            self.joining.push(Joining { worker, socket, copy, place, tls, internal });
        }
        let unix = matches!(place, Place::Unix(_));
        let mut offer = ListenerSet { place: place.clone(), listeners: Vec::new() };
        for (listeners, own) in self.listeners.iter_mut().zip(listeners) {
            for listener in own {
                if !unix || offer.listeners.is_empty() {
                    offer.listeners.push(listener.try_clone()?);
                }
                listeners.push(Listener {
                    socket: Some(listener),
                    options: ListenerOptions { tls: tls.cloned(), unix, internal },
                });
            }
        }
        let all = |(worker, listeners): (usize, &Vec<Listener>)| {
            listeners.len() + self.joining.iter().filter(|joining| joining.worker == worker).count()
        };
        if self.listeners.iter().enumerate().map(all).any(|count| count > worker::MAX_LISTENERS) {
            return Err(io::Error::other("a worker has too many listeners"));
        }
        self.offers.push(offer);
        Ok(place)
    }
}

/// Returns the file of a Unix socket; an abstract name has none.
pub(crate) fn file_of(place: &Place) -> Option<SocketFile> {
    match place {
        Place::Unix(path) => SocketFile::of(path).ok(),
        Place::Tcp(_) => None,
    }
}

/// Makes the remaining sockets listen, and returns the listeners of each worker. The other engine has ended by now, so
/// after an error the rest goes on.
pub(crate) fn join(joining: Vec<Joining>, workers: usize, shared: &EngineShared) -> Vec<Vec<Listener>> {
    let mut listeners: Vec<Vec<Listener>> = (0..workers).map(|_| Vec::new()).collect();
    for Joining { worker, socket, copy, place, tls, internal } in joining {
        let listener = match socket.listen() {
            Ok(listener) => Some(listener),
            Err(error) => {
                shared.logs.note_as(Cause::Handoff, Level::Error, Instant::now(), || {
                    format!("worker {worker} cannot listen: {error}")
                });
                continue;
            }
        };
        if let Some(listeners) = listeners.get_mut(worker) {
            listeners.push(Listener { socket: listener, options: ListenerOptions { tls, unix: false, internal } });
        }
        if let Some(offer) = lock(&shared.listeners).iter_mut().find(|offer| offer.place == place) {
            offer.listeners.push(copy);
        }
    }
    listeners
}
