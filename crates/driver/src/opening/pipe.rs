//! Early bytes over a blocking socket.

use std::io;
use std::time::Instant;

use wirespeed_protocol::{Connection, PayloadBuffer};

use super::Early;
use crate::blocking::Host;
use crate::buffers;
use crate::keepalive::Keepalive;
use crate::peer::Peer;
use crate::socket::{Mode, Readiness, Socket};
use crate::tls::{self, Layer};
use crate::write_queue::Flushed;

/// Why a byte did not come or go.
#[derive(Debug)]
pub enum Error<I> {
    /// The host wants to stop.
    Interrupted(I),
    /// The deadline has passed.
    TimedOut,
    /// The socket failed.
    Io(io::Error),
    /// TLS failed.
    Tls(tls::Error),
}

/// A connected socket, plain or under one or two layers of TLS.
pub struct Pipe {
    socket: Socket,
    early: Early,
    /// Why nothing more can be written. The peer may have said why before it went.
    write_error: Option<io::Error>,
}

impl Pipe {
    /// Takes a connected socket over.
    #[must_use]
    pub fn new(socket: Socket) -> Self {
        Self { socket, early: Early::default(), write_error: None }
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The layer in use.
    #[must_use]
    pub fn layer(&self) -> Option<&dyn Layer> {
        self.early.layer()
    }

    /// Puts a layer on top and makes its handshake.
    pub fn start_layer<H: Host>(
        &mut self,
        layer: Box<dyn Layer>,
        host: &H,
        deadline: Option<Instant>,
    ) -> Result<(), Error<H::Interrupt>> {
        self.early.start_layer(layer).map_err(Error::Tls)?;
        loop {
            self.flush(host, deadline)?;
            if !self.early.is_handshaking().map_err(Error::Tls)? {
                return Ok(());
            }
            self.read(host, deadline)?;
        }
    }

    /// Writes all of `bytes`.
    pub fn write_all<H: Host>(
        &mut self,
        bytes: &[u8],
        host: &H,
        deadline: Option<Instant>,
    ) -> Result<(), Error<H::Interrupt>> {
        self.early.send(bytes).map_err(Error::Tls)?;
        self.flush(host, deadline)
    }

    /// Plain bytes: those that are there, or else the next that come; none at the end of the stream. The caller says with
    /// [`Self::consume`] how many it took.
    pub fn fill<H: Host>(&mut self, host: &H, deadline: Option<Instant>) -> Result<&[u8], Error<H::Interrupt>> {
        while self.early.plain().map_err(Error::Tls)?.is_some_and(<[u8]>::is_empty) {
            self.read(host, deadline)?;
            self.flush(host, deadline)?;
        }
        match self.early.plain().map_err(Error::Tls)? {
            Some(plain) => Ok(plain),
            None => self.write_error.take().map_or(Ok(&[]), |error| Err(Error::Io(error))),
        }
    }

    /// Forgets the first `count` bytes of what [`Self::fill`] returned.
    pub fn consume(&mut self, count: usize) {
        self.early.consume(count);
    }

    /// What a WebSocket connection goes on with: the socket, and a peer that has what arrived early.
    #[must_use]
    pub fn into_peer<B: PayloadBuffer>(self, connection: Connection<B>, keepalive: Keepalive) -> (Socket, Peer<B>) {
        (self.socket, self.early.into_peer(connection, keepalive))
    }

    fn read<H: Host>(&mut self, host: &H, deadline: Option<Instant>) -> Result<(), Error<H::Interrupt>> {
        let mut buffer = buffers::take_read();
        let received = loop {
            match self.socket.receive(&mut buffer, usize::MAX, Mode::NonBlocking) {
                Ok(received) => break received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(&self.socket, Readiness { readable: true, writable: false }, host, deadline)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    host.check_interrupt().map_err(Error::Interrupted)?;
                }
                Err(error) => return Err(Error::Io(error)),
            }
        };
        let result = if received == 0 {
            self.early.receive_eof();
            Ok(())
        } else {
            self.early.receive(&buffer)
        };
        if result.is_err() {
            // The alert that says why: as far as it goes without waiting.
            let _ = self.early.output().flush(&self.socket, Mode::NonBlocking);
        }
        result.map_err(Error::Tls)
    }

    fn flush<H: Host>(&mut self, host: &H, deadline: Option<Instant>) -> Result<(), Error<H::Interrupt>> {
        loop {
            match self.early.output().flush(&self.socket, Mode::NonBlocking) {
                Ok(Flushed::All) => return Ok(()),
                Ok(Flushed::Blocked) => {
                    wait(&self.socket, Readiness { readable: false, writable: true }, host, deadline)?;
                }
                // A server or proxy that refuses may answer before it has read everything, and close: its answer can still be read.
                Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                    self.early.output().clear();
                    self.write_error.get_or_insert(error);
                    return Ok(());
                }
                Err(error) => return Err(Error::Io(error)),
            }
        }
    }
}

/// Waits until the socket is ready; signals are handled by the host.
fn wait<H: Host>(
    socket: &Socket,
    interest: Readiness,
    host: &H,
    deadline: Option<Instant>,
) -> Result<(), Error<H::Interrupt>> {
    loop {
        match host.wait(|| socket.wait(interest, deadline)) {
            Ok(Readiness { readable: false, writable: false }) => {
                if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                    return Err(Error::TimedOut);
                }
            }
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                host.check_interrupt().map_err(Error::Interrupted)?;
            }
            Err(error) => return Err(Error::Io(error)),
        }
    }
}
