//! One client, non-blocking, from connecting to its end.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Instant;

use wirespeed_driver::connection::{Progress, Sender};
use wirespeed_driver::endpoint::{Failure, SendHalf};
use wirespeed_driver::opening::{self, Carrier, Moved, Opening};
use wirespeed_driver::protocol::handshake::{ClientHandshake, ClientRequest, Limits as HeadLimits};
use wirespeed_driver::protocol::{CloseCode, Event, Limits, MessageKind};
use wirespeed_driver::socket::{Mode, Socket};
use wirespeed_driver::tls::Layer;
use wirespeed_driver::{ConnectionDriver, Keepalive, entropy};

use super::content::Content;
use super::text;

/// A read of fewer bytes has emptied the socket: further bytes cause a new edge-triggered event (epoll(7)).
const FULL_READ: usize = 64 * 1024;

/// The beginning of text messages of WSE's own protocol, with which no benchmark message begins.
const WSE: &[u8] = br#"{"c":"WSE""#;

/// Marks the message that ends the handshake of WSE.
const WSE_READY: &[u8] = br#""server_ready""#;
const WSE_ERROR: &[u8] = br#""t":"error""#;
const WSE_PING: &[u8] = br#""t":"ping""#;
const WSE_PONG: &[u8] = br#"{"t":"pong"}"#;

/// The error if no server listens at the address.
pub(crate) const REFUSED: &str = "cannot connect: nobody listens there";

const NOT_OPEN: &str = "a connection is not open yet";

/// The error for an unexpected message.
pub(crate) const UNASKED: &str = "a message came that nobody had asked for";

/// A client.
pub(crate) struct Client {
    /// The socket, until the connection is open.
    socket: Option<Socket>,
    phase: Phase,
    pub(crate) exchange: Exchange,
    /// The connection is ready only after a greeting of the server: the handshake of WSE.
    greeting_due: bool,
    /// When the connection was started.
    pub(crate) begun: Instant,
    /// Whether the connection is ready.
    pub(crate) is_open: bool,
}

enum Phase {
    /// The opening handshake is in progress.
    Opening(Box<(opening::Client, Carrier)>),
    Open(Box<ConnectionDriver<Vec<u8>>>),
}

/// The messages and pings in flight on a connection.
#[derive(Default)]
pub(crate) struct Exchange {
    /// The number of the next message to send.
    pub(crate) next: u64,
    /// The number of the next expected reply.
    pub(crate) expected: u64,
    /// The scheduled times of messages without a reply, the oldest first.
    pub(crate) due: VecDeque<Instant>,
    /// The number of the server's pings that were answered.
    pub(crate) pings: u64,
    /// The scheduled times of our pings without a pong, the oldest first.
    pinged: VecDeque<Instant>,
    /// The number of the first ping without a pong.
    first_ping: u64,
}

/// A message or pong that was received.
#[derive(Clone, Copy)]
pub(crate) enum Received<'a> {
    Message(MessageKind, &'a [u8]),
    /// The pong for a ping that was scheduled for this time.
    Pong(Instant),
}

/// An open connection to send on, also while a received message is handled.
pub(crate) struct OpenConnection<'a> {
    pub(crate) exchange: &'a mut Exchange,
    pub(crate) sender: Sender<'a, Vec<u8>>,
    pub(crate) content: &'a mut Content,
    /// When the handled input was read.
    pub(crate) now: Instant,
}

/// A change of a connection.
pub(crate) enum ConnectionChange {
    Nothing,
    /// The connection is ready.
    Opened,
    /// The connection has ended, after a closing handshake that began here.
    Closed,
    /// The connection has ended otherwise, or could not be opened, for this reason.
    Lost(String),
}

impl Client {
    /// Starts the opening handshake on a connecting socket. Returns the descriptor as well.
    pub(crate) fn begin(
        socket: socket2::Socket,
        request: &ClientRequest,
        tls: Option<Box<dyn Layer>>,
        greeting_due: bool,
        begun: Instant,
    ) -> Result<(Self, RawFd), String> {
        let socket = Socket::new(socket.into());
        let handshake = ClientHandshake::new(request, entropy::draw_nonce(), HeadLimits::default()).map_err(text)?;
        let plan = opening::Plan { proxy_tls: None, tunnel: None, tls, handshake };
        let mut opening = opening::Client::new(plan).map_err(text)?;
        // On loopback, the socket is usually connected already.
        opening.output().flush(&socket, Mode::NonBlocking).map_err(|error| cannot_connect(&error))?;
        let phase = Phase::Opening(Box::new((opening, Carrier::default())));
        let raw = socket.raw();
        let exchange = Exchange::default();
        Ok((Self { socket: Some(socket), phase, exchange, greeting_due, begun, is_open: false }, raw))
    }

