//! Opens two connected drivers, with TLS or without. The bytes of the opening handshake arrive in pieces.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use wirespeed_driver::opening::{Carrier, Client, Moved, Plan, Server};
use wirespeed_driver::socket::Socket;
use wirespeed_driver::tls::{Layer, RustlsLayer, client, server};
use wirespeed_driver::{ConnectionDriver, Keepalive};
use wirespeed_protocol::deflate::negotiate;
use wirespeed_protocol::handshake::{ClientHandshake, ClientRequest, HeaderList, Limits as HeadLimits, ServerConfig};
use wirespeed_protocol::{Limits, MessageKind};

use crate::pipe::Pipe;
use crate::support::Rng;

/// The close timeout of the drivers.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval of keepalive pings; their timeout is half of it.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The parameters of the opening handshakes.
pub(crate) struct Choices {
    pub(crate) tls: Option<client::Version>,
    pub(crate) deflate: bool,
    pub(crate) keepalive: bool,
    /// Number of messages that the server sends with its response.
    pub(crate) early: usize,
}

/// Opens a connection. Returns the client's and the server's driver, and the pipe between them.
pub(crate) fn open(choices: &Choices, now: Instant, rng: &mut Rng) -> ([ConnectionDriver<Vec<u8>>; 2], Pipe) {
    let ((client_socket, client_far), (server_socket, server_far)) = (sockets(), sockets());
    let mut pipe = Pipe::new([client_far, server_far]);
    let (client_tls, server_tls) = choices.tls.map(layers).unzip();
    let mut request = ClientRequest::new("localhost", "/");
    request.deflate = choices.deflate.then(negotiate::Config::client);
    let handshake = ClientHandshake::new(&request, [7; 16], HeadLimits::default()).unwrap();
    let plan = Plan { proxy_tls: None, tunnel: None, tls: client_tls, handshake };
    let mut client = (Client::new(plan).unwrap(), Carrier::default(), Some(client_socket));
    let config = ServerConfig { deflate: choices.deflate.then(negotiate::Config::server), ..ServerConfig::default() };
    let server = Server::new(config, HeadLimits::default(), server_tls).unwrap();
    let mut server = Some((server, Carrier::default(), server_socket));
    let interval = choices.keepalive.then_some(KEEPALIVE);
    let keepalive = || Keepalive::new(interval, interval.map(|interval| interval / 2), now);
    let limits = Limits { message_size: None, ..Limits::default() };
    let mut served = None;
    for _ in 0..100_000 {
        if let Some(socket) = &client.2
            && client.1.proceed(&mut client.0, socket).unwrap() == Moved::Done
            && let Some(served) = served.take()
        {
            let (peer, ..) = client.0.finish(limits, keepalive()).unwrap();
            return ([ConnectionDriver::new(peer, client.2, Some(CLOSE_TIMEOUT)), served], pipe);
        }
        if let Some((mut opening, mut carrier, socket)) = server.take() {
            if carrier.proceed(&mut opening, &socket).unwrap() == Moved::Done {
                let response = opening.handshake().accept(None, &HeaderList::default()).unwrap().response;
                let (mut peer, _) = opening.finish(limits, keepalive()).unwrap();
                peer.send_half_mut().send_head(&response.to_bytes());
                let mut driver = ConnectionDriver::new(peer, Some(socket), Some(CLOSE_TIMEOUT));
                for number in 0..choices.early {
                    driver.send_half_mut().send_message(MessageKind::Binary, &early(number), None).unwrap();
                }
                let _ = driver.flush();
                served = Some(driver);
            } else {
                server = Some((opening, carrier, socket));
            }
        }
        if let Some(served) = &mut served {
            let _ = served.flush();
        }
        for from in 0..2 {
            let most = [1, 7, 100, 5000][rng.below(4)];
            pipe.carry(from, most);
        }
    }
    panic!("the opening handshake does not end");
}

/// Returns a message that the server sends with its response.
pub(crate) fn early(number: usize) -> Vec<u8> {
    vec![number as u8; 1 + 1000 * number]
}

/// Returns both ends of a stream with small buffers.
fn sockets() -> (Socket, Socket) {
    let (left, right) = UnixStream::pair().unwrap();
    let wrap = |stream: UnixStream| {
        let socket = Socket::new(OwnedFd::from(stream));
        socket.options().set_send_buffer_size(4096).unwrap();
        socket
    };
    (wrap(left), wrap(right))
}

pub(crate) fn layers(version: client::Version) -> (Box<dyn Layer>, Box<dyn Layer>) {
    static CERTIFICATE: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    static SERVER: OnceLock<Arc<server::ServerConfig>> = OnceLock::new();
    let server = SERVER.get_or_init(|| {
        let (certificate, key) = CERTIFICATE.get_or_init(|| {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
            (made.cert.pem().into_bytes(), made.signing_key.serialize_pem().into_bytes())
        });
        let options =
            server::Options { certificate: certificate.clone(), key: key.clone(), ..server::Options::default() };
        options.build().unwrap()
    });
    // A new configuration each time has no session to resume, so the result of an input depends on no other input.
    let options = client::Options { insecure: true, versions: vec![version], ..client::Options::default() };
    let client = RustlsLayer::client(options.build().unwrap(), client::server_name("localhost").unwrap()).unwrap();
    (Box::new(client), Box::new(RustlsLayer::server(Arc::clone(server)).unwrap()))
}
