//! Clients for an engine over real sockets. `std` transfers the bytes; the driver's endpoint handles the frames.

#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)] // each test file uses a part

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use wirespeed_engine::driver::protocol::deflate::{Params, negotiate};
use wirespeed_engine::driver::protocol::handshake::{Header, HeaderList};
use wirespeed_engine::driver::protocol::{CloseCode, Config as Wire, Connection, Event, Limits, MessageKind, Side};
use wirespeed_engine::driver::{Endpoint, Keepalive};
use wirespeed_engine::{Config, Engine, Listen, Place};

pub const TIMEOUT: Duration = Duration::from_secs(20);

pub fn config() -> Config {
    let at = Place::Tcp("127.0.0.1:0".parse().unwrap());
    Config { listen: vec![Listen { at, tls: None }], workers: 2, ..Config::default() }
}

pub fn address(engine: &Engine) -> SocketAddr {
    match &engine.places()[0] {
        Place::Tcp(address) => *address,
        Place::Unix(_) => panic!("a path"),
    }
}

pub struct Client {
    pub stream: TcpStream,
    pub peer: Endpoint,
    pub status: u16,
    pub head: String,
}

impl Client {
    pub fn open(engine: &Engine, target: &str) -> Self {
        let client = Self::request(engine, target, "");
        assert_eq!(client.status, 101, "{}", client.head);
        client
    }

    /// Sends a request with additional header fields, and reads the head of the response.
    pub fn request(engine: &Engine, target: &str, fields: &str) -> Self {
        Self::over(TcpStream::connect(address(engine)).unwrap(), target, fields)
    }

    /// Sends a request on an existing connection, and reads the head of the response.
    pub fn over(mut stream: TcpStream, target: &str, fields: &str) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{fields}\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => break,
            }
        }
        let head = String::from_utf8(head).unwrap();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let deflate = Self::negotiated(&head);
        Self { stream, peer: Self::peer_with(deflate), status, head }
    }

    /// Returns a client endpoint that has neither sent nor received anything.
    pub fn peer() -> Endpoint {
        Self::peer_with(None)
    }

    fn peer_with(deflate: Option<Params>) -> Endpoint {
        let limits = Limits { message_size: None, ..Limits::default() };
        let connection = Connection::new(Wire { limits, deflate, ..Wire::new(Side::Client) });
        Endpoint::new(connection, None, &[], Vec::new(), Keepalive::new(None, None, Instant::now()))
    }

    fn negotiated(head: &str) -> Option<Params> {
        let (_, value) = head.split_once("Sec-WebSocket-Extensions: ")?;
        let mut headers = HeaderList::new();
        headers.push("Sec-WebSocket-Extensions", value.lines().next()?).unwrap();
        let _: Option<&Header> = headers.iter().next();
        negotiate::Config::client().accept_response(&headers).unwrap()
    }

    pub fn send(&mut self, kind: MessageKind, payload: &[u8]) {
        self.queue(kind, payload);
        self.flush();
    }

    pub fn queue(&mut self, kind: MessageKind, payload: &[u8]) {
        self.peer.send_half_mut().send_message(kind, payload, None).unwrap();
    }

    pub fn flush(&mut self) {
        let bytes = self.peer.send_half_mut().take_output();
        self.stream.write_all(&bytes).unwrap();
    }

    pub fn send_text(&mut self, text: &str) {
        self.send(MessageKind::Text, text.as_bytes());
    }

    /// Returns the next message; `None` if the server has closed the connection or it is lost.
    pub fn receive(&mut self) -> Option<(MessageKind, Vec<u8>)> {
        loop {
            while let Some(event) = self.peer.poll_event() {
                if let Event::Message { kind, payload } = event {
                    return Some((kind, payload.as_slice().to_vec()));
                }
            }
            self.flush_quietly();
            if !self.read_some() {
                return None;
            }
        }
    }

    pub fn receive_text(&mut self) -> String {
        let (kind, payload) = self.receive().unwrap();
        assert_eq!(kind, MessageKind::Text);
        String::from_utf8(payload).unwrap()
    }

    fn flush_quietly(&mut self) {
        let bytes = self.peer.send_half_mut().take_output();
        let _ = self.stream.write_all(&bytes);
    }

    fn read_some(&mut self) -> bool {
        let mut bytes = vec![0; 256 * 1024];
        match self.stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.peer.receive_slice(&bytes[..count]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Reads until the end and returns the close frame that was received.
    pub fn end(&mut self) -> Option<(u16, String)> {
        while self.receive().is_some() {}
        let close = self.peer.send_half().close_received()?;
        Some((close.code.map_or(1005, |code| code.0), close.reason.clone()))
    }

    pub fn close(&mut self, code: u16, reason: &str) {
        self.peer.send_half_mut().send_close(Some(CloseCode(code)), reason).unwrap();
        self.flush();
    }

    /// Reads at `rate` bytes per second until `until`, and returns the messages. Panics if the server closes the
    /// connection.
    pub fn read_at(&mut self, rate: f64, until: Instant) -> Vec<Vec<u8>> {
        let (began, mut got, mut messages) = (Instant::now(), 0, Vec::new());
        let mut bytes = vec![0; 64 * 1024];
        while Instant::now() < until {
            let wanted = ((began.elapsed().as_secs_f64() * rate) as usize - got).min(bytes.len());
            if wanted == 0 {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            let count = match self.stream.read(&mut bytes[..wanted]) {
                Ok(count) => count,
                Err(error) => panic!("a reader of {rate} bytes in a second: {error}"),
            };
            assert!(count > 0, "a reader of {rate} bytes in a second was cut off");
            got += count;
            self.peer.receive_slice(&bytes[..count]);
            while let Some(event) = self.peer.poll_event() {
                if let Event::Message { payload, .. } = event {
                    messages.push(payload.as_slice().to_vec());
                }
            }
            let close = self.peer.send_half().close_received();
            assert!(close.is_none(), "a reader of {rate} bytes in a second was closed: {close:?}");
        }
        messages
    }
}
