//! A connection before its WebSocket: the TLS handshake and the opening handshake, without waiting.

use std::io;

use wirespeed_driver::buffers::{self, ReadBuffer};
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::handshake::{self, HeaderList, Progress, ServerConfig, ServerHandshake};
use wirespeed_driver::protocol::{Config, Connection, Limits, Side};
use wirespeed_driver::socket::{Mode, Socket};
use wirespeed_driver::tls::Layer;
use wirespeed_driver::{Keepalive, Peer, WriteQueue};

use super::Settings;
use super::role::Role;

/// A handshake in progress.
pub(crate) struct Opening {
    layer: Option<Box<dyn Layer>>,
    handshake: ServerHandshake,
    cipher: Vec<u8>,
    output: WriteQueue,
    /// The handshake was refused: what is left is to say so.
    refused: bool,
}

/// How far a handshake is.
pub(crate) enum Opened {
    NotYet,
    Over,
    Open(Box<Peer>, Role),
}

impl Opening {
    pub(crate) fn new(layer: Option<Box<dyn Layer>>, settings: &Settings) -> Self {
        let deflate = settings.compression.then(negotiate::Config::server);
        let config = ServerConfig { deflate, ..ServerConfig::default() };
        Self {
            layer,
            handshake: ServerHandshake::new(config, handshake::Limits::default()),
            cipher: Vec::new(),
            output: WriteQueue::default(),
            refused: false,
        }
    }

    pub(crate) fn proceed(&mut self, socket: &Socket, settings: &Settings) -> Opened {
        loop {
            let mut buffer = buffers::take_read();
            buffer.append(&mut self.cipher);
            match socket.receive(&mut buffer, usize::MAX, Mode::NonBlocking) {
                Ok(0) => return Opened::Over,
                Ok(_) if self.refused => continue,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.cipher = buffer[..].to_vec();
                    return self.flush(socket);
                }
                Err(_) => return Opened::Over,
            }
            let opened = self.receive(buffer, settings);
            if let Opened::Over = self.flush(socket) {
                return Opened::Over;
            }
            if !matches!(opened, Opened::NotYet) {
                return opened;
            }
        }
    }

    fn flush(&mut self, socket: &Socket) -> Opened {
        match self.output.flush(socket, Mode::NonBlocking) {
            Err(_) => Opened::Over,
            Ok(_) => {
                if self.refused && self.output.is_empty() {
                    socket.shutdown_write(); // the client closes when it has read why
                }
                Opened::NotYet
            }
        }
    }

    fn receive(&mut self, mut buffer: ReadBuffer, settings: &Settings) -> Opened {
        let Some(layer) = &mut self.layer else {
            return self.receive_plain(&buffer, settings);
        };
        let mut plain = buffers::take_read();
        let result = layer.receive(&mut buffer, &mut plain, self.output.tail());
        let consumed = result.as_ref().copied().unwrap_or(buffer.len());
        self.cipher = buffer[consumed..].to_vec();
        self.refused |= result.is_err();
        if plain.is_empty() { Opened::NotYet } else { self.receive_plain(&plain, settings) }
    }

    fn receive_plain(&mut self, bytes: &[u8], settings: &Settings) -> Opened {
        let consumed = match self.handshake.receive(bytes) {
            Ok(Progress::Incomplete) => return Opened::NotYet,
            Ok(Progress::Complete { consumed, .. }) => consumed,
            Err(error) => {
                let response = self.handshake.reject_error(&error).to_bytes();
                return self.refuse(&response);
            }
        };
        let role = match self.handshake.request().map(|request| Role::for_target(&request.target)) {
            Some(Ok(role)) => role,
            Some(Err(reason)) => {
                let response = self.handshake.reject(400, &HeaderList::default(), reason.as_bytes());
                return self.refuse(&response.map(|response| response.to_bytes()).unwrap_or_default());
            }
            None => return Opened::Over,
        };
        match self.handshake.accept(None, &HeaderList::default()) {
            Ok(accepted) => {
                self.send(&accepted.response.to_bytes());
                let limits = Limits { message_size: Some(settings.max_size), fragments: None, ..Limits::default() };
                let connection = Connection::new(Config { side: Side::Server, limits, deflate: accepted.deflate });
                let keepalive = Keepalive::new(None, None, std::time::Instant::now());
                let cipher = std::mem::take(&mut self.cipher);
                let peer = Peer::new(connection, self.layer.take(), &bytes[consumed..], cipher, keepalive);
                Opened::Open(Box::new(peer), role)
            }
            Err(error) => {
                let response = self.handshake.reject_error(&error).to_bytes();
                self.refuse(&response)
            }
        }
    }

    fn refuse(&mut self, response: &[u8]) -> Opened {
        self.send(response);
        self.refused = true;
        Opened::NotYet
    }

    fn send(&mut self, bytes: &[u8]) {
        match &mut self.layer {
            Some(layer) => {
                if layer.send(&mut self.cipher, bytes, self.output.tail()).is_err() {
                    self.refused = true;
                }
            }
            None => self.output.tail().extend_from_slice(bytes),
        }
    }

    /// What was queued and has not left: it precedes everything that the peer sends.
    pub(crate) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }
}
