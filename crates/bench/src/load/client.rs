//! One client: from the connect to the end, without waiting.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Instant;

use wirespeed_driver::connection::{Progress, Sender};
use wirespeed_driver::endpoint::{Failure, PeerEvent, SendHalf};
use wirespeed_driver::opening::{self, Carrier, Moved, Opening};
use wirespeed_driver::protocol::handshake::{ClientHandshake, ClientRequest, Limits as HeadLimits};
use wirespeed_driver::protocol::{CloseCode, Limits, MessageKind};
use wirespeed_driver::socket::{Mode, Socket};
use wirespeed_driver::tls::Layer;
use wirespeed_driver::{ConnectionDriver, Keepalive, entropy};

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

const NOT_OPEN: &str = "a connection is not open yet";

/// What nothing was sent for.
pub(crate) const UNASKED: &str = "a message came that nobody had asked for";

/// A client.
pub(crate) struct Client {
    /// Until the connection is open.
    socket: Option<Socket>,
    phase: Phase,
    pub(crate) exchange: Exchange,
    /// The connection is ready only when the server has greeted: WSE's handshake.
    greeting_due: bool,
    /// When it was begun.
    pub(crate) begun: Instant,
    /// Whether the connection was found to be ready.
    pub(crate) is_open: bool,
}

enum Phase {
    /// The request is on its way, or the response.
    Opening(Box<(opening::Client, Carrier)>),
    Open(Box<ConnectionDriver<Vec<u8>>>),
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
    /// Pings of the server that were answered.
    pub(crate) pings: u64,
    /// When pings of ours were due that have no pong yet, the oldest first.
    pinged: VecDeque<Instant>,
    /// The number of the first of them.
    first_ping: u64,
}

/// What came on a connection.
#[derive(Clone, Copy)]
pub(crate) enum Came<'a> {
    Message(MessageKind, &'a [u8]),
    /// The answer to a ping that was due at that moment.
    Pong(Instant),
}

/// An open connection, to send on; while a message is looked at, too.
pub(crate) struct Line<'a> {
    pub(crate) exchange: &'a mut Exchange,
    pub(crate) sender: Sender<'a, Vec<u8>>,
    pub(crate) content: &'a mut Content,
    /// When what is looked at was read.
    pub(crate) now: Instant,
}

/// What a call found.
pub(crate) enum Found {
    Nothing,
    /// The connection is ready.
    Opened,
    /// TCP has ended, after a closing handshake that began here.
    Closed,
    /// It has ended in any other way, or was never opened: why.
    Lost(String),
}

impl Client {
    /// Begins the opening handshake on a socket that connects; the descriptor too.
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
        // On loopback it mostly is connected already.
        opening.output().flush(&socket, Mode::NonBlocking).map_err(|error| cannot_connect(&error))?;
        let phase = Phase::Opening(Box::new((opening, Carrier::default())));
        let raw = socket.raw();
        let exchange = Exchange::default();
        Ok((Self { socket: Some(socket), phase, exchange, greeting_due, begun, is_open: false }, raw))
    }

    /// Bytes that wait for the socket.
    pub(crate) fn queued(&self) -> usize {
        match &self.phase {
            Phase::Opening(..) => 0,
            Phase::Open(driver) => driver.send_half().queued(),
        }
    }

    /// Whether messages may still be sent.
    pub(crate) fn can_send(&self) -> bool {
        matches!(&self.phase, Phase::Open(driver) if driver.send_half().state().can_send())
    }

    /// Whether compression was agreed on.
    pub(crate) fn has_deflate(&self) -> bool {
        matches!(&self.phase, Phase::Open(driver) if driver.send_half().deflate().is_some())
    }

    /// The open connection.
    pub(crate) fn line<'a>(&'a mut self, now: Instant, content: &'a mut Content) -> Result<Line<'a>, String> {
        let Phase::Open(driver) = &mut self.phase else { return Err(NOT_OPEN.into()) };
        Ok(Line { exchange: &mut self.exchange, sender: driver.sender(), content, now })
    }

    /// Does what can be done without waiting; what `on_came` sends leaves together, after what was read. An error: what
    /// came is wrong. `closed`: the server has ended its direction, so the end is there to be read.
    pub(crate) fn proceed(
        &mut self,
        closed: bool,
        content: &mut Content,
        on_came: &mut impl FnMut(&mut Line<'_>, Came<'_>) -> Result<(), String>,
    ) -> Result<Found, String> {
        let mut drained = if let Phase::Open(driver) = &mut self.phase {
            driver.read_edge(closed)
        } else {
            match self.open() {
                Ok(None) => return Ok(Found::Nothing),
                Ok(Some(received)) => received < FULL_READ && !closed,
                Err(reason) => return Ok(Found::Lost(reason)),
            }
        };
        loop {
            self.deliver(content, on_came)?;
            let Phase::Open(driver) = &mut self.phase else { return Ok(Found::Nothing) };
            let (_, progress) = driver.flush_and_advance(Instant::now);
            let send_half = driver.send_half();
            if progress == Progress::Over || send_half.is_eof() {
                let closed = send_half.received_then_sent() == Some(false);
                return Ok(if closed { Found::Closed } else { Found::Lost(end(send_half)) });
            }
            if drained {
                let opened = !self.greeting_due && !std::mem::replace(&mut self.is_open, true);
                return Ok(if opened { Found::Opened } else { Found::Nothing });
            }
            drained = driver.read_edge(closed);
        }
    }

    /// Goes on with the opening handshake; how many bytes were read last if it is over.
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
        // How long the end may take is the workload's affair.
        self.phase = Phase::Open(Box::new(ConnectionDriver::new(endpoint, self.socket.take(), None)));
        Ok(Some(received))
    }

    /// Hands out what was read.
    fn deliver(
        &mut self,
        content: &mut Content,
        on_came: &mut impl FnMut(&mut Line<'_>, Came<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let Self { phase: Phase::Open(driver), exchange, greeting_due, .. } = self else { return Ok(()) };
        let mut read = None;
        loop {
            let (event, sender) = driver.poll_event_and_sender();
            let Some(event) = event else { return Ok(()) };
            let now = *read.get_or_insert_with(Instant::now);
            let mut line = Line { exchange, sender, content, now };
            match event {
                PeerEvent::Message { kind, payload } => {
                    let bytes = payload.as_slice();
                    if kind == MessageKind::Text && bytes.starts_with(WSE) {
                        *greeting_due &= !line.receive_wse(bytes)?;
                    } else {
                        on_came(&mut line, Came::Message(kind, bytes))?;
                    }
                }
                PeerEvent::Ping(_) => line.exchange.pings += 1,
                PeerEvent::Pong { payload, .. } => {
                    for due in line.exchange.receive_pong(payload.as_slice())? {
                        on_came(&mut line, Came::Pong(due))?;
                    }
                }
                _ => {}
            }
        }
    }

    /// Begins the closing handshake.
    pub(crate) fn close(&mut self) -> Result<(), String> {
        let Phase::Open(driver) = &mut self.phase else { return Err(NOT_OPEN.into()) };
        driver.begin_close(Some(CloseCode::NORMAL_CLOSURE), "", Instant::now()).map_err(text)?;
        driver.flush(); // a failure is found when it is read
        Ok(())
    }
}

