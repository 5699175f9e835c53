//! Compression and decompression of payloads (RFC 7692 7.2), over zlib-rs.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Inflate, InflateFlush, Status};

use super::Params;
use crate::error::Fault;
use crate::payload::PayloadBuffer;

/// The last bytes of a sync flush. Senders remove them from the end of each message (RFC 7692 7.2.1).
const TAIL: [u8; 4] = [0x00, 0x00, 0xFF, 0xFF];

/// Minimum and maximum of the room in bytes that [`Inflater`] requests at once. A decompression bomb of any size takes
/// at most the maximum in excess of the limit.
const INFLATE_STEP: core::ops::RangeInclusive<usize> = 1024..=64 * 1024;

/// A compressor and a decompressor that a connection has released, for reuse by another connection. A connection that
/// adopts them resets them first.
#[derive(Default)]
pub struct Contexts {
    pub(crate) deflater: Option<Box<Deflater>>,
    pub(crate) inflate: Option<Box<Inflate>>,
}

impl Contexts {
    /// Neither a compressor nor a decompressor.
    pub const NONE: Self = Self { deflater: None, inflate: None };

    /// Returns the compressor and the decompressor separately.
    #[must_use]
    pub fn split(self) -> (Self, Self) {
        (Self { deflater: self.deflater, inflate: None }, Self { deflater: None, inflate: self.inflate })
    }

    /// Returns whether there is neither a compressor nor a decompressor.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.deflater.is_none() && self.inflate.is_none()
    }

    /// Fills in the compressor and the decompressor from `other` where `self` has none.
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

/// Maximum capacity in bytes of the scratch buffer that a compressor keeps.
const SCRATCH_MAX: usize = 16 * 1024;

/// Compresses outgoing messages.
pub(crate) struct Deflater {
    stream: Deflate,
    params: Params,
    /// Whether it has compressed anything since its last reset.
    used: bool,
    reset_after_message: bool,
    /// An empty buffer for compressed bytes, kept for its capacity.
    scratch: Vec<u8>,
}

impl Deflater {
    /// Takes the empty scratch buffer.
    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        mem::take(&mut self.scratch)
    }

    /// Clears the scratch buffer and keeps it, unless it is large: its memory is not counted.
    pub(crate) fn keep_scratch(&mut self, mut scratch: Vec<u8>) {
        scratch.clear();
        if scratch.capacity() <= SCRATCH_MAX {
            self.scratch = scratch;
        }
    }

    pub(crate) fn new(params: &Params) -> Self {
        let config = DeflateConfig {
            level: i32::from(params.level),
            // A negative number selects raw deflate, without a zlib header. zlib has no encoder for a window of
            // 256 bytes. But its encoder for 512 bytes never refers back further than 512 - 262 = 250 bytes (262
            // is its minimum look-ahead), so its output fits a window of 256 bytes too. A test checks this.
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
            scratch: Vec::new(),
        }
    }

    /// Resets the compressor. Returns whether it can be used with these parameters.
    pub(crate) fn renew(&mut self, params: &Params) -> bool {
        self.scratch = Vec::new();
        if mem::take(&mut self.used) {
            self.stream.reset();
        }
        self.params == *params
    }

    /// Returns the approximate memory of a compressor in bytes: its window and the chains of it, a hash table of fixed
    /// size, and the buffer whose size the memory level determines.
    pub(crate) fn size(params: &Params) -> usize {
        (4 << params.local_window_bits) + (128 << 10) + (1 << (params.memory_level + 9))
    }

    /// Compresses the next piece of a message and appends it to `out`. `fin` marks the last piece.
    pub(crate) fn compress(&mut self, mut input: &[u8], fin: bool, out: &mut Vec<u8>) {
        let start = out.len();
        self.used = true;
        loop {
            // Deflate adds at most five bytes per block to incompressible data, and the flush adds its tail.
            out.reserve(input.len() / 2 + 64);
            let (total_in, total_out) = (self.stream.total_in(), self.stream.total_out());
            let spare = out.spare_capacity_mut();
            let room = spare.len();
            // BufError means that there was nothing to do: an empty piece after a flush. A stream error cannot
            // occur, as the stream is never finished and its configuration was checked.
            let _ = self.stream.compress_uninit(input, spare, DeflateFlush::SyncFlush);
            let produced = (self.stream.total_out() - total_out) as usize;
            input = input.get((self.stream.total_in() - total_in) as usize..).unwrap_or_default();
            // SAFETY: the encoder initialised the first `produced` bytes of the spare room.
            #[allow(unsafe_code)]
            unsafe {
                out.set_len(out.len() + produced);
            }
            // zlib consumes at most 4 GiB at once, so there may be input left although there is room left.
            if produced < room && (input.is_empty() || self.stream.total_in() == total_in && produced == 0) {
                break;
            }
        }
        if fin {
            if out.get(start..).is_some_and(|sent| sent.ends_with(&TAIL)) {
                // RFC 7692 7.2.1: "Remove 4 octets (that are 0x00 0x00 0xff 0xff) from the tail end."
                out.truncate(out.len() - TAIL.len());
            } else if out.len() == start {
                // An empty last piece after the flush of the previous one: append the header of an empty block.
                // The removed tail is the rest of this block.
                out.push(0x00);
            }
            if self.reset_after_message {
                self.stream.reset();
            }
        }
    }
}

