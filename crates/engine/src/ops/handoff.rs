//! Passes the listening sockets from an engine that shuts down to a new one, usually in another process, so that no
//! client is refused in between.
//!
//! Listeners that share a port (`SO_REUSEPORT`) have separate queues: closing one resets the clients in its queue, even
//! if other listeners remain. So they are not closed: the new engine receives the sockets themselves over a Unix socket
//! and reports when it is about to accept. Then the old engine closes its copies and drains.
//!
//! ```text
//! new: wirespeed handoff 1
//! old: {"tcp": "127.0.0.1:8765"} and its listeners      for each place; after the first, in reply to "next"
//! new: next
//! old: end
//! new: ready                                            the workers of the new engine are about to accept
//! old: gone                                             the workers of the old engine stop accepting
//! ```
//!
//! If the old engine dies during the handoff, its listeners are released as well.
//!
//! If the new engine fails before `ready`, nothing changes: the old one continues, with all clients in its queues. So
//! the new engine accepts no client before `ready` and first performs every step that may fail, except one: it puts its
//! own socket in the place of the old one's. Without that it serves, but no later engine can take over from it.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::{Drain, Place};
use crate::listen::{self, ListenerSet, SocketFile};
use crate::logs::{Cause, Level};
use crate::ops::drain::{Draining, EngineControl};

const HELLO: &str = "wirespeed handoff 1";

/// The maximum time for each step of the other engine.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause in nanoseconds after a failed accept.
const ACCEPT_PAUSE: i64 = 100_000_000;

/// The number of listeners per message, below the limit of the system (253 on Linux).
const MAX_LISTENERS_PER_MESSAGE: usize = 64;

/// The maximum length of a line in bytes.
const MAX_LINE: usize = 4096;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PlaceName {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl PlaceName {
    fn of(place: &Place) -> Self {
        match place {
            Place::Tcp(address) => Self::Tcp(*address),
            Place::Unix(path) => Self::Unix(path.clone()),
        }
    }

    fn place(self) -> Place {
        match self {
            Self::Tcp(address) => Place::Tcp(address),
            Self::Unix(path) => Place::Unix(path),
        }
    }
}

// ---- the new engine ----

/// The listeners that an engine which shuts down has sent.
pub(crate) struct ReceivedListeners {
    stream: UnixStream,
    sets: Vec<ListenerSet>,
}

/// Asks the engine at the path for its listeners; `None`: no engine listens there.
///
/// # Errors
/// The process at the path does not follow the protocol, or the file there is not a socket.
pub(crate) fn request_listeners(path: &Path) -> io::Result<Option<ReceivedListeners>> {
    request_listeners_once(path).map_err(|error| explain_timeout(error, path))
}

/// Replaces `WouldBlock`, as which a socket timeout is reported, by an error that names the cause.
fn explain_timeout(error: io::Error, path: &Path) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            let text = format!("handoff: the process at {} has not answered for {STEP_TIMEOUT:?}", path.display());
            io::Error::new(io::ErrorKind::TimedOut, text)
        }
        _ => error,
    }
}

fn request_listeners_once(path: &Path) -> io::Result<Option<ReceivedListeners>> {
    let stream = match connect(path) {
        Ok(stream) => stream,
        // Connecting to a regular file is refused, as if no process listened. Such a file must not be replaced.
        Err(_) if std::fs::metadata(path).is_ok_and(|about| !about.file_type().is_socket()) => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "handoff: the file at the path is not a socket"));
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    if !is_same_user(&stream) {
        let text = format!("handoff: {} is a socket of another user, whose listeners are not taken", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    set_timeouts(&stream)?;
    send_line(&stream, HELLO)?;
    let mut sets: Vec<ListenerSet> = Vec::new();
    loop {
        let (line, listeners) = receive_listeners(&stream)?;
        if line == "end" {
            return Ok(Some(ReceivedListeners { stream, sets }));
        }
        let named: PlaceName = serde_json::from_str(&line).map_err(|_| unexpected(&line))?;
        let place = named.place();
        if !listeners.iter().all(|listener| listen::listens_at(listener, &place)) {
            let text = format!("handoff: a socket from {} does not listen at {place:?}", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        match sets.iter_mut().find(|set| set.place == place) {
            Some(set) => set.listeners.extend(listeners),
            None => sets.push(ListenerSet { place, listeners }),
        }
        send_line(&stream, "next")?;
    }
}

/// Whether the error means that the other end was closed.
fn is_hung_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof)
}

/// Whether no engine listens at the path any more. False for an engine whose wait for us timed out and which continues.
fn has_ended(path: &Path) -> bool {
    match request_listeners_once(path) {
        Ok(received) => received.is_none(),
        Err(error) => is_hung_up(&error), // it is shutting down
    }
}

/// Connects, with a timeout for a process that does not accept.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_write_timeout(Some(STEP_TIMEOUT))?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(OwnedFd::from(socket).into())
}

