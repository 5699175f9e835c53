//! A blocking client that sends and receives messages, no more.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use wirespeed_protocol::handshake::{ClientHandshake, ClientRequest, Limits as HeadLimits, Progress};
use wirespeed_protocol::{Config, Connection, Event, Limits, MessageKind, Payload, Side};

/// What arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Text(String),
    Binary(Vec<u8>),
    Close(u16),
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    connection: Connection<Vec<u8>>,
    received: VecDeque<Received>,
}

impl Client {
    pub(crate) fn connect(url: &str, target: &str) -> Self {
        let host = url.strip_prefix("ws://").expect("a URL");
        let mut stream = TcpStream::connect(host).expect("it connects");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("an option");
        let request = ClientRequest::new(host, target);
        let mut handshake = ClientHandshake::new(&request, [7; 16], HeadLimits::default()).expect("a request");
        stream.write_all(&handshake.request_bytes()).expect("it is sent");
        let mut head = Vec::new();
        let consumed = loop {
            let mut bytes = [0; 4096];
            let read = stream.read(&mut bytes).expect("a response");
            assert!(read > 0, "the server has left");
            head.extend_from_slice(&bytes[..read]);
            // Each piece once: what is behind the head belongs to the first frames.
            match handshake.receive(&bytes[..read]).expect("it is accepted") {
                Progress::Incomplete => {}
                Progress::Complete { consumed, .. } => break head.len() - read + consumed,
            }
        };
        let limits = Limits { message_size: None, fragment_size: None, fragments: None };
        let connection = Connection::new(Config { side: Side::Client, limits, deflate: None });
        let mut client = Self { stream, connection, received: VecDeque::new() };
        client.feed(&mut head[consumed..]);
        client
    }

    pub(crate) fn send(&mut self, kind: MessageKind, payload: &[u8]) {
        let mut frame = Vec::new();
        self.connection.send_message(kind, payload, None, || [1, 2, 3, 4], &mut frame).expect("it is open");
        self.stream.write_all(&frame).expect("it is sent");
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.send(MessageKind::Text, text.as_bytes());
    }

    pub(crate) fn binary(&mut self, payload: &[u8]) {
        self.send(MessageKind::Binary, payload);
    }

    pub(crate) fn receive(&mut self) -> Received {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            if let Some(received) = self.received.pop_front() {
                return received;
            }
            let read = self.stream.read(&mut bytes).expect("something comes");
            assert!(read > 0, "the server has left");
            self.feed(&mut bytes[..read]);
        }
    }

    fn feed(&mut self, mut input: &mut [u8]) {
        while let Some(event) = self.connection.receive(&mut input).expect("valid frames") {
            let received = match event {
                Event::Message { kind, payload } => {
                    let bytes = match payload {
                        Payload::Slice(slice) => slice.to_vec(),
                        Payload::Buffer(buffer) => buffer,
                    };
                    match kind {
                        MessageKind::Text => Received::Text(String::from_utf8(bytes).expect("UTF-8")),
                        MessageKind::Binary => Received::Binary(bytes),
                    }
                }
                Event::Close(close) => Received::Close(close.code.map_or(1005, |code| code.0)),
                _ => continue,
            };
            self.received.push_back(received);
        }
    }
}
