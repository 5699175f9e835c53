//! Listening sockets: one for each worker, at the same address.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::Place;
use crate::handover::Offer;

/// Clients that may wait to be accepted, of each listener; the system's own limit may be less.
const BACKLOG: i32 = 4096;

/// Listeners for `count` workers at one place, some of which there are already: they are shared out, and more are
/// made where they are too few. All of them are in use: clients wait at each.
pub(crate) fn share(mut offer: Offer, count: usize) -> io::Result<(Vec<Vec<OwnedFd>>, Place)> {
    let mut shares: Vec<Vec<OwnedFd>> = (0..count).map(|_| Vec::new()).collect();
    let missing = count.saturating_sub(offer.listeners.len());
    if missing > 0 {
        let more = match (&offer.place, offer.listeners.first()) {
            (Place::Tcp(_), _) => bind(&offer.place, missing)?.0,
            (Place::Unix(_), Some(first)) => (0..missing).map(|_| first.try_clone()).collect::<io::Result<_>>()?,
            (Place::Unix(_), None) => return Err(io::Error::other("handover: a place without listeners")),
        };
        offer.listeners.extend(more);
    }
    for (number, listener) in offer.listeners.into_iter().enumerate() {
        // As ours are; the flag is the socket's, but whoever made it may have been another.
        let listener = Socket::from(listener);
        listener.set_nonblocking(true)?;
        shares[number % count].push(listener.into());
    }
    Ok((shares, offer.place))
}

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

/// A socket that nobody listens at, left by a process that is gone, may be replaced. Nothing else: connecting to a
/// file is refused like to such a socket.
fn remove_stale(path: &Path) {
    if !std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        return;
    }
    let left = std::os::unix::net::UnixStream::connect(path);
    if left.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        let _ = std::fs::remove_file(path); // binding says what is wrong
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;

    use super::*;

    /// A directory that is gone with it.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("wirespeed-listen-{}-{name}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_is_not_replaced() {
        let directory = Directory::new("file");
        let path = directory.0.join("data");
        std::fs::write(&path, "kept").unwrap();
        let refused = bind(&Place::Unix(path.clone()), 1).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
    }

    #[test]
    fn a_link_is_not_replaced() {
        let directory = Directory::new("link");
        let (path, stale) = (directory.0.join("link"), directory.0.join("stale"));
        drop(UnixListener::bind(&stale).unwrap());
        std::os::unix::fs::symlink(&stale, &path).unwrap();
        assert!(bind(&Place::Unix(path.clone()), 1).is_err());
        assert!(path.is_symlink());
    }

    #[test]
    fn a_socket_is_replaced_if_nobody_listens() {
        let directory = Directory::new("socket");
        let path = directory.0.join("socket");
        let other = UnixListener::bind(&path).unwrap();
        assert_eq!(bind(&Place::Unix(path.clone()), 1).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(other);
        let _listeners = bind(&Place::Unix(path.clone()), 1).unwrap();
        UnixStream::connect(&path).unwrap();
    }
}
