//! Sending: the methods append whole frames to a buffer of the caller.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;

use super::{Connection, Outgoing};
use crate::Side;
use crate::close::{CloseCode, CloseFrame};
use crate::deflate::codec::Deflater;
use crate::error::SendError;
use crate::event::{ControlPayload, MessageKind};
use crate::frame::{Encoded, Header, Opcode};
use crate::mask::{self, Key};
use crate::payload::PayloadBuffer;
use crate::state::{State, Transition};
use crate::utf8;

/// A function that returns a random masking key. A client calls it once per frame, a server never.
pub trait DrawKey: FnOnce() -> Key {}
impl<F: FnOnce() -> Key> DrawKey for F {}

impl Outgoing {
    /// Validates the next fragment if the message is text.
    fn take(&mut self, payload: &[u8], fin: bool) -> Result<(), SendError> {
        let Some(text) = &mut self.text else { return Ok(()) };
        text.feed(payload).and_then(|()| if fin { text.finish() } else { Ok(()) }).map_err(|_| SendError::InvalidUtf8)
    }
}

impl<B: PayloadBuffer> Connection<B> {
    /// Appends an unfragmented message to `out`.
    ///
    /// With `compress` = `None` the message is compressed if it reaches the threshold; `Some` overrides the threshold.
    /// Without negotiated compression `compress` has no effect.
    #[inline]
    pub fn send_message(
        &mut self,
        kind: MessageKind,
        payload: &[u8],
        compress: Option<bool>,
        key: impl DrawKey,
        out: &mut Vec<u8>,
    ) -> Result<(), SendError> {
        self.check_message()?;
        if self.wants_compression(payload.len(), compress) {
            self.send_compressed(kind.opcode(), payload, true, key, out);
        } else {
            self.append_frame(kind.opcode(), payload, true, false, key, out);
        }
        Ok(())
    }

    /// Returns whether [`Self::send_message`] compresses a payload of `len` bytes.
    #[must_use]
    #[inline]
    pub fn wants_compression(&self, len: usize, compress: Option<bool>) -> bool {
        match &self.deflate {
            // Compression would make an empty payload longer.
            Some(params) => len > 0 && compress.unwrap_or(len >= params.threshold),
            None => false,
        }
    }

    /// Returns the header of an unfragmented, uncompressed message. The caller masks and writes the payload itself, in
    /// pieces (see [`mask::append`]).
    #[inline]
    pub fn send_message_header(
        &mut self,
        kind: MessageKind,
        length: usize,
        key: Option<Key>,
    ) -> Result<Encoded, SendError> {
        self.check_message()?;
        Ok(Header { fin: true, rsv1: false, opcode: kind.opcode(), mask: key, length: length as u64 }.encode())
    }

    /// Appends the first fragment of a message to `out`. No other message may be sent before its last fragment.
    /// Fragments of text may end inside a character. A fragment that makes the text invalid is not sent (RFC 6455 5.6).
    pub fn send_first_fragment(
        &mut self,
        kind: MessageKind,
        payload: &[u8],
        compress: Option<bool>,
        key: impl DrawKey,
        out: &mut Vec<u8>,
    ) -> Result<(), SendError> {
        self.check_message()?;
        // The size of the whole message is unknown, so the threshold does not apply.
        let compressed = self.deflate.is_some() && compress.unwrap_or(true);
        let mut outgoing = Outgoing { compressed, text: (kind == MessageKind::Text).then(utf8::Validator::default) };
        outgoing.take(payload, false)?;
        self.outgoing = Some(outgoing);
        self.send_fragment_frame(kind.opcode(), payload, false, compressed, key, out);
        Ok(())
    }

