//! Helpers of the driver's tests: certificates, socket pairs, a host without an interpreter.

#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)] // each test file uses a part

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use wirespeed_driver::blocking::Host;
use wirespeed_driver::protocol::{Config, Connection, Limits, MessageKind, Payload, Side};
use wirespeed_driver::socket::Socket;
use wirespeed_driver::tls::{Layer, RustlsLayer, client, server};
use wirespeed_driver::{Endpoint, Keepalive};

/// Returns both ends of a stream, each with a send buffer of about `size` bytes.
pub fn sockets(size: Option<usize>) -> (Socket, Socket) {
    let (left, right) = UnixStream::pair().unwrap();
    let wrap = |stream: UnixStream| {
        let socket = Socket::new(OwnedFd::from(stream));
        if let Some(size) = size {
            socket.options().set_send_buffer_size(size).unwrap();
        }
        socket
    };
    (wrap(left), wrap(right))
}

/// Returns an endpoint without compression, message limit and keepalive.
pub fn endpoint(side: Side, layer: Option<Box<dyn Layer>>) -> Endpoint {
    endpoint_with(side, layer, None)
}

/// Returns an endpoint with a keepalive.
pub fn endpoint_with(side: Side, layer: Option<Box<dyn Layer>>, keepalive: Option<Duration>) -> Endpoint {
    endpoint_keeping(side, layer, Keepalive::new(keepalive, keepalive, Instant::now()))
}

fn endpoint_keeping(side: Side, layer: Option<Box<dyn Layer>>, keepalive: Keepalive) -> Endpoint {
    let limits = Limits { message_size: None, ..Limits::default() };
    let connection = Connection::new(Config { limits, ..Config::new(side) });
    Endpoint::new(connection, layer, &[], Vec::new(), keepalive)
}

/// Returns a client's endpoint with this keepalive.
pub fn client_with(keepalive: Keepalive) -> Endpoint {
    endpoint_keeping(Side::Client, None, keepalive)
}

/// Returns a certificate for `name`, its key, and the authority that signed it, as PEM.
pub fn certificate(name: &str) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    static AUTHORITIES: AtomicUsize = AtomicUsize::new(0);
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    let number = AUTHORITIES.fetch_add(1, Ordering::Relaxed);
    params.distinguished_name.push(rcgen::DnType::CommonName, format!("authority {number}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    (certificate.pem().into_bytes(), key.serialize_pem().into_bytes(), authority.pem().into_bytes())
}

/// Returns both ends of TLS, before their handshake.
pub fn layers(versions: &[client::Version]) -> (Box<dyn Layer>, Box<dyn Layer>) {
    let (chain, key, authority) = certificate("localhost");
    let options = client::Options { ca: vec![authority], versions: versions.to_vec(), ..Default::default() };
    let name = client::server_name("localhost").unwrap();
    let client = RustlsLayer::client(options.build().unwrap(), name).unwrap();
    let options = server::Options { certificate: chain, key, versions: versions.to_vec(), ..Default::default() };
    let server = RustlsLayer::server(options.build().unwrap()).unwrap();
    (Box::new(client), Box::new(server))
}

/// One end of a TLS connection, with its incomplete input and its decrypted bytes.
pub struct End {
    pub layer: Box<dyn Layer>,
    pub incoming: Vec<u8>,
    pub plain: Vec<u8>,
}

impl End {
    pub fn new(layer: Box<dyn Layer>) -> Self {
        Self { layer, incoming: Vec::new(), plain: Vec::new() }
    }

    /// Processes received bytes, `step` at a time. Returns the bytes to send.
    pub fn receive(&mut self, bytes: &[u8], step: usize) -> Vec<u8> {
        let mut outgoing = Vec::new();
        if bytes.is_empty() {
            self.layer.receive(&mut [], &mut self.plain, &mut outgoing).unwrap();
        }
        for chunk in bytes.chunks(step) {
            self.incoming.extend_from_slice(chunk);
            let consumed = self.layer.receive(&mut self.incoming, &mut self.plain, &mut outgoing).unwrap();
            self.incoming.drain(..consumed);
        }
        outgoing
    }
}

/// Runs the handshake of two layers, `step` bytes at a time.
pub fn shake_hands(client: &mut End, server: &mut End, step: usize) {
    let mut to_server = client.receive(&[], step);
    while client.layer.is_handshaking() || server.layer.is_handshaking() || !to_server.is_empty() {
        let to_client = server.receive(&to_server, step);
        assert!(!to_client.is_empty() || !to_server.is_empty(), "the handshake is stuck");
        to_server = client.receive(&to_client, step);
    }
}

/// A host without interpreter and signals, whose messages are vectors.
#[derive(Clone, Default)]
pub struct NativeHost {
    /// Number of calls of signal handlers.
    pub interrupts: Arc<AtomicUsize>,
}

impl Host for NativeHost {
    type Buffer = Vec<u8>;
    type Message = Vec<u8>;
    type Interrupt = &'static str;

    fn message(&self, _: MessageKind, payload: Payload<'_, Vec<u8>>, _: bool) -> Result<Vec<u8>, &'static str> {
        Ok(match payload {
            Payload::Slice(slice) => slice.to_vec(),
            Payload::Buffer(buffer) => buffer,
        })
    }

    fn join(&self, _: MessageKind, fragments: Vec<Vec<u8>>) -> Result<Vec<u8>, &'static str> {
        Ok(fragments.concat())
    }

    fn wait<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        f()
    }

    fn check_interrupt(&self) -> Result<(), &'static str> {
        self.interrupts.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A [`NativeHost`] that calls functions of the test.
pub struct HookedHost<M, W> {
    /// Called when a message is created, inside the connection's lock.
    pub on_message: M,
    /// Called before every wait, outside the lock.
    pub on_wait: W,
    /// Number of large transfers.
    pub much: AtomicUsize,
}

pub fn hooked<M: Fn() + Sync, W: Fn() + Sync>(on_message: M, on_wait: W) -> HookedHost<M, W> {
    HookedHost { on_message, on_wait, much: AtomicUsize::new(0) }
}

impl<M: Fn() + Sync, W: Fn() + Sync> Host for HookedHost<M, W> {
    type Buffer = Vec<u8>;
    type Message = Vec<u8>;
    type Interrupt = &'static str;

    fn message(&self, kind: MessageKind, payload: Payload<'_, Vec<u8>>, whole: bool) -> Result<Vec<u8>, &'static str> {
        (self.on_message)();
        NativeHost::default().message(kind, payload, whole)
    }

    fn join(&self, kind: MessageKind, fragments: Vec<Vec<u8>>) -> Result<Vec<u8>, &'static str> {
        NativeHost::default().join(kind, fragments)
    }

    fn wait<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        (self.on_wait)();
        f()
    }

    fn run_bulk_io<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.much.fetch_add(1, Ordering::Relaxed);
        f()
    }

    fn before_bulk_io(&self) {
        self.much.fetch_add(1, Ordering::Relaxed);
    }

    fn check_interrupt(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// Waits up to 5 seconds until another thread has made `done` return true.
pub fn until(done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() && begin.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(done(), "the condition was not reached");
}
