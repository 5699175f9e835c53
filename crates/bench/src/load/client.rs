//! One client: from the request to the end, without waiting.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use wirespeed_driver::opening::Early;
use wirespeed_driver::peer::PeerEvent;
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::handshake::{ClientHandshake, ClientRequest, Limits as HeadLimits, Progress};
use wirespeed_driver::protocol::{CloseCode, Config, Connection, Limits, MessageKind, Payload, Side};
use wirespeed_driver::socket::{Mode, Socket};
use wirespeed_driver::{Keepalive, Peer, buffers, entropy};

use super::Options;

/// A client.
pub(crate) struct Client {
    pub(crate) socket: Socket,
    phase: Phase,
    /// The number of the message that comes next.
    expected: u64,
    /// That of the next to be sent.
    next: u64,
    /// When the messages that are under way were sent, the oldest first.
    sent: std::collections::VecDeque<Instant>,
}

enum Phase {
    Opening(Early, Box<ClientHandshake>),
    Open(Box<Peer>),
}

/// What a call found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// The opening handshake is complete.
    Opened,
    /// TCP has ended, after a closing handshake.
    Closed,
}

impl Client {
    /// Connects and sends its request. Clients come from many addresses, so that there are ports for all of them.
    pub(crate) fn connect(options: &Options, number: usize) -> Result<Self, String> {
        let address = options.address;
        let make = || -> io::Result<socket2::Socket> {
            let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
            if address.is_ipv4() {
                let last = u8::try_from(2 + number % 250).unwrap_or(2);
                socket.bind(&SocketAddr::from(([127, 0, 0, last], 0)).into())?;
            }
            socket.connect(&address.into())?;
            socket.set_tcp_nodelay(true)?;
            Ok(socket)
        };
        let socket = Socket::new(make().map_err(|error| format!("cannot connect: {error}"))?.into());
        let mut request = ClientRequest::new(&options.host, &options.target);
        request.deflate = options.deflate.then(negotiate::Config::client);
        let handshake = ClientHandshake::new(&request, entropy::draw_nonce(), HeadLimits::default());
        let handshake = handshake.map_err(|error| error.to_string())?;
        let mut early = Early::default();
        early.send(&handshake.request_bytes()).map_err(|error| error.to_string())?;
        early.output().flush(&socket, Mode::NonBlocking).map_err(|error| error.to_string())?;
        let phase = Phase::Opening(early, Box::new(handshake));
        Ok(Self { socket, phase, expected: 0, next: 0, sent: std::collections::VecDeque::new() })
    }

    /// Reads until nothing is there. `message` gets every message, with when it was sent, if it was sent here.
    pub(crate) fn proceed(&mut self, mut message: impl FnMut(&[u8], Option<Instant>)) -> Result<Found, String> {
        let mut found = Found::Nothing;
        if let Phase::Opening(early, handshake) = &mut self.phase {
            let mut buffer = buffers::take_read();
            let received = match self.socket.receive(&mut buffer, Mode::NonBlocking) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    buffers::give_read(buffer);
                    return Ok(found);
                }
                Err(error) => return Err(format!("the opening handshake failed: {error}")),
            };
            if received == 0 {
                return Err(handshake.receive_eof().to_string());
            }
            early.receive(&buffer).map_err(|error| error.to_string())?;
            buffers::give_read(buffer);
            let plain = early.plain().map_err(|error| error.to_string())?.unwrap_or_default();
            let deflate = match handshake.receive(plain).map_err(|error| error.to_string())? {
                Progress::Incomplete => {
                    let length = plain.len();
                    early.consume(length);
                    return Ok(found);
                }
                Progress::Complete { consumed, output } => {
                    early.consume(consumed);
                    output.deflate
                }
            };
            let limits = Limits { message_size: None, fragment_size: None, fragments: None };
            let connection = Connection::new(Config { side: Side::Client, limits, deflate });
            let early = std::mem::take(early);
            self.phase = Phase::Open(Box::new(early.into_peer(connection, Keepalive::new(None, None, Instant::now()))));
            found = Found::Opened;
        }
        let Phase::Open(peer) = &mut self.phase else { return Ok(found) };
        loop {
            while let Some(event) = peer.poll_event() {
                match event {
                    PeerEvent::Message { payload: Payload::Slice(bytes), .. } => message(bytes, self.sent.pop_front()),
                    PeerEvent::Message { payload: Payload::Buffer(bytes), .. } => {
                        message(&bytes, self.sent.pop_front())
                    }
                    _ => {}
                }
            }
            let mut operation = peer.begin_read();
            let result = operation.read(&self.socket, Mode::NonBlocking);
            let (blocked, full) = match &result {
                Ok(received) => (false, *received >= buffers::READ_SIZE / 2),
                Err(_) => (true, false),
            };
            peer.complete_read(operation, result);
            if peer.poll_eof() {
                let clean = peer.link.close_received().is_some();
                return if clean { Ok(Found::Closed) } else { Err("the server has left".into()) };
            }
            // Less than the buffer holds: nothing more is there, and the poll will tell of what comes.
            if blocked || !full && !peer.has_input() {
                let _ = peer.link.flush(&self.socket, Mode::NonBlocking);
                if blocked {
                    return Ok(found);
                }
            }
        }
    }

    /// Sends the next message: its number, and the rest of `pattern`.
    pub(crate) fn send(&mut self, pattern: &mut [u8], now: Instant) -> Result<(), String> {
        let Phase::Open(peer) = &mut self.phase else { return Err("it is not open".into()) };
        pattern[..8].copy_from_slice(&self.next.to_le_bytes());
        self.next += 1;
        self.sent.push_back(now);
        peer.link.send_message(MessageKind::Binary, pattern, None).map_err(|error| error.to_string())?;
        peer.link.flush(&self.socket, Mode::NonBlocking).map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Begins the closing handshake.
    pub(crate) fn close(&mut self) -> Result<(), String> {
        let Phase::Open(peer) = &mut self.phase else { return Err("it is not open".into()) };
        peer.link.send_close(Some(CloseCode::NORMAL_CLOSURE), "").map_err(|error| error.to_string())?;
        peer.link.flush(&self.socket, Mode::NonBlocking).map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Checks a message: the number that is due, and the rest of `pattern`.
    pub(crate) fn check(expected: &mut u64, bytes: &[u8], pattern: &[u8]) -> Result<(), String> {
        let number = bytes.get(..8).and_then(|head| head.try_into().ok()).map(u64::from_le_bytes);
        if number != Some(*expected) {
            return Err(format!("message {number:?} came where {expected} was due"));
        }
        if bytes.len() != pattern.len() || bytes[8..] != pattern[8..] {
            return Err(format!("message {expected} was changed on its way"));
        }
        *expected += 1;
        Ok(())
    }

    /// The number of the message that comes next.
    pub(crate) fn expected(&mut self) -> &mut u64 {
        &mut self.expected
    }
}
