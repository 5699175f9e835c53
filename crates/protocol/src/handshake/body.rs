//! [`BodyReader`]: collects the body of a rejection, up to a limit.
//!
//! The connection is not used after a rejection, so bytes after the body are ignored. A malformed body is truncated
//! instead of being an error, so that its response is still reported.

use alloc::vec::Vec;

use super::header_list::HeaderList;

/// Maximum size in bytes of a chunk-size line, including extensions. RFC 9112 7.1.1 requires a limit without naming one;
/// real servers send far shorter lines.
const CHUNK_LINE: usize = 1024;

/// Collects one body.
#[derive(Clone, Debug)]
pub(crate) struct BodyReader {
    framing: Framing,
    limit: usize,
    body: Vec<u8>,
    truncated: bool,
}

/// The position in the body.
#[derive(Clone, Debug)]
enum Framing {
    /// Number of bytes up to the end of the body.
    Length(u64),
    /// All bytes up to the end of the stream.
    UntilEof,
    /// Inside a chunk-size line: its bytes so far.
    ChunkSize(Vec<u8>),
    /// Inside a chunk: number of bytes up to its CR LF.
    ChunkData(u64),
    /// Inside the CR LF after a chunk: number of its bytes received.
    ChunkEnd(usize),
    /// At the end of the body.
    Done,
}

impl BodyReader {
    /// Creates a reader for the body of a final response with this status and these headers.
    pub(crate) fn new(status: u16, headers: &HeaderList, limit: usize) -> Self {
        let (framing, truncated) = framing(status, headers);
        let mut reader = Self { framing, limit, body: Vec::new(), truncated };
        if matches!(reader.framing, Framing::Length(0)) {
            reader.framing = Framing::Done;
        }
        reader
    }

    /// Consumes bytes. Returns true once the body is complete or truncated.
    pub(crate) fn receive(&mut self, mut input: &[u8]) -> bool {
        while let [first, behind @ ..] = input {
            input = match self.framing {
                Framing::Done => return true,
                Framing::Length(remaining) => {
                    let (rest, remaining) = self.take(input, remaining);
                    self.advance(if remaining == 0 { Framing::Done } else { Framing::Length(remaining) });
                    rest
                }
                Framing::UntilEof => self.take(input, u64::MAX).0,
                Framing::ChunkSize(_) => self.receive_chunk_size(input),
                Framing::ChunkData(remaining) => {
                    let (rest, remaining) = self.take(input, remaining);
                    self.advance(if remaining == 0 { Framing::ChunkEnd(0) } else { Framing::ChunkData(remaining) });
                    rest
                }
                Framing::ChunkEnd(position) => {
                    if b"\r\n".get(position) != Some(first) {
                        self.truncate();
                    } else if position == 0 {
                        self.framing = Framing::ChunkEnd(1);
                    } else {
                        self.framing = Framing::ChunkSize(Vec::new());
                    }
                    behind
                }
            };
        }
        matches!(self.framing, Framing::Done)
    }

    /// Returns whether the body is complete or truncated.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.framing, Framing::Done)
    }

    /// Records the end of the stream.
    pub(crate) fn receive_eof(&mut self) {
        // RFC 9112 8: a message is incomplete if the stream ends inside its Content-Length or before its last
        // chunk.
        if !matches!(self.framing, Framing::Done | Framing::UntilEof) {
            self.truncated = true;
        }
        self.framing = Framing::Done;
    }

    /// Takes the body so far. The flag is true if a part of it is missing.
    pub(crate) fn take_body(&mut self) -> (Vec<u8>, bool) {
        (core::mem::take(&mut self.body), self.truncated)
    }

    /// Stores up to `remaining` bytes within the limit. Returns the rest of the input and the new value of `remaining`.
    fn take<'a>(&mut self, input: &'a [u8], remaining: u64) -> (&'a [u8], u64) {
        let wanted = usize::try_from(remaining).unwrap_or(usize::MAX).min(input.len());
        let kept = wanted.min(self.limit - self.body.len());
        self.body.extend_from_slice(input.get(..kept).unwrap_or_default());
        if kept < wanted {
            self.truncate();
        }
        (input.get(wanted..).unwrap_or_default(), remaining - wanted as u64)
    }

    fn receive_chunk_size<'a>(&mut self, input: &'a [u8]) -> &'a [u8] {
        let Framing::ChunkSize(line) = &mut self.framing else { return input };
        let newline = input.iter().position(|&byte| byte == b'\n');
        let take = newline.map_or(input.len(), |position| position + 1);
        let Some((taken, rest)) = input.split_at_checked(take) else { return &[] };
        if line.len() + take > CHUNK_LINE {
            self.truncate();
            return rest;
        }
        line.extend_from_slice(taken);
        if newline.is_some() {
            match httparse::parse_chunk_size(line) {
                // The trailer section after the last chunk is ignored.
                Ok(httparse::Status::Complete((_, 0))) => self.framing = Framing::Done,
                Ok(httparse::Status::Complete((_, size))) => self.framing = Framing::ChunkData(size),
                _ => self.truncate(),
            }
        }
        rest
    }

    /// Sets the next position, unless the body was just truncated.
    fn advance(&mut self, framing: Framing) {
        if !matches!(self.framing, Framing::Done) {
            self.framing = framing;
        }
    }

    fn truncate(&mut self) {
        self.truncated = true;
        self.framing = Framing::Done;
    }
}

/// Returns the initial position in the body according to its framing (RFC 9112 6.3). The flag is true if the framing is
/// invalid and the body is therefore discarded.
fn framing(status: u16, headers: &HeaderList) -> (Framing, bool) {
    // 1: "any response with a 1xx (Informational), 204 (No Content), or 304 (Not Modified) status code" has
    // no body.
    if status < 200 || status == 204 || status == 304 {
        return (Framing::Done, false);
    }
    // 3 and 4: Transfer-Encoding overrides Content-Length. If its final coding is not chunked, the body ends when the
    // connection is closed.
    if headers.contains("Transfer-Encoding") {
        let last = headers.tokens("Transfer-Encoding").last();
        let chunked = last.is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"));
        return (if chunked { Framing::ChunkSize(Vec::new()) } else { Framing::UntilEof }, false);
    }
    match content_length(headers) {
        Ok(Some(length)) => (Framing::Length(length), false),
        // 8: "the message body length is determined by the number of octets received prior to the server
        // closing".
        Ok(None) => (Framing::UntilEof, false),
        // 5: with an invalid Content-Length the body must be discarded. The status is still reported.
        Err(InvalidLength) => (Framing::Done, true),
    }
}

/// Content-Length is not a number, or has several different values.
pub(crate) struct InvalidLength;

/// Returns the value of Content-Length. RFC 9110 8.6: a list of equal values may be accepted as one value.
pub(crate) fn content_length(headers: &HeaderList) -> Result<Option<u64>, InvalidLength> {
    let mut length = None;
    for value in headers.all("Content-Length") {
        for element in value.split(|&byte| byte == b',') {
            let digits = super::header_list::trim(element);
            if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                return Err(InvalidLength);
            }
            let number =
                core::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or(InvalidLength)?;
            if length.is_some_and(|length| length != number) {
                return Err(InvalidLength);
            }
            length = Some(number);
        }
    }
    Ok(length)
}
