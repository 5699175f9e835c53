//! The system calls on sockets, and the only unsafe code of this crate beside [`crate::endpoint`]'s use of
//! uninitialised buffers.
//!
//! Built on socket2 for portability; waiting uses `poll(2)`, for Unix.

#![allow(unsafe_code)] // uninitialised buffers and poll(2)

use std::io::{self, IoSlice};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use socket2::MaybeUninitSlice;

/// Whether a call may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As the socket is set. A receive blocks at most as long as [`Socket::set_receive_wait`] allows.
    Blocking,
    /// The call never blocks.
    NonBlocking,
}

/// The events to wait for, or those that occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Bytes or the end of the stream can be received, or an error is pending.
    pub readable: bool,
    /// Bytes can be sent, or an error is pending.
    pub writable: bool,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const SEND_FLAGS: i32 = 0; // Rust's runtime and CPython both ignore SIGPIPE

impl Readiness {
    /// Returns whether neither is set.
    #[must_use]
    pub const fn is_none(self) -> bool {
        !self.readable && !self.writable
    }
}

impl Mode {
    fn flags(self) -> i32 {
        match self {
            Self::Blocking => 0,
            Self::NonBlocking => libc::MSG_DONTWAIT,
        }
    }
}

/// Maximum number of bytes that the kernel takes from a server beyond those it can send now (`TCP_NOTSENT_LOWAT`).
/// By default it takes up to 4 MiB, so each slow client occupies that much of the server's memory. Bytes that are
/// sent but not acknowledged do not count, so a long distance costs no throughput. Clients have no such limit:
/// docs/performance.md, "Large streams".
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNSENT_MAX: u32 = 512 * 1024;

/// The receive timeout of the socket was not queried yet.
const UNKNOWN: u64 = u64::MAX;

/// A connected stream socket.
pub struct Socket {
    inner: socket2::Socket,
    /// The kernel's receive timeout in nanoseconds; 0: none.
    receive_wait: AtomicU64,
}

impl Socket {
    /// Takes over a connected stream socket. It must be in blocking mode if [`Mode::Blocking`] is used.
    #[must_use]
    pub fn new(descriptor: OwnedFd) -> Self {
        Self { inner: socket2::Socket::from(descriptor), receive_wait: AtomicU64::new(UNKNOWN) }
    }

