//! The opening handshake of a client through a proxy and with TLS. With any response of the proxy, the result equals that
//! of the proxy's and the server's response parsed separately. TLS works with records split and joined anywhere; if bytes
//! are changed, neither end accepts forged data.

use std::time::Instant;

use wirespeed_driver::Keepalive;
use wirespeed_driver::opening::{Client, Error, Opening, Plan, Server, Stage};
use wirespeed_driver::tls::client::Version;
use wirespeed_protocol::handshake::{
    ClientHandshake, ClientRequest, ConnectHandshake, ConnectRequest, HandshakeError, HeaderList, Limits as HeadLimits,
    Progress, ServerConfig,
};
use wirespeed_protocol::{Event, Limits, MessageKind};

use crate::client_head::without_excerpt;
use crate::driver_pair::layers;
use crate::input::{Input, pieces};
use crate::support::{Rng, owned};

const TUNNEL_RESPONSE: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

const UPGRADE_RESPONSE: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Two bytes select the comparison and the pieces. The others are the response of a proxy, or the change of TLS bytes.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let mut rng = Rng::new(u64::from(input.byte()));
    if choice & 1 == 0 { through_a_proxy(choice, input.rest(), &mut rng) } else { under_tls(choice, input, &mut rng) }
}

fn keepalive() -> Keepalive {
    Keepalive::new(None, None, Instant::now())
}

fn handshake() -> ClientHandshake {
    ClientHandshake::new(&ClientRequest::new("example.com", "/chat"), *b"the sample nonce", HeadLimits::default())
        .unwrap()
}

fn tunnel() -> ConnectHandshake {
    ConnectHandshake::new(&ConnectRequest::new("example.com:443"), HeadLimits::default()).unwrap()
}

/// The result of an opening handshake: the messages after the response, or the error.
#[derive(Debug, PartialEq)]
enum Outcome {
    Open(Vec<Vec<u8>>),
    Tunnel(HandshakeError),
    Handshake(HandshakeError),
}

fn through_a_proxy(choice: u8, rest: &[u8], rng: &mut Rng) {
    let bytes = match choice & 6 {
        0 => rest.to_vec(),
        2 => [TUNNEL_RESPONSE, rest].concat(),
        4 => [rest, TUNNEL_RESPONSE, UPGRADE_RESPONSE].concat(),
        _ => [TUNNEL_RESPONSE, UPGRADE_RESPONSE, rest].concat(),
    };
    let whole = opened(Some(tunnel()), [&bytes[..]]);
    assert_eq!(opened(Some(tunnel()), pieces(&bytes, rng)), whole, "in pieces");
    if bytes.len() < 500 {
        assert_eq!(opened(Some(tunnel()), bytes.chunks(1)), whole, "byte by byte");
    }
    let mut separate = tunnel();
    let expected = match separate.receive(&bytes) {
        Ok(Progress::Complete { consumed, output }) => {
            assert!((200..300).contains(&output.status));
            opened(None, [&bytes[consumed..]])
        }
        Ok(Progress::Incomplete) => Outcome::Tunnel(without_excerpt(separate.receive_eof())),
        Err(error) => Outcome::Tunnel(without_excerpt(error)),
    };
    assert_eq!(whole, expected, "{}", bytes.escape_ascii());
}

/// Returns the result of these bytes, after which the stream ends.
fn opened<'a>(tunnel: Option<ConnectHandshake>, pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut client = Client::new(Plan { proxy_tls: None, tunnel, tls: None, handshake: handshake() }).unwrap();
    let outcome = |error| match error {
        Error::Tunnel(error) => Outcome::Tunnel(without_excerpt(error)),
        Error::Handshake(error) => Outcome::Handshake(without_excerpt(error)),
        other => panic!("{other:?}"),
    };
    for piece in pieces {
        if let Err(error) = client.receive(piece) {
            assert_eq!(client.stage(), Stage::Failed);
            return outcome(error);
        }
    }
    if client.stage() != Stage::Done {
        return outcome(client.receive_end(None));
    }
    Outcome::Open(messages(&mut client))
}

/// Returns the messages that a client received after the response.
fn messages(client: &mut Client) -> Vec<Vec<u8>> {
    let (mut peer, handshake, accepted) = client.finish::<Vec<u8>>(Limits::default(), keepalive()).expect("it is done");
    assert_eq!((accepted.response.status, handshake.request().target.as_str()), (101, "/chat"));
    let mut messages = Vec::new();
    while let Some(event) = peer.poll_event() {
        if let Event::Message { payload, .. } = event {
            messages.push(owned(payload));
        }
    }
    messages
}