    /// Returns the number of bytes queued for the socket.
    pub(crate) fn queued(&self) -> usize {
        match &self.phase {
            Phase::Opening(..) => 0,
            Phase::Open(driver) => driver.send_half().queued(),
        }
    }

    /// Returns whether messages may still be sent.
    pub(crate) fn can_send(&self) -> bool {
        matches!(&self.phase, Phase::Open(driver) if driver.send_half().state().can_send())
    }

    /// Returns whether compression was negotiated.
    pub(crate) fn has_deflate(&self) -> bool {
        matches!(&self.phase, Phase::Open(driver) if driver.send_half().deflate().is_some())
    }

    /// Returns the open connection.
    pub(crate) fn connection<'a>(
        &'a mut self,
        now: Instant,
        content: &'a mut Content,
    ) -> Result<OpenConnection<'a>, String> {
        let Phase::Open(driver) = &mut self.phase else { return Err(NOT_OPEN.into()) };
        Ok(OpenConnection { exchange: &mut self.exchange, sender: driver.sender(), content, now })
    }

    /// Advances the connection as far as possible without blocking. The messages that `on_received` sends leave
    /// together, after all input was handled. An error means that the received data is wrong. `closed`: the server has
    /// ended its direction, so the end of the stream can be read.
    pub(crate) fn proceed(
        &mut self,
        closed: bool,
        content: &mut Content,
        on_received: &mut impl FnMut(&mut OpenConnection<'_>, Received<'_>) -> Result<(), String>,
    ) -> Result<ConnectionChange, String> {
        let mut drained = if let Phase::Open(driver) = &mut self.phase {
            driver.read_edge(closed)
        } else {
            match self.open() {
                Ok(None) => return Ok(ConnectionChange::Nothing),
                Ok(Some(received)) => received < FULL_READ && !closed,
                Err(reason) => return Ok(ConnectionChange::Lost(reason)),
            }
        };
        loop {
            self.deliver(content, on_received)?;
            let Phase::Open(driver) = &mut self.phase else { return Ok(ConnectionChange::Nothing) };
            let (_, progress) = driver.flush_and_advance(Instant::now);
            let send_half = driver.send_half();
            if progress == Progress::Over || send_half.is_eof() {
                let closed = send_half.received_then_sent() == Some(false);
                return Ok(if closed { ConnectionChange::Closed } else { ConnectionChange::Lost(end(send_half)) });
            }
            if drained {
                let opened = !self.greeting_due && !std::mem::replace(&mut self.is_open, true);
                return Ok(if opened { ConnectionChange::Opened } else { ConnectionChange::Nothing });
            }
            drained = driver.read_edge(closed);
        }
    }

    /// Continues the opening handshake. Returns the size of the last read when it is complete.
    fn open(&mut self) -> Result<Option<usize>, String> {
        let (Phase::Opening(opening), Some(socket)) = (&mut self.phase, &self.socket) else { return Ok(None) };
        let (opening, carrier) = &mut **opening;
        match carrier.proceed(opening, socket) {
            Ok(Moved::Done) => {}
            Ok(_) => return Ok(None),
            Err(opening::Error::Io(error)) if carrier.received() == 0 => return Err(cannot_connect(&error)),
            Err(error) => return Err(format!("the opening handshake failed: {error}")),
        }
        let received = carrier.received();
        let limits = Limits { message_size: None, fragment_size: None, fragments: None };
        let opened = opening.finish(limits, Keepalive::new(None, None, Instant::now()));
        let (endpoint, ..) = opened.ok_or("the opening handshake is not complete")?;
        // The workload limits the time for closing.
        self.phase = Phase::Open(Box::new(ConnectionDriver::new(endpoint, self.socket.take(), None)));
        Ok(Some(received))
    }

    /// Passes received messages and pongs to `on_received`.
    fn deliver(
        &mut self,
        content: &mut Content,
        on_received: &mut impl FnMut(&mut OpenConnection<'_>, Received<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let Self { phase: Phase::Open(driver), exchange, greeting_due, .. } = self else { return Ok(()) };
        let mut read = None;
        loop {
            let (event, sender) = driver.poll_event_and_sender();
            let Some(event) = event else { return Ok(()) };
            let now = *read.get_or_insert_with(Instant::now);
            let mut connection = OpenConnection { exchange, sender, content, now };
            match event {
                Event::Message { kind, payload } => {
                    let bytes = payload.as_slice();
                    if kind == MessageKind::Text && bytes.starts_with(WSE) {
                        *greeting_due &= !connection.receive_wse(bytes)?;
                    } else {
                        on_received(&mut connection, Received::Message(kind, bytes))?;
                    }
                }
                Event::Ping(_) => connection.exchange.pings += 1,
                Event::Pong(payload) => {
                    for due in connection.exchange.receive_pong(payload.as_slice())? {
                        on_received(&mut connection, Received::Pong(due))?;
                    }
                }
                _ => {}
            }
        }
    }

    /// Starts the closing handshake.
    pub(crate) fn close(&mut self) -> Result<(), String> {
        let Phase::Open(driver) = &mut self.phase else { return Err(NOT_OPEN.into()) };
        driver.begin_close(Some(CloseCode::NORMAL_CLOSURE), "", Instant::now()).map_err(text)?;
        let _ = driver.flush(); // a failure is noticed when reading
        Ok(())
    }
}