    /// Appends the next fragment of the message that [`Self::send_first_fragment`] began. `fin` marks the last one.
    pub fn send_fragment(
        &mut self,
        payload: &[u8],
        fin: bool,
        key: impl DrawKey,
        out: &mut Vec<u8>,
    ) -> Result<(), SendError> {
        if !self.state.can_send() {
            return Err(SendError::NotOpen);
        }
        let Some(mut outgoing) = self.outgoing else { return Err(SendError::NoMessageOpen) };
        outgoing.take(payload, fin)?;
        self.outgoing = (!fin).then_some(outgoing);
        self.send_fragment_frame(Opcode::Continuation, payload, fin, outgoing.compressed, key, out);
        Ok(())
    }

    /// Returns whether a fragmented message is being sent.
    #[must_use]
    pub fn is_sending_fragments(&self) -> bool {
        self.outgoing.is_some()
    }

    /// Appends a ping to `out` (RFC 6455 5.5.2).
    pub fn send_ping(&mut self, payload: &[u8], key: impl DrawKey, out: &mut Vec<u8>) -> Result<(), SendError> {
        self.send_control(Opcode::Ping, payload, key, out)
    }

    /// Appends a pong to `out` (RFC 6455 5.5.3).
    pub fn send_pong(&mut self, payload: &[u8], key: impl DrawKey, out: &mut Vec<u8>) -> Result<(), SendError> {
        self.send_control(Opcode::Pong, payload, key, out)
    }

    /// Appends a close frame to `out`. It begins the closing handshake or answers the peer's (RFC 6455 5.5.1).
    ///
    /// A close frame may be sent inside a fragmented message, as control frames may be interleaved (5.4). The rest of
    /// the message is lost. The close frame then has code 1011 and a reason for this, instead of `code` and `reason`
    /// (unless `code` is 1011), as in the `websockets` library.
    pub fn send_close(
        &mut self,
        code: Option<CloseCode>,
        reason: &str,
        key: impl DrawKey,
        out: &mut Vec<u8>,
    ) -> Result<(), SendError> {
        if !matches!(self.state, State::Open | State::CloseReceived) {
            return Err(SendError::NotOpen);
        }
        match code {
            Some(code) if !code.is_sendable() => return Err(SendError::InvalidCloseCode(code.0)),
            None if !reason.is_empty() => return Err(SendError::ReasonWithoutCode),
            _ => {}
        }
        if reason.len() > CloseFrame::MAX_REASON {
            return Err(SendError::ReasonTooLong(reason.len()));
        }
        let breaks = self.outgoing.is_some() && self.state == State::Open;
        let frame = if breaks && code != Some(CloseCode::INTERNAL_ERROR) {
            CloseFrame { code: Some(CloseCode::INTERNAL_ERROR), reason: "close during fragmented message".to_string() }
        } else {
            CloseFrame { code, reason: reason.to_string() }
        };
        self.append_close(frame, key, out);
        self.state = self.state.after(Transition::CloseSent);
        Ok(())
    }

    /// Appends the reply to the peer's close frame, if one is due: "it typically echoes the status code it received"
    /// (RFC 6455 5.5.1). The reason is echoed too, as in the `websockets` library.
    pub fn send_close_reply(&mut self, key: impl DrawKey, out: &mut Vec<u8>) {
        if self.state != State::CloseReceived {
            return;
        }
        if let Some(close) = self.close_received.as_deref().cloned() {
            self.append_close(close, key, out);
            self.state = self.state.after(Transition::CloseSent);
        }
    }

    /// Appends a close frame with the code of the fault that failed the connection (RFC 6455 7.1.7). Appends nothing
    /// without a fault, or if a close frame was sent or received before.
    pub fn send_fault(&mut self, key: impl DrawKey, out: &mut Vec<u8>) {
        if let Some(fault) = self.fault {
            self.append_failure(fault.close_code(), &fault.to_string(), key, out);
        }
    }

    /// Fails the connection for a reason other than received bytes, such as a missing pong. Appends a close frame with
    /// `code` and `reason`, unless one was sent or received before.
    pub fn send_failure(&mut self, code: CloseCode, reason: &str, key: impl DrawKey, out: &mut Vec<u8>) {
        if self.state == State::Closed {
            return;
        }
        self.receive_eof();
        self.append_failure(code, reason, key, out);
    }

