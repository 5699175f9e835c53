//! Before an opening: an address that needs no resolver, and the end of an attempt to connect to it, which
//! [`Socket::connect`] begins. Names, and the race of their addresses, are the host's.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use crate::blocking::Host;
use crate::socket::{Readiness, Socket};

/// The address that a host and a port are, without a name. `family` as for `getaddrinfo`: 0 for any.
#[must_use]
pub fn numeric(host: &str, port: u16, family: i32) -> Option<SocketAddr> {
    let address = SocketAddr::new(host.parse::<IpAddr>().ok()?, port);
    (family == 0 || socket2::Domain::for_address(address) == family.into()).then_some(address)
}

/// Waits until an attempt to connect has ended, until `deadline` at most; whether it has.
///
/// # Errors
/// The host wants to stop, or the attempt has failed.
pub fn wait<H: Host>(
    socket: &Socket,
    host: &H,
    deadline: Option<Instant>,
) -> Result<bool, Result<io::Error, H::Interrupt>> {
    let interest = Readiness { readable: false, writable: true };
    loop {
        let ready = host.wait_aside(Some((socket, interest)), deadline);
        match ready.unwrap_or_else(|| host.wait(|| socket.wait(interest, deadline))) {
            Ok(ready) if ready.writable => return socket.take_error().map(|()| true).map_err(Ok),
            Ok(_) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => host.check_interrupt().map_err(Err)?,
            Err(error) => return Err(Ok(error)),
        }
    }
}
