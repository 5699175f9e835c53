//! One client of the echo server, non-blocking: the TLS handshake, the opening handshake, and its role.

use std::io;
use std::mem;
use std::time::{Duration, Instant};

use mio::event::Event;
use wirespeed_driver::connection::Progress;
use wirespeed_driver::opening::{Carrier, Moved, Server};
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::handshake::{self, HeaderList, Response, ServerConfig, ServerHandshake};
use wirespeed_driver::protocol::{self, Limits};
use wirespeed_driver::socket::Socket;
use wirespeed_driver::tls::Layer;
use wirespeed_driver::write_queue::Flushed;
use wirespeed_driver::{ConnectionDriver, Keepalive};

use super::Settings;
use super::role::{HIGH_WATER, Role};

/// The number of blocks that a stream sends to a fast reader before the server reads from it again.
const LOOK_EVERY: u32 = 16;

/// The time for the client's part of the closing handshake, in which it can also read the close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

enum Phase {
    Opening(Box<(Server, Carrier)>),
    Open(Box<ConnectionDriver<Vec<u8>>>, Role),
    Over,
}

/// A connection of a client.
pub(crate) struct Connection {
    /// The socket, until the connection is open.
    socket: Option<Socket>,
    settings: Settings,
    phase: Phase,
    /// Reading is paused, because the client does not read.
    paused: bool,
}

impl Connection {
    pub(crate) fn new(socket: Socket, layer: Option<Box<dyn Layer>>, settings: Settings) -> io::Result<Self> {
        let deflate = (!settings.no_compression).then(negotiate::Config::server);
        let config = ServerConfig { deflate, ..ServerConfig::default() };
        let server = Server::new(config, handshake::Limits::default(), layer).map_err(io::Error::other)?;
        let phase = Phase::Opening(Box::new((server, Carrier::default())));
        Ok(Self { socket: Some(socket), settings, phase, paused: false })
    }

    /// Advances the connection as far as possible without blocking, after an edge-triggered event of epoll. If it
    /// returns [`Progress::Closing`], call it again after the close timeout.
    pub(crate) fn proceed(&mut self, edge: Option<&Event>) -> Progress {
        let mut readable = edge.is_some_and(Event::is_readable);
        if matches!(self.phase, Phase::Opening(_)) {
            if self.open() == Progress::Over {
                return Progress::Over;
            }
            readable = true; // the handshake may not have read everything
        }
        match &mut self.phase {
            Phase::Opening(_) => Progress::Open,
            Phase::Over => Progress::Over,
            Phase::Open(driver, role) => {
                serve(driver, role, &mut self.paused, readable, edge.is_some_and(Event::is_read_closed))
            }
        }
    }

    /// Continues the handshakes.
    fn open(&mut self) -> Progress {
        loop {
            let (Phase::Opening(opening), Some(socket)) = (&mut self.phase, &self.socket) else {
                return Progress::Over;
            };
            let (server, carrier) = &mut **opening;
            let refusal = match carrier.proceed(server, socket) {
                Ok(Moved::Waits(_)) => return Progress::Open,
                Ok(Moved::Over) => return Progress::Over,
                Ok(Moved::Done) => match respond(server.handshake()) {
                    Ok((response, role)) => return self.begin(&response, role),
                    Err(refusal) => refusal,
                },
                // An invalid request gets an error response, where one is possible.
                Err(_) => server.fault().map(|fault| server.handshake().reject_error(fault)),
            };
            let Some(response) = refusal else { return Progress::Over };
            server.refuse(&response);
        }
    }

    /// Starts the role of the connection.
    fn begin(&mut self, response: &[u8], role: Role) -> Progress {
        let limits = Limits { message_size: Some(self.settings.max_size), fragments: None, ..Limits::default() };
        let Phase::Opening(opening) = mem::replace(&mut self.phase, Phase::Over) else { return Progress::Over };
        let opened = opening.0.finish(limits, Keepalive::new(None, None, Instant::now()));
        let Some((mut endpoint, _)) = opened else { return Progress::Over };
        endpoint.send_half_mut().send_head(response);
        let mut driver = Box::new(ConnectionDriver::new(endpoint, self.socket.take(), Some(CLOSE_TIMEOUT)));
        if let Role::Close(code) = &role {
            let _ = driver.begin_close(Some(*code), "", Instant::now()); // `for_target` checked the code
        }
        self.phase = Phase::Open(driver, role);
        Progress::Open
    }
}

/// Returns the response to a request and the role, or else a refusal, if one can be sent.
fn respond(handshake: &ServerHandshake) -> Result<(Vec<u8>, Role), Option<Response>> {
    let none = HeaderList::default();
    let role = Role::for_target(&handshake.request().ok_or(None)?.target)
        .map_err(|reason| handshake.reject(400, &none, reason.as_bytes()).ok())?;
    let accepted = handshake.accept(None, &none).map_err(|error| Some(handshake.reject_error(&error)))?;
    Ok((accepted.response.to_bytes(), role))
}

/// `closed`: the client has ended its direction, so the end of the stream can be read.
fn serve(
    driver: &mut ConnectionDriver<Vec<u8>>,
    role: &mut Role,
    paused: &mut bool,
    readable: bool,
    closed: bool,
) -> Progress {
    let most = role.most_queued();
    let (mut blocked, mut drained, mut turns) = (false, !readable, 0_u32);
    loop {
        if !drained && !*paused && !driver.endpoint().has_input() {
            drained = driver.read_edge(closed);
        }
        // While the kernel accepts data, send the queue before it leaves the processor's cache.
        let limit = if blocked { most } else { HIGH_WATER };
        while !*paused && driver.send_half().queued() < limit {
            let (event, mut sender) = driver.poll_event_and_sender();
            match event {
                Some(protocol::Event::Message { kind, payload }) => {
                    let _ = role.receive(&mut sender, kind, payload.as_slice()); // fails only while closing
                }
                Some(_) => {}
                None => break,
            }
        }
        let more = role.produce(&mut driver.sender());
        let (flushed, progress) = driver.flush_and_advance(Instant::now);
        blocked = flushed == Flushed::Blocked;
        let queued = driver.send_half().queued();
        *paused = queued >= if *paused { most / 4 } else { most };
        if progress == Progress::Over || *paused {
            return progress;
        }
        if drained && !driver.endpoint().has_input() {
            if !more || blocked {
                return progress;
            }
            // The client reads as fast as this sends, so read from it in between, at least to notice the end of a
            // stream.
            turns = turns.wrapping_add(1);
            drained = !matches!(role, Role::Stream(Some(_), Some(_))) && !turns.is_multiple_of(LOOK_EVERY);
        }
    }
}
