//! A server that does what a test says: what the load generator must notice is not what a real server does
//! every day.

use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use wirespeed_protocol::handshake::Request;
use wirespeed_protocol::{MessageKind, Side};

use super::peer::{Peer, Received, frame};

/// The connections of a server, by the order in which they were opened.
#[derive(Default)]
pub(crate) struct Room {
    streams: Mutex<Vec<TcpStream>>,
}

impl Room {
    /// Sends a message to one.
    pub(crate) fn send(&self, to: usize, kind: MessageKind, payload: &[u8]) {
        self.write(to, &frame(Side::Server, kind, payload));
    }

    /// Sends a message to everybody who ever came, but to those who are left out.
    pub(crate) fn broadcast(&self, kind: MessageKind, payload: &[u8], left_out: impl Fn(usize) -> bool) {
        let everybody = 0..self.streams.lock().expect("nobody panicked").len();
        everybody.filter(|to| !left_out(*to)).for_each(|to| self.send(to, kind, payload));
    }

    /// Sends an empty ping to one.
    pub(crate) fn ping(&self, to: usize) {
        self.write(to, &[0x89, 0]);
    }

    /// Ends one, without a closing handshake.
    pub(crate) fn close(&self, to: usize) {
        let _ = self.streams.lock().expect("nobody panicked")[to].shutdown(Shutdown::Both);
    }

    fn write(&self, to: usize, frame: &[u8]) {
        let _ = self.streams.lock().expect("nobody panicked")[to].write_all(frame); // it may have left
    }
}

/// The status to refuse a connection with, of so many that are open; what is done when one is open.
pub(crate) type Refuse = fn(usize, &Request) -> Option<u16>;
pub(crate) type Open = fn(&Room, usize, &Request);

/// Refuses nobody, and does nothing when somebody comes.
pub(crate) const WELCOME: (Refuse, Open) = (|_, _| None, |_, _, _| {});

/// Answers a message with itself.
pub(crate) fn echo(room: &Room, from: usize, kind: MessageKind, payload: &[u8]) {
    room.send(from, kind, payload);
}

/// Starts a server that lives as long as the test; its URL. `message`: what it does with one.
pub(crate) fn serve(message: impl Fn(&Room, usize, MessageKind, &[u8]) + Send + Sync + 'static) -> String {
    serve_with(WELCOME, message)
}

/// The same, with what it does with those who come.
pub(crate) fn serve_with(
    (refuse, open): (Refuse, Open),
    message: impl Fn(&Room, usize, MessageKind, &[u8]) + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("ws://{}/", listener.local_addr().expect("an address"));
    let shared = Arc::new((Room::default(), message));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (room, message) = &*shared;
                serve_one(stream, room, refuse, open, message)
            });
        }
    });
    url
}

/// It ends when the client leaves.
fn serve_one(
    stream: TcpStream,
    room: &Room,
    refuse: Refuse,
    open: Open,
    message: impl Fn(&Room, usize, MessageKind, &[u8]),
) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut streams = None;
    let (mut peer, request) = Peer::accept(stream, |request| {
        // Until it is among them, nothing is sent to anybody.
        let streams = streams.insert(room.streams.lock().expect("nobody panicked"));
        refuse(streams.len(), request)
    })?;
    let mut streams = streams?;
    streams.push(peer.stream.try_clone().ok()?);
    let from = streams.len() - 1;
    drop(streams);
    open(room, from, &request);
    while let Received::Message(kind, payload) = peer.poll()? {
        message(room, from, kind, &payload);
    }
    // 1000, whatever the client said.
    room.write(from, &[0x88, 2, 3, 232]);
    peer.stream.shutdown(Shutdown::Both).ok()
}
