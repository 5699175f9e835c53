//! Compression against zlib in C, both ways, and any bytes as compressed data.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use wirespeed_protocol::deflate::Params;
use wirespeed_protocol::{Fault, Limits, MessageKind, Side};

use crate::input::{Input, pieces};
use crate::support::inflate::TAIL;
use crate::support::{Frame, Rng, Seen, connection_with, feed, feed_all, to};

const LIMITS: Limits = Limits { message_size: None, fragment_size: None, fragments: None };
const BINARY: MessageKind = MessageKind::Binary;

/// The first byte chooses what is compared, the next ones the settings.
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
        _ => any_bytes(input),
    }
}

/// Ours compresses, zlib decompresses, with the window that was promised (its smallest is 9).
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

/// zlib compresses, ours decompresses, in pieces.
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

/// Any bytes as one compressed message: what ours delivers, zlib delivers; what ours refuses, zlib refuses,
/// too.
fn any_bytes(input: Input<'_>) {
    let payload = input.rest();
    let limits = Limits { message_size: Some(1 << 20), ..LIMITS };
    let params = Params {
        local_no_context_takeover: false,
        remote_no_context_takeover: false,
        local_window_bits: 15,
        remote_window_bits: 15,
        level: 6,
        memory_level: 8,
        threshold: 0,
    };
    let make = || connection_with(Side::Client, limits, Some(params));
    let bytes = to(Side::Client, Frame::binary(payload).rsv(4));
    let events = feed(&mut make(), &bytes);
    let mut rng = Rng::new(payload.len() as u64);
    assert_eq!(feed_all(&mut make(), pieces(&bytes, &mut rng)), events);

    let mut zlib = Decompress::new(false);
    let body = zlib_inflate(&mut zlib, payload);
    let tail = body.as_ref().ok().map(|_| zlib_inflate(&mut zlib, &TAIL));
    match &events[..] {
        [Seen::Message(_, message)] => {
            assert_eq!(body.as_ref(), Ok(message));
            assert_eq!(tail, Some(Ok(Vec::new())));
        }
        [Seen::Fault(Fault::InvalidDeflate)] => {
            assert!(body.is_err() || tail != Some(Ok(Vec::new())));
        }
        [Seen::Fault(Fault::MessageTooBig { .. })] => {
            assert!(body.map_or(true, |body| body.len() > 1 << 20) || tail.is_some());
        }
        other => panic!("{other:?}"),
    }
}

fn zlib_deflate(zlib: &mut Compress, message: &[u8]) -> Vec<u8> {
    // Room enough for one call: zlib then flushes once.
    let mut out = Vec::with_capacity(message.len() + message.len() / 8 + 1000);
    zlib.compress_vec(message, &mut out, FlushCompress::Sync).unwrap();
    assert!(out.len() < out.capacity());
    if out.is_empty() {
        // Nothing to flush: the second of two empty messages. An empty block is what a sender writes then.
        out.extend([0, 0, 0, 0xFF, 0xFF]);
    }
    out
}

/// All that comes out of `bytes`, over the end of deflate streams (RFC 7692 7.2.3.4).
fn zlib_inflate(zlib: &mut Decompress, mut bytes: &[u8]) -> Result<Vec<u8>, ()> {
    let mut out = Vec::with_capacity(4096);
    loop {
        let (total_in, total_out) = (zlib.total_in(), zlib.total_out());
        if out.len() == out.capacity() {
            out.reserve(out.len());
        }
        let status = zlib.decompress_vec(bytes, &mut out, FlushDecompress::Sync).map_err(drop)?;
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
                return if bytes.is_empty() { Ok(out) } else { Err(()) };
            }
            _ => {}
        }
        if out.len() > 8 << 20 {
            return Ok(out);
        }
    }
}
