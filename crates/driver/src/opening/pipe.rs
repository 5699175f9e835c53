//! Bytes before the WebSocket begins: the words with a proxy, TLS handshakes, the opening handshake. Blocking, with a
//! deadline over all of it.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use wirespeed_protocol::{Connection, PayloadBuffer};

use crate::blocking::Host;
use crate::buffers;
use crate::keepalive::Keepalive;
use crate::peer::{Failure, Peer};
use crate::socket::{Mode, Readiness, Socket};
use crate::tls::{self, Layer, Stacked};
use crate::write_queue::{Flushed, WriteQueue};

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
    layer: Option<Box<dyn Layer>>,
    cipher_tail: Vec<u8>,
    plain: Vec<u8>,
    output: WriteQueue,
    eof: bool,
    /// Why nothing more comes, told once everything that came before it was taken.
    failure: Option<tls::Error>,
    /// Why nothing more can be written. The peer may have said why before it went.
    write_error: Option<io::Error>,
}

impl Pipe {
    /// Takes a connected socket over.
    #[must_use]
    pub fn new(socket: Socket) -> Self {
        Self {
            socket,
            layer: None,
            cipher_tail: Vec::new(),
            plain: Vec::new(),
            output: WriteQueue::default(),
            eof: false,
            failure: None,
            write_error: None,
        }
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The layer in use.
    #[must_use]
    pub fn layer(&self) -> Option<&dyn Layer> {
        self.layer.as_deref()
    }

    /// Puts a layer on top and makes its handshake.
    pub fn start_layer<H: Host>(
        &mut self,
        layer: Box<dyn Layer>,
        host: &H,
        deadline: Option<Instant>,
    ) -> Result<(), Error<H::Interrupt>> {
        self.layer = Some(match self.layer.take() {
            Some(outer) => Box::new(Stacked::new(outer, layer)),
            None => layer,
        });
        self.cipher_tail = std::mem::take(&mut self.plain);
        self.decrypt()?;
        loop {
            self.flush(host, deadline)?;
            if !self.layer.as_ref().is_some_and(|layer| layer.is_handshaking()) {
                return Ok(());
            }
            if self.eof {
                return Err(Error::Tls(tls::Error::Protocol(
                    "the peer closed the connection during the TLS handshake".into(),
                )));
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
        match &mut self.layer {
            Some(layer) => layer.send(&mut self.cipher_tail, bytes, self.output.tail()).map_err(Error::Tls)?,
            None => self.output.tail().extend_from_slice(bytes),
        }
        self.flush(host, deadline)
    }

    /// Plain bytes: those that are there, or else the next that come; none at the end of the stream. The caller says with
    /// [`Self::consume`] how many it took.
    pub fn fill<H: Host>(&mut self, host: &H, deadline: Option<Instant>) -> Result<&[u8], Error<H::Interrupt>> {
        while self.plain.is_empty() && !self.eof {
            if let Some(error) = self.failure.take() {
                return Err(Error::Tls(error));
            }
            self.read(host, deadline)?;
            self.flush(host, deadline)?;
        }
        match self.write_error.take() {
            Some(error) if self.plain.is_empty() => Err(Error::Io(error)),
            error => {
                self.write_error = error;
                Ok(&self.plain)
            }
        }
    }

    /// Forgets the first `count` bytes of what [`Self::fill`] returned.
    pub fn consume(&mut self, count: usize) {
        self.plain.drain(..count);
    }

    /// What a WebSocket connection goes on with: the socket, and a peer that has what arrived early.
    #[must_use]
    pub fn into_peer<B: PayloadBuffer>(self, connection: Connection<B>, keepalive: Keepalive) -> (Socket, Peer<B>) {
        let mut peer = Peer::new(connection, self.layer, &self.plain, self.cipher_tail, keepalive);
        if let Some(error) = self.failure {
            peer.fail_after_input(Failure::Tls(Arc::new(error)));
        }
        (self.socket, peer)
    }

    fn read<H: Host>(&mut self, host: &H, deadline: Option<Instant>) -> Result<(), Error<H::Interrupt>> {
        let mut buffer = buffers::take_read();
        buffer.append(&mut self.cipher_tail);
        let received = loop {
            let result = match self.socket.receive(&mut buffer, Mode::NonBlocking) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait(&self.socket, Readiness { readable: true, writable: false }, host, deadline)?;
                    continue;
                }
                result => result,
            };
            match result {
                Ok(received) => break received,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    host.check_interrupt().map_err(Error::Interrupted)?;
                }
                Err(error) => return Err(Error::Io(error)),
            }
        };
        self.eof = received == 0;
        if self.layer.is_some() {
            self.cipher_tail = buffer;
            let result = self.decrypt();
            if result.is_err() {
                // The alert that says why: as far as it goes without waiting.
                let _ = self.output.flush(&self.socket, Mode::NonBlocking);
            }
            result
        } else {
            self.plain.extend_from_slice(&buffer);
            buffers::give_read(buffer);
            Ok(())
        }
    }

    fn decrypt<I>(&mut self) -> Result<(), Error<I>> {
        let Some(layer) = &mut self.layer else { return Ok(()) };
        let mut cipher = std::mem::take(&mut self.cipher_tail);
        let consumed = match layer.receive(&mut cipher, &mut self.plain, self.output.tail()) {
            Ok(consumed) => consumed,
            // What was decrypted before the error is valid and comes first.
            Err(error) if !self.plain.is_empty() => {
                self.failure = Some(error);
                cipher.len()
            }
            Err(error) => return Err(Error::Tls(error)),
        };
        if layer.is_peer_closed() {
            self.eof = true;
        }
        // A vector of its size: this may stay for the life of the connection.
        self.cipher_tail = cipher[consumed..].to_vec();
        buffers::give_read(cipher);
        Ok(())
    }

    fn flush<H: Host>(&mut self, host: &H, deadline: Option<Instant>) -> Result<(), Error<H::Interrupt>> {
        loop {
            match self.output.flush(&self.socket, Mode::NonBlocking) {
                Ok(Flushed::All) => return Ok(()),
                Ok(Flushed::Blocked) => {
                    wait(&self.socket, Readiness { readable: false, writable: true }, host, deadline)?;
                }
                // A server or proxy that refuses may answer before it has read everything, and close: its answer can still be read.
                Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                    self.output.clear();
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
