//! Listening sockets: one per worker, at the same address.

mod certificate;
mod listener;

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
#[cfg(target_os = "linux")]
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use crate::config::Place;

pub(crate) use self::certificate::Certificate;
pub(crate) use self::listener::{AcceptedSocket, Listener, ListenerOptions, ListenerSet};

/// The backlog of each listener; the system may limit it further.
pub(crate) const BACKLOG: i32 = 4096;

/// The listeners of an address that were received by handoff. The old engine must be able to continue if the start
/// fails.
pub(crate) struct SharedListeners {
    /// The listeners of each worker. Clients may be waiting there.
    pub(crate) listeners: Vec<Vec<OwnedFd>>,
    /// Further sockets for the last workers, if there are fewer listeners than workers.
    pub(crate) joining: Vec<DeferredListener>,
}

/// A socket that starts to listen only when the start of the engine can no longer fail. Otherwise a failure would reset
/// the clients in its queue, and the received listener would keep SO_REUSEPORT, which Linux cannot take back.
pub(crate) struct DeferredListener {
    pub(crate) socket: Socket,
    address: SocketAddr,
    /// The received listener that it joins.
    first: Option<OwnedFd>,
}

impl DeferredListener {
    /// Binds the socket and starts to listen.
    pub(crate) fn listen(self) -> io::Result<OwnedFd> {
        if let Some(first) = &self.first {
            SockRef::from(first).set_reuse_port(true)?;
        }
        self.socket.bind(&self.address.into())?;
        listen(self.socket)
    }
}

/// Distributes received listeners of one place among `count` workers, and adds sockets if there are too few.
pub(crate) fn distribute(mut set: ListenerSet, count: usize) -> io::Result<SharedListeners> {
    let mut shares: Vec<Vec<OwnedFd>> = (0..count).map(|_| Vec::new()).collect();
    let mut joining = Vec::new();
    let missing = count.saturating_sub(set.listeners.len());
    if missing > 0 {
        match (&set.place, set.listeners.first()) {
            (Place::Tcp(address), first) => {
                for _ in 0..missing {
                    let first = first.map(OwnedFd::try_clone).transpose()?;
                    joining.push(DeferredListener { socket: tcp(*address, true)?, address: *address, first });
                }
            }
            (Place::Unix(_), Some(first)) => {
                let more: Vec<_> = (0..missing).map(|_| first.try_clone()).collect::<io::Result<_>>()?;
                set.listeners.extend(more);
            }
            (Place::Unix(_), None) => return Err(io::Error::other("handoff: a place without listeners")),
        }
    }
    for (number, listener) in set.listeners.into_iter().enumerate() {
        // As our own are. The flag belongs to the socket, which another program may have made.
        let listener = Socket::from(listener);
        listener.set_nonblocking(true)?;
        if let Some(share) = shares.get_mut(number % count) {
            share.push(listener.into());
        }
    }
    Ok(SharedListeners { listeners: shares, joining })
}

