//! A connection before its WebSocket: the TLS handshake and the opening handshake, without waiting.

use std::time::Instant;

use wirespeed_driver::opening::{Carrier, Error, Moved, Server};
use wirespeed_driver::protocol::Limits;
use wirespeed_driver::protocol::deflate::negotiate;
use wirespeed_driver::protocol::handshake::{self, HeaderList, Response, ServerConfig};
use wirespeed_driver::socket::Socket;
use wirespeed_driver::tls::Layer;
use wirespeed_driver::{Keepalive, Peer};

use super::Settings;
use super::role::Role;

/// A handshake in progress.
pub(crate) struct Opening {
    /// `None` once the WebSocket is open.
    server: Option<Server>,
    carrier: Carrier,
}

/// How far a handshake is.
pub(crate) enum Opened {
    NotYet,
    Over,
    Open(Box<Peer>, Role),
}

impl Opening {
    pub(crate) fn new(layer: Option<Box<dyn Layer>>, settings: &Settings) -> Result<Self, Error> {
        let deflate = settings.compression.then(negotiate::Config::server);
        let config = ServerConfig { deflate, ..ServerConfig::default() };
        let server = Server::new(config, handshake::Limits::default(), layer)?;
        Ok(Self { server: Some(server), carrier: Carrier::default() })
    }

    pub(crate) fn proceed(&mut self, socket: &Socket, settings: &Settings) -> Opened {
        loop {
            let Some(server) = &mut self.server else { return Opened::Over };
            match self.carrier.proceed(server, socket) {
                Ok(Moved::Waits(_)) => return Opened::NotYet,
                Ok(Moved::Over) => return Opened::Over,
                Ok(Moved::Done) => match self.answer(settings) {
                    Some(opened) => return opened,
                    None => continue,
                },
                Err(_) => {}
            }
            // What is no request is told so; where nobody can be told, it is over.
            let Some(response) = server.fault().map(|fault| server.handshake().reject_error(fault)) else {
                return Opened::Over;
            };
            server.refuse(&response);
        }
    }

    /// Answers the request; `None`: by a refusal, which has yet to be told.
    fn answer(&mut self, settings: &Settings) -> Option<Opened> {
        let server = self.server.as_mut()?;
        let handshake = server.handshake();
        let refused: Response = match handshake.request().map(|request| Role::for_target(&request.target)) {
            Some(Ok(role)) => match handshake.accept(None, &HeaderList::default()) {
                Ok(accepted) => {
                    let limits = Limits { message_size: Some(settings.max_size), fragments: None, ..Limits::default() };
                    let keepalive = Keepalive::new(None, None, Instant::now());
                    let (mut peer, _) = self.server.take()?.finish(limits, keepalive)?;
                    peer.link.send_head(&accepted.response.to_bytes());
                    return Some(Opened::Open(Box::new(peer), role));
                }
                Err(error) => handshake.reject_error(&error),
            },
            Some(Err(reason)) => match handshake.reject(400, &HeaderList::default(), reason.as_bytes()) {
                Ok(response) => response,
                Err(_) => return Some(Opened::Over),
            },
            None => return Some(Opened::Over),
        };
        server.refuse(&refused);
        None
    }
}
