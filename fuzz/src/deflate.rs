//! Compression and decompression, compared with zlib in C; also of any bytes as compressed data.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use wirespeed_protocol::deflate::Params;
use wirespeed_protocol::{Fault, Limits, MessageKind, Side};

use crate::input::{Input, pieces};
use crate::support::inflate::TAIL;
use crate::support::{Frame, Rng, Seen, connection_with, feed, feed_all, to};

const LIMITS: Limits = Limits { message_size: None, fragment_size: None, fragments: None };
const BINARY: MessageKind = MessageKind::Binary;

/// The first byte selects the comparison, the next ones the settings.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.byte();
    let no_context_takeover = choice & 4 != 0;
    let bits = 8 + input.below(8);
    let params = Params {
        local_no_context_takeover: no_context_takeover,
        remote_no_context_takeover: no_context_takeover,
        local_window_bits: bits,
        remote_window_bits: bits,
        level: input.below(10),
        memory_level: 1 + input.below(9),
        threshold: 0,
    };
    match choice & 3 {
        0 | 1 => {
            let mut messages = Vec::new();
            while !input.is_empty() && messages.len() < 8 {
                messages.push(input.payload());
            }
            if choice & 1 == 0 { compressing(params, &messages) } else { decompressing(params, &messages) }
        }
        2 => any_bytes(no_context_takeover, &[input.rest()]),
        _ => {
            let payloads: Vec<Vec<u8>> = (0..3).map(|_| input.payload()).collect();
            any_bytes(no_context_takeover, &payloads.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    }
}

/// Our codec compresses, and zlib decompresses with the negotiated window, or with 9 bits for 8.
fn compressing(params: Params, messages: &[Vec<u8>]) {
    let mut sender = connection_with(Side::Server, LIMITS, Some(params));
    let mut zlib = Decompress::new_with_window_bits(false, params.local_window_bits.max(9));
    for message in messages {
        let mut out = Vec::new();
        sender.send_message(BINARY, message, Some(true), || unreachable!(), &mut out).unwrap();
        let frame = Frame::decode_all(&out).remove(0);
        if frame.rsv == 0 {
            assert_eq!(frame.payload, *message);
            continue;
        }
        let bytes = [&frame.payload[..], &TAIL].concat();
        assert_eq!(zlib_inflate(&mut zlib, &bytes).as_ref(), Ok(message));
        if params.local_no_context_takeover {
            zlib.reset(false);
        }
    }
}

/// zlib compresses, and our codec decompresses in pieces.
fn decompressing(params: Params, messages: &[Vec<u8>]) {
    let mut receiver = connection_with(Side::Client, LIMITS, Some(params));
    let level = Compression::new(u32::from(params.level));
    let mut zlib = Compress::new_with_window_bits(level, false, params.remote_window_bits.max(9));
    let mut rng = Rng::new(messages.len() as u64);
    for message in messages {
        let mut compressed = zlib_deflate(&mut zlib, message);
        assert!(compressed.ends_with(&TAIL));
        compressed.truncate(compressed.len() - TAIL.len());
        let bytes = to(Side::Client, Frame::binary(&compressed).rsv(4));
        let events = feed_all(&mut receiver, pieces(&bytes, &mut rng));
        assert_eq!(events, [Seen::binary(message)]);
        if params.remote_no_context_takeover {
            zlib.reset();
        }
    }
}

/// Decompresses any bytes: our codec and zlib deliver the same messages, and both reject the same input. A message that
/// exceeds our limit is as large with zlib.
fn any_bytes(no_context_takeover: bool, payloads: &[&[u8]]) {
    const MOST: usize = 1 << 20;
    let limits = Limits { message_size: Some(MOST), ..LIMITS };
    let params = Params {
        local_no_context_takeover: no_context_takeover,
        remote_no_context_takeover: no_context_takeover,
        // With a smaller window the results may differ, as zlib may keep more bytes.
        local_window_bits: 15,
        remote_window_bits: 15,
        level: 6,
        memory_level: 8,
        threshold: 0,
    };
    let make = || connection_with(Side::Client, limits, Some(params));
    let bytes: Vec<u8> = payloads.iter().flat_map(|payload| to(Side::Client, Frame::binary(payload).rsv(4))).collect();
    let events = feed(&mut make(), &bytes);
    let mut rng = Rng::new(bytes.len() as u64);
    assert_eq!(feed_all(&mut make(), pieces(&bytes, &mut rng)), events);

    let mut zlib = Decompress::new(false);
    let mut seen = events.iter();
    for payload in payloads {
        let body = zlib_inflate(&mut zlib, payload);
        let tail = if body.is_ok() { zlib_inflate(&mut zlib, &TAIL) } else { Err(0) };
        match seen.next() {
            Some(Seen::Message(_, message)) => {
                assert_eq!(body.as_ref(), Ok(message));
                assert_eq!(tail, Ok(Vec::new()));
                assert!(message.len() <= MOST);
            }
            Some(Seen::Fault(Fault::InvalidDeflate)) => {
                assert!(body.is_err() || tail != Ok(Vec::new()));
                break;
            }
            Some(Seen::Fault(Fault::MessageTooBig { .. })) => {
                let inflated = [body, tail].map(|part| part.map_or_else(|len| len, |bytes| bytes.len()));
                assert!(inflated.iter().sum::<usize>() > MOST, "{inflated:?}");
                break;
            }
            other => panic!("{other:?}"),
        }
        if no_context_takeover {
            zlib.reset(false);
        }
    }
    assert!(seen.next().is_none());
}

fn zlib_deflate(zlib: &mut Compress, message: &[u8]) -> Vec<u8> {
    // With enough room for one call, zlib flushes once.
    let mut out = Vec::with_capacity(message.len() + message.len() / 8 + 1000);
    zlib.compress_vec(message, &mut out, FlushCompress::Sync).unwrap();
    assert!(out.len() < out.capacity());
    if out.is_empty() {
        // There is nothing to flush for the second of two empty messages. A sender then writes an empty block.
        out.extend([0, 0, 0, 0xFF, 0xFF]);
    }
    out
}

/// Inflates all of `bytes`, across the ends of deflate streams (RFC 7692 7.2.3.4). The error is the number of bytes
/// produced before it.
fn zlib_inflate(zlib: &mut Decompress, mut bytes: &[u8]) -> Result<Vec<u8>, usize> {
    let mut out = Vec::with_capacity(4096);
    loop {
        let (total_in, total_out) = (zlib.total_in(), zlib.total_out());
        if out.len() == out.capacity() {
            out.reserve(out.len());
        }
        let Ok(status) = zlib.decompress_vec(bytes, &mut out, FlushDecompress::Sync) else { return Err(out.len()) };
        let (taken, produced) = (zlib.total_in() - total_in, zlib.total_out() - total_out);
        bytes = &bytes[taken as usize..];
        match status {
            Status::StreamEnd => {
                zlib.reset(false);
                if bytes.is_empty() {
                    return Ok(out);
                }
            }
            _ if out.len() < out.capacity() || taken == 0 && produced == 0 => {
                return if bytes.is_empty() { Ok(out) } else { Err(out.len()) };
            }
            _ => {}
        }
        if out.len() > 8 << 20 {
            return Ok(out);
        }
    }
}
