//! Deflating and inflating the payloads of messages (RFC 7692 7.2).

use alloc::vec::Vec;

use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Inflate, InflateFlush, Status};

use super::Params;
use crate::error::Fault;
use crate::payload::PayloadBuffer;

/// What a sync flush ends with, and what a sender removes from the end of a message (RFC 7692 7.2.1).
const TAIL: [u8; 4] = [0x00, 0x00, 0xFF, 0xFF];

/// How much room to ask for at once when inflating. A bomb of any size costs at most this beyond the limit.
const INFLATE_STEP: core::ops::RangeInclusive<usize> = 1024..=64 * 1024;

/// Compresses outgoing messages.
pub(crate) struct Deflater {
    stream: Deflate,
    reset_after_message: bool,
}

impl Deflater {
    pub(crate) fn new(params: &Params) -> Self {
        let config = DeflateConfig {
            level: i32::from(params.level),
            // Negative: raw deflate, without a zlib header. The library has no encoder for a window of 256 bytes, but its
            // encoder for 512 never refers back further than 512 - 262 = 250 bytes (its minimal look-ahead), so every
            // stream that it writes fits a window of 256 bytes too; a test compares.
            window_bits: -i32::from(params.local_window_bits.max(9)),
            mem_level: i32::from(params.memory_level),
            ..DeflateConfig::default()
        };
        Self { stream: Deflate::new_with_config(config), reset_after_message: params.local_no_context_takeover }
    }

    /// Appends the compressed form of the next piece of a message to `out`; `fin`: the last piece.
    pub(crate) fn compress(&mut self, mut input: &[u8], fin: bool, out: &mut Vec<u8>) {
        let start = out.len();
        loop {
            // Deflate grows incompressible data by five bytes per block at most; the flush adds its tail.
            out.reserve(input.len() / 2 + 64);
            let (total_in, total_out) = (self.stream.total_in(), self.stream.total_out());
            let spare = out.spare_capacity_mut();
            let room = spare.len();
            // BufError means that there was nothing to do: an empty piece behind a flush. A stream error cannot occur:
            // the stream is never finished and its configuration was checked when it was made.
            let _ = self.stream.compress_uninit(input, spare, DeflateFlush::SyncFlush);
            let produced = (self.stream.total_out() - total_out) as usize;
            input = &input[(self.stream.total_in() - total_in) as usize..];
            // SAFETY: the encoder initialised the first `produced` bytes of the spare room.
            #[allow(unsafe_code)]
            unsafe {
                out.set_len(out.len() + produced);
            }
            if produced < room {
                break;
            }
        }
        if fin {
            if out[start..].ends_with(&TAIL) {
                // RFC 7692 7.2.1: "Remove 4 octets (that are 0x00 0x00 0xff 0xff) from the tail end."
                out.truncate(out.len() - TAIL.len());
            } else if out.len() == start {
                // Nothing behind the flush of the piece before: the header of an empty block, whose rest is the tail.
                out.push(0x00);
            }
            if self.reset_after_message {
                self.stream.reset();
            }
        }
    }
}

/// Inflates incoming messages.
pub(crate) struct Inflater {
    stream: Inflate,
    reset_after_message: bool,
}

impl Inflater {
    pub(crate) fn new(params: &Params) -> Self {
        Self {
            stream: Inflate::new(false, params.remote_window_bits),
            reset_after_message: params.remote_no_context_takeover,
        }
    }

    /// Appends what `input` inflates to to `out`, which may come to hold one byte more than `limit` and no more:
    /// the caller compares.
    pub(crate) fn inflate<B: PayloadBuffer>(
        &mut self,
        mut input: &[u8],
        out: &mut B,
        limit: usize,
    ) -> Result<(), Fault> {
        loop {
            let len = out.as_slice().len();
            if len > limit {
                return Ok(());
            }
            let step = (input.len() * 4).clamp(*INFLATE_STEP.start(), *INFLATE_STEP.end());
            let spare = out.spare(step.min(limit.saturating_add(1) - len))?;
            let room = spare.len().min(limit.saturating_add(1) - len);
            let (total_in, total_out) = (self.stream.total_in(), self.stream.total_out());
            let status = self.stream.decompress_uninit(input, &mut spare[..room], InflateFlush::SyncFlush);
            let produced = (self.stream.total_out() - total_out) as usize;
            input = &input[(self.stream.total_in() - total_in) as usize..];
            // SAFETY: the decoder initialised the first `produced` bytes of the spare room.
            #[allow(unsafe_code)]
            unsafe {
                out.advance(produced);
            }
            // What came out before the error may be at fault, too, and then it was first: text that is not UTF-8, or too
            // much, which the caller tells.
            let Ok(status) = status else {
                return if out.as_slice().len() > limit { Ok(()) } else { Err(Fault::InvalidDeflate) };
            };
            if status == Status::StreamEnd {
                // RFC 7692 7.2.3.5 lets a sender finish the stream with BFINAL inside a message; what follows is a new one.
                self.stream.reset(false);
                if input.is_empty() {
                    return Ok(());
                }
            } else if produced < room {
                // With room left over the decoder has taken all input; if it has not, it cannot go on.
                return if input.is_empty() { Ok(()) } else { Err(Fault::InvalidDeflate) };
            }
        }
    }

    /// Ends a message: feeds what its sender removed (RFC 7692 7.2.2).
    pub(crate) fn finish<B: PayloadBuffer>(&mut self, out: &mut B, limit: usize) -> Result<(), Fault> {
        let len = out.as_slice().len();
        self.inflate(&TAIL, out, limit)?;
        // Behind a complete block the tail is an empty one. Where it makes data, the message ended inside a block.
        if out.as_slice().len() > len {
            return Err(Fault::InvalidDeflate);
        }
        if self.reset_after_message {
            self.stream.reset(false);
        }
        Ok(())
    }
}
