//! Opening handshakes of clients and servers: input in pieces of any size, tunnels, TLS, rejections, the end of the
//! stream.

#![allow(clippy::unwrap_used, clippy::panic)] // tests fail by panicking

mod support;

use std::io;
use std::time::{Duration, Instant};

use support::{NativeHost, layers, sockets};
use wirespeed_driver::Keepalive;
use wirespeed_driver::opening::{Carrier, Client, Error, Moved, Opening, Plan, Server, Stage, Stop, complete};
use wirespeed_driver::protocol::handshake::client::{ClientHandshake, ClientRequest};
use wirespeed_driver::protocol::handshake::connect::{ConnectHandshake, ConnectRequest};
use wirespeed_driver::protocol::handshake::{HandshakeError, HeaderList, Limits as HeadLimits, ServerConfig};
use wirespeed_driver::protocol::{Event, Limits, MessageKind, Payload};
use wirespeed_driver::socket::{Mode, Readiness, Socket};
use wirespeed_driver::tls::Layer;

type Layers = (Box<dyn Layer>, Box<dyn Layer>);

fn keepalive() -> Keepalive {
    Keepalive::new(None, None, Instant::now())
}

fn handshake() -> ClientHandshake {
    let request = ClientRequest::new("example.com", "/chat");
    ClientHandshake::new(&request, [7; 16], HeadLimits::default()).unwrap()
}

fn client(tls: Option<Box<dyn Layer>>) -> Client {
    Client::new(Plan { proxy_tls: None, tunnel: None, tls, handshake: handshake() }).unwrap()
}

fn server(tls: Option<Box<dyn Layer>>) -> Server {
    Server::new(ServerConfig::default(), HeadLimits::default(), tls).unwrap()
}

fn pair(layers: Option<Layers>) -> (Client, Server) {
    let (ours, theirs) = layers.map_or((None, None), |(ours, theirs)| (Some(ours), Some(theirs)));
    (client(ours), server(theirs))
}

/// Moves bytes in both directions, `step` at a time, until neither end has output.
fn exchange(client: &mut impl Opening, server: &mut impl Opening, step: usize) {
    loop {
        let (there, back) = (client.output().take(), server.output().take());
        if there.is_empty() && back.is_empty() {
            return;
        }
        there.chunks(step).for_each(|piece| server.receive(piece).unwrap());
        back.chunks(step).for_each(|piece| client.receive(piece).unwrap());
    }
}

/// Returns the bytes of a server's response and of a first message.
fn answer(server: Server) -> Vec<u8> {
    let (mut endpoint, handshake) = server.finish::<Vec<u8>>(Limits::default(), keepalive()).unwrap();
    let accepted = handshake.accept(None, &HeaderList::default()).unwrap();
    endpoint.send_half_mut().send_head(&accepted.response.to_bytes());
    endpoint.send_half_mut().send_message(MessageKind::Text, b"welcome", None).unwrap();
    endpoint.send_half_mut().take_output()
}

