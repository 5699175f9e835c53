//! One client: from the connect to the end, without waiting.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use wirespeed_driver::opening::{self, Carrier, Moved, Opening};
use wirespeed_driver::peer::{Failure, Link, PeerEvent};
use wirespeed_driver::protocol::handshake::{ClientHandshake, ClientRequest, Limits as HeadLimits};
use wirespeed_driver::protocol::{CloseCode, Limits, MessageKind, Payload};
use wirespeed_driver::socket::{Mode, Socket};
use wirespeed_driver::{Keepalive, Peer, buffers, entropy};

use super::content::Content;
use super::text;

/// A read of fewer bytes has emptied the socket: the next bytes make a new event (epoll(7), edge-triggered).
const FULL_READ: usize = 64 * 1024;

/// How a text message of WSE's own protocol begins. Such messages are no content: none of ours begins so.
const WSE: &[u8] = br#"{"c":"WSE""#;

/// The one with which its handshake ends.
const WSE_READY: &[u8] = br#""server_ready""#;
const WSE_ERROR: &[u8] = br#""t":"error""#;
const WSE_PING: &[u8] = br#""t":"ping""#;
const WSE_PONG: &[u8] = br#"{"t":"pong"}"#;

/// Why a connection could not be opened, if there is no server.
pub(crate) const REFUSED: &str = "cannot connect: nobody listens there";

/// A client.
pub(crate) struct Client {
    socket: Socket,
    phase: Phase,
    exchange: Exchange,
    /// The connection is ready only when the server has greeted: WSE's handshake.
    greeting_due: bool,
}

enum Phase {
    /// The request is on its way, or the response.
    Opening(Box<(opening::Client, Carrier)>),
    Open(Box<Peer>),
}

/// What is under way on a connection.
#[derive(Default)]
pub(crate) struct Exchange {
    /// The number of the next message to be sent.
    pub(crate) next: u64,
    /// That of the one that comes next.
    pub(crate) expected: u64,
    /// When the messages under way were due, the oldest first.
    pub(crate) due: VecDeque<Instant>,
    /// Pings that were answered.
    pub(crate) pings: u64,
}

/// An open connection, to send on; while a message is looked at, too.
pub(crate) struct Line<'a> {
    pub(crate) exchange: &'a mut Exchange,
    pub(crate) link: &'a mut Link,
    socket: &'a Socket,
    /// When what is looked at was read.
    pub(crate) now: Instant,
}

/// What a call found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// The connection is ready.
    Opened,
    /// TCP has ended, after a closing handshake that began here.
    Closed,
}

impl Client {
    /// Begins to connect. Clients come from many addresses, so that there are ports for all of them.
    pub(crate) fn connect(
        address: SocketAddr,
        request: &ClientRequest,
        greeting_due: bool,
        number: usize,
        send_buffer: Option<usize>,
    ) -> Result<Self, String> {
        let make = || -> io::Result<socket2::Socket> {
            let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            if address.is_ipv4() {
                let last = u8::try_from(2 + number % 250).unwrap_or(2);
                socket.bind(&SocketAddr::from(([127, 0, 0, last], 0)).into())?;
            }
            socket.set_tcp_nodelay(true)?;
            if let Some(size) = send_buffer {
                socket.set_send_buffer_size(size)?;
            }
            match socket.connect(&address.into()) {
                // EINPROGRESS: what waits to be sent tells when it is connected.
                Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Err(error),
                _ => Ok(socket),
            }
        };
        let socket = Socket::new(make().map_err(|error| cannot_connect(&error))?.into());
        let handshake = ClientHandshake::new(request, entropy::draw_nonce(), HeadLimits::default()).map_err(text)?;
        let plan = opening::Plan { proxy_tls: None, tunnel: None, tls: None, handshake };
        let mut opening = opening::Client::new(plan).map_err(text)?;
        // On loopback it mostly is connected already.
        opening.output().flush(&socket, Mode::NonBlocking).map_err(|error| cannot_connect(&error))?;
        let phase = Phase::Opening(Box::new((opening, Carrier::default())));
        Ok(Self { socket, phase, exchange: Exchange::default(), greeting_due })
    }

