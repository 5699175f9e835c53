//! [`HeadReader`]: collects the bytes of a head and parses it with httparse.
//!
//! Results depend on the bytes only, never on how they were split: errors are looked for in the order of the bytes. The
//! module knows HTTP/1 (RFC 9112), but not WebSocket.

use alloc::borrow::ToOwned as _;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::Limits;
use super::error::{HandshakeError, excerpt};
use super::header_list::{HeaderList, is_token_byte};
use super::message::{Request, Response, Version};

/// The type of a head, which determines its start line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    Response,
}

/// Collects and parses one head.
#[derive(Clone, Debug)]
pub(crate) struct HeadReader {
    kind: Kind,
    limits: Limits,
    /// The bytes of the head so far. Never longer than `limits.head_size`.
    buffer: Vec<u8>,
    /// Start of the incomplete line in `buffer`; at most `buffer.len()`.
    line_start: usize,
    /// Number of complete lines in `buffer`, including the start line.
    lines: usize,
    /// Size of the empty lines before the start line. They are discarded, but count towards the limit.
    skipped: usize,
}

impl HeadReader {
    pub(crate) const fn new(kind: Kind, limits: Limits) -> Self {
        Self { kind, limits, buffer: Vec::new(), line_start: 0, lines: 0, skipped: 0 }
    }

    /// Returns the number of bytes received so far.
    pub(crate) fn received(&self) -> usize {
        self.skipped + self.buffer.len()
    }

    /// Consumes bytes up to the end of the head. Returns the number of consumed bytes once the head is complete.
    pub(crate) fn receive(&mut self, input: &[u8]) -> Result<Option<usize>, HandshakeError> {
        crate::failpoint::hit("protocol.head");
        let mut consumed = 0;
        while consumed < input.len() {
            let room = self.limits.head_size.saturating_sub(self.received());
            let rest = input.get(consumed..).unwrap_or_default();
            let window = rest.get(..room).unwrap_or(rest);
            let newline = window.iter().position(|&byte| byte == b'\n');
            let take = newline.map_or(window.len(), |position| position + 1);
            self.buffer.extend_from_slice(window.get(..take).unwrap_or_default());
            consumed += take;
            self.check_first_bytes()?;
            if newline.is_some() && self.finish_line()? {
                return Ok(Some(consumed));
            }
            if self.received() >= self.limits.head_size {
                let limit = self.limits.head_size;
                return Err(match self.lines {
                    0 => HandshakeError::StartLineTooLong { limit },
                    _ => HandshakeError::HeadTooLarge { limit },
                });
            }
        }
        Ok(None)
    }

    /// Parses a complete head as a request.
    pub(crate) fn parse_request(&self) -> Result<Request, HandshakeError> {
        let mut fields = vec![httparse::EMPTY_HEADER; self.lines - 1];
        let mut head = httparse::Request::new(&mut fields);
        self.check(head.parse(&self.buffer))?;
        let (Some(method), Some(target), Some(minor)) = (head.method, head.path, head.version) else {
            return Err(self.malformed_start());
        };
        Ok(Request {
            method: method.to_owned(),
            target: target.to_owned(),
            version: version(minor),
            headers: self.header_list(head.headers)?,
        })
    }

    /// Parses a complete head as a response.
    pub(crate) fn parse_response(&self) -> Result<Response, HandshakeError> {
        let mut fields = vec![httparse::EMPTY_HEADER; self.lines - 1];
        let mut head = httparse::Response::new(&mut fields);
        self.check(head.parse(&self.buffer))?;
        let (Some(status), Some(minor)) = (head.code, head.version) else {
            return Err(self.malformed_start());
        };
        // RFC 9110 15: "All valid status codes are within the range of 100 to 599, inclusive". Our choice: leave
        // larger codes to the caller.
        if status < 100 {
            return Err(self.malformed_start());
        }
        let mut response = Response::new(status, self.header_list(head.headers)?);
        response.version = version(minor);
        response.reason = head.reason.unwrap_or_default().to_owned();
        Ok(response)
    }

    /// Checks the first bytes, to detect another protocol such as TLS before a line is complete.
    fn check_first_bytes(&self) -> Result<(), HandshakeError> {
        let plausible = match self.kind {
            Kind::Request => {
                self.buffer.first().is_none_or(|&byte| is_token_byte(byte) || matches!(byte, b'\r' | b'\n'))
            }
            Kind::Response => self.buffer.iter().zip(b"HTTP/").all(|(byte, expected)| byte == expected),
        };
        if plausible { Ok(()) } else { Err(self.malformed_start()) }
    }

