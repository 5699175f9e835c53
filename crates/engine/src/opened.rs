//! Where an engine that begins listens, and which of its workers accept where.

use std::io;
use std::sync::Arc;

use crate::certificate::Certificate;
use crate::config::Place;
use crate::handover::{Inherited, Offer};
use crate::listen;
use crate::worker::{self, Door};

/// The listeners of an engine that begins.
pub(crate) struct Opened {
    /// Of each worker.
    pub(crate) doors: Vec<Vec<Door>>,
    /// Copies, to be handed over.
    pub(crate) offers: Vec<Offer>,
    reuse_port: bool,
}

impl Opened {
    pub(crate) fn new(workers: usize, reuse_port: bool) -> Self {
        Self { doors: (0..workers).map(|_| Vec::new()).collect(), offers: Vec::new(), reuse_port }
    }

    /// Gives each worker its listeners at a place: those that were handed over, or new ones.
    pub(crate) fn open(
        &mut self,
        at: &Place,
        tls: Option<&Arc<Certificate>>,
        inside: bool,
        inherited: Option<&mut Inherited>,
    ) -> io::Result<Place> {
        let count = self.doors.len();
        let (shares, place) = match inherited.and_then(|inherited| inherited.take(at)) {
            Some(offer) => listen::share(offer, count)?,
            None => {
                let (listeners, place) = listen::bind(at, count, self.reuse_port)?;
                (listeners.into_iter().map(|listener| vec![listener]).collect(), place)
            }
        };
        let unix = matches!(place, Place::Unix(_));
        let mut offer = Offer { place: place.clone(), listeners: Vec::new() };
        for (doors, listeners) in self.doors.iter_mut().zip(shares) {
            for listener in listeners {
                if !unix || offer.listeners.is_empty() {
                    offer.listeners.push(listener.try_clone()?);
                }
                doors.push(Door { listener: Some(listener), tls: tls.cloned(), unix, inside });
            }
            if doors.len() > worker::DOORS {
                return Err(io::Error::other("a worker has too many listeners"));
            }
        }
        self.offers.push(offer);
        Ok(place)
    }
}
