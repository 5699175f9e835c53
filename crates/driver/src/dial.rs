//! Dials numeric addresses: parses them, and waits for [`Socket::connect`]. The host resolves names and races their
//! addresses.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use crate::blocking::Host;
use crate::socket::{Readiness, Socket};

/// Parses a host that is an address. `family` as for `getaddrinfo`: 0 for any.
#[must_use]
pub fn numeric(host: &str, port: u16, family: i32) -> Option<SocketAddr> {
    let address = SocketAddr::new(host.parse::<IpAddr>().ok()?, port);
    (family == 0 || socket2::Domain::for_address(address) == family.into()).then_some(address)
}

/// Waits until an attempt to connect has ended, until `deadline` at most. Returns whether it has.
///
/// # Errors
/// Fails if the host interrupts the call, or the attempt has failed.
pub fn wait<H: Host>(
    socket: &Socket,
    host: &H,
    deadline: Option<Instant>,
) -> Result<bool, Result<io::Error, H::Interrupt>> {
    let interest = Readiness { readable: false, writable: true };
    loop {
        let ready = host.wait_cooperatively(Some((socket, interest)), deadline);
        match ready.unwrap_or_else(|| host.wait(|| socket.wait(interest, deadline))) {
            Ok(ready) if ready.writable => return socket.take_error().map(|()| true).map_err(Ok),
            Ok(_) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => host.check_interrupt().map_err(Err)?,
            Err(error) => return Err(Ok(error)),
        }
    }
}
