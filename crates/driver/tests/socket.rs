//! The options of sockets.

#![allow(clippy::unwrap_used)] // tests fail by panicking

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use wirespeed_driver::socket::{Mode, Socket};

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

/// For a peer that does not read, the kernel buffers little: its receive buffer and the limit of unsent bytes.
#[cfg(target_os = "linux")]
#[test]
fn unsent_bytes_in_the_kernel_are_limited() {
    let (ours, theirs) = pair();
    socket2::SockRef::from(&theirs).set_recv_buffer_size(16 * 1024).unwrap();
    let socket = Socket::new(OwnedFd::from(ours));
    socket.limit_unsent();
    assert_eq!(socket.options().tcp_notsent_lowat().unwrap(), 512 * 1024);
    let mut taken = 0;
    loop {
        match socket.send(&[0; 64 * 1024], Mode::NonBlocking) {
            Ok(sent) => taken += sent,
            Err(error) => break assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
    assert!((256 * 1024..1024 * 1024).contains(&taken), "{taken}");
}

/// A socket may have a receive timeout from its previous owner. It may also be a socket without TCP.
#[test]
fn existing_receive_timeout_is_replaced() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(3600))).unwrap();
    let socket = Socket::new(OwnedFd::from(ours));
    assert!(socket.set_receive_wait(None).unwrap());
    assert_eq!(socket.options().read_timeout().unwrap(), None);
    assert!(socket.set_receive_wait(Some(Duration::from_millis(100))).unwrap());
    let (begin, mut buffer) = (Instant::now(), Vec::with_capacity(10));
    let error = socket.receive(&mut buffer, 10, Mode::Blocking).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    assert!(begin.elapsed() < Duration::from_secs(60));
}

/// A client's socket keeps the system's limit of unsent bytes: see docs/performance.md, "Large streams".
#[cfg(target_os = "linux")]
#[test]
fn client_keeps_the_system_limit_of_unsent_bytes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let usual = socket2::SockRef::from(&listener).tcp_notsent_lowat().unwrap();
    let socket = Socket::connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(socket.options().tcp_notsent_lowat().unwrap(), usual);
}