/// Returns the first message that a client receives.
fn first_message(client: &mut Client) -> Vec<u8> {
    let (mut endpoint, handshake, accepted) = client.finish::<Vec<u8>>(Limits::default(), keepalive()).unwrap();
    assert_eq!(handshake.request().target, "/chat");
    assert_eq!(accepted.response.status, 101);
    match endpoint.poll_event() {
        Some(Event::Message { payload: Payload::Slice(slice), .. }) => slice.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn input_may_arrive_in_pieces_of_any_size() {
    for step in [1, 2, 3, 7, 100, 100_000] {
        for tls in [false, true] {
            let (mut client, mut server) = pair(tls.then(|| layers(&[])));
            assert_eq!(client.stage(), if tls { Stage::Tls } else { Stage::Handshake });
            assert_eq!(server.stage(), if tls { Stage::Tls } else { Stage::Handshake });
            exchange(&mut client, &mut server, step);
            assert_eq!((client.stage(), server.stage()), (Stage::Handshake, Stage::Done));
            assert_eq!(server.handshake().request().unwrap().target, "/chat");
            answer(server).chunks(step).for_each(|piece| client.receive(piece).unwrap());
            assert_eq!(client.stage(), Stage::Done);
            assert_eq!(first_message(&mut client), b"welcome");
            assert!(client.finish::<Vec<u8>>(Limits::default(), keepalive()).is_none(), "it can finish only once");
        }
    }
}

#[test]
fn pending_tls_records_are_sent_with_the_response() {
    // For example the session tickets of TLS 1.3, which are still in the output of the opening.
    let (mut client, mut server) = pair(Some(layers(&[])));
    while server.stage() != Stage::Done {
        server.receive(&client.output().take()).unwrap();
        if server.stage() != Stage::Done {
            client.receive(&server.output().take()).unwrap();
        }
    }
    client.receive(&answer(server)).unwrap();
    assert_eq!(first_message(&mut client), b"welcome");
}

fn tunnelled(proxy_tls: Option<Box<dyn Layer>>, tls: Option<Box<dyn Layer>>) -> Client {
    let tunnel = ConnectHandshake::new(&ConnectRequest::new("example.com:443"), HeadLimits::default()).unwrap();
    Client::new(Plan { proxy_tls, tunnel: Some(tunnel), tls, handshake: handshake() }).unwrap()
}

#[test]
fn client_opens_through_a_tunnel() {
    for step in [1, 1000] {
        let (ours, theirs) = layers(&[]);
        let (mut client, mut server) = (tunnelled(None, Some(ours)), server(Some(theirs)));
        assert_eq!(client.stage(), Stage::Tunnel);
        let request = String::from_utf8(client.output().take()).unwrap();
        assert!(request.starts_with("CONNECT example.com:443 HTTP/1.1\r\n"), "{request}");
        let response = b"HTTP/1.1 200 OK\r\n\r\n";
        response.chunks(step).for_each(|piece| client.receive(piece).unwrap());
        assert_eq!(client.stage(), Stage::Tls);
        exchange(&mut client, &mut server, step);
        client.receive(&answer(server)).unwrap();
        assert_eq!(first_message(&mut client), b"welcome");
    }
}

#[test]
fn client_opens_through_a_tunnel_with_tls_to_the_proxy() {
    let (outer, theirs) = layers(&[]);
    let (inner, innermost) = layers(&[]);
    let mut client = tunnelled(Some(outer), Some(inner));
    assert_eq!(client.stage(), Stage::ProxyTls);
    // The test is the proxy, with the other end of the outer layer. It forwards to the server.
    let mut proxy = support::End::new(theirs);
    let mut server = server(Some(innermost));
    let mut asked = false;
    for _ in 0..20 {
        let mut back = proxy.receive(&client.output().take(), 5);
        let plain = std::mem::take(&mut proxy.plain);
        let reply = if !asked && plain.ends_with(b"\r\n\r\n") {
            asked = true;
            b"HTTP/1.1 200 OK\r\n\r\n".to_vec()
        } else if plain.is_empty() {
            Vec::new()
        } else {
            server.receive(&plain).unwrap();
            server.output().take()
        };
        if !reply.is_empty() {
            proxy.layer.send(&mut proxy.incoming, &reply, &mut back).unwrap();
        }
        if !back.is_empty() {
            client.receive(&back).unwrap();
        }
        if server.stage() == Stage::Done {
            let mut wire = Vec::new();
            proxy.layer.send(&mut proxy.incoming, &answer(server), &mut wire).unwrap();
            client.receive(&wire).unwrap();
            assert_eq!(first_message(&mut client), b"welcome");
            return;
        }
    }
    panic!("it is stuck in {:?}", client.stage());
}

#[test]
fn rejection_is_reported_at_any_end() {
    let refused = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\nno";
    // The body is complete, or the stream ends first, or the deadline passes.
    let ends: [fn(&mut Client) -> Error; 4] = [
        |client| client.receive(b"pe").unwrap_err(),
        |client| client.receive_end(None),
        |client| client.receive_end(Some(io::ErrorKind::ConnectionReset.into())),
        |client| client.give_up().unwrap(),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let mut client = client(None);
        assert!(!client.is_refused());
        client.receive(refused).unwrap();
        assert!(client.is_refused());
        let Error::Handshake(HandshakeError::Rejected(response)) = end(&mut client) else { panic!("{number}") };
        assert_eq!((response.status, &response.body[..2]), (403, &b"no"[..]));
    }
    let mut client = tunnelled(None, None);
    let error = client.receive(b"HTTP/1.1 407 Authenticate\r\nContent-Length: 0\r\n\r\n").unwrap_err();
    assert!(matches!(error, Error::Tunnel(HandshakeError::Rejected(_))), "{error}");
    assert!(error.to_string().starts_with("the proxy made no tunnel: "), "{error}");
    assert_eq!(client.stage(), Stage::Failed);
}

#[test]
fn rejection_of_a_tunnel_is_reported_at_any_end() {
    let ends: [fn(&mut Client) -> Error; 3] = [
        |client| client.receive_end(None),
        |client| client.receive_end(Some(io::ErrorKind::ConnectionReset.into())),
        |client| client.give_up().unwrap(),
    ];
    for end in ends {
        let mut client = tunnelled(None, None);
        client.receive(b"HTTP/1.1 407 Authenticate\r\nContent-Length: 4\r\n\r\nno").unwrap();
        assert!(client.is_refused());
        assert!(matches!(end(&mut client), Error::Tunnel(HandshakeError::Rejected(_))));
        assert_eq!(client.stage(), Stage::Failed);
    }
}

#[test]
fn tls_error_inside_the_response() {
    let refused = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 10\r\n\r\nno";
    for (text, is_refusal) in [(&b"HTTP/1.1 101 Swi"[..], false), (refused, true)] {
        for together in [true, false] {
            let (ours, theirs) = layers(&[]);
            let (mut client, mut server) = (client(Some(ours)), support::End::new(theirs));
            while client.stage() == Stage::Tls || server.layer.is_handshaking() {
                let back = server.receive(&client.output().take(), 1000);
                client.receive(&back).unwrap();
            }
            let (mut wire, mut forged) = (Vec::new(), Vec::new());
            server.layer.send(&mut [], text, &mut wire).unwrap();
            server.layer.send(&mut [], b"x", &mut forged).unwrap();
            *forged.last_mut().unwrap() ^= 1;
            let error = if together {
                client.receive(&[wire, forged].concat()).unwrap_err()
            } else {
                client.receive(&wire).unwrap();
                client.receive(&forged).unwrap_err()
            };
            match error {
                Error::Tls(_) => assert!(!is_refusal, "{together}"),
                Error::Handshake(HandshakeError::Rejected(_)) => assert!(is_refusal, "{together}"),
                other => panic!("{together}: {other}"),
            }
            assert_eq!(client.stage(), Stage::Failed);
        }
    }
}

#[test]
fn tls_error_after_the_response_does_not_fail_the_opening() {
    let (mut client, mut server) = pair(Some(layers(&[])));
    exchange(&mut client, &mut server, 1000);
    let mut bytes = answer(server);
    bytes.extend_from_slice(&[23, 3, 3, 0, 32]); // a forged record
    bytes.extend_from_slice(&[0; 32]);
    client.receive(&bytes).unwrap();
    assert_eq!(first_message(&mut client), b"welcome");
}

#[test]
fn end_of_stream_is_an_error_of_the_current_stage() {
    for sent in [&b""[..], b"HTTP/1.1 101 Swi"] {
        let mut client = client(None);
        client.receive(sent).unwrap();
        let error = client.receive_end(None);
        assert!(matches!(error, Error::Handshake(HandshakeError::ConnectionClosed { .. })), "{error}");
    }
    let mut client = client(Some(layers(&[]).0));
    assert!(matches!(client.receive_end(None), Error::Tls(_)));
    let mut client = self::client(None);
    client.receive(b"HTTP/1.1 101 Swi").unwrap();
    assert!(client.give_up().is_none());
    assert_eq!(client.stage(), Stage::Failed);
    let mut client = self::client(None);
    let error = client.receive_end(Some(io::ErrorKind::ConnectionReset.into()));
    assert!(matches!(error, Error::Io(_)), "{error}");
    assert!(client.finish::<Vec<u8>>(Limits::default(), keepalive()).is_none());
}

#[test]
fn tls_error_sends_an_alert() {
    // The client trusts another authority than the server's.
    let ((ours, _), (_, theirs)) = (layers(&[]), layers(&[]));
    let (mut client, mut server) = pair(Some((ours, theirs)));
    server.receive(&client.output().take()).unwrap();
    let error = client.receive(&server.output().take()).unwrap_err();
    assert!(matches!(error, Error::Tls(_)), "{error}");
    let alert = client.output().take();
    assert!(!alert.is_empty());
    assert!(matches!(server.receive(&alert).unwrap_err(), Error::Tls(_)));
    assert_eq!((client.stage(), server.stage()), (Stage::Failed, Stage::Failed));
}

#[test]
fn malformed_request_is_answered_once() {
    let mut server = server(None);
    let error = server.receive(b"\x16\x03\x01 what?\r\n\r\n").unwrap_err();
    assert!(matches!(error, Error::Handshake(_)), "{error}");
    let response = server.handshake().reject_error(server.fault().unwrap());
    assert_eq!(response.status, 400);
    server.refuse(&response);
    assert!(server.fault().is_none(), "it is reported once");
    assert!(server.output().take().starts_with(b"HTTP/1.1 400"));
    server.receive(b"and more").unwrap();
    assert!(server.output().is_empty());
    assert!(server.finish::<Vec<u8>>(Limits::default(), keepalive()).is_none());
    let mut server = self::server(None);
    assert!(server.give_up().is_none());
    assert_eq!(server.stage(), Stage::Failed);
    // After the end of the stream there is no response to send.
    for sent in [&b""[..], b"GET / HT"] {
        let mut server = self::server(None);
        server.receive(sent).unwrap();
        assert!(matches!(server.receive_end(None), Error::Handshake(HandshakeError::ConnectionClosed { .. })));
        assert!(server.fault().is_none());
    }
}

// Over sockets

/// Runs both ends in turn until the server has the request.
fn carry(client: &mut Client, server: &mut Server, sockets: &(Socket, Socket)) -> (Carrier, Carrier) {
    let (mut ours, mut theirs) = (Carrier::default(), Carrier::default());
    loop {
        let waits = ours.proceed(client, &sockets.0).unwrap();
        assert!(matches!(waits, Moved::Waits(_)), "{waits:?}");
        if theirs.proceed(server, &sockets.1).unwrap() == Moved::Done {
            return (ours, theirs);
        }
    }
}

#[test]
fn carrier_completes_without_blocking() {
    for tls in [false, true] {
        let sockets = sockets(None);
        let (mut client, mut server) = pair(tls.then(|| layers(&[])));
        let (mut carrier, theirs) = carry(&mut client, &mut server, &sockets);
        assert!(theirs.received() > 100);
        let bytes = answer(server);
        assert_eq!(sockets.1.send(&bytes, Mode::NonBlocking).unwrap(), bytes.len());
        assert_eq!(carrier.proceed(&mut client, &sockets.0).unwrap(), Moved::Done);
        assert!(carrier.received() >= bytes.len() && (tls || carrier.received() == bytes.len()));
        assert_eq!(first_message(&mut client), b"welcome");
    }
}

#[test]
fn rejecting_server_waits_for_the_client_to_close() {
    let sockets = sockets(None);
    let (mut client, mut server) = pair(None);
    let (mut ours, mut theirs) = carry(&mut client, &mut server, &sockets);
    let response = server.handshake().reject(404, &HeaderList::default(), b"not here").unwrap();
    server.refuse(&response);
    sockets.0.send(b"input during the rejection", Mode::NonBlocking).unwrap();
    assert!(matches!(theirs.proceed(&mut server, &sockets.1).unwrap(), Moved::Waits(_)), "it waits for the other end");
    let error = ours.proceed(&mut client, &sockets.0).unwrap_err();
    assert!(matches!(error, Error::Handshake(HandshakeError::Rejected(_))), "{error}");
    let end = sockets.0.receive(&mut Vec::with_capacity(1), 1, Mode::NonBlocking);
    assert_eq!(end.unwrap(), 0, "the server has shut down its direction");
    drop(sockets.0);
    assert_eq!(theirs.proceed(&mut server, &sockets.1).unwrap(), Moved::Over);
}

#[test]
fn response_before_a_write_error_is_reported() {
    // A proxy that rejects the request and closes, so the write fails.
    let (ours, theirs) = sockets(None);
    theirs.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", Mode::NonBlocking).unwrap();
    drop(theirs);
    let error = Carrier::default().proceed(&mut tunnelled(None, None), &ours).unwrap_err();
    assert!(matches!(error, Error::Tunnel(HandshakeError::Rejected(_))), "{error}");
    // A proxy that closes without a response: the error is that of the write.
    let (ours, theirs) = sockets(None);
    drop(theirs);
    let error = Carrier::default().proceed(&mut client(None), &ours).unwrap_err();
    assert!(matches!(&error, Error::Io(error) if error.kind() == io::ErrorKind::BrokenPipe), "{error:?}");
}

#[test]
fn large_rejection_is_written_completely() {
    // The response is larger than the buffer of the socket.
    let sockets = sockets(Some(4096));
    let (mut client, mut server) = pair(None);
    let (_, mut theirs) = carry(&mut client, &mut server, &sockets);
    let body = vec![b'x'; 500_000];
    server.refuse(&server.handshake().reject(404, &HeaderList::default(), &body).unwrap());
    let mut received = Vec::with_capacity(1_000_000);
    for turn in 0..10_000 {
        let moved = theirs.proceed(&mut server, &sockets.1).unwrap();
        if turn == 0 {
            assert_eq!(moved, Moved::Waits(Readiness { readable: true, writable: true }));
        }
        if matches!(sockets.0.receive(&mut received, usize::MAX, Mode::NonBlocking), Ok(0)) {
            break;
        }
    }
    assert!(received.ends_with(&body));
}

#[test]
fn one_edge_may_announce_room_and_a_response() {
    // The request is larger than the buffer of the socket, and the response arrives before all of it is written. An
    // edge-triggered epoll reports both in one event, and only once.
    let (ours, theirs) = sockets(Some(4096));
    let mut headers = HeaderList::new();
    headers.push("X-Long", "x".repeat(100_000)).unwrap();
    let request = ClientRequest { headers, ..ClientRequest::new("example.com", "/chat") };
    let handshake = ClientHandshake::new(&request, [7; 16], HeadLimits::default()).unwrap();
    let mut client = Client::new(Plan { proxy_tls: None, tunnel: None, tls: None, handshake }).unwrap();
    let mut carrier = Carrier::default();
    let blocked = Moved::Waits(Readiness { readable: true, writable: true });
    assert_eq!(carrier.proceed(&mut client, &ours).unwrap(), blocked);
    theirs.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", Mode::NonBlocking).unwrap();
    let _ = theirs.receive(&mut Vec::with_capacity(1_000_000), usize::MAX, Mode::NonBlocking).unwrap();
    let error = carrier.proceed(&mut client, &ours).unwrap_err();
    assert!(matches!(error, Error::Handshake(HandshakeError::Rejected(_))), "{error}");
}

#[test]
fn rejection_is_over_when_the_client_closes() {
    for is_read in [false, true] {
        let sockets = sockets(None);
        let (mut client, mut server) = pair(None);
        let (_, mut theirs) = carry(&mut client, &mut server, &sockets);
        server.refuse(&server.handshake().reject(404, &HeaderList::default(), b"not here").unwrap());
        assert!(matches!(theirs.proceed(&mut server, &sockets.1).unwrap(), Moved::Waits(_)));
        if is_read {
            let read = || sockets.0.receive(&mut Vec::with_capacity(1000), 1000, Mode::NonBlocking).unwrap();
            assert!(read() > 0);
            assert_eq!(read(), 0);
        }
        drop(sockets.0);
        assert_eq!(theirs.proceed(&mut server, &sockets.1).unwrap(), Moved::Over);
    }
}

#[test]
fn socket_error_fails_the_opening() {
    // The other end closes with unread bytes, which resets the connection.
    let (ours, theirs) = sockets(None);
    let (mut client, mut carrier) = (client(None), Carrier::default());
    let waits = Moved::Waits(Readiness { readable: true, writable: false });
    assert_eq!(carrier.proceed(&mut client, &ours).unwrap(), waits);
    drop(theirs);
    let error = carrier.proceed(&mut client, &ours).unwrap_err();
    assert!(matches!(&error, Error::Io(error) if error.kind() == io::ErrorKind::ConnectionReset), "{error:?}");
}

#[test]
fn threads_can_wait_for_completion() {
    let (ours, theirs) = sockets(None);
    let (mut client, mut server) = pair(Some(layers(&[])));
    let host = NativeHost::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Some(Instant::now() + Duration::from_secs(20));
            complete(&mut server, &theirs, &NativeHost::default(), deadline).unwrap();
            theirs.send(&answer(server), Mode::Blocking).unwrap();
        });
        complete(&mut client, &ours, &host, Some(Instant::now() + Duration::from_secs(20))).unwrap();
    });
    assert_eq!(first_message(&mut client), b"welcome");
}

#[test]
fn deadline_names_the_stage() {
    let (ours, theirs) = sockets(None);
    let host = NativeHost::default();
    let soon = || Some(Instant::now() + Duration::from_millis(20));
    let stop = complete(&mut client(Some(layers(&[]).0)), &ours, &host, soon()).unwrap_err();
    assert!(matches!(stop, Stop::TimedOut(Stage::Tls)), "{stop:?}");
    let stop = complete(&mut client(None), &ours, &host, soon()).unwrap_err();
    assert!(matches!(stop, Stop::TimedOut(Stage::Handshake)), "{stop:?}");
    // A rejection with an incomplete body is still reported as a rejection.
    theirs.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 10\r\n\r\nno", Mode::NonBlocking).unwrap();
    let stop = complete(&mut client(None), &ours, &host, soon()).unwrap_err();
    assert!(matches!(stop, Stop::Failed(Error::Handshake(HandshakeError::Rejected(_)))), "{stop:?}");
}
