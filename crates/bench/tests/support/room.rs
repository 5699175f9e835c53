//! A server whose behaviour a test defines, for faults that real servers seldom have.

use std::io::Write as _;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use wirespeed_protocol::handshake::Request;
use wirespeed_protocol::{MessageKind, Side};

use super::peer::{Peer, Received, frame};

/// The connections of a server, in the order of opening.
#[derive(Default)]
pub(crate) struct Room {
    streams: Mutex<Vec<TcpStream>>,
}

impl Room {
    /// Sends a message to a connection.
    pub(crate) fn send(&self, to: usize, kind: MessageKind, payload: &[u8]) {
        self.write(to, &frame(Side::Server, kind, payload));
    }

    /// Sends a message to all connections except those for which `left_out` returns true.
    pub(crate) fn broadcast(&self, kind: MessageKind, payload: &[u8], left_out: impl Fn(usize) -> bool) {
        let everybody = 0..self.streams.lock().expect("nobody panicked").len();
        everybody.filter(|to| !left_out(*to)).for_each(|to| self.send(to, kind, payload));
    }

    /// Sends an empty ping to a connection.
    pub(crate) fn ping(&self, to: usize) {
        self.write(to, &[0x89, 0]);
    }

    /// Ends a connection without a closing handshake.
    pub(crate) fn close(&self, to: usize) {
        let _ = self.streams.lock().expect("nobody panicked")[to].shutdown(Shutdown::Both);
    }

    fn write(&self, to: usize, frame: &[u8]) {
        let _ = self.streams.lock().expect("nobody panicked")[to].write_all(frame); // the client may have left
    }
}

/// Returns the status for refusing a connection, by the number of earlier ones; and what to do when one is open.
pub(crate) type Refuse = fn(usize, &Request) -> Option<u16>;
pub(crate) type Open = fn(&Room, usize, &Request);

/// Refuses no connection, and sends nothing when one opens.
pub(crate) const WELCOME: (Refuse, Open) = (|_, _| None, |_, _, _| {});

/// Echoes a message.
pub(crate) fn echo(room: &Room, from: usize, kind: MessageKind, payload: &[u8]) {
    room.send(from, kind, payload);
}

/// Starts a server for the rest of the test, with this reaction to messages. Returns its URL.
pub(crate) fn serve(message: impl Fn(&Room, usize, MessageKind, &[u8]) + Send + Sync + 'static) -> String {
    serve_with(WELCOME, message)
}

/// Starts a server with its own handling of new connections.
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

/// Serves a connection until the client leaves.
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
        // Under the lock, so that no broadcast misses it or precedes its response.
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
    // The close code is 1000, regardless of the client's code.
    room.write(from, &[0x88, 2, 3, 232]);
    peer.stream.shutdown(Shutdown::Both).ok()
}