    /// Its descriptor.
    pub(crate) fn raw(&self) -> std::os::fd::RawFd {
        self.socket.raw()
    }

    /// What is under way.
    pub(crate) fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Bytes that wait for the socket.
    pub(crate) fn queued(&self) -> usize {
        match &self.phase {
            Phase::Opening(..) => 0,
            Phase::Open(peer) => peer.link.queued(),
        }
    }

    /// Whether the connection is ready to be used.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open(_)) && !self.greeting_due
    }

    /// Whether compression was agreed on.
    pub(crate) fn has_deflate(&self) -> bool {
        matches!(&self.phase, Phase::Open(peer) if peer.link.deflate().is_some())
    }

    /// The open connection.
    pub(crate) fn line(&mut self, now: Instant) -> Result<Line<'_>, String> {
        let Phase::Open(peer) = &mut self.phase else { return Err("a connection is not open yet".into()) };
        Ok(Line { exchange: &mut self.exchange, link: &mut peer.link, socket: &self.socket, now })
    }

    /// Does what can be done without waiting; what `on_message` sends leaves together, after what was read.
    /// `closed`: the server has ended its direction, so the end is there to be read.
    pub(crate) fn proceed(
        &mut self,
        closed: bool,
        on_message: &mut impl FnMut(&mut Line<'_>, MessageKind, &[u8]) -> Result<(), String>,
    ) -> Result<Found, String> {
        let mut found = Found::Nothing;
        let mut drained;
        if matches!(self.phase, Phase::Opening(..)) {
            let Some(received) = self.open()? else { return Ok(found) };
            drained = received < FULL_READ && !closed;
            if !self.greeting_due {
                found = Found::Opened;
            }
        } else {
            drained = self.read(closed)?;
        }
        loop {
            found = self.deliver(found, on_message)?;
            let Phase::Open(peer) = &mut self.phase else { return Ok(found) };
            let _ = peer.link.flush(&self.socket, Mode::NonBlocking); // a failure is found when it is read
            if peer.poll_eof() {
                let link = &peer.link;
                return if link.received_then_sent() == Some(false) { Ok(Found::Closed) } else { Err(end(link)) };
            }
            if drained {
                return Ok(found);
            }
            drained = self.read(closed)?;
        }
    }

    /// Goes on with the opening handshake; how many bytes were read last if it is over.
    fn open(&mut self) -> Result<Option<usize>, String> {
        let Phase::Opening(opening) = &mut self.phase else { return Ok(None) };
        let (opening, carrier) = &mut **opening;
        match carrier.proceed(opening, &self.socket) {
            Ok(Moved::Done) => {}
            Ok(_) => return Ok(None),
            Err(opening::Error::Io(error)) if carrier.received() == 0 => return Err(cannot_connect(&error)),
            Err(error) => return Err(format!("the opening handshake failed: {error}")),
        }
        let received = carrier.received();
        let limits = Limits { message_size: None, fragment_size: None, fragments: None };
        let opened = opening.finish(limits, Keepalive::new(None, None, Instant::now()));
        let (peer, ..) = opened.ok_or("the opening handshake is not complete")?;
        self.phase = Phase::Open(Box::new(peer));
        Ok(Some(received))
    }

    /// Reads once; true: nothing more is there, and the poll will tell of what comes.
    fn read(&mut self, closed: bool) -> Result<bool, String> {
        let Phase::Open(peer) = &mut self.phase else { return Ok(true) };
        let mut operation = peer.begin_read(usize::MAX);
        let result = operation.read(&self.socket, Mode::NonBlocking);
        // With the end there to be read, there is no other edge.
        let drained = operation.is_drained(&result) && !(closed && result.is_ok());
        peer.complete_read(operation, result);
        Ok(drained)
    }

    /// Hands out what was read.
    fn deliver(
        &mut self,
        mut found: Found,
        on_message: &mut impl FnMut(&mut Line<'_>, MessageKind, &[u8]) -> Result<(), String>,
    ) -> Result<Found, String> {
        let Self { socket, phase, exchange, greeting_due } = self;
        let Phase::Open(peer) = phase else { return Ok(found) };
        let mut now = None;
        loop {
            let (event, link) = peer.poll_event_and_link();
            match event {
                Some(PeerEvent::Message { kind, payload }) => {
                    let bytes: &[u8] = match &payload {
                        Payload::Slice(slice) => slice,
                        Payload::Buffer(buffer) => buffer,
                    };
                    let mut line = Line { exchange, link, socket, now: *now.get_or_insert_with(Instant::now) };
                    if kind != MessageKind::Text || !bytes.starts_with(WSE) {
                        on_message(&mut line, kind, bytes)?;
                    } else if line.receive_wse(bytes)? && std::mem::take(greeting_due) {
                        found = Found::Opened;
                    }
                }
                Some(PeerEvent::Ping(_)) => exchange.pings += 1,
                Some(_) => {}
                None => return Ok(found),
            }
        }
    }

    /// Begins the closing handshake.
    pub(crate) fn close(&mut self) -> Result<(), String> {
        let mut line = self.line(Instant::now())?;
        line.link.send_close(Some(CloseCode::NORMAL_CLOSURE), "").map_err(text)?;
        line.flush();
        Ok(())
    }
}

impl Line<'_> {
    /// Queues the next message, which was due at that moment. Compressed, if that was agreed on.
    #[inline]
    pub(crate) fn send(&mut self, content: &mut Content, due: Instant) -> Result<(), String> {
        if !self.link.state().can_send() {
            return Err(end(self.link));
        }
        let (kind, number) = (content.kind(), self.exchange.next);
        let message = content.message(number);
        if self.link.is_large(message.len(), Some(true)) {
            // Piece by piece: each leaves while it is in the cache.
            let mut large = self.link.begin_large(kind, message.len()).map_err(text)?;
            for piece in message.chunks(buffers::WRITE_SIZE) {
                self.link.append_large(&mut large, piece);
                let _ = self.link.flush(self.socket, Mode::NonBlocking); // a failure is found when it is read
            }
        } else {
            self.link.send_message(kind, message, Some(true)).map_err(text)?;
        }
        self.exchange.next += 1;
        self.exchange.due.push_back(due);
        Ok(())
    }

    /// Takes a message for the next reply: it must be the one that is due. When its message was due.
    #[inline]
    pub(crate) fn take(&mut self, content: &Content, kind: MessageKind, bytes: &[u8]) -> Result<Instant, String> {
        let expected = self.exchange.expected;
        let number = content.read(kind, bytes, expected)?;
        if number != expected {
            return Err(format!("message {number} came where {expected} was due"));
        }
        self.exchange.expected += 1;
        self.exchange.due.pop_front().ok_or_else(|| format!("message {number} came, which was not sent"))
    }

    /// Writes what is queued, as far as the socket takes it.
    #[inline]
    pub(crate) fn flush(&mut self) {
        let _ = self.link.flush(self.socket, Mode::NonBlocking); // a failure is found when it is read
    }

    /// Takes a message of WSE's own protocol; true: the connection is ready.
    fn receive_wse(&mut self, bytes: &[u8]) -> Result<bool, String> {
        let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
        if has(WSE_PING) {
            self.exchange.pings += 1;
            self.link.send_message(MessageKind::Text, WSE_PONG, None).map_err(text)?;
            return Ok(false);
        }
        if has(WSE_ERROR) {
            return Err(format!("the server refused a connection: {}", String::from_utf8_lossy(bytes)));
        }
        Ok(has(WSE_READY))
    }
}

fn cannot_connect(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => REFUSED.into(),
        _ => format!("cannot connect: {error}"),
    }
}

/// How a connection ended that should not have.
fn end(link: &Link) -> String {
    if let Some(close) = link.close_received() {
        let code = close.code.map_or_else(|| "no code".into(), |code| code.0.to_string());
        return format!("the server has closed a connection: {code} {}", close.reason).trim_end().into();
    }
    match link.failure() {
        Some(Failure::Fault(fault)) => format!("the server broke the protocol: {fault}"),
        Some(Failure::Io(error)) => format!("a connection broke: {error}"),
        _ => "the server has left without a closing handshake".into(),
    }
}