impl Exchange {
    /// Takes a pong: it says to which ping it belongs, and answers those before as well (RFC 6455 5.5.3). When those
    /// were due.
    fn receive_pong(&mut self, payload: &[u8]) -> Result<Vec<Instant>, String> {
        let number = payload.try_into().map(u64::from_be_bytes).map_err(|_| "a pong came for no ping of ours")?;
        let last = number.checked_sub(self.first_ping).and_then(|after| usize::try_from(after).ok());
        let last = last.filter(|last| *last < self.pinged.len()).ok_or("a pong came for a ping that was not sent")?;
        self.first_ping = number + 1;
        Ok(self.pinged.drain(..=last).collect())
    }
}

impl Line<'_> {
    /// Sends a ping that was due at that moment.
    pub(crate) fn ping(&mut self, due: Instant) -> Result<(), String> {
        if !self.sender.send_half.state().can_send() {
            return Err(end(self.sender.send_half));
        }
        let number = self.exchange.first_ping + self.exchange.pinged.len() as u64;
        self.sender.send_half.send_ping(&number.to_be_bytes()).map_err(text)?;
        self.exchange.pinged.push_back(due);
        self.flush();
        Ok(())
    }

    /// Queues the next message, which was due at that moment. Compressed, if that was agreed on.
    #[inline]
    pub(crate) fn send(&mut self, due: Instant) -> Result<(), String> {
        if !self.sender.send_half.state().can_send() {
            return Err(end(self.sender.send_half));
        }
        let (kind, number) = (self.content.kind(), self.exchange.next);
        self.sender.send_message(kind, self.content.message(number), Some(true)).map_err(text)?;
        self.exchange.next += 1;
        self.exchange.due.push_back(due);
        Ok(())
    }

    /// Takes what came for the next reply: it must be the one that is due. When its message was due.
    #[inline]
    pub(crate) fn take(&mut self, came: Came<'_>) -> Result<Instant, String> {
        let (Came::Message(kind, bytes), Some(due)) = (came, self.exchange.due.front().copied()) else {
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

    /// Writes what is queued, as far as the socket takes it.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.sender.flush(); // a failure is found when it is read
    }

    /// Takes a message of WSE's own protocol; true: the connection is ready.
    fn receive_wse(&mut self, bytes: &[u8]) -> Result<bool, String> {
        let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
        if has(WSE_PING) {
            self.exchange.pings += 1;
            self.sender.send_half.send_message(MessageKind::Text, WSE_PONG, None).map_err(text)?;
            return Ok(false);
        }
        if has(WSE_ERROR) {
            return Err(format!("the server refused a connection: {}", String::from_utf8_lossy(bytes)));
        }
        Ok(has(WSE_READY))
    }
}

/// A socket that connects. Clients come from many addresses, so that there are ports for all of them.
pub(crate) fn socket(address: SocketAddr, number: usize) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv4() {
        let last = u8::try_from(2 + number % 250).unwrap_or(2);
        socket.bind(&SocketAddr::from(([127, 0, 0, last], 0)).into())?;
    }
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&address.into()) {
        // EINPROGRESS: what waits to be sent tells when it is connected.
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

/// How a connection ended that should not have.
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