impl ReceivedListeners {
    /// Takes the listeners for a place; port 0 matches any port of the address.
    pub(crate) fn take(&mut self, place: &Place) -> Option<ListenerSet> {
        let fits = |set: &ListenerSet| match (&set.place, place) {
            (Place::Tcp(peer), Place::Tcp(ours)) if ours.port() == 0 => peer.ip() == ours.ip(),
            (peer, ours) => peer == ours,
        };
        let index = self.sets.iter().position(fits)?;
        Some(self.sets.swap_remove(index))
    }

    /// Tells the old engine that the new workers are about to accept. Returns when it has released the listeners or
    /// died.
    ///
    /// # Errors
    /// The old engine continues, or may continue.
    pub(crate) fn confirm(self, path: &Path) -> io::Result<()> {
        match send_line(&self.stream, "ready").and_then(|()| receive_line(&self.stream)) {
            Ok(answer) if answer == "gone" => Ok(()),
            Ok(other) => Err(unexpected(&other)),
            // Linux reports an undelivered message as another error. So "ready" has arrived, and then only death
            // explains it.
            Err(error) if cfg!(target_os = "linux") && error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            Err(error) if is_hung_up(&error) && has_ended(path) => Ok(()),
            Err(error) => Err(explain_timeout(error, path)),
        }
    }
}

// ---- the old engine ----

/// Serves the next engine that takes over. Dropping it stops the server.
pub(crate) struct HandoffServer {
    /// Closing it ends the thread. If another engine has taken over, the thread drains first.
    stop: UnixStream,
    /// The socket's file, which is removed when this is dropped.
    file: SocketFile,
    /// The final path of the file.
    path: PathBuf,
    /// The process of the thread: a copy in a forked child must not end it.
    process: u32,
    /// Receives from the thread, if another engine has taken over, the time until which it drains.
    drain_deadline: Option<Receiver<Instant>>,
}

impl Drop for HandoffServer {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        let _ = self.stop.shutdown(Shutdown::Both); // closing is not enough: forked children have copies
    }
}

impl HandoffServer {
    /// Moves the socket to the path, in place of the old engine's. From now on the next engine finds it.
    ///
    /// # Errors
    /// The directory has changed, or the file at the path cannot be replaced.
    pub(crate) fn take_place(&mut self) -> io::Result<()> {
        self.file.rename(&self.path)
    }

    /// Returns a channel, once. After a handoff it receives the time until which the engine drains; it closes when no
    /// handoff can happen any more. `None`: it was returned before.
    pub(crate) fn drain_deadline(&mut self) -> Option<Receiver<Instant>> {
        self.drain_deadline.take()
    }
}

/// Starts a handoff server, at a socket beside the path until [`HandoffServer::take_place`] moves it there: so a
/// socket is at the path at all times.
pub(crate) fn serve(path: &Path, control: EngineControl, settings: Drain) -> io::Result<HandoffServer> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(name);
    let _ = std::fs::remove_file(&temporary); // a leftover of a dead process
    let listener = UnixListener::bind(&temporary)?;
    let file = SocketFile::of(&temporary)?;
    let (stop, stopped) = UnixStream::pair()?;
    let (path, process) = (path.to_owned(), std::process::id());
    let (sender, receiver) = channel();
    let server = HandoffServer { stop, file, path, process, drain_deadline: Some(receiver) };
    std::fs::set_permissions(server.file.path(), std::fs::Permissions::from_mode(0o600))?;
    std::thread::Builder::new().name("wirespeed-handoff".to_owned()).spawn(move || {
        let handed_over = wait_for_handoff(&listener, &stopped, &control);
        shut_down(&listener);
        drop(listener);
        if handed_over {
            let text = || "the listeners were handed over: this engine drains".to_owned();
            control.shared.logs.note(Cause::Handoff, Instant::now(), text);
            let mut draining = Draining::begin(control, settings, true, Instant::now());
            let _ = sender.send(draining.deadline()); // the receiver may be dropped
            draining.finish();
        }
    })?;
    Ok(server)
}

/// Shuts down the socket for forked children too, where clients would otherwise connect and wait in vain.
fn shut_down(listener: &UnixListener) {
    if rustix::net::shutdown(listener, rustix::net::Shutdown::Both).is_ok() {
        while listener.accept().is_ok() {} // drop waiting connections; then `accept` fails
    }
}

