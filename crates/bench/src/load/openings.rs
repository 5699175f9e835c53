//! Connections are opened: one after the other, some at a time, all at once, or until there can be no more.

use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::answer::Answer;
use super::client::{self, Found};
use super::crew::{Crew, unasked};
use super::text;
use super::window::{Window, measure};

/// The end of an answer.
const END: &[u8] = b"\r\n\r\n";

/// Some at the same time, each closed when it is ready: a closed loop of opening and closing handshakes.
pub(crate) fn open(crew: &mut Crew) -> Result<Answer, String> {
    crew.open_first()?;
    crew.clients.clear();
    for number in 0..crew.options.connections {
        crew.connect(number)?;
    }
    let window = measure(crew, |crew, window| {
        crew.wait(Some(window.end))?;
        crew.serve_each(&mut unasked, |crew, number, found| match found {
            Found::Opened => {
                let Some(client) = &mut crew.clients[number] else { return Ok(()) };
                window.record(client.begun, Instant::now());
                client.close()
            }
            Found::Closed => {
                crew.forget(number);
                crew.connect(number)
            }
            Found::Lost(reason) => Err(reason),
            Found::Nothing => Ok(()),
        })
    })?;
    Ok(window.finish(crew))
}

/// All are begun at the same time; when all are ready, they are closed; again, until the window is over. What counts is
/// the time of opening only. One in a hundred may fail: of more than the system keeps for a server to accept, it resets
/// one now and then, whoever serves.
pub(crate) fn storm(crew: &mut Crew) -> Result<Answer, String> {
    // The server is there, and has served somebody.
    crew.open_first()?;
    crew.close_all()?;
    let wanted = crew.options.connections;
    let mut window = Window::begin(crew);
    let (mut opening, mut idle, mut failed) = (Duration::ZERO, Duration::ZERO, 0);
    loop {
        let (begin, waited) = (Instant::now(), crew.waited);
        failed += crew.open_most(wanted, wanted / 100, |begun, now| window.record(begun, now))?;
        opening += begin.elapsed();
        idle += crew.waited - waited;
        let deflate = crew.deflate();
        crew.close_all()?;
        if Instant::now() >= window.end {
            crew.waited = idle;
            return Ok(Answer { deflate, failed: Some(failed as u64), ..window.finish_after(crew, opening) });
        }
    }
}

/// One after the other, by a client that does nothing but connect, send a request that was made beforehand, and wait for
/// the answer: what is left of the time is the server's, and the system's.
pub(crate) fn touch(crew: &mut Crew) -> Result<Answer, String> {
    // The server is there.
    crew.open_first()?;
    crew.clients.clear();
    let cookie = crew.options.token().map(|token| format!("Cookie: access_token={token}\r\n")).unwrap_or_default();
    let server = &crew.options.servers[0];
    // A request as good as any: nobody looks whether the answer belongs to it.
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{cookie}\r\n",
        server.target, server.host
    );
    let mut number = 0;
    let window = measure(crew, |crew, window| {
        let begun = Instant::now();
        touch_one(crew, number, request.as_bytes())?;
        window.record(begun, Instant::now());
        number += 1;
        Ok(())
    })?;
    Ok(window.finish(crew))
}

/// Connects, asks, has an answer.
fn touch_one(crew: &mut Crew, number: usize, request: &[u8]) -> Result<(), String> {
    let socket = client::socket(crew.options.servers[0].address, number).map_err(text)?;
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
            if answer.starts_with(b"HTTP/1.1 101") {
                return Ok(());
            }
            return Err(format!("the server answered {:?}", String::from_utf8_lossy(&answer[..received.min(60)])));
        }
        crew.wait(None)?;
    }
}