    fn append_failure(&mut self, code: CloseCode, reason: &str, key: impl DrawKey, out: &mut Vec<u8>) {
        debug_assert_eq!(self.state, State::Failed);
        if self.close_sent.is_none() && self.close_received.is_none() {
            // Truncate a long reason at the end of a character, so that it stays UTF-8.
            let end = reason.floor_char_boundary(CloseFrame::MAX_REASON);
            let reason = reason.get(..end).unwrap_or_default().to_string();
            self.append_close(CloseFrame { code: Some(code), reason }, key, out);
        }
    }

    fn append_close(&mut self, close: CloseFrame, key: impl DrawKey, out: &mut Vec<u8>) {
        crate::failpoint::hit("protocol.close");
        let mut payload = ControlPayload::new();
        if let Some(code) = close.code {
            payload.extend(&code.0.to_be_bytes());
            payload.extend(close.reason.as_bytes());
        }
        self.append_frame(Opcode::Close, payload.as_slice(), true, false, key, out);
        self.close_sent = Some(Box::new(close));
    }

    fn send_control(
        &mut self,
        opcode: Opcode,
        payload: &[u8],
        key: impl DrawKey,
        out: &mut Vec<u8>,
    ) -> Result<(), SendError> {
        // After our close frame only pongs may be sent: 5.5.1 forbids data frames, and 5.5.2 requires pongs "unless it
        // already received a Close frame".
        if !(self.state.can_send() || opcode == Opcode::Pong && self.state == State::CloseSent) {
            return Err(SendError::NotOpen);
        }
        if payload.len() > ControlPayload::MAX {
            return Err(SendError::ControlTooLong(payload.len()));
        }
        self.append_frame(opcode, payload, true, false, key, out);
        Ok(())
    }

    #[inline]
    fn check_message(&self) -> Result<(), SendError> {
        // RFC 6455 5.5.1: "The application MUST NOT send any more data frames after sending a Close frame."
        if !self.state.can_send() {
            return Err(SendError::NotOpen);
        }
        if self.outgoing.is_some() {
            return Err(SendError::MessageOpen);
        }
        Ok(())
    }

    fn send_fragment_frame(
        &mut self,
        opcode: Opcode,
        payload: &[u8],
        fin: bool,
        compressed: bool,
        key: impl DrawKey,
        out: &mut Vec<u8>,
    ) {
        if compressed {
            self.send_compressed(opcode, payload, fin, key, out);
        } else {
            self.append_frame(opcode, payload, fin, false, key, out);
        }
    }

    fn send_compressed(&mut self, opcode: Opcode, payload: &[u8], fin: bool, key: impl DrawKey, out: &mut Vec<u8>) {
        crate::failpoint::hit("protocol.deflate");
        let Some(params) = self.deflate else { return };
        let deflater = self.deflater.get_or_insert_with(|| Box::new(Deflater::new(&params)));
        let mut compressed = deflater.take_scratch();
        deflater.compress(payload, fin, &mut compressed);
        // RFC 7692 6.1: RSV1 is set on the first frame of the message only.
        self.append_frame(opcode, &compressed, fin, opcode != Opcode::Continuation, key, out);
        if let Some(deflater) = &mut self.deflater {
            deflater.keep_scratch(compressed);
        }
    }

    #[inline]
    fn append_frame(
        &self,
        opcode: Opcode,
        payload: &[u8],
        fin: bool,
        rsv1: bool,
        key: impl DrawKey,
        out: &mut Vec<u8>,
    ) {
        crate::failpoint::hit("protocol.send");
        let mask = match self.side {
            Side::Client => Some(key()),
            Side::Server => None,
        };
        let header = Header { fin, rsv1, opcode, mask, length: payload.len() as u64 }.encode();
        out.reserve(header.as_slice().len() + payload.len());
        out.extend_from_slice(header.as_slice());
        match mask {
            Some(key) => mask::append(out, payload, key, 0),
            None => out.extend_from_slice(payload),
        }
    }
}