/// Waits for a handoff. Returns true after one, and false when the engine ends without one.
fn wait_for_handoff(listener: &UnixListener, stopped: &UnixStream, control: &EngineControl) -> bool {
    let note = |level, text: &dyn Fn() -> String| {
        control.shared.logs.note_as(Cause::HandoffFailed, level, Instant::now(), text);
    };
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        if poll(&mut fds, None).is_err() {
            continue; // a signal
        }
        if !fds[1].revents().is_empty() {
            return false;
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Usually too few descriptors: the connection waits until some are free.
                note(Level::Error, &|| format!("no engine can take over from this one for now: {error}"));
                let pause = Timespec { tv_sec: 0, tv_nsec: ACCEPT_PAUSE };
                let _ = poll(&mut [PollFd::new(stopped, PollFlags::IN)], Some(&pause)); // a signal ends it earlier
                continue;
            }
        };
        // A new engine that fails during the handoff has changed nothing.
        if is_same_user(&stream) {
            match transfer(&stream, control) {
                Ok(()) => return true,
                Err(error) => note(Level::Warning, &|| {
                    format!("an engine that was to take over has failed: {error}; this one goes on")
                }),
            }
            control.shared.checked_out.store(false, Ordering::Release);
        } else {
            note(Level::Warning, &|| {
                "a process of another user has asked for the listeners and was refused".to_owned()
            });
        }
    }
}

/// Whether the process at the other end runs as our user or as root.
fn is_same_user(stream: &UnixStream) -> bool {
    #[cfg(target_os = "linux")]
    {
        let peer = rustix::net::sockopt::socket_peercred(stream).map(|peer| peer.uid);
        peer.is_ok_and(|peer| peer == rustix::process::geteuid() || peer.is_root())
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = stream; // the mode of the file restricts access
        true
    }
}

fn transfer(stream: &UnixStream, control: &EngineControl) -> io::Result<()> {
    set_timeouts(stream)?;
    let hello = receive_line(stream)?;
    if hello != HELLO {
        return Err(unexpected(&hello));
    }
    let sets: Vec<(Place, Vec<OwnedFd>)> = control.shared.copy_listeners()?;
    for (place, listeners) in &sets {
        let line = serde_json::to_string(&PlaceName::of(place))?;
        for some in listeners.chunks(MAX_LISTENERS_PER_MESSAGE) {
            send_listeners(stream, &line, some)?;
            let next = receive_line(stream)?;
            if next != "next" {
                return Err(unexpected(&next));
            }
        }
    }
    drop(sets);
    send_line(stream, "end")?;
    let ready = receive_line(stream)?;
    if ready != "ready" {
        return Err(unexpected(&ready));
    }
    send_line(stream, "gone")
}

// ---- lines ----

fn set_timeouts(stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    stream.set_write_timeout(Some(STEP_TIMEOUT))
}

fn unexpected(line: &str) -> io::Error {
    let line: String = line.chars().take(100).collect();
    io::Error::new(io::ErrorKind::InvalidData, format!("handoff: unexpected {line:?}"))
}

fn send_line(mut stream: &UnixStream, line: &str) -> io::Result<()> {
    stream.write_all(format!("{line}\n").as_bytes())
}

/// Retries interrupted calls: a signal interrupts calls on a socket with a timeout even with `SA_RESTART`.
fn retry_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn receive_line(mut stream: &UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < MAX_LINE {
        if retry_interrupted(|| stream.read(&mut byte))? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if byte == *b"\n" {
            break;
        }
        line.push(byte[0]);
    }
    String::from_utf8(line).map_err(|_| unexpected("bytes"))
}

fn send_listeners(stream: &UnixStream, line: &str, listeners: &[OwnedFd]) -> io::Result<()> {
    let listeners: Vec<BorrowedFd<'_>> = listeners.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LISTENERS_PER_MESSAGE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&listeners)) {
        return Err(io::Error::other("handoff: too many listeners"));
    }
    let bytes = format!("{line}\n");
    let sent = retry_interrupted(|| {
        Ok(sendmsg(stream, &[IoSlice::new(bytes.as_bytes())], &mut control, SendFlags::empty())?)
    })?;
    let mut stream = stream;
    stream.write_all(bytes.as_bytes().get(sent..).unwrap_or_default())
}

/// Receives a line, and the listeners that came with it.
fn receive_listeners(stream: &UnixStream) -> io::Result<(String, Vec<OwnedFd>)> {
    let mut listeners = Vec::new();
    let mut line = Vec::new();
    // Each message is answered before the next one is sent, so no bytes follow the line.
    while line.last() != Some(&b'\n') {
        let mut bytes = [0; MAX_LINE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LISTENERS_PER_MESSAGE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry_interrupted(|| {
            let got = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
            Ok(got.bytes)
        })?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                listeners.extend(some);
            }
        }
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.extend_from_slice(bytes.get(..received).unwrap_or_default());
        if line.len() > MAX_LINE {
            return Err(unexpected("line"));
        }
    }
    line.pop();
    let line = String::from_utf8(line).map_err(|_| unexpected("bytes"))?;
    Ok((line, listeners))
}
