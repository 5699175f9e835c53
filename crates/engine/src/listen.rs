//! Listening sockets: one for each worker, at the same address.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
#[cfg(target_os = "linux")]
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use crate::config::Place;
use crate::handoff::ListenerSet;

/// Clients that may wait to be accepted, of each listener; the system's own limit may be less.
pub(crate) const BACKLOG: i32 = 4096;

/// Of an address that others listen at, and are to go on with if we fail.
pub(crate) struct Shared {
    /// Of each worker: clients wait there.
    pub(crate) listeners: Vec<Vec<OwnedFd>>,
    /// For the last workers, where there are too few listeners.
    pub(crate) joining: Vec<Late>,
}

/// A socket that joins a listener later, when the engine cannot fail any more: a client that waits at it would be lost
/// with the engine, and the listener, which was alone, cannot be so again: Linux remembers that it had SO_REUSEPORT.
pub(crate) struct Late {
    pub(crate) socket: Socket,
    address: SocketAddr,
    /// The listener.
    first: Option<OwnedFd>,
}

impl Late {
    /// Has clients wait there.
    pub(crate) fn listen(self) -> io::Result<OwnedFd> {
        if let Some(first) = &self.first {
            SockRef::from(first).set_reuse_port(true)?;
        }
        self.socket.bind(&self.address.into())?;
        listen(self.socket)
    }
}

/// Listeners for `count` workers at one place, some of which there are already: they are shared out, and more are
/// made where they are too few.
pub(crate) fn share(mut offer: ListenerSet, count: usize) -> io::Result<Shared> {
    let mut shares: Vec<Vec<OwnedFd>> = (0..count).map(|_| Vec::new()).collect();
    let mut joining = Vec::new();
    let missing = count.saturating_sub(offer.listeners.len());
    if missing > 0 {
        match (&offer.place, offer.listeners.first()) {
            (Place::Tcp(address), first) => {
                for _ in 0..missing {
                    let first = first.map(OwnedFd::try_clone).transpose()?;
                    joining.push(Late { socket: tcp(*address, true)?, address: *address, first });
                }
            }
            (Place::Unix(_), Some(first)) => {
                let more: Vec<_> = (0..missing).map(|_| first.try_clone()).collect::<io::Result<_>>()?;
                offer.listeners.extend(more);
            }
            (Place::Unix(_), None) => return Err(io::Error::other("handoff: a place without listeners")),
        }
    }
    for (number, listener) in offer.listeners.into_iter().enumerate() {
        // As ours are; the flag is the socket's, but whoever made it may have been another.
        let listener = Socket::from(listener);
        listener.set_nonblocking(true)?;
        if let Some(share) = shares.get_mut(number % count) {
            share.push(listener.into());
        }
    }
    Ok(Shared { listeners: shares, joining })
}

