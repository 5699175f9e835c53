//! Deflating and inflating the payloads of messages (RFC 7692 7.2).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Inflate, InflateFlush, Status};

use super::Params;
use crate::error::Fault;
use crate::payload::PayloadBuffer;

/// What a sync flush ends with, and what a sender removes from the end of a message (RFC 7692 7.2.1).
const TAIL: [u8; 4] = [0x00, 0x00, 0xFF, 0xFF];

/// How much room to ask for at once when inflating. A bomb of any size costs at most this beyond the limit.
const INFLATE_STEP: core::ops::RangeInclusive<usize> = 1024..=64 * 1024;

/// A compressor and a decompressor that a connection has released: memory for another one, without their
/// past.
#[derive(Default)]
pub struct Contexts {
    pub(crate) deflater: Option<Box<Deflater>>,
    pub(crate) inflate: Option<Box<Inflate>>,
}

impl Contexts {
    /// Nothing.
    pub const NONE: Self = Self { deflater: None, inflate: None };

    /// The compressor, and the decompressor.
    #[must_use]
    pub fn split(self) -> (Self, Self) {
        (Self { deflater: self.deflater, inflate: None }, Self { deflater: None, inflate: self.inflate })
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deflater.is_none() && self.inflate.is_none()
    }

    /// Of two, each from the first that has it.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { deflater: self.deflater.or(other.deflater), inflate: self.inflate.or(other.inflate) }
    }
}

impl core::fmt::Debug for Contexts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { deflater, inflate } = self;
        f.debug_struct("Contexts").field("deflater", &deflater.is_some()).field("inflate", &inflate.is_some()).finish()
    }
}

/// Bytes that a compressor keeps beside its window.
const SPARE_MAX: usize = 16 * 1024;

/// Compresses outgoing messages.
pub(crate) struct Deflater {
    stream: Deflate,
    params: Params,
    /// It has a past.
    used: bool,
    reset_after_message: bool,
    /// For bytes on their way into a frame: kept for its capacity, while the connection is busy.
    spare: Vec<u8>,
}

impl Deflater {
    /// An empty vector for bytes on their way into a frame.
    pub(crate) fn take_spare(&mut self) -> Vec<u8> {
        mem::take(&mut self.spare)
    }

    /// Takes it back, unless it is large: nobody counts it.
    pub(crate) fn keep_spare(&mut self, mut spare: Vec<u8>) {
        spare.clear();
        if spare.capacity() <= SPARE_MAX {
            self.spare = spare;
        }
    }

    pub(crate) fn new(params: &Params) -> Self {
        let config = DeflateConfig {
            level: i32::from(params.level),
            // Negative: raw deflate, without a zlib header. The library has no encoder for a window of 256
            // bytes, but its encoder for 512 never refers back further than 512 - 262 = 250 bytes (its
            // minimal look-ahead), so every stream that it writes fits a window of 256 bytes too; a test
            // compares.
            window_bits: -i32::from(params.local_window_bits.max(9)),
            mem_level: i32::from(params.memory_level),
            ..DeflateConfig::default()
        };
        let reset_after_message = params.local_no_context_takeover;
        Self {
            stream: Deflate::new_with_config(config),
            params: *params,
            used: false,
            reset_after_message,
            spare: Vec::new(),
        }
    }

    /// The same as a new one, if it can serve for these parameters.
    pub(crate) fn renew(&mut self, params: &Params) -> bool {
        self.spare = Vec::new();
        if mem::take(&mut self.used) {
            self.stream.reset();
        }
        self.params == *params
    }

    /// Bytes that one takes, about: its window and the chains in it, a hash table of one size, and what the
    /// memory level determines.
    pub(crate) fn size(params: &Params) -> usize {
        (4 << params.local_window_bits) + (128 << 10) + (1 << (params.memory_level + 9))
    }

