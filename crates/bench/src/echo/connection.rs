//! One client of the echo server.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::event::Event;
use wirespeed_driver::Drive;
use wirespeed_driver::drive::Progress;
use wirespeed_driver::peer::{Failure, PeerEvent};
use wirespeed_driver::socket::Socket;
use wirespeed_driver::tls::Layer;
use wirespeed_driver::write_queue::Flushed;

use super::Settings;
use super::opening::{Opened, Opening};
use super::role::{HIGH_WATER, Role};

/// How many blocks a stream produces while the client reads as fast, before what it sends is looked for.
const LOOK_EVERY: u32 = 16;

/// How long a client may take to do its part of the closing, and to read why it is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

enum Phase {
    Opening(Box<Opening>),
    Open(Box<Drive<Vec<u8>>>, Role),
}

/// A client.
pub(crate) struct Connection {
    /// Until the connection is open.
    socket: Option<Socket>,
    settings: Arc<Settings>,
    phase: Phase,
    /// Nothing is received, because the client does not read.
    paused: bool,
}

impl Connection {
    pub(crate) fn new(socket: Socket, layer: Option<Box<dyn Layer>>, settings: Arc<Settings>) -> io::Result<Self> {
        let phase = Phase::Opening(Box::new(Opening::new(layer, &settings).map_err(io::Error::other)?));
        Ok(Self { socket: Some(socket), settings, phase, paused: false })
    }

    /// Does what can be done without waiting, of what an edge (epoll(7)) tells. What is
    /// [closing](Progress::Closing) has to be called again when its time is over.
    pub(crate) fn proceed(&mut self, edge: Option<&Event>) -> Progress {
        let mut readable = edge.is_some_and(Event::is_readable);
        if let (Phase::Opening(opening), Some(socket)) = (&mut self.phase, &self.socket) {
            match opening.proceed(socket, &self.settings) {
                Opened::NotYet => return Progress::Open,
                Opened::Over => return Progress::Over,
                Opened::Open(peer, role) => {
                    let mut drive = Box::new(Drive::new(*peer, self.socket.take(), Some(CLOSE_TIMEOUT)));
                    if let Role::Close(code) = &role {
                        let _ = drive.begin_close(Some(*code), "", Instant::now()); // the code was checked
                    }
                    self.phase = Phase::Open(drive, role);
                    readable = true; // there may be more than was read
                }
            }
        }
        match &mut self.phase {
            Phase::Opening(_) => Progress::Over,
            // Both directions have ended.
            Phase::Open(drive, Role::Deaf) if edge.is_some_and(|edge| edge.is_write_closed() || edge.is_error()) => {
                drive.end(Failure::Aborted)
            }
            Phase::Open(drive, Role::Deaf) => drive.flush_and_advance(Instant::now).1,
            Phase::Open(drive, role) => {
                serve(drive, role, &mut self.paused, readable, edge.is_some_and(Event::is_read_closed))
            }
        }
    }
}

/// `closed`: the client has ended its direction, so the end is there to be read.
fn serve(drive: &mut Drive<Vec<u8>>, role: &mut Role, paused: &mut bool, readable: bool, closed: bool) -> Progress {
    let most = role.most_queued();
    let (mut blocked, mut drained, mut turns) = (false, !readable, 0_u32);
    loop {
        if !drained && !*paused && !drive.peer.has_input() {
            drained = drive.read_edge(closed);
        }
        // While the kernel has room, what is queued leaves before it is out of the cache.
        let limit = if blocked { most } else { HIGH_WATER };
        while !*paused && drive.link().queued() < limit {
            let (event, mut sender) = drive.poll_event_and_sender();
            match event {
                Some(PeerEvent::Message { kind, payload }) => {
                    let _ = role.receive(&mut sender, kind, &payload); // refused only while closing
                }
                Some(_) => {}
                None => break,
            }
        }
        let more = role.produce(&mut drive.sender());
        let (flushed, progress) = drive.flush_and_advance(Instant::now);
        blocked = flushed == Flushed::Blocked;
        let queued = drive.link().queued();
        *paused = queued >= if *paused { most / 4 } else { most };
        if progress == Progress::Over || *paused {
            return progress;
        }
        if drained && !drive.peer.has_input() {
            if !more || blocked {
                return progress;
            }
            // The client reads as fast as this produces: what it sends has to be looked for in between,
            // although a stream is only to be ended by it.
            turns = turns.wrapping_add(1);
            drained = !matches!(role, Role::Duplex(..)) && !turns.is_multiple_of(LOOK_EVERY);
        }
    }
}
