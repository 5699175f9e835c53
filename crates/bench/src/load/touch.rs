//! Connections are opened one after the other, by a client that does nothing but connect, send a request that
//! was made beforehand, and wait for the answer: what is left of the time is the server's, and the system's.

use std::io;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::answer::Answer;
use super::client;
use super::crew::Crew;
use super::text;
use super::window::Window;

/// The end of an answer.
const END: &[u8] = b"\r\n\r\n";

pub(crate) fn run(crew: &mut Crew<'_>) -> Result<Answer, String> {
    // The server is there.
    crew.open_first()?;
    crew.forget(0);
    let cookie = crew.options.token.as_ref().map(|token| format!("Cookie: access_token={token}\r\n"));
    let cookie = cookie.unwrap_or_default();
    let server = &crew.options.servers[0];
    // A request as good as any: nobody looks whether the answer belongs to it.
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{cookie}\r\n",
        server.target, server.host
    );
    let warm = Instant::now() + crew.options.warmup;
    let mut number = 0;
    while Instant::now() < warm {
        touch(crew, number, request.as_bytes())?;
        number += 1;
    }
    let mut window = Window::begin(crew);
    while Instant::now() < window.end {
        let begun = Instant::now();
        let ready = touch(crew, number, request.as_bytes())?;
        window.latencies.record(ready.saturating_duration_since(begun));
        window.count(ready, 1);
        number += 1;
    }
    let end = Instant::now();
    Ok(window.finish(crew, end))
}

/// Connects, asks, has an answer; when that was.
fn touch(crew: &mut Crew<'_>, number: usize, request: &[u8]) -> Result<Instant, String> {
    let socket = client::socket(crew.options.servers[0].address, number, None).map_err(text)?;
    crew.watch(&socket, 0)?;
    let (mut sent, mut received) = (0, 0);
    let mut answer = [0; 1024];
    crew.expect();
    loop {
        while sent < request.len() {
            match send(&socket, &request[sent..], SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                // On its way to being connected.
                Err(Errno::AGAIN | Errno::NOTCONN) => break,
                Err(error) => return Err(format!("cannot send: {}", io::Error::from(error))),
            }
        }
        match recv(&socket, &mut answer[received..], RecvFlags::empty()) {
            Ok((0, _)) => return Err("the server has left without an answer".into()),
            Ok((count, _)) => received += count,
            Err(Errno::AGAIN | Errno::NOTCONN) => {}
            Err(error) => return Err(format!("cannot receive: {}", io::Error::from(error))),
        }
        if answer[..received].ends_with(END) {
            return if answer.starts_with(b"HTTP/1.1 101") {
                Ok(Instant::now())
            } else {
                Err(format!("the server answered {:?}", String::from_utf8_lossy(&answer[..received.min(60)])))
            };
        }
        crew.wait(None)?;
    }
}