    /// Appends the compressed form of the next piece of a message to `out`; `fin`: the last piece.
    pub(crate) fn compress(&mut self, mut input: &[u8], fin: bool, out: &mut Vec<u8>) {
        let start = out.len();
        self.used = true;
        loop {
            // Deflate grows incompressible data by five bytes per block at most; the flush adds its tail.
            out.reserve(input.len() / 2 + 64);
            let (total_in, total_out) = (self.stream.total_in(), self.stream.total_out());
            let spare = out.spare_capacity_mut();
            let room = spare.len();
            // BufError means that there was nothing to do: an empty piece behind a flush. A stream error
            // cannot occur: the stream is never finished and its configuration was checked when it was made.
            let _ = self.stream.compress_uninit(input, spare, DeflateFlush::SyncFlush);
            let produced = (self.stream.total_out() - total_out) as usize;
            input = input.get((self.stream.total_in() - total_in) as usize..).unwrap_or_default();
            // SAFETY: the encoder initialised the first `produced` bytes of the spare room.
            #[allow(unsafe_code)]
            unsafe {
                out.set_len(out.len() + produced);
            }
            // zlib takes 4 GiB at once: with room left there may still be input.
            if produced < room && (input.is_empty() || self.stream.total_in() == total_in && produced == 0) {
                break;
            }
        }
        if fin {
            if out.get(start..).is_some_and(|sent| sent.ends_with(&TAIL)) {
                // RFC 7692 7.2.1: "Remove 4 octets (that are 0x00 0x00 0xff 0xff) from the tail end."
                out.truncate(out.len() - TAIL.len());
            } else if out.len() == start {
                // Nothing behind the flush of the piece before: the header of an empty block, whose rest is
                // the tail.
                out.push(0x00);
            }
            if self.reset_after_message {
                self.stream.reset();
            }
        }
    }
}

/// Inflates incoming messages.
///
/// The decoder takes far more memory (zlib-rs: 48 KiB) than the part of the past that the peer may refer to,
/// so that is kept apart: between messages a decoder can be dropped, and made again.
pub(crate) struct Inflater {
    stream: Option<Box<Inflate>>,
    /// What was inflated last: at least as much as the peer may refer to, at most twice that; nothing if it
    /// must not refer to anything.
    window: Vec<u8>,
    window_bits: u8,
    reset_after_message: bool,
}

impl Inflater {
    pub(crate) fn new(params: &Params) -> Self {
        Self {
            stream: None,
            window: Vec::new(),
            window_bits: params.remote_window_bits,
            reset_after_message: params.remote_no_context_takeover,
        }
    }

    /// Bytes that its decoder takes, about; 0 while there is none.
    pub(crate) fn size(&self) -> usize {
        if self.stream.is_some() { 48 << 10 } else { 0 }
    }

    /// Gives the decoder away: between messages, where it begins with a byte and a block.
    pub(crate) fn release(&mut self) -> Option<Box<Inflate>> {
        self.forget_beyond_window();
        self.window.shrink_to_fit();
        self.stream.take()
    }

    /// Takes one that another connection has released, instead of a new one.
    pub(crate) fn adopt(&mut self, mut stream: Box<Inflate>) {
        stream.reset(false);
        self.stream = Some(self.prepare(stream));
    }

    fn forget_beyond_window(&mut self) {
        let excess = self.window.len().saturating_sub(1 << self.window_bits);
        self.window.drain(..excess);
    }

    fn remember(&mut self, inflated: &[u8]) {
        if self.reset_after_message {
            return;
        }
        let size = 1_usize << self.window_bits;
        if self.window.len() + inflated.len() > 2 * size {
            let kept = size.saturating_sub(inflated.len());
            let excess = self.window.len().saturating_sub(kept);
            self.window.drain(..excess);
        }
        self.window.extend_from_slice(inflated.get(inflated.len().saturating_sub(size)..).unwrap_or_default());
    }

    fn reset(&mut self) {
        self.window.clear();
        if let Some(stream) = &mut self.stream {
            stream.reset(false);
        }
    }

    fn make_stream(&mut self) -> Box<Inflate> {
        match self.stream.take() {
            Some(stream) => stream,
            None => self.prepare(Box::new(Inflate::new(false, self.window_bits))),
        }
    }

