//! The listening sockets go from an engine that ends to one that begins, in another process as a rule, so that
//! no client is refused in between.
//!
//! Listeners that share a port (`SO_REUSEPORT`) have queues of their own: when one is closed, who waits in its
//! queue is reset, though another listener lives. So they are not closed: the new engine gets the very sockets
//! over a Unix socket, and says when it is about to accept from them; then the old one lets go of them, and drains.
//!
//! ```text
//! new: wirespeed handoff 1
//! old: {"tcp": "127.0.0.1:8765"} and its listeners      for each place; in reply to "next" but the first
//! new: next
//! old: end
//! new: ready                                            its workers are about to accept
//! old: gone                                             ours do not any more
//! ```
//!
//! An old engine that dies on the way has let go as well.
//!
//! A new engine that fails before that changes nothing: the old one goes on, with all who wait in its queues. So the new
//! one accepts nobody by then, and all that may fail is done, but to put its own socket in the place of the old one's:
//! without, it serves, and nobody takes over from it.

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

use crate::config::Place;
use crate::drain::{Drain, Draining, EngineControl};
use crate::listen::{self, SocketFile};
use crate::logs::{Cause, Level};

const HELLO: &str = "wirespeed handoff 1";

/// How long the other end may take for its part.
const PATIENCE: Duration = Duration::from_secs(10);

/// Nanoseconds until somebody is accepted again after that has failed.
const ACCEPT_PAUSE: i64 = 100_000_000;

/// Listeners in one message: fewer than the system allows (253 on Linux).
const AT_ONCE: usize = 64;

/// A line of the other end at most.
const LINE: usize = 4096;

/// Listening sockets, and where they listen.
pub(crate) struct ListenerSet {
    pub(crate) place: Place,
    pub(crate) listeners: Vec<OwnedFd>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Named {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Named {
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

// ---- the new one ----

/// What an engine that ends has given to us.
pub(crate) struct ReceivedListeners {
    stream: UnixStream,
    offers: Vec<ListenerSet>,
}

/// Asks for the listeners of whoever is at the path; `None`: nobody is.
///
/// # Errors
/// Whoever is there does not answer as an engine does, or what is there is no socket.
pub(crate) fn ask(path: &Path) -> io::Result<Option<ReceivedListeners>> {
    ask_once(path).map_err(|error| explain_timeout(error, path))
}

/// A limit of the socket is reported as `WouldBlock`, which says nothing to those who start an engine.
fn explain_timeout(error: io::Error, path: &Path) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            let text = format!("handoff: the process at {} has not answered for {PATIENCE:?}", path.display());
            io::Error::new(io::ErrorKind::TimedOut, text)
        }
        _ => error,
    }
}

fn ask_once(path: &Path) -> io::Result<Option<ReceivedListeners>> {
    let stream = match connect(path) {
        Ok(stream) => stream,
        // Refused like where nobody listens; ours must not take its place.
        Err(_) if std::fs::metadata(path).is_ok_and(|about| !about.file_type().is_socket()) => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "handoff: there is a file that is no socket"));
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    if !is_ours(&stream) {
        let text = format!("handoff: {} is a socket of another user, whose listeners are not taken", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    limit(&stream)?;
    say(&stream, HELLO)?;
    let mut offers: Vec<ListenerSet> = Vec::new();
    loop {
        let (line, listeners) = receive(&stream)?;
        if line == "end" {
            return Ok(Some(ReceivedListeners { stream, offers }));
        }
        let named: Named = serde_json::from_str(&line).map_err(|_| unexpected(&line))?;
        let place = named.place();
        if !listeners.iter().all(|listener| listen::is_at(listener, &place)) {
            let text = format!("handoff: what came from {} does not listen at {place:?}", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        match offers.iter_mut().find(|offer| offer.place == place) {
            Some(offer) => offer.listeners.extend(listeners),
            None => offers.push(ListenerSet { place, listeners }),
        }
        say(&stream, "next")?;
    }
}

/// Whether the other end was closed.
fn is_hung_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof)
}

/// Whether nobody hands over at the path any more: not whoever waited for us in vain, and goes on.
fn is_gone(path: &Path) -> bool {
    match ask_once(path) {
        Ok(inherited) => inherited.is_none(),
        Err(error) => is_hung_up(&error), // it is just ending
    }
}

/// Connects, unless whoever listens takes nobody for too long.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(OwnedFd::from(socket).into())
}