    /// Begins to connect to an address, without blocking. If [`Self::remote_address`] is `None` afterwards, the
    /// socket becomes writable when the attempt has ended; [`Self::take_error`] then returns its result. The socket
    /// is in non-blocking mode, and sends small messages immediately (`TCP_NODELAY`).
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let inner = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM,
            Some(socket2::Protocol::TCP),
        )?;
        inner.set_nonblocking(true)?;
        inner.set_tcp_nodelay(true)?;
        let socket = Self { inner, receive_wait: AtomicU64::new(0) };
        match socket.inner.connect(&address.into()) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => Err(error),
            _ => Ok(socket),
        }
    }

    /// Accepts a connection from a listening socket, without blocking; `None`: none is waiting. Returns a socket in
    /// non-blocking mode and the peer's address, if it is an internet address.
    pub fn accept(listening: BorrowedFd<'_>) -> io::Result<Option<(Self, Option<SocketAddr>)>> {
        // SAFETY: the descriptor is open, and `ManuallyDrop` leaves it so.
        let listening = ManuallyDrop::new(unsafe { socket2::Socket::from_raw_fd(listening.as_raw_fd()) });
        #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
        let accepted = listening.accept4(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
        let accepted = listening.accept().and_then(|(inner, address)| {
            inner.set_nonblocking(true)?;
            Ok((inner, address))
        });
        match accepted {
            Ok((inner, address)) => {
                Ok(Some((Self { inner, receive_wait: AtomicU64::new(UNKNOWN) }, address.as_socket())))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets whether calls block by default.
    pub fn set_blocking(&self, blocking: bool) -> io::Result<()> {
        self.inner.set_nonblocking(!blocking)
    }

    /// Returns the pending error of the socket and clears it.
    pub fn take_error(&self) -> io::Result<()> {
        self.inner.take_error()?.map_or(Ok(()), Err)
    }

    /// Returns the local address, if it is an internet address.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.inner.local_addr().ok()?.as_socket()
    }

    /// Returns the peer's address, if there is one and it is an internet address. A peer on this machine has
    /// answered by the time that [`Self::connect`] returns, although the system reports that the attempt is in
    /// progress.
    #[must_use]
    pub fn remote_address(&self) -> Option<SocketAddr> {
        self.inner.peer_addr().ok()?.as_socket()
    }

    /// Limits the unsent bytes in the kernel to 512 KiB. For a server that reads while it waits for room to send,
    /// because it waits sooner.
    pub fn limit_unsent(&self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = self.inner.set_tcp_notsent_lowat(UNSENT_MAX); // a Unix socket has none
    }

    /// Calls `f` with a socket owned by the caller, which must keep it open meanwhile.
    pub fn with_borrowed<R>(descriptor: BorrowedFd<'_>, f: impl FnOnce(&Self) -> R) -> R {
        // SAFETY: the descriptor is open, and `ManuallyDrop` leaves it so.
        let inner = unsafe { socket2::Socket::from_raw_fd(descriptor.as_raw_fd()) };
        f(&ManuallyDrop::new(Self { inner, receive_wait: AtomicU64::new(UNKNOWN) }))
    }

    /// Returns the socket for access to its options.
    #[must_use]
    pub fn options(&self) -> &socket2::Socket {
        &self.inner
    }

    /// Sends bytes. Returns the number of bytes that the kernel took.
    #[inline]
    pub fn send(&self, bytes: &[u8], mode: Mode) -> io::Result<usize> {
        self.inner.send_with_flags(bytes, SEND_FLAGS | mode.flags())
    }

    /// Sends several parts, one after the other. Returns the number of bytes that the kernel took.
    pub fn send_vectored(&self, parts: &[IoSlice<'_>], mode: Mode) -> io::Result<usize> {
        self.inner.send_vectored_with_flags(parts, SEND_FLAGS | mode.flags())
    }

    /// Receives at most `most` bytes, which must be at least 1, into the spare capacity of `buffer`. Returns the
    /// number of bytes received; 0: the end of the stream.
    #[inline]
    pub fn receive(&self, buffer: &mut Vec<u8>, most: usize, mode: Mode) -> io::Result<usize> {
        let room = buffer.spare_capacity_mut();
        let most = most.min(room.len());
        let room = room.get_mut(..most).unwrap_or_default();
        let received = self.inner.recv_with_flags(room, mode.flags())?;
        // SAFETY: the kernel wrote `received` bytes to the start of the spare capacity.
        unsafe { buffer.set_len(buffer.len() + received) };
        Ok(received)
    }

    /// Receives into `first`, and at most `most` further bytes into the spare capacity of `second`.
    pub fn receive_vectored(
        &self,
        first: &mut [MaybeUninit<u8>],
        second: &mut Vec<u8>,
        most: usize,
        mode: Mode,
    ) -> io::Result<usize> {
        let room = first.len();
        let spare = second.spare_capacity_mut();
        let most = most.min(spare.len());
        let spare = spare.get_mut(..most).unwrap_or_default();
        let mut parts = [MaybeUninitSlice::new(first), MaybeUninitSlice::new(spare)];
        let (received, _) = self.inner.recv_vectored_with_flags(&mut parts, mode.flags())?;
        // SAFETY: the kernel filled `first`, then wrote the rest to the start of the spare capacity.
        unsafe { second.set_len(second.len() + received.saturating_sub(room)) };
        Ok(received)
    }

    /// Makes blocking receives end with `WouldBlock` at the latest after `wait`, at little cost per call; the
    /// caller reads the clock and calls again. `None`: they may block without limit. Returns false if the wait is
    /// too short for this: use [`Self::wait`].
    pub fn set_receive_wait(&self, wait: Option<Duration>) -> io::Result<bool> {
        /// Kernel timeouts count in jiffies of up to 10 ms, so shorter waits need poll(2).
        const SHORTEST: u64 = 20_000_000;
        let mut current = self.receive_wait.load(Ordering::Relaxed);
        if current == UNKNOWN {
            // The previous owner may have set a timeout.
            current = self.inner.read_timeout()?.map_or(0, |wait| wait.as_nanos() as u64);
            self.receive_wait.store(current, Ordering::Relaxed);
        }
        let wanted = match wait {
            None if current == 0 => return Ok(true),
            None => 0,
            Some(wait) => {
                let wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX).min(3600 * 1_000_000_000);
                if wait < SHORTEST {
                    return Ok(false);
                }
                // Any value up to `wait` is correct, so keep the current one unless it would wake much too often. A
                // timeout that shrinks with every call, such as the time to the next ping, then costs a system call
                // only when it has halved. The kernel rounds long timeouts up by an eighth, so a value close to
                // `wait` could end after it.
                if (wait / 16..=wait - wait / 4).contains(&current) {
                    return Ok(true);
                }
                wait / 2
            }
        };
        self.inner.set_read_timeout(if wanted == 0 { None } else { Some(Duration::from_nanos(wanted)) })?;
        self.receive_wait.store(wanted, Ordering::Relaxed);
        Ok(true)
    }

    /// Waits until the socket is ready for one of `interest`, or until `deadline`: then nothing is ready. Returns
    /// `Interrupted` after a signal.
    pub fn wait(&self, interest: Readiness, deadline: Option<Instant>) -> io::Result<Readiness> {
        let mut poll = libc::pollfd {
            fd: self.inner.as_raw_fd(),
            events: if interest.readable { libc::POLLIN } else { 0 }
                | if interest.writable { libc::POLLOUT } else { 0 },
            revents: 0,
        };
        poll_until(&mut poll, deadline)?;
        let failed = poll.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
        Ok(Readiness {
            readable: interest.readable && (failed || poll.revents & libc::POLLIN != 0),
            writable: interest.writable && (failed || poll.revents & libc::POLLOUT != 0),
        })
    }

    /// Returns the number of bytes received and not read; 0 if the system does not report it.
    #[must_use]
    pub fn unread(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.inner).unwrap_or(0)
    }

    /// Returns the number of bytes sent that the peer has not acknowledged (tcp(7), unix(7)); 0 if not reported.
    #[must_use]
    pub fn unacknowledged(&self) -> u64 {
        unacknowledged(self.raw())
    }

    /// Ends both directions of TCP, which wakes every thread that is blocked in a call on this socket.
    pub fn shutdown(&self) {
        let _ = self.inner.shutdown(std::net::Shutdown::Both); // it fails if the connection is over already
    }

    /// Ends our direction of TCP.
    pub fn shutdown_write(&self) {
        let _ = self.inner.shutdown(std::net::Shutdown::Write);
    }

    /// Returns the descriptor, which the caller then owns.
    #[must_use]
    pub fn into_descriptor(self) -> OwnedFd {
        self.inner.into()
    }

    /// Returns the number of the descriptor, for `fileno()` and event loops.
    #[must_use]
    pub fn raw(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

/// Returns the number of bytes sent on the socket with this descriptor that its peer has not acknowledged; 0 if the
/// descriptor is closed, or the system does not report it.
#[cfg(target_os = "linux")]
#[must_use]
pub fn unacknowledged(descriptor: RawFd) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (which has the number of TIOCOUTQ) writes one `int` to where the pointer points. A number that is
    // no descriptor is an error.
    let result = unsafe { libc::ioctl(descriptor, libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { u64::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// Returns 0: this system does not report the number.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn unacknowledged(_descriptor: RawFd) -> u64 {
    0
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn poll_until(poll: &mut libc::pollfd, deadline: Option<Instant>) -> io::Result<()> {
    let timeout = deadline.map(|deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        libc::timespec { tv_sec: left.as_secs() as libc::time_t, tv_nsec: left.subsec_nanos() as libc::c_long }
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `poll` is one valid pollfd, `timeout` is null or lives until the call returns, the signal mask
    // is not changed.
    check(unsafe { libc::ppoll(poll, 1, timeout, std::ptr::null()) })
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn poll_until(poll: &mut libc::pollfd, deadline: Option<Instant>) -> io::Result<()> {
    // Rounded up to a millisecond: the caller reads the clock afterwards.
    let timeout = deadline.map_or(-1, |deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    });
    // SAFETY: `poll` is one valid pollfd.
    check(unsafe { libc::poll(poll, 1, timeout) })
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