/// Binds `count` listeners to one place. Where they really are comes with them: port 0 is replaced by one that
/// is free. `shared`: others of this user may listen there as well, and get a part of the clients.
pub(crate) fn bind(place: &Place, count: usize, shared: bool) -> io::Result<(Vec<OwnedFd>, Place)> {
    match place {
        Place::Tcp(address) => {
            let mut address = *address;
            let mut listeners = Vec::with_capacity(count);
            let alone = cfg!(target_os = "linux") && !shared;
            if !alone && !shared && address.port() != 0 {
                // Elsewhere all must have the option before they are bound: a look beforehand has to do.
                drop(bind_tcp(address, false)?);
            }
            for number in 0..count {
                // Listening without the option fails where anybody listens, with it or without; whoever comes at the
                // same time fails too, as it is `listen` that decides.
                let socket = bind_tcp(address, number > 0 || !alone)?;
                if let Some(real) = socket.local_addr()?.as_socket() {
                    address = real;
                }
                let listener = listen(socket)?;
                if number == 0 && alone && count > 1 {
                    // Linux lets those join a listener that has it now. The system spreads clients over all of them.
                    SockRef::from(&listener).set_reuse_port(true)?;
                }
                listeners.push(listener);
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

fn bind_tcp(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = tcp(address, reuse_port)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A socket that can be bound to an address.
fn tcp(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Ends a listener in all processes that have a copy of it: a child made by `fork` would else keep the port, and take
/// clients that nobody accepts.
pub(crate) fn shut(listener: &OwnedFd) {
    let _ = SockRef::from(listener).shutdown(Shutdown::Both); // a copy of it was shut before
}

/// The file of a Unix socket that this process has bound: removed when it is dropped, unless another one has taken its
/// place.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Which file it is, and what keeps its number from being another's once it is replaced.
    ours: ((u64, u64), Option<OwnedFd>),
    /// A copy in a child process removes nothing.
    process: u32,
}

impl SocketFile {
    /// The one at the path.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        Ok(Self { ours: (identity(&path)?, hold(&path)?), path, process: std::process::id() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves it to another path, and replaces the file there.
    pub(crate) fn rename(&mut self, to: &Path) -> io::Result<()> {
        let to = std::path::absolute(to)?;
        std::fs::rename(&self.path, &to)?;
        self.path = to;
        Ok(())
    }

    /// It stays: another process listens there too.
    pub(crate) fn leave(mut self) {
        self.process = 0;
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.process == std::process::id() && identity(&self.path).is_ok_and(|there| there == self.ours.0) {
            let _ = std::fs::remove_file(&self.path); // what is left of it is replaced by the next one: see `remove_stale`
        }
    }
}

/// Holds a file without opening it: no other file gets its number before this is closed.
fn hold(path: &Path) -> io::Result<Option<OwnedFd>> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{Mode, OFlags};
        Ok(Some(rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = path; // numbers are not given again as soon
        Ok(None)
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|about| (about.dev(), about.ino()))
}

/// Whether a socket listens at a place.
pub(crate) fn is_at(listener: &OwnedFd, place: &Place) -> bool {
    let socket = SockRef::from(listener);
    #[cfg(target_os = "linux")]
    if !socket.is_listener().unwrap_or(false) {
        return false;
    }
    let Ok(real) = socket.local_addr() else { return false };
    match place {
        Place::Tcp(address) => {
            real.as_socket().is_some_and(|real| (real.ip(), real.port()) == (address.ip(), address.port()))
        }
        Place::Unix(path) => is_named(&real, path),
    }
}

/// Whether this is the address of a Unix socket at the path; on Linux it may be an abstract name.
fn is_named(real: &SockAddr, path: &Path) -> bool {
    #[cfg(target_os = "linux")]
    if let Some(name) = real.as_abstract_namespace() {
        return path.as_os_str().as_bytes().strip_prefix(b"\0") == Some(name);
    }
    real.as_pathname() == Some(path)
}

/// Has clients wait at a socket that is bound.
pub(crate) fn listen(socket: Socket) -> io::Result<OwnedFd> {
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
    let left = SockAddr::unix(path).and_then(|at| {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // Whoever listens may have a queue that is full: then he is not waited for.
        socket.set_nonblocking(true)?;
        socket.connect(&at)
    });
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
        let refused = bind(&Place::Unix(path.clone()), 1, false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
    }

    #[test]
    fn a_link_is_not_replaced() {
        let directory = Directory::new("link");
        let (path, stale) = (directory.0.join("link"), directory.0.join("stale"));
        drop(UnixListener::bind(&stale).unwrap());
        std::os::unix::fs::symlink(&stale, &path).unwrap();
        assert!(bind(&Place::Unix(path.clone()), 1, false).is_err());
        assert!(path.is_symlink());
    }

    #[test]
    fn whoever_listens_with_a_full_queue_is_not_waited_for() {
        let directory = Directory::new("full");
        let path = directory.0.join("socket");
        let at = SockAddr::unix(&path).unwrap();
        let other = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        other.bind(&at).unwrap();
        other.listen(0).unwrap();
        let mut waiting = Vec::new();
        while waiting.len() < 100 {
            let client = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            client.set_nonblocking(true).unwrap();
            if client.connect(&at).is_err() {
                break;
            }
            waiting.push(client);
        }
        let (said, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || said.send(bind(&Place::Unix(path), 1, false).unwrap_err().kind()));
        assert_eq!(heard.recv_timeout(std::time::Duration::from_secs(30)).unwrap(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_socket_is_replaced_if_nobody_listens() {
        let directory = Directory::new("socket");
        let path = directory.0.join("socket");
        let other = UnixListener::bind(&path).unwrap();
        assert_eq!(bind(&Place::Unix(path.clone()), 1, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(other);
        let _listeners = bind(&Place::Unix(path.clone()), 1, false).unwrap();
        UnixStream::connect(&path).unwrap();
    }
}
