//! A simple model of a receiver, which has the whole stream at once: RFC 6455 5 without compression.

use wirespeed_protocol::{CloseCode, CloseFrame, Delivery, Fault, Limits, MessageKind, Side};

use super::wire::{BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT};
use super::{Frame, Seen};

/// The open message.
struct Open {
    kind: MessageKind,
    /// Its bytes that were not delivered yet, and the number of delivered bytes.
    data: Vec<u8>,
    delivered: usize,
    frames: u32,
    /// All its bytes if it is text.
    text: Vec<u8>,
}

/// Returns the events of a stream, by RFC 6455 5 without compression.
pub fn model(side: Side, limits: Limits, delivery: Delivery, mut bytes: &[u8]) -> Vec<Seen> {
    let mut events = Vec::new();
    let mut open: Option<Open> = None;
    loop {
        let (frame, available, length, rest) = match read_frame(bytes) {
            Some(Ok(parts)) => parts,
            Some(Err(fault)) => {
                events.push(Seen::Fault(fault));
                return events;
            }
            None => return events,
        };
        let so_far = open.as_ref().map(|open| (open.data.len() + open.delivered, open.frames));
        if let Err(fault) = check(side, limits, &frame, length, so_far) {
            events.push(Seen::Fault(fault));
            return events;
        }
        let complete = available as u64 == length;
        let payload = frame.payload;
        if frame.opcode >= CLOSE {
            if !complete {
                return events;
            }
            match frame.opcode {
                PING => events.push(Seen::Ping(payload)),
                PONG => events.push(Seen::Pong(payload)),
                _ => {
                    events.push(match close(&payload) {
                        Ok(close) => Seen::Close(close),
                        Err(fault) => Seen::Fault(fault),
                    });
                    return events;
                }
            }
            bytes = rest;
            continue;
        }
        let mut message = open.take().unwrap_or_else(|| Open {
            kind: if frame.opcode == TEXT { MessageKind::Text } else { MessageKind::Binary },
            data: Vec::new(),
            delivered: 0,
            frames: 0,
            text: Vec::new(),
        });
        message.frames += 1;
        message.data.extend_from_slice(&payload);
        if message.kind == MessageKind::Text {
            message.text.extend_from_slice(&payload);
            let broken = match std::str::from_utf8(&message.text) {
                Ok(_) => false,
                Err(error) => error.error_len().is_some() || frame.fin && complete,
            };
            if broken {
                events.push(Seen::Fault(Fault::InvalidUtf8));
                return events;
            }
        }
        if !complete {
            return events;
        }
        match (frame.fin, delivery) {
            (true, Delivery::Messages) => events.push(Seen::Message(message.kind, message.data)),
            (true, Delivery::Fragments) => events.push(Seen::Fragment(message.kind, message.data, true)),
            (false, Delivery::Messages) => open = Some(message),
            (false, Delivery::Fragments) => {
                let data = std::mem::take(&mut message.data);
                message.delivered += data.len();
                events.push(Seen::Fragment(message.kind, data, false));
                open = Some(message);
            }
        }
        bytes = rest;
    }
}

type Parts<'a> = (Frame, usize, u64, &'a [u8]);

/// Reads the first frame: the frame with the available part of its payload, the size of that part, the payload length,
/// and the bytes after it.
fn read_frame(bytes: &[u8]) -> Option<Result<Parts<'_>, Fault>> {
    let (first, second) = (*bytes.first()?, *bytes.get(1)?);
    let (fin, rsv, opcode) = (first >> 7 == 1, first >> 4 & 7, first & 15);
    if matches!(opcode, 3..=7 | 11..) {
        return Some(Err(Fault::UnknownOpcode(opcode)));
    }
    if rsv & 3 != 0 {
        return Some(Err(Fault::ReservedBits(rsv)));
    }
    let field = match second & 127 {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let length = match field {
        0 => u64::from(second & 127),
        _ => bytes.get(2..2 + field)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
    };
    if field == 8 && length >= 1 << 63 {
        return Some(Err(Fault::LengthTooLarge));
    }
    if field == 2 && length < 126 || field == 8 && length < 65_536 {
        return Some(Err(Fault::LengthNotMinimal));
    }
    if opcode >= CLOSE && !fin {
        return Some(Err(Fault::FragmentedControl));
    }
    if opcode >= CLOSE && length > 125 {
        return Some(Err(Fault::ControlTooLong(length)));
    }
    let mut at = 2 + field;
    let mut key = None;
    if second >= 128 {
        key = Some(<[u8; 4]>::try_from(bytes.get(at..at + 4)?).unwrap());
        at += 4;
    }
    let available = (bytes.len() - at).min(usize::try_from(length).unwrap());
    let mut payload = bytes[at..at + available].to_vec();
    for (index, byte) in payload.iter_mut().enumerate() {
        *byte ^= key.unwrap_or_default()[index % 4];
    }
    Some(Ok((Frame { fin, rsv, opcode, key, payload }, available, length, &bytes[at + available..])))
}

/// Checks the rules for a header that depend on its context. `open` is the size and the number of frames of the open
/// message.
fn check(side: Side, limits: Limits, frame: &Frame, length: u64, open: Option<(usize, u32)>) -> Result<(), Fault> {
    match (side, frame.key) {
        (Side::Client, Some(_)) => return Err(Fault::MaskUnexpected),
        (Side::Server, None) => return Err(Fault::MaskMissing),
        _ => {}
    }
    if frame.rsv != 0 {
        return Err(Fault::ReservedBits(frame.rsv));
    }
    match (frame.opcode, open) {
        (CLOSE.., _) => return Ok(()),
        (CONTINUATION, None) => return Err(Fault::ContinuationUnexpected),
        (TEXT | BINARY, Some(_)) => return Err(Fault::ContinuationExpected),
        _ => {}
    }
    let (size, frames) = open.unwrap_or_default();
    if let Some(limit) = limits.fragments.filter(|limit| open.is_some() && frames >= *limit) {
        return Err(Fault::TooManyFragments { limit });
    }
    let size = size as u64 + length;
    if let Some(limit) = limits.message_size.filter(|limit| size > *limit as u64) {
        return Err(Fault::MessageTooBig { size: Some(size), limit });
    }
    if let Some(limit) = limits.fragment_size.filter(|limit| length > *limit as u64) {
        return Err(Fault::FragmentTooBig { size: Some(length), limit });
    }
    Ok(())
}

fn close(payload: &[u8]) -> Result<CloseFrame, Fault> {
    if payload.is_empty() {
        return Ok(CloseFrame { code: None, reason: String::new() });
    }
    if payload.len() == 1 {
        return Err(Fault::ClosePayloadTooShort);
    }
    let code = u16::from(payload[0]) << 8 | u16::from(payload[1]);
    if !(1000..5000).contains(&code) || (1004..=1006).contains(&code) || (1015..3000).contains(&code) {
        return Err(Fault::InvalidCloseCode(code));
    }
    let reason = String::from_utf8(payload[2..].to_vec()).map_err(|_| Fault::InvalidUtf8)?;
    Ok(CloseFrame { code: Some(CloseCode(code)), reason })
}