impl ReceivedListeners {
    /// The listeners for a place; port 0 is any port of the address.
    pub(crate) fn take(&mut self, place: &Place) -> Option<ListenerSet> {
        let fits = |offer: &ListenerSet| match (&offer.place, place) {
            (Place::Tcp(theirs), Place::Tcp(ours)) if ours.port() == 0 => theirs.ip() == ours.ip(),
            (theirs, ours) => theirs == ours,
        };
        let index = self.offers.iter().position(fits)?;
        Some(self.offers.swap_remove(index))
    }

    /// Our workers are about to accept: the old engine may let go. Returns when it has, or is no more.
    ///
    /// # Errors
    /// It goes on, or may.
    pub(crate) fn confirm(self, path: &Path) -> io::Result<()> {
        match say(&self.stream, "ready").and_then(|()| hear(&self.stream)) {
            Ok(answer) if answer == "gone" => Ok(()),
            Ok(other) => Err(unexpected(&other)),
            // It has heard us, or Linux would say that it has not; and then it ends without a word only if it dies.
            Err(error) if cfg!(target_os = "linux") && error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            Err(error) if is_hung_up(&error) && is_gone(path) => Ok(()),
            Err(error) => Err(explain_timeout(error, path)),
        }
    }
}

// ---- the old one ----

/// Waits for an engine that takes over. Dropped, it waits no longer.
pub(crate) struct HandoffServer {
    /// Ended, the thread ends, unless somebody has taken over: then it drains first.
    stop: UnixStream,
    /// Removed after that.
    file: SocketFile,
    /// Where the file is to be.
    path: PathBuf,
    /// Its thread is of this process: a copy in a child has nothing to end.
    process: u32,
    /// From the thread, which ends: until when it drains, if somebody has taken over.
    given: Option<Receiver<Instant>>,
}

impl Drop for HandoffServer {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        let _ = self.stop.shutdown(Shutdown::Both); // copies in children would keep it open; it may have ended before
    }
}

impl HandoffServer {
    /// Puts its socket in the place of whoever had the path: from now on the next engine finds it.
    ///
    /// # Errors
    /// The directory has changed, or what is at the path cannot be replaced.
    pub(crate) fn take_place(&mut self) -> io::Result<()> {
        self.file.rename(&self.path)
    }

    /// Of which is heard, once, until when the engine drains that somebody has taken over from; it has ended when
    /// nobody can any more. `None`: somebody else has it.
    pub(crate) fn given(&mut self) -> Option<Receiver<Instant>> {
        self.given.take()
    }
}

/// Waits for an engine that takes over, at a socket beside the path until it [takes its place](Keeper::take_place): at
/// no time is there nobody at the path.
pub(crate) fn keep(path: &Path, control: EngineControl, how: Drain) -> io::Result<HandoffServer> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let fresh = PathBuf::from(name);
    let _ = std::fs::remove_file(&fresh); // left by a process that is gone
    let listener = UnixListener::bind(&fresh)?;
    let file = SocketFile::of(&fresh)?;
    let (stop, stopped) = UnixStream::pair()?;
    let (path, process) = (path.to_owned(), std::process::id());
    let (give, given) = channel();
    let keeper = HandoffServer { stop, file, path, process, given: Some(given) };
    std::fs::set_permissions(keeper.file.path(), std::fs::Permissions::from_mode(0o600))?;
    std::thread::Builder::new().name("wirespeed-handoff".to_owned()).spawn(move || {
        let gave = wait(&listener, &stopped, &control);
        end(&listener);
        drop(listener);
        if gave {
            let begun = || "the listeners were handed over: this engine drains".to_owned();
            control.shared.logs.note(Cause::Handoff, Instant::now(), begun);
            let mut draining = Draining::begin(control, how, true, Instant::now());
            let _ = give.send(draining.deadline()); // nobody needs to want to know
            draining.finish();
        }
    })?;
    Ok(keeper)
}

/// Also of copies in children made by `fork`, where whoever connects would wait for an answer in vain.
fn end(listener: &UnixListener) {
    if rustix::net::shutdown(listener, rustix::net::Shutdown::Both).is_ok() {
        while listener.accept().is_ok() {} // whoever has connected meanwhile; then it says that it has ended
    }
}

