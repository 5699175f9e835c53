//! One client of the echo server.

use std::io;
use std::sync::Arc;

use wirespeed_driver::Peer;
use wirespeed_driver::peer::PeerEvent;
use wirespeed_driver::protocol::State;
use wirespeed_driver::socket::{Mode, Socket};
use wirespeed_driver::tls::Layer;

use super::Settings;
use super::opening::{Opened, Opening};
use super::role::Role;

/// How many blocks a stream produces while the client reads as fast, before what it sends is looked for.
const LOOK_EVERY: u32 = 16;

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Waiting,
    Over,
}

enum Phase {
    Opening(Box<Opening>),
    Open(Box<Peer>, Role),
}

/// A client.
pub(crate) struct Connection {
    socket: Socket,
    settings: Arc<Settings>,
    phase: Phase,
}

impl Connection {
    pub(crate) fn new(socket: Socket, layer: Option<Box<dyn Layer>>, settings: Arc<Settings>) -> io::Result<Self> {
        let phase = Phase::Opening(Box::new(Opening::new(layer, &settings).map_err(io::Error::other)?));
        Ok(Self { socket, settings, phase })
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Does what can be done without waiting. `closed`: the client has ended its direction, so the end is
    /// there to be read; `gone`: both directions have ended.
    pub(crate) fn proceed(&mut self, closed: bool, gone: bool) -> Outcome {
        if let Phase::Opening(opening) = &mut self.phase {
            match opening.proceed(&self.socket, &self.settings) {
                Opened::NotYet => return Outcome::Waiting,
                Opened::Over => return Outcome::Over,
                Opened::Open(mut peer, role) => {
                    if let Role::Close(code) = &role {
                        let _ = peer.link.send_close(Some(*code), ""); // it is open, and the code was checked
                    }
                    let _ = peer.link.flush(&self.socket, Mode::NonBlocking); // a failure is found when it is read
                    self.phase = Phase::Open(peer, role);
                }
            }
        }
        let Phase::Open(peer, role) = &mut self.phase else { return Outcome::Waiting };
        if let Role::Deaf = role {
            return if gone { Outcome::Over } else { Outcome::Waiting };
        }
        serve(peer, role, &self.socket, closed)
    }
}

fn serve(peer: &mut Peer, role: &mut Role, socket: &Socket, closed: bool) -> Outcome {
    let most = role.most_queued();
    let mut drained = false;
    let mut turns = 0_u32;
    loop {
        while peer.link.queued() < most {
            let (event, link) = peer.poll_event_and_link();
            match event {
                Some(PeerEvent::Message { kind, payload }) => {
                    let _ = role.receive(link, socket, kind, &payload); // refused only while closing
                }
                Some(_) => {}
                None => break,
            }
        }
        let produced = role.produce(&mut peer.link, socket);
        let flushed = peer.link.flush(socket, Mode::NonBlocking);
        if peer.link.failure().is_some() && peer.link.queued() == 0 || flushed.is_err() {
            return Outcome::Over;
        }
        match peer.link.state() {
            // RFC 6455 7.1.1: the server ends TCP first.
            State::Closed if peer.link.queued() == 0 => return Outcome::Over,
            State::Failed if peer.link.queued() == 0 => return Outcome::Over,
            _ => {}
        }
        if peer.link.queued() >= most {
            return Outcome::Waiting; // until the client has read
        }
        if peer.has_input() {
            continue;
        }
        if drained {
            if !produced || peer.link.queued() > 0 {
                return Outcome::Waiting;
            }
            // The client reads as fast as this produces: what it sends has to be looked for in between,
            // although a stream is only to be ended by it.
            turns = turns.wrapping_add(1);
            if !matches!(role, Role::Duplex(..)) && !turns.is_multiple_of(LOOK_EVERY) {
                continue;
            }
        }
        let mut operation = peer.begin_read(usize::MAX);
        let result = operation.read(socket, Mode::NonBlocking);
        // With the end there to be read, there is no other edge.
        drained = operation.is_drained(&result) && !(closed && result.is_ok());
        peer.complete_read(operation, result);
        if peer.poll_eof() {
            return Outcome::Over;
        }
    }
}
