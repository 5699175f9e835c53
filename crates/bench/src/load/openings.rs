//! Workloads that open connections: a few or all at the same time, or one after the other.

use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::answer::Answer;
use super::client::{self, ConnectionChange};
use super::client_pool::{ClientPool, unasked};
use super::text;
use super::window::{Window, measure};

/// The end of a response.
const END: &[u8] = b"\r\n\r\n";

/// Opens and closes connections in a closed loop, some at the same time; each is closed when it is ready.
pub(crate) fn open(pool: &mut ClientPool) -> Result<Answer, String> {
    pool.open_first()?;
    pool.clients.clear();
    for number in 0..pool.options.connections {
        pool.connect(number)?;
    }
    let window = measure(pool, |pool, window| {
        pool.wait(Some(window.end))?;
        pool.serve_each(&mut unasked, |pool, number, found| match found {
            ConnectionChange::Opened => {
                let Some(client) = &mut pool.clients[number] else { return Ok(()) };
                window.record(client.begun, Instant::now());
                client.close()
            }
            ConnectionChange::Closed => {
                pool.forget(number);
                pool.connect(number)
            }
            ConnectionChange::Lost(reason) => Err(reason),
            ConnectionChange::Nothing => Ok(()),
        })
    })?;
    Ok(window.finish(pool))
}

/// Opens all connections at the same time, closes them when all are ready, and repeats this. Only the time of opening
/// counts. One in a hundred may fail: when the accept queue overflows, the system resets connections of any
/// server.
pub(crate) fn storm(pool: &mut ClientPool) -> Result<Answer, String> {
    // Checks first that the server serves a connection.
    pool.open_first()?;
    pool.close_all()?;
    let wanted = pool.options.connections;
    let mut window = Window::begin(pool);
    let (mut opening, mut idle, mut failed) = (Duration::ZERO, Duration::ZERO, 0);
    loop {
        let (begin, waited) = (Instant::now(), pool.waited);
        failed += pool.open_most(wanted, wanted / 100, |begun, now| window.record(begun, now))?;
        opening += begin.elapsed();
        idle += pool.waited - waited;
        let deflate = pool.deflate();
        pool.close_all()?;
        if Instant::now() >= window.end {
            pool.waited = idle;
            return Ok(Answer { deflate, failed: Some(failed as u64), ..window.finish_after(pool, opening) });
        }
    }
}

/// Opens connections one after the other, with a client that only connects, sends a prepared request and waits for the
/// response: the time is spent in the server and the system.
pub(crate) fn touch(pool: &mut ClientPool) -> Result<Answer, String> {
    // Checks first that the server serves a connection.
    pool.open_first()?;
    pool.clients.clear();
    let cookie = pool.options.token().map(|token| format!("Cookie: access_token={token}\r\n")).unwrap_or_default();
    let server = &pool.options.servers[0];
    // The key is constant, as the response is not checked against it.
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{cookie}\r\n",
        server.target, server.host
    );
    let mut number = 0;
    let window = measure(pool, |pool, window| {
        let begun = Instant::now();
        touch_one(pool, number, request.as_bytes())?;
        window.record(begun, Instant::now());
        number += 1;
        Ok(())
    })?;
    Ok(window.finish(pool))
}

/// Connects, sends the request, and waits for the response.
fn touch_one(pool: &mut ClientPool, number: usize, request: &[u8]) -> Result<(), String> {
    let socket = client::socket(pool.options.servers[0].address, number).map_err(text)?;
    pool.watch(&socket, 0)?;
    let (mut sent, mut received) = (0, 0);
    let mut answer = [0; 1024];
    pool.expect();
    loop {
        while sent < request.len() {
            match send(&socket, &request[sent..], SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                // The socket is not connected yet.
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
        pool.wait(None)?;
    }
}