    /// Checks the line that has just been completed. Returns whether it ends the head.
    fn finish_line(&mut self) -> Result<bool, HandshakeError> {
        let line = self.buffer.get(self.line_start..).unwrap_or_default();
        // RFC 9112 2.2: a recipient "MAY recognize a single LF as a line terminator". Our choice: reject it. An
        // attacker could exploit that two recipients parse it differently.
        if !line.ends_with(b"\r\n") {
            return Err(HandshakeError::MalformedLineEnding { line: self.lines + 1 });
        }
        if line.len() == 2 {
            if self.lines > 0 {
                return Ok(true);
            }
            // RFC 9112 2.2: a server "SHOULD ignore at least one empty line (CRLF) received prior to the
            // request-line". A response cannot begin with an empty line, as its first bytes are checked.
            self.skipped += 2;
            self.buffer.clear();
            return Ok(false);
        }
        self.lines += 1;
        self.line_start = self.buffer.len();
        if self.lines == 1 {
            self.check_start_line()?;
        } else if self.lines - 1 > self.limits.headers {
            return Err(HandshakeError::TooManyHeaders { limit: self.limits.headers });
        }
        Ok(false)
    }

    /// Parses the start line by itself, so that a malformed one is rejected at once.
    fn check_start_line(&self) -> Result<(), HandshakeError> {
        let result = match self.kind {
            Kind::Request => httparse::Request::new(&mut []).parse(&self.buffer),
            Kind::Response => httparse::Response::new(&mut []).parse(&self.buffer),
        };
        result.map(|_| ()).map_err(|error| self.parse_error(error))
    }

    /// Checks that the parser found the same end of the head; else a part of it would be lost or parsed as frames.
    fn check(&self, result: Result<httparse::Status<usize>, httparse::Error>) -> Result<(), HandshakeError> {
        match result {
            Ok(httparse::Status::Complete(length)) if length == self.buffer.len() => Ok(()),
            Ok(_) => Err(self.malformed_header()),
            Err(error) => Err(self.parse_error(error)),
        }
    }

    fn parse_error(&self, error: httparse::Error) -> HandshakeError {
        if self.lines > 1 {
            return self.malformed_header();
        }
        if error == httparse::Error::Version
            && let Some(version) = self.foreign_version()
        {
            return HandshakeError::UnsupportedHttpVersion { version };
        }
        self.malformed_start()
    }

    /// Returns the version in the start line if it looks like a version of HTTP.
    fn foreign_version(&self) -> Option<String> {
        let line = core::str::from_utf8(&self.buffer).ok()?.lines().next()?;
        let mut words = line.split(' ');
        let version = match self.kind {
            Kind::Request => words.nth(2).filter(|_| words.next().is_none())?,
            Kind::Response => words.next()?,
        };
        let number = version.strip_prefix("HTTP/")?;
        let like_a_version = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        like_a_version.then(|| excerpt(version.as_bytes()))
    }

    fn malformed_start(&self) -> HandshakeError {
        let line = self.buffer.split_inclusive(|&byte| byte == b'\n').next().unwrap_or_default();
        HandshakeError::MalformedStartLine { line: excerpt(line) }
    }

    /// Finds the header line that the parser rejects.
    fn malformed_header(&self) -> HandshakeError {
        let lines = self.buffer.split_inclusive(|&byte| byte == b'\n').skip(1);
        for line in lines {
            let mut alone = line.to_vec();
            alone.extend_from_slice(b"\r\n");
            let mut field = [httparse::EMPTY_HEADER];
            let parsed = httparse::parse_headers(&alone, &mut field);
            if !matches!(parsed, Ok(httparse::Status::Complete((length, _))) if length == alone.len()) {
                return HandshakeError::MalformedHeader { line: excerpt(line) };
            }
        }
        HandshakeError::MalformedHeader { line: String::new() }
    }

    fn header_list(&self, fields: &[httparse::Header<'_>]) -> Result<HeaderList, HandshakeError> {
        let mut headers = HeaderList::new();
        for field in fields {
            headers.push(field.name, field.value).map_err(|_| self.malformed_header())?;
        }
        Ok(headers)
    }
}

fn version(minor: u8) -> Version {
    if minor == 0 { Version::Http10 } else { Version::Http11 }
}