impl Exchange {
    /// Handles a pong. It answers its ping and all earlier ones (RFC 6455 5.5.3). Returns their scheduled times.
    fn receive_pong(&mut self, payload: &[u8]) -> Result<Vec<Instant>, String> {
        let number = payload.try_into().map(u64::from_be_bytes).map_err(|_| "a pong came for no ping of ours")?;
        let last = number.checked_sub(self.first_ping).and_then(|after| usize::try_from(after).ok());
        let last = last.filter(|last| *last < self.pinged.len()).ok_or("a pong came for a ping that was not sent")?;
        self.first_ping = number + 1;
        Ok(self.pinged.drain(..=last).collect())
    }
}

impl OpenConnection<'_> {
    /// Sends a ping that was scheduled for this time.
    pub(crate) fn ping(&mut self, due: Instant) -> Result<(), String> {
        if !self.sender.send_half().state().can_send() {
            return Err(end(self.sender.send_half_mut()));
        }
        let number = self.exchange.first_ping + self.exchange.pinged.len() as u64;
        self.sender.send_half_mut().send_ping(&number.to_be_bytes()).map_err(text)?;
        self.exchange.pinged.push_back(due);
        self.flush();
        Ok(())
    }

    /// Queues the next message, which was scheduled for this time, compressed if that was negotiated.
    #[inline]
    pub(crate) fn send(&mut self, due: Instant) -> Result<(), String> {
        if !self.sender.send_half().state().can_send() {
            return Err(end(self.sender.send_half_mut()));
        }
        let (kind, number) = (self.content.kind(), self.exchange.next);
        self.sender.send_message(kind, self.content.message(number), Some(true)).map_err(text)?;
        self.exchange.next += 1;
        self.exchange.due.push_back(due);
        Ok(())
    }

    /// Checks that a received message is the next expected reply. Returns the scheduled time of its message.
    #[inline]
    pub(crate) fn take(&mut self, received: Received<'_>) -> Result<Instant, String> {
        let (Received::Message(kind, bytes), Some(due)) = (received, self.exchange.due.front().copied()) else {
            return Err(UNASKED.into());
        };
        let expected = self.exchange.expected;
        let number = self.content.read(kind, bytes, expected)?;
        if number != expected {
            return Err(format!("message {number} came where {expected} was due"));
        }
        self.exchange.expected += 1;
        self.exchange.due.pop_front();
        Ok(due)
    }

    /// Writes queued bytes, as far as the socket accepts them.
    #[inline]
    pub(crate) fn flush(&mut self) {
        let _ = self.sender.write_queued(); // a failure is noticed when reading
    }

    /// Handles a message of WSE's own protocol. Returns true if the connection is ready.
    fn receive_wse(&mut self, bytes: &[u8]) -> Result<bool, String> {
        let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
        if has(WSE_PING) {
            self.exchange.pings += 1;
            self.sender.send_half_mut().send_message(MessageKind::Text, WSE_PONG, None).map_err(text)?;
            return Ok(false);
        }
        if has(WSE_ERROR) {
            return Err(format!("the server refused a connection: {}", String::from_utf8_lossy(bytes)));
        }
        Ok(has(WSE_READY))
    }
}

/// Returns a connecting socket. Clients use many source addresses, so that there are enough ports.
pub(crate) fn socket(address: SocketAddr, number: usize) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv4() {
        let last = u8::try_from(2 + number % 250).unwrap_or(2);
        socket.bind(&SocketAddr::from(([127, 0, 0, last], 0)).into())?;
    }
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&address.into()) {
        // EINPROGRESS: the socket becomes writable when it is connected.
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Err(error),
        _ => Ok(socket),
    }
}

pub(crate) fn cannot_connect(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => REFUSED.into(),
        _ => format!("cannot connect: {error}"),
    }
}

/// Returns the reason for an unexpected end of a connection.
fn end(send_half: &SendHalf) -> String {
    if let Some(close) = send_half.close_received() {
        let code = close.code.map_or_else(|| "no code".into(), |code| code.0.to_string());
        return format!("the server has closed a connection: {code} {}", close.reason).trim_end().into();
    }
    match send_half.failure() {
        Some(Failure::Fault(fault)) => format!("the server broke the protocol: {fault}"),
        Some(Failure::Io(error)) => format!("a connection broke: {error}"),
        _ => "the server has left without a closing handshake".into(),
    }
}
