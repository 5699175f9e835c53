//! A server that does what a test says: what the load generator must notice is not what a real server does
//! every day.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use wirespeed_protocol::handshake::{
    HeaderList, Limits as HeadLimits, Progress, Request, ServerConfig, ServerHandshake,
};
use wirespeed_protocol::{Config, Connection, Event, Limits, MessageKind, Payload, Side};

/// The connections of a server, by the order in which they were opened.
#[derive(Default)]
pub(crate) struct Room {
    streams: Mutex<Vec<TcpStream>>,
}

impl Room {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.streams.lock().expect("nobody panicked").len()
    }

    /// Sends a message to one.
    pub(crate) fn send(&self, to: usize, kind: MessageKind, payload: &[u8]) {
        self.write(to, if kind == MessageKind::Text { 0x81 } else { 0x82 }, payload);
    }

    /// Sends an empty ping to one.
    pub(crate) fn ping(&self, to: usize) {
        self.write(to, 0x89, b"");
    }

    /// Ends one, without a closing handshake.
    pub(crate) fn close(&self, to: usize) {
        let _ = self.streams.lock().expect("nobody panicked")[to].shutdown(std::net::Shutdown::Both);
    }

    fn write(&self, to: usize, first: u8, payload: &[u8]) {
        let mut frame = vec![first];
        match payload.len() {
            length @ 0..126 => frame.push(u8::try_from(length).expect("it fits")),
            length => {
                frame.push(126);
                frame.extend_from_slice(&u16::try_from(length).expect("no long messages here").to_be_bytes());
            }
        }
        frame.extend_from_slice(payload);
        let _ = self.streams.lock().expect("nobody panicked")[to].write_all(&frame); // it may have left
    }
}

/// What a server does.
pub(crate) trait Behaviour: Send + Sync + 'static {
    /// An HTTP status to refuse a connection with; `number`: those that are open.
    fn refuse(&self, _number: usize, _request: &Request) -> Option<u16> {
        None
    }

    /// A connection is open.
    fn open(&self, _room: &Room, _from: usize, _request: &Request) {}

    /// A message came.
    fn message(&self, room: &Room, from: usize, kind: MessageKind, payload: &[u8]);
}

/// A server with nothing but an answer to messages.
impl<F: Fn(&Room, usize, MessageKind, &[u8]) + Send + Sync + 'static> Behaviour for F {
    fn message(&self, room: &Room, from: usize, kind: MessageKind, payload: &[u8]) {
        self(room, from, kind, payload);
    }
}

/// Starts a server that lives as long as the test; its URL.
pub(crate) fn serve(behaviour: impl Behaviour) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("ws://{}/", listener.local_addr().expect("an address"));
    let (room, behaviour) = (Arc::new(Room::default()), Arc::new(behaviour));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (room, behaviour) = (Arc::clone(&room), Arc::clone(&behaviour));
            // It ends with an error when the client leaves.
            thread::spawn(move || serve_one(stream, &room, &*behaviour));
        }
    });
    url
}

fn serve_one(mut stream: TcpStream, room: &Room, behaviour: &impl Behaviour) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut handshake = ServerHandshake::new(ServerConfig::default(), HeadLimits::default());
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let read = stream.read(&mut bytes)?;
        if read == 0 {
            return Ok(());
        }
        if let Progress::Complete { .. } = handshake.receive(&bytes[..read]).map_err(io::Error::other)? {
            break; // a client says nothing more until it is answered
        }
    }
    let request = handshake.request().cloned().expect("it is complete");
    let from = {
        let mut streams = room.streams.lock().expect("nobody panicked");
        if let Some(status) = behaviour.refuse(streams.len(), &request) {
            let response = handshake.reject(status, &HeaderList::new(), b"no").map_err(io::Error::other)?;
            return stream.write_all(&response.to_bytes());
        }
        let accepted = handshake.accept(None, &HeaderList::new()).map_err(io::Error::other)?;
        stream.write_all(&accepted.response.to_bytes())?;
        streams.push(stream.try_clone()?);
        streams.len() - 1
    };
    behaviour.open(room, from, &request);
    let config = Config { side: Side::Server, limits: Limits::default(), deflate: None };
    let mut connection = Connection::<Vec<u8>>::new(config);
    loop {
        let read = stream.read(&mut bytes)?;
        if read == 0 {
            return Ok(());
        }
        let mut input = &mut bytes[..read];
        while let Some(event) = connection.receive(&mut input).map_err(io::Error::other)? {
            match event {
                Event::Message { kind, payload: Payload::Slice(slice) } => behaviour.message(room, from, kind, slice),
                Event::Message { kind, payload: Payload::Buffer(buffer) } => {
                    behaviour.message(room, from, kind, &buffer)
                }
                Event::Close(_) => {
                    let mut reply = Vec::new();
                    connection.send_close_reply(|| [0; 4], &mut reply);
                    return stream.write_all(&reply).and_then(|()| stream.shutdown(std::net::Shutdown::Both));
                }
                _ => {}
            }
        }
    }
}