/// A change of the bytes in one direction.
struct Change {
    from_server: bool,
    at: usize,
    how: u8,
}

fn under_tls(choice: u8, mut input: Input<'_>, rng: &mut Rng) {
    let version = if choice & 2 == 0 { Version::Tls13 } else { Version::Tls12 };
    let (ours, theirs) = layers(version);
    let (outer, mut proxy) = if choice & 4 == 0 { (None, None) } else { Some(layers(version)).unzip() };
    let mut server = Some(Server::new(ServerConfig::default(), HeadLimits::default(), Some(theirs)).unwrap());
    let change = (choice & 8 != 0).then(|| Change {
        from_server: input.byte() & 1 == 0,
        at: usize::from(input.number() & 0x0FFF),
        how: input.byte(),
    });
    let tunnel = outer.is_some().then(tunnel);
    let mut client = Client::new(Plan { proxy_tls: outer, tunnel, tls: Some(ours), handshake: handshake() }).unwrap();
    let (mut passed, mut asked, mut cipher, mut last) = ([0; 2], false, Vec::new(), false);
    for _ in 0..200 {
        let mut there = client.output().take();
        let mut back = Vec::new();
        if let Some(change) = &change {
            apply(change, false, &mut passed[0], &mut there);
        }
        // The proxy's end of the outer layer. Its tunnel leads to the server.
        if let Some(layer) = &mut proxy {
            let mut plain = Vec::new();
            cipher.extend(there);
            match layer.receive(&mut cipher, &mut plain, &mut back) {
                Ok(taken) => drop(cipher.drain(..taken)),
                Err(_) => return, // because of the change
            }
            there = plain;
            if !asked && there.ends_with(b"\r\n\r\n") {
                assert!(there.starts_with(b"CONNECT example.com:443 HTTP/1.1\r\n"));
                (asked, there) = (true, Vec::new());
                layer.send(&mut [], TUNNEL_RESPONSE, &mut back).unwrap();
            }
        }
        let mut answer = Vec::new();
        if let Some(mut opening) = server.take() {
            for piece in pieces(&there, rng) {
                if opening.receive(piece).is_err() {
                    break;
                }
            }
            answer = opening.output().take();
            if opening.stage() == Stage::Done {
                assert_eq!(
                    opening.handshake().request().map(|request| request.target.as_str()),
                    Some("/chat"),
                    "the request is unchanged"
                );
                let (mut peer, handshake) = opening.finish::<Vec<u8>>(Limits::default(), keepalive()).unwrap();
                peer.send_half_mut()
                    .send_head(&handshake.accept(None, &HeaderList::default()).unwrap().response.to_bytes());
                peer.send_half_mut().send_message(MessageKind::Text, b"welcome", None).unwrap();
                answer.extend(peer.send_half_mut().take_output());
                last = true;
            } else {
                server = Some(opening);
            }
        }
        if let Some(layer) = &mut proxy
            && !answer.is_empty()
        {
            layer.send(&mut [], &std::mem::take(&mut answer), &mut back).unwrap();
        }
        back.extend(answer);
        if let Some(change) = &change {
            apply(change, true, &mut passed[1], &mut back);
        }
        for piece in pieces(&back, rng) {
            if client.receive(piece).is_err() {
                assert!(change.is_some(), "nothing was changed");
                return;
            }
        }
        if client.stage() == Stage::Done {
            let messages = messages(&mut client);
            assert!(messages.is_empty() && change.is_some() || messages == [b"welcome"], "{messages:?}");
            return;
        }
        if there.is_empty() && back.is_empty() && client.output().is_empty() {
            break;
        }
    }
    assert!(change.is_some(), "the handshake is stuck in {:?}, {last}", client.stage());
}

fn apply(change: &Change, from_server: bool, passed: &mut usize, bytes: &mut Vec<u8>) {
    let start = *passed;
    *passed += bytes.len();
    if change.from_server != from_server || !(start..*passed).contains(&change.at) {
        return;
    }
    let at = change.at - start;
    match change.how % 11 {
        bit @ 0..8 => bytes[at] ^= 1 << bit,
        8 => drop(bytes.remove(at)),
        9 => bytes.insert(at, change.how),
        _ => bytes.truncate(at),
    }
}