/// Binds `count` listeners to one place, and returns them with their real address: port 0 is replaced by a free port.
/// `shared`: other processes of this user may listen there as well and accept a part of the clients.
pub(crate) fn bind(place: &Place, count: usize, shared: bool) -> io::Result<(Vec<OwnedFd>, Place)> {
    match place {
        Place::Tcp(address) => {
            let mut address = *address;
            let mut listeners = Vec::with_capacity(count);
            let exclusive = cfg!(target_os = "linux") && !shared;
            if !exclusive && !shared && address.port() != 0 {
                // Other systems require the option on all sockets before they are bound: only a check beforehand is
                // possible.
                drop(bind_tcp(address, false)?);
            }
            for number in 0..count {
                // Listening without the option fails if another socket listens, with or without the option. This also
                // detects a process that binds at the same time, as it is `listen` that decides.
                let socket = bind_tcp(address, number > 0 || !exclusive)?;
                if let Some(real) = socket.local_addr()?.as_socket() {
                    address = real;
                }
                let listener = listen(socket)?;
                if number == 0 && exclusive && count > 1 {
                    // On Linux, others may join the listener once it has the option. The system spreads clients over
                    // all of them.
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
            // A path has only one socket; all workers accept from it.
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

/// Creates a socket that can be bound to an address.
fn tcp(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Shuts down a listener in all processes that have a copy. Otherwise a forked child would keep the port, and clients
/// in its queue would never be accepted.
pub(crate) fn shut_down(listener: &OwnedFd) {
    let _ = SockRef::from(listener).shutdown(Shutdown::Both); // fails if a copy was shut down before
}

/// The file of a Unix socket that this process has bound. Dropping it removes the file, unless another one has replaced
/// it.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// The device and inode of the file, and a descriptor that prevents reuse of the inode once the file is replaced.
    identity: ((u64, u64), Option<OwnedFd>),
    /// The process that bound the socket: a copy in a forked child removes nothing.
    process: u32,
}

impl SocketFile {
    /// Returns the socket file at the path.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        Ok(Self { identity: (file_identity(&path)?, hold(&path)?), path, process: std::process::id() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the file to another path and replaces the file there.
    pub(crate) fn rename(&mut self, to: &Path) -> io::Result<()> {
        let to = std::path::absolute(to)?;
        std::fs::rename(&self.path, &to)?;
        self.path = to;
        Ok(())
    }

    /// Keeps the file: another process listens there too.
    pub(crate) fn keep(mut self) {
        self.process = 0;
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.process == std::process::id() && file_identity(&self.path).is_ok_and(|there| there == self.identity.0) {
            let _ = std::fs::remove_file(&self.path); // on failure: see `remove_stale`
        }
    }
}

/// Holds a file without opening it, so that its inode is not reused.
fn hold(path: &Path) -> io::Result<Option<OwnedFd>> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{Mode, OFlags};
        Ok(Some(rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = path; // inodes are not reused as soon
        Ok(None)
    }
}

fn file_identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Whether the socket listens at the place.
pub(crate) fn listens_at(listener: &OwnedFd, place: &Place) -> bool {
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

/// Whether this is the address of a Unix socket at the path. On Linux the path may stand for an abstract name.
fn is_named(real: &SockAddr, path: &Path) -> bool {
    #[cfg(target_os = "linux")]
    if let Some(name) = real.as_abstract_namespace() {
        return path.as_os_str().as_bytes().strip_prefix(b"\0") == Some(name);
    }
    real.as_pathname() == Some(path)
}

/// Starts to listen at a socket that is bound.
pub(crate) fn listen(socket: Socket) -> io::Result<OwnedFd> {
    socket.set_nonblocking(true)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Removes a socket at which no process listens. Any other file stays, though connecting to it is refused as well.
fn remove_stale(path: &Path) {
    if !std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        return;
    }
    let connected = SockAddr::unix(path).and_then(|at| {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // Do not wait for a process whose queue is full.
        socket.set_nonblocking(true)?;
        socket.connect(&at)
    });
    if connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        let _ = std::fs::remove_file(path); // on failure, binding returns the error
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;

    use super::*;

    /// A directory that is removed when this is dropped.
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
    fn regular_file_is_not_replaced() {
        let directory = Directory::new("file");
        let path = directory.0.join("data");
        std::fs::write(&path, "kept").unwrap();
        let refused = bind(&Place::Unix(path.clone()), 1, false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
    }

    #[test]
    fn symbolic_link_is_not_replaced() {
        let directory = Directory::new("link");
        let (path, stale) = (directory.0.join("link"), directory.0.join("stale"));
        drop(UnixListener::bind(&stale).unwrap());
        std::os::unix::fs::symlink(&stale, &path).unwrap();
        assert!(bind(&Place::Unix(path.clone()), 1, false).is_err());
        assert!(path.is_symlink());
    }

    #[test]
    fn socket_with_a_full_queue_is_not_replaced_nor_waited_for() {
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
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(bind(&Place::Unix(path), 1, false).unwrap_err().kind()));
        assert_eq!(receiver.recv_timeout(std::time::Duration::from_secs(30)).unwrap(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn stale_socket_is_replaced() {
        let directory = Directory::new("socket");
        let path = directory.0.join("socket");
        let other = UnixListener::bind(&path).unwrap();
        assert_eq!(bind(&Place::Unix(path.clone()), 1, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(other);
        let _listeners = bind(&Place::Unix(path.clone()), 1, false).unwrap();
        UnixStream::connect(&path).unwrap();
    }
}