/// Whether somebody has taken over; else the engine ends without.
fn wait(listener: &UnixListener, stopped: &UnixStream, control: &EngineControl) -> bool {
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
                // Too few descriptors, as a rule: the connection waits until there are some.
                note(Level::Error, &|| format!("no engine can take over from this one for now: {error}"));
                let pause = Timespec { tv_sec: 0, tv_nsec: ACCEPT_PAUSE };
                let _ = poll(&mut [PollFd::new(stopped, PollFlags::IN)], Some(&pause)); // a signal ends it earlier
                continue;
            }
        };
        // Whoever fails half-way has changed nothing.
        if is_ours(&stream) {
            match give(&stream, control) {
                Ok(()) => return true,
                Err(error) => note(Level::Warning, &|| {
                    format!("an engine that was to take over has failed: {error}; this one goes on")
                }),
            }
            control.shared.checked_out.store(false, Ordering::Release);
        } else {
            note(Level::Warning, &|| "a process of another user has asked for the listeners, in vain".to_owned());
        }
    }
}

/// Whether the other end is of our user, or the superuser.
fn is_ours(stream: &UnixStream) -> bool {
    #[cfg(target_os = "linux")]
    {
        let theirs = rustix::net::sockopt::socket_peercred(stream).map(|theirs| theirs.uid);
        theirs.is_ok_and(|theirs| theirs == rustix::process::geteuid() || theirs.is_root())
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = stream; // who may connect, the file's mode says
        true
    }
}

fn give(stream: &UnixStream, control: &EngineControl) -> io::Result<()> {
    limit(stream)?;
    let hello = hear(stream)?;
    if hello != HELLO {
        return Err(unexpected(&hello));
    }
    let offers: Vec<(Place, Vec<OwnedFd>)> = control.shared.copy_listeners()?;
    for (place, listeners) in &offers {
        let line = serde_json::to_string(&Named::of(place))?;
        for some in listeners.chunks(AT_ONCE) {
            send(stream, &line, some)?;
            let next = hear(stream)?;
            if next != "next" {
                return Err(unexpected(&next));
            }
        }
    }
    drop(offers);
    say(stream, "end")?;
    let ready = hear(stream)?;
    if ready != "ready" {
        return Err(unexpected(&ready));
    }
    say(stream, "gone")
}

// ---- lines ----

fn limit(stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

fn unexpected(line: &str) -> io::Error {
    let line: String = line.chars().take(100).collect();
    io::Error::new(io::ErrorKind::InvalidData, format!("handoff: unexpected {line:?}"))
}

fn say(mut stream: &UnixStream, line: &str) -> io::Result<()> {
    stream.write_all(format!("{line}\n").as_bytes())
}

/// A signal that is handled ends a call on a socket with a timeout, whatever its handler says.
fn restarting<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn hear(mut stream: &UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < LINE {
        if restarting(|| stream.read(&mut byte))? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if byte == *b"\n" {
            break;
        }
        line.push(byte[0]);
    }
    String::from_utf8(line).map_err(|_| unexpected("bytes"))
}

fn send(stream: &UnixStream, line: &str, listeners: &[OwnedFd]) -> io::Result<()> {
    let listeners: Vec<BorrowedFd<'_>> = listeners.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&listeners)) {
        return Err(io::Error::other("handoff: too many listeners"));
    }
    let bytes = format!("{line}\n");
    let sent =
        restarting(|| Ok(sendmsg(stream, &[IoSlice::new(bytes.as_bytes())], &mut control, SendFlags::empty())?))?;
    let mut stream = stream;
    stream.write_all(bytes.as_bytes().get(sent..).unwrap_or_default())
}

/// A line, and the listeners that came with it.
fn receive(stream: &UnixStream) -> io::Result<(String, Vec<OwnedFd>)> {
    let mut listeners = Vec::new();
    let mut line = Vec::new();
    // Each message is awaited before the next is asked for, so nothing follows a line.
    while line.last() != Some(&b'\n') {
        let mut bytes = [0; LINE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = restarting(|| {
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
        if line.len() > LINE {
            return Err(unexpected("line"));
        }
    }
    line.pop();
    let line = String::from_utf8(line).map_err(|_| unexpected("bytes"))?;
    Ok((line, listeners))
}
