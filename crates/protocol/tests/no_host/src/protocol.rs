//! A function that calls every part of the protocol crate.

use wirespeed_protocol::deflate::{Config as DeflateConfig, Params};
use wirespeed_protocol::handshake::{
    ClientHandshake, ClientRequest, ConnectHandshake, ConnectRequest, HeaderList, Limits as HeadLimits, Progress,
    ServerConfig, ServerHandshake,
};
use wirespeed_protocol::{CloseCode, Config, Connection, Delivery, Event, Limits, MessageKind, Payload, Side, utf8};

/// Runs a connection of each side with `len` bytes at `bytes`. The result keeps the compiler from removing the calls.
///
/// # Safety
///
/// `bytes` is valid for reads and writes of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wirespeed_no_host(bytes: *mut u8, len: usize) -> usize {
    // SAFETY: the caller guarantees it.
    let input = unsafe { core::slice::from_raw_parts_mut(bytes, len) };
    let mut sum = usize::from(utf8::validate(input).is_ok());
    let deflate = handshakes(input, &mut sum);
    for side in [Side::Client, Side::Server] {
        sum += messages(side, deflate, input);
    }
    sum
}

fn handshakes(input: &[u8], sum: &mut usize) -> Option<Params> {
    let limits = HeadLimits::default();
    let mut deflate = None;
    let mut request = ClientRequest::new("example.com", "/");
    request.deflate = Some(DeflateConfig::client());
    if let Ok(mut client) = ClientHandshake::new(&request, [7; 16], limits) {
        let config = ServerConfig { deflate: Some(DeflateConfig::server()), subprotocols: Vec::new() };
        let mut server = ServerHandshake::new(config, limits);
        let _ = server.receive(&client.request_bytes());
        match server.accept(server.select_subprotocol(), &HeaderList::new()) {
            Ok(accepted) => {
                if let Ok(Progress::Complete { consumed, output }) = client.receive(&accepted.response.to_bytes()) {
                    *sum += consumed;
                    deflate = output.deflate;
                }
            }
            Err(error) => *sum += server.reject_error(&error).to_bytes().len(),
        }
        let _ = client.receive(input);
    }
    if let Ok(mut tunnel) = ConnectHandshake::new(&ConnectRequest::new("example.com:443"), limits) {
        *sum += usize::from(tunnel.receive(input).is_ok());
    }
    deflate
}

fn messages(side: Side, deflate: Option<Params>, input: &mut [u8]) -> usize {
    let mut connection: Connection = Connection::new(Config { side, limits: Limits::default(), deflate });
    let key = || [1, 2, 3, 4];
    let mut out = Vec::new();
    for kind in [MessageKind::Text, MessageKind::Binary] {
        let _ = connection.send_message(kind, input, None, key, &mut out);
        let _ = connection.send_first_fragment(kind, input, Some(true), key, &mut out);
        let _ = connection.send_fragment(input, true, key, &mut out);
    }
    let _ = connection.send_ping(b"", key, &mut out);
    connection.set_delivery(Delivery::Fragments);
    let mut sum = out.len();
    let mut rest = input;
    loop {
        match connection.receive(&mut rest) {
            Ok(Some(Event::Message { payload, .. } | Event::Fragment { payload, .. })) => {
                sum += match payload {
                    Payload::Slice(slice) => slice.len(),
                    Payload::Buffer(buffer) => buffer.len(),
                };
            }
            Ok(Some(Event::Ping(payload))) => {
                let _ = connection.send_pong(payload.as_slice(), key, &mut out);
            }
            Ok(Some(Event::Close(_))) => connection.send_close_reply(key, &mut out),
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(_) => {
                connection.send_fault(key, &mut out);
                break;
            }
        }
    }
    if let Some(destination) = connection.take_destination(1) {
        // SAFETY: no byte was written.
        sum += usize::from(unsafe { connection.put_destination(destination, 0) }.is_ok());
    }
    let _ = connection.send_close(Some(CloseCode::NORMAL_CLOSURE), "", key, &mut out);
    connection.send_failure(CloseCode::INTERNAL_ERROR, "", key, &mut out);
    connection.release_idle();
    sum + out.len()
}