    fn prepare(&mut self, mut stream: Box<Inflate>) -> Box<Inflate> {
        self.forget_beyond_window();
        if !self.window.is_empty() {
            // It cannot fail: a raw stream takes a dictionary at any time.
            let _ = stream.set_dictionary(&self.window);
        }
        stream
    }

    /// Appends what `input` inflates to to `out`, which may come to hold one byte more than `limit` and no
    /// more: the caller compares.
    pub(crate) fn inflate<B: PayloadBuffer>(&mut self, input: &[u8], out: &mut B, limit: usize) -> Result<(), Fault> {
        let start = out.as_slice().len();
        let mut stream = self.make_stream();
        let result = self.run(&mut stream, input, out, limit, start);
        self.stream = Some(stream);
        result
    }

    /// `start`: of what was not remembered in `out`.
    fn run<B: PayloadBuffer>(
        &mut self,
        stream: &mut Inflate,
        mut input: &[u8],
        out: &mut B,
        limit: usize,
        mut start: usize,
    ) -> Result<(), Fault> {
        loop {
            let len = out.as_slice().len();
            if len > limit {
                return Ok(());
            }
            let step = (input.len() * 4).clamp(*INFLATE_STEP.start(), *INFLATE_STEP.end());
            let spare = out.spare(step.min(limit.saturating_add(1) - len))?;
            let room = spare.len().min(limit.saturating_add(1) - len);
            let spare = spare.get_mut(..room).unwrap_or_default();
            let (total_in, total_out) = (stream.total_in(), stream.total_out());
            let status = stream.decompress_uninit(input, spare, InflateFlush::SyncFlush);
            let produced = (stream.total_out() - total_out) as usize;
            input = input.get((stream.total_in() - total_in) as usize..).unwrap_or_default();
            // SAFETY: the decoder initialised the first `produced` bytes of the spare room.
            #[allow(unsafe_code)]
            unsafe {
                out.advance(produced);
            }
            // What came out before the error may be at fault, too, and then it was first: text that is not
            // UTF-8, or too much, which the caller tells.
            let Ok(status) = status else {
                return if out.as_slice().len() > limit { Ok(()) } else { Err(Fault::InvalidDeflate) };
            };
            if status == Status::StreamEnd {
                // RFC 7692 7.2.3.5 lets a sender finish the stream with BFINAL inside a message; what follows
                // is a new one.
                stream.reset(false);
                self.window.clear();
                start = out.as_slice().len();
                if input.is_empty() {
                    return Ok(());
                }
            } else if produced < room {
                self.remember(out.as_slice().get(start..).unwrap_or_default());
                // With room left over the decoder has taken all input; if it has not, it cannot go on.
                return if input.is_empty() { Ok(()) } else { Err(Fault::InvalidDeflate) };
            }
        }
    }

    /// Ends a message: feeds what its sender removed (RFC 7692 7.2.2).
    pub(crate) fn finish<B: PayloadBuffer>(&mut self, out: &mut B, limit: usize) -> Result<(), Fault> {
        let len = out.as_slice().len();
        self.inflate(&TAIL, out, limit)?;
        // Behind a complete block the tail is an empty one. Where it makes data, the message ended inside a
        // block.
        if out.as_slice().len() > len {
            return Err(Fault::InvalidDeflate);
        }
        if self.reset_after_message {
            self.reset();
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_compressor_keeps_small_buffers_alone() {
        let params = Params {
            local_no_context_takeover: false,
            remote_no_context_takeover: false,
            local_window_bits: 12,
            remote_window_bits: 12,
            level: 6,
            memory_level: 5,
            threshold: 0,
        };
        let mut deflater = Deflater::new(&params);
        for (size, is_kept) in [(1000, true), (3 * SPARE_MAX, false), (1000, true)] {
            let mut frame = deflater.take_spare();
            deflater.compress(&vec![7; size], true, &mut frame);
            deflater.keep_spare(frame);
            assert_eq!(deflater.spare.capacity() > 0, is_kept);
            assert!(deflater.spare.capacity() <= SPARE_MAX);
        }
    }
}
