//! Listening sockets: one for each worker, at the same address.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::Place;

/// Clients that may wait to be accepted, of each listener; the system's own limit may be less.
const BACKLOG: i32 = 4096;

/// Binds `count` listeners to one place. Where they really are comes with them: port 0 is replaced by one that
/// is free.
pub(crate) fn bind(place: &Place, count: usize) -> io::Result<(Vec<OwnedFd>, Place)> {
    match place {
        Place::Tcp(address) => {
            let mut address = *address;
            let mut listeners = Vec::with_capacity(count);
            for _ in 0..count {
                let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
                socket.set_reuse_address(true)?;
                // The system spreads clients over all that listen so.
                socket.set_reuse_port(true)?;
                if address.is_ipv6() {
                    socket.set_only_v6(true)?;
                }
                socket.bind(&address.into())?;
                if let Some(real) = socket.local_addr()?.as_socket() {
                    address = real;
                }
                listeners.push(listen(socket)?);
            }
            Ok((listeners, Place::Tcp(address)))
        }
        Place::Unix(path) => {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            remove_stale(path);
            socket.bind(&SockAddr::unix(path)?)?;
            let first = listen(socket)?;
            // A path has one socket; all workers accept from it.
            let mut listeners = Vec::with_capacity(count);
            for _ in 1..count {
                listeners.push(first.try_clone()?);
            }
            listeners.push(first);
            Ok((listeners, place.clone()))
        }
    }
}

fn listen(socket: Socket) -> io::Result<OwnedFd> {
    socket.set_nonblocking(true)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A socket that nobody listens at, left by a process that is gone, may be replaced.
fn remove_stale(path: &Path) {
    let left = std::os::unix::net::UnixStream::connect(path);
    if left.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        let _ = std::fs::remove_file(path); // binding says what is wrong
    }
}
