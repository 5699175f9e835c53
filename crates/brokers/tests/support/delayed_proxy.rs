//! A TCP proxy that adds a delay, as between machines.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The maximum number of chunks in flight in one direction; further writes wait.
const MAX_CHUNKS: usize = 4096;

/// Accepts connections on this port forever, and forwards both directions to the server with this delay.
pub fn delayed_proxy(port: u16, server: u16, delay: Duration) {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // Without a server, the client's connection is closed.
            if let Ok(server) = TcpStream::connect(("127.0.0.1", server)) {
                carry(client.try_clone().unwrap(), server.try_clone().unwrap(), delay);
                carry(server, client, delay);
            }
        }
    });
}

fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    to.set_nodelay(true).unwrap();
    let (sender, chunks) = mpsc::sync_channel::<(Instant, Vec<u8>)>(MAX_CHUNKS);
    thread::spawn(move || {
        let mut some = [0; 16384];
        while let Ok(count @ 1..) = from.read(&mut some) {
            if sender.send((Instant::now() + delay, some[..count].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (due, chunk) in chunks {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&chunk).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