/// Decompresses incoming messages.
///
/// The decoder takes far more memory (48 KiB in zlib-rs) than the window that the peer may refer to. The window is
/// therefore kept separately, and the decoder can be dropped between messages.
pub(crate) struct Inflater {
    stream: Option<Box<Inflate>>,
    /// The last decompressed bytes: at least as many as the peer may refer to, and at most twice as many. Empty
    /// without context takeover.
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

    /// Returns the approximate memory of the decoder in bytes; 0 without a decoder.
    pub(crate) fn size(&self) -> usize {
        if self.stream.is_some() { 48 << 10 } else { 0 }
    }

    /// Takes the decoder out. Only to be called between messages, where the stream is at a byte and block boundary.
    pub(crate) fn release(&mut self) -> Option<Box<Inflate>> {
        self.forget_beyond_window();
        self.window.shrink_to_fit();
        self.stream.take()
    }

    /// Resets a decoder that another connection has released, and uses it.
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
            // This cannot fail: a raw stream accepts a dictionary at any time.
            let _ = stream.set_dictionary(&self.window);
        }
        stream
    }

    /// Decompresses `input` and appends the result to `out`. It stops when `out` has `limit` + 1 bytes; the caller
    /// checks whether `limit` is exceeded.
    pub(crate) fn inflate<B: PayloadBuffer>(&mut self, input: &[u8], out: &mut B, limit: usize) -> Result<(), Fault> {
        let start = out.as_slice().len();
        let mut stream = self.make_stream();
        let result = self.run(&mut stream, input, out, limit, start);
        self.stream = Some(stream);
        result
    }

    /// Decompresses with `stream`. `start` is the position in `out` of the bytes that are not yet in the window.
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
            // The bytes decompressed before the error may break a rule themselves, and that error comes first.
            // The caller checks the limit and the UTF-8.
            let Ok(status) = status else {
                return if out.as_slice().len() > limit { Ok(()) } else { Err(Fault::InvalidDeflate) };
            };
            if status == Status::StreamEnd {
                // RFC 7692 7.2.3.5: a sender may finish the stream with BFINAL inside a message. A new stream
                // follows.
                stream.reset(false);
                self.window.clear();
                start = out.as_slice().len();
                if input.is_empty() {
                    return Ok(());
                }
            } else if produced < room {
                self.remember(out.as_slice().get(start..).unwrap_or_default());
                // With room left, the decoder has consumed all input, or it cannot continue.
                return if input.is_empty() { Ok(()) } else { Err(Fault::InvalidDeflate) };
            }
        }
    }

    /// Ends a message: decompresses the tail that the sender has removed (RFC 7692 7.2.2).
    pub(crate) fn finish<B: PayloadBuffer>(&mut self, out: &mut B, limit: usize) -> Result<(), Fault> {
        let len = out.as_slice().len();
        self.inflate(&TAIL, out, limit)?;
        // After a complete block the tail is an empty block. If it yields data, the message ended inside a block.
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
    fn compressor_keeps_only_small_scratch_buffers() {
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
        for (size, is_kept) in [(1000, true), (3 * SCRATCH_MAX, false), (1000, true)] {
            let mut frame = deflater.take_scratch();
            deflater.compress(&vec![7; size], true, &mut frame);
            deflater.keep_scratch(frame);
            assert_eq!(deflater.scratch.capacity() > 0, is_kept);
            assert!(deflater.scratch.capacity() <= SCRATCH_MAX);
        }
    }
}
