//! A minimal blocking peer, which sends and receives messages.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;
use wirespeed_protocol::handshake::{
    ClientHandshake, ClientRequest, HeaderList, Limits as HeadLimits, Progress, Request, ServerConfig, ServerHandshake,
};
use wirespeed_protocol::{Config, Connection, Event, Limits, MessageKind, Side};

/// A message or close frame that was received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Message(MessageKind, Vec<u8>),
    Close(u16),
}

pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    connection: Connection<Vec<u8>>,
    received: VecDeque<Received>,
}

impl Peer {
    /// Connects to a server.
    pub(crate) fn connect(url: &str, target: &str) -> Self {
        let host = url.strip_prefix("ws://").expect("a URL");
        let mut stream = TcpStream::connect(host).expect("it connects");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("an option");
        stream.set_write_timeout(Some(Duration::from_secs(10))).expect("an option");
        let request = ClientRequest::new(host, target);
        let mut handshake = ClientHandshake::new(&request, [7; 16], HeadLimits::default()).expect("a request");
        stream.write_all(&handshake.request_bytes()).expect("it is sent");
        let mut peer = Self { stream, connection: connection(Side::Client), received: VecDeque::new() };
        peer.read_head(|piece| match handshake.receive(piece).expect("it is accepted") {
            Progress::Incomplete => None,
            Progress::Complete { consumed, .. } => Some(consumed),
        });
        peer
    }

    /// Accepts a client, unless `refuse` returns a status. Returns the peer and the request.
    pub(crate) fn accept(stream: TcpStream, refuse: impl FnOnce(&Request) -> Option<u16>) -> Option<(Self, Request)> {
        let mut handshake = ServerHandshake::new(ServerConfig::default(), HeadLimits::default());
        let mut peer = Self { stream, connection: connection(Side::Server), received: VecDeque::new() };
        peer.read_head(|piece| match handshake.receive(piece).expect("a request") {
            Progress::Incomplete => None,
            Progress::Complete { consumed, .. } => Some(consumed),
        })?;
        let request = handshake.request().cloned().expect("it is complete");
        let (status, none) = (refuse(&request), HeaderList::new());
        let response = match status {
            Some(status) => handshake.reject(status, &none, b"no").expect("a status"),
            None => handshake.accept(None, &none).expect("a request").response,
        };
        peer.stream.write_all(&response.to_bytes()).ok()?;
        status.is_none().then_some((peer, request))
    }

    /// Reads until a head is complete: `receive` returns how many bytes of a piece belong to it. The remaining bytes
    /// belong to the first frames.
    fn read_head(&mut self, mut receive: impl FnMut(&[u8]) -> Option<usize>) -> Option<()> {
        let mut bytes = [0; 4096];
        loop {
            let read = self.stream.read(&mut bytes).ok().filter(|read| *read > 0)?;
            if let Some(consumed) = receive(&bytes[..read]) {
                self.feed(&mut bytes[consumed..read]);
                return Some(());
            }
        }
    }

    fn feed(&mut self, mut input: &mut [u8]) {
        while let Some(event) = self.connection.receive(&mut input).expect("valid frames") {
            self.received.extend(match event {
                Event::Message { kind, payload } => Some(Received::Message(kind, payload.as_slice().to_vec())),
                Event::Close(close) => Some(Received::Close(close.code.map_or(1005, |code| code.0))),
                _ => None,
            });
        }
    }

    /// Returns the next message or close frame, or `None` at the end of the connection.
    pub(crate) fn poll(&mut self) -> Option<Received> {
        let mut bytes = vec![0; 64 * 1024];
        while self.received.is_empty() {
            let read = self.stream.read(&mut bytes).ok().filter(|read| *read > 0)?;
            self.feed(&mut bytes[..read]);
        }
        self.received.pop_front()
    }

    /// Returns the next message or close frame, which must arrive.
    pub(crate) fn receive(&mut self) -> Received {
        self.poll().expect("something comes")
    }

    /// Returns the next message, which must be binary.
    pub(crate) fn receive_binary(&mut self) -> Vec<u8> {
        match self.receive() {
            Received::Message(MessageKind::Binary, message) => message,
            other => panic!("no binary message: {other:?}"),
        }
    }

    /// Checks binary messages as of `/blast`, until a text message with JSON. Returns their number, and the JSON.
    pub(crate) fn receive_numbered(&mut self, size: usize) -> (u64, Value) {
        let mut number = 0;
        loop {
            match self.receive() {
                Received::Message(MessageKind::Binary, message) => assert_numbered(&message, number, size),
                Received::Message(MessageKind::Text, text) => {
                    return (number, serde_json::from_slice(&text).expect("JSON"));
                }
                close @ Received::Close(_) => panic!("{close:?}"),
            }
            number += 1;
        }
    }

    pub(crate) fn send(&mut self, kind: MessageKind, payload: &[u8]) {
        self.stream.write_all(&frame(Side::Client, kind, payload)).expect("it is sent");
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.send(MessageKind::Text, text.as_bytes());
    }
}

fn connection(side: Side) -> Connection<Vec<u8>> {
    let limits = Limits { message_size: None, fragment_size: None, fragments: None };
    Connection::new(Config { side, limits, deflate: None })
}

/// Encodes a message as a frame. A client's frame is masked with zeros.
pub(crate) fn frame(side: Side, kind: MessageKind, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    connection(side).send_message(kind, payload, None, || [0; 4], &mut frame).expect("it is open");
    frame
}

/// Asserts that this is message `number` of `/blast`.
pub(crate) fn assert_numbered(message: &[u8], number: u64, size: usize) {
    let pattern = (0..size).map(|index| *number.to_le_bytes().get(index).unwrap_or(&((index % 256) as u8)));
    assert!(message.iter().copied().eq(pattern), "{} bytes are not message {number} of {size}", message.len());
}
