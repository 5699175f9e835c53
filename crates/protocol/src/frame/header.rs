//! Encoding and decoding of frame headers: 2 to 14 bytes (RFC 6455 5.2).

use super::Opcode;
use crate::error::Fault;
use crate::mask::Key;

const FIN: u8 = 0x80;
const RSV1: u8 = 0x40;
const MASKED: u8 = 0x80;

/// A frame header. It has no RSV2 and RSV3: no supported extension uses them, so [`Header::decode`] rejects them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether this is the last frame of its message.
    pub fin: bool,
    /// Whether the message is compressed (RFC 7692 6).
    pub rsv1: bool,
    /// The opcode.
    pub opcode: Opcode,
    /// The masking key, if the frame is masked.
    pub mask: Option<Key>,
    /// The length of the payload in bytes.
    pub length: u64,
}

/// An encoded header.
#[derive(Clone, Copy, Debug)]
pub struct Encoded {
    bytes: [u8; Header::MAX],
    len: u8,
}

impl Encoded {
    /// Returns the bytes.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl Header {
    /// Maximum size of a header in bytes.
    pub const MAX: usize = 14;

    /// Decodes the header at the start of `input` and returns it with its size in bytes, or `None` if `input` ends
    /// inside the header.
    ///
    /// Checks the opcode, RSV2 and RSV3, that the length is in its shortest form, and the rules for control frames.
    #[inline]
    pub fn decode(input: &[u8]) -> Result<Option<(Self, usize)>, Fault> {
        let [first, second, rest @ ..] = input else { return Ok(None) };
        let opcode = Opcode::decode(first & 0x0F)?;
        // RFC 6455 5.2: "MUST be 0 unless an extension is negotiated that defines meanings for non-zero
        // values." The connection checks RSV1, as it knows whether compression was negotiated.
        if first & 0x30 != 0 {
            return Err(Fault::ReservedBits(first >> 4 & 7));
        }
        let fin = first & FIN != 0;
        let (length, length_size) = match second & 0x7F {
            126 => {
                let Some(&[high, low]) = rest.first_chunk() else { return Ok(None) };
                let length = u16::from_be_bytes([high, low]);
                // "the minimal number of bytes MUST be used to encode the length"
                if length < 126 {
                    return Err(Fault::LengthNotMinimal);
                }
                (u64::from(length), 2)
            }
            127 => {
                let Some(&bytes) = rest.first_chunk::<8>() else { return Ok(None) };
                let length = u64::from_be_bytes(bytes);
                // "the most significant bit MUST be 0"
                if length >> 63 != 0 {
                    return Err(Fault::LengthTooLarge);
                }
                if length < 1 << 16 {
                    return Err(Fault::LengthNotMinimal);
                }
                (length, 8)
            }
            short => (u64::from(short), 0),
        };
        if opcode.is_control() {
            // RFC 6455 5.5: "All control frames MUST have a payload length of 125 bytes or less and MUST NOT
            // be fragmented."
            if !fin {
                return Err(Fault::FragmentedControl);
            }
            if length > 125 {
                return Err(Fault::ControlTooLong(length));
            }
        }
        let mut size = 2 + length_size;
        let mask = if second & MASKED != 0 {
            let Some(&key) = rest.get(length_size..).and_then(<[u8]>::first_chunk) else { return Ok(None) };
            size += 4;
            Some(key)
        } else {
            None
        };
        Ok(Some((Self { fin, rsv1: first & RSV1 != 0, opcode, mask, length }, size)))
    }

    /// Encodes the header, with the length in its shortest form (RFC 6455 5.2).
    #[must_use]
    #[inline]
    pub fn encode(&self) -> Encoded {
        let mut bytes = [0; Self::MAX];
        bytes[0] = if self.fin { FIN } else { 0 } | if self.rsv1 { RSV1 } else { 0 } | self.opcode as u8;
        let masked = if self.mask.is_some() { MASKED } else { 0 };
        let mut len = match self.length {
            0..126 => {
                bytes[1] = masked | self.length as u8;
                2
            }
            126..0x1_0000 => {
                bytes[1] = masked | 126;
                bytes[2..4].copy_from_slice(&(self.length as u16).to_be_bytes());
                4
            }
            _ => {
                bytes[1] = masked | 127;
                bytes[2..10].copy_from_slice(&self.length.to_be_bytes());
                10
            }
        };
        if let Some(key) = self.mask
            && let Some(place) = bytes.get_mut(len..len + 4)
        {
            place.copy_from_slice(&key);
            len += 4;
        }
        Encoded { bytes, len: len as u8 }
    }
}
